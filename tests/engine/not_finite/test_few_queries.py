"""L6 and L7 where there are few queries, as in decoding."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import masks, spec

pytestmark = pytest.mark.law("L6", "tiles", "native")

SIZES = {  # T, query heads, key heads, S, D, V
    "one query": (1, 2, 2, 700, 8, 8),
    "a group": (2, 8, 2, 600, 8, 8),
    "too many for one tile": (20, 2, 2, 700, 16, 16),
    "as many as keys tell": (40, 2, 2, 700, 16, 16),
    "wider than there are keys": (1, 2, 2, 600, 8, 640),
}
MASKS = {
    "none": lambda S: None,
    "padding": lambda S: masks.padding(np.array([S - 5, 9])),
    "some": lambda S: np.arange(S)[None] % 3 != 1,
    "all": lambda S: np.ones((1, S), bool),
}


def arrays(sizes, dtype=np.float32):
    T, N, G, S, D, V = sizes
    rng = np.random.default_rng(7)
    shapes = {"query": (2, N, T, D), "key": (2, G, S, D), "value": (2, G, S, V)}
    return {name: np.asarray(rng.normal(size=shape), dtype) for name, shape in shapes.items()}


def allowed(mask, sizes):
    T, N, _, S, _, _ = sizes
    found = np.ones((T, S), bool) if mask is None else mask
    found = found.to_dense(T, S) if isinstance(found, masks.Mask) else found
    return np.broadcast_to(np.asarray(found), (2, N, T, S))


@pytest.mark.sample(4)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", SIZES)
def test_l6_rows_that_see_it_are_nan_and_no_other_bit_changes(sizes, mask, name, number):
    sizes = SIZES[sizes]
    mask, given = MASKS[mask](sizes[3]), arrays(sizes)
    out, lse = attendax.attention(**given, mask=mask, return_lse=True)
    for place, head in itertools.product((0, 7, -1), (0, 1)):
        place = 0 if name == "query" else place
        changed = {k: x.copy() for k, x in given.items()}
        changed[name][1, head, place, -1] = number
        got = attendax.attention(**changed, mask=mask, return_lse=True)
        sees = np.zeros(lse.shape, bool)
        if name == "query":
            sees[1, head, place] = allowed(mask, sizes)[1, head, place].any()
        else:
            group = sizes[1] // sizes[2]
            heads = slice(head * group, (head + 1) * group)
            sees[1, heads] = allowed(mask, sizes)[1, heads, :, place]
        np.testing.assert_array_equal(np.isnan(got[1]), sees)
        np.testing.assert_array_equal(got[1], np.where(sees, np.nan, lse))
        np.testing.assert_array_equal(got[0], np.where(sees[..., None], np.nan, out))


@pytest.mark.law("L7", "tiles", "native")
@pytest.mark.parametrize("mask", ["none", "some"])
@pytest.mark.parametrize("sizes", SIZES)
def test_l7_values_up_to_the_largest_number_by_s_are_averaged(sizes, mask):
    sizes = SIZES[sizes]
    mask, given = MASKS[mask](sizes[3]), arrays(sizes)
    given["value"] = np.sign(given["value"]) * np.float32(3e38 / sizes[3])
    got = np.asarray(attendax.attention(**given, mask=mask))
    wide = {name: x.astype(np.float64) for name, x in given.items()}
    wanted = spec.attention(**wide, mask=allowed(mask, sizes))
    np.testing.assert_allclose(got / 3e35, wanted / 3e35, rtol=1e-5, atol=1e-5)


@pytest.mark.law("L7", "tiles", "native")
def test_float16_values_of_many_columns_do_not_overflow():
    sizes = (1, 2, 2, 700, 8, 640)
    given = arrays(sizes, np.float16)
    given["value"] = np.full_like(given["value"], 300)
    out = attendax.attention(**given, mask=masks.padding(np.array([700, 9])))
    np.testing.assert_array_equal(out, jnp.full_like(out, 300))
