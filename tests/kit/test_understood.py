"""How `attendax diff` finds out what a function means: JAX in few programs, sizes, results that are several arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax.conformance.against import describing, remote
from attendax.conformance.against.asking import GENERAL, arrays
from attendax.conformance.against.options import OPTIONS
from test_against_slips import masked, scored, softmax

traced = []


def described(fn):
    """All that is found out about a function, and the number of its calls."""
    count = []
    function = remote.Function(fn, in_process=True)
    one = describing.Describing(function)
    within = one.called
    one.called = lambda *x, **more: count.append(1) or within(*x, **more)
    return one.candidate(), len(count)


def in_jax(query, key, value, mask=None, scale=None):
    traced.append(query.shape)
    scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    return jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, -jnp.inf)) @ value


def looks_at_numbers(query, key, value, scale=None):
    traced.append(query.shape)
    return in_jax(query, key, value, scale=scale if scale and scale > 0 else 0.125) if query[0, 0, 0, 0] < 9 else value


def of_jax(fn, *options):
    """Results of each call, and how often the lines of the function ran."""
    there = remote.Here(fn)
    there.kinds = ["jax"]
    traced.clear()
    given = arrays(GENERAL)
    found = [there.answer(remote.CallRequest(given, x))["out"] for x in options]
    return found, given, len(traced)


def test_a_jax_function_is_one_program_for_each_shape_and_each_option():
    masks = [np.tri(3, 5, k, dtype=bool)[None, None] for k in (0, 1)]
    options = [{}, {"scale": 0.5}, {"scale": 2.0}, {}, *({"mask": x} for x in masks)]
    found, given, times = of_jax(in_jax, *options)
    assert times == 3
    for one, option in zip(found, options, strict=True):
        np.testing.assert_allclose(one, in_jax(*given, **option), rtol=1e-5, atol=1e-5)


def test_a_jax_function_that_looks_at_numbers_is_called_as_it_is():
    options = [{}, {"scale": 0.5}, {"scale": 2.0}]
    found, given, _ = of_jax(looks_at_numbers, *options)
    for one, option in zip(found, options, strict=True):
        np.testing.assert_allclose(one, in_jax(*given, **{"scale": 0.125, **option}), rtol=1e-5, atol=1e-5)


def narrow_scores(query, key, value, bias=None):
    """As ``jax.nn`` under a narrow dtype: scores in the dtype of the queries."""
    scores = jnp.einsum("btnd,bsnd->bnts", query, key) * query.shape[-1] ** -0.5
    scores = scores if bias is None else scores + bias
    return jnp.einsum("bnts,bsnd->btnd", jax.nn.softmax(scores.astype(jnp.float32)), value)


@pytest.mark.slow  # some fifty programs of JAX
def test_narrow_scores_are_those_of_narrow_arrays_alone():
    found, _ = described(narrow_scores)
    assert found.form.how["softmax"] == "bfloat16 scores"
    assert set(found.form.options) == {"bias"}
    assert not found.unknown


def key_value_packed(q, kv, causal=False):
    """FlashAttention's: (B, S, 2, N, D), causal aligned to the end of the keys."""
    q, k, v = q.swapaxes(1, 2), kv[:, :, 0].swapaxes(1, 2), kv[:, :, 1].swapaxes(1, 2)
    T, S = q.shape[2], k.shape[2]
    return masked(q, k, v, np.tri(T, S, S - T, dtype=bool) if causal else None).swapaxes(1, 2)


@pytest.mark.smoke
def test_keys_and_values_in_one_array_are_asked_with_fewer_queries():
    found, _ = described(key_value_packed)
    assert (found.form.layout, found.form.pack) == ("BTND", "kv 2")
    assert found.form.how["causal"] == "aligned to the end"


def merged(query, key, value, num_heads, attn_mask=None):
    """Fairseq's: (T, B, N D)."""
    q, k, v = (np.moveaxis(x.reshape(*x.shape[:2], num_heads, -1), 0, 2) for x in (query, key, value))
    scores = scored(q, k) if attn_mask is None else scored(q, k) + attn_mask[None, None]
    return np.moveaxis(softmax(scores) @ v, 2, 0).reshape(*query.shape[:2], -1)


def test_time_first_and_heads_merged():
    found, _ = described(merged)
    assert (found.form.layout, found.form.heads) == ("TB(ND)", "num_heads")
    assert found.form.options["mask"] == ("attn_mask", "TS/added, -inf drops")


def and_weights(q, k, v, causal=False):
    """(B, T, N, D) to (out, weights)."""
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    mask = np.tri(q.shape[2], k.shape[2], dtype=bool) if causal else None
    return masked(q, k, v, mask).swapaxes(1, 2), softmax(scored(q, k))


def test_several_results_are_no_reason_to_try_every_layout_again():
    found, calls = described(and_weights)
    assert (found.form.layout, found.form.first) == ("BTND", True)
    assert set(found.form.options) == {"is_causal"}
    _, alone = described(lambda q, k, v, causal=False: and_weights(q, k, v, causal)[0])
    assert calls <= alone + len(OPTIONS["return_lse"].kinds)  # those of the second result


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_added_mask_is_given_in_the_dtype_of_the_arrays(dtype):
    there = remote.Here(lambda q, k, v, mask: q + (mask.dtype == np.float32))
    there.kinds = ["numpy"]
    given = arrays(GENERAL)
    out = there.answer(remote.CallRequest(given, {"mask": np.zeros((3, 5), dtype)}))["out"]
    np.testing.assert_array_equal(out, given[0] + 1)
