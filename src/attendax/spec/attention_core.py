"""Scores, mask, weights, average: scaled dot-product and additive attention, each backward derived by hand."""

import math
from typing import Any

import numpy as np

from attendax import checks
from attendax.checks import check, knows_keywords

from .additive import additive_attention as additive_attention
from .additive import additive_attention_backward as additive_attention_backward
from .weighted_sum import (
    Array,
    average,
    average_backward,
    public,
    softmax,
    softmax_backward,
    sum_to_shape,
    take_out,
    widen,
)


@public
def compute_attention_scores(Q: Array, K: Array, scale: bool = True) -> Array:
    """Compare every query with every key.

    ``scores = Q Kᵀ / √d_k`` (Vaswani et al. 2017, equation 1). A sum of d_k products of unit variance has variance
    d_k; dividing by √d_k makes it 1 again, so that softmax does not saturate as the width grows.

    Args:
        Q: queries (..., T, d_k).
        K: keys (..., S, d_k), leading axes as in ``Q``.
        scale: whether to divide by √d_k.

    Returns:
        Scores (..., T, S) in the dtype of ``Q``.

    Raises:
        TypeError: an array is not floating, or the dtypes differ.
        ValueError: a rank or a size disagrees.

    Example:
        >>> Q = np.random.randn(2, 4, 64)  # batch=2, seq=4, d_k=64
        >>> K = np.random.randn(2, 4, 64)
        >>> scores = compute_attention_scores(Q, K)
        >>> scores.shape
        (2, 4, 4)
    """
    check("compute_attention_scores", {"Q": Q, "K": K})
    checks.boolean("compute_attention_scores", "scale", scale)
    q, k = widen(Q, K)
    return ((_factor(Q, scale) * q) @ k.swapaxes(-1, -2)).astype(Q.dtype)


def _factor(Q: Array, scale: bool = True) -> float:
    return 1 / math.sqrt(Q.shape[-1]) if scale else 1.0


@public
def compute_attention_scores_backward(
    grad_output: Array, Q: Array, K: Array, scale: bool = True
) -> tuple[Array, Array]:
    """Pull a gradient back through the scores.

    With c = 1/√d_k (or 1) and ``sᵢⱼ = c qᵢ · kⱼ``::

        dqᵢ = c Σⱼ dsᵢⱼ kⱼ      dQ = c dS K
        dkⱼ = c Σᵢ dsᵢⱼ qᵢ      dK = c dSᵀ Q

    Args:
        grad_output: gradient with respect to the scores (..., T, S).
        Q: queries (..., T, d_k).
        K: keys (..., S, d_k).
        scale: as in the forward.

    Returns:
        grad_Q, grad_K: in the shapes of ``Q`` and ``K``.

    Raises:
        TypeError, ValueError: as the forward.
    """
    check("compute_attention_scores_backward", {"Q": Q, "K": K, "grad_output": grad_output})
    checks.boolean("compute_attention_scores_backward", "scale", scale)
    gradient, q, k = widen(grad_output, Q, K)
    gradient = _factor(Q, scale) * gradient
    return (gradient @ k).astype(Q.dtype), (gradient.swapaxes(-1, -2) @ q).astype(K.dtype)


@public
def apply_attention_mask(scores: Array, mask: Array, mask_value: float = -1e9) -> Array:
    """Replace the scores of forbidden pairs.

    The default is the customary "very low" score. It only forbids while real scores are higher, and a row that is
    forbidden altogether becomes uniform; ``-np.inf`` always forbids (L5, L7), and the attentions below use it.

    Args:
        scores: (..., T, S).
        mask: boolean, broadcastable to the scores; True = attend, False = mask out.
        mask_value: the score of a forbidden pair; below the range of the dtype (float16) it is -inf.

    Returns:
        Array of the shape and dtype of ``scores``.

    Raises:
        TypeError: scores not floating, or a mask that is not boolean.
        ValueError: a mask that does not broadcast to the scores.

    Example:
        >>> apply_attention_mask(np.array([[1.0, 2.0]]), np.array([True, False]), mask_value=-9.0)
        array([[ 1., -9.]])
    """
    check("apply_attention_mask", {"scores": scores})
    checks.mask("apply_attention_mask", mask, scores.shape, broadcast=True, optional=False)
    mask_value = checks.number("apply_attention_mask", "mask_value", mask_value, finite=False)
    return np.where(mask, scores, np.asarray(mask_value).astype(scores.dtype))


