"""The cut of scores into tiles, and the order in which loops visit the tiles in which the mask allows a pair."""

import dataclasses
import functools
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax.masks import Mask

from ..functions import has_function
from ..operands import Index, Limits, Operands, Plan
from .tiles import Grid, Tile, divided, is_one, mask_in_tile

Tree = TypeVar("Tree")

LIMITS = Limits(rows=512, columns=512, bytes=2**21)
ACCELERATOR = Limits(rows=1024, columns=1024, bytes=2**28)  # within 6 % of the best (benchmarks/results/gpu)
LIMITS_ON = {"cpu": LIMITS, "cuda": ACCELERATOR, "rocm": ACCELERATOR, "tpu": ACCELERATOR}
WORTH_ASKING = 4  # tiles: of fewer, none would be left out
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
        """The number of tiles that are visited."""
        return self.grid.chunks * len(self.starts) if self.order is None else self.found

    def tile(self, index: Index, *, rows_once: bool = True) -> Tile:
        """The tile of visit ``index``; unless ``rows_once``, all of its queries count."""
        number = index if self.order is None else self.order[index]
        chunk, place = divided(number, len(self.starts))
        at = [int(x[0]) if (x == x[0]).all() else jnp.asarray(x)[place] for x in self.starts.T]
        new_row, new_column = (at[k + 2] if (self.starts[:, k + 2] > self.starts[:, k]).any() else None for k in (0, 1))
        return Tile(self.grid, self.grid.starts(chunk), at[0], at[1], new_row if rows_once else None, new_column)


def grid_of(operands: Operands, plan: Plan) -> Grid:
    """The grid for the arrays of a call; see ``choose``."""
    axes, T, S = _axes(operands, plan), operands.query.shape[-2], operands.key.shape[-2]
    if plan.limits is None:
        grid = Grid(axes, axes, T, S, T, S, len(plan.batch))
    else:
        limits = plan.limits._replace(bytes=plan.limits.bytes * plan.devices)
        sizes, uncut = (axes, T, S, operands.compute_dtype().itemsize), _uncut_axes(operands, plan)
        grid = choose(*sizes, limits, masked=operands.mask is not None, uncut=uncut, batch=len(plan.batch))
    return dataclasses.replace(grid, positions=operands.positions)


def choose(
    axes: tuple[int, ...], T: int, S: int, itemsize: int, limits: Limits = LIMITS, *, masked: bool = False,
    uncut: int = 0, batch: int = 0,
) -> Grid:  # fmt: skip
    """The grid for scores of these sizes.

    Args:
        axes: the leading axes, G, and how many query heads share a key head.
        T, S: queries and keys.
        itemsize: bytes of a score.
        limits: of a tile. One of few queries has as many more keys: to cut keys copies them.
        masked: whether there is a mask, which may leave tiles out; then a tile has no more keys than its limit.
        uncut: the last so many of ``axes`` must not be cut, because a function reads them.
        batch: how many of ``axes`` come from vmap.
    """
    budget = max(1, limits.bytes // itemsize)
    outside = len(axes) - uncut
    heads = math.prod(size for size in axes[outside:] if isinstance(size, int))
    columns = limits.columns if masked else limits.columns * max(1, limits.rows // max(1, T))
    columns = _even(S, min(columns, max(LEAST, budget // max(1, heads))))
    rows = _even(T, min(limits.rows, max(LEAST, budget // max(1, heads * columns))))
    chunk_sizes = *_chunk_sizes(axes[:outside], budget // (heads * rows * columns)), *axes[outside:]
    return Grid(axes, chunk_sizes, T, S, rows, columns, batch)


def _axes(operands: Operands, plan: Plan) -> tuple[int, ...]:
    """The leading axes, G, and how many query heads share a key head."""
    N, G = operands.query.shape[-3], operands.key.shape[-3]
    return *plan.leading(operands), G, N // G


def _chunk_sizes(axes: tuple[int, ...], room: int) -> tuple[int, ...]:
    """The part of each axis to take, the last ones first, so that at most ``room`` entries are taken, at least one."""
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


def _uncut_axes(operands: Operands, plan: Plan) -> int:
    """The number of the last axes that a tile must not cut.

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


def visits_of(operands: Operands, plan: Plan) -> Visits:
    """The tiles in which the mask of a call allows a pair, row by row.

    All tiles if reverse mode goes through the loop: it needs one whose length is known.
    """
    grid, mask = grid_of(operands, plan), operands.mask
    starts = every_tile(grid)
    used: Any = np.ones((1, *starts.shape[:2]), bool)
    if mask is not None and not plan.reversible and not grid.is_symbolic:
        used = kinds_of_tiles(mask, grid, ask=True) != EMPTY
    starts = starts.reshape(-1, 4)
    if isinstance(used, np.ndarray):
        return Visits(grid, starts[used.reshape(-1)])
    used = jnp.broadcast_to(used.reshape(used.shape[0], -1), (grid.chunks, len(starts))).reshape(-1)
    numbers = jnp.arange(used.shape[0], dtype=jnp.int32)
    order = jnp.sort(jnp.where(used, numbers, used.shape[0]))
    return Visits(grid, starts, order, jnp.sum(used, dtype=jnp.int32))


def kinds_of_tiles(mask: Mask | None, grid: Grid, *, ask: bool = False) -> Any:
    """The kind of each tile, EMPTY, PARTIAL or FULL: (chunks or 1, row_blocks, column_blocks).

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
    """Answers of a function for each tile, as the least and the largest of its truth values; of open tiles alone."""
    if part.kind != "function":
        return part
    starts = jnp.asarray(every_tile(grid)[..., :2].reshape(-1, 2))
    is_open = jnp.broadcast_to(jnp.asarray(open_tiles), (grid.row_blocks, grid.column_blocks)).reshape(-1)
    whole = dataclasses.replace(grid, chunk_sizes=grid.axes)

    def answer(start: Array) -> tuple[Array, Array]:
        (found,) = mask_in_tile(part, Tile(whole, (0,) * len(grid.axes), *start)).arrays
        return found.all((-2, -1)), found.any((-2, -1))

    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, bool), jax.eval_shape(answer, starts[0]))
    found = lax.map(lambda tile: lax.cond(tile[0], answer, lambda _: nothing, tile[1]), (is_open, starts))
    pair = (jnp.moveaxis(x, 0, -1).reshape(*x.shape[1:], grid.row_blocks, grid.column_blocks) for x in found)
    return Mask("answered", (tuple(pair),))


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
                block = functools.partial(lax.dynamic_slice_in_dim, x, slice_size=size, axis=axis)
                blocks = lax.map(lambda start, b=block, a=axis: reduce(b(start), axis=a), jnp.asarray(starts))
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
    tiles = grid.row_blocks, grid.column_blocks
    return xp.broadcast_to(x, (*x.shape[:-2], *tiles)).reshape(grid.chunks, *tiles)


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
