"""The cut of scores (..., N, T, S) into tiles, and of arrays to a tile.

A chunk is a few batches and heads; a tile is the scores of a chunk between a block of queries and a block of keys. The
last block of an axis that does not divide starts earlier, so that all have one size; what it shares with the block
before must then not count twice.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax.mask_kinds import lifted
from attendax.masks import Mask

from ..numerics import folded
from ..operands import Index, Positions


@dataclasses.dataclass(frozen=True)
class Grid:
    """Sizes of the scores and of a tile.

    ``axes`` are the sizes of the leading axes, the first ``batch`` of them from vmap, of G, and how many query heads
    share a key head; ``chunk_sizes`` is how much of each a chunk takes: of query heads that share a key head all, or
    some of a single key head. A tile has ``rows`` of the T queries and ``columns`` of the S keys.
    """

    axes: tuple[int, ...]
    chunk_sizes: tuple[int, ...]
    T: int
    S: int
    rows: int
    columns: int
    batch: int = 0
    positions: Positions = dataclasses.field(default=Positions(), compare=False)  # of queries, keys and heads

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """The number of chunks along each of ``axes``."""
        return tuple(size // piece for size, piece in zip(self.axes, self.chunk_sizes, strict=True))

    @property
    def heads(self) -> tuple[int, ...]:
        """The leading axes and query heads that a chunk takes."""
        return *self.chunk_sizes[:-2], math.prod(self.chunk_sizes[-2:])

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return math.prod(self.chunk_counts)

    @property
    def row_blocks(self) -> int:
        """The number of blocks of queries."""
        return -(-self.T // self.rows)

    @property
    def column_blocks(self) -> int:
        """The number of blocks of keys."""
        return -(-self.S // self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the scores of a tile."""
        return *self.heads, self.rows, self.columns

    @property
    def is_symbolic(self) -> bool:
        """Tell whether T or S is a size that only an exported program will know (``jax.export``); it is one tile."""
        return not (isinstance(self.T, int) and isinstance(self.S, int))

    @property
    def in_order(self) -> bool:
        """Tell whether queries and keys that follow each other stand side by side."""
        return not any(place is not None and jnp.ndim(place) for place in self.positions)

    def starts(self, chunk: Index) -> tuple[Any, ...]:
        """The start of a chunk along each of ``axes``."""
        starts: list[Any] = []
        for count, piece in zip(self.chunk_counts[::-1], self.chunk_sizes[::-1], strict=True):
            chunk, place = divided(chunk, count)
            starts.insert(0, place * piece)
        return tuple(starts)


@dataclasses.dataclass(frozen=True)
class Tile:
    """The place of a tile. Its methods cut arrays to it: axes that are 1, or that the tile takes whole, stay.

    ``row`` and ``column`` are its first query and key; ``new_row`` and ``new_column`` the first that count, None: all.
    """

    grid: Grid
    starts: tuple[Index, ...]
    row: Index
    column: Index
    new_row: Index | None = None
    new_column: Index | None = None

    def first_head(self) -> Index:
        """The first query head of the tile."""
        return self.starts[-2] * self.grid.axes[-1] + self.starts[-1]

    def positions(self, rank: int) -> tuple[Array, Array, Array]:
        """The positions n, i, j of heads, queries and keys: (..., N, 1, 1), (..., 1, rows, 1), (..., 1, 1, columns)."""
        return self._along_axes(rank, self.grid.positions)

    def numbers(self, rank: int) -> tuple[Array, Array, Array]:
        """The positions as ``positions`` has them, counted from the first head, query and key of this device."""
        return self._along_axes(rank, Positions())

    def _along_axes(self, rank: int, positions: Positions) -> tuple[Any, ...]:
        firsts, sizes = (self.first_head(), self.row, self.column), self.grid.shape[-3:]
        found = map(_positions_from, firsts, sizes, positions)
        shapes = ((-1 if other == axis else 1 for other in range(-rank, 0)) for axis in (-3, -2, -1))
        return tuple(x.reshape(*shape) for x, shape in zip(found, shapes, strict=True))

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
        """The start of an array in the tile, and how much of it lies there; an axis of 1 is taken as it is.

        Args:
            role: "queries" (..., N, T, .), "keys" (..., G, S, .), "pairs" (..., N, T, S), "blocks" (..., N, ., .), or
                "own": only the axes from vmap are those of the grid.
            shape: of the array.
        """
        grid = self.grid
        *leading, shared, _ = zip(self.starts, grid.chunk_sizes, strict=True)
        queries, keys = (self.row, grid.rows), (self.column, grid.columns)
        many = self.first_head(), grid.heads[-1]
        own = [(0, size) for size in shape]
        ends = {
            "queries": [*leading, many, queries, own[-1]] if own else [],
            "keys": [*leading, shared, keys, own[-1]] if own else [],
            "pairs": [*leading, many, queries, keys],
            "blocks": [*leading, many, *own[-2:]],
            "own": [*leading[: grid.batch], *own[grid.batch :]],
        }
        firsts, lengths = zip(*ends[role], strict=True) if ends[role] else ((), ())
        sizes = tuple(1 if full == 1 else size for full, size in zip(shape, lengths, strict=True))
        each = zip(shape, sizes, firsts, strict=True)
        starts = [0 if size == full else start for full, size, start in each]
        return [np.int32(x) if isinstance(x, int) else jnp.asarray(x, jnp.int32) for x in starts], sizes