@knows_keywords
def apply_attention_mask_backward(grad_output: Array, scores: Array, mask: Array, mask_value: float = -1e9) -> Array:
    """Pull a gradient back through the mask: it passes where the score did, and is 0 where it was replaced.

    ``outᵢⱼ = sᵢⱼ`` if allowed, else a constant; so ``dsᵢⱼ = doutᵢⱼ`` if allowed, else 0.

    Args:
        grad_output: gradient with respect to the result (..., T, S).
        scores: the input of the forward (..., T, S).
        mask: as in the forward.
        mask_value: as in the forward; a constant has no gradient.

    Returns:
        Gradient with respect to the scores (..., T, S).

    Raises:
        TypeError, ValueError: as the forward.
    """
    check("apply_attention_mask_backward", {"scores": scores, "grad_output": grad_output})
    checks.mask("apply_attention_mask_backward", mask, scores.shape, broadcast=True, optional=False)
    checks.number("apply_attention_mask_backward", "mask_value", mask_value, finite=False)
    return np.where(mask, grad_output, np.zeros((), grad_output.dtype))


def attention_weights(scores: Array, axis: int = -1) -> Array:
    """Convert scores to weights that sum to 1 along an axis: ``softmax``, under the name it has inside attention.

    Args:
        scores: floating array of any shape.
        axis: the axis of the keys.

    Returns:
        Weights of the same shape; all 0 where every score is -inf (L5).

    Raises:
        TypeError: ``scores`` is not a floating array.
    """
    checks.softmax("attention_weights", {"scores": scores}, axis)
    return softmax(scores, axis)


def attention_weights_backward(grad_output: Array, scores: Array, axis: int = -1) -> Array:
    """Pull a gradient back through the weights: ``softmax_backward``, where it is derived.

    Args:
        grad_output: gradient with respect to the weights, shape of ``scores``.
        scores: the input of the forward.
        axis: the axis of the keys.

    Returns:
        Gradient with respect to the scores, of their shape and dtype.

    Raises:
        TypeError, ValueError: as ``softmax_backward``.
    """
    checks.softmax("attention_weights_backward", {"scores": scores, "grad_output": grad_output}, axis)
    return softmax_backward(grad_output, scores, axis)


@public
def scaled_dot_product_attention(
    Q: Array, K: Array, V: Array, mask: Array | None = None, *, bias: Array | None = None
) -> tuple[Array, Array]:
    """Average the values, each weighted by how well its key answers the query.

    ``Attention(Q, K, V) = softmax(Q Kᵀ / √d_k + bias) V`` (Vaswani et al. 2017, equation 1). A query that may look at
    no key gets output 0 and weights 0 (L5); what stands under the mask changes nothing, NaN included (L6).

    Args:
        Q: queries (..., T, d_k).
        K: keys (..., S, d_k), leading axes as in ``Q``.
        V: values (..., S, d_v).
        mask: None, or boolean, broadcastable to (..., T, S); True = attend.
        bias: None, or floating, broadcastable to (..., T, S), added to the scaled scores; -inf forbids (L5).

    Returns:
        output: (..., T, d_v), weights: (..., T, S); both in the dtype of ``Q``.

    Raises:
        TypeError: an array is not floating, dtypes differ, or the mask is not boolean.
        ValueError: a rank or a size disagrees.

    Example:
        >>> Q, K, V = np.zeros((1, 2)), np.zeros((3, 2)), np.array([[1.0], [2.0], [6.0]])
        >>> scaled_dot_product_attention(Q, K, V, mask=np.array([True, True, False]))
        (array([[1.5]]), array([[0.5, 0.5, 0. ]]))
    """
    output, weights, *_ = _scaled_dot_product(Q, K, V, mask, bias, "scaled_dot_product_attention")
    return output.astype(Q.dtype), weights.astype(Q.dtype)


