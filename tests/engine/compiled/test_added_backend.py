"""A backend by the recipe of docs/add-a-backend.md: forward and gradient by a dense formula, the rest by tiles."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, checks, explain, masks
from attendax.kernels.backends import BACKENDS, Backend
from attendax.kernels.blockwise import algorithm, partition
from attendax.kernels.operands import Limits, Results
from judges import assert_leaves_close, by_definition

B, N, G, T, S, D, V = 2, 4, 2, 5, 7, 3, 6


def scores_of(operands, plan):
    """All scores (..., N, T, S), and key and value for each query head."""
    group = operands.query.shape[-3] // operands.key.shape[-3]
    dtype = operands.compute_dtype()
    query, key, value = (x.astype(dtype) for x in operands[:3])
    key, value = (jnp.repeat(x, group, axis=-3) for x in (key, value))
    return plan.scale * jnp.einsum("...td,...sd->...ts", query, key, precision="highest"), key, value


def toy(asked):
    """The backend as a module; it notes in which directions it is asked."""
    module = types.ModuleType("toy")

    def forward(operands, plan):
        asked.append("forward")
        scores, _, value = scores_of(operands, plan)
        row_max = scores.max(-1, keepdims=True)
        exps = jnp.exp(scores - row_max)
        row_sum = exps.sum(-1, keepdims=True)
        out = jnp.einsum("...ts,...sv->...tv", exps / row_sum, value, precision="highest")
        return Results(jnp.broadcast_to(out, (*plan.leading(operands), *out.shape[-3:])), row_max, row_sum)

    def cotangent(grads, operands, results, plan, wanted):
        asked.append("cotangent")

        def results_of(*arrays):
            found = forward(operands._replace(query=arrays[0], key=arrays[1], value=arrays[2]), plan)
            return found.out, found.row_max + jnp.log(found.row_sum)

        full = [jnp.broadcast_to(x, (*plan.leading(operands), *x.shape[-3:])) for x in (*operands[:3], *grads)]
        found = jax.vjp(results_of, *full[:3])[1](tuple(full[3:]))
        pairs = [(x, shape) for x, shape in zip(found, wanted, strict=True) if shape is not None]
        return tuple(x.sum([a for a, n in enumerate(shape) if n < x.shape[a]], keepdims=True) for x, shape in pairs)

    module.forward, module.cotangent = forward, cotangent
    return module


def refuse(function, operands, plan):
    if operands.mask is not None:
        checks.fail(NotImplementedError, function, "implementation 'toy' does not take this call: a mask.")


@pytest.fixture
def asked(monkeypatch):
    asked = []
    limits = BACKENDS["blockwise"].limits
    monkeypatch.setitem(BACKENDS, "toy", Backend(toy(asked), limits, fallback="blockwise", refuse=refuse))
    return asked


def attend(*arrays, **options):
    return attention(*arrays, implementation="toy", return_lse=True, **options)


@pytest.fixture
def arrays(rng):
    return tuple(rng.normal(size=shape) for shape in ((B, N, T, D), (B, G, S, D), (B, G, S, V)))


def test_it_computes_forward_and_gradient(asked, arrays, rng):
    """Eager, under jit, and under vmap with arrays that are not mapped; lse has its cotangent."""
    query, key, value = arrays
    grads = rng.normal(size=(B, N, T, V)), rng.normal(size=(B, N, T))

    def run(*arrays):
        results, pull = jax.vjp(attend, *arrays)
        return *results, *pull(grads)

    wanted = by_definition(arrays, *grads)
    for found in (run(*arrays), jax.jit(run)(*arrays)):
        assert_leaves_close(found, wanted, atol=1e-12)
    assert set(asked) == {"forward", "cotangent"}
    mapped = jax.vmap(run, (0, None, None))(np.stack([query, -query]), key, value)
    for one, other in zip(mapped, run(-query, key, value), strict=True):
        np.testing.assert_allclose(one[1], other, atol=1e-12)


@pytest.mark.parametrize(("columns", "forwards"), [(2, ["forward"]), (512, [])])
def test_tiles_compute_what_it_lacks(columns, forwards, asked, arrays, monkeypatch):
    """A tangent and a Hessian times a vector: where tiles cut the keys, from their forward; its own is not asked."""
    monkeypatch.setattr(partition, "LIMITS", Limits(T, columns, 2**21))
    forward, of_tiles = algorithm.forward, []
    monkeypatch.setattr(algorithm, "forward", lambda *call: of_tiles.append("forward") or forward(*call))

    def loss(name):
        return lambda query: (attention(query, *arrays[1:], implementation=name) ** 2).sum()

    def tangent(name):
        return jax.jvp(loss(name), (arrays[0],), (arrays[0],))

    def second(name):
        return jax.jvp(jax.grad(loss(name)), (arrays[0],), (arrays[0][..., ::-1],))

    found = tangent("toy")
    assert (asked, of_tiles) == (["forward"], forwards)
    assert_leaves_close((*found, *second("toy")), (*tangent("dense"), *second("dense")), rtol=1e-10, atol=1e-12)


def test_it_refuses_in_its_words_and_explain_names_it(asked, arrays):
    with pytest.raises(NotImplementedError, match="attention: implementation 'toy' does not take this call: a mask"):
        attend(*arrays, mask=masks.causal())
    assert explain(*arrays, implementation="toy").implementation == "toy"
    with pytest.raises(ValueError, match="'toy'"):
        attention(*arrays, implementation="tony")
