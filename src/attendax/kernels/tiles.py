"""How the scores (..., N, T, S) are cut into tiles, which tiles a mask leaves out, and how loops run over the rest.

A chunk is a few batches and heads; a tile is the scores of a chunk between a block of queries and a block of keys. The
last block of an axis that does not divide starts earlier, so that all have one size; what it shares with the block
before must then not count twice.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax.masks import Mask

SKIPPED, MASKED, OPEN = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Grid:
    """Sizes of the scores and of a tile.

    ``axes`` are the sizes of the leading axes, the first ``batch`` of them from vmap, of G, and how many query heads
    share a key head; ``pieces`` is how much of each a chunk takes: of query heads that share a key head all, or some of
    a single key head. A tile has ``rows`` of the T queries and ``columns`` of the S keys.
    """

    axes: tuple[int, ...]
    pieces: tuple[int, ...]
    T: int
    S: int
    rows: int
    columns: int
    batch: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """How many pieces each of ``axes`` has."""
        return tuple(size // piece for size, piece in zip(self.axes, self.pieces, strict=True))

    @property
    def group(self) -> int:
        """How many query heads share a key head in a chunk."""
        return self.pieces[-1]

    @property
    def heads(self) -> tuple[int, ...]:
        """The leading axes and query heads that a chunk takes."""
        return *self.pieces[:-2], self.pieces[-2] * self.group

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return math.prod(self.counts)

    @property
    def row_blocks(self) -> int:
        """How many blocks of queries there are."""
        return -(-self.T // self.rows)

    @property
    def column_blocks(self) -> int:
        """How many blocks of keys there are."""
        return -(-self.S // self.columns)

    @property
    def rank(self) -> int:
        """How many axes the scores have."""
        return len(self.axes) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the scores of a tile."""
        return *self.heads, self.rows, self.columns

    def tile(self, chunk: Any, row: Any, column: Any) -> "Tile":
        """The tile of a chunk, a block of queries and a block of keys, by their numbers."""
        starts: list[Any] = []
        rest = chunk
        for count, piece in zip(self.counts[::-1], self.pieces[::-1], strict=True):
            starts.insert(0, 0 if is_one(count) else rest % count * piece)
            rest = rest if is_one(count) else rest // count
        i = _start(row, self.rows, self.row_blocks, self.T)
        j = _start(column, self.columns, self.column_blocks, self.S)
        return Tile(self, tuple(starts), i, j, row, column)


def _start(block: Any, size: int, blocks: int, full: int) -> Any:
    """Where a block starts: the last one early enough to be whole."""
    if blocks == 1:
        return 0
    return block * size if full % size == 0 else jnp.minimum(block * size, full - size)


@dataclasses.dataclass(frozen=True)
class Band:
    """Some queries and all the keys that they may see: one tile of each chunk, from ``row`` and ``column`` on."""

    grid: Grid
    row: int
    column: int

    def tile(self, chunk: Any) -> "Tile":
        """The tile of a chunk."""
        starts = self.grid.tile(chunk, 0, 0).starts
        return Tile(self.grid, starts, self.row, self.column, None, None)


@dataclasses.dataclass(frozen=True)
class Tile:
    """Where a tile lies. Its methods cut arrays to it: axes that are 1, or that the tile takes whole, stay.

    ``row_block`` and ``column_block`` are the numbers of its blocks, None in a band.
    """

    grid: Grid
    starts: tuple[Any, ...]
    row: Any
    column: Any
    row_block: Any
    column_block: Any

    def first_head(self) -> Any:
        """The first query head of the tile."""
        return self.starts[-2] * self.grid.axes[-1] + self.starts[-1]

    def positions(self, rank: int) -> tuple[Array, Array, Array]:
        """The positions n, i, j of heads, queries and keys: (..., N, 1, 1), (..., 1, rows, 1), (..., 1, 1, columns)."""
        first = self.first_head(), self.row, self.column
        starts_and_sizes = zip(first, self.grid.shape[-3:], strict=True)
        return tuple(
            (start + jnp.arange(size)).reshape(*(-1 if other == axis else 1 for other in range(-rank, 0)))
            for axis, (start, size) in zip((-3, -2, -1), starts_and_sizes, strict=True)
        )

    def cut(self, role: str, x: Array) -> Array:
        """The part of an array that lies in the tile; see ``where``."""
        starts, sizes = self.where(role, x.shape)
        return x if sizes == x.shape else lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)

    def put(self, role: str, buffer: Array, x: Array) -> Array:
        """Write x into that part."""
        starts, sizes = self.where(role, buffer.shape)
        if sizes == buffer.shape:
            return x
        return lax.dynamic_update_slice(buffer, x, starts, allow_negative_indices=False)

    def add(self, role: str, buffer: Array, x: Array) -> Array:
        """Add x to that part, summed over the axes along which the buffer is 1: the transpose of ``cut``."""
        return self.put(role, buffer, self.cut(role, buffer) + folded(x, buffer.shape))

    def where(self, role: str, shape: tuple[int, ...]) -> tuple[list[Any], tuple[int, ...]]:
        """Where an array starts to lie in the tile, and how much of it does; an axis of 1 is taken as it is.

        Args:
            role: "queries" (..., N, T, .), "keys" (..., G, S, .), "pairs" (..., N, T, S), or "own": only the axes from
                vmap are those of the grid.
            shape: of the array.
        """
        grid = self.grid
        *leading, shared, _ = zip(self.starts, grid.pieces, strict=True)
        queries, keys = (self.row, grid.rows), (self.column, grid.columns)
        many = self.first_head(), grid.heads[-1]
        own = [(0, size) for size in shape]
        ends = {
            "queries": [*leading, many, queries, own[-1]] if own else [],
            "keys": [*leading, shared, keys, own[-1]] if own else [],
            "pairs": [*leading, many, queries, keys],
            "own": [*leading[: grid.batch], *own[grid.batch :]],
        }
        sizes = tuple(1 if full == 1 else size for full, (_, size) in zip(shape, ends[role], strict=True))
        starts = [
            np.int32(0) if size == full else _as_int32(start)
            for full, size, (start, _) in zip(shape, sizes, ends[role], strict=True)
        ]
        return starts, sizes


