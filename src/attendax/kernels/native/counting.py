"""The tiles of the kernel as ``explain`` counts them: which are computed, and which a known mask leaves out."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from attendax.mask_type import Mask

from ..operands import Operands

BLOCK, TILE = 64, 96  # queries of a block, keys of a tile (csrc/problem.h)
MIB = 2**20


def tile_of(operands: Operands) -> tuple[int, int, int]:
    """Query heads, queries and keys of a tile: few queries are taken together with those of heads of one group."""
    N, T = operands.query.shape[-3:-1]
    together = min(N // operands.key.shape[-3], -(-BLOCK // T)) if T < BLOCK else 1
    return together, min(T, BLOCK), min(operands.key.shape[-2], TILE)


def tiles_of(operands: Operands, mask: Mask | None) -> tuple[dict[str, int], int]:
    """Numbers of tiles of a forward that are open, masked and skipped, and of pairs that the first two have.

    Blocks begin at every 64th query, tiles at every 96th key; the last ones are smaller. A tile counts whole, though
    the kernel leaves out its keys that none of a few queries sees.

    Args:
        operands: of the call; the arrays may be ``jax.ShapeDtypeStruct``.
        mask: of the rank of the scores, with NumPy arrays.
    """
    (*lead, N, T, _), (G, S, _) = operands.query.shape, operands.key.shape[-3:]
    rows, columns = _cuts(T, BLOCK), _cuts(S, TILE)
    some = every = np.ones((1,) * len(operands.query.shape), bool)
    if mask is not None:
        least_and_largest = functools.partial(_least_and_largest, rows=rows[0], columns=columns[0])
        i, j = (ends.reshape(2, *shape) for ends, shape in ((_ends(rows), (-1, 1)), (_ends(columns), (1, -1))))
        some, every = mask.map(least_and_largest).bounds(tuple(i), tuple(j), np)
    shape = *lead, N, len(rows[0]), len(columns[0])
    some, every = (np.broadcast_to(x, shape) for x in (some, every))
    heights = rows[1]
    if T < BLOCK:
        heads, heights = _heads_of_blocks(N // G, T)
        some, every = (_of_blocks(x, G, heads, reduce) for x, reduce in ((some, np.any), (every, np.all)))
    counts = {"open": some & every, "masked": some & ~every, "skipped": ~some}
    pairs = int((some * heights[:, None] * columns[1]).sum())
    return {name: int(x.sum()) for name, x in counts.items()}, pairs


def scratch_bytes(operands: Operands) -> int:
    """The most bytes of scratch memory that a thread has in the forward, in whole MiB (csrc/forward.h)."""
    D, V = operands.query.shape[-1], operands.value.shape[-1]
    numbers = 250 * D + 260 * V + 8192
    return -(-(numbers * operands.compute_dtype().itemsize + 2**16) // MIB) * MIB


def _cuts(size: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The beginnings of the blocks of an axis, and their lengths."""
    starts = np.arange(0, size, step)
    return starts, np.minimum(step, size - starts)


def _ends(cuts: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    starts, sizes = cuts
    return np.stack([starts, starts + sizes - 1])


def _least_and_largest(part: Mask, *, rows: np.ndarray, columns: np.ndarray) -> Mask:
    """Ids and truth values as a pair of the least and the largest in each tile."""
    if part.kind not in ("segments", "dense"):
        return part

    def reduced(x: np.ndarray, reduce: np.ufunc) -> np.ndarray:
        for axis, starts in ((x.ndim - 2, rows), (x.ndim - 1, columns)):
            x = reduce.reduceat(x, starts, axis) if x.shape[axis] > 1 else x
        return x

    least, largest = (np.logical_and, np.logical_or) if part.kind == "dense" else (np.minimum, np.maximum)
    return dataclasses.replace(part, arrays=tuple((reduced(x, least), reduced(x, largest)) for x in part.arrays))


def _heads_of_blocks(repeat: int, T: int) -> tuple[list[slice], np.ndarray]:
    """The heads of each block, and its number of rows, of a group with fewer than 64 queries a head."""
    starts, sizes = _cuts(repeat * T, BLOCK)
    return [slice(a // T, -(-(a + n) // T)) for a, n in zip(starts, sizes, strict=True)], sizes


def _of_blocks(x: np.ndarray, groups: int, heads: list[slice], reduce: Callable[..., np.ndarray]) -> np.ndarray:
    """Truth values (..., N, 1, tiles) of heads as those of the blocks that have them, (..., G, blocks, tiles)."""
    x = x.reshape(*x.shape[:-3], groups, -1, x.shape[-1])
    return np.stack([reduce(x[..., each, :], axis=-2) for each in heads], axis=-2)
