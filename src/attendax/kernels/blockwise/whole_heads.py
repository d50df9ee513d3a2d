"""Heads small enough to be whole: each chunk of them in one piece, forward, tangent and cotangent.

XLA's CPU compiler makes one kernel of scores, softmax and average, 1.6 to 2.5 times as fast as its parts, if nothing
else is read or written on the way. So a forward keeps no maxima and sums for its derivatives: they take them again,
from the very scores that they use, which makes forward and backward together 1.0 to 1.6 times as fast.

Here everything is multiplied, by a weight of 0 where the mask forbids. A number that is not finite, or so large that a
score could overflow, is therefore taken out of its chunk, and with it the queries that see it. These come
``by_definition``, and no bit of anything else knows of it (L6).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..numerics import all_below, on_all_cores, product, repeated, rows_below, rows_not_zero, times
from ..operands import KEY, QUERY, VALUE, Operands, Plan, Results
from . import by_definition
from .schedule import once_more, repeat
from .tile_scores import allowed_pairs
from .tile_work import value_divisor
from .tiles import Grid

ROLES = ["queries", "keys", "keys"]
ROWS, WORTH = 4096, 2**15  # queries of all heads; scores that are worth a second core
HUGE = 2.0**50  # no product of two rows of smaller numbers and a scale up to 2**10 can overflow


def forward(grid: Grid, operands: Operands, plan: Plan) -> Results:
    """The results; see ``blockwise.forward``."""
    widths = operands.value.shape[-1], 1, 1

    def work(heads):
        return _forward(heads, plan)

    rows = *plan.leading(operands), *operands.query.shape[-3:-1]
    outputs = [("queries", (*rows, width)) for width in widths]
    if operands.mask is None:  # every query sees everything: only a sum of values may overflow
        return Results(*_by_chunks(grid, operands, [], [], outputs, work))
    left_out = _left_out(operands, plan, [], [])
    found = _by_chunks(grid, operands, [], [], outputs, work, left_out)
    return by_definition.forward(left_out, Results(*found), operands, plan)


def tangent(grid: Grid, tangents: Any, operands: Operands, plan: Plan) -> tuple[Array, ...]:
    """How out and lse move; see ``blockwise.tangent``."""
    moving = [k for k, t in enumerate(tangents) if t is not None]

    def work(heads, *flat_dots):
        return _tangent(heads, dict(zip(moving, flat_dots, strict=True)), plan)

    rows = *plan.leading(operands), *operands.query.shape[-3:-1]
    outputs = [("queries", (*rows, width)) for width in (operands.value.shape[-1], 1)]
    roles, others = [ROLES[k] for k in moving], [tangents[k] for k in moving]
    left_out = _left_out(operands, plan, roles, others)
    found = _by_chunks(grid, operands, roles, others, outputs, work, left_out)
    return by_definition.tangent(left_out, found, tangents, operands, plan)


def cotangent(grid: Grid, grads: Any, operands: Operands, plan: Plan, wanted: Any) -> tuple[Array, ...]:
    """Gradients of the leaves for which ``wanted`` gives a shape; see ``blockwise.cotangent``."""
    used = [k for k, shape in enumerate(wanted) if shape is not None]

    def work(heads, dout, dlse):
        found = _cotangent(heads, dout, dlse, plan)
        return [found[k] for k in used]

    outputs, roles, (dout, dlse) = [(ROLES[k], wanted[k]) for k in used], ["queries", "queries"], grads
    left_out = _left_out(operands, plan, roles, grads)
    found = _by_chunks(grid, operands, roles, grads, outputs, work, left_out)
    marked = left_out & (rows_not_zero(dout) | (dlse != 0))
    found = by_definition.cotangent(marked, found, grads, operands, plan, wanted)
    leaves = operands.differentiable()
    return tuple(x.astype(leaves[k].dtype) for k, x in zip(used, found, strict=True))


class _Heads(NamedTuple):
    """The heads of a chunk along one axis, the queries of those that share keys as rows of one.

    Products of rank 3 take 0.75 to 0.85 of the time of the same ones of rank 4.
    """

    query: Array  # (heads, rows, D)
    key: Array  # (heads, S, D)
    value: Array  # (heads, S, V)
    mask: Array | None  # what is added to the scores, 0 or -inf, (heads or 1, rows or 1, S)
    divisor: Any  # what the values are divided by in sums over the keys
    fine: Array | None  # whether all values are finite; None: they are


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


def _forward(heads: _Heads, plan: Plan) -> tuple[Array, ...]:
    """Average, maximum and sum of exponentials: products and sums and no choices, so that all is one kernel.

    XLA makes it one for at least ``ROWS`` queries. For fewer, the products are ``on_all_cores``.
    """
    rows, S = math.prod(heads.query.shape[:-1]), heads.key.shape[-2]
    few = rows < ROWS and rows * S >= WORTH
    scores = product(heads.query * plan.scale, heads.key, True)
    scores = on_all_cores(scores) if few else scores
    if heads.mask is not None:
        scores = scores + heads.mask
    largest = jnp.maximum(scores.max(axis=-1, keepdims=True), jnp.finfo(scores.dtype).min)
    powers = jnp.exp(scores - largest)
    total = powers.sum(axis=-1, keepdims=True)
    value = heads.value

    def summed():
        # Behind the barrier the division comes after the reshape to one axis; before it, XLA writes the quotient out.
        return product(powers, lax.optimization_barrier(value) / heads.divisor, False)

    if few and heads.fine is not None:  # then the divisor is 1; but a NaN in one column must not reach another
        sums = lax.cond(heads.fine, lambda: on_all_cores(product(powers, value, False)), summed)
    else:
        sums = on_all_cores(summed()) if few else summed()
    out = sums / jnp.maximum(total, 1) * heads.divisor
    return out, jnp.where(total == 0, -jnp.inf, largest), total


def _tangent(heads: _Heads, tangents: dict[int, Array], plan: Plan) -> tuple[Array, ...]:
    """With weights p: ``dlse = Σ p ds`` and ``dout = Σ p (ds - dlse) v + p dv``."""
    query, key = heads.query * plan.scale, heads.key
    scores = times(query, key, transpose_right=True)
    weights = _softmax(scores if heads.mask is None else scores + heads.mask, -1, heads.mask is not None)
    score_tangents = jnp.zeros_like(scores)
    if QUERY in tangents:
        score_tangents += times(tangents[QUERY] * plan.scale, key, transpose_right=True)
    if KEY in tangents:
        score_tangents += times(query, tangents[KEY], transpose_right=True)
    dlse = jnp.sum(weights * score_tangents, axis=-1, keepdims=True)
    dout = times(weights * (score_tangents - dlse), heads.value)
    return dout + times(weights, tangents[VALUE]) if VALUE in tangents else dout, dlse


def _cotangent(heads: _Heads, dout: Array, dlse: Array, plan: Plan) -> tuple[Array, ...]:
    """The formulas of ``spec.attention_backward``, on scores (heads, S, rows)."""
    query, key = heads.query * plan.scale, heads.key
    scores = times(key, query, transpose_right=True)
    mask = None if heads.mask is None else heads.mask.swapaxes(-1, -2)
    weights = _softmax(scores if mask is None else scores + mask, -2, mask is not None)
    dweights = times(heads.value, dout, transpose_right=True)
    delta = jnp.sum(weights * dweights, axis=-2, keepdims=True)
    dscores = weights * (dweights - delta + dlse.swapaxes(-1, -2))
    turned = lax.optimization_barrier((key * plan.scale).swapaxes(-1, -2))  # on its own: the rest is one kernel
    dquery = on_all_cores(times(turned, dscores)).swapaxes(-1, -2)
    return dquery, on_all_cores(times(dscores, query)), on_all_cores(times(weights, dout))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _softmax(scores: Array, axis: int, masked: bool) -> Array:
    """Weights p along an axis, 0 where all scores are -inf (L5). They move by ``p (ds - Σ p ds)``, difference first.

    Without a mask no score is -inf, and product, maximum and exponential are one kernel.
    """
    largest = scores.max(axis=axis, keepdims=True)
    if masked:
        largest = jnp.maximum(largest, jnp.finfo(scores.dtype).min)
    powers = jnp.exp(scores - largest)
    total = powers.sum(axis=axis, keepdims=True)
    return powers / jnp.where(total == 0, 1, total)


@_softmax.defjvp
def _softmax_jvp(axis: int, masked: bool, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (weights, (score_tangents,)) = _softmax(*primals, axis, masked), tangents
    return weights, weights * (score_tangents - jnp.sum(weights * score_tangents, axis=axis, keepdims=True))


def _left_out(operands: Operands, plan: Plan, roles: Sequence[str], others: Sequence[Array]) -> Array:
    """Which rows of queries are not multiplied, (..., N, T, 1): they are or see a number that is not small."""
    arrays, roles = [operands.query, operands.key, operands.value, *others], [*ROLES, *roles]
    shape = *plan.leading(operands), *operands.query.shape[-3:-1], 1

    def large_rows(role):
        rows = (~rows_below(x, HUGE) for x, its in zip(arrays, roles, strict=True) if its == role)
        return functools.reduce(jnp.logical_or, rows)

    def seen():
        return large_rows("queries") | by_definition.that_see(large_rows("keys"), operands, plan)

    all_small = all_below(arrays, HUGE)
    return lax.cond(all_small, lambda: jnp.zeros(shape, bool), seen)


def _by_chunks(
    grid: Grid,
    operands: Operands,
    roles: Sequence[str],
    others: Sequence[Array],
    outputs: Any,
    work: Callable,
    left_out: Array | None = None,
) -> tuple[Array, ...]:
    """The results of ``work`` for each chunk of heads, added up in arrays of the roles and shapes of ``outputs``.

    Args:
        grid: one tile for a chunk.
        operands: of the call.
        roles, others: what else is read: tangents, or the gradients of out and lse.
        outputs: role and shape of each result.
        work: from ``_Heads`` and the others, (heads, ., .), to the results.
        left_out: which rows of queries are; None: none, and sums of values have their headroom.
    """
    wide, roles = operands.wide(), [*ROLES, *roles]
    arrays = [operands.query, operands.key, operands.value, *others]
    sizes = {"queries": (*grid.heads, grid.T), "keys": (*grid.pieces[:-1], grid.S)}

    *lead, G, shared = grid.axes
    alone = {"queries": (*lead, G * shared), "keys": (*lead, G) if grid.group == shared else None}  # no two chunks meet

    def chunk(index, buffers):
        tile = grid.tile(index, 0, 0)
        cuts = (tile.cut(role, x) for role, x in zip(roles, arrays, strict=True))
        here = [repeated(x, (*grid.pieces[:-2], *x.shape[-3:])) for x in cuts]  # vmap: over some of them only

        def without(left_out):
            kept = {"queries": ~tile.cut("queries", left_out), "keys": jnp.bool_(True)}
            return [jnp.where(kept[role] & _is_small(x), x, 0) for role, x in zip(roles, here, strict=True)]

        def found_here():  # one program for all numbers: two would round differently (L6)
            given, fine, divisor = here, None, jnp.ones((), wide)
            if left_out is None:
                fine, divisor = value_divisor(here[VALUE], wide)
            else:
                given = without(left_out)
            # The mask is asked for in here, so that it is part of the kernel.
            mask = None if operands.mask is None else _in_one_axis(grid, allowed_pairs(tile, operands.mask))
            found = work(*_heads_of(grid, operands, given, mask, divisor, fine))
            return [x.reshape(*sizes[role], -1) for (role, _), x in zip(outputs, found, strict=True)]

        found = once_more(found_here)
        each = zip(outputs, buffers, found, strict=True)
        return tuple(
            (tile.put if shape[:-2] == alone[role] else tile.add)(role, *pair) for (role, shape), *pair in each
        )

    return repeat(grid.chunks, chunk, tuple(jnp.zeros(shape, wide) for _, shape in outputs))


def _heads_of(
    grid: Grid, operands: Operands, arrays: list[Array], allowed: Array | None, divisor: Any, fine: Array | None
) -> tuple[Any, ...]:
    """``_Heads`` of the arrays of a chunk, in the dtype to compute in, and the arrays after the value, flat, too."""
    wide, heads = operands.wide(), math.prod(grid.pieces[:-1])
    query, key, value, *rest = (x.astype(wide).reshape(heads, -1, x.shape[-1]) for x in arrays)
    mask = None if allowed is None else jnp.where(allowed, 0, -jnp.inf).astype(wide)
    return _Heads(query, key, value, mask, divisor, fine), *rest


def _is_small(x: Array) -> Array:
    return jnp.abs(x.astype(jnp.result_type(x.dtype, jnp.float32))) < HUGE  # float16 has no such number
