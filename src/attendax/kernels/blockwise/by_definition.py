"""Attention by its definition, row after row: what a number that is not finite does to those that really see it (L6).

Tiles multiply whole blocks, so they leave out what is not finite, and the rows of queries that see it. These rows are
taken here. Nothing forbidden is read: for a query that may not look at it, a key or value becomes 0 before it is
multiplied. And there is no product of matrices, in which one row would meet another. That is slow, and runs for marked
rows alone; it takes the memory of the keys and values of a few heads.

``marked`` says which rows, boolean, (..., N, T, 1).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..numerics import any_true
from ..online_softmax import exp_scores, sum_or_one, weights_of
from ..operands import Operands, Plan, Results
from .partition import rows_of
from .schedule import once_more, repeat
from .tile_scores import allowed_pairs, finished, leaves_in
from .tile_work import dropped
from .tiles import Grid, Tile


def forward(marked: Array, found: Results, operands: Operands, plan: Plan) -> Results:
    """The results found, and in their place those of the marked rows."""

    def exact(tile, mark):
        return _row(leaves_in(tile, operands), mark, tile, operands, plan)

    return Results(*_replaced(marked, found, exact, operands, plan))


def tangent(marked: Array, found: Any, tangents: Any, operands: Operands, plan: Plan) -> tuple[Array, ...]:
    """How out and lse move with ``tangents`` of the differentiable leaves (None: not at all), in the marked rows."""
    moving = [k for k, t in enumerate(tangents) if t is not None]

    def exact(tile, mark):
        leaves = leaves_in(tile, operands)
        given, given_tangents = _moving(leaves, moving, tangents, tile, operands)

        def of_moving(given):
            return _row(_filled(leaves, moving, given), mark, tile, operands, plan)

        (_, _, total), (dout, _, dtotal) = jax.jvp(of_moving, (given,), (given_tangents,))
        return dout, dtotal / sum_or_one(total)

    return _replaced(marked, found, exact, operands, plan)


def cotangent(marked: Array, found: Any, grads: Any, operands: Operands, plan: Plan, wanted: Any) -> tuple[Array, ...]:
    """Gradients ``found`` of the leaves for which ``wanted`` gives a shape, and what the marked rows add to them."""
    used = [k for k, shape in enumerate(wanted) if shape is not None]
    roles = [operands.roles()[k] for k in used]

    def step(tile, mark, found):
        leaves = leaves_in(tile, operands)
        dout, dlse = (tile.cut("queries", x) for x in grads)
        given = _asked(leaves, used, wanted, tile, operands)

        def of_wanted(given):
            return _row(_filled(leaves, used, given), mark, tile, operands, plan)

        (out, shift, total), pull = jax.vjp(of_wanted, given)
        dtotal = dlse / sum_or_one(total)
        (parts,) = pull((jnp.broadcast_to(dout, out.shape), jnp.zeros_like(shift), dtotal))
        each = zip(roles, found, parts, strict=True)
        return tuple(tile.add(role, buffer, part.astype(buffer.dtype)) for role, buffer, part in each)

    return _for_marked(marked, operands, plan, step, tuple(found))


def tangent_of_part(
    marked: Array, found: Any, tangents: Any, operands: Operands, results: Results, plan: Plan
) -> tuple[Array, ...]:
    """What the keys that are here add to how out and lse of the marked rows move; ``results`` are of all keys."""
    moving = [k for k, t in enumerate(tangents) if t is not None]

    def exact(tile, mark):
        leaves = leaves_in(tile, operands)
        given, given_tangents = _moving(leaves, moving, tangents, tile, operands)

        def of_moving(given):
            return _scores_of_row(_filled(leaves, moving, given), mark, tile, operands, plan)

        (scores, value), (dscores, dvalue) = jax.jvp(of_moving, (given,), (given_tangents,))
        out, p, w, seen = _weights_of_row(scores, mark, results, tile, operands, plan)
        dlse = jnp.sum(jnp.where(seen, p * dscores, 0), axis=-1, keepdims=True)
        terms = w.swapaxes(-1, -2) * (dscores.swapaxes(-1, -2) * value + dvalue)
        summed = jnp.sum(jnp.where(seen.swapaxes(-1, -2), terms, 0), axis=-2, keepdims=True)
        return summed - dlse * out, dlse

    return _replaced(marked, found, exact, operands, plan)


def cotangent_of_part(
    marked: Array, found: Any, grads: Any, operands: Operands, results: Results, plan: Plan, wanted: Any
) -> tuple[Array, ...]:
    """Gradients ``found``, and what the marked rows add for the keys that are here; ``results`` are of all keys."""
    used = [k for k, shape in enumerate(wanted) if shape is not None]
    roles = [operands.roles()[k] for k in used]

    def step(tile, mark, found):
        leaves = leaves_in(tile, operands)
        dout, dlse = (tile.cut("queries", x) for x in grads)
        given = _asked(leaves, used, wanted, tile, operands)

        def of_wanted(given):
            return _scores_of_row(_filled(leaves, used, given), mark, tile, operands, plan)

        (scores, value), pull = jax.vjp(of_wanted, given)
        out, p, w, seen = _weights_of_row(scores, mark, results, tile, operands, plan)
        delta = jnp.sum(dout * out, axis=-1, keepdims=True) - dlse
        dw = jnp.sum(jnp.where(seen.swapaxes(-1, -2), dout * value, 0), axis=-1)[..., None, :]
        dscores = jnp.where(seen, p * (dropped(dw, tile, operands, plan) - delta), 0)
        dvalue = jnp.where(seen.swapaxes(-1, -2), w.swapaxes(-1, -2) * dout, 0)
        (parts,) = pull((dscores.astype(scores.dtype), dvalue.astype(value.dtype)))
        each = zip(roles, found, parts, strict=True)
        return tuple(tile.add(role, buffer, part.astype(buffer.dtype)) for role, buffer, part in each)

    return _for_marked(marked, operands, plan, step, tuple(found))


def that_see(keys: Array, operands: Operands, plan: Plan) -> Array:
    """The rows that may look at one of the marked keys, (..., G, S, 1)."""
    (N, T), (G, S) = operands.query.shape[-3:-1], operands.key.shape[-3:-1]
    axes = *plan.leading(operands), G, N // G
    grid = Grid(axes, axes, T, S, 1, S, len(plan.batch), operands.positions)

    def row(i, found):
        tile = grid.tile(0, i, 0)
        marks = _each_head(tile.cut("keys", keys), tile).swapaxes(-1, -2)
        return tile.put("queries", found, any_true(marks & _allowed(tile, operands), axis=-1))

    return repeat(T, row, jnp.zeros((*plan.leading(operands), N, T, 1), bool))


def _row(leaves: Any, mark: Array, tile: Tile, operands: Operands, plan: Plan) -> tuple[Array, ...]:
    """out, maximum and sum of exponentials of one query of each head, that of the empty set where it is not marked."""
    scores, value = _scores_of_row(leaves, mark, tile, operands, plan)
    exps, largest, total = exp_scores(scores)
    weights = dropped(exps / sum_or_one(total), tile, operands, plan)
    out = jnp.sum(weights.swapaxes(-1, -2) * value, axis=-2, keepdims=True)
    return out, largest, total


def _scores_of_row(leaves: Any, mark: Array, tile: Tile, operands: Operands, plan: Plan) -> tuple[Array, Array]:
    """The scores of one query of each head, -inf where it is not marked, and the values that it sees."""
    query, key, value, *rest = leaves
    wide, allowed = operands.wide(), _allowed(tile, operands) & mark
    seen = allowed.swapaxes(-1, -2)
    query = jnp.where(mark, query.astype(wide), 0)
    key, value = (jnp.where(seen, _each_head(x.astype(wide), tile), 0) for x in (key, value))
    products = jnp.sum(query * plan.scale * key, axis=-1)[..., None, :]
    scores, _ = finished(products, rest, tile, operands, plan, False)
    return jnp.where(allowed, scores, -jnp.inf), value


def _weights_of_row(
    scores: Array, mark: Array, results: Results, tile: Tile, operands: Operands, plan: Plan
) -> tuple[Array, ...]:
    """out of a row; its weights before and after dropout, by maximum and sum of all keys; which keys it sees."""
    out, shift, total = (tile.cut("queries", x) for x in results)
    seen = _allowed(tile, operands) & mark
    p = weights_of(scores, shift, total)
    return out, p, dropped(p, tile, operands, plan), seen


def _allowed(tile: Tile, operands: Operands) -> Array:
    """Which pairs are allowed, by the mask and by the bias, (..., N, 1, S)."""
    allowed = allowed_pairs(tile, operands.mask)
    allowed = jnp.bool_(True) if allowed is None else allowed
    if operands.bias is not None:
        allowed = allowed & (tile.cut("pairs", operands.bias) != -jnp.inf)
    return jnp.broadcast_to(allowed, tile.grid.shape)


def _for_marked(marked: Array, operands: Operands, plan: Plan, step: Callable, carry: Any) -> Any:
    """``carry = step(tile, mark, carry)`` for each query of a few heads that is marked in one of them.

    A loop over the marked rows alone writes where it reads; a condition would copy the carry. Reverse mode cannot go
    through a loop whose length is not known, so there it goes over all rows.
    """
    grid = rows_of(operands, plan, plan.limits.bytes)
    count = grid.chunks * grid.T

    def row(k, carry):
        tile = grid.tile(k // grid.T, k % grid.T, 0)
        return step(tile, tile.cut("queries", marked), carry)

    some = _in_pieces(marked, grid)
    if plan.reversible:

        def row_if_marked(i, carry):
            return lax.cond(some[i], lambda: once_more(row, i, carry), lambda: carry)

        return lax.cond(any_true(some), lambda: repeat(count, row_if_marked, carry), lambda: carry)
    exact = isinstance(count, int) and count < 2**24  # a minimum in floating point is one kernel, of integers three
    numbers, end = jnp.arange(count, dtype=jnp.float32 if exact else jnp.int32), jnp.asarray(count, jnp.int32)

    def from_on(k):
        return jnp.min(jnp.where(some & (numbers >= k), numbers, end)).astype(jnp.int32)

    def of_marked(state):
        k, carry = state
        return from_on(k + 1), row(k, carry)

    return lax.while_loop(lambda state: state[0] < end, of_marked, (from_on(0), carry))[1]


def _in_pieces(marked: Array, grid: Grid) -> Array:
    """For each chunk and query whether it is marked in some head, (chunks * T,)."""
    sizes = [n for pair in zip(grid.counts, grid.pieces, strict=True) for n in pair]
    each_head = jnp.broadcast_to(marked, (*grid.axes[:-2], grid.axes[-2] * grid.axes[-1], grid.T, 1))
    return jnp.any(each_head.reshape(*sizes, grid.T), axis=tuple(range(1, len(sizes), 2))).reshape(-1)


def _replaced(marked: Array, found: Any, exact: Callable, operands: Operands, plan: Plan) -> tuple[Array, ...]:
    def step(tile, mark, found):
        kept = [tile.cut("queries", x) for x in found]
        rows = [jnp.where(mark, *pair) for pair in zip(exact(tile, mark), kept, strict=True)]
        return tuple(tile.put("queries", *pair) for pair in zip(found, rows, strict=True))

    return _for_marked(marked, operands, plan, step, tuple(found))


def _moving(leaves: Any, moving: list[int], tangents: Any, tile: Tile, operands: Operands) -> tuple[Any, Any]:
    """The leaves of a tile that move, and their tangents, each pair in one shape and dtype."""
    pairs = [(leaves[k], tile.cut(operands.roles()[k], tangents[k])) for k in moving]
    shapes = [jnp.broadcast_shapes(x.shape, t.shape) for x, t in pairs]
    given = [jnp.broadcast_to(x, shape) for (x, _), shape in zip(pairs, shapes, strict=True)]
    return given, [jnp.broadcast_to(t, x.shape).astype(x.dtype) for (_, t), x in zip(pairs, given, strict=True)]


def _asked(leaves: Any, used: list[int], wanted: Any, tile: Tile, operands: Operands) -> list[Array]:
    """The leaves of a tile whose gradients are wanted, in the shapes of those gradients there."""
    shapes = [tile.where(operands.roles()[k], wanted[k])[1] for k in used]
    shapes = [jnp.broadcast_shapes(leaves[k].shape, shape) for k, shape in zip(used, shapes, strict=True)]
    return [jnp.broadcast_to(leaves[k], shape) for k, shape in zip(used, shapes, strict=True)]


def _filled(leaves: Any, places: Any, given: Any) -> list[Array]:
    filled = dict(zip(places, given, strict=True))
    return [filled.get(k, x) for k, x in enumerate(leaves)]


def _each_head(x: Array, tile: Tile) -> Array:
    """Keys or values (..., G, S, .) for every query head."""
    group = tile.grid.group
    return x if group == 1 else jnp.repeat(x, group, axis=-3)
