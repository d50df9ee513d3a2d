"""Positions are integers of any width, known or traced, and none wraps around; whatever speaks of them can begin
anywhere, so that decoding with a cache is a call like any other (L4).

The judge is a loop in Python's own integers, which have no width.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import masks, scores, spec
from blockwise import in_tiny_tiles
from compilation import quickly
from processes import in_a_process

pytestmark = pytest.mark.law("L4", "spec", "tiles")

B, N, G, T, S, D = 3, 4, 2, 5, 7, 6
DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def ends(dtype, count=12):
    """Some numbers of a dtype, so many: small ones, and those next to its ends and to the ends of int32."""
    info = np.iinfo(dtype)
    wanted = {0, 1, 3, -2, info.min, info.max, info.max - 3, 2**31 - 1, 2**31 + 2, -(2**31), 2**32, 2**32 + 3}
    found = sorted(x for x in wanted if info.min <= x <= info.max)
    return [found[k % len(found)] for k in range(count)]


@functools.partial(quickly, static_argnames="count")
def in_tiles(mask, count):
    """The truth values pair by pair as the kernels see them; for masks that JAX has as arrays, compiled once."""
    shapes = (count, 1, T, 1), (count, 1, S, 1)
    value = jnp.broadcast_to(jnp.eye(S), (count, 1, S, S))
    return in_tiny_tiles(attendax.attention)(*map(jnp.zeros, shapes), value, mask=mask) > 0


def assert_allowed(mask, rule, count):
    """NumPy, JAX and tiles agree with ``rule(b, i, j)``, for so many entries of the batch."""
    wanted = np.array([[[[rule(b, i, j) for j in range(S)] for i in range(T)]] for b in range(count)])
    on_device = jax.tree.map(jnp.asarray, mask)
    for got in (mask.to_dense(T, S), on_device.to_dense(T, S), in_tiles(on_device, count)):
        np.testing.assert_array_equal(np.broadcast_to(got, wanted.shape), wanted)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_offsets_of_any_width(dtype):
    offsets = ends(dtype)
    array = np.array(offsets, dtype)
    assert_allowed(masks.causal(array), lambda b, i, j: j <= i + offsets[b], 12)
    assert_allowed(masks.window(1, 2, array), lambda b, i, j: i + offsets[b] - 1 <= j <= i + offsets[b] + 2, 12)
    assert_allowed(masks.prefix(np.full(12, 2), array), lambda b, i, j: j < 2 or j <= i + offsets[b], 12)
    for offset in offsets:
        wanted = [[j <= i + offset for j in range(S)] for i in range(T)]
        for given in (offset, np.dtype(dtype).type(offset), np.array(offset, dtype)):
            np.testing.assert_array_equal(masks.causal(given).to_dense(T, S), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_traced_offsets_of_any_width(dtype):
    """The mask is made inside jit, of an array that JAX has in this width; 64 bits are on in these tests."""
    offsets = ends(dtype)
    made = jax.jit(lambda x: (masks.causal(x).to_dense(T, S), masks.window(3, None, x).to_dense(T, S)))
    causal, window = made(jnp.array(offsets, dtype))
    pairs = [(offset, i, j) for offset in offsets for i in range(T) for j in range(S)]
    np.testing.assert_array_equal(np.ravel(causal), [j <= i + offset for offset, i, j in pairs])
    np.testing.assert_array_equal(np.ravel(window), [j >= i + offset - 3 for offset, i, j in pairs])


@pytest.mark.slow
def test_a_wide_window_that_begins_far_away():
    """Offset and side cancel, each of them almost too large for the sum of both."""
    for left, offset in ((2**30, 2**30 + 3), (2**30, 2**31), (2**30 - 1, 2**30)):
        for given in (offset, np.array([offset])):
            mask = masks.window(left, 2**30, given)
            assert_allowed(mask, lambda b, i, j, x=offset, left=left: i + x - left <= j <= i + x + 2**30, 1)
    for right, offset in ((2**30, -(2**30) + 2), (2**30, -(2**31)), (2**30 - 1, -(2**30))):
        for given in (offset, np.array([offset])):
            mask = masks.window(None, right, given)
            assert_allowed(mask, lambda b, i, j, x=offset, right=right: j <= i + x + right, 1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths_of_any_width(dtype):
    lengths = np.array([7, 0, 3], dtype)
    for convert in (np.asarray, jnp.asarray):
        mask = masks.padding(convert(lengths), convert(np.array([5, 2, 1], dtype)))
        assert_allowed(mask, lambda b, i, j: j < [7, 0, 3][b] and i < [5, 2, 1][b], 3)
        assert_allowed(masks.prefix(convert(lengths)), lambda b, i, j: j < [7, 0, 3][b] or j <= i, 3)
    made = jax.jit(lambda x: masks.padding(x).to_dense(1, 300))(jnp.array(ends(dtype), dtype))
    np.testing.assert_array_equal(made.sum(axis=(1, 2, 3)), [min(max(x, 0), 300) for x in ends(dtype)])


def test_one_length_is_one_for_all():
    for length in (3, np.int64(3), np.array(3), jnp.array(3)):
        assert_allowed(masks.padding(length), lambda b, i, j: j < 3, 2)
        assert_allowed(masks.prefix(length, 1), lambda b, i, j: j < 3 or j <= i + 1, 2)


@pytest.mark.smoke
@pytest.mark.sample(4)
@pytest.mark.parametrize("key_dtype", DTYPES)
@pytest.mark.parametrize("query_dtype", DTYPES)
def test_ids_of_any_width(query_dtype, key_dtype):
    """Ids are equal where the integers are, whatever their widths and signs; made of NumPy, JAX and traced arrays."""
    query_ids, key_ids = (np.array(ends(dtype, 60), dtype).reshape(12, -1) for dtype in (query_dtype, key_dtype))
    key_ids = np.concatenate([key_ids, key_ids[:, :2]], axis=1)
    known, on_device = (masks.segments(f(query_ids), f(key_ids)) for f in (np.asarray, jnp.asarray))
    rule = [[[[int(q) == int(k) for k in ks] for q in qs]] for qs, ks in zip(query_ids, key_ids, strict=True)]
    by_jax = jax.jit(lambda q, k: masks.segments(q, k).to_dense(T, S))
    for got in (known.to_dense(T, S), on_device.to_dense(T, S), by_jax(query_ids, key_ids)):
        np.testing.assert_array_equal(got, rule)
    for mask in (known, on_device):
        np.testing.assert_array_equal(in_tiles(jax.tree.map(jnp.asarray, mask), 12), rule)


WITH_32_BITS = """
import jax, jax.numpy as jnp, numpy as np, pytest
import attendax
from attendax import masks, ops, scores, spec
assert not jax.config.jax_enable_x64
rng = np.random.default_rng(0)
q, k, v = (rng.normal(size=(2, 2, 5, 3)).astype("f") for _ in range(3))

