"""What is done with the scores of one tile: softmax and average, how both move, and how both are pulled back."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import dropout
from ..not_finite import Rows, finite, mark_of_heads, marked
from ..numerics import product, repeated, sums_of_products, times
from ..online_softmax import at_most_zero, exp_scores, sum_or_one, weights_of
from ..operands import KEY, QUERY, REST, VALUE, Operands, Plan, Results
from .tile_scores import finished, flat_scores, leaves_in, scores_of_tile, tall_leaves, tall_product, tall_products
from .tiles import Tile


def part_of_forward(tile: Tile, marks: Any, operands: Operands, plan: Plan) -> tuple[Array, ...]:
    """Over the keys of a tile: weighted sum of the values, maximum, sum of exponentials.

    ``marks`` are those of queries and keys (see ``not_finite``), None where every query sees every key.
    """
    leaves = leaves_in(tile, operands)
    marks = None if marks is None else [tile.cut(*pair) for pair in zip(("queries", "keys"), marks, strict=True)]
    scores = flat_scores(leaves, tile, operands, plan, marks)
    exps, row_max, row_sum = exp_scores(scores, may_be_empty=marks is not None)
    value = leaves[VALUE].astype(exps.dtype)
    if marks is None:
        row_sum += each_query_head(mark_of_heads(leaves[KEY], value), tile).astype(exps.dtype)
    else:
        value = jnp.where(jnp.isnan(marks[KEY]), 0, value)
    return _average(dropped(exps, tile, operands, plan), value, plan), row_max, row_sum


def weights_of_tile(tile: Tile, operands: Operands, plan: Plan) -> Array:
    """The weights (..., N, queries, keys) after dropout, of a tile that holds all keys."""
    exps, _, total = exp_scores(scores_of_tile(tile, operands, plan))
    return dropped(exps / sum_or_one(total), tile, operands, plan)


def part_of_tangent(tile: Tile, tangents: Any, operands: Operands, results: Results, plan: Plan) -> tuple[Array, ...]:
    """Over the keys of a tile: ``Σ w (ds v + dv)`` and ``Σ p ds``."""
    leaves, wide, roles = leaves_in(tile, operands), operands.wide(), operands.roles()
    dots: list[Any] = [None if t is None else tile.cut(role, t) for role, t in zip(roles, tangents, strict=True)]
    leaves[:REST], dots[:REST] = marked(leaves[:REST], dots[:REST])
    if operands.bias is not None and dots[REST] is not None:
        dots[REST] = finite(dots[REST], jnp.nan)
    moving = [k for k, t in enumerate(dots) if t is not None and k != VALUE]
    shapes = [jnp.broadcast_shapes(leaves[k].shape, dots[k].shape) for k in moving]
    pairs = [(repeated(leaves[k], shape), repeated(dots[k], shape)) for k, shape in zip(moving, shapes, strict=True)]

    def scores(arrays):
        filled = dict(zip(moving, arrays, strict=True))
        return flat_scores([filled.get(k, x) for k, x in enumerate(leaves)], tile, operands, plan)

    s, ds = jax.jvp(scores, ([one for one, _ in pairs],), ([t for _, t in pairs],))
    p = weights_of(s, tile.cut("queries", results.shift), tile.cut("queries", results.total))
    w = dropped(p, tile, operands, plan)
    summed = _average(w * ds, leaves[VALUE].astype(wide), plan)
    if dots[VALUE] is not None:
        summed += _average(w, dots[VALUE].astype(wide), plan)
    return summed, sums_of_products(p, ds)


def pulled_back(tile: Tile, rows: Rows, operands: Operands, plan: Plan, wanted: Any) -> tuple[Array, ...]:
    """What the pairs of a tile add to the gradients of the leaves that are wanted."""
    leaves, rows, wide = leaves_in(tile, operands), Rows(*(tile.cut("queries", x) for x in rows)), operands.wide()
    leaves[QUERY] = jnp.where(rows.live, leaves[QUERY], 0)
    query, key, value = (finite(x).astype(wide) if k else x.astype(wide) for k, x in enumerate(leaves[:REST]))
    *head, T, S = tile.grid.shape  # in full: the gradient of what is repeated inside would be a sum
    products = jnp.broadcast_to(tall_products(query, key, operands, plan), (*head, S, T))
    rest, moving = list(leaves[REST:]), [k for k, shape in enumerate(wanted[REST:]) if shape is not None]
    for k in moving:
        _, shape = tile.where(operands.roles()[REST + k], wanted[REST + k])
        rest[k] = jnp.broadcast_to(rest[k], jnp.broadcast_shapes(rest[k].shape, shape))
    rest = tall_leaves(rest, operands)

    def scores(products, arrays):
        filled = dict(zip(moving, arrays, strict=True))
        arrays = [filled.get(k, x) for k, x in enumerate(rest)]
        return finished(products, arrays, tile, operands, tall=True, live=rows.shift != jnp.inf)

    s, pull, allowed = jax.vjp(scores, products, [rest[k] for k in moving], has_aux=True)
    p = jnp.exp(at_most_zero(s - rows.shift.swapaxes(-1, -2)))
    p = p if allowed is None else jnp.where(allowed, p, 0)
    w, dp = (dropped(x, tile, operands, plan, tall=True) for x in (p, tall_product(value, rows.dout, plan)))
    ds = p * (dp - rows.delta.swapaxes(-1, -2))
    dz, drest = pull(ds if allowed is None else jnp.where(allowed, ds, 0))  # a value may be too large to multiply
    found = []
    if wanted[QUERY] is not None:
        sums = times(key, _in_groups(dz, tile), transpose_left=True, flat=plan.flat)
        sums = lax.optimization_barrier(sums).swapaxes(-1, -2)  # turned in the product it takes 1.5 to 1.8 times
        found.append(plan.scale * sums.reshape(*sums.shape[:-3], *dz.shape[-3:-2], -1, sums.shape[-1]))
    for k, weights, array in ((KEY, dz, plan.scale * query), (VALUE, w, rows.dout)):
        if wanted[k] is not None:
            side_by_side = array.reshape(*array.shape[:-3], key.shape[-3], -1, array.shape[-1])
            found.append(times(_in_groups(weights, tile), side_by_side, flat=plan.flat))
    if operands.bias is not None and 0 in moving:
        drest[0] = drest[0].swapaxes(-1, -2)
    return (*found, *drest)


def each_query_head(x: Array, tile: Tile) -> Array:
    """Numbers of key heads (..., G, 1, 1) for every query head."""
    return x if tile.grid.group == 1 else jnp.repeat(x, tile.grid.group, axis=-3)


def _in_groups(x: Array, tile: Tile) -> Array:
    """(..., N, S, T) with the queries of a group side by side: (..., G, S, N // G · T)."""
    if tile.grid.group == 1:
        return x
    lead, (N, S, T), group = x.shape[:-3], x.shape[-3:], tile.grid.group
    return jnp.moveaxis(x.reshape(*lead, N // group, group, S, T), -3, -2).reshape(*lead, N // group, S, group * T)


def dropped(weights: Array, tile: Tile, operands: Operands, plan: Plan, *, tall: bool = False) -> Array:
    """Weights, or what becomes of them, after dropout: a function of the keys of the heads and the positions (L10).

    What is dropped is multiplied by 0, as in ``spec``: NaN stays. XLA makes 0 of NaN times a truth value.
    """
    if not plan.rate:
        return weights
    _, i, j = (x.swapaxes(-1, -2) if tall else x for x in tile.positions(weights.ndim))
    keys = tuple(tile.cut("pairs", word) for word in operands.dropout)
    kept = dropout.keep(keys, i, j, plan.rate)
    return weights * jnp.where(kept, 1 / (1 - plan.rate) if plan.rate < 1 else 1.0, 0.0)


def _average(weights: Array, values: Array, plan: Plan) -> Array:
    """``Σ_j weights_ij values_j`` for weights (..., N, queries, keys) and values (..., G, keys, V)."""
    grouped = weights.reshape(*weights.shape[:-3], values.shape[-3], -1, weights.shape[-1])
    result = product(grouped, values, False, plan.flat)
    return result.reshape(*result.shape[:-3], *weights.shape[-3:-1], values.shape[-1])
