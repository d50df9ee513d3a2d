"""``attention_fn`` for the attention layers of flax, nnx and linen."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax import checks, masks
from attendax.checks import fail, is_traced
from attendax.checks.keywords import HERE, knows_arguments
from attendax.kernels import dropout
from attendax.kernels.call import checked_call, results_of
from attendax.ops import attention_with_weights

from .layout import heads_first, joined, scores_shape, wide_bias

__all__ = ["attention_fn"]

NAME = "flax.attention_fn"
KNOWN = {
    **{name: HERE[name] for name in ("attn_mask", "attention_mask", "attn_bias", "dropout_p", "dropout")},
    **dict.fromkeys(("causal", "use_causal_mask"), "Write is_causal=True."),
}


@knows_arguments(KNOWN, NAME)
def attention_fn(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    broadcast_dropout: bool = True,
    dropout_rng: Any = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    promote_dtype: Any = None,
    is_causal: bool = False,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: Any = None,
    qk_attn_weights_einsum: Any = None,
    attn_weights_value_einsum: Any = None,
) -> Array:
    """``attendax.attention`` as the ``attention_fn`` of flax's attention layers.

    For ``flax.nnx.MultiHeadAttention`` and ``flax.linen.MultiHeadDotProductAttention`` alike. Linen passes on only what
    a signature names, so everything is named; what would change a result, and is not done here, is refused. Where the
    two differ: a query that may look at no key gets 0 and not the mean of the values, and dropout draws other numbers.

    Args:
        query: (..., T, N, D).
        key: (..., S, G, D), N a multiple of G.
        value: (..., S, G, V).
        bias: None, or floating, broadcastable to (..., N, T, S).
        mask: None; (T, S) or of the rank of (..., N, T, S), any axis 1; or a mask from ``attendax.masks``. It is
            boolean, or holds numbers that are 0 or 1, as flax's helpers make them.
        broadcast_dropout: whether all heads of all batches drop the same pairs; this takes two passes.
        dropout_rng: a random key, where the rate is above 0.
        dropout_rate: in [0, 1].
        deterministic: no dropout.
        dtype: to compute in; that of the arrays together unless given.
        precision: None or the default.
        module: where to sow the weights, under "attention_weights" of the intermediates; builds all T x S of them.
        promote_dtype: None, or what casts ``(query, key, value)``.
        is_causal: query i may look at keys 0 to i.
        force_fp32_for_softmax: kept in any case: softmax is in float32 or wider.
        einsum_dot_general, qk_attn_weights_einsum, attn_weights_value_einsum: None.

    Returns:
        (..., T, N, V).

    Raises:
        TypeError: an array is not floating.
        ValueError: a rank or a size disagrees, or a mask of numbers holds others than 0 and 1.
        NotImplementedError: a precision or a product of your own.

    Example:
        >>> attention_fn(jnp.zeros((2, 1, 3)), jnp.zeros((4, 1, 3)), jnp.arange(4.0).reshape(4, 1, 1)).ravel().tolist()
        [1.5, 1.5]
    """
    own = (einsum_dot_general, qk_attn_weights_einsum, attn_weights_value_einsum)
    if any(x is not None for x in own) or precision not in (None, "default", lax.Precision.DEFAULT):
        advice = "Leave out precision and the einsums."
        fail(NotImplementedError, NAME, "products are made by the kernels, in their own precision.", advice=advice)
    checks.boolean(NAME, "is_causal", is_causal)
    if promote_dtype is None:
        promote_dtype = _promoted
    query, key, value = heads_first(NAME, *promote_dtype((query, key, value), dtype=dtype))
    mask = joined(NAME, scores_shape(query, key), _of_booleans(mask), masks.causal() if is_causal else None)
    bias = wide_bias(bias, query.dtype)
    if module is not None:
        _sow(module, attention_with_weights(query, key, value, mask=mask, bias=bias)[2])
    rate = 0.0 if deterministic else checks.number(NAME, "dropout_rate", dropout_rate, low=0, high=1)
    if rate and broadcast_dropout:
        out = _with_one_dropout(query, key, value, mask, bias, rate, dropout_rng)
    else:
        options: dict[str, Any] = {"dropout_rate": rate, "dropout_rng": dropout_rng if rate else None}
        call = checked_call(NAME, query, key, value, mask, bias, **options)
        out = results_of(call, query, value, False)
    return out.swapaxes(-3, -2)


def _promoted(arrays: tuple[Any, ...], dtype: Any = None) -> tuple[Array, ...]:
    """The arrays in ``dtype``, or in that of all together."""
    dtype = jnp.result_type(*arrays) if dtype is None else dtype
    return tuple(jnp.asarray(x, dtype) for x in arrays)


def _of_booleans(mask: Any) -> Any:
    """A mask of numbers as booleans. Other numbers than 0 and 1 are refused, if they are known."""
    kind = str(getattr(mask, "dtype", "bool"))
    if kind == "bool":
        return mask
    if not is_traced(mask):
        known = np.asarray(mask)
        if not ((known == 0) | (known == 1)).all():
            advice = "Pass numbers that are added to the scores as bias."
            fail(ValueError, NAME, f"mask has dtype {kind} and holds other numbers than 0 and 1.", advice=advice)
    return jnp.asarray(mask) != 0


def _sow(module: Any, weights: Array) -> None:
    """Keep the weights where flax's own function does; the module is flax's, so flax is there."""
    from flax import nnx

    module.sow(nnx.Intermediate if isinstance(module, nnx.Module) else "intermediates", "attention_weights", weights)


def _with_one_dropout(query: Any, key: Any, value: Any, mask: Any, bias: Any, rate: float, rng: Any) -> Array:
    """Dropout of the same pairs in every head, with no array of T x S.

    With K the kept keys of a query, ``Σ_{j in K} p_j v_j`` is the attention over K alone, times the share
    ``Σ_{j in K} p_j = exp(lse_K - lse)`` that K has of all weight.
    """
    key_data = checks.key_data(NAME, rng)
    if rate == 1:
        return jnp.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)
    limit = np.uint32(min(round(rate * 2**32), 2**32 - 1))
    kept = masks.from_function(_kept, key_data[:1, None], key_data[1:, None], limit)

    def attend(mask: Any) -> Any:
        return results_of(checked_call(NAME, query, key, value, mask, bias, return_lse=True), query, value, True)

    (_, lse), (out, lse_kept) = attend(mask), attend(joined(NAME, scores_shape(query, key), mask, kept))
    share = jnp.exp(lse_kept - jnp.where(lse == -jnp.inf, 0, lse))
    return (out * (share / (1 - rate))[..., None]).astype(query.dtype)


def _kept(i: Array, j: Array, first: Array, second: Array, limit: Array) -> Array:
    """Tell whether dropout keeps a pair: the rule of ``kernels.dropout`` with one key for all heads."""
    drawn, _ = dropout.threefry((first, second), (i.astype(jnp.uint32), j.astype(jnp.uint32)))
    return drawn >= limit