def same(mask=None, **options):
    wanted = spec.attention(q, k, v, mask=mask, **options)
    found = [attend(q, k, v, mask=mask, **options) for attend in (attendax.attention, ops.attention)]
    found.append(jax.jit(lambda *a: attendax.attention(*a, mask=mask, **options))(q, k, v))
    for got in found:
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    return wanted

ids = np.arange(10).reshape(2, 5) // 3
far = ids + 2**32
assert not same(masks.segments(ids, far)).any()
assert same(masks.segments(far, far)).any()
same(masks.segments(far * np.array([[1], [-3]]), far))
same(masks.segments(np.uint64(2**63) + ids.astype(np.uint64), ids - 2**62))
traced = jax.jit(lambda a, b: attendax.attention(q, k, v, mask=masks.segments(a, b)))
high = np.uint32(2**31) + ids.astype(np.uint32)
np.testing.assert_allclose(traced(high, high), spec.attention(q, k, v, mask=masks.segments(high, high)), atol=1e-6)
assert not traced(high, high.astype(np.int32)).any() and not traced(high.astype(np.int32), high).any()
for offset in (2**40, -(2**40), 2**31 - 1, -(2**31), 2**63 - 1):
    same(masks.causal(np.array([offset, 1])))
    same(masks.causal(np.array(offset)) & masks.window(2, None, np.array([offset, 0])))
    same(score_mod=scores.relative_bias(np.ones((2, 3), "f"), np.array([offset, 1])))
for make in (lambda: masks.padding(np.array([2**32 + 3, 3])), lambda: scores.alibi(np.ones(2, "f"), np.array(2**32))):
    pytest.raises(ValueError, make)
far_away = jax.jit(lambda x: attendax.attention(q, k, v, score_mod=scores.alibi(np.ones(2, "f") / 2**20, x)))
same_far = spec.attention(q, k, v, score_mod=scores.alibi(np.ones(2, "f") / 2**20, np.array(2**31 - 1)))
np.testing.assert_allclose(far_away(np.int32(2**31 - 1)), same_far, atol=2e-3)  # a distance has 24 bits in float32
words = "create_padding_mask: lengths must lie in [0, 8], got 3 to 4294967299."
for module in (spec, ops):
    with pytest.raises(ValueError) as caught:
        module.create_padding_mask(np.array([2**32 + 3, 3]), 8)
    assert str(caught.value) == words
with pytest.raises(ValueError, match="got 4294967297[.]$"):
    attendax.weights_at(q, k, queries=np.array([2**32 + 1]))
