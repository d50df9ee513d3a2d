"""The whole law in dense JAX: every option of ``attendax.attention``, one step of L2 after the other."""

from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
from jax import Array

from attendax import checks
from attendax.checks import knows_keywords
from attendax.kernels.numerics import matmul_transposed
from attendax.options import Options
from attendax.params import AttentionGradients

from . import dropout
from .attention_core import add_bias
from .score_modifiers import all_positions, modify
from .weighted_sum import as_allowed, masked_softmax, sum_over_allowed, takes_arrays, widen


@overload
def attention(
    query: Array, key: Array, value: Array, *, return_lse: Literal[False] = ..., **options: Unpack[Options]
) -> Array: ...
@overload
def attention(
    query: Array, key: Array, value: Array, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[Array, Array]: ...
@overload
def attention(
    query: Array, key: Array, value: Array, *, return_lse: bool, **options: Unpack[Options]
) -> Array | tuple[Array, Array]: ...
@knows_keywords
@takes_arrays
def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Any = None,
    bias: Array | None = None,
    score_mod: Any = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    return_lse: bool = False,
    implementation: str | None = None,
) -> Any:
    """Average the values, each weighted by how well its key answers the query; every T x S score is built.

    ``s = scale · Q Kᵀ``; the score modifier; ``+ bias``; the mask; ``p = softmax(s)``; dropout; ``out = p V`` (L2).

    Args:
        query: (..., N, T, D); or (T, D) for one head, and so the others (L1).
        key: (..., G, S, D), N a multiple of G: query head n reads key head n // (N // G).
        value: (..., G, S, V).
        mask: None; boolean, (T, S) or of the full rank of the scores, each axis full or 1, True = may look (L3); or a
            value from ``attendax.masks``.
        bias: None, or floating, broadcastable to the scores (..., N, T, S); -inf forbids (L5).
        score_mod: None, or a value from ``attendax.scores``.
        scale: a number; 1/√D unless given.
        dropout_rate: in [0, 1] (L10).
        dropout_rng: a random key, where the rate is above 0.
        return_lse: whether to return the log-sum-exp of the scores, too (L9).
        implementation: None or "dense", which this is.

    Returns:
        out (..., N, T, V) in the dtype of ``query``; with ``return_lse`` also lse (..., N, T), natural logarithm,
        float32 or wider. A query that may look at no key has out 0 and lse -inf (L5).

    Raises:
        TypeError: an array is not floating, dtypes differ, or the mask is not boolean.
        ValueError: a rank, a size or an option is out of bounds.

    Example:
        >>> query, key, value = jnp.zeros((1, 2)), jnp.zeros((4, 2)), jnp.arange(4.0)[:, None]
        >>> attention(query, key, value).tolist()
        [[1.5]]
    """
    inputs = query, key, value, mask, bias, score_mod, scale, dropout_rate, dropout_rng
    out, lse, _ = _forward("attention", *inputs, implementation, return_lse)
    return (out, lse) if return_lse else out


def _forward(
    function: str,
    query: Array,
    key: Array,
    value: Array,
    mask: Any,
    bias: Array | None,
    score_mod: Any,
    scale: float | None,
    dropout_rate: float,
    dropout_rng: Any,
    implementation: str | None,
    return_lse: bool = False,
    **gradients: Any,
) -> tuple[Array, Array, Array]:
    """out, lse, and the weights after dropout."""
    border = checks.attention(
        function,
        query,
        key,
        value,
        mask,
        bias,
        score_mod,
        scale,
        dropout_rate,
        dropout_rng,
        implementation,
        return_lse,
        **gradients,
    )
    q, k, v, b = widen(query, key, value, bias)
    if query.ndim == 2:  # one head, no batch
        q, k, v = q[None], k[None], v[None]
    k, v = (jnp.repeat(x, border.group, axis=-3) for x in (k, v))
    shape = (*q.shape[:-1], k.shape[-2])
    allowed = as_allowed(mask, shape)
    scores = matmul_transposed(border.scale * q, k)
    if score_mod is not None:  # a forbidden score, perhaps NaN, would come back as the derivative of the modifier
        open_pairs = allowed if b is None else add_bias(scores, b, allowed)[1]
        scores = modify(score_mod.spread(len(shape)), jnp.where(open_pairs, scores, 0), all_positions(shape))
    if b is not None:
        scores, allowed = add_bias(scores, b, allowed)
    weights, lse = masked_softmax(scores, allowed)
    if border.rate:
        _, row, column = all_positions(shape)
        keys = tuple(word[..., None, None] for word in dropout.head_keys(border.words, shape[:-2]))
        kept = dropout.keep(keys, row, column, border.rate)
        weights = jnp.where(kept, weights / (1 - border.rate if border.rate < 1 else 1), 0)
    out = sum_over_allowed(weights, v, allowed).astype(query.dtype)
    weights = weights.astype(query.dtype).reshape(*query.shape[:-1], key.shape[-2])
    return out.reshape(*query.shape[:-1], value.shape[-1]), lse.reshape(query.shape[:-1]), weights


@knows_keywords
@takes_arrays
def attention_with_weights(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Any = None,
    bias: Array | None = None,
    score_mod: Any = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    implementation: str | None = None,
) -> tuple[Array, Array, Array]:
    """``attention`` for those who want to look inside: out, lse, and the weights (..., N, T, S) after dropout."""
    inputs = query, key, value, mask, bias, score_mod, scale, dropout_rate, dropout_rng
    return _forward("attention_with_weights", *inputs, implementation)


@knows_keywords
@takes_arrays
def attention_backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Any = None,
    bias: Array | None = None,
    score_mod: Any = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    grad_lse: Array | None = None,
    implementation: str | None = None,
) -> AttentionGradients:
    """Gradients of every floating input as ``AttentionGradients``; derived by hand in ``spec``."""
    name, rest = "attention_backward", (scale, dropout_rate, dropout_rng)
    checks.attention(
        name,
        query,
        key,
        value,
        mask,
        bias,
        score_mod,
        *rest,
        implementation,
        grad_output=grad_output,
        grad_lse=grad_lse,
    )

    def forward(query, key, value, bias, score_mod):
        return _forward(
            name.removesuffix("_backward"), query, key, value, mask, bias, score_mod, *rest, implementation
        )[:2]

    (_, lse), pull = jax.vjp(forward, query, key, value, bias, score_mod)
    return AttentionGradients(
        *pull((grad_output, jnp.zeros_like(lse) if grad_lse is None else grad_lse.astype(lse.dtype)))
    )
