"""Unblocked: heads so small that their scores are not cut into tiles; forward, tangent and cotangent of whole heads.

XLA's CPU compiler makes one kernel of scores, softmax and average, 1.6 to 2.5 times as fast as separate kernels, if it
reads and writes nothing else on the way. So the plain softmax is written out here, and a forward stores no maxima and
sums for the derivatives. These compute them again from their own scores: forward and backward together are 1.0 to 1.6
times as fast.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..not_finite import mark_of_heads, replace_nonfinite, spoiled_rows, with_marks
from ..numerics import all_below, broadcast_in_memory, on_all_cores, product, rows_below, times
from ..operands import Cotangents, Operands, Plan, Results, Tangents, Wanted, wide_dtype
from .partition import loop, rematerialized
from .tile import allowed_pairs
from .tiles import Grid

ROLES = ["queries", "keys", "keys"]
ONE_KERNEL = 4096  # queries of all heads: from so many on, XLA makes one kernel of a forward
WORTH_TWO_CORES = 2**15  # scores: from so many on, a second core pays off
HUGE = 2.0**50  # no product of two rows of smaller numbers and a scale up to 2**10 can overflow


def forward(grid: Grid, operands: Operands, plan: Plan) -> Results:
    """The results; see ``algorithm.forward``."""
    rows = *plan.leading(operands), *operands.query.shape[-3:-1]
    outputs = [("queries", (*rows, width)) for width in (operands.value.shape[-1], 1, 1)]

    def by(work, arrays):
        return _by_chunks(grid, operands, plan, arrays, [], outputs, lambda heads: work(heads, plan))

    def in_two_ways():
        see_it, found = _see_it(grid, operands, plan), by(_in_one_kernel, map(_small, operands[:3]))
        return tuple(jnp.where(see_it, *pair) for pair in zip(by(_by_choice, operands[:3]), found, strict=True))

    if operands.mask is None:
        return Results(*by(_in_one_kernel, operands[:3]))
    return Results(*lax.cond(all_below(operands[:3], HUGE), lambda: by(_in_one_kernel, operands[:3]), in_two_ways))


def tangent(grid: Grid, tangents: Tangents, operands: Operands, plan: Plan) -> tuple[Array, ...]:
    """The tangents of out and lse; see ``algorithm.tangent``."""
    moving = [k for k, t in enumerate(tangents) if t is not None]

    def work(heads, *dots):
        return _tangent(heads, [None if t is None else dots[moving.index(k)] for k, t in enumerate(tangents)], plan)

    rows = *plan.leading(operands), *operands.query.shape[-3:-1]
    outputs = [("queries", (*rows, width)) for width in (operands.value.shape[-1], 1)]
    others = [(ROLES[k], t) for k, t in enumerate(tangents) if t is not None]
    return _by_chunks(grid, operands, plan, operands[:3], others, outputs, work)


def cotangent(
    grid: Grid, grads: Cotangents, operands: Operands, results: Results, plan: Plan, wanted: Wanted
) -> tuple[Array, ...]:
    """Gradients of the leaves for which ``wanted`` gives a shape; see ``algorithm.cotangent``."""
    used = [k for k, shape in enumerate(wanted) if shape is not None]

    def work(heads, dout, dlse, mark):
        found = _cotangent(heads, dout, dlse, mark, plan)
        return [found[k] for k in used]

    outputs = [(ROLES[k], shape) for k, shape in enumerate(wanted) if shape is not None]
    leaves = operands.differentiable()
    dout, dlse = grads
    others = [("queries", x) for x in (dout, dlse, spoiled_rows(dout, dlse, results.out))]
    found = _by_chunks(grid, operands, plan, operands[:3], others, outputs, work)
    return tuple(x.astype(leaves[k].dtype) for k, x in zip(used, found, strict=True))


def _see_it(grid: Grid, operands: Operands, plan: Plan) -> Array:
    """Which rows (..., N, T, 1) are or may look at a number that is ``HUGE`` or not finite."""

    def work(heads):
        bad_keys = ~(rows_below(heads.key, HUGE) & rows_below(heads.value, HUGE))
        pairs = heads.allowed & (~rows_below(heads.query, HUGE) | bad_keys.swapaxes(-1, -2))
        return [jnp.sum(pairs, axis=-1, keepdims=True, dtype=heads.query.dtype)]

    rows = *operands.query.shape[-3:-1], 1
    lead = grid.axes[:-2]
    return _by_chunks(grid, operands, plan, operands[:3], [], [("queries", (*lead, *rows))], work)[0] > 0


class _Heads(NamedTuple):
    """The heads of a chunk along one axis, the queries of those that share keys as rows of one.

    Products of rank 3 take 0.75 to 0.85 of the time of the same ones of rank 4.
    """

    query: Array  # (heads, rows, D)
    key: Array  # (heads, S, D)
    value: Array  # (heads, S, V)
    allowed: Array | None  # which pairs are, (heads or 1, rows or 1, S); None: all


def _in_one_axis(grid: Grid, allowed: Any) -> Array:  # (..., N or 1, T or 1, S)
    """Which pairs are allowed, for all leading axes as one and the queries of a group as rows; axes of 1 stay."""
    group, (*lead, n, t, S) = grid.group, allowed.shape
    if n > 1 or (t > 1 and group > 1):
        heads = max(n, group)
        allowed = jnp.broadcast_to(allowed, (*lead, heads, grid.rows, S))
        allowed = allowed.reshape(*lead, heads // group if n > 1 else 1, -1, S)
    if any(size > 1 for size in allowed.shape[:-2]):
        allowed = jnp.broadcast_to(allowed, (*grid.chunk_sizes[:-1], *allowed.shape[-2:]))
    return allowed.reshape(-1, *allowed.shape[-2:])


def _in_one_kernel(heads: _Heads, plan: Plan) -> tuple[Array, ...]:
    """Average, maximum and sum of exponentials, without a ``where``, so that XLA makes one kernel of all.

    It does so for at least ``ONE_KERNEL`` queries. For fewer, the products are ``on_all_cores``.
    """
    query, key, value, allowed = heads
    mask: Any = 0 if allowed is None else jnp.where(allowed, 0, -jnp.inf).astype(query.dtype)
    mark: Any = mark_of_heads(key, value) if allowed is None else 0  # every query sees every key
    rows, S = math.prod(query.shape[:-1]), key.shape[-2]
    every = on_all_cores if rows < ONE_KERNEL and rows * S >= WORTH_TWO_CORES else lambda x: x
    return _averaged(every(product(query * plan.scale, key, True)) + mask, value, mark, every, allowed is None)


def _by_choice(heads: _Heads, plan: Plan) -> tuple[Array, ...]:
    """The same for any numbers, with the mask applied by ``where``."""
    (query, key, value), _ = with_marks(heads[:3])
    scores = _chosen(product(query * plan.scale, key, True), heads.allowed)
    return _averaged(scores, value, 0, lambda x: x, False)


def _small(x: Array) -> Array:
    """The array with 0 for what is ``HUGE`` or not finite; float16 has no such number."""
    return jnp.where(jnp.abs(x.astype(wide_dtype(x.dtype))) < HUGE, x, 0)


def _averaged(scores: Array, value: Array, mark: Array | int, every: Callable, all_see_all: bool) -> tuple[Array, ...]:
    row_max = scores.max(axis=-1, keepdims=True)
    row_max = row_max if all_see_all else jnp.maximum(row_max, jnp.finfo(scores.dtype).min)
    exps = jnp.exp(scores - row_max)
    row_sum = exps.sum(axis=-1, keepdims=True) + mark
    out = every(product(exps, value, False)) / jnp.maximum(row_sum, 1)
    return out, jnp.where(row_sum == 0, -jnp.inf, row_max), row_sum


def _chosen(scores: Array, allowed: Array | None, other: float = -jnp.inf) -> Array:
    return scores if allowed is None else jnp.where(allowed, scores, other)


def _tangent(heads: _Heads, dots: Tangents, plan: Plan) -> tuple[Array, ...]:
    """With weights p: ``dlse = Σ p ds`` and ``dout = Σ p (ds - dlse) v + p dv``."""
    (query, key, value), (dquery, dkey, dvalue) = with_marks(heads[:3], dots)
    scores = times(query * plan.scale, key, transpose_right=True)
    weights = _softmax(_chosen(scores, heads.allowed), -1, heads.allowed is not None)
    score_tangents = jnp.zeros_like(scores)
    if dquery is not None:
        score_tangents += times(dquery * plan.scale, key, transpose_right=True)
    if dkey is not None:
        score_tangents += times(query * plan.scale, dkey, transpose_right=True)
    score_tangents = _chosen(score_tangents, heads.allowed, 0)
    dlse = jnp.sum(weights * score_tangents, axis=-1, keepdims=True)
    dout = times(weights * (score_tangents - dlse), value)
    return dout if dvalue is None else dout + times(weights, dvalue), dlse


def _cotangent(heads: _Heads, dout: Array, dlse: Array, mark: Array, plan: Plan) -> tuple[Array, ...]:
    """The formulas of ``spec.attention_backward``, on scores (heads, S, rows), with the mark of ``spoiled_rows``."""
    query, key, value, dout, dlse = map(replace_nonfinite, (*heads[:3], dout, dlse))
    dout = dout + mark if heads.allowed is None else dout  # NaN reaches all pairs of its row; none is forbidden
    query, allowed = query * plan.scale, None
    if heads.allowed is not None:
        allowed = lax.optimization_barrier(heads.allowed.swapaxes(-1, -2))  # computed once, not in each kernel
    weights = _softmax(_chosen(times(key, query, transpose_right=True), allowed), -2, allowed is not None)
    dweights = _chosen(times(value, dout, transpose_right=True), allowed, 0)  # a value may be huge: 0 · inf
    delta = jnp.sum(weights * dweights, axis=-2, keepdims=True)
    weights = weights if allowed is None else jnp.where(allowed, weights + mark.swapaxes(-1, -2), 0)
    dscores = _chosen(weights * (dweights - delta + dlse.swapaxes(-1, -2)), allowed, 0)
    turned = lax.optimization_barrier((key * plan.scale).swapaxes(-1, -2))  # a kernel of its own; the rest is one
    dquery = on_all_cores(times(turned, dscores), axis=-2).swapaxes(-1, -2)
    return dquery, on_all_cores(times(dscores, query)), on_all_cores(times(weights, dout))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _softmax(scores: Array, axis: int, masked: bool) -> Array:
    """Weights p along an axis, 0 where all scores are -inf (L5); tangents are ``p (ds - Σ p ds)``, difference first.

    Without a mask no score is -inf, and product, maximum and exponential are one kernel.
    """
    row_max = scores.max(axis=axis, keepdims=True)
    exps = jnp.exp(scores - (jnp.maximum(row_max, jnp.finfo(scores.dtype).min) if masked else row_max))
    row_sum = exps.sum(axis=axis, keepdims=True)
    return exps / (jnp.maximum(row_sum, 1) if masked else row_sum)


@_softmax.defjvp
def _softmax_jvp(axis: int, masked: bool, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (weights, (score_tangents,)) = _softmax(*primals, axis, masked), tangents
    return weights, weights * (score_tangents - jnp.sum(weights * score_tangents, axis=axis, keepdims=True))


def _by_chunks(
    grid: Grid,
    operands: Operands,
    plan: Plan,
    arrays: Iterable[Array],
    others: Sequence[tuple[str, Array]],
    outputs: Sequence[tuple[str, tuple[int, ...]]],
    work: Callable,
) -> tuple[Array, ...]:
    """The results of ``work`` for each chunk of heads, added up in arrays of the roles and shapes of ``outputs``.

    Args:
        grid: one tile for a chunk.
        operands, plan: of the call.
        arrays: query, key and value.
        others: what else is read, with its role: tangents, or the gradients of out and lse.
        outputs: role and shape of each result.
        work: from ``_Heads`` and the others, (heads, ., .), to the results.
    """
    compute_dtype, read = operands.compute_dtype(), [*zip(ROLES, arrays, strict=True), *others]
    sizes = {"queries": (*grid.heads, grid.T), "keys": (*grid.chunk_sizes[:-1], grid.S)}

    *lead, G, shared = grid.axes
    alone = {"queries": (*lead, G * shared), "keys": (*lead, G) if grid.group == shared else None}  # no overlap

    def chunk(index, buffers):
        tile = grid.only_tile(index)
        cuts = (tile.cut(*pair) for pair in read)
        # vmap may be over some of them only
        here = [broadcast_in_memory(x, (*grid.chunk_sizes[:-2], *x.shape[-3:])) for x in cuts]

        def found_here():
            heads = math.prod(grid.chunk_sizes[:-1])
            flat: list[Any] = [x.astype(compute_dtype).reshape(heads, -1, x.shape[-1]) for x in here]
            # Computed in here, the mask is part of the kernel.
            allowed = None if operands.mask is None else _in_one_axis(grid, allowed_pairs(tile, operands.mask))
            query, key, value, *rest = flat
            found = work(_Heads(query, key, value, allowed), *rest)
            return [x.reshape(*sizes[role], -1) for (role, _), x in zip(outputs, found, strict=True)]

        each = zip(outputs, buffers, rematerialized(plan, found_here), strict=True)
        return tuple(
            (tile.put if shape[:-2] == alone[role] else tile.add)(role, *pair) for (role, shape), *pair in each
        )

    return loop(grid.chunks, chunk, tuple(jnp.zeros(shape, compute_dtype) for _, shape in outputs))
