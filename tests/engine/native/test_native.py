"""The native path: its numbers, in every option, dtype and direction, beside the specification and the tiles."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from attendax import attention, masks, scores, spec
from judges import as_floats, dense_formula, times_as_far
from native_calls import (
    BIASES,
    MASKS,
    MODIFIERS,
    OPTIONS,
    SIZES,
    Sizes,
    arrays,
    assert_near,
    cotangents,
    needs_library,
    options,
    right,
    run,
)

pytestmark = needs_library
native = functools.partial(attention, implementation="native")


# Numbers


@pytest.mark.smoke
@pytest.mark.law("L13", "native")
@pytest.mark.law("L3", "native")
@pytest.mark.law("L2", "native")
@pytest.mark.sample(45)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("sizes", SIZES)
def test_results_and_gradients_are_those_of_the_specification(sizes, name):
    z = SIZES[sizes]
    given, found, chosen = arrays(z), cotangents(z), options(name, z)
    assert_near(run(given, found, **chosen), right(given, found, **chosen), 2e-12, f"{sizes}, {name}")


def plain(query, key, value, mask, bias):
    """The formula that users would write, all of it in the dtype of the operands."""
    key, value = (jnp.repeat(x, query.shape[1] // x.shape[1], axis=1) for x in (key, value))
    table = jnp.asarray(query.shape[-1] ** -0.5, query.dtype) * query @ key.swapaxes(-1, -2) + bias.astype(query.dtype)
    table = jnp.where(mask, table, -jnp.inf)
    return jax.nn.softmax(table, axis=-1) @ value, jax.nn.logsumexp(table.astype(jnp.float32), axis=-1)


@functools.cache
def errors_of_plain(z, dtype):
    """Of out, lse and the gradients of query, key, value, bias by the plain formula: the largest, beside the answer."""
    given, found = arrays(z, dtype), cotangents(z, dtype)
    mask, bias = np.tri(z.T, z.S, z.S // 2, dtype=bool)[None, None], generator_bias(z)

    @jax.jit
    def both(given, bias):
        results, pull_back = jax.vjp(lambda given, bias: plain(*given, mask, bias), given, bias)
        return results, pull_back(tuple(d.astype(x.dtype) for d, x in zip(found, results, strict=True)))

    wanted = right(given, found, mask=masks.causal(z.S // 2), bias=bias.astype(np.float64))
    pairs = zip(as_floats(both(given, bias)), as_floats(wanted), strict=True)
    return wanted, [np.abs(x - y).max() for x, y in pairs]


def generator_bias(z):
    return np.random.default_rng(3).normal(size=(z.B, z.N, z.T, z.S)).astype(np.float32)


@pytest.mark.law("L8", "native")
@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, jnp.float16], ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("sizes", ["tiny", "whole blocks", "one more", "a folded group", "two chunks of keys"])
def test_l8_errors_are_at_most_twice_those_of_the_plain_formula(sizes, dtype):
    z = SIZES[sizes]
    given, found = arrays(z, dtype), cotangents(z, dtype)
    wanted, errors = errors_of_plain(z, dtype)
    got = run(given, found, mask=masks.causal(z.S // 2), bias=generator_bias(z))
    assert [x.dtype for x in jax.tree.leaves(got)] == [*[dtype, np.float32], *[dtype] * 3, np.float32]
    eps = {True: float(ml_dtypes.finfo(dtype).eps), False: 1.2e-7}
    for index, (x, y, error) in enumerate(zip(as_floats(got), as_floats(wanted), errors, strict=True)):
        room = 4 * eps[index not in (1, 5)] * np.abs(y).max()
        assert np.abs(x - y).max() <= 2 * error + room, f"leaf {index}"


@pytest.mark.law("L8", "native")
@pytest.mark.parametrize("kind", ["random", "equal columns"])
@pytest.mark.parametrize("D", [16, 64, 128])
def test_l8_few_queries_are_as_near_as_in_the_dense_formula(D, kind):
    """At most twice the root mean square error of the dense formula, in the median of five draws.

    XLA adds the products of few queries in many lanes: one chain of them is off by several times as much. Equal columns
    make equal products, of which each is rounded the same way.
    """
    N, T, S, V = 6, 16, 300, 3

    def with_gradients(attend):
        return jax.jit(lambda given, found: (lambda results, pull: (results, pull(found)))(*jax.vjp(attend, *given)))

    def draws():
        for draw in range(5):
            rng = np.random.default_rng(draw)
            query, key, value, dout = (rng.normal(size=(N, *size)) for size in ((T, D), (S, D), (S, V), (T, V)))
            if kind != "random":
                query, key = (np.broadcast_to(x[..., :1], x.shape) for x in (query / D**0.5, key))
            given = [x.astype(np.float32) for x in (4 * query, key, value)]
            found = dout.astype(np.float32), rng.normal(size=(N, T)).astype(np.float32)
            yield (given, found), right(given, found)

    ours, dense = with_gradients(functools.partial(native, return_lse=True)), with_gradients(dense_formula)
    medians = times_as_far(ours, dense, draws())
    assert medians.max() <= 2, f"out, lse, dq, dk, dv: {medians} times as far"


@pytest.mark.law("L8", "native")
def test_l8_small_weights_keep_their_digits():
    """A weight is as near where its score is far below the highest as where it is near: scores here are not rounded."""
    far = np.linspace(0, 80, 300, dtype=np.float32)
    key = np.stack([np.zeros_like(far), -far], axis=1)[..., None]
    value = np.broadcast_to(np.array([[0], [1]], np.float32), key.shape)
    out = native(np.ones((300, 1, 1), np.float32), key, value, scale=1.0)
    wanted = 1 / (1 + np.exp(far.astype(np.float64)))
    off = (as_floats(out)[0].ravel() / wanted - 1) * 2**24
    assert np.abs(off).max() <= 3
    assert np.sqrt(np.mean(off[far > 20] ** 2)) <= 0.6, "there a result is the exponential alone, rounded rightly 0.42"


@pytest.mark.law("L8", "native")
@pytest.mark.parametrize("D", [4, 8])
def test_l8_narrow_equal_columns_are_as_near_as_where_a_score_is_rounded_once(D):
    """At most twice the root mean square error, in the median of nine draws: XLA adds equal products in pairs."""

    def rounded_once(query, key, value):
        scaled = (query * np.float32(D**-0.5)).astype(np.float64)
        table = (scaled @ key.swapaxes(-1, -2)).astype(np.float32)
        weights = np.exp((table - table.max(-1, keepdims=True)).astype(np.float64)).astype(np.float32)
        weights = weights / weights.sum(-1, keepdims=True, dtype=np.float64).astype(np.float32)
        return (weights.astype(np.float64) @ value).astype(np.float32)

    def draws():
        for draw in range(9):
            rng = np.random.default_rng(draw)
            query, key, value = (rng.normal(size=(6, *size)) for size in ((16, 1), (300, 1), (300, 3)))
            given = [x.astype(np.float32) for x in (4 * query.repeat(D, -1) / D**0.5, key.repeat(D, -1), value)]
            yield given, spec.attention(*as_floats(given))

    assert times_as_far(native, rounded_once, draws()) <= 2


@pytest.mark.law("L8", "native")
@pytest.mark.parametrize("S", [148, 600])
def test_l8_rows_of_two_weights_are_as_near_as_in_the_dense_formula(S):
    """At most twice its root mean square error, in the median of five draws of scores that a softcap holds at its cap.

    The weights are one of two numbers, so that one chain of them is rounded the same way at each key.
    """
    query, value = np.full((8, 16, 8), 30, np.float32), np.broadcast_to(np.eye(S, 8, dtype=np.float32), (8, S, 8))
    attend = functools.partial(attention, score_mod=scores.softcap(0.8))

    def draws():
        for draw in range(5):
            sign = np.sign(np.random.default_rng(draw).normal(size=(8, S, 1)))
            given = query, (30 * sign * np.ones(8)).astype(np.float32), value
            yield given, spec.attention(*as_floats(given), score_mod=scores.softcap(0.8))

    ours, dense = (functools.partial(attend, implementation=name) for name in ("native", "dense"))
    assert times_as_far(ours, dense, draws()) <= 2


@pytest.mark.law("L8", "native")
@pytest.mark.parametrize("implementation", ["native", "blockwise"])
@pytest.mark.parametrize("values", ["one number a head", "one value for all keys", "values"])
def test_l8_the_bound_of_gradients(values, implementation):
    """Twice the plain formula's error plus eps |dout| |v|, and 8 times that if all values are equal; up to V = 32."""
    N, T, S, D, V = 32, 5, 300, 4, 32
    shape = {"one number a head": (N, 1, 1), "one value for all keys": (N, 1, V), "values": (N, S, V)}[values]

    attend, plain = functools.partial(attention, implementation=implementation), lambda *given: dense_formula(*given)[0]
    for draw in range(3):
        rng = np.random.default_rng(draw)
        value = np.broadcast_to(0.5 + rng.random(shape), (N, S, V))
        given = [x.astype(np.float32) for x in (3 * rng.normal(size=(N, T, D)), rng.normal(size=(N, S, D)), value)]
        dout = np.ones((N, T, V), np.float32) if values != "values" else rng.normal(size=(N, T, V)).astype(np.float32)
        exact = spec.attention_backward(*as_floats([dout, *given]))[:2]
        found = [jax.vjp(jax.jit(function), *given)[1](dout)[:2] for function in (attend, plain)]
        weights = spec.attention_with_weights(*as_floats(given))[2]
        of_scores = weights * np.linalg.norm(dout, axis=-1, keepdims=True) / D**0.5
        of_scores = of_scores * np.linalg.norm(given[2], axis=-1)[:, None]
        sizes = of_scores @ abs(given[1]), of_scores.swapaxes(1, 2) @ abs(given[0])
        for x, y, wanted, size in zip(*found, exact, sizes, strict=True):
            beside = (1 if values == "values" else 8) * np.finfo(np.float32).eps * size.max()
            assert abs(x - wanted).max() <= 2 * abs(y - wanted).max() + beside


