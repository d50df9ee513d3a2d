"""The whole law in dense NumPy: every option of ``attendax.attention``, and the gradient of every floating input.

This is the judge. It builds all T x S scores and weights, one step of L2 after the other.
"""

from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np

from attendax import checks
from attendax.checks import knows_keywords
from attendax.options import Options, in_full
from attendax.params import AttentionGradients

from . import dropout
from .attention_core import add_bias
from .score_modifiers import modify, modify_backward, sink, sink_backward, with_sink_gradients
from .weighted_sum import Array, as_allowed, average, average_backward, public, quiet, sum_to_shape, take_out, widen

LOW = -16  # the least exponent of scaled queries that are not raised


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
@in_full
def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Any = None,
    bias: Any = None,
    score_mod: Any = None,
    scale: Any = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    return_lse: bool = False,
    implementation: str | None = None,
) -> Array | tuple[Array, Array]:
    """Average the values, each weighted by how well its key answers the query: the whole law, by definition.

    ``s = scale · Q Kᵀ``; the score modifier; ``+ bias``; the mask; ``p = softmax(s)``; dropout; ``out = p V`` (L2).

    Args:
        {arguments}
        implementation: None or "dense", which this is.

    Returns:
        {results}

    Raises:
        {errors}

    Example:
        >>> query, key, value = np.zeros((1, 2)), np.zeros((4, 2)), np.arange(4.0)[:, None]
        >>> out, lse = attention(query, key, value, return_lse=True)
        >>> out, lse.round(4)
        (array([[1.5]]), array([1.3863]))
    """
    inputs = query, key, value, mask, bias, score_mod, scale, dropout_rate, dropout_rng
    steps = _forward("attention", *inputs, implementation, return_lse)
    out = steps.out.astype(query.dtype).reshape(*query.shape[:-1], value.shape[-1])
    return (out, steps.lse.reshape(query.shape[:-1])) if return_lse else out


@knows_keywords
def attention_with_weights(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Any = None,
    bias: Array | None = None,
    score_mod: Any = None,
    scale: Any = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    implementation: str | None = None,
) -> tuple[Array, Array, Array]:
    """``attention`` for those who want to look inside.

    Args:
        query, key, value, mask, bias, score_mod, scale, dropout_rate, dropout_rng, implementation: as in ``attention``.

    Returns:
        out (..., N, T, V), lse (..., N, T), and the weights (..., N, T, S) after dropout.

    Raises:
        TypeError, ValueError: as ``attention``.
    """
    inputs = query, key, value, mask, bias, score_mod, scale, dropout_rate, dropout_rng
    steps = _forward("attention_with_weights", *inputs, implementation)
    out = steps.out.astype(query.dtype).reshape(*query.shape[:-1], value.shape[-1])
    weights = (steps.weights * steps.kept)[..., : key.shape[-2]].astype(query.dtype)
    return out, steps.lse.reshape(query.shape[:-1]), weights.reshape(*query.shape[:-1], key.shape[-2])


class _Steps(NamedTuple):
    """The forward, step by step, in the compute dtype and with a head axis: what the backward goes back through.

    q, k and v are those of ``take_out``. Sinks are keys of v, allowed, weights and kept, behind all others.
    """

    q: Any
    k: Any
    v: Any
    scale: float
    products: Any
    allowed: Any
    weights: Any
    kept: Any
    out: Any
    lse: Any


@quiet
def _forward(
    function: str, query: Array, key: Array, value: Array, mask: Any, bias: Any, score_mod: Any, *more: Any, **rest: Any
) -> Any:
    """The steps; ``more`` and ``rest`` are options that ``checks.attention`` settles."""
    checked = checks.attention(function, query, key, value, mask, bias, score_mod, *more, **rest)
    q, k, v, b = widen(query, key, value, bias)
    if query.ndim == 2:  # one head, no batch
        q, k, v = q[None], k[None], v[None]
    k, v = (np.repeat(x, checked.group, axis=-3) for x in (k, v))
    q, k, v, spoiled = take_out(q, k, v)
    shape = (*q.shape[:-1], k.shape[-2])
    allowed = as_allowed(mask, shape)
    if b is not None:
        allowed = allowed & (b != -np.inf)
    products = np.where(allowed, scaled_products(q, k, checked.scale), 0)
    scores = products if score_mod is None else modify(score_mod, products)
    scores = scores if b is None else add_bias(scores, b, allowed)[0]
    scores = np.where(spoiled, np.nan, scores)  # last, because a modifier may hide a NaN
    kept = np.ones((), q.dtype)
    if checked.rate:
        share = q.dtype.type(1 - checked.rate if checked.rate < 1 else 1)  # of the weights that are kept
        kept = dropout.keep(checked.key_data, shape, checked.rate) / share
    for logits in [] if score_mod is None else score_mod.sinks():
        scores, v, allowed, kept = sink(logits, scores, v, allowed, kept)
    out, weights = average(scores, v, allowed, kept)
    lse = log_sum_exp(np.where(allowed, scores, -np.inf))
    return _Steps(q, k, v, checked.scale, products, allowed, weights, kept, out, lse)


