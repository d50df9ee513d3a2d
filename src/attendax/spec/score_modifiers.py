"""Score modifiers (L2): softcap, ALiBi, relative bias, applied before the bias; and sinks.

Each forward has its backward below it. ``attention`` gets them as a value from ``attendax.scores``; this module reads
only its ``kind``, ``arrays``, ``settings`` and ``sinks``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from attendax import checks
from attendax.checks import fail

from .weighted_sum import Array, sum_to_shape


def softcap(scores: Array, cap: float) -> Array:
    """Bound the scores smoothly: ``cap · tanh(s / cap)``, within ±cap and close to s near 0 (Gemma 2)."""
    return cap * np.tanh(scores / cap)


def softcap_backward(grad_output: Array, scores: Array, cap: float) -> Array:
    """tanh' = 1 - tanh², and the two caps cancel: ``ds = dout (1 - tanh²(s / cap))``."""
    return grad_output * (1 - np.tanh(scores / cap) ** 2)


def alibi(scores: Array, slopes: Array, offset: Any) -> Array:
    """Lower the scores with distance: ``s - slope_n · |i + offset - j|`` for head n (Press et al. 2022).

    Args:
        scores: (..., N, T, S).
        slopes: (N,).
        offset: the position of query 0 among the keys: an integer, or one for each entry of the leading axes.
    """
    return scores - slopes[:, None, None] * np.abs(_distance(scores, offset)).astype(scores.dtype)


def alibi_backward(grad_output: Array, slopes: Array, offset: Any) -> Array:
    """``dslope_n = -Σ dout |i + offset - j|`` over the pairs of head n; the scores pass their gradient on."""
    per_pair = -grad_output * np.abs(_distance(grad_output, offset)).astype(grad_output.dtype)
    return sum_to_shape(per_pair, (*slopes.shape, 1, 1)).reshape(slopes.shape)


def relative_bias(scores: Array, table: Array, offset: Any) -> Array:
    """Add a learned number per head and distance: ``s + table[n, R + clip(j - i - offset, -R, R)]``.

    One number per distance is from Raffel et al. 2020, the clipping from Shaw et al. 2018.

    Args:
        scores: (..., N, T, S).
        table: (N, 2R + 1); column R is distance 0, later keys to its right.
        offset: as in ``alibi``.
    """
    return scores + np.moveaxis(table[:, _column(scores, table, offset)[..., 0, :, :]], 0, -3)


def relative_bias_backward(grad_output: Array, table: Array, offset: Any) -> Array:
    """``dtable[n, c] = Σ dout`` over the pairs of head n that read column c; the scores pass their gradient on."""
    column = _column(grad_output, table, offset)
    columns = [np.where(column == c, grad_output, 0) for c in range(table.shape[1])]
    return np.stack([sum_to_shape(x, (len(table), 1, 1)).reshape(len(table)) for x in columns], axis=-1)


def sink(logits: Array, scores: Array, values: Array, allowed: Array, kept: Array) -> tuple[Array, Array, Array, Array]:
    """Append a key that every query sees, with the score ``logits[n]`` and the value 0; dropout leaves it alone.

    So it takes the share ``exp(logits_n) / (exp(logits_n) + Σ_j exp(s_ij))`` of the weights of query i and gives
    nothing (gpt-oss; Xiao et al. 2024).

    Args:
        logits: (N,); -inf for no sink. Others that are not finite are NaN, like a score (L6).
        scores: (..., N, T, S).
        values: (..., N, S, V).
        allowed: boolean (..., N, T, S).
        kept: what dropout multiplies the weights with, (..., N, T, S), or a number ().

    Returns:
        All four with the key S, of S + 1.
    """
    column = np.broadcast_to(logits.astype(scores.dtype)[:, None, None], (*scores.shape[:-1], 1))
    seen, column = column != -np.inf, np.where(np.isposinf(column), np.nan, column)
    nothing, ones = np.zeros((*values.shape[:-2], 1, values.shape[-1]), values.dtype), np.ones_like(column)
    return (
        np.concatenate([scores, column], axis=-1),
        np.concatenate([values, nothing], axis=-2),
        np.concatenate([allowed, seen], axis=-1),
        np.concatenate([np.broadcast_to(kept, scores.shape), ones], axis=-1),
    )