@pytest.mark.law("L8", "native")
@pytest.mark.parametrize("V", [128, 256])
@pytest.mark.parametrize("is_one", [True, False], ids=["ones", "one number a head"])
def test_l8_equal_values_leave_no_gradient_of_scores(is_one, V):
    """Scores cannot matter there: what is left is rounding, of V equal products in dp and in delta.

    The law allows 8 eps |dout| |v| more than twice the plain formula's error; the kernel stays well below that.
    """
    N, T, S, D = 32, 5, 40, 4
    dout, pulled = np.ones((N, T, V), np.float32), jax.jit(lambda given, dout: jax.vjp(native, *given)[1](dout))
    for draw in range(8):
        rng = np.random.default_rng(draw)
        value = np.ones((N, S, V)) * (1 if is_one else rng.random((N, 1, 1)))
        arrays = [x.astype(np.float32) for x in (3 * rng.normal(size=(N, T, D)), rng.normal(size=(N, S, D)), value)]
        unit = np.finfo(np.float32).eps * np.linalg.norm(dout[0, 0]) * np.linalg.norm(value[:, :1], axis=-1).max()
        for grad, other in zip(pulled(arrays, dout), (arrays[1], arrays[0]), strict=False):
            most = np.linalg.norm(other, axis=-1).max() / np.sqrt(D) * unit
            assert abs(np.asarray(grad)).max() <= 2.5 * most


