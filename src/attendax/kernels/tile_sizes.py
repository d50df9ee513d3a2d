"""How large tiles are: a pure function of the sizes of a call."""

import math
from typing import Any

import jax.numpy as jnp

from .operands import Limits, Operands, Plan
from .tiles import Grid

LIMITS = Limits(rows=512, columns=512, bytes=2**21, fused=2**16, fused_bytes=24 * 2**20)
LEAST = 32  # queries or keys, however many heads a tile must hold


def grid_of(operands: Operands, plan: Plan) -> Grid:
    """The grid for the arrays of a call."""
    *_, N, T, _ = operands.query.shape
    G, S = operands.key.shape[-3:-1]
    axes = *plan.leading(operands), G
    whole = _whole_axes(operands, plan)
    return choose(
        axes,
        N // G,
        T,
        S,
        operands.wide().itemsize,
        plan.limits,
        masked=operands.mask is not None,
        band=_band(operands.mask),
        whole=whole,
        batch=len(plan.batch),
    )


def choose(
    axes: tuple[int, ...],
    group: int,
    T: int,
    S: int,
    itemsize: int,
    limits: Limits = LIMITS,
    *,
    masked: bool = False,
    band: int | None = None,
    whole: int = 0,
    batch: int = 0,
) -> Grid:
    """The grid for scores of these sizes.

    Args:
        axes: the leading axes and G.
        group: query heads for each of G.
        T, S: queries and keys.
        itemsize: bytes of a score.
        limits: of a tile.
        masked: whether there is a mask, which may leave tiles out.
        band: how many keys a query sees, where a window bounds it.
        whole: the last so many of ``axes`` must not be cut, because a function reads them.
        batch: how many of ``axes`` come from vmap.
    """
    if T * group == 1 and not masked:  # scores are fewer than keys, and cutting keys would copy them: 10 ms against 5
        return Grid(axes, axes, group, T, S, T, S, batch)
    budget = max(1, limits.bytes // itemsize)
    rows, columns = limits.rows, limits.columns
    if band is not None:  # a tile as wide as the band wastes as much as it uses; smaller ones are slow to multiply
        rows = columns = min(rows, columns, max(128, 1 << (band.bit_length() - 1)))
    outside = len(axes) - whole
    heads = group * math.prod(axes[outside:])
    columns = _even(S, min(columns, max(LEAST, budget // max(1, heads))))
    rows = _even(T, min(rows, max(LEAST, budget // max(1, heads * columns))))
    pieces = *_pieces(axes[:outside], budget // (heads * rows * columns)), *axes[outside:]
    return Grid(axes, pieces, group, T, S, rows, columns, batch)


def fused_grid_of(operands: Operands, plan: Plan) -> Grid | None:
    """The grid of a forward that is small and plain enough to be one fused product; None for any other.

    XLA's CPU compiler makes one kernel of scores, softmax and average, 1.6 to 2.5 times as fast as its parts, if
    nothing else is read or written on the way; beyond 256 x 256 scores it is slower than tiles are.
    """
    limits, shape = plan.limits, operands.query.shape
    T, S = shape[-2], operands.key.shape[-2]
    modified = operands.bias is not None or operands.score_mod is not None or operands.dropout is not None
    if modified or T * S > limits.fused or shape[-1] == 1 or operands.wide() != jnp.float32:
        return None
    if _whole_axes(operands, plan):
        return None
    G = operands.key.shape[-3]
    axes, group = (*plan.leading(operands), G), shape[-3] // G
    pieces = _pieces(axes, limits.fused_bytes // (4 * group * T * S))
    return Grid(axes, pieces, group, T, S, T, S, len(plan.batch))


def _pieces(axes: tuple[int, ...], room: int) -> tuple[int, ...]:
    """How much of each axis to take, the last ones first, so that at most ``room`` entries are taken, at least one."""
    pieces = []
    for size in reversed(axes):
        piece = max(n for n in range(1, min(size, max(1, room)) + 1) if size % n == 0)
        room = room // piece if piece == size else 1
        pieces.insert(0, piece)
    return tuple(pieces)


def _even(size: int, most: int) -> int:
    """A block of at most ``most``, as even as ``size`` allows."""
    blocks = -(-size // most)
    return -(-size // blocks)


def _band(mask: Any) -> int | None:
    """How many keys a query sees at most, where the mask is a window or holds one that all the rest only narrows."""
    if mask is None or mask.kind not in ("and", "window"):
        return None
    if mask.kind == "and":
        return min((band for band in map(_band, mask.arrays) if band is not None), default=None)
    left, right = mask.settings
    return None if left is None or right is None else left + right + 1


def _whole_axes(operands: Operands, plan: Plan) -> int:
    """How many axes a tile must take whole: all but those from vmap, where a function reads arrays of its own."""
    reads = any(_has_function(x) for x in (operands.mask, operands.score_mod) if x is not None)
    return operands.query.ndim - 2 - len(plan.batch) if reads else 0


def _has_function(value: Any) -> bool:
    return value.kind == "function" or any(hasattr(part, "kind") and _has_function(part) for part in value.arrays)
