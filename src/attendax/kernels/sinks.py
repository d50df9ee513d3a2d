"""Sinks: keys with a learned score and the value 0, merged with the results of a call (L9).

With ``lse`` that of the keys and l the logit, the keys keep the share ``σ(lse - l)`` of the weight: ``out`` times the
share is the average, and ``log(exp(lse) + exp(l))`` the lse of all. So tiles compute nothing for a sink. Keys and sink
are merged as two parts are in ``online_softmax``, written out for its derivatives, which need both shares.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from attendax.scores import ScoreModifier

from .numerics import repeated, vary_alike
from .online_softmax import log_sum_exp, max_or_zero, sum_or_one
from .operands import Results
from .rules import with_rule


def with_sinks(results: Results, score_mod: ScoreModifier | None) -> Results:
    """The results of a call, from those over its keys: each sink of the modifier takes its share."""
    for logits in [] if score_mod is None else score_mod.sinks():
        results = _with_sink(results, logits)
    return results


def share_of_keys(one: Results, other: Results) -> Array:
    """The factor on the weights of ``one`` in ``other``, which is ``one`` with sinks: (..., N, T, 1)."""
    below = jnp.exp(max_or_zero(one.row_max) - max_or_zero(other.row_max))
    return one.row_sum * below / sum_or_one(other.row_sum)


@jax.jit
def _with_sink(results: Results, logits: Array) -> Results:
    """The results with a sink of logits (N,). A logit of +inf is not finite and seen, so it counts as NaN (L6)."""
    column = logits.astype(results.lse.dtype).reshape((1,) * (results.lse.ndim - 3) + (-1, 1, 1))
    column += jnp.where(jnp.isposinf(column), jnp.nan, 0)
    column = jnp.zeros_like(results.lse) + column  # of its shape, and where it lies
    row_max, row_sum = jax.lax.stop_gradient(results[1:3])
    common_max = jnp.maximum(row_max, jax.lax.stop_gradient(column))
    share, _, lse, row_sum = _merge_with_sink(results.lse, column, row_max, row_sum)
    share = jnp.zeros_like(results.out) + repeated(share, results.out.shape[-1])
    return Results(_times(results.out, share), common_max, row_sum, lse)


def _merged(lse: Array, logits: Array, row_max: Array, row_sum: Array) -> tuple[Array, ...]:
    """The shares of the keys and of the sink; lse and row sum of both, the sum above the larger of the two maxima.

    Values use row_max and row_sum, which are more precise than lse. Derivatives go through lse.
    """
    common_max = jnp.maximum(row_max, logits)
    of_keys, of_sink = row_sum * jnp.exp(row_max - max_or_zero(common_max)), jnp.exp(logits - max_or_zero(common_max))
    of_keys = jnp.where(of_keys == of_keys, of_keys, jnp.nan)  # no multiply-add: some programs would have one (L15)
    both = of_keys + of_sink
    return of_keys / sum_or_one(both), of_sink / sum_or_one(both), log_sum_exp(common_max, both), both


def _tangents_of_merged(arrays: Sequence[Array], tangents: Sequence[Array | None]) -> tuple[Array, ...]:
    """``σ' = σ (1 - σ)``; the tangent of lse is the sum of both tangents, each times its share."""
    of_keys, of_sink, _, row_sum = _merge_with_sink(*arrays)
    dlse, dlogits = (jnp.zeros_like(of_keys) if t is None else t for t in tangents[:2])
    dshare = _times(_times(of_keys, of_sink), dlse) - _times(_times(of_keys, of_sink), dlogits)
    dboth = _times(of_keys, dlse) + _times(of_sink, dlogits)
    return dshare, -dshare, dboth, _times(row_sum, dboth)


_merge_with_sink = with_rule("attention_sink", _merged, _tangents_of_merged)


def _times(one: Array, other: Array) -> Array:
    """``one · other``, where 0 times NaN is 0, also in each derivative.

    So a row that is not finite spoils nothing if its cotangent is 0, nor does a tangent of a sink of -inf (L6).
    """
    return _times_p.bind(*vary_alike((one, other)))


def _product(one: Array, other: Array) -> Array:
    return jnp.where((one == 0) | (other == 0), 0, one * other)


def _batch(arrays: Sequence[Array], axes: Sequence[int | None]) -> tuple[Any, int]:
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    each = zip(arrays, axes, strict=True)
    return _times(*(batching.bdim_at_front(x, axis, size) for x, axis in each)), 0


_times_p = Primitive("attention_times")
_times_p.def_impl(jax.jit(_product))
_times_p.def_abstract_eval(lambda one, other: one.update(weak_type=False))
mlir.register_lowering(_times_p, mlir.lower_fun(_product, multiple_results=False))
ad.defbilinear(_times_p, lambda grad, one, other: _times(grad, other), lambda grad, one, other: _times(one, grad))
batching.primitive_batchers[_times_p] = _batch