@pytest.mark.law("L8", "native")
def test_l8_ones_of_a_long_row_leave_no_more_than_a_rounding():
    """Twice the plain formula's error plus eps |dout| |v|, where few weights of many are large."""
    N, T, S, D, V = 32, 5, 2000, 4, 64
    plain = lambda *given: dense_formula(*given)[0]  # noqa: E731
    for draw in range(3):
        rng = np.random.default_rng([draw, V, S, T])
        query, key = 3 * rng.normal(size=(N, T, D)), rng.normal(size=(N, S, D))
        arrays = [x.astype(np.float32) for x in (query, key, np.ones((N, S, V)))]
        dout = np.ones((N, T, V), np.float32)
        one, other = (jax.vjp(jax.jit(function), *arrays)[1](dout)[:2] for function in (native, plain))
        for x, y, beside in zip(one, other, (key, query), strict=True):  # right is 0
            rounding = np.finfo(np.float32).eps * V * np.linalg.norm(beside, axis=-1).max(-1) / np.sqrt(D)
            x, y = (abs(np.asarray(grad)).max((1, 2)) / rounding for grad in (x, y))
            assert x.max() <= 2 * y.max() + 1


@pytest.mark.law("L13", "native")
@pytest.mark.parametrize("shape", [(), (3, 1, 1), (1025, 1), (2, 1, 1, 1), (3, 1025, 1), (2, 1, 1025, 1)], ids=str)
def test_the_gradient_of_a_bias_that_is_the_same_for_all_keys(shape):
    """Chunks of queries that are at other keys at the same time add to one number; that of lse is its cotangent."""
    z = Sizes(2, 3, 1, 1025, 1921, 2, 2)
    given, (_, dlse) = arrays(z, np.float32), cotangents(z, np.float32)
    wanted = jax.vjp(lambda bias: jnp.broadcast_to(bias, (*dlse.shape, 1)), np.zeros(shape))[1](
        jnp.asarray(dlse, float)[..., None]
    )[0]

    @jax.jit
    def gradient(bias):
        def loss(bias):
            return (attention(*given, bias=bias, return_lse=True, implementation="native")[1] * dlse).sum()

        return jax.grad(loss)(bias)

    found = [np.asarray(gradient(np.zeros(shape, np.float32))) for _ in range(4)]
    np.testing.assert_allclose(found[0], wanted, atol=1e-3)
    assert len({x.tobytes() for x in found}) == 1


