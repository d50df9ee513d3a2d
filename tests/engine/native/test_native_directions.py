"""Directions natively: tangents of results, and of gradients, of short texts, beside those of tiles."""

import functools

import jax
import numpy as np
import pytest

from attendax import attention, masks
from judges import as_floats, assert_leaves_close, times_as_far
from native_calls import MASKS, SHORT, Sizes, arrays, cotangents, generator, needs_library, options

pytestmark = [needs_library, pytest.mark.law("L12", "native")]

DTYPES = {"float64": (np.float64, 1e-13), "float32": (np.float32, 1e-5)}


def program(implementation, moving=(0, 1, 2), **chosen):
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

    return lambda *numbers: jax.tree.leaves(both(*numbers))


def whole(implementation, **chosen):
    """The tangents of the gradients, where query, key and value move, and the cotangents of out and lse."""
    call = functools.partial(attention, **chosen, return_lse=True, implementation=implementation)

    def gradients(given, found):
        results, pull_back = jax.vjp(call, *given)
        return pull_back(tuple(d.astype(x.dtype) for d, x in zip(found, results, strict=True)))

    return jax.jit(lambda *numbers: jax.jvp(gradients, numbers[:2], numbers[2:])[1])


def whole_numbers(z, dtype=np.float64):
    """Query, key and value, the cotangents of out and lse; the tangents of all of them."""
    parts = [arrays(z, dtype), cotangents(z, dtype), arrays(z, dtype, seed=1), cotangents(z, dtype, seed=1)]
    return [tuple(part) for part in parts]


def both_programs(**options):
    return [program(implementation, **options) for implementation in ("native", "blockwise")]


def assert_alike(programs, numbers, tolerance):
    """NaN in the same places, and the rest as near as allowed."""
    got, wanted = (as_floats(program(*numbers)) for program in programs)
    for k, (x, y) in enumerate(zip(got, wanted, strict=True)):
        np.testing.assert_array_equal(np.isnan(x), np.isnan(y), f"array {k}: NaN")
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * np.nanmax(np.abs(y), initial=1), err_msg=f"array {k}")


def numbers_of(z, dtype=np.float64):
    """Query, key and value; their tangents; the cotangents of out and lse."""
    return arrays(z, dtype), arrays(z, dtype, seed=1), cotangents(z, dtype)


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*MASKS, "dropout"])
@pytest.mark.parametrize("sizes", SHORT)
def test_tangents_are_those_of_tiles(sizes, name, dtype):
    z, (dtype, tolerance) = SHORT[sizes], DTYPES[dtype]
    assert_alike(both_programs(**options(name, z)), numbers_of(z, dtype), tolerance)


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*MASKS, "dropout"])
@pytest.mark.parametrize("sizes", SHORT)
def test_cotangents_that_move_give_what_tiles_do(sizes, name, dtype):
    z, (dtype, tolerance) = SHORT[sizes], DTYPES[dtype]
    programs = [whole(implementation, **options(name, z)) for implementation in ("native", "blockwise")]
    assert_alike(programs, whole_numbers(z, dtype), tolerance)


@pytest.mark.law("L6", "native")
@pytest.mark.parametrize("name", ["none", "causal", "padding", "dense", "dropout"])
@pytest.mark.parametrize("sizes", ["a folded group", "two blocks"])
def test_l6_what_is_not_finite_spreads_as_in_tiles(sizes, name):
    """In an array, its tangent, dout or dlse; beside rows on which nothing depends."""
    z = SHORT[sizes]
    programs = both_programs(**options(name, z))
    for seed in range(20):
        rng = generator(seed, *z)
        given, moved, found = numbers_of(z, np.float32)
        found[0][:, :, ::3], found[1][:, :, ::3] = 0, 0
        for x in [*given, *moved, *found]:
            if rng.random() < 0.4:
                x[tuple(rng.integers(size) for size in x.shape)] = rng.choice([np.nan, np.inf, -np.inf])
        assert_alike(programs, (given, moved, found), 1e-5)


