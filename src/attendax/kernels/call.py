"""A checked call of attention as one value: its arrays, in the rank of the scores, and its plan."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from attendax import checks
from attendax.checks import fail
from attendax.mask_kinds import lifted
from attendax.masks import ArrayLike, Mask
from attendax.scores import ScoreModifier

from . import dropout
from .backends import BACKENDS, default
from .derivatives import attend
from .functions import evaluated, has_function, trace_mask, trace_modifier
from .operands import Operands, Plan, Results, widen
from .sinks import with_sinks

FEW = 8  # queries


class Call(NamedTuple):
    """A call that has passed its checks: what a backend is given."""

    operands: Operands
    plan: Plan


def checked_call(
    function: str,
    query: Any,  # (..., N, T, D)
    key: Any,  # (..., G, S, D)
    value: Any,  # (..., G, S, V)
    mask: Any = None,  # a Mask, or (..., N, T, S)
    bias: Any = None,  # (..., N, T, S)
    score_mod: ScoreModifier | None = None,
    scale: Any = None,  # a number, or a scalar array, which may be traced
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,  # a key
    implementation: str | None = None,
    return_lse: bool = False,
    *,
    offered: tuple[str, ...] | None = None,
    traced: bool = True,
    **gradients: Any,
) -> Call:
    """Check the arguments, and bring the arrays into the rank of the scores; nothing of size T x S is built.

    Offered are all backends, unless named. Where not ``traced``, the functions in mask and modifier are still those of
    the user.
    """
    if is_symbolic(query, key):
        implementation = _without_tiles(function, implementation)
    is_data = isinstance(scale, Array) and scale.ndim == 0 and checks.is_floating(scale.dtype)  # a learned temperature
    factor, scale = (scale, None) if is_data else (None, scale)
    options: Any = scale, dropout_rate, dropout_rng, implementation, return_lse
    gradients |= {"offered": offered or tuple(BACKENDS)}
    checked = checks.attention(function, query, key, value, mask, bias, score_mod, *options, **gradients)
    if factor is not None:  # in the query, where it has its gradient; in the dtype that is computed in (L8)
        query, key, value = widen(query, key, value)
        query, checked = _scaled(query, factor.astype(query.dtype)), checked._replace(scale=1.0)
    operands, plan = in_rank_of_scores(checked, query, key, value, mask, bias, score_mod, implementation)
    plan = dataclasses.replace(plan, needs_lse=return_lse or plan.needs_lse)
    if implementation:
        BACKENDS[implementation].refuse(function, operands, plan)
    return with_arrays(Call(with_traced(operands), plan)) if traced else Call(operands, plan)


def _scaled(query: Array, factor: Array) -> Array:
    """The query times a factor; a number that is not finite has no part in the factor's gradient.

    Where anything depends on such a row, the gradients of the others are NaN. Where nothing does, all are 0 (L6).
    """
    finite = jnp.isfinite(query)
    rest = jnp.where(finite, 0, query * lax.stop_gradient(factor))
    return jnp.where(finite, query, 0) * factor + rest


def _without_tiles(function: str, implementation: str | None) -> str:
    """The backend of a call of symbolic sizes: tiles have sizes that are known, so all scores are one.

    Raises:
        NotImplementedError: another was asked for.
    """
    if implementation not in (None, "dense"):
        sentence = f"implementation {implementation!r} has tiles of known sizes; here T or S is symbolic (jax.export)."
        advice = "Leave implementation out: then all T x S scores are one tile. Or export for the largest length, and "
        advice += "leave the padding out by masks.padding(lengths)."
        fail(NotImplementedError, function, sentence, advice=advice)
    return "dense"


def is_symbolic(query: ArrayLike, key: ArrayLike) -> bool:
    """Tell whether T or S is a size that only the calls of an exported program know (jax.export)."""
    sizes = ((1, 1, *getattr(x, "shape", ()))[-2] for x in (query, key))
    return not all(isinstance(size, int) for size in sizes)


def in_rank_of_scores(
    checked: checks.Checked, query: Array, key: Array, value: Array, mask: Mask | Array | None, bias: Array | None,
    score_mod: ScoreModifier | None, backend: str | None,
) -> Call:  # fmt: skip
    """The call of arguments that have passed their checks; functions are not traced yet, and sinks are left out."""
    has_sinks = score_mod is not None and bool(score_mod.sinks())
    score_mod = None if score_mod is None else score_mod.without_sinks()
    query, key, value = (x[None] if x.ndim == 2 else x for x in (query, key, value))
    shape = *query.shape[:-1], key.shape[-2]
    if 0 in shape:  # no pair: nothing to ask a function for
        mask = score_mod = None
    if mask is not None:
        mask = (mask if isinstance(mask, Mask) else Mask("dense", (mask,))).of_rank(query.ndim)
    if bias is not None:
        bias = lifted(bias, query.ndim)
    if score_mod is not None:
        score_mod = score_mod.of_rank(query.ndim)
    dropout_keys = None
    if checked.rate:
        dropout_keys = tuple(word[..., None, None] for word in dropout.head_keys(checked.key_data, query.shape[:-2]))
    scale, rate, name = float(checked.scale), float(checked.rate), backend or default()
    plan = Plan(scale, rate, BACKENDS[name].limits(), name, asked=backend is not None, needs_lse=has_sinks)
    return Call(Operands(query, key, value, bias, score_mod, mask, dropout_keys), plan)


def with_traced(operands: Operands) -> Operands:
    """The operands with the functions in mask and modifier traced."""
    shape = *operands.query.shape[:-1], operands.key.shape[-2]
    mask, score_mod = operands.mask, operands.score_mod
    mask = None if mask is None else trace_mask(mask, *shape[-2:])
    score_mod = None if score_mod is None else trace_modifier(score_mod, shape, operands.compute_dtype())
    return operands._replace(mask=mask, score_mod=score_mod)


def with_arrays(call: Call) -> Call:
    """The call; if its queries are few and it runs in the kernel of C++, which takes no function, its mask is an array.

    Of few queries such an array is smaller than the keys of a head.
    """
    operands, plan = call
    few = not is_symbolic(*operands[:2]) and operands.query.shape[-2] <= FEW
    if not few or plan.backend != "native" or not has_function(operands.mask) or has_function(operands.score_mod):
        return call
    sizes = operands.query.ndim, operands.query.shape[-2], operands.key.shape[-2]
    return Call(operands._replace(mask=evaluated(operands.mask, *sizes)), plan)


def results_of(
    call: Call, query: ArrayLike, value: ArrayLike, return_lse: bool, score_mod: ScoreModifier | None = None
) -> Any:
    """out, or out and lse, of a call of this query, value and modifier, as its caller has shaped them."""
    return as_asked(attend(*call), query, value, return_lse, score_mod)


def as_asked(
    results: Results, query: ArrayLike, value: ArrayLike, return_lse: bool, score_mod: ScoreModifier | None = None
) -> Any:
    """out, or out and lse, in the shapes of this query and value, with the sinks of this modifier."""
    results = with_sinks(results, score_mod)
    rows, out, lse = query.shape[:-1], results.out, results.lse
    out = out if out.dtype == query.dtype else out.astype(query.dtype)
    out = out if out.ndim == query.ndim else out.reshape(*rows, value.shape[-1])
    return (out, lse if lse.shape == rows else lse.reshape(rows)) if return_lse else out
