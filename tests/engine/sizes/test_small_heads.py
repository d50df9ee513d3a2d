"""Small heads, all in one tile or a few: the numbers of the specification in every direction, and L6 to the bit."""

import jax
import numpy as np
import pytest

from attendax import attention, masks, spec
from attendax.conformance import directional_difference
from attendax.kernels.operands import Limits
from blockwise import Whole, limited
from cases import B, D, G, N, S, T, V
from compilation import quickly
from judges import assert_same_bits, assert_tree_close

HEADS = Limits(512, 512, 2**21)
ONE_BY_ONE = HEADS._replace(bytes=1)
PAIRS = HEADS._replace(bytes=8 * T * S * 2)  # of a group of heads that share a key head
MASKS = {
    "none": None,
    "causal": masks.causal(-1),
    "padding": masks.padding(np.array([5, 0])),
    "segments": masks.segments(np.arange(T)[None] // 2, np.arange(S)[None] // 3),
    "of each head": np.random.default_rng(5).random((B, N, T, S)) < 0.5,
}


@pytest.fixture
def arrays(rng):
    return tuple(rng.normal(size=(B, n, s, w)) for n, s, w in ((N, T, D), (G, S, D), (G, S, V)))


def everything(mask):
    """Of query, key, value, their dots and a cotangent: the result, how it moves, and the gradients."""

    def run(arrays, dots, cotangent):
        def attend(*arrays):
            return attention(*arrays, mask=mask)

        out, moves = jax.jvp(attend, arrays, dots)
        return out, moves, jax.vjp(attend, *arrays)[1](cotangent)

    return run


def by_hand(mask, arrays, dots, cotangent):
    """Derivatives by the specification, and by its differences."""
    out = spec.attention(*arrays, mask=mask)
    grads = spec.attention_backward(cotangent, *arrays, mask=mask)[:3]
    return out, directional_difference(lambda *a: spec.attention(*a, mask=mask), arrays, dots), grads


def directions(arrays, rng):
    dots = tuple(rng.normal(size=x.shape) for x in arrays)
    return dots, rng.normal(size=(*arrays[0].shape[:-1], arrays[2].shape[-1]))


@pytest.mark.law("L13", "tiles")
@pytest.mark.sample(2)
@pytest.mark.parametrize("limits", [HEADS, PAIRS, ONE_BY_ONE], ids=["all heads", "pairs", "one by one"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=list(MASKS))
def test_every_first_derivative(mask, limits, arrays, rng):
    dots, cotangent = directions(arrays, rng)
    with limited(limits):
        out, moves, grads = quickly(everything(mask))(arrays, dots, cotangent)
    wanted_out, wanted_moves, wanted_grads = by_hand(mask, arrays, dots, cotangent)
    assert_tree_close(out, wanted_out, 1e-12, "forward")
    assert_tree_close(grads, wanted_grads, 1e-10, "gradients")
    assert_tree_close(moves, wanted_moves, 1e-8, "move")  # a central difference
    along_grads = sum(np.vdot(g, d) for g, d in zip(wanted_grads, dots, strict=True))
    np.testing.assert_allclose(np.vdot(moves, cotangent), along_grads, rtol=1e-10)


@pytest.mark.law("L6", "tiles")
@pytest.mark.sample(1)
@pytest.mark.parametrize("limits", [HEADS, PAIRS, ONE_BY_ONE], ids=["all heads", "pairs", "one by one"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_l6_nothing_masked_changes_a_bit(dtype, limits, rng):
    """NaN, infinities and numbers near overflow, in arrays and in their dots."""
    arrays = tuple(rng.normal(size=(3, n, s, 8)).astype(dtype) for n, s in ((4, 7), (2, 11), (2, 11)))
    lengths = np.array([11, 4, 0])
    dots, cotangent = jax.tree.map(lambda x: x.astype(dtype), directions(arrays, rng))

    def hidden(arrays, wild):
        found = [x.copy() for x in arrays]
        for b, length in enumerate(lengths):
            found[1][b, :, length:] = found[2][b, :, length:] = wild
        return tuple(found)

    with limited(limits):
        run = jax.jit(everything(masks.padding(lengths)))
        wanted = run(arrays, dots, cotangent)
        for wild in (np.nan, np.inf, -np.inf, np.finfo(dtype).max):
            assert_same_bits(run(hidden(arrays, wild), dots, cotangent), wanted, f"arrays {wild}")
            assert_same_bits(run(arrays, hidden(dots, wild), cotangent), wanted, f"dots {wild}")


@pytest.mark.law("L6", "tiles")
@pytest.mark.sample(1)
@pytest.mark.parametrize("wild", [np.nan, np.inf, 1e300])
def test_l6_what_is_seen_touches_those_who_see_it_and_no_bit_else(wild, arrays, rng):
    """A wild key of head 1: the queries of heads 2 and 3 that may see it; the keys that those see; nothing else."""
    mask = masks.causal()
    dots, cotangent = directions(arrays, rng)
    bad = arrays[0], arrays[1].copy(), arrays[2]
    bad[1][0, 1, 2] = wild
    with limited(HEADS):
        run = jax.jit(everything(mask))
        wanted, found = run(arrays, dots, cotangent), run(bad, dots, cotangent)
    touched = np.zeros((B, N, T), bool)
    touched[0, N // G : 2 * (N // G), 2:] = True
    keys = np.zeros((B, G, S), bool)
    keys[0, 1, :T] = True
    results, others = (jax.tree.leaves(x) for x in (found, wanted))
    for which, one, other in zip((touched, touched, touched, keys, keys), results, others, strict=True):
        assert_same_bits(one[~which], other[~which], "untouched")
    out, grads = spec.attention(*bad, mask=mask), spec.attention_backward(cotangent, *bad, mask=mask)[:3]
    for got, exact in zip((found[0], *found[2]), (out, *grads), strict=True):
        largest = np.abs(np.where(np.isfinite(exact), exact, 0)).max()
        np.testing.assert_allclose(got, exact, rtol=1e-10, atol=1e-12 * largest)


@pytest.mark.law("L6", "tiles")
@pytest.mark.sample(1)
@pytest.mark.parametrize("scale", [2.0**10, 1e25, -1e30])
def test_l6_no_scale_makes_a_masked_key_overflow(scale, rng):
    query, key, value = (rng.normal(size=(1, 2, 7, 8)).astype(np.float32) for _ in range(3))
    large, mask = key.copy(), masks.padding(np.array([5]))
    large[:, :, 5:] = 2.0**49

    def run(key):
        out, pullback = jax.vjp(lambda *arrays: attention(*arrays, mask=mask, scale=scale), query, key, value)
        return out, *pullback(jax.numpy.ones_like(out))

    wanted = run(key)
    assert np.isfinite(wanted[0]).all()
    assert_same_bits(run(large), wanted, f"scale {scale}")


@pytest.mark.law("L6", "tiles")
@pytest.mark.sample(1)
@pytest.mark.parametrize("mask", [None, masks.causal()], ids=["open", "causal"])
@pytest.mark.parametrize("wild", [np.nan, np.inf, 1e300])
def test_l6_a_query_that_nothing_depends_on_changes_no_gradient(wild, mask, arrays, rng):
    dots, cotangent = directions(arrays, rng)
    cotangent[:, 1, 3] = 0
    bad = arrays[0].copy(), *arrays[1:]
    bad[0][:, 1, 3] = wild
    with limited(HEADS):
        run = jax.jit(everything(mask))
        assert_same_bits(run(bad, dots, cotangent)[2], run(arrays, dots, cotangent)[2], "gradients")


@pytest.mark.law("L7", "tiles")
@pytest.mark.sample(1)
@pytest.mark.parametrize("limits", [HEADS, Limits(5, 4, 1)])
def test_l7_no_sum_of_large_values_overflows(limits):
    """An average is between the least and the largest value, for values up to half of max / S."""
    large = np.finfo(np.float32).max / (2 * 11)
    query, key = np.zeros((1, 2, 7, 3), np.float32), np.zeros((1, 2, 11, 3), np.float32)
    value = np.full((1, 2, 11, 3), large, np.float32)
    with limited(limits):
        for mask in (None, masks.causal(3)):
            np.testing.assert_allclose(attention(query, key, value, mask=mask), value[:, :, :7], rtol=1e-6)


@pytest.mark.law("L12", "tiles")
@pytest.mark.sample(2)
@pytest.mark.parametrize("poison", [0.5, np.nan, 1e300])
@pytest.mark.parametrize("which", ["query", "key", "value", "mask"])
def test_l12_vmap_over_one_argument_of_the_forward_alone(which, poison, arrays, rng):
    """Also where a number is large; the derivatives are in test_every_direction.py."""
    named = dict(zip(("query", "key", "value"), arrays, strict=True), mask=masks.padding(np.array([4, 3])))
    named["key"][0, 1, 2, 1] = poison
    if which == "mask":
        lengths = np.array([[4, 3], [0, 7], [3, 2]])
        stack, each = masks.padding(lengths), [masks.padding(x) for x in lengths]
    else:
        stack = np.stack([named[which], rng.normal(size=named[which].shape), 2 * named[which]])
        each = list(stack)
    got = jax.vmap(jax.jit(lambda x: Whole.attention(**(named | {which: x}))))(stack)
    for k, x in enumerate(each):
        np.testing.assert_allclose(got[k], spec.attention(**(named | {which: x})), rtol=1e-12, atol=1e-12)


@pytest.mark.law("L8", "tiles")
@pytest.mark.sample(1)
@pytest.mark.parametrize("mask", [None, masks.causal()], ids=["open", "causal"])
def test_l8_float16_overflows_nowhere(mask):
    """The limit of what is multiplied lies beyond its range. A warning would fail the test."""
    query, key, value = (np.random.default_rng(k).normal(size=(2, 5, 8)).astype(np.float16) for k in range(3))
    query[0, 4, 0] = np.inf

    def loss(query):
        return attention(query, key, value, mask=mask)[:, :4].astype(np.float32).sum()

    finite = query.copy()
    finite[0, 4, 0] = 0
    assert_same_bits(jax.grad(loss)(query)[:, :4], jax.grad(loss)(finite)[:, :4], "the rows that are read")


FEW = (2, 5, 97, 8), (2, 5, 70, 8), (2, 5, 70, 8)


@pytest.mark.law("L6", "tiles")
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_l6_a_value_of_few_queries_spoils_the_rows_that_see_it(odd, dtype, rng):
    """They are NaN in every column; no bit of another query changes."""
    query, key, value = (rng.normal(size=shape).astype(dtype) for shape in FEW)
    spoiled = value.copy()
    spoiled[1, 3, 20, 5] = odd
    for mask in (None, masks.causal()):
        attend = jax.jit(lambda *arrays, mask=mask: attention(*arrays, mask=mask))
        plain, out = (np.asarray(attend(query, key, x)) for x in (value, spoiled))
        wanted = spec.attention(query, key, spoiled, mask=mask)
        tolerance = 1e-12 if dtype == "float64" else 2e-6
        assert_tree_close(plain, spec.attention(query, key, value, mask=mask), tolerance, str(mask))
        np.testing.assert_allclose(out, wanted, atol=tolerance)
        sees = np.zeros(out.shape[:-1], bool)
        sees[1, 3, 0 if mask is None else 20 :] = True
        np.testing.assert_array_equal(np.isnan(out), np.broadcast_to(sees[..., None], out.shape))
        assert_same_bits(out[~sees], plain[~sees], str(mask))
