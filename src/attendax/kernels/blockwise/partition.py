"""How the scores are cut into tiles, and in which order loops visit the tiles in which the mask allows a pair."""

import dataclasses
import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax.masks import Mask

from ..functions import has_function
from ..operands import Index, Limits, Operands, Plan
from .tiles import Grid, Tile, divided, is_one

Tree = TypeVar("Tree")

# ``whole_head_scores`` stays at 2**16: beyond 256 x 256, XLA 0.10.2 may misread a square product (docs/xla-faults.md).
LIMITS = Limits(rows=512, columns=512, bytes=2**21, whole_head_scores=2**16, whole_heads_bytes=24 * 2**20, band=256)
ACCELERATOR = Limits(rows=1024, columns=1024, bytes=2**28)  # few large products; guessed, not measured
LIMITS_ON = {"cpu": LIMITS, "cuda": ACCELERATOR, "rocm": ACCELERATOR, "tpu": ACCELERATOR}
ONE_TILE = Limits(rows=2**31 - 1, columns=2**31 - 1, bytes=2**62)  # "dense": all T x S scores at once
BANDS = {"forward": 4, "tangent": 2, "cotangent": 2}  # at most so many bands: each is a program of its own
MOST_OF_ALL = 0.8  # bands pay off only if they compute at most this share of all pairs
FEW = 128  # queries: from LEAST to so many, a tile may have four times as many keys
WORTH_ASKING = 4  # tiles: of fewer, none would be left out
FEWEST = 16  # rows of scores of a key head: up to so many, without a mask, all scores are one tile
LEAST = 32  # a tile has at least so many queries and keys, however many heads it must hold
EMPTY, PARTIAL, FULL = 0, 1, 2  # kinds of tiles: the mask allows no pair, perhaps some, every pair


@dataclasses.dataclass(frozen=True)
class Visits:
    """The tiles of one size that one loop visits, chunk by chunk.

    ``starts`` has a row for each tile of a chunk: its first query and key, and the first query and key that count. (If
    the size of a tile does not divide the axis, the last tile starts earlier, and skips what the tile before it has.)
    If arrays decide which tiles are visited, ``order`` holds their numbers, chunk by chunk, and ``found`` their count.
    """

    grid: Grid
    starts: np.ndarray
    order: Array | None = None
    found: Array | None = None

    @property
    def count(self) -> Any:
        """How many tiles are visited."""
        return self.grid.chunks * len(self.starts) if self.order is None else self.found

    @property
    def rows_are_whole(self) -> bool:
        """Whether each row of scores is in one tile."""
        return len(np.unique(self.starts[:, 0])) == len(self.starts)

    def tile(self, index: Index, *, rows_once: bool = True) -> Tile:
        """The tile of visit ``index``; unless ``rows_once``, all of its queries count."""
        number = index if self.order is None else self.order[index]
        chunk, place = divided(number, len(self.starts))
        at = [int(x[0]) if (x == x[0]).all() else jnp.asarray(x)[place] for x in self.starts.T]
        new_row, new_column = (at[k + 2] if (self.starts[:, k + 2] > self.starts[:, k]).any() else None for k in (0, 1))
        return Tile(self.grid, self.grid.starts(chunk), at[0], at[1], new_row if rows_once else None, new_column)


class Partition(NamedTuple):
    """How the scores of a call are cut: into heads that stay whole, or bands, or else the tiles of a grid."""

    heads: Grid | None
    bands: list[Visits]
    grid: Grid
    backward: bool = False

    def visits(self, operands: Operands, plan: Plan) -> list[Visits]:
        """The tiles that a loop visits, for each of the loops; reverse mode needs loops whose length is known."""
        static = plan.reversible
        return self.bands or [visits_of(operands.mask, self.grid, backward=self.backward, static=static)]