@pytest.mark.law("L13", "native")
@pytest.mark.law("L2", "native")
@pytest.mark.sample(14)
@pytest.mark.parametrize("name", [*BIASES, *MODIFIERS, *MASKS])
def test_results_and_gradients_in_float32(name):
    z = Sizes(2, 4, 2, 70, 200, 8, 20)
    given, found, chosen = arrays(z, np.float32), cotangents(z, np.float32), options(name, z)
    wanted = right(given, found, **chosen)
    low = {k: jax.tree.map(in_float32, x) if k in ("bias", "score_mod") else x for k, x in chosen.items()}
    assert_near(run(given, found, **low), wanted, 5e-6, name)


def in_float32(x):
    return x.astype(np.float32) if x.dtype == np.float64 else x


@pytest.mark.law("L1", "native")
def test_l1_leading_axes():
    """Two of them, of several entries each: as one, and with operands that vmap shares along one of them."""
    given = arrays(Sizes(6, 4, 2, 20, 100, 8, 8), np.float32)
    lengths = np.arange(6, dtype=np.int32) * 17
    wanted = np.asarray(native(*given, mask=masks.padding(lengths)))
    two = [x.reshape(2, 3, *x.shape[1:]) for x in given]
    got = native(*two, mask=masks.padding(lengths.reshape(2, 3)))
    np.testing.assert_array_equal(np.asarray(got).reshape(wanted.shape), wanted)
    got = jax.vmap(native, (1, None, 0), out_axes=1)(two[0], two[1][:, 0], two[2].swapaxes(0, 1))
    for k in range(3):
        np.testing.assert_array_equal(np.asarray(got)[:, k], native(two[0][:, k], two[1][:, 0], two[2][:, k]))


