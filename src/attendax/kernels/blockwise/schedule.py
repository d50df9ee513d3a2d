"""Which tiles a loop visits: those of which the mask leaves something, known before anything runs or not."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax.masks import Mask

from .tiles import Grid, Tile, divided, is_one

SKIPPED, MASKED, OPEN = 0, 1, 2


def once_more(function: Callable[..., Any], *arrays: Any) -> Any:
    """``function(*arrays)``, of which reverse mode keeps nothing: it is computed again there, tile by tile (L16)."""
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return function(*arrays)  # a checkpoint would trace, and compile each of its loops
    return jax.checkpoint(function, prevent_cse=False)(*arrays)


def repeat(count: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    """``carry = body(index, carry)``, ``count`` times; without a loop where that is once."""
    if is_one(count):
        return body(0, carry)
    if isinstance(count, int) and count == 0:
        return carry
    return lax.fori_loop(0, count if isinstance(count, int) else jnp.asarray(count, jnp.int32), body, carry)


@dataclasses.dataclass(frozen=True)
class Visits:
    """The tiles of one size that one loop visits, chunk by chunk.

    ``places`` has a row for each tile of a chunk: its first query and key, and the first query and key that count. (Of
    a size that does not divide, the last tile starts earlier, and leaves out what the one before has.) Where it depends
    on arrays which tiles are visited, ``order`` holds the numbers of those, chunk by chunk, and ``found`` how many.
    """

    grid: Grid
    places: np.ndarray
    order: Array | None = None
    found: Any = None

    @property
    def count(self) -> Any:
        """How many tiles are visited."""
        return self.grid.chunks * len(self.places) if self.order is None else self.found

    @property
    def rows_are_whole(self) -> bool:
        """Whether each row of scores is in one tile."""
        return len(np.unique(self.places[:, 0])) == len(self.places)

    def tile(self, index: Any, *, rows_once: bool = True) -> Tile:
        """The tile that is visited then; unless ``rows_once``, all of its queries count."""
        number = index if self.order is None else self.order[index]
        chunk, place = divided(number, len(self.places))
        at = [int(x[0]) if (x == x[0]).all() else jnp.asarray(x)[place] for x in self.places.T]
        new_row, new_column = (at[k + 2] if (self.places[:, k + 2] > self.places[:, k]).any() else None for k in (0, 1))
        return Tile(self.grid, self.grid.starts(chunk), at[0], at[1], new_row if rows_once else None, new_column)


def every_tile(grid: Grid) -> np.ndarray:
    """The places of all tiles of a grid, (row_blocks, column_blocks, 4); see ``Visits``."""
    i = np.arange(grid.row_blocks)[:, None] * grid.rows
    j = np.arange(grid.column_blocks)[None] * grid.columns
    starts = np.minimum(i, grid.T - grid.rows), np.minimum(j, grid.S - grid.columns)
    return np.stack(np.broadcast_arrays(*starts, i, j), axis=-1).astype(np.int32)


def visits_of(mask: Mask | None, grid: Grid, *, backward: bool = False, static: bool = False) -> Visits:
    """The tiles of a grid of which the mask leaves something, a row of them before the next; all of them if ``static``.

    Args:
        mask: of the rank of the scores.
        grid: the tiles.
        backward: whether a column of tiles is visited before the next.
        static: whether the loop must have a length that is known.
    """
    used: Any = np.ones((1, grid.row_blocks, grid.column_blocks), bool)
    if mask is not None and not static:
        used = kinds_of_tiles(mask, grid) != SKIPPED
    places = every_tile(grid)
    if backward:
        places, used = places.swapaxes(0, 1), used.swapaxes(1, 2)
    places = places.reshape(-1, 4)
    if isinstance(used, np.ndarray):
        return Visits(grid, places[used.reshape(-1)])
    used = jnp.broadcast_to(used.reshape(used.shape[0], -1), (grid.chunks, len(places))).reshape(-1)
    numbers = jnp.arange(used.shape[0], dtype=jnp.int32)
    order = jnp.sort(jnp.where(used, numbers, used.shape[0]))
    return Visits(grid, places, order, jnp.sum(used, dtype=jnp.int32))


def kinds_of_tiles(mask: Mask | None, grid: Grid) -> Any:
    """For each tile SKIPPED, MASKED or OPEN: (chunks or 1, row_blocks, column_blocks).

    A NumPy array, known before anything runs, where the mask has no arrays.
    """
    if mask is None:
        return np.full((1, grid.row_blocks, grid.column_blocks), OPEN)
    xp: Any = jnp if jax.tree.leaves((mask, grid.places)) else np
    i0, j0, _, _ = np.moveaxis(every_tile(grid).astype(int), -1, 0)
    i0, j0 = i0[:, :1], j0[:1]
    least_and_largest = functools.partial(_least_and_largest, grid=grid, i0=i0[:, 0], j0=j0[0])
    i = _ends(i0, grid.rows, grid.places.queries)
    j = _ends(j0, grid.columns, grid.places.keys)
    some, every = mask.map(least_and_largest).bounds(i, j, xp)
    some, every = (_of_chunks(*pair, grid, xp) for pair in ((some, xp.any), (every, xp.all)))
    return xp.where(some, xp.where(every, OPEN, MASKED), SKIPPED)


def _ends(firsts: np.ndarray, size: int, place: Any) -> tuple[Any, Any]:
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


def _of_chunks(x: Any, reduce: Callable, grid: Grid, xp: Any) -> Any:
    """Truth values of tiles, (row_blocks, column_blocks) or (..., N or 1, row_blocks, column_blocks), by chunk."""
    if x.ndim == 2:
        return x[None]
    *leading, heads, groups = grid.counts
    for axis, (count, piece) in enumerate(zip((*leading, heads * groups), grid.heads, strict=True)):
        if x.shape[axis] == 1:
            x = xp.broadcast_to(x, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
        else:
            x = reduce(x.reshape(*x.shape[:axis], count, piece, *x.shape[axis + 1 :]), axis=axis + 1)
    return xp.broadcast_to(x, (*x.shape[:-2], grid.row_blocks, grid.column_blocks)).reshape(
        grid.chunks, grid.row_blocks, grid.column_blocks
    )
