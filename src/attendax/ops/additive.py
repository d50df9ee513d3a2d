"""Additive attention: the score of a query and a key is a small network of both. Pure JAX."""

import jax.numpy as jnp
from jax import Array

from attendax import checks
from attendax.checks import check
from attendax.kernels.numerics import finite_straight_through, mark_of_rows
from attendax.kernels.operands import public, widen
from attendax.masks import ArrayLike

from .full_attention import out_and_weights
from .weighted_sum import as_allowed, matmul, pull_back


@public
def additive_attention(
    Q: ArrayLike,
    K: ArrayLike,
    V: ArrayLike,
    W_q: ArrayLike,
    W_k: ArrayLike,
    v: ArrayLike,
    mask: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Average the values, weighted by ``score(q, k) = vᵀ tanh(W_q q + W_k k)`` (Bahdanau et al. 2015, appendix A.1.2).

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
    """
    allowed = _allowed("additive_attention", mask, Q=Q, K=K, V=V, W_q=W_q, W_k=W_k, v=v)
    return _attend(allowed, Q, K, V, W_q, W_k, v)


def _allowed(function: str, mask: ArrayLike | None, **arrays: ArrayLike) -> Array:
    """Check the arguments; the mask as (B, T, S)."""
    check(function, arrays)
    shape = (*arrays["Q"].shape[:-1], arrays["K"].shape[-2])
    checks.mask(function, mask, shape, broadcast=True)
    return as_allowed(mask, shape)


def _attend(
    allowed: Array, Q: ArrayLike, K: ArrayLike, V: ArrayLike, W_q: ArrayLike, W_k: ArrayLike, v: ArrayLike
) -> tuple[Array, Array]:
    q, k, values, w_q, w_k, vector = widen(Q, K, V, W_q, W_k, v)
    of_q, of_k = (matmul(finite_straight_through(x), w) for x, w in ((q, w_q), (k, w_k)))
    pairs = of_q[:, :, None, :] + of_k[:, None, :, :]
    scores = matmul(jnp.tanh(jnp.where(allowed[..., None], pairs, 0)), vector)
    scores = scores + mark_of_rows(q) + mark_of_rows(k).swapaxes(-1, -2)
    no_query, no_key = (jnp.zeros_like(x[..., :1]) for x in (q, k))  # the scores are the bias to scores of 0
    output, weights = out_and_weights(no_query, no_key, values, allowed, scores)
    return output.astype(Q.dtype), weights.astype(Q.dtype)


@public
def additive_attention_backward(
    grad_output: ArrayLike, Q: ArrayLike, K: ArrayLike, V: ArrayLike, W_q: ArrayLike, W_k: ArrayLike, v: ArrayLike,
    mask: ArrayLike | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """Gradients of all six arrays; derived by hand in ``spec``."""
    arrays = {"Q": Q, "K": K, "V": V, "W_q": W_q, "W_k": W_k, "v": v}
    allowed = _allowed("additive_attention_backward", mask, **arrays, grad_output=grad_output)
    return pull_back(lambda *arrays: _attend(allowed, *arrays)[0], grad_output, *arrays.values())
