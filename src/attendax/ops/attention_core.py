"""Scores, mask, weights, average: scaled dot-product and additive attention as pure JAX functions.

The formulas, and every gradient derived by hand, are in the module of the same name in ``spec``.
"""

import math

import jax.numpy as jnp
from jax import Array

from attendax import checks
from attendax.checks import check
from attendax.kernels.operands import public, takes_arrays, widen
from attendax.masks import ArrayLike
from attendax.sharding.layout import refuse_divided_tokens

from .additive import additive_attention as additive_attention
from .additive import additive_attention_backward as additive_attention_backward
from .full_attention import out_and_weights
from .weighted_sum import as_allowed, matmul_transposed, pull_back, softmax


@public
def compute_attention_scores(Q: ArrayLike, K: ArrayLike, scale: bool = True) -> Array:
    """Compare every query with every key: ``scores = Q Kᵀ / √d_k`` (Vaswani et al. 2017, equation 1).

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
        >>> compute_attention_scores(jnp.ones((2, 4, 64)), jnp.ones((2, 3, 64))).shape
        (2, 4, 3)
    """
    check("compute_attention_scores", {"Q": Q, "K": K})
    checks.boolean("compute_attention_scores", "scale", scale)
    q, k = widen(Q, K)
    factor = 1 / math.sqrt(Q.shape[-1]) if scale else 1.0
    return matmul_transposed(factor * q, k).astype(Q.dtype)


@public
def compute_attention_scores_backward(
    grad_output: ArrayLike, Q: ArrayLike, K: ArrayLike, scale: bool = True
) -> tuple[Array, Array]:
    """Gradients grad_Q, grad_K; derived by hand in ``spec``."""
    check("compute_attention_scores_backward", {"Q": Q, "K": K, "grad_output": grad_output})
    checks.boolean("compute_attention_scores_backward", "scale", scale)
    return pull_back(lambda Q, K: compute_attention_scores(Q, K, scale), grad_output, Q, K)


@public
def apply_attention_mask(scores: ArrayLike, mask: ArrayLike, mask_value: float = -1e9) -> Array:
    """Replace the scores of forbidden pairs by ``mask_value``; ``spec`` has the limits of that.

    Args:
        scores: (..., T, S).
        mask: boolean, broadcastable to the scores; True = attend, False = mask out.
        mask_value: the score of a forbidden pair; below the range of the dtype (float16) it is -inf.

    Returns:
        Array of the shape and dtype of ``scores``.

    Raises:
        TypeError: the scores are not floating, or the mask is not boolean.
        ValueError: the mask does not broadcast to the scores.
    """
    check("apply_attention_mask", {"scores": scores})
    checks.mask("apply_attention_mask", mask, scores.shape, broadcast=True, optional=False)
    mask_value = checks.number("apply_attention_mask", "mask_value", mask_value, finite=False)
    return jnp.where(as_allowed(mask, scores.shape), scores, jnp.asarray(mask_value, scores.dtype))


@public
def apply_attention_mask_backward(
    grad_output: ArrayLike, scores: ArrayLike, mask: ArrayLike, mask_value: float = -1e9
) -> Array:
    """Gradient with respect to the scores: 0 for replaced scores."""
    check("apply_attention_mask_backward", {"scores": scores, "grad_output": grad_output})
    checks.mask("apply_attention_mask_backward", mask, scores.shape, broadcast=True, optional=False)
    checks.number("apply_attention_mask_backward", "mask_value", mask_value, finite=False)
    return pull_back(lambda scores: apply_attention_mask(scores, mask, mask_value), grad_output, scores)[0]


@takes_arrays
def attention_weights(scores: ArrayLike, axis: int = -1) -> Array:
    """Convert scores to weights that sum to 1 along an axis: ``softmax`` under its name in attention.

    Args:
        scores: floating array of any shape.
        axis: the axis of the keys.

    Returns:
        Weights of the same shape; all 0 if every score is -inf (L5).

    Raises:
        TypeError: ``scores`` is not a floating array.
        ValueError: ``scores`` has no such axis.
    """
    checks.softmax("attention_weights", {"scores": scores}, axis)
    return softmax(scores, axis)


@takes_arrays
def attention_weights_backward(grad_output: ArrayLike, scores: ArrayLike, axis: int = -1) -> Array:
    """Gradient with respect to the scores; derived by hand in ``spec.softmax_backward``."""
    checks.softmax("attention_weights_backward", {"scores": scores, "grad_output": grad_output}, axis)
    return pull_back(lambda scores: softmax(scores, axis), grad_output, scores)[0]


@public
def scaled_dot_product_attention(
    Q: ArrayLike, K: ArrayLike, V: ArrayLike, mask: ArrayLike | None = None, *, bias: ArrayLike | None = None
) -> tuple[Array, Array]:
    """Average the values: ``Attention(Q, K, V) = softmax(Q Kᵀ / √d_k + bias) V`` (Vaswani et al. 2017, equation 1).

    Args:
        Q: queries (..., T, d_k).
        K: keys (..., S, d_k), leading axes as in ``Q``.
        V: values (..., S, d_v).
        mask: None, or boolean, broadcastable to (..., T, S); True = attend.
        bias: None, or floating, broadcastable to (..., T, S), added to the scaled scores; -inf forbids (L5).

    Returns:
        output: (..., T, d_v), weights: (..., T, S); both in the dtype of ``Q``, both 0 for a query without keys.

    Raises:
        TypeError: an array is not floating, dtypes differ, or the mask is not boolean.
        ValueError: a rank or a size disagrees.
        NotImplementedError: Explicit mesh axes divide the tokens.

    Example:
        >>> Q, K, V = jnp.zeros((1, 2)), jnp.zeros((3, 2)), jnp.array([[1.0], [2.0], [6.0]])
        >>> output, weights = scaled_dot_product_attention(Q, K, V, mask=jnp.array([True, True, False]))
        >>> output.tolist(), weights.tolist()
        ([[1.5]], [[0.5, 0.5, 0.0]])
    """
    allowed = _allowed("scaled_dot_product_attention", mask, bias, Q=Q, K=K, V=V)
    return out_and_weights(Q, K, V, allowed, bias)


def _allowed(function: str, mask: ArrayLike | None, bias: ArrayLike | None, **arrays: ArrayLike) -> Array:
    """Check the arguments of attention; the mask as (..., T, S)."""
    check(function, arrays)
    Q, K = arrays["Q"], arrays["K"]
    refuse_divided_tokens(function, Q, K)
    shape = (*Q.shape[:-1], K.shape[-2])
    checks.mask(function, mask, shape, broadcast=True)
    checks.bias(function, bias, shape, Q.dtype)
    return as_allowed(mask, shape)


@public
def scaled_dot_product_attention_backward(
    grad_output: ArrayLike, Q: ArrayLike, K: ArrayLike, V: ArrayLike, mask: ArrayLike | None = None, *,
    bias: ArrayLike | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """Gradients grad_Q, grad_K, grad_V and, if there is a bias, grad_bias; derived by hand in ``spec``."""
    function = "scaled_dot_product_attention_backward"
    allowed = _allowed(function, mask, bias, Q=Q, K=K, V=V, grad_output=grad_output)
    arrays = (Q, K, V) if bias is None else (Q, K, V, bias)
    return pull_back(lambda Q, K, V, b=None: out_and_weights(Q, K, V, allowed, b)[0], grad_output, *arrays)