def partition_of(operands: Operands, plan: Plan, direction: str = "forward") -> Partition:
    """The partition for the "forward", the "tangent" or the "cotangent" of a call.

    A forward fuses scores and softmax in one kernel, and takes more heads at once than derivatives do. Derivatives take
    1.5 times the bytes of a tile (3 MiB on a CPU). Measured: up to 1.1 times the speed of 2 MiB; 24 MiB runs at 0.6
    times.
    """
    most = plan.limits.whole_heads_bytes if direction == "forward" else 3 * plan.limits.bytes // 2
    if (heads := whole_grid_of(operands, plan, most)) is not None:
        return Partition(heads, [], heads)
    backward = direction == "cotangent"
    return Partition(
        None, bands_of(operands, plan, BANDS[direction]), grid_of(operands, plan, apart=backward), backward
    )


def grid_of(operands: Operands, plan: Plan, *, apart: bool = False) -> Grid:
    """The grid for the arrays of a call; see ``choose``."""
    if plan.limits == ONE_TILE:
        axes = _axes(operands, plan)
        T, S = operands.query.shape[-2], operands.key.shape[-2]
        return Grid(axes, axes, T, S, T, S, len(plan.batch), operands.positions)
    masked, band = operands.mask is not None, _band(operands.mask)
    sizes = operands.query.shape[-2], operands.key.shape[-2], operands.compute_dtype().itemsize
    axes, uncut, batch = _axes(operands, plan), _uncut_axes(operands, plan), len(plan.batch)
    limits = plan.limits._replace(bytes=plan.limits.bytes * plan.devices)
    grid = choose(axes, *sizes, limits, masked=masked, band=band, uncut=uncut, batch=batch, apart=apart)
    return dataclasses.replace(grid, positions=operands.positions)


