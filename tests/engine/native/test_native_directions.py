"""Directions natively: tangents of results, and of gradients, of short texts, beside those of tiles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, masks
from native_calls import MASKS, SHORT, Sizes, arrays, as_floats, cotangents, generator, needs_library, options

pytestmark = needs_library

DTYPES = {"float64": (np.float64, 1e-13), "float32": (np.float32, 1e-5)}


def directions(given, moved, found, implementation, moving=(0, 1, 2), **chosen):
    """The tangents of out, lse and the gradients, where some of query, key and value move."""
    call = functools.partial(attention, **chosen, return_lse=True, implementation=implementation)

    @jax.jit
    def both(given, moved, found):
        def filled(part):
            return [part[moving.index(k)] if k in moving else x for k, x in enumerate(given)]

        def gradients(part):
            results, pull_back = jax.vjp(lambda part: call(*filled(part)), part)
            return pull_back(tuple(d.astype(x.dtype) for d, x in zip(found, results, strict=True)))

        primals, tangents = ([[part[k] for k in moving]] for part in (given, moved))
        return [jax.jvp(f, primals, tangents)[1] for f in (lambda part: call(*filled(part)), gradients)]

    return jax.tree.leaves(both(given, moved, found))


def assert_as_in_tiles(given, moved, found, tolerance, **chosen):
    """NaN in the same places, and the rest as near as allowed."""
    got, wanted = (as_floats(directions(given, moved, found, im, **chosen)) for im in ("native", "blockwise"))
    for k, (x, y) in enumerate(zip(got, wanted, strict=True)):
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y), f"array {k}: NaN")
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * np.nanmax(np.abs(y), initial=1), err_msg=f"array {k}")


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*MASKS, "dropout"])
@pytest.mark.parametrize("sizes", SHORT)
def test_tangents_are_those_of_tiles(sizes, name, dtype):
    z, (dtype, tolerance) = SHORT[sizes], DTYPES[dtype]
    given, moved, found = arrays(z, dtype), arrays(z, dtype, seed=1), cotangents(z, dtype)
    assert_as_in_tiles(given, moved, found, tolerance, **options(name, z))


@pytest.mark.parametrize("moving", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_some_arrays_move(moving):
    z = SHORT["a folded group"]
    given, moved, found = arrays(z), arrays(z, seed=1), cotangents(z)
    assert_as_in_tiles(given, moved, found, 1e-13, moving=moving, mask=masks.causal(9))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bfloat16", "float16"])
def test_narrow_dtypes(dtype):
    z = SHORT["two blocks"]
    given, moved, found = arrays(z, dtype), arrays(z, dtype, seed=1), cotangents(z, dtype)
    assert_as_in_tiles(given, moved, found, 0.02, mask=masks.causal(9))


@pytest.mark.parametrize("name", ["none", "causal", "padding", "dense", "dropout"])
@pytest.mark.parametrize("sizes", ["a folded group", "two blocks"])
def test_l6_what_is_not_finite_spreads_as_in_tiles(sizes, name):
    """In an array, its tangent, dout or dlse; beside rows on which nothing depends."""
    z = SHORT[sizes]
    for seed in range(6):
        rng = generator(seed, *z)
        given, moved, found = arrays(z, np.float32), arrays(z, np.float32, seed=1), cotangents(z, np.float32)
        found[0][:, :, ::3], found[1][:, :, ::3] = 0, 0
        for x in [*given, *moved, *found]:
            if rng.random() < 0.4:
                x[tuple(rng.integers(size) for size in x.shape)] = rng.choice([np.nan, np.inf, -np.inf])
        assert_as_in_tiles(given, moved, found, 1e-5, **options(name, z))


def test_l6_what_is_hidden_changes_no_bit():
    z = SHORT["two blocks"]
    given, moved, found = arrays(z, np.float32), arrays(z, np.float32, seed=1), cotangents(z, np.float32)
    mask = masks.padding(np.array([60]))
    clean = directions(given, moved, found, "native", mask=mask)
    for x in (*given[1:], *moved[1:]):
        x[:, :, 60:] = np.nan
    for x, y in zip(directions(given, moved, found, "native", mask=mask), clean, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_l7_large_scores_leave_tangents_finite():
    z = SHORT["tiny"]
    given, moved, found = arrays(z, np.float32), arrays(z, np.float32, seed=1), cotangents(z, np.float32)
    given[0] *= np.float32(1e30)
    assert all(np.isfinite(np.asarray(x)).all() for x in directions(given, moved, found, "native"))


def test_l8_what_is_common_to_all_keys_leaves_no_rounding():
    z = SHORT["two blocks"]
    given, moved, found = (f(z) for f in (arrays, functools.partial(arrays, seed=1), cotangents))
    exact = as_floats(directions(given, moved, found, "native"))
    moved[1] += 1e3 * np.ones_like(moved[1])  # to the tangents of scores it adds one number a row
    for x, y in zip(as_floats(directions(given, moved, found, "native"))[::4], exact[::4], strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("keys", "biased", "kept"), [(96, False, True), (97, False, False), (20, True, False)])
def test_short_texts_without_a_bias_are_kept(keys, biased, kept):
    z = Sizes(1, 2, 2, 8, keys, 4, 4)
    given = tuple(arrays(z, np.float32))
    more = {"bias": np.zeros((8, keys), np.float32)} if biased else {}

    def moved(*given):
        gradients = jax.grad(lambda *given: attention(*given, **more).sum(), (0, 1, 2))
        return jax.jvp(attention, given, given), jax.jvp(gradients, given, given)[1]

    text = jax.jit(moved).lower(*given).as_text()
    assert ("attendax_hvp" in text, "attendax_tangent" in text) == (kept, keys < 97)


def test_other_second_derivatives_meet_them():
    """Reverse over forward, reverse over reverse, a batch of directions, and a third derivative."""
    z = SHORT["a folded group"]
    given, moved = arrays(z), arrays(z, seed=1)
    tangents = tuple(map(jnp.asarray, moved))

    def values(implementation):
        def loss(*given):
            return (attention(*given, implementation=implementation) ** 3).sum()

        def along(*given):
            return jax.jvp(loss, given, tangents)[1]

        def pulled(*given):
            return sum((x * t).sum() for x, t in zip(jax.grad(loss, (0, 1, 2))(*given), tangents, strict=True))

        many = jax.vmap(lambda s: jax.jvp(jax.grad(loss), given, [s * t for t in tangents])[1])(jnp.arange(3.0))
        third = jax.jvp(jax.grad(along), tuple(given), tangents)[1]
        return jax.grad(along, 1)(*given), jax.grad(pulled, 2)(*given), many, third

    for x, y in zip(values("native"), values("blockwise"), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-11 * np.abs(y).max())
