"""What may change a score before the bias is added (L2), in JAX; the module of this name in ``spec`` explains."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from attendax import checks


def softcap(scores: Array, cap: float) -> Array:
    """``cap · tanh(s / cap)``."""
    return cap * jnp.tanh(scores / cap)


def alibi(scores: Array, slopes: Array, offset: int) -> Array:
    """``s - slope_n · |i + offset - j|`` for scores (..., N, T, S) and slopes (N,)."""
    lowered = slopes[:, None, None] * jnp.abs(_distance(scores, offset))[None].astype(scores.dtype)
    return scores - lowered.reshape((1,) * (scores.ndim - 3) + lowered.shape)


def relative_bias(scores: Array, table: Array, offset: int) -> Array:
    """``s + table[n, R + clip(j - i - offset, -R, R)]`` for scores (..., N, T, S) and table (N, 2R + 1)."""
    radius = table.shape[1] // 2
    raised = table[:, jnp.clip(_distance(scores, offset), -radius, radius) + radius]
    return scores + raised.reshape((1,) * (scores.ndim - 3) + raised.shape)


def _distance(scores: Array, offset: int) -> Array:
    """j - i - offset for every pair (T, S)."""
    T, S = scores.shape[-2:]
    return jnp.arange(S)[None, :] - jnp.arange(T)[:, None] - offset


FORWARD: dict[str, Callable] = {"softcap": softcap, "alibi": alibi, "relative_bias": relative_bias}


def modify(score_mod: Any, scores: Array) -> Array:
    """Apply a value from ``attendax.scores`` to scores (..., N, T, S)."""
    if score_mod.kind == "compose":
        for part in score_mod.arrays:
            scores = modify(part, scores)
        return scores
    if score_mod.kind == "function":
        axes = range(scores.ndim - 3, scores.ndim)
        positions = tuple(
            jnp.arange(scores.shape[a]).reshape(*(-1 if b == a else 1 for b in range(scores.ndim))) for a in axes
        )
        result = score_mod.settings[0](scores, positions, *score_mod.arrays)
        checks.modified(scores, result)
        return result.astype(scores.dtype)
    arrays = (x.astype(scores.dtype) for x in score_mod.arrays)
    return FORWARD[score_mod.kind](scores, *arrays, *score_mod.settings)
