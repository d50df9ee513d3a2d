"""One exported program for every length: symbolic T and S, and B, loaded and run at three sizes (L11, L16)."""

import importlib.util

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, explain, masks, scores
from judges import assert_leaves_close

pytestmark = pytest.mark.law("L11", "tiles")

N, G, D, V = 4, 2, 8, 6
SIZES = ((2, 3, 5), (1, 40, 64), (3, 150, 333))


def shapes(B, T, S):
    """Of query, key, value, lengths and bias."""
    floats = (B, N, T, D), (B, G, S, D), (B, G, S, V), (1, N, T, S)
    *qkv, bias = (jax.ShapeDtypeStruct(x, "float32") for x in floats)
    return *qkv, jax.ShapeDtypeStruct((B,), "int32"), bias


def arrays(B, T, S):
    rng = np.random.default_rng(T)
    query, key, value, lengths, bias = (x.shape for x in shapes(B, T, S))
    q, k, v, b = (jnp.asarray(rng.normal(size=x), "float32") for x in (query, key, value, bias))
    return q, k, v, jnp.asarray(rng.integers(0, S + 1, lengths), "int32"), b


def aligned(query, key, lengths):
    return masks.causal(key.shape[-2] - query.shape[-2]) & masks.padding(lengths)


CALLS = {
    "plain": lambda q, k, v, n, b: attention(q, k, v),
    "lengths and bias": lambda q, k, v, n, b: attention(q, k, v, mask=masks.causal() & masks.padding(n), bias=b),
    "aligned to the end": lambda q, k, v, n, b: attention(q, k, v, mask=aligned(q, k, n)),
    "a window or some": lambda q, k, v, n, b: attention(
        q, k, v, mask=masks.window(3, 1) | ~masks.padding(n), score_mod=scores.softcap(2.0), return_lse=True
    ),
    "a window and lengths": lambda q, k, v, n, b: attention(q, k, v, mask=masks.window(9, 0) & masks.padding(n)),
}


def with_gradient(call):
    def run(q, k, v, n, b):
        results, pull = jax.vjp(lambda q, k, v, b: call(q, k, v, n, b), q, k, v, b)
        return results, pull(jax.tree.map(jnp.ones_like, results))

    return run


@pytest.mark.sample(5)
@pytest.mark.parametrize("lengths", ["any length", (40, 64), (300, 700)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_one_program_for_three_sizes(name, lengths):
    """Of any batch and, in one tile, of any T and S; with its gradient."""
    run = with_gradient(CALLS[name])
    any_length = lengths == "any length"
    symbolic = jax.export.symbolic_shape("b, t, s" if any_length else "b")
    exported = jax.export.export(jax.jit(run))(*shapes(*symbolic, *([] if any_length else lengths)))
    if importlib.util.find_spec("flatbuffers"):  # what JAX writes programs with
        exported = jax.export.deserialize(exported.serialize())
    for sizes in SIZES:
        given = arrays(*(sizes if any_length else (sizes[0], *lengths)))
        assert_leaves_close(exported.call(*given), run(*given), rtol=2e-5, atol=2e-5)


def test_a_gradient_of_one_text_whose_heads_share_a_key_head():
    """The numbers of texts and key heads are known to be 1, that of tokens is not."""
    (t,) = jax.export.symbolic_shape("t")
    shape = jax.ShapeDtypeStruct((1, N, t, D), "float32"), jax.ShapeDtypeStruct((1, 1, t, D), "float32")
    gradient = jax.grad(lambda *arrays: jnp.sum(attention(*arrays) ** 2), (0, 1, 2))
    exported = jax.export.export(jax.jit(gradient))(shape[0], shape[1], shape[1])
    query, key = arrays(1, 200, 200)[:2]
    given = query, key[:, :1], jnp.flip(key[:, 1:], axis=-1)
    assert_leaves_close(exported.call(*given), gradient(*given), rtol=2e-5, atol=2e-5)


@pytest.mark.smoke
def test_explain_says_that_scores_are_one_tile():
    query, key, value, _, _ = shapes(*jax.export.symbolic_shape("b, t, s"))
    found = explain(query, key, value, mask=masks.causal())
    assert found.implementation == "dense"
    assert "symbolic" in found.reason
    assert "FLOPs" in str(found)
