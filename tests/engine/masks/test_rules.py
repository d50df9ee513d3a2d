"""Rules of a user's own, and blocks: for each text, and which tiles they skip (L3, L4, L14, L16)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, explain, masks
from attendax.kernels.blockwise import partition
from attendax.kernels.blockwise.tiles import Grid
from blockwise import Tiny
from judges import TWINS, assert_gradients_of_dense
from native_calls import where_native_is

pytestmark = pytest.mark.law("L3", "spec", "ops")

B, N, G, T, S, D, V = 2, 4, 2, 5, 7, 3, 11
IDS = np.array([[0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 3, 3]])


def same(i, j, ids):
    return ids[i] == ids[j]


def same_by_definition():
    return (IDS[:, :T, None] == IDS[:, None])[:, None]


@pytest.mark.smoke
@TWINS
def test_a_rule_with_ids_of_each_text(twin, arrays):
    mask = masks.from_function(same, IDS, per="batch")
    np.testing.assert_array_equal(mask.to_dense(T, S), same_by_definition())
    given = [np.asarray(x) for x in arrays]
    wanted = twin.attention(*given, mask=same_by_definition())
    np.testing.assert_allclose(twin.attention(*given, mask=mask), wanted, rtol=1e-12)
    joined = twin.attention(*given, mask=mask & masks.causal(2))
    wanted = twin.attention(*given, mask=same_by_definition() & masks.causal(2).to_dense(T, S)[None, None])
    np.testing.assert_allclose(joined, wanted, rtol=1e-12)


def test_a_rule_of_each_text_traced_mapped_and_differentiated(arrays):
    mask = masks.from_function(same, IDS, per="batch")
    assert_gradients_of_dense(mask, same_by_definition(), arrays)

    def attend(ids):
        return attention(*arrays, mask=masks.from_function(same, ids, per="batch"))

    many = jax.vmap(attend)(jnp.stack([IDS, IDS[::-1]]))
    np.testing.assert_allclose(many[0], attention(*arrays, mask=same_by_definition()), rtol=1e-12, atol=1e-13)


def test_a_tree_of_each_text_over_many_tiles(rng):
    """Tree decoding: a token sees its ancestors, by a table of each text; in tiny tiles, some of which are skipped."""
    x = jnp.asarray(rng.normal(size=(B, N, 9, D)))
    parents = np.stack([[max(0, (k - 1) // 2) for k in range(9)], [max(0, k - 1) for k in range(9)]])
    sees = np.zeros((B, 9, 9), bool)
    for b in range(B):
        for k in range(9):
            at = k
            while not sees[b, k, at]:
                sees[b, k, at] = True
                at = parents[b, at]
    found = Tiny.attention(x, x, x, mask=masks.from_function(lambda i, j, sees: sees[i, j], sees, per="batch"))
    np.testing.assert_allclose(found, attention(x, x, x, mask=sees[:, None]), rtol=1e-12)


def refused(error, call, *parts):
    with pytest.raises(error) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.smoke
@pytest.mark.law("L14", "spec", "ops")
@TWINS
def test_a_rule_without_its_axis_is_refused_in_the_sizes_of_the_user(twin, arrays):
    given = [np.asarray(x) for x in arrays]
    line = 'masks.from_function(f, *arrays, per="batch")'
    refused(TypeError, lambda: twin.attention(*given, mask=masks.from_function(same, IDS)), f"(T, S) = {(T, S)}", line)
    three = masks.from_function(lambda i, j, ids: ids[:, i[:, 0]][:, :, None] == ids[:, j[0]][:, None], IDS)
    refused(ValueError, lambda: twin.attention(*given, mask=three), f"{(B, T, S)}", f"{(B, N, T, S)}", line)
    numbers = masks.from_function(lambda i, j: i - j)
    refused(TypeError, lambda: twin.attention(*given, mask=numbers), "booleans", f"{(T, S)}")


@pytest.mark.smoke
@pytest.mark.law("L14", "spec", "ops")
def test_what_per_refuses():
    refused(ValueError, lambda: masks.from_function(same, IDS, per="head"), "per must be one of None, 'batch'")
    refused(ValueError, lambda: masks.from_function(same, per="batch"), "got none")
    refused(ValueError, lambda: masks.from_function(same, 3, per="batch"), "first axis is that of the texts, got ()")
    refused(ValueError, lambda: masks.from_function(same, IDS, IDS[:1], per="batch"), "(2, 7), (1, 7)")
    assert (
        repr(masks.from_function(same, IDS[:, :2], per="batch")) == "from_function(same, [[0, 0], [0, 1]], per='batch')"
    )


BLOCKS = {
    "for all": (2, 3),
    "for each text": (B, 1, 2, 3),
    "for each text and head": (B, N, 2, 3),
    "rows for all keys": (1, N, 2, 1),
    "one for all": (1, 1),
}


def written_out(array):
    array = np.broadcast_to(array, (*array.shape[:-2], 2, 3))
    return array[..., np.arange(T) // 4, :][..., np.arange(S) // 3]


@TWINS
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(twin, name, arrays, rng):
    array = rng.random(BLOCKS[name]) < 0.6
    mask, right = masks.blocks(array, 4, 3), written_out(array)
    np.testing.assert_array_equal(mask.to_dense(T, S), right)
    given = [np.asarray(x) for x in arrays]
    rest = ~masks.causal(1)
    np.testing.assert_allclose(twin.attention(*given, mask=mask), twin.attention(*given, mask=right), rtol=1e-12)
    for one, other in ((mask | rest, right | rest.to_dense(T, S)), (~mask & rest, ~right & rest.to_dense(T, S))):
        np.testing.assert_allclose(twin.attention(*given, mask=one), twin.attention(*given, mask=other), rtol=1e-12)


@pytest.mark.law("L3", "tiles", "native")
@pytest.mark.parametrize("implementation", [None, "blockwise"])
def test_traced_blocks_have_the_gradients_of_a_dense_mask(implementation, arrays, rng):
    array = rng.random((B, N, 2, 3)) < 0.6
    assert_gradients_of_dense(masks.blocks(array, 4, 3), written_out(array), arrays, implementation)
    found = jax.vmap(lambda a: attention(*arrays, mask=masks.blocks(a, 4, 3)))(jnp.asarray(array[:, 0]))
    for one, a in zip(found, array[:, 0], strict=True):
        np.testing.assert_allclose(one, attention(*arrays, mask=masks.blocks(a, 4, 3)), rtol=1e-12)


def test_bounds_of_blocks_are_exact(rng):
    for _ in range(20):
        sizes = rng.integers(1, 20, 2)
        T, S, rows, columns, block_q, block_kv = (int(x) for x in (*sizes, *rng.integers(1, 9, 4)))
        rows, columns = min(T, rows), min(S, columns)
        array = rng.random((-(-T // block_q), -(-S // block_kv))) < 0.4
        mask, grid = masks.blocks(array, block_q, block_kv), Grid((1, 1), (1, 1), T, S, rows, columns)
        kinds = np.asarray(partition.kinds_of_tiles(mask.of_rank(3), grid))[0]
        full = mask.to_dense(T, S)
        starts = partition.every_tile(grid)
        for a, b in np.ndindex(kinds.shape):
            i, j = starts[a, b, :2]
            tile = full[i : i + rows, j : j + columns]
            assert kinds[a, b] == (
                partition.FULL if tile.all() else partition.PARTIAL if tile.any() else partition.EMPTY
            )


LONG = jax.ShapeDtypeStruct((1, 2, 4096, 64), "float32")


def globals_first(i, j, first):
    return (i < first) | (j < first)


def share(mask, **options):
    found = explain(LONG, LONG, LONG, mask=mask, **options)
    return found.flops / (found.flops + found.flops_skipped)


@pytest.mark.law("L16", "tiles")
def test_a_union_with_a_function_skips():
    """A window and four global tokens: 4.3 % of the pairs; in tiles of at most 512 by 512."""
    union = masks.window(127, 0) | masks.from_function(globals_first, 4)
    assert share(union) < 0.5  # 8 of 64 tiles on the diagonal, 7 beside it, 6 + 7 of the first row and column
    assert share(masks.window(127, 0) | masks.from_function(lambda i, j: i >= 0)) == 1


@pytest.mark.law("L16", "native")
@where_native_is
def test_unions_of_intervals_skip_natively():
    union = masks.padding(np.array([4])) | masks.window(127, 0)
    assert share(union) < 0.09
    few = np.random.default_rng(0).random((1, 2, 64, 64)) < 0.03
    assert share(masks.blocks(few, 64, 64)) < 0.08
    assert share(masks.blocks(few, 64, 64), implementation="blockwise") < 1


@pytest.mark.smoke
@pytest.mark.law("L14", "spec", "ops")
def test_blocks_that_are_refused(arrays):
    refused(TypeError, lambda: masks.blocks(np.ones((2, 3)), 4, 3), "array must be boolean, got float64.")
    refused(TypeError, lambda: masks.blocks([[True]], 4, 3), "np.asarray(array, 'bool')")
    refused(ValueError, lambda: masks.blocks(np.ones(2, bool), 4, 3), "rank 1 but needs at least 2")
    refused(ValueError, lambda: masks.blocks(np.ones((2, 3), bool), 0, 3), "block_q must be at least 1")
    wrong = masks.blocks(np.ones((2, 2), bool), 4, 3)
    refused(ValueError, lambda: attention(*arrays, mask=wrong), "(2, 2)", "(2, 3)", "4 by 3 of T=5 and S=7")
    assert repr(masks.blocks(np.eye(2, dtype=bool), 4, 3)) == "blocks([[True, False], [False, True]], 4, 3)"


def test_a_block_larger_than_any_length():
    x = np.ones((2, 3, 20, 4))
    for allowed in (True, False):
        mask = masks.blocks(np.full((1, 1), allowed), 2**40, 2**33)
        assert (np.asarray(attention(x, x, x, mask=mask)) == allowed).all()