def scaled_products(q: Array, k: Array, scale: float) -> Array:
    """``scale · q kᵀ``: the queries are scaled first, by as much as leaves each row in the range of its dtype (L7).

    The rest is a power of two, by which the products of a row are multiplied exactly.
    """
    finite = np.where(np.isfinite(q), np.abs(q), 0)
    exponent = sum(np.frexp(x)[1] for x in (finite.max(axis=-1, keepdims=True, initial=0), np.float64(scale)))
    limits = np.finfo(q.dtype)
    raised = np.clip(LOW - exponent, 0, -limits.minexp - 6) + np.minimum(limits.maxexp - 2 - exponent, 0)
    rows = (np.ldexp(np.asarray(scale, np.float64), raised).astype(q.dtype)) * q
    return np.ldexp(rows @ k.swapaxes(-1, -2), -raised)


def log_sum_exp(scores: Array) -> Array:
    """``log Σⱼ exp(sᵢⱼ)``, computed as ``m + log Σⱼ exp(sᵢⱼ - m)`` with m the largest; -inf for the empty set."""
    largest = np.max(scores, axis=-1, initial=-np.inf)
    shift = np.where(largest == -np.inf, 0, largest)
    return shift + np.log(np.exp(scores - shift[..., None]).sum(axis=-1))


@public
def attention_backward(
    grad_output: Array, query: Array, key: Array, value: Array, *, mask: Any = None, bias: Array | None = None,
    score_mod: Any = None, scale: Any = None, dropout_rate: float = 0.0, dropout_rng: Any = None,
    grad_lse: Array | None = None, implementation: str | None = None,
) -> AttentionGradients:  # fmt: skip
    """Pull gradients back through attention, to every floating input.

    With ``z = scale · Q Kᵀ``, ``s = mod(z) + bias`` on the allowed pairs, ``p = softmax(s)``,
    ``w = kept p / (1 - rate)``, ``out = w V`` and ``lse = log Σ exp(s)``; dout and dlse are given::

        dv_j  = Σ_i w_ij dout_i                       also over the query heads of a group
        dw_ij = dout_i · v_j,  dp_ij = dw_ij kept_ij / (1 - rate)
        ds_ij = p_ij (dp_ij - Σ_k dp_ik p_ik)         softmax
              + p_ij dlse_i                           ∂lse_i/∂s_ij = p_ij: L9's  delta <- delta - dlse
        dlogits_n = Σ_i p_i0 (dlse_i - Σ_k dp_ik p_ik)   a sink is a key, here 0, of value 0; i are those of head n
        dbias = ds                                    summed over the axes along which the bias was repeated
        dz    = ds mod'(z)                            and the arrays of the modifier get theirs
        dq_i  = scale Σ_j dz_ij k_j
        dk_j  = scale Σ_i dz_ij q_i                   also over the query heads of a group

    A forbidden pair has p = 0 and adds nothing to any of the sums.

    Args:
        grad_output: gradient with respect to out (..., N, T, V).
        query, key, value, mask, bias, score_mod, scale, dropout_rate, dropout_rng, implementation: as in the forward.
        grad_lse: gradient with respect to lse (..., N, T), in its dtype; None for 0.

    Returns:
        ``AttentionGradients``.

    Raises:
        TypeError, ValueError: as the forward.
        NotImplementedError: for a ``score_mod`` from an arbitrary function.
    """
    inputs = query, key, value, mask, bias, score_mod, scale, dropout_rate, dropout_rng
    steps = _forward("attention_backward", *inputs, implementation, grad_output=grad_output, grad_lse=grad_lse)
    gradient = grad_output.astype(steps.q.dtype).reshape(steps.out.shape)
    dlse: Any = 0.0 if grad_lse is None else grad_lse.astype(gradient.dtype).reshape(gradient.shape[:-1])
    grad_scores, grad_v = average_backward(gradient, steps.weights, steps.v, steps.allowed, steps.kept, dlse)
    S = key.shape[-2]
    grad_scores, grad_sinks, grad_v = grad_scores[..., :S], grad_scores[..., S:], grad_v[..., :S, :]
    grad_products, grad_score_mod = grad_scores, None
    if score_mod is not None:
        grad_products, grad_score_mod = modify_backward(grad_scores, score_mod, steps.products)
        pairs = zip(np.moveaxis(grad_sinks, -1, 0), score_mod.sinks(), strict=True)
        grad_score_mod = with_sink_gradients(grad_score_mod, [sink_backward(*pair) for pair in pairs])
    grad_products = steps.scale * grad_products
    return AttentionGradients(
        (grad_products @ steps.k).reshape(query.shape).astype(query.dtype),
        _ungroup(grad_products.swapaxes(-1, -2) @ steps.q, key),
        _ungroup(grad_v, value),
        None if bias is None else sum_to_shape(grad_scores, bias.shape).astype(bias.dtype),
        grad_score_mod,
    )


def _ungroup(gradient: Array, array: Array) -> Array:
    """Sum the gradient (..., N, S, .) over the query heads that share a head of ``array`` (..., G, S, .)."""
    if array.ndim == 2:
        return gradient[0].astype(array.dtype)
    *leading, G, S, width = array.shape
    per_group = gradient.shape[-3] // G if G else 1
    return gradient.reshape(*leading, G, per_group, S, width).sum(axis=-3).astype(array.dtype)