def folded(x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` summed over the axes along which ``shape`` is 1."""
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] > 1)
    return x.sum(repeated, keepdims=True) if repeated else x


def _as_int32(index: Any) -> Any:
    return np.int32(index) if isinstance(index, int) else jnp.asarray(index, jnp.int32)


def once_more(function: Callable[..., Any], *arrays: Any) -> Any:
    """``function(*arrays)``, of which reverse mode keeps nothing: it is computed again there, tile by tile (L16)."""
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return function(*arrays)  # a checkpoint would trace, and compile each of its loops
    return jax.checkpoint(function, prevent_cse=False)(*arrays)


def repeat(count: int, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    """``carry = body(index, carry)``, ``count`` times; without a loop where that is once."""
    if is_one(count):
        return body(0, carry)
    return lax.fori_loop(0, count if isinstance(count, int) else jnp.asarray(count, jnp.int32), body, carry)


def is_one(size: Any) -> bool:
    """Whether a size is 1; one that only an exported program will know is not (``jax.export``)."""
    return isinstance(size, int) and size == 1


def kinds_of_tiles(mask: Mask | None, grid: Grid, *, rows_count_once: bool = False) -> Any:
    """For each tile SKIPPED, MASKED or OPEN: (chunks or 1, row_blocks, column_blocks).

    A NumPy array, known before anything runs, where the mask has no arrays. A tile with keys, or with
    ``rows_count_once`` queries, that the tile before has too is never OPEN.
    """
    xp: Any = jnp if mask is not None and jax.tree.leaves(mask) else np
    i0 = np.minimum(np.arange(grid.row_blocks) * grid.rows, grid.T - grid.rows)[:, None]
    j0 = np.minimum(np.arange(grid.column_blocks) * grid.columns, grid.S - grid.columns)[None]
    once = (j0 % grid.columns == 0) & ((i0 % grid.rows == 0) | (not rows_count_once))
    if mask is None:
        return np.where(once, OPEN, MASKED)[None]
    least_and_largest = functools.partial(_least_and_largest, grid=grid, i0=i0[:, 0], j0=j0[0])
    i, j = (i0, i0 + grid.rows - 1), (j0, j0 + grid.columns - 1)
    some, every = mask.map(least_and_largest).bounds(i, j, xp)
    kinds = [_of_chunks(*pair, grid, xp) for pair in ((some, xp.any), (every, xp.all))]
    return xp.where(kinds[0], xp.where(kinds[1] & once[None], OPEN, MASKED), SKIPPED)


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


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Which tiles a loop over the inner axis of ``kinds`` (chunks or 1, outer, inner) visits."""

    kinds: Any

    def visit(self, chunk: Any, outer: Any, work: Callable, add: Callable, carry: Any, nothing: Callable) -> Any:
        """For every inner block that is not SKIPPED: ``carry = add(inner, carry, work(inner, is_open))``.

        A tile that is skipped costs a comparison, and adds what ``nothing()`` returns in place of ``work``.
        """
        known = isinstance(self.kinds, np.ndarray)
        first, count = self._extent() if known else (np.zeros(self.kinds.shape[1], int), self.kinds.shape[2])
        if count == 0:
            return carry
        last = self.kinds.shape[2] - 1
        ragged = known and bool((first + count - 1 > last).any())
        values = set(np.unique(self.kinds)) if known else {SKIPPED, MASKED, OPEN}
        kinds, firsts = jnp.asarray(self.kinds), jnp.asarray(first)
        whole = kinds.shape[0] == 1
        visited = sorted(self._visited(first, count) if known else values)

        def step(t, carry):
            inner = t if not first.any() else jnp.minimum(firsts[outer] + t, last)
            kind = kinds[0 if whole else chunk, outer, inner] if len(visited) > 1 else visited[0]
            if ragged:
                kind = jnp.where(firsts[outer] + t > last, SKIPPED, kind)
            return add(inner, carry, self._branch(kind, visited, functools.partial(work, inner), nothing))

        return repeat(count, step, carry)

    @staticmethod
    def _branch(kind: Any, visited: list[int], work: Callable, nothing: Callable) -> Any:
        if len(visited) == 1:
            return work(visited[0] == OPEN)
        choices = {SKIPPED: nothing, MASKED: lambda: work(False), OPEN: lambda: work(True)}
        index = sum(jnp.int32(kind > low) for low in visited[:-1])
        return lax.switch(index, [choices[value] for value in visited])

    def _extent(self) -> tuple[np.ndarray, int]:
        """For each outer block the first inner one that is not skipped, and how many at most there are from it on."""
        used = (self.kinds != SKIPPED).any(axis=0)
        first = np.where(used.any(axis=1), used.argmax(axis=1), 0)
        end = np.where(used.any(axis=1), used.shape[1] - used[:, ::-1].argmax(axis=1), 0)
        return first, int((end - first).max(initial=0))

    def _visited(self, first: np.ndarray, count: int) -> set[int]:
        last = self.kinds.shape[2] - 1
        inner = first[:, None] + np.arange(count)
        values = np.take_along_axis(self.kinds, np.minimum(inner, last)[None], axis=2)
        return set(np.where(inner[None] > last, SKIPPED, values).ravel().tolist())
