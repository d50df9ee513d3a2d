"""``attendax.attention`` with all T x S scores at once: out, the weights, and the gradients as a function."""

from typing import Any, Literal, Unpack, overload

import jax
import jax.numpy as jnp
from jax import Array

from attendax.inspection import all_weights
from attendax.kernels.call import Call, as_asked, checked_call, results_of
from attendax.kernels.derivatives import attend
from attendax.kernels.operands import public
from attendax.kernels.sinks import share_of_keys, with_sinks
from attendax.mask_kinds import lifted
from attendax.masks import ArrayLike, Mask
from attendax.options import Options, in_full
from attendax.params import AttentionGradients
from attendax.scores import ScoreModifier
from attendax.sharding.layout import refuse_divided_tokens


@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: Literal[False] = ..., **options: Unpack[Options]
) -> Array: ...
@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[Array, Array]: ...
@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: bool, **options: Unpack[Options]
) -> Array | tuple[Array, Array]: ...
@public
@in_full
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    score_mod: ScoreModifier | None = None,
    scale: float | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    return_lse: bool = False,
    implementation: str | None = None,
) -> Array | tuple[Array, Array]:
    """Average the values, each weighted by how well its key answers the query. Builds every T x S score.

    ``s = scale · Q Kᵀ``; the score modifier; ``+ bias``; the mask; ``p = softmax(s)``; dropout; ``out = p V`` (L2).

    Args:
        {arguments}
        implementation: None or "dense".

    Returns:
        {results}

    Raises:
        {errors}

    Example:
        >>> query, key, value = jnp.zeros((1, 2)), jnp.zeros((4, 2)), jnp.arange(4.0)[:, None]
        >>> attention(query, key, value).tolist()
        [[1.5]]
    """
    options = {"mask": mask, "bias": bias, "score_mod": score_mod, "scale": scale, "return_lse": return_lse}
    options |= {"dropout_rate": dropout_rate, "dropout_rng": dropout_rng}
    call = _dense("attention", query, key, value, implementation, **options)
    return results_of(call, query, value, return_lse, score_mod)


def _dense(
    function: str, query: ArrayLike, key: ArrayLike, value: ArrayLike, implementation: str | None = None, **options: Any
) -> Call:
    implementation = "dense" if implementation is None else implementation
    return checked_call(function, query, key, value, implementation=implementation, offered=("dense",), **options)


def out_and_weights(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, allowed: ArrayLike, bias: ArrayLike | None = None
) -> tuple[Array, Array]:
    """out (..., T, V) and weights (..., T, S) of heads that share nothing, for boolean ``allowed`` of that shape."""
    if bias is not None:
        bias = lifted(bias, allowed.ndim)[..., None, :, :]
    q, k, v, mask = (x[..., None, :, :] for x in (query, key, value, allowed))  # one head of each
    call = _dense("attention", q, k, v, mask=mask, bias=bias)
    out, weights = results_of(call, q, v, False), all_weights(call).astype(query.dtype)
    return out.reshape(*query.shape[:-1], value.shape[-1]), weights.reshape(allowed.shape)


@public
def attention_with_weights(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    score_mod: ScoreModifier | None = None,
    scale: float | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    implementation: str | None = None,
) -> tuple[Array, Array, Array]:
    """``attention`` that returns out, lse, and the weights (..., N, T, S) after dropout."""
    options = {"mask": mask, "bias": bias, "score_mod": score_mod, "scale": scale, "return_lse": True}
    options |= {"dropout_rate": dropout_rate, "dropout_rng": dropout_rng}
    call = _dense("attention_with_weights", query, key, value, implementation, **options)
    refuse_divided_tokens("attention_with_weights", query, key)
    results = attend(*call)
    weights = all_weights(call) * share_of_keys(results, with_sinks(results, score_mod))
    weights = weights.astype(query.dtype).reshape(*query.shape[:-1], key.shape[-2])
    return *as_asked(results, query, value, True, score_mod), weights


@public
def attention_backward(
    grad_output: ArrayLike, query: ArrayLike, key: ArrayLike, value: ArrayLike, *, mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None, score_mod: ScoreModifier | None = None, scale: float | ArrayLike | None = None,
    dropout_rate: float = 0.0, dropout_rng: Any = None, grad_lse: ArrayLike | None = None,
    implementation: str | None = None,
) -> AttentionGradients:  # fmt: skip
    """Gradients of every floating input as ``AttentionGradients``; derived by hand in ``spec``."""
    rest = {"mask": mask, "scale": scale, "dropout_rate": dropout_rate, "dropout_rng": dropout_rng}
    options = rest | {"bias": bias, "score_mod": score_mod, "grad_output": grad_output, "grad_lse": grad_lse}
    _dense("attention_backward", query, key, value, implementation, **options)

    def forward(query, key, value, bias, score_mod):
        return attention(query, key, value, bias=bias, score_mod=score_mod, return_lse=True, **rest)

    (_, lse), pull = jax.vjp(forward, query, key, value, bias, score_mod)
    dlse = jnp.zeros_like(lse) if grad_lse is None else grad_lse.astype(lse.dtype)
    return AttentionGradients(*pull((grad_output, dlse)))
