"""One tile: its scores, where bias and mask are applied (L2), softmax, average; tangents and gradients, the bias's too.

Scores and weights are (..., N, queries, keys), in the backward as in the forward: so a score is rounded alike in both,
and a weight near 1 is not off by as much as its score (L8). Queries of heads that share a key are rows of one product.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from attendax.scores import ScoreModifier

from .. import dropout
from ..not_finite import RowsOfBackward, is_read
from ..numerics import (
    LENGTH,
    broadcast_alike,
    finite_straight_through,
    in_memory,
    in_range,
    mark_of_rows,
    replace_nonfinite,
    sums_of_products,
    times,
)
from ..online_softmax import at_most_zero, exp_scores, parts_of_softmax, parts_of_weights
from ..operands import KEY, QUERY, REST, VALUE, Cotangents, Operands, Plan, Results, Tangents, Wanted
from ..rules import product
from ..score_modifiers import add_bias, modify
from .tiles import Tile, allowed_pairs

Factors = tuple[Array, Array]  # of queries, (..., N, T, 1); see ``in_range``

CHAIN = 512  # queries, of which one chain is near enough
KEYS, COLUMNS = 256, 64  # of values, of which one chain is near enough


def part_of_forward(tile: Tile, operands: Operands, plan: Plan, factors: Factors) -> tuple[Array, ...]:
    """The weighted sum of the values, the maximum and the sum of exponentials over the keys of a tile."""
    leaves = leaves_in(tile, operands)
    query, key, value = (x.astype(operands.compute_dtype()) for x in leaves[:REST])
    products, lowered = _products(query, key, plan, _in_tile(tile, factors))
    scores, allowed = finished(scaled := products * lowered, leaves[REST:], tile, operands)
    marks, row_max = _marks(scaled, value), None
    if scores is scaled and allowed is None:  # then XLA writes no scores into memory for their maximum
        row_max = jnp.max(products, axis=-1, keepdims=True) * lowered
    if allowed is not None:
        scores, marks = jnp.where(allowed, scores, -jnp.inf), jnp.where(allowed, marks, 0)
        value = replace_nonfinite(value)
    exps, row_max, row_sum = exp_scores(scores, marks, row_max)
    return _weighted_sum(dropped(exps, tile, operands, plan), value, plan), row_max, row_sum


def part_of_tangent(
    tile: Tile, tangents: Tangents, operands: Operands, results: Results | None, plan: Plan
) -> tuple[Array, ...]:
    """Sums over the keys of a tile: ``Σ w (ds v + dv)`` and ``dlse = Σ p ds``.

    Without results, a tile has all keys of its rows, and the first sum is that of ``w ((ds - dlse) v + dv)``.
    """
    leaves, compute_dtype, roles = leaves_in(tile, operands), operands.compute_dtype(), operands.roles()
    dots: list[Any] = [None if t is None else tile.cut(role, t) for role, t in zip(roles, tangents, strict=True)]
    moving = [k for k, t in enumerate(dots) if t is not None and k != VALUE]
    primals, moved = broadcast_alike({k: leaves[k] for k in moving}, {k: dots[k] for k in moving})
    query, key = (primals.pop(k, leaves[k]).astype(compute_dtype) for k in (QUERY, KEY))
    products, lefts, rights = _scaled_products(query, key, plan, factors_of(query, plan)), [], []
    if QUERY in moved:
        lefts, rights = [moved.pop(QUERY).astype(compute_dtype)], [key]
    if KEY in moved:
        lefts, rights = [*lefts, query], [*rights, moved.pop(KEY).astype(compute_dtype)]
    if lefts:  # the sum of both terms is one product, which is written once
        left, right = jnp.concatenate(lefts, -1), jnp.concatenate(rights, -1)
        dproducts = _scaled_products(left, right, plan, factors_of(left, plan))
        primals[QUERY], moved[QUERY] = broadcast_alike(products, dproducts)

    def scores(arrays):
        rest = [arrays.get(k, x) for k, x in enumerate(leaves)][REST:]
        return finished(arrays.get(QUERY, products), rest, tile, operands)

    s, ds, allowed = jax.jvp(scores, (primals,), (moved,), has_aux=True)
    values = [x.astype(compute_dtype) for x in (leaves[VALUE], dots[VALUE]) if x is not None]
    marks = _marks(products, *values)
    if allowed is not None:
        s, ds, marks = jnp.where(allowed, s, -jnp.inf), jnp.where(allowed, ds, 0), jnp.where(allowed, marks, 0)
        values = list(map(replace_nonfinite, values))
    softmax_rows = () if results is None else (tile.cut("queries", x) for x in results[1:3])
    exps, factor = parts_of_softmax(s, marks) if results is None else parts_of_weights(s + marks, *softmax_rows)
    w, dlse = dropped(exps, tile, operands, plan), factor * sums_of_products(exps, ds)
    dlse += dlse - dlse  # NaN in a row whose tangents of scores are not finite
    parts = w * (ds - dlse if results is None else ds), w
    return factor * sum(_weighted_sum(*pair, plan) for pair in zip(parts, values, strict=False)), dlse


def pulled_back(
    tile: Tile, rows: RowsOfBackward | Cotangents, operands: Operands, plan: Plan, wanted: Wanted, factors: Factors
) -> tuple[Array, ...]:
    """The share of a tile in each gradient that is wanted, in the order of the leaves.

    Where a tile has all keys of its rows, ``rows`` may be the cotangents of out and lse themselves. Then a number
    that is not finite becomes NaN in the products, reaches delta, and so the whole row of weights, also in derivatives.
    """
    leaves, compute_dtype = leaves_in(tile, operands), operands.compute_dtype()
    query, key, value = (x.astype(compute_dtype) for x in leaves[:REST])
    dout, *row_numbers = (tile.cut("queries", x) for x in rows)
    if at_once := not isinstance(rows, RowsOfBackward):
        read = is_read(dout, *row_numbers)
    else:
        delta, shift, live = row_numbers
        read = shift != jnp.inf
        query, key, value = jnp.where(live, query, 0), replace_nonfinite(key), replace_nonfinite(value)
    # broadcast outside of the vjp: inside, its gradient would be a sum
    products = jnp.broadcast_to(_scaled_products(query, key, plan, _in_tile(tile, factors), times), tile.grid.shape)
    rest, moving = leaves[REST:], {k: shape for k, shape in enumerate(wanted[REST:]) if shape is not None}
    for k, in_full in moving.items():
        _, shape = tile.where(operands.roles()[REST + k], in_full)
        rest[k] = jnp.broadcast_to(rest[k], jnp.broadcast_shapes(rest[k].shape, shape))

    def scores(products, arrays):
        filled = dict(zip(moving, arrays, strict=True))
        return finished(products, [filled.get(k, x) for k, x in enumerate(rest)], tile, operands, live=read)

    s, pull, visible = jax.vjp(scores, products, [rest[k] for k in moving], has_aux=True)
    dp = dropped(_dout_dot_value(dout, value, plan), tile, operands, plan)
    if at_once:
        s = in_memory(s)  # else products and softmax's derivative are one kernel, slower for a short text
        s = s + (s - s)
        p = jnp.multiply(*parts_of_softmax(s if visible is None else jnp.where(visible, s, -jnp.inf)))
        visible = read if visible is None else read & visible
        delta = sums_of_products(jnp.where(visible, p, 0), jnp.where(visible, dp, 0)) - row_numbers[0]
        p = p + delta * (delta - delta)  # NaN in a row that is not finite, and so is its tangent
        query, key, dout = map(finite_straight_through, (query, key, dout))
    else:
        p = jnp.exp(at_most_zero(s - shift))
    p = p if visible is None else jnp.where(visible, p, 0)
    ds = p * (dp - delta)
    dz, drest = pull(ds if visible is None else jnp.where(visible, ds, 0))  # a value may be huge: 0 · inf
    dz = plan.scale * dz  # times a query or a key, the scale might overflow where dz is 0
    gradients = [_multiply_by_keys(dz, key, plan, False, times)] if wanted[QUERY] is not None else []
    for k, weights, array in ((KEY, dz, query), (VALUE, dropped(p, tile, operands, plan), dout)):
        if wanted[k] is not None:
            gradients.append(_over_queries(weights, array, key.shape[-3], plan))
    return (*gradients, *drest)


def _in_groups(x: Array, G: int) -> Array:
    """(..., N, T, .) as (..., G, N // G · T, .): the queries of heads that share a key, one after the other."""
    return x.reshape(*x.shape[:-3], G, -1, x.shape[-1])


def _over_queries(weights: Array, x: Array, G: int, plan: Plan) -> Array:
    """The sums of x (..., N, T, .) over the queries of the heads that share a key, (..., G, S, .).

    A product without a batch XLA:CPU adds up in chains, which are off by three times as much (L8): then it gets one,
    of some of the heads each.
    """
    one, other = (_in_groups(y, G) for y in (weights, x))
    heads, rows = weights.shape[-3] // G, one.shape[-2]
    is_unbatched = plan.platform == "cpu" and math.prod(one.shape[:-2]) == 1
    if apart := is_unbatched and heads > 1 and isinstance(rows, int) and rows > CHAIN:  # or symbolic, in jax.export
        parts = next(count for count in range(2, heads + 1) if heads % count == 0)
        one, other = (y.reshape(*y.shape[:-2], parts, rows // parts, y.shape[-1]) for y in (one, other))
    found = times(one, other, False, plan.flat, plan.precision, transpose_left=True)
    return found.sum(axis=-3) if apart else found


def _in_heads(x: Array, shape: tuple[int, ...]) -> Array:
    """Undo ``_in_groups`` for (..., N, T, .) of a shape; the last axis and axes from vmap may differ."""
    return x.reshape(*x.shape[:-3], *shape[-3:-1], x.shape[-1])


def dropped(weights: Array, tile: Tile, operands: Operands, plan: Plan) -> Array:
    """Weights, or their cotangents, after dropout: the set kept depends on random keys and positions only (L10).

    A dropped weight is multiplied by the number 0, as in ``spec``, so that NaN stays NaN. Times a boolean, XLA gives 0.
    """
    if not plan.rate:
        return weights
    _, i, j = tile.positions(weights.ndim)
    dropout_keys = tuple(tile.cut("pairs", word) for word in operands.dropout_keys or ())
    kept = dropout.keep(dropout_keys, i, j, plan.rate)
    return weights * jnp.where(kept, 1 / (1 - plan.rate) if plan.rate < 1 else 1.0, 0.0)


def _multiply_by_keys(
    x: Array, other: Array, plan: Plan, transpose_right: bool = False, multiplied: Callable[..., Array] = product
) -> Array:
    """The product of x (..., N, queries, .) with an array of the keys, (..., G, keys, .) or transposed."""
    grouped = _in_groups(x, other.shape[-3])
    return _in_heads(multiplied(grouped, other, transpose_right, plan.flat, plan.precision), x.shape)


def _dout_dot_value(dout: Array, value: Array, plan: Plan) -> Array:
    """``dout · v`` of each pair, on a CPU of at longest ``COLUMNS`` columns each: see ``_weighted_sum``."""
    ends = [*range(COLUMNS, dout.shape[-1], COLUMNS)] if plan.platform == "cpu" else []
    pairs = zip(jnp.split(dout, ends, axis=-1), jnp.split(value, ends, axis=-1), strict=True)
    first, *rest = (_multiply_by_keys(x, y, plan, True, times) for x, y in pairs)
    return sum(rest, first)


def _weighted_sum(weights: Array, value: Array, plan: Plan) -> Array:
    """The weighted sums of the values, of at longest ``LENGTH`` keys each: a longer chain of products misses L7.

    XLA:CPU adds up in chains. If all values are equal, what one of many keys rounds is left in every gradient (L8).
    """
    keys, longest = value.shape[-2], KEYS if plan.platform == "cpu" else LENGTH
    if not isinstance(keys, int) or keys <= longest:  # or symbolic, in jax.export
        return _multiply_by_keys(weights, value, plan)
    halves = (slice(None, keys // 2), slice(keys // 2, None))
    one, other = (_weighted_sum(weights[..., half], value[..., half, :], plan) for half in halves)
    return one + other


def factors_of(query: Array, plan: Plan) -> Factors:
    """The factors of queries before and after their products with keys; see ``in_range``."""
    return in_range(query, jnp.asarray(plan.factors[0], query.dtype))


def _in_tile(tile: Tile, factors: Factors) -> Factors:
    before, after = (tile.cut("queries", x) for x in factors)
    return before, after


def _scaled_products(
    query: Array, key: Array, plan: Plan, factors: Factors, multiplied: Callable[..., Array] = product
) -> Array:
    """``scale · Q Kᵀ``, (..., N, queries, keys)."""
    return jnp.multiply(*_products(query, key, plan, factors, multiplied))


def _products(
    query: Array, key: Array, plan: Plan, factors: Factors, multiplied: Callable[..., Array] = product
) -> Factors:
    """Two arrays whose product is that; the second, (..., N, queries, 1), is a power of two."""
    raised, lowered = factors
    products, after = _multiply_by_keys(query * raised, key, plan, True, multiplied), plan.factors[1]
    return products if after is None else products * after, lowered


def _marks(products: Array, *values: Array) -> Array:
    """NaN for pairs (..., N, queries, keys) whose product, or a value of whose key, is not finite; 0 for others."""
    marks = in_memory(mark_of_rows(*values))  # not in the kernel of the products, which takes longer with it
    grouped = _in_groups(lax.stop_gradient(products), marks.shape[-3])
    return _in_heads(jnp.subtract(grouped, grouped) + marks.swapaxes(-1, -2), products.shape)


def scores_of_tile(tile: Tile, operands: Operands, plan: Plan) -> Array:
    """The scores (..., N, queries, keys) that softmax takes, -inf where forbidden."""
    leaves = leaves_in(tile, operands)
    query, key = (x.astype(operands.compute_dtype()) for x in leaves[:VALUE])
    products = _scaled_products(query, key, plan, factors_of(query, plan))
    scores, allowed = finished(products, leaves[REST:], tile, operands)
    return scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)


def leaves_in(tile: Tile, operands: Operands) -> list[Array]:
    """The differentiable leaves of a call, cut to a tile."""
    return [tile.cut(*pair) for pair in zip(operands.roles(), operands.differentiable(), strict=True)]


def finished(
    products: Array, rest: Sequence[Array], tile: Tile, operands: Operands, *, live: Array | bool = True
) -> tuple[Array, Array | None]:
    """Make scores of products (L2), by the modifier and the bias; and tell which pairs are allowed, None for all.

    Scores of forbidden pairs are arbitrary. A forbidden product may be NaN and must not reach a modifier: its
    derivative would also be NaN. So may the products of a row that is not ``live``.

    Args:
        products: (..., N, queries, keys).
        rest: the differentiable leaves after the value.
        tile, operands: of the scores.
        live: (..., N, queries, 1), the rows that count; read only if there is a modifier or a bias.
    """
    filled = operands.replaced([*operands.differentiable()[:REST], *rest])
    bias, score_mod = filled.bias, filled.score_mod
    allowed: Any = allowed_pairs(tile, operands.mask)
    scores = jnp.broadcast_to(products, tile.grid.shape)
    if live is not True and (bias is not None or score_mod is not None):
        allowed = live if allowed is None else allowed & live
    if bias is not None:
        allowed = (bias != -jnp.inf) if allowed is None else allowed & (bias != -jnp.inf)
    if score_mod is not None:
        scores = scores if allowed is None else jnp.where(allowed, scores, 0)
        scores = _modified(scores, score_mod, tile)
    elif operands.query.shape[-1] == 1:
        scores = _rounded(scores)
    if bias is not None:
        scores = add_bias(scores, bias.astype(scores.dtype))
    return scores, allowed


def _rounded(scores: Array) -> Array:
    """The scores, rounded to their dtype.

    Where they end in a multiplication, XLA may fuse it with the subtraction of the maximum into one multiply-add, which
    does not round the score as the maximum was rounded: at 1e30 the difference is 1e23 (L7). The ``where`` prevents the
    fusion.
    """
    return jnp.where(scores == scores, scores, -scores)  # not NaN itself, which would have no gradient


def _modified(scores: Array, score_mod: ScoreModifier, tile: Tile) -> Array:
    """The modifier on scores, for each entry of the axes from vmap, as its arrays have them; NaN stays.

    The last ``where`` also rounds them: see ``_rounded``.
    """
    positions = tile.positions(scores.ndim - tile.grid.batch)

    def apply(score_mod, scores):
        return modify(score_mod, scores, positions, in_order=tile.grid.in_order)

    for _ in range(tile.grid.batch):
        apply = jax.vmap(apply)
    found = apply(jax.tree.map(lambda x: tile.cut("own", x), score_mod), scores)
    return jnp.where(scores == scores, found, scores)
