"""Queries that leave the range of their dtype when they are scaled, and scores that do not (L7, L8, L15).

The scale is multiplied into the queries first. Of a row that this would lead out of the range of normal numbers, a
power of two of the scale is multiplied into the products. And values whose sum would leave the range (L7).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import masks, scores, spec
from attendax.kernels.backends import default
from judges import assert_same_bits

WAYS = ["native", "blockwise", "dense"]
needs_library = {"native": pytest.mark.skipif(default() != "native", reason="the library is not there")}
every_way = pytest.mark.parametrize("way", [pytest.param(x, marks=needs_library.get(x, ())) for x in WAYS])


def least(x):
    """Numbers that are barely normal in float32."""
    return np.sign(x) * (1.2e-38 + np.abs(x) * 1e-38)


def large(q, k):
    return np.clip(q, -3, 3) * 1e38 * np.where(np.arange(q.shape[-1]) < 2, 1, 0.01), least(k), 2.0


def small(q, k):
    return least(q), k * 1e38 / 8, 0.1


def tiny(q, k):
    return q * 1e-30, k * 1e37, -1e-8


def mixed(q, k):
    powers = 10.0 ** np.random.default_rng(5).integers(-30, 1, (*q.shape[:-1], 1))
    return large(q * powers, k)


KINDS = {kind.__name__: kind for kind in (large, small, tiny, mixed)}
every_kind = pytest.mark.parametrize("kind", KINDS)


def arrays(kind, T, S=130, D=16):
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, size, D)) for size in (T, S, S))
    q, k, scale = KINDS[kind](q, k)
    return [x.astype(np.float32) for x in (q, k, v)], scale


def results(arrays, scale, **options):
    """out, its gradients, and a second derivative, of cotangents so small that no gradient leaves the range."""
    dout = np.asarray(1e-3 * np.cos(np.arange(arrays[0].size)).reshape(arrays[0].shape), arrays[0].dtype)
    along = list(map(np.negative, arrays))  # as near to the ends of the range

    def attend(*arrays):
        return attendax.attention(*arrays, scale=scale, **options)

    def grads(*arrays):
        out, pull = jax.vjp(attend, *arrays)
        return out, *pull(jnp.asarray(dout))

    return jax.jit(lambda *arrays: jax.jvp(grads, arrays, tuple(along)))(*map(jnp.asarray, arrays))


def assert_near(got, wanted):
    """Within some eps of the largest; what is less than a few of the smallest normal numbers has no digits."""
    wanted = np.asarray(wanted, np.float64)
    np.testing.assert_array_less(np.abs(np.asarray(got, np.float64) - wanted), 1e-5 * np.abs(wanted).max() + 3e-37)


@pytest.mark.law("L7", "tiles", "native")
@every_kind
@every_way
@pytest.mark.parametrize("T", [1, 70, 300])
def test_scores_that_are_in_range_are_right(kind, way, T):
    given, scale = arrays(kind, T, S=90 if T == 70 else 130)
    with jax.enable_x64(True):
        wanted = jax.tree.map(np.asarray, results([x.astype(float) for x in given], scale, implementation="dense"))
    found = results(given, scale, implementation=way)
    for got, right in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert_near(got, right)
    assert_near(spec.attention(*given, scale=scale), wanted[0][0])


@pytest.mark.law("L15", "tiles", "native")
@every_kind
@every_way
def test_a_row_has_the_bits_that_it_has_alone(kind, way):
    given, scale = arrays(kind, 70)
    attend = jax.jit(lambda *arrays: attendax.attention(*arrays, scale=scale, implementation=way, return_lse=True))
    whole = attend(*given)
    ordinary = attend(np.where(np.arange(70)[:, None] % 2, given[0], 1).astype(np.float32), *given[1:])
    for one, other in zip(whole, ordinary, strict=True):
        np.testing.assert_array_equal(np.asarray(one)[:, :, 1::2], np.asarray(other)[:, :, 1::2])


@every_way
@pytest.mark.parametrize("given", ["softcap", "bias", "mask"])
def test_beside_a_modifier_a_bias_and_a_mask(way, given):
    qkv, scale = arrays("mixed", 70)
    rng = np.random.default_rng(4)
    options = {
        "softcap": {"score_mod": scores.softcap(3.0)},
        "bias": {"bias": rng.standard_normal((70, 130)).astype(np.float32)},
        "mask": {"mask": rng.random((70, 130)) < 0.5},
    }[given]
    wide = {name: x.astype(float) if name == "bias" else x for name, x in options.items()}
    wanted = spec.attention(*(x.astype(float) for x in qkv), scale=scale, **wide)
    assert_near(attendax.attention(*qkv, scale=scale, implementation=way, **options), wanted)


@pytest.mark.law("L7", "tiles", "native")
@pytest.mark.parametrize(
    "mask", [None, masks.causal(700), np.arange(600)[None] % 3 != 1], ids=["none", "causal", "some"]
)
@pytest.mark.parametrize(("N", "T", "S", "V"), [(2, 1, 600, 8), (8, 2, 600, 8), (2, 40, 600, 16), (2, 1, 600, 640)])
def test_l7_no_sum_of_large_values_overflows(N, T, S, V, mask):
    """An average is between the least and the largest value, for values up to the largest number divided by S."""
    rng = np.random.default_rng(7)
    query, key = (rng.normal(size=(2, n, size, 8)).astype(np.float32) for n, size in ((N, T), (2, S)))
    value = np.sign(rng.normal(size=(2, 2, S, V))).astype(np.float32) * np.float32(3e38 / S)
    wanted = spec.attention(*(x.astype(np.float64) for x in (query, key, value)), mask=mask)
    for way in (None, "blockwise"):
        got = np.asarray(attendax.attention(query, key, value, mask=mask, implementation=way))
        np.testing.assert_allclose(got / 3e35, wanted / 3e35, rtol=1e-5, atol=1e-5)


@pytest.mark.law("L7", "tiles", "native")
def test_float16_values_of_many_columns_do_not_overflow():
    query, key, value = (np.full((2, 2, *size), 300, np.float16) for size in ((1, 8), (700, 8), (700, 640)))
    out = attendax.attention(query / 300, key / 300, value, mask=masks.padding(np.array([700, 9])))
    np.testing.assert_array_equal(out, jnp.full_like(out, 300))


@pytest.mark.law("L6", "tiles", "native")
@pytest.mark.parametrize("scale", [2.0**10, 1e25, -1e30])
@every_way
def test_l6_no_scale_makes_a_masked_key_overflow(scale, way, rng):
    query, key, value = (rng.normal(size=(1, 2, 7, 8)).astype(np.float32) for _ in range(3))
    hidden = key.copy()
    hidden[:, :, 5:] = 2.0**49

    def run(key):
        options = {"mask": masks.padding(np.array([5])), "scale": scale, "implementation": way}
        out, pull = jax.vjp(lambda *arrays: attendax.attention(*arrays, **options), query, key, value)
        return out, *pull(jnp.ones_like(out))

    wanted = run(key)
    assert np.isfinite(wanted[0]).all()
    assert_same_bits(run(hidden), wanted, f"scale {scale}")