def _scaled_dot_product(
    Q: Array, K: Array, V: Array, mask: Array | None, bias: Array | None, function: str, grad_output: Any = None
) -> Any:
    """The forward in the compute dtype: output, weights, which pairs are allowed, and Q, K and V from ``take_out``."""
    check(function, {"Q": Q, "K": K, "V": V, "grad_output": grad_output})
    shape = (*Q.shape[:-1], K.shape[-2])
    checks.mask(function, mask, shape, broadcast=True)
    checks.bias(function, bias, shape, Q.dtype)
    *wide, b = widen(Q, K, V, bias)
    q, k, v, spoiled = take_out(*wide)
    scores = np.where(spoiled, np.nan, compute_attention_scores(q, k))
    allowed = np.broadcast_to(True if mask is None else mask, shape)
    if b is not None:
        scores, allowed = add_bias(scores, b, allowed)
    return *average(scores, v, allowed), allowed, q, k, v


def add_bias(scores: Array, bias: Array, allowed: Array) -> tuple[Array, Array]:
    """Add the bias. -inf forbids like a mask (L5); a sum beyond the range of the dtype stays at its end (L7)."""
    total, limit = scores + bias, np.finfo(scores.dtype).max
    overflow = np.isinf(total) & np.isfinite(scores) & np.isfinite(bias)
    return np.where(overflow, np.copysign(limit, total), total), allowed & (bias != -np.inf)


@public
def scaled_dot_product_attention_backward(
    grad_output: Array, Q: Array, K: Array, V: Array, mask: Array | None = None, *, bias: Array | None = None
) -> tuple[Array, ...]:
    """Pull a gradient back through scaled dot-product attention.

    With c = 1/√d_k, ``sᵢⱼ = c qᵢ · kⱼ + bᵢⱼ``, ``p = softmax(s)`` over the allowed keys and ``outᵢ = Σⱼ pᵢⱼ vⱼ``::

        dvⱼ  = Σᵢ pᵢⱼ doutᵢ                       dV = Pᵀ dO
        dpᵢⱼ = doutᵢ · vⱼ                         dP = dO Vᵀ
        dsᵢⱼ = pᵢⱼ (dpᵢⱼ - Σₖ dpᵢₖ pᵢₖ)           softmax, row by row; 0 where forbidden
        dqᵢ  = c Σⱼ dsᵢⱼ kⱼ                       dQ = c dS K
        dkⱼ  = c Σᵢ dsᵢⱼ qᵢ                       dK = c dSᵀ Q
        dbᵢⱼ = dsᵢⱼ                               summed over the axes along which b was repeated

    Args:
        grad_output: gradient with respect to the output (..., T, d_v).
        Q: queries (..., T, d_k).
        K: keys (..., S, d_k).
        V: values (..., S, d_v).
        mask: as in the forward.
        bias: as in the forward.

    Returns:
        grad_Q, grad_K, grad_V and, where a bias is given, grad_bias: each in the shape and dtype of its input.

    Raises:
        TypeError, ValueError: as the forward.
    """
    function = "scaled_dot_product_attention_backward"
    _, weights, allowed, q, k, v = _scaled_dot_product(Q, K, V, mask, bias, function, grad_output)
    grad_scores, grad_V = average_backward(grad_output.astype(v.dtype), weights, v, allowed)
    grad_Q, grad_K = compute_attention_scores_backward(grad_scores, q, k)
    gradients = grad_Q.astype(Q.dtype), grad_K.astype(K.dtype), grad_V.astype(V.dtype)
    return gradients if bias is None else (*gradients, sum_to_shape(grad_scores, bias.shape).astype(bias.dtype))
