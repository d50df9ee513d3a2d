"""Windows as data: sides, offsets and lengths that are arrays, for all, for each text, for each head (L3, L4, L14)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, explain, masks, spec
from attendax.integers import SIDE
from judges import TWINS, assert_gradients_of_dense, assert_leaves_close
from native_calls import where_native_is

pytestmark = pytest.mark.law("L4", "spec", "ops", "tiles")

B, N, G, T, S, D, V = 2, 4, 2, 5, 7, 3, 11
BY_TEXT, BY_HEAD = np.array([1, 3]), np.array([0, 2, SIDE, 1]).reshape(4, 1, 1)
BOTH = np.array([[0, 2, 1, 4], [3, 0, SIDE, 1]]).reshape(2, 4, 1, 1)


def number(x, b, n):
    """The number for a text and a head."""
    if not np.ndim(x):
        return x
    return int(x[b] if np.ndim(x) == 1 else np.broadcast_to(x, (B, N, 1, 1))[b, n, 0, 0])


def by_definition(left, right, offset):
    """``i + offset - left <= j <= i + offset + right``, one by one."""
    found = np.zeros((B, N, T, S), bool)
    for b, n, i, j in np.ndindex(*found.shape):
        sides = (None if x is None else number(x, b, n) for x in (left, right))
        place = i + number(offset, b, n)
        low, high = (None if x is None else place + sign * x for x, sign in zip(sides, (-1, 1), strict=True))
        found[b, n, i, j] = (low is None or low <= j) and (high is None or j <= high)
    return found


WINDOWS = {
    "scalars": (np.int32(2), np.array(1), 0),
    "left for each text": (BY_TEXT, 0, S - T),
    "right for each head": (None, BY_HEAD, 1),
    "sides in two ways": (BY_TEXT, BY_HEAD, 0),
    "for each text and head": (BOTH, 1, BY_TEXT),
    "offset for each head": (2, 1, BY_HEAD % 5),
    "all arrays": (BY_TEXT, BOTH, BY_HEAD % 3),
    "without an end": (SIDE, SIDE, 0),
}


@TWINS
@pytest.mark.parametrize("name", WINDOWS)
def test_sides_for_texts_and_heads(twin, name, arrays):
    mask = masks.window(*WINDOWS[name])
    right = by_definition(*WINDOWS[name])
    np.testing.assert_array_equal(np.broadcast_to(mask.to_dense(T, S, rank=4), right.shape), right)
    given = [np.asarray(x) for x in arrays]
    got, wanted = (twin.attention(*given, mask=x, return_lse=True) for x in (mask, right))
    assert_leaves_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.law("L4", "tiles", "native")
@pytest.mark.parametrize("implementation", [None, "blockwise"])
@pytest.mark.parametrize("name", WINDOWS)
def test_traced_sides_have_the_gradients_of_a_dense_mask(name, implementation, arrays):
    assert_gradients_of_dense(masks.window(*WINDOWS[name]), by_definition(*WINDOWS[name]), arrays, implementation)


def test_a_scan_over_local_and_global_layers_is_one_program(arrays):
    query, key, value = arrays
    traced = []

    def layer(x, left):
        traced.append(left)
        return x + attention(x, key, value[..., :D], mask=masks.window(left, 0, S - T)), None

    lefts = [1, SIDE, 0, 4]
    found, _ = jax.lax.scan(layer, query, jnp.array(lefts))
    assert len(traced) <= 2  # by scan itself; not for each layer
    wanted = query
    for left in lefts:
        wanted = wanted + attention(wanted, key, value[..., :D], mask=masks.window(left, 0, S - T))
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


@pytest.mark.smoke
@pytest.mark.law("L16", "native")
@where_native_is
def test_traced_sides_run_natively_and_skip_as_static_ones_do():
    x, left = jax.ShapeDtypeStruct((1, 4, 4096, 64), "float32"), np.full((4, 1, 1), 127)
    static, data = (explain(x, x, x, mask=masks.window(side, 0)) for side in (127, left))
    assert (data.implementation, data.flops, data.tiles) == ("native", static.flops, static.tiles)
    unknown = explain(x, x, x, mask=masks.window(jax.ShapeDtypeStruct((), "int32"), 0))
    assert unknown.implementation == "native"


@pytest.mark.law("L16", "tiles")
def test_in_tiles_of_jax_traced_sides_skip():
    x, left = jax.ShapeDtypeStruct((1, 4, 4096, 64), "float32"), np.int32(127)
    found = explain(x, x, x, mask=masks.window(np.asarray(left), 0), implementation="blockwise")
    assert found.tiles["skipped"] > 3 * (found.tiles["masked"] + found.tiles["open"])


OTHERS = {
    "causal": (masks.causal(BY_HEAD % 4), lambda b, n, i, j: j <= i + int(BY_HEAD[n, 0, 0]) % 4),
    "key lengths": (masks.padding(BY_HEAD % 5 + 1), lambda b, n, i, j: j < BY_HEAD[n, 0, 0] % 5 + 1),
    "lengths in two ways": (
        masks.padding(BY_HEAD % 5 + 1, BY_TEXT),
        lambda b, n, i, j: j < BY_HEAD[n, 0, 0] % 5 + 1 and i < BY_TEXT[b],
    ),
    "prefix": (masks.prefix(BY_HEAD % 5), lambda b, n, i, j: j <= i or j < BY_HEAD[n, 0, 0] % 5),
    "beside lengths": (
        masks.window(BY_HEAD, 0) & masks.padding(BY_TEXT),
        lambda b, n, i, j: i - BY_HEAD[n, 0, 0] <= j <= i and j < BY_TEXT[b],
    ),
    "beside a dense mask": (
        masks.causal(BY_HEAD % 4) | masks.dense(np.eye(T, S, dtype=bool)),
        lambda b, n, i, j: j <= i + BY_HEAD[n, 0, 0] % 4 or i == j,
    ),
    "ids of all texts": (masks.segments(np.arange(T) // 2, np.arange(S) // 2), lambda b, n, i, j: i // 2 == j // 2),
    "ids of all texts, and of each": (
        masks.segments(np.arange(T) // 2, np.arange(S)[None] // np.array([[1], [2]])),
        lambda b, n, i, j: i // 2 == j // (1 + b),
    ),
}


@TWINS
@pytest.mark.parametrize("name", OTHERS)
def test_offsets_and_lengths_of_each_head(twin, name, arrays):
    mask, allowed = OTHERS[name]
    right = np.array([allowed(*at) for at in np.ndindex(B, N, T, S)]).reshape(B, N, T, S)
    given = [np.asarray(x) for x in arrays]
    np.testing.assert_allclose(twin.attention(*given, mask=mask), twin.attention(*given, mask=right), rtol=1e-12)


@pytest.mark.law("L4", "spec")
def test_a_window_of_each_head_needs_no_batch_axis(arrays):
    query, key, value = (x[0] for x in arrays)
    mask = masks.window(BY_HEAD, 0)
    wanted = attention(query, key, value, mask=by_definition(BY_HEAD, 0, 0)[0])
    np.testing.assert_allclose(attention(query, key, value, mask=mask), wanted, rtol=1e-12)
    one = masks.window(np.array(1), 0)
    wanted = attention(query[0], key[0], value[0], mask=by_definition(1, 0, 0)[0, 0])
    np.testing.assert_allclose(attention(query[0], key[0], value[0], mask=one), wanted, rtol=1e-12)


def test_many_leading_axes_are_not_taken_for_heads(rng):
    """Of scores (3, 1, 1, N, T, S), an array (3, 1, 1) has the leading axes."""
    x = jnp.asarray(rng.normal(size=(3, 1, 1, 3, T, D)))
    lefts = np.arange(3).reshape(3, 1, 1)
    found = attention(x, x, x, mask=masks.window(lefts, 0))
    for k in range(3):
        np.testing.assert_allclose(found[k], attention(x[k], x[k], x[k], mask=masks.window(k, 0)), rtol=1e-12)


@pytest.mark.smoke
def test_shapes_and_texts():
    dense = (masks.window(BY_HEAD, 0) & masks.padding(BY_TEXT)).to_dense(T, S)
    assert dense.shape == (B, N, T, S)
    assert masks.window(BY_HEAD, 0).to_dense(T, S).shape == (N, T, S)
    assert repr(masks.window(BY_TEXT, 0)) == "window([1, 3], 0)"
    assert repr(masks.window(np.array(1), 0, 2)) == "window(1, 0, 2)"


@pytest.mark.smoke
@pytest.mark.law("L14", "spec", "ops")
@TWINS
@pytest.mark.parametrize(
    "mask", [masks.window(BY_HEAD[:, 0, 0], 0), masks.causal(BY_HEAD[:, 0, 0]), masks.window(BOTH[..., 0, 0], 0)]
)
def test_numbers_of_heads_that_look_like_those_of_texts_are_refused(twin, mask, arrays):
    given = [np.asarray(x) for x in arrays]
    with pytest.raises(ValueError, match="per head, write") as caught:
        twin.attention(*given, mask=mask)
    line = str(caught.value).splitlines()[-1]
    name, code = line.split()[1], line.split("write ")[1].rstrip(".")
    (array,) = (x for x in mask.arrays if x is not None)
    right = eval(code, {name: array})
    twin.attention(*given, mask=masks.causal(right) if name == "offset" else masks.window(right, 0))


@pytest.mark.parametrize("N", [1, 3])
@pytest.mark.parametrize("B", [1, 2])
def test_numbers_of_each_head_where_there_is_one_head(B, N, rng):
    """(N, 1, 1) is (1, 1, 1) then; alone, and beside masks that differ from text to text."""
    query = rng.standard_normal((B, N, 6, 4))
    each = np.arange(N).reshape(N, 1, 1)
    lengths = np.array([3, 5])[:B]
    for mask in (
        masks.causal(each),
        masks.window(each + 1, 0),
        masks.padding(each + 2),
        masks.causal(each) & masks.padding(lengths),
        masks.padding(each + 2) | masks.dense(np.ones((B, 1, 1, 6), bool)),
    ):
        got = attention(query, query, query, mask=mask)
        np.testing.assert_allclose(got, spec.attention(query, query, query, mask=mask), atol=1e-12)