@pytest.mark.law("L6", "native")
@pytest.mark.parametrize("name", ["none", "causal", "padding", "dense"])
@pytest.mark.parametrize("sizes", ["a folded group", "two blocks"])
def test_l6_where_cotangents_move_too(sizes, name):
    """Tangents of query, key and value meet rows with a cotangent; what they meet there is as in tiles."""
    z = SHORT[sizes]
    programs = [whole(implementation, **options(name, z)) for implementation in ("native", "blockwise")]
    for seed in range(20):
        rng = generator(seed, *z)
        numbers = whole_numbers(z, np.float32)
        for k, found in enumerate((numbers[1], numbers[3])):
            for x in found:
                x[:, :, k :: 3 - k] = 0
        for x in jax.tree.leaves(numbers):
            if rng.random() < 0.2:
                x[tuple(rng.integers(size) for size in x.shape)] = rng.choice([np.nan, np.inf, -np.inf])
        assert_alike(programs, numbers, 1e-5)


@pytest.mark.law("L7", "native")
@pytest.mark.parametrize("array", ["given", "moved"])
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
def test_l7_a_query_that_the_scale_leads_beyond_the_range_stays_in_its_row(array, is_read):
    """What is hidden from it, and where nothing depends on it everything, is finite."""
    z = Sizes(1, 2, 1, 8, 8, 4, 4)
    given, moved, found = numbers_of(z, np.float32)
    given[0] /= 10
    (given if array == "given" else moved)[0][:, :, 3] = 1e38
    for x in found:
        x[:, :, 3] *= is_read
    assert_alike(both_programs(mask=masks.causal(), scale=10.0), (given, moved, found), 1e-4)


@pytest.mark.law("L8", "native")
def test_l8_what_is_common_to_all_keys_leaves_no_rounding():
    z = SHORT["two blocks"]
    given, moved, found = numbers_of(z)
    natively = program("native")
    exact = as_floats(natively(given, moved, found))
    moved[1] += 1e3 * np.ones_like(moved[1])  # to the tangents of scores it adds one number a row
    assert_leaves_close(as_floats(natively(given, moved, found))[::4], exact[::4], rtol=0, atol=1e-10)


def _all_as_first(*arrays):
    for x in arrays:
        x[:] = x[:, :, :1]


HARD = {  # sums of numbers that are rounded alike, or nearly cancel
    "equal keys": lambda given, moved, found: _all_as_first(given[1], moved[1]),
    "equal tangents": lambda given, moved, found: _all_as_first(given[1], *moved[1:]),
    "ones": lambda given, moved, found: [x.fill(1) for x in (given[2], found[0])],
    "one weight": lambda given, moved, found: given[1][:, :, 3].__imul__(9),
}


@pytest.mark.law("L8", "native")
@pytest.mark.parametrize("kind", HARD)
def test_l8_tangents_are_as_near_as_in_the_dense_formula(kind):
    """At most twice its root mean square error, in the median of five draws.

    Where the tangents of values are equal, those of results alone: that of dq is 2.0 times as far.
    """
    count = 2 if kind == "equal tangents" else 4
    z = Sizes(2, 4, 4, 16, 96, 64, 64)
    ours, dense = (program(name) for name in ("native", "dense"))

    def draws():
        for draw in range(5):
            numbers = arrays(z, np.float32, draw), arrays(z, np.float32, draw + 9), cotangents(z, np.float32)
            HARD[kind](*numbers)
            yield numbers, dense(*([x.astype(np.float64) for x in part] for part in numbers))

    medians = times_as_far(ours, dense, draws())[:count]
    assert medians.max() <= 2, f"out, lse, dq, dk: {medians} times as far"


@pytest.mark.law("L8", "native")
def test_l8_equal_tangents_of_values_are_added_in_pieces():
    """The root mean square error of out' is at most 4 times 2^-24 of it: 1.8, and 11 where one chain adds all."""
    z = Sizes(2, 4, 4, 16, 96, 64, 64)
    numbers = arrays(z, np.float32), arrays(z, np.float32, 9), cotangents(z, np.float32)
    HARD["equal tangents"](*numbers)
    wanted = as_floats(program("dense")(*([x.astype(np.float64) for x in part] for part in numbers)))[0]
    error = as_floats(program("native")(*numbers))[0] - wanted
    assert np.linalg.norm(error) <= 4 * 2.0**-24 * np.linalg.norm(wanted)


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


def test_a_gradient_along_all_directions_is_one_native_call():
    """The gradient along its cotangents is no backward of its own."""
    numbers = whole_numbers(SHORT["tiny"], np.float32)
    text = whole("native").lower(*numbers).compile().as_text()
    targets = [text.count(f'custom_call_target="attendax_{name}"') for name in ("hvp", "backward")]
    assert targets == [1, 0]