def choose(
    axes: tuple[int, ...],
    T: int,
    S: int,
    itemsize: int,
    limits: Limits = LIMITS,
    *,
    masked: bool = False,
    band: int | None = None,
    uncut: int = 0,
    batch: int = 0,
    apart: bool = False,
) -> Grid:
    """The grid for scores of these sizes.

    Args:
        axes: the leading axes, G, and how many query heads share a key head.
        T, S: queries and keys.
        itemsize: bytes of a score.
        limits: of a tile.
        masked: whether there is a mask, which may leave tiles out.
        band: how many keys a query sees, where a window bounds it.
        uncut: the last so many of ``axes`` must not be cut, because a function reads them.
        batch: how many of ``axes`` come from vmap.
        apart: whether query heads that share a key head go one by one where they do not all fit. The backward would
            have to bring them side by side, which takes longer than two products (1.1 times, of 32 heads over 8).
    """
    if T * axes[-1] <= min(FEWEST, limits.rows) and not masked:  # cutting the keys would copy them: 10 ms against 5
        return Grid(axes, axes, T, S, T, S, batch)
    budget = max(1, limits.bytes // itemsize)
    rows, columns = limits.rows, limits.columns
    if band is not None:  # a tile as wide as the band wastes as much as it uses; smaller ones are slow to multiply
        rows = columns = min(rows, columns, max(128, 1 << (band.bit_length() - 1)))
    elif LEAST <= T <= FEW:  # longer rows make up for few of them: 64 x 4,096 scores 1.15 times as fast
        columns, budget = 4 * columns, budget // 2
    outside = len(axes) - uncut
    heads = math.prod(size for size in axes[outside:] if isinstance(size, int))
    columns = _even(S, min(columns, max(LEAST, budget // max(1, heads))))
    rows = _even(T, min(rows, max(LEAST, budget // max(1, heads * columns))))
    room = budget // (heads * rows * columns)
    chunk_sizes = *_chunk_sizes(axes[:outside], 1 if apart and room < axes[-1] else room), *axes[outside:]
    return Grid(axes, chunk_sizes, T, S, rows, columns, batch)


def whole_grid_of(operands: Operands, plan: Plan, bytes: int) -> Grid | None:
    """The grid of a call whose heads are small and plain enough to be whole (see ``whole_heads``); None for any other.

    A chunk has at most ``bytes`` bytes of scores.

    Beyond 256 x 256 scores, or 512 keys, whole heads are slower than tiles. With a large scale, products in
    ``whole_heads`` could overflow.
    """
    if plan.limits == ONE_TILE:
        return None
    T, D, S = *operands.query.shape[-2:], operands.key.shape[-2]
    axes, most = _axes(operands, plan), plan.limits.whole_head_scores
    modified = operands.bias is not None or operands.score_mod is not None or operands.dropout_keys is not None
    if (
        modified
        or plan.devices > 1
        or plan.needs_lse
        or not plan.may_use_whole_heads
        or D == 1
        or plan.has_large_scale
        or _uncut_axes(operands, plan)
    ):
        return None
    if most < max(T * S, S * S // 4):
        return None
    chunk_sizes = _chunk_sizes(axes, bytes // (operands.compute_dtype().itemsize * T * S))
    return Grid(axes, chunk_sizes, T, S, T, S, len(plan.batch), operands.positions)


def bands_of(operands: Operands, plan: Plan, most: int) -> list[Visits]:
    """The bands of a call whose mask leaves out much, in a way that is known before anything runs; else none."""
    known = operands.mask is not None and not jax.tree.leaves((operands.mask, operands.positions))
    if not known or not plan.limits.band or plan.devices > 1 or _uncut_axes(operands, plan):
        return []
    low, high = _reach(operands.mask)
    if low is not None and high is not None:
        return _along_a_window(low, high, operands, plan)
    return _by_blocks(operands, plan, most) if _band(operands.mask) is None else []


def _along_a_window(low: int, high: int, operands: Operands, plan: Plan) -> list[Visits]:
    """One band, where each query i sees no other keys than ``i + low`` to ``i + high``; none where tiles get too large.

    With half a window of queries, a tile has 1.5 times as many pairs as are allowed, and no parts to put together. A
    window of 256 keys to either side runs 1.7 times as fast as in tiles of 512, with the gradient 1.6 times.
    """
    T, S, width = operands.query.shape[-2], operands.key.shape[-2], high - low + 1
    axes, room, step = (
        _axes(operands, plan),
        plan.limits.bytes // operands.compute_dtype().itemsize,
        plan.limits.band // 4,
    )
    rows = min(plan.limits.rows, max(2 * step, 1 << max(0, (width // 2).bit_length() - 1)))
    columns = -(-(rows + width - 1) // step) * step  # 64 by 64: other products are slower
    if width < 1 or rows >= T or columns >= S or rows * columns > room:
        return []
    firsts = [min(row, T - rows) for row in range(0, T, rows)]
    starts = [
        (row, min(max(0, row + low), S - columns), new) for row, new in zip(firsts, range(0, T, rows), strict=True)
    ]
    grid = Grid(axes, _chunk_sizes(axes, room // (rows * columns)), T, S, rows, columns, len(plan.batch))
    return [Visits(grid, np.array([(row, column, new, column) for row, column, new in starts], np.int32))]


def _by_blocks(operands: Operands, plan: Plan, most: int) -> list[Visits]:
    """A band for each block of queries, where the mask leaves out much of not very many pairs.

    A causal call of 1,024 queries does 5/8 of the full work in four bands, 3/4 in tiles of 512, and as much in tiles of
    256, which are slower to multiply and have to be merged: its forward is 1.15 times as fast as in tiles of 512, its
    gradient as fast. Of 512 queries, in two bands, the forward is 1.1 and the gradient 1.2 times as fast as in one
    tile. Each band is a program of its own: four compile in 1.1 s of CPU time, the loop over tiles in 0.6. So a
    derivative has two at most. Where 64 does not divide the keys, the forward is cut as its derivatives are: products
    of other sizes are rounded otherwise, and a weight would be off by as much as its score (L8;
    ``key_major_products``).
    """
    T, S, size = operands.query.shape[-2], operands.key.shape[-2], plan.limits.band
    most = min(BANDS.values()) if S % 64 else most
    if not size < max(T, S) <= most * size:
        return []
    axes, itemsize = _axes(operands, plan), operands.compute_dtype().itemsize
    kinds = kinds_of_tiles(operands.mask, Grid(axes, axes, T, S, min(T, size), min(S, size)))[0]
    bands = []
    for block, used in enumerate(kinds != EMPTY):
        blocks = np.flatnonzero(used) if used.any() else [0]
        row, column = int(block * size), int(blocks[0] * size)
        rows, columns = min(T - row, size), int(min(S, (blocks[-1] + 1) * size)) - column
        chunk_sizes = _chunk_sizes(axes, plan.limits.bytes // (itemsize * rows * columns))
        grid = Grid(axes, chunk_sizes, T, S, rows, columns, len(plan.batch))
        bands.append(Visits(grid, np.array([(row, column, row, column)], np.int32)))
    done = sum(band.grid.rows * band.grid.columns for band in bands)
    return bands if done <= MOST_OF_ALL * T * S else []


def _axes(operands: Operands, plan: Plan) -> tuple[int, ...]:
    """The leading axes, G, and how many query heads share a key head."""
    N, G = operands.query.shape[-3], operands.key.shape[-3]
    return *plan.leading(operands), G, N // G


def _chunk_sizes(axes: tuple[int, ...], room: int) -> tuple[int, ...]:
    """How much of each axis to take, the last ones first, so that at most ``room`` entries are taken, at least one."""
    chunk_sizes: list[int] = []
    for size in reversed(axes):
        known = min(size, max(1, room)) if isinstance(size, int) else 1
        piece = max(n for n in range(1, known + 1) if size % n == 0)
        room = room // piece if piece == size else 1
        chunk_sizes.insert(0, piece)
    return tuple(chunk_sizes)


def _even(size: int, most: int) -> int:
    """A block of at most ``most``, as even as ``size`` allows."""
    blocks = -(-size // most)
    return -(-size // blocks)


def _band(mask: Mask | None) -> int | None:
    """The most keys that a query may see, where the mask is a window or an ``and`` with one; None for other masks."""
    if mask is None or mask.kind not in ("and", "window"):
        return None
    if mask.kind == "and":
        return min((band for band in map(_band, mask.arrays) if band is not None), default=None)
    _, left, right = mask.settings  # None, too, where it is an array
    return None if left is None or right is None else left + right + 1


def _reach(mask: Mask | None) -> tuple[int | None, int | None]:
    """The least and the largest ``j - i`` of a pair that windows of a known mask may allow; None: without an end."""
    if mask is None or mask.kind not in ("and", "window"):
        return None, None
    if mask.kind == "and":
        ends = [_reach(part) for part in mask.arrays]
        lows, highs = ([x for x in side if x is not None] for side in zip(*ends, strict=True))
        return max(lows, default=None), min(highs, default=None)
    offset, left, right = mask.settings
    return None if left is None else offset - left, None if right is None else offset + right


def _uncut_axes(operands: Operands, plan: Plan) -> int:
    """How many of the last axes a tile must not cut.

    All axes if XLA partitions the program, because XLA cannot partition a loop over them. All but vmap's axes if there
    is a function of a user, because it may read arrays of its own.
    """
    if plan.devices > 1:
        return len(_axes(operands, plan))
    reads = any(map(has_function, (operands.mask, operands.score_mod)))
    return len(_axes(operands, plan)) - len(plan.batch) if reads else 0


def every_tile(grid: Grid) -> np.ndarray:
    """The starts of all tiles of a grid, (row_blocks, column_blocks, 4); see ``Visits``."""
    if grid.is_symbolic:  # one tile
        return np.zeros((1, 1, 4), np.int32)
    i = np.arange(grid.row_blocks)[:, None] * grid.rows
    j = np.arange(grid.column_blocks)[None] * grid.columns
    starts = np.minimum(i, grid.T - grid.rows), np.minimum(j, grid.S - grid.columns)
    return np.stack(np.broadcast_arrays(*starts, i, j), axis=-1).astype(np.int32)


def visits_of(mask: Mask | None, grid: Grid, *, backward: bool = False, static: bool = False) -> Visits:
    """The tiles of a grid in which the mask allows a pair, row by row; all tiles of the grid if ``static``.

    Args:
        mask: of the rank of the scores.
        grid: the tiles.
        backward: whether tiles are visited column by column.
        static: whether the loop must have a length that is known.
    """
    starts = every_tile(grid)
    used: Any = np.ones((1, *starts.shape[:2]), bool)
    if mask is not None and not static and not grid.is_symbolic:
        used = kinds_of_tiles(mask, grid, ask=True) != EMPTY
    if backward:
        starts, used = starts.swapaxes(0, 1), used.swapaxes(1, 2)
    starts = starts.reshape(-1, 4)
    if isinstance(used, np.ndarray):
        return Visits(grid, starts[used.reshape(-1)])
    used = jnp.broadcast_to(used.reshape(used.shape[0], -1), (grid.chunks, len(starts))).reshape(-1)
    numbers = jnp.arange(used.shape[0], dtype=jnp.int32)
    order = jnp.sort(jnp.where(used, numbers, used.shape[0]))
    return Visits(grid, starts, order, jnp.sum(used, dtype=jnp.int32))


def kinds_of_tiles(mask: Mask | None, grid: Grid, *, ask: bool = False) -> Any:
    """For each tile EMPTY, PARTIAL or FULL: (chunks or 1, row_blocks, column_blocks).

    Loops leave out empty tiles, and evaluate the mask in all others. PARTIAL and FULL are told apart for ``explain``.
    With ``ask``, a function of a user is asked for each tile in which the rest of the mask may allow a pair; without,
    it counts as one that may allow any.

    A NumPy array, known before anything runs, where the mask has no arrays, and no function is asked.
    """
    if mask is None:
        return np.full((1, grid.row_blocks, grid.column_blocks), FULL)
    xp: Any = jnp if jax.tree.leaves((mask, grid.positions)) else np
    i0, j0, _, _ = np.moveaxis(every_tile(grid).astype(int), -1, 0)
    i0, j0 = i0[:, :1], j0[:1]
    least_and_largest = functools.partial(_least_and_largest, grid=grid, i0=i0[:, 0], j0=j0[0])
    i = _ends(i0, grid.rows, grid.positions.queries)
    j = _ends(j0, grid.columns, grid.positions.keys)
    some, every = mask.map(least_and_largest).bounds(i, j, xp)
    if ask and has_function(mask) and grid.row_blocks * grid.column_blocks >= WORTH_ASKING:
        xp, open_tiles = jnp, some.reshape(-1, *some.shape[-2:]).any(0)
        answered = mask.map(lambda part: _answers(part, grid, open_tiles))
        some, every = answered.map(least_and_largest).bounds(i, j, xp)
    some, every = (_of_chunks(*pair, grid, xp) for pair in ((some, xp.any), (every, xp.all)))
    return xp.where(some, xp.where(every, FULL, PARTIAL), EMPTY)


def _answers(part: Mask, grid: Grid, open_tiles: Array | np.ndarray) -> Mask:
    """What a function says of each tile, as the least and the largest of its truth values; of open tiles alone."""
    if part.kind != "function":
        return part
    starts = jnp.asarray(every_tile(grid)[..., :2].reshape(-1, 2))
    is_open = jnp.broadcast_to(jnp.asarray(open_tiles), (grid.row_blocks, grid.column_blocks)).reshape(-1)

    def of_tiles(arrays: tuple) -> tuple[Array, Array]:
        def answer(start: Array) -> tuple[Array, Array]:
            _, i, j = Tile(grid, (0,) * len(grid.axes), *start).positions(3)
            found = Mask(part.kind, arrays, part.settings).allowed(i[0], j[0], jnp)
            return found.all((-2, -1)), found.any((-2, -1))

        shapes = jax.eval_shape(answer, starts[0])
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, bool), shapes)
        found = lax.map(lambda tile: lax.cond(tile[0], answer, lambda _: nothing, tile[1]), (is_open, starts))
        rank = grid.rank - grid.batch

        def placed(x: Array) -> Array:
            lead = (1,) * (rank - 1 - x.ndim) + x.shape[1:]
            return jnp.moveaxis(x, 0, -1).reshape(*lead, grid.row_blocks, grid.column_blocks)

        return jax.tree.map(placed, found)

    if not jax.tree.leaves(part.arrays):
        pair = jax.tree.map(lambda x: x.reshape((1,) * (grid.rank - x.ndim) + x.shape), of_tiles(part.arrays))
    else:
        for _ in range(grid.batch):
            of_tiles = jax.vmap(of_tiles)
        pair = of_tiles(part.arrays)
    return Mask("answered", (pair,))


def _ends(firsts: np.ndarray, size: int, place: Array | None) -> tuple[Any, Any]:
    """The least and the largest position of each block, in the shape of ``firsts``; see ``Positions``."""
    if place is None or not jnp.ndim(place):
        firsts = firsts if place is None else firsts.astype(place.dtype) + place
        return firsts, firsts + size - 1
    blocks = place[firsts.reshape(-1, 1) + np.arange(size)]
    return blocks.min(-1).reshape(firsts.shape), blocks.max(-1).reshape(firsts.shape)


def _least_and_largest(part: Mask, *, grid: Grid, i0: np.ndarray, j0: np.ndarray) -> Mask:
    """Ids and truth values as a pair of the least and the largest in each tile."""

    def reduced(x, reduce):
        for axis, starts, size in ((x.ndim - 2, i0, grid.rows), (x.ndim - 1, j0, grid.columns)):
            if x.shape[axis] > 1:
                blocks = lax.map(
                    lambda start, x=x, a=axis, s=size: reduce(lax.dynamic_slice_in_dim(x, start, s, a), axis=a),
                    jnp.asarray(starts),
                )
                x = jnp.moveaxis(blocks, 0, axis)
        return x

    if part.kind not in ("segments", "dense"):
        return part
    least, largest = (jnp.all, jnp.any) if part.kind == "dense" else (jnp.min, jnp.max)
    return dataclasses.replace(part, arrays=tuple((reduced(x, least), reduced(x, largest)) for x in part.arrays))


def _of_chunks(x: Array | np.ndarray, reduce: Callable, grid: Grid, xp: ModuleType) -> Any:
    """Truth values of tiles, (row_blocks, column_blocks) or (..., N or 1, row_blocks, column_blocks), by chunk."""
    if x.ndim == 2:
        return x[None]
    *leading, heads, groups = grid.chunk_counts
    for axis, (count, piece) in enumerate(zip((*leading, heads * groups), grid.heads, strict=True)):
        if x.shape[axis] == 1:
            x = xp.broadcast_to(x, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
        else:
            x = reduce(x.reshape(*x.shape[:axis], count, piece, *x.shape[axis + 1 :]), axis=axis + 1)
    return xp.broadcast_to(x, (*x.shape[:-2], grid.row_blocks, grid.column_blocks)).reshape(
        grid.chunks, grid.row_blocks, grid.column_blocks
    )


def rematerialized(plan: Plan, function: Callable[..., Tree], *arrays: Index) -> Tree:
    """``function(*arrays)``; reverse mode saves no intermediate, and computes it again, tile by tile (L16)."""
    if not plan.reversible or jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return function(*arrays)  # a checkpoint would be traced, and without jit compiled, for nothing
    return jax.checkpoint(function, prevent_cse=False)(*arrays)


def loop(count: Index, body: Callable[[Index, Tree], Tree], carry: Tree) -> Tree:
    """``carry = body(index, carry)``, ``count`` times; without a loop where that is once."""
    if is_one(count):
        return body(0, carry)
    if isinstance(count, int) and count == 0:
        return carry
    return lax.fori_loop(0, count if isinstance(count, int) else jnp.asarray(count, jnp.int32), body, carry)
