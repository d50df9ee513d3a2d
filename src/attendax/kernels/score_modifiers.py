"""Score modifiers (L2) in JAX: softcap, ALiBi, relative bias; the module of this name in ``spec`` derives them.

Every modifier is a function of scores (..., N, T, S), of all of them or of a tile. It also gets the positions n (...,
N, 1, 1), i (..., 1, T, 1) and j (..., 1, 1, S) of their heads, queries and keys.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from attendax import checks
from attendax.mask_kinds import lifted
from attendax.scores import ScoreModifier


def softcap(scores: Array, positions: tuple[Array, ...], cap: float) -> Array:
    """``cap · tanh(s / cap)``."""
    return cap * jnp.tanh(scores / cap)


def alibi(scores: Array, positions: tuple[Array, ...], slopes: Array, offset: int | Array) -> Array:
    """``s - slope_n · |i + offset - j|`` for slopes (N,) and an offset, a number or (..., 1, 1, 1).

    The sum is one of floating numbers: it does not wrap around (L4).
    """
    n, i, j = positions
    offset = offset if isinstance(offset, int) else offset.astype(scores.dtype)
    return scores - slopes[n] * jnp.abs((i - j).astype(scores.dtype) + offset)


def relative_bias_anywhere(scores: Array, positions: tuple[Array, ...], table: Array, offset: int | Array) -> Array:
    """``s + table[n, R + clip(j - i - offset, -R, R)]`` for table (N, 2R + 1) and an offset as in ``alibi``."""
    n, i, j = positions
    radius = table.shape[1] // 2
    return scores + table[n, jnp.clip(j - i - offset, -radius, radius) + radius]


def relative_bias(scores: Array, positions: tuple[Array, ...], table: Array, offset: int | Array) -> Array:
    """Relative bias for positions side by side.

    A diagonal of the scores has one distance. So one number for each diagonal is looked up, and laid out along it: as
    rows that are one entry longer than they are read, each row starts one diagonal later.
    """
    n, i, j = positions
    rows, columns, radius = i.shape[-2], j.shape[-1], table.shape[1] // 2
    distance = j.reshape(-1)[0] - i.reshape(-1)[0] + jnp.arange(-rows, columns)  # of each diagonal
    if not isinstance(offset, int):
        distance, offset = distance.reshape((1,) * (offset.ndim - 3) + distance.shape), offset[..., 0, 0]
    column = jnp.clip(distance - offset, -radius, radius) + radius  # (..., rows + columns)
    diagonals = jnp.moveaxis(table[n.reshape(-1)][:, column], 0, -2)  # (..., N, rows + columns)
    *lead, heads, width = diagonals.shape
    skewed = jnp.broadcast_to(diagonals[..., None, :], (*lead, heads, rows, width)).reshape(*lead, heads, -1)
    skewed = skewed[..., rows : rows + rows * (width - 1)].reshape(*lead, heads, rows, width - 1)[..., :columns]
    return scores + lifted(skewed, scores.ndim)


FORWARD: dict[str, Callable] = {"softcap": softcap, "alibi": alibi, "relative_bias": relative_bias}


def modify(score_mod: ScoreModifier, scores: Array, positions: tuple[Array, ...], *, in_order: bool = True) -> Array:
    """Apply a value from ``attendax.scores``, one ``of_rank``, to scores (..., N, T, S).

    ``in_order`` says that positions which follow each other stand side by side.
    """
    if score_mod.kind == "compose":
        for part in score_mod.arrays:
            scores = modify(part, scores, positions, in_order=in_order)
        return scores
    if score_mod.kind == "function":
        result = score_mod.settings[0](scores, positions, *score_mod.arrays)
        checks.modified(scores, result)
        return result.astype(scores.dtype)
    arrays = [x.astype(scores.dtype) for x in score_mod.arrays[:1]]  # slopes or a table; an offset stays an integer
    if score_mod.kind == "relative_bias" and not in_order:
        return relative_bias_anywhere(scores, positions, *arrays, *score_mod.arrays[1:], *score_mod.settings)
    return FORWARD[score_mod.kind](scores, positions, *arrays, *score_mod.arrays[1:], *score_mod.settings)


def add_bias(scores: Array, bias: Array) -> Array:
    """Add the bias; a sum beyond the range of the dtype stays at its end (L7), with the derivative of the sum."""
    total = scores + bias
    overflow = jnp.isinf(total) & jnp.isfinite(scores) & jnp.isfinite(bias)
    end = jnp.copysign(jnp.finfo(total.dtype).max, lax.stop_gradient(total))
    nothing = (scores - lax.stop_gradient(scores)) + (bias - lax.stop_gradient(bias))  # 0, and its derivative
    return jnp.where(overflow, end + nothing, total)