with pytest.raises(ValueError, match="arrays hold 4294967297 to 4294967297, but JAX is set to 32 bits"):
    masks.from_function(lambda i, j, ids: ids[i] == ids[j], np.array([2**32 + 1]))
"""


@pytest.mark.slow
def test_where_jax_has_32_bits():
    in_a_process(WITH_32_BITS, PYTHONWARNINGS="error")


# --- Where queries and keys begin ------------------------------------------------------------------------------------


def arrays(rng, T=T, S=S, dtype=np.float64):
    shapes = (B, N, T, D), (B, G, S, D), (B, G, S, D)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def modifiers(rng):
    slopes, table = rng.random(N), rng.normal(size=(N, 5))
    return {
        "alibi": lambda offset: scores.alibi(slopes, offset),
        "relative bias": lambda offset: scores.relative_bias(table, offset),
        "both": lambda offset: scores.compose(scores.alibi(slopes, offset), scores.relative_bias(table, offset)),
        "function": lambda offset: scores.from_function(
            lambda s, at, offset: s - 0.1 * abs(at[1] + offset.reshape(-1, 1, 1, 1) - at[2]), offset
        ),
    }


@pytest.mark.law("L4", "spec", "ops", "tiles")
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["alibi", "relative bias", "both", "function"])
def test_modifiers_that_begin_elsewhere(name, rng):
    """A row of a longer call is the same call with its number as the offset: static, one for all, one per entry."""
    make, (query, key, value) = modifiers(rng)[name], arrays(rng)
    offsets = np.array([2, -3, 40])
    wanted = [[spec.attention(query[b:b+1, :, i:i+1], key[b:b+1], value[b:b+1],
                              score_mod=make(int(offset) + i))[0] for i in range(T)]
              for b, offset in enumerate(offsets)] if name != "function" else None  # fmt: skip
    if wanted is not None:
        wanted = np.stack([np.concatenate(rows, axis=1) for rows in wanted])
    else:
        wanted = spec.attention(query, key, value, score_mod=make(offsets))
    np.testing.assert_allclose(spec.attention(query, key, value, score_mod=make(offsets)), wanted, rtol=1e-12)
    for attend in (attendax.ops.attention, in_tiny_tiles(attendax.attention)):
        traced = quickly(lambda offset, f=attend: f(query, key, value, score_mod=make(offset)))(offsets)
        np.testing.assert_allclose(traced, wanted, rtol=1e-12)
    if name != "function":
        each = quickly(jax.vmap(lambda q, k, v, offset: attend(q, k, v, score_mod=make(offset))))
        np.testing.assert_allclose(each(query, key, value, offsets), wanted, rtol=1e-12)


@pytest.mark.law("L4", "spec", "ops", "tiles")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", "relative bias", "both"])
def test_gradients_of_modifiers_that_begin_elsewhere(name, rng):
    """By hand, by JAX densely and in tiles: the offset, an integer, has none."""
    make, inputs, offsets = modifiers(rng)[name], arrays(rng), np.array([2, -3, 4])
    mask, dout = masks.causal(offsets), rng.normal(size=(B, N, T, D))
    by_hand = spec.attention_backward(dout, *inputs, mask=mask, score_mod=make(offsets))
    score_mod = jax.tree.map(jnp.asarray, make(offsets))

    def pulled_back(attend):
        def out(query, key, value, score_mod):
            return attend(query, key, value, mask=mask, score_mod=score_mod)

        return quickly(lambda *inputs: jax.vjp(out, *inputs, score_mod)[1](dout))(*map(jnp.asarray, inputs))

    dense, tiled = (pulled_back(f) for f in (attendax.ops.attention, in_tiny_tiles(attendax.attention)))
    wanted = jax.tree.leaves((by_hand[:3], by_hand.grad_score_mod))
    for other in (dense, tiled):
        for a, b in zip(wanted, jax.tree.leaves(other), strict=True):
            assert a.shape == b.shape
            if a.dtype == np.float64:
                np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-12)
            else:
                assert a.dtype == b.dtype == jax.dtypes.float0


@pytest.mark.law("L16", "tiles")
@pytest.mark.sample(1)
@pytest.mark.parametrize("offset", [3, np.array(3), np.array([3, -2])])
def test_tiles_outside_a_window_that_begins_elsewhere_are_skipped(offset):
    """Exactly those of which the dense array allows no pair."""
    x = jax.ShapeDtypeStruct((2, 1, 12, 3), jnp.float32)
    mask = masks.window(2, 1, offset)
    found = in_tiny_tiles(attendax.explain)(x, x, x, mask=mask, implementation="blockwise")
    _, rows, columns = found.tile
    array = np.broadcast_to(mask.to_dense(12, 12), (2, 1, 12, 12))
    empty = ~array.reshape(2, 12 // rows, rows, 12 // columns, columns).any(axis=(2, 4))
    assert found.tiles["skipped"] == empty.sum() > 0


@pytest.mark.law("L16", "native")
def test_a_traced_offset_needs_no_new_compilation():
    traces = []

    @jax.jit
    def attend(x, offset):
        traces.append(offset)
        mask = masks.window(3, 1, offset) & masks.causal(offset)
        return attendax.attention(x, x, x, mask=mask, score_mod=scores.alibi(jnp.ones(2), offset))

    x = jnp.ones((2, 5, 3))
    for offset in (0, 3, 2**31 - 1):
        attend(x, np.int32(offset))
    assert len(traces) == 1


@pytest.mark.law("L4", "spec", "native")
@pytest.mark.sample(1)
@pytest.mark.parametrize("per_entry", [False, True])
def test_prefill_and_decode_with_a_cache(per_entry):
    """A prompt, then 32 tokens one by one in a scan over a cache of fixed size: the rows of the call with all of them.

    Causal, a window, ALiBi, relative bias, grouped heads; float32, compiled as users compile.
    """
    rng = np.random.default_rng(1)
    prompt, steps = 9, 32
    size = prompt + steps
    query, key, value = (jnp.asarray(x) for x in arrays(rng, size, size, np.float32))
    slopes = jnp.asarray(2.0 ** -np.arange(1, N + 1), jnp.float32)
    table = jnp.asarray(rng.normal(size=(N, 13)), jnp.float32)

    def attend(query, key, value, offset):
        mask = masks.causal(offset) & masks.window(11, None, offset)
        score_mod = scores.compose(scores.alibi(slopes, offset), scores.relative_bias(table, offset))
        return attendax.attention(query, key, value, mask=mask, score_mod=score_mod)

    def decode(query, key, value):
        room = jnp.full((B, G, steps, D), jnp.nan, jnp.float32)  # what is not written yet cannot matter (L6)
        keys, values = (jnp.concatenate([x[:, :, :prompt], room], axis=2) for x in (key, value))
        first = attend(query[:, :, :prompt], keys, values, 0)

        def step(cache, place):
            new = [jax.lax.dynamic_slice_in_dim(x, place, 1, 2) for x in (query, key, value)]
            cache = [jax.lax.dynamic_update_slice_in_dim(x, y, place, 2) for x, y in zip(cache, new[1:], strict=True)]
            offset = jnp.full(B, place) if per_entry else place
            return cache, attend(new[0], *cache, offset)

        _, rest = jax.lax.scan(step, [keys, values], jnp.arange(prompt, size))
        return jnp.concatenate([first, jnp.moveaxis(rest[..., 0, :], 0, 2)], axis=2)

    wanted = attend(query, key, value, 0)
    exact = spec.attention(
        *(np.asarray(x, np.float64) for x in (query, key, value)),
        mask=masks.causal() & masks.window(11, None),
        score_mod=scores.compose(
            scores.alibi(np.asarray(slopes, np.float64)), scores.relative_bias(np.asarray(table, np.float64))
        ),
    )
    np.testing.assert_allclose(wanted, exact, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(jax.jit(decode)(query, key, value), exact, rtol=1e-5, atol=2e-6)


# --- Functions with arrays -------------------------------------------------------------------------------------------


@pytest.mark.law("L4", "spec", "ops", "tiles")
@pytest.mark.sample(1)
@pytest.mark.parametrize("given", [3, 3.0, np.float32(3), np.array(3, ">i4"), {"by": 3}, {"by": [np.array(3), 2]}])
def test_what_goes_with_a_function(given, rng):
    """Numbers, arrays in any byte order, and pytrees of them; eagerly, under jit and vmap, in both twins."""

    def number(given):
        return sum(jax.tree.leaves(given)) if isinstance(given, dict) else given

    def allowed(i, j, given):
        return j <= i + number(given) - 3

    def changed(s, at, given):
        return s * number(given) / 2

    query, key, value = arrays(rng)
    options = {"mask": masks.from_function(allowed, given), "score_mod": scores.from_function(changed, given)}
    total = float(sum(map(np.asarray, jax.tree.leaves(given))))
    wanted = spec.attention(query, key, value, mask=masks.causal(int(total) - 3), scale=total / 2 / D**0.5)
    attend = in_tiny_tiles(attendax.attention)
    found = [spec.attention(query, key, value, **options)]
    dense, tiled = (functools.partial(f, **options) for f in (attendax.ops.attention, attend))
    found += [quickly(f)(query, key, value) for f in (dense, tiled, jax.vmap(tiled))]
    for got in found:
        np.testing.assert_allclose(got, wanted, rtol=1e-10)