@pytest.mark.law("L10", "native")
def test_l10_dropout_keeps_what_the_specification_keeps():
    """Values are the unit matrix, queries 0: what comes out is what was kept."""
    z = Sizes(2, 3, 3, 70, 130, 4, 130)
    value = np.broadcast_to(np.eye(130), (2, 3, 130, 130)).astype(np.float32)
    zeros = np.zeros((2, 3, 130, 4), np.float32)
    rng = np.array([7, 11], np.uint32)
    out = np.asarray(native(zeros[:, :, :70], zeros, value, dropout_rate=0.4, dropout_rng=rng))
    keep = spec.dropout.keep(rng, (z.B, z.N, z.T, z.S), 0.4)
    np.testing.assert_array_equal(out > 0, keep)
    np.testing.assert_allclose(out[keep], 1 / 130 / 0.6, rtol=1e-6)


@pytest.mark.law("L7", "native")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_l7_the_lowest_bias_beside_large_scores(dtype):
    """A sum below the range stays at its end, above what is forbidden: the past is seen, the future is not."""
    rng = np.random.default_rng(2)
    large = 1e16 if dtype == np.float32 else 1e148
    query, key = (abs(large * rng.normal(size=(1, 2, 100, 16))).astype(dtype) for _ in range(2))
    value = rng.normal(size=(1, 2, 100, 16)).astype(dtype)
    bias = np.full((100, 100), np.finfo(dtype).min)
    out = np.asarray(native(query, -key, value, bias=bias, mask=masks.causal()))
    past = np.cumsum(value.astype(np.float64), axis=-2) / np.arange(1, 101)[:, None]
    np.testing.assert_allclose(out, past, atol=1e-5)


@pytest.mark.law("L7", "native")
@pytest.mark.parametrize("sign", [1, -1])
def test_l7_what_overflows_in_a_score_is_not_finite(sign):
    query, key, value = arrays(Sizes(1, 2, 2, 70, 100, 8, 8), np.float32)
    query[0, 1, 3], key[0, 1, 50] = 1e25, sign * 1e25
    out = np.asarray(native(query, key, value))
    assert np.isnan(out[0, 1, 3]).all()
    assert np.isnan(out).any(-1).sum() == 1


@pytest.mark.law("L8", "native")
def test_l8_numbers_below_the_normal_ones_of_float16_count():
    x = np.full((1, 1, 3, 8), 6e-8, np.float16)
    assert (np.asarray(native(x, x, x)) == x).all()


# Directions


def small(seed=0, **sizes):
    return [x.astype(np.float64) for x in arrays(Sizes(**{"T": 6, "S": 9, **sizes}), seed=seed)]


@pytest.mark.law("L12", "native")
def test_custom_vmap_and_custom_vjp_around():
    """Rules that users wrap around a call see it like any other."""
    given = small()

    @jax.custom_vjp
    def doubled(*given):
        return native(*given)

    doubled.defvjp(lambda *given: (native(*given), given), lambda given, d: jax.vjp(native, *given)[1](2 * d))

    @jax.custom_batching.custom_vmap
    def mapped(*given):
        return native(*given)

    @mapped.def_vmap
    def _(size, batched, *given):
        return native(*given), True

    wanted = jax.grad(lambda *x: native(*x).sum(), (0, 1, 2))(*given)
    got = jax.grad(lambda *x: doubled(*x).sum(), (0, 1, 2))(*given)
    assert_near(got, [2 * x for x in wanted], 1e-13, "custom_vjp")
    assert_near(jax.vmap(mapped)(*given), native(*given), 1e-15, "custom_vmap")


@pytest.mark.law("L13", "native")
@pytest.mark.parametrize(("T", "S"), [(3, 5), (70, 130)])
def test_the_gradient_of_values_does_not_depend_on_a_delta_that_overflows(rng, T, S):
    query, key, value, dout = (rng.standard_normal((2, n, 8)).astype(np.float32) for n in (T, S, S, T))

    def pulled(factor):
        return jax.vjp(lambda v: attention(query, key, v, implementation="native"), value * factor)[1](dout * factor)[0]

    np.testing.assert_allclose(pulled(np.float32(1e20)) / 1e20, pulled(np.float32(1)), rtol=1e-4, atol=1e-5)