def allowed_pairs(tile: Tile, mask: Mask | None) -> Array | None:
    """The pairs of the tile that are allowed, (..., N, queries, keys); None for all.

    Where two tiles overlap, the second forbids the pairs that are in the first.
    """
    grid, parts = tile.grid, []
    rank = len(grid.shape)
    _, i, j = tile.positions(rank)
    if mask is not None:
        found = mask.map(lambda part: mask_in_tile(part, tile)).allowed(i.reshape(-1, 1), j.reshape(1, -1), jnp)
        parts.append(lifted(found, rank))
    _, i, j = tile.numbers(rank)
    parts += [place >= new for place, new in ((j, tile.new_column), (i, tile.new_row)) if new is not None]
    allowed = parts.pop() if parts else None
    while parts:
        allowed = allowed & parts.pop()
    return allowed


def mask_in_tile(part: Mask, tile: Tile) -> Mask:
    """One kind of mask with its arrays cut to the tile; a function is called with the positions of the tile."""
    if part.kind == "blocks":
        return dataclasses.replace(part, arrays=tuple(tile.cut("blocks", x) for x in part.arrays))
    if part.kind != "function":
        return Mask(part.kind, tuple(None if x is None else tile.cut("pairs", x) for x in part.arrays), part.settings)
    rank = len(tile.grid.shape)
    _, i, j = tile.positions(3)

    def ask(arrays):
        found = Mask(part.kind, arrays, part.settings).allowed(i[0], j[0], jnp)
        return lifted(found, rank - tile.grid.batch)

    arrays = jax.tree.map(lambda x: tile.cut("own", x), part.arrays)
    if not arrays:
        return Mask("dense", (lifted(ask(()), rank),))
    for _ in range(tile.grid.batch):
        ask = jax.vmap(ask)
    return Mask("dense", (ask(arrays),))


def _positions_from(start: Index, size: int, place: Array | None) -> Array:
    """The positions of so many, from a number on; see ``Positions``."""
    if place is not None and jnp.ndim(place):
        return lax.dynamic_slice_in_dim(place, start, size)
    counted = start + jnp.arange(size)
    return counted if place is None else counted + place.astype(counted.dtype)


def divided(number: Index, size: Index) -> tuple[Any, Any]:
    """``divmod`` of numbers that are not negative: of a traced one in two operations, where JAX's own takes ten."""
    if is_one(size):
        return number, 0
    if isinstance(number, int) and isinstance(size, int):
        return divmod(number, size)
    number, size = jnp.asarray(number, jnp.int32), jnp.asarray(size, jnp.int32)
    return lax.div(number, size), lax.rem(number, size)


def is_one(size: Index) -> bool:
    """Tell whether a size is 1; one that only an exported program will know is not (``jax.export``)."""
    return isinstance(size, int) and size == 1
