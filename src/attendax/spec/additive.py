"""Additive attention: the score of a query and a key is a small network of both."""

from typing import Any

import numpy as np

from attendax import checks
from attendax.checks import check

from .weighted_sum import Array, average, average_backward, public, take_out, widen


@public
def additive_attention(
    Q: Array, K: Array, V: Array, W_q: Array, W_k: Array, v: Array, mask: Array | None = None
) -> tuple[Array, Array]:
    """Average the values, weighted by a one-layer network of query and key.

    ``score(q, k) = vᵀ tanh(W_q q + W_k k)`` (Bahdanau et al. 2015, appendix A.1.2), then softmax over the keys. There
    is no division by √d: tanh bounds the score already.

    Args:
        Q: queries (B, T, d_q).
        K: keys (B, S, d_k).
        V: values (B, S, d_v).
        W_q: query projection (d_q, A).
        W_k: key projection (d_k, A).
        v: score vector (A,).
        mask: None, or boolean, broadcastable to (B, T, S); True = attend.

    Returns:
        output: (B, T, d_v), weights: (B, T, S); both in the dtype of ``Q``.

    Raises:
        TypeError: an array is not floating, dtypes differ, a weight is narrower, or the mask is not boolean.
        ValueError: a rank or a size disagrees.

    Example:
        >>> Q, K, V = np.zeros((1, 1, 2)), np.zeros((1, 2, 3)), np.array([[[1.0], [3.0]]])
        >>> output, weights = additive_attention(Q, K, V, np.ones((2, 4)), np.ones((3, 4)), np.ones(4))
        >>> output, weights
        (array([[[2.]]]), array([[[0.5, 0.5]]]))
    """
    output, weights, *_ = _forward("additive_attention", Q, K, V, W_q, W_k, v, mask)
    return output.astype(Q.dtype), weights.astype(Q.dtype)


def _forward(
    function: str, Q: Array, K: Array, V: Array, W_q: Array, W_k: Array, v: Array, mask: Any, grad_output: Any = None
) -> Any:
    """The forward in the compute dtype: output, weights, which pairs are allowed, the hidden layer, and all six arrays.

    The hidden layer (B, T, S, A) is 0 where forbidden: a forbidden key may be so large that it is not finite.
    """
    arrays = {"Q": Q, "K": K, "V": V, "W_q": W_q, "W_k": W_k, "v": v, "grad_output": grad_output}
    check(function, arrays)
    shape = (*Q.shape[:-1], K.shape[-2])
    checks.mask(function, mask, shape, broadcast=True)
    *tokens, w_q, w_k, vector = widen(Q, K, V, W_q, W_k, v)
    q, k, values, spoiled = take_out(*tokens)
    allowed = np.broadcast_to(True if mask is None else mask, shape)
    hidden = np.tanh((q @ w_q)[:, :, None, :] + (k @ w_k)[:, None, :, :])
    hidden = np.where(allowed[..., None], hidden, 0)
    output, weights = average(np.where(spoiled, np.nan, hidden @ vector), values, allowed)
    return output, weights, allowed, hidden, (q, k, values, w_q, w_k, vector)


@public
def additive_attention_backward(
    grad_output: Array, Q: Array, K: Array, V: Array, W_q: Array, W_k: Array, v: Array, mask: Array | None = None
) -> tuple[Array, ...]:
    """Pull a gradient back through additive attention, to all six inputs.

    With ``aᵢⱼ = W_qᵀ qᵢ + W_kᵀ kⱼ``, ``hᵢⱼ = tanh(aᵢⱼ)``, ``sᵢⱼ = v · hᵢⱼ``, ``p = softmax(s)``, ``outᵢ = Σⱼ pᵢⱼ Vⱼ``::

        dVⱼ  = Σᵢ pᵢⱼ doutᵢ
        dsᵢⱼ = pᵢⱼ (dpᵢⱼ - Σₖ dpᵢₖ pᵢₖ),  dpᵢⱼ = doutᵢ · Vⱼ
        dv   = Σᵢⱼ dsᵢⱼ hᵢⱼ
        daᵢⱼ = dsᵢⱼ v (1 - hᵢⱼ²)                  tanh' = 1 - tanh²
        duᵢ  = Σⱼ daᵢⱼ,  dtⱼ = Σᵢ daᵢⱼ            uᵢ = W_qᵀ qᵢ was added to every j, tⱼ = W_kᵀ kⱼ to every i
        dqᵢ  = W_q duᵢ,  dW_q = Σᵢ qᵢ duᵢᵀ        and the same with k, t

    Args:
        grad_output: gradient with respect to the output (B, T, d_v).
        Q: queries (B, T, d_q).
        K: keys (B, S, d_k).
        V: values (B, S, d_v).
        W_q: query projection (d_q, A).
        W_k: key projection (d_k, A).
        v: score vector (A,).
        mask: as in the forward.

    Returns:
        grad_Q, grad_K, grad_V, grad_W_q, grad_W_k, grad_v: each in the shape and dtype of its input.

    Raises:
        TypeError, ValueError: as the forward.
    """
    inputs = Q, K, V, W_q, W_k, v
    _, weights, allowed, hidden, wide = _forward("additive_attention_backward", *inputs, mask, grad_output)
    q, k, values, w_q, w_k, vector = wide
    grad_scores, grad_V = average_backward(grad_output.astype(values.dtype), weights, values, allowed)
    grad_v = np.einsum("bij,bija->a", grad_scores, hidden)
    grad_sum = grad_scores[..., None] * vector * (1 - hidden**2)
    grad_u, grad_t = grad_sum.sum(axis=2), grad_sum.sum(axis=1)
    grad_W_q, grad_W_k = (np.einsum("bim,bia->ma", x, grad) for x, grad in ((q, grad_u), (k, grad_t)))
    gradients = grad_u @ w_q.T, grad_t @ w_k.T, grad_V, grad_W_q, grad_W_k, grad_v
    return tuple(g.astype(x.dtype) for g, x in zip(gradients, inputs, strict=True))