def sink_backward(grad_scores: Array, logits: Array) -> Array:
    """``dlogits_n = Σ ds`` over the queries of head n, from the gradient (..., N, T) of the appended scores.

    It is that of any score, ``ds_i = p_i (dp_i - Σ_k dp_ik p_ik) + p_i dlse_i``, with ``dp_i = dout_i · 0 = 0``:
    a sink falls where the keys do better than nothing.
    """
    return sum_to_shape(grad_scores[..., None], (*logits.shape, 1, 1)).reshape(logits.shape).astype(logits.dtype)


def with_sink_gradients(score_mod: Any, gradients: list[Array]) -> Any:
    """The modifier with these in place of the logits of its sinks, in their order; the list is emptied."""
    if score_mod.kind == "compose":
        return score_mod.replace(tuple(with_sink_gradients(part, gradients) for part in score_mod.arrays))
    return score_mod.replace((gradients.pop(0),)) if score_mod.kind == "sink" else score_mod


def _distance(scores: Array, offset: Any) -> Array:
    """j - i - offset for every pair, (1, T, S) or (..., 1, T, S)."""
    T, S = scores.shape[-2:]
    return np.arange(S) - np.arange(T)[:, None] - np.asarray(offset)[..., None, None, None]


def _column(scores: Array, table: Array, offset: Any) -> Array:
    radius = table.shape[1] // 2
    return np.clip(_distance(scores, offset), -radius, radius) + radius


def modify(score_mod: Any, scores: Array) -> Array:
    """Apply a value from ``attendax.scores`` to scores (..., N, T, S)."""
    kind, arrays, settings = score_mod.kind, score_mod.arrays, score_mod.settings
    if kind == "compose":
        for part in score_mod.arrays:
            scores = modify(part, scores)
        return scores
    if kind == "sink":  # it changes no score of a key
        return scores
    if kind == "function":
        axes = range(scores.ndim - 3, scores.ndim)
        positions = tuple(
            np.arange(scores.shape[a]).reshape(*(-1 if b == a else 1 for b in range(scores.ndim))) for a in axes
        )
        result = settings[0](scores, positions, *arrays)
        checks.modified(scores, result)
        return np.asarray(result, scores.dtype)
    first = [x.astype(scores.dtype, copy=False) for x in arrays[:1]]  # slopes or a table; an offset stays an integer
    return FORWARD[kind](scores, *first, *arrays[1:], *settings)


def modify_backward(grad_output: Array, score_mod: Any, scores: Array) -> tuple[Array, Any]:
    """Pull a gradient back through ``modify``: that of the scores, and the modifier with gradients for its arrays.

    Raises:
        NotImplementedError: an arbitrary function has no backward that was derived by hand.
    """
    kind, settings = score_mod.kind, score_mod.settings
    if kind == "function":
        fail(NotImplementedError, "attention_backward", "a score modifier from_function has no backward by hand.")
    if kind == "compose":
        inputs = [scores]
        for part in score_mod.arrays[:-1]:
            inputs.append(modify(part, inputs[-1]))
        grads: list[Any] = []
        for part, before in zip(reversed(score_mod.arrays), reversed(inputs), strict=True):
            grad_output, grad = modify_backward(grad_output, part, before)
            grads.insert(0, grad)
        return grad_output, score_mod.replace(tuple(grads))
    if kind == "sink":
        return grad_output, score_mod  # ``with_sink_gradients`` knows its own
    if kind == "softcap":
        return softcap_backward(grad_output, scores, *settings), score_mod
    array, *offset = score_mod.arrays
    grad = ARRAY_BACKWARD[kind](grad_output, array.astype(grad_output.dtype, copy=False), *offset, *settings)
    return grad_output, score_mod.replace((grad.astype(array.dtype), *(np.zeros(x.shape, NOTHING) for x in offset)))


FORWARD: dict[str, Callable] = {"softcap": softcap, "alibi": alibi, "relative_bias": relative_bias}
NOTHING = np.dtype([("float0", np.void, 0)])
"""The dtype of what has no gradient, because it is an integer; JAX has the same."""
ARRAY_BACKWARD: dict[str, Callable] = {"alibi": alibi_backward, "relative_bias": relative_bias_backward}
