"""Heads small enough to be whole: each chunk of them in one piece, forward, tangent and cotangent.

XLA's CPU compiler makes one kernel of scores, softmax and average, 1.6 to 2.5 times as fast as its parts, if nothing
else is read or written on the way. So a forward keeps no maxima and sums for its derivatives: they take them again,
from the very scores that they use, which makes forward and backward together 1.0 to 1.6 times as fast.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..not_finite import bad_positions, finite, mark_of_heads, marked, spoiled_rows
from ..numerics import all_below, any_true, on_all_cores, product, repeated, rows_below, times
from ..operands import KEY, QUERY, VALUE, Operands, Plan, Results
from .schedule import once_more, repeat
from .tile_scores import allowed_pairs
from .tiles import Grid

ROLES = ["queries", "keys", "keys"]
ROWS, WORTH = 4096, 2**15  # queries of all heads; scores that are worth a second core
HUGE = 2.0**50  # no product of two rows of smaller numbers and a scale up to 2**10 can overflow


def forward(grid: Grid, operands: Operands, plan: Plan) -> Results:
    """The results; see ``blockwise.forward``.

    One kernel can add a mask, but not choose. So if there is a number that would spread from where it is forbidden, it
    is left out, and the rows that may look at it are taken again, by a program that chooses.
    """
    rows = *plan.leading(operands), *operands.query.shape[-3:-1]
    outputs = [("queries", (*rows, width)) for width in (operands.value.shape[-1], 1, 1)]

    def by(work, outputs, arrays):
        given = operands._replace(**dict(zip(("query", "key", "value"), arrays, strict=True)))
        return _by_chunks(grid, given, [], [], outputs, lambda heads: work(heads, plan))

    def all_of_it():
        return by(_in_one_kernel, outputs, operands[:3])

    def in_two_ways():
        found = by(_in_one_kernel, outputs, [jnp.where(is_small(x), x, 0) for x in operands[:3]])
        see_it, *exact = by(_by_choice, [outputs[-1], *outputs], operands[:3])
        return tuple(jnp.where(see_it > 0, *pair) for pair in zip(exact, found, strict=True))

    if operands.mask is None:
        return Results(*all_of_it())
    return Results(*lax.cond(all_below(operands[:3], HUGE), all_of_it, in_two_ways))


def tangent(grid: Grid, tangents: Any, operands: Operands, plan: Plan) -> tuple[Array, ...]:
    """How out and lse move; see ``blockwise.tangent``."""
    moving = [k for k, t in enumerate(tangents) if t is not None]

    def work(heads, *dots):
        return _tangent(heads, [None if t is None else dots[moving.index(k)] for k, t in enumerate(tangents)], plan)

    rows = *plan.leading(operands), *operands.query.shape[-3:-1]
    outputs = [("queries", (*rows, width)) for width in (operands.value.shape[-1], 1)]
    return _by_chunks(grid, operands, [ROLES[k] for k in moving], [tangents[k] for k in moving], outputs, work)


def cotangent(
    grid: Grid, grads: Any, operands: Operands, results: Results, plan: Plan, wanted: Any
) -> tuple[Array, ...]:
    """Gradients of the leaves for which ``wanted`` gives a shape; see ``blockwise.cotangent``."""
    used = [k for k, shape in enumerate(wanted) if shape is not None]

    def work(heads, dout, dlse, mark):
        found = _cotangent(heads, dout, dlse, mark, plan)
        return [found[k] for k in used]

    outputs, others = [(ROLES[k], wanted[k]) for k in used], (*grads, spoiled_rows(*grads, results.out))
    found = _by_chunks(grid, operands, ["queries"] * 3, others, outputs, work)
    leaves = operands.differentiable()
    return tuple(x.astype(leaves[k].dtype) for k, x in zip(used, found, strict=True))


class _Heads(NamedTuple):
    """The heads of a chunk along one axis, the queries of those that share keys as rows of one.

    Products of rank 3 take 0.75 to 0.85 of the time of the same ones of rank 4.
    """

    query: Array  # (heads, rows, D)
    key: Array  # (heads, S, D)
    value: Array  # (heads, S, V)
    allowed: Array | None  # which pairs are, (heads or 1, rows or 1, S); None: all


def _in_one_axis(grid: Grid, allowed: Any) -> Array:
    """Which pairs are allowed, for all leading axes as one and the queries of a group as rows; axes of 1 stay."""
    group, (*lead, n, t, S) = grid.group, allowed.shape
    if n > 1 or (t > 1 and group > 1):
        heads = max(n, group)
        allowed = jnp.broadcast_to(allowed, (*lead, heads, grid.rows, S))
        allowed = allowed.reshape(*lead, heads // group if n > 1 else 1, -1, S)
    if any(size > 1 for size in allowed.shape[:-2]):
        allowed = jnp.broadcast_to(allowed, (*grid.pieces[:-1], *allowed.shape[-2:]))
    return allowed.reshape(-1, *allowed.shape[-2:])


def _in_one_kernel(heads: _Heads, plan: Plan) -> tuple[Array, ...]:
    """Average, maximum and sum of exponentials: products and sums and no choices, so that XLA makes one kernel of all.

    It does so for at least ``ROWS`` queries. For fewer, the products are ``on_all_cores``.
    """
    query, key, value, allowed = heads
    if allowed is None:  # all see all: a key that is not finite spreads by itself, and of a value the row sum knows
        mask, mark = 0, mark_of_heads(value)
    else:
        mask, mark = jnp.where(allowed, 0, -jnp.inf).astype(query.dtype), 0
    rows, S = math.prod(query.shape[:-1]), key.shape[-2]
    every = on_all_cores if rows < ROWS and rows * S >= WORTH else lambda x: x
    return _averaged(every(product(query * plan.scale, key, True)) + mask, value, mark, every)


def _by_choice(heads: _Heads, plan: Plan) -> tuple[Array, ...]:
    """The same, where any number may be anywhere; and which rows may look at one that is huge or not finite."""
    bad_queries = ~rows_below(heads.query, HUGE)
    bad_keys = ~(rows_below(heads.key, HUGE) & rows_below(heads.value, HUGE))
    see_it = any_true(heads.allowed & (bad_queries | bad_keys.swapaxes(-1, -2)), axis=-1)
    key, value = marked(bad_positions(heads)[1], heads.key, heads.value)
    scores = jnp.where(heads.allowed, product(heads.query * plan.scale, key, True), -jnp.inf)
    return see_it.astype(scores.dtype), *_averaged(scores, value, 0, lambda x: x)


def is_small(x: Array) -> Array:
    """Which numbers are finite and below ``HUGE``; float16 has no such number."""
    return jnp.abs(x.astype(jnp.result_type(x.dtype, jnp.float32))) < HUGE


def _averaged(scores: Array, value: Array, mark: Any, every: Callable) -> tuple[Array, ...]:
    largest = jnp.maximum(scores.max(axis=-1, keepdims=True), jnp.finfo(scores.dtype).min)
    powers = jnp.exp(scores - largest)
    total = powers.sum(axis=-1, keepdims=True) + mark
    out = every(product(powers, value, False)) / jnp.maximum(total, 1)
    return out, jnp.where(total == 0, -jnp.inf, largest), total


def _chosen(scores: Array, allowed: Array | None, other: float = -jnp.inf) -> Array:
    return scores if allowed is None else jnp.where(allowed, scores, other)


def _tangent(heads: _Heads, dots: Any, plan: Plan) -> tuple[Array, ...]:
    """With weights p: ``dlse = Σ p ds`` and ``dout = Σ p (ds - dlse) v + p dv``."""
    bad_queries, bad_keys = bad_positions(heads, dots)
    key, value = marked(bad_keys, heads.key, heads.value)
    dkey, dvalue = (None if t is None else jnp.where(bad_keys, 0, t) for t in dots[KEY:])
    query, dquery = heads.query, dots[QUERY]
    if bad_queries is not None:
        query, dquery = marked(bad_queries, query, dquery)
    scores = times(query * plan.scale, key, transpose_right=True)
    weights = _softmax(_chosen(scores, heads.allowed), -1)
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
    """The formulas of ``spec.attention_backward``, on scores (heads, S, rows)."""
    query, key, value, dout, dlse = map(finite, (*heads[:3], dout, dlse))
    query, allowed = query * plan.scale, None if heads.allowed is None else heads.allowed.swapaxes(-1, -2)
    scores = _chosen(times(key, query, transpose_right=True), allowed)
    weights = _chosen(_softmax(scores, -2) + mark.swapaxes(-1, -2), allowed, 0)
    dweights = times(value, dout, transpose_right=True)
    delta = jnp.sum(weights * dweights, axis=-2, keepdims=True)
    dscores = weights * (dweights - delta + dlse.swapaxes(-1, -2))
    turned = lax.optimization_barrier((key * plan.scale).swapaxes(-1, -2))  # on its own: the rest is one kernel
    dquery = on_all_cores(times(turned, dscores), axis=-2).swapaxes(-1, -2)
    return dquery, on_all_cores(times(dscores, query)), on_all_cores(times(weights, dout))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _softmax(scores: Array, axis: int) -> Array:
    """Weights p along an axis, 0 where all scores are -inf (L5). They move by ``p (ds - Σ p ds)``, difference first."""
    largest = jnp.maximum(scores.max(axis=axis, keepdims=True), jnp.finfo(scores.dtype).min)
    powers = jnp.exp(scores - largest)
    return powers / jnp.maximum(powers.sum(axis=axis, keepdims=True), 1)


@_softmax.defjvp
def _softmax_jvp(axis: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (weights, (score_tangents,)) = _softmax(*primals, axis), tangents
    return weights, weights * (score_tangents - jnp.sum(weights * score_tangents, axis=axis, keepdims=True))


def _by_chunks(
    grid: Grid,
    operands: Operands,
    roles: Sequence[str],
    others: Sequence[Array],
    outputs: Any,
    work: Callable,
) -> tuple[Array, ...]:
    """The results of ``work`` for each chunk of heads, added up in arrays of the roles and shapes of ``outputs``.

    Args:
        grid: one tile for a chunk.
        operands: of the call.
        roles, others: what else is read: tangents, or the gradients of out and lse.
        outputs: role and shape of each result.
        work: from ``_Heads`` and the others, (heads, ., .), to the results.
    """
    wide, roles = operands.wide(), [*ROLES, *roles]
    arrays = [operands.query, operands.key, operands.value, *others]
    sizes = {"queries": (*grid.heads, grid.T), "keys": (*grid.pieces[:-1], grid.S)}

    *lead, G, shared = grid.axes
    alone = {"queries": (*lead, G * shared), "keys": (*lead, G) if grid.group == shared else None}  # no two chunks meet

    def chunk(index, buffers):
        tile = grid.whole(index)
        cuts = (tile.cut(role, x) for role, x in zip(roles, arrays, strict=True))
        here = [repeated(x, (*grid.pieces[:-2], *x.shape[-3:])) for x in cuts]  # vmap: over some of them only

        def found_here():
            heads = math.prod(grid.pieces[:-1])
            flat = [x.astype(wide).reshape(heads, -1, x.shape[-1]) for x in here]
            # The mask is asked for in here, so that it is part of the kernel.
            allowed = None if operands.mask is None else _in_one_axis(grid, allowed_pairs(tile, operands.mask))
            found = work(_Heads(*flat[:3], allowed), *flat[3:])
            return [x.reshape(*sizes[role], -1) for (role, _), x in zip(outputs, found, strict=True)]

        each = zip(outputs, buffers, once_more(found_here), strict=True)
        return tuple(
            (tile.put if shape[:-2] == alone[role] else tile.add)(role, *pair) for (role, shape), *pair in each
        )

    return repeat(grid.chunks, chunk, tuple(jnp.zeros(shape, wide) for _, shape in outputs))
