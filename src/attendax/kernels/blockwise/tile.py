"""One tile: its scores, where bias and mask are applied (L2), softmax, average; tangents and gradients, the bias's too.

Tiles are query-major, (..., N, queries, keys), in the forward. In the backward they are key-major, (..., N, keys,
queries): then the gradients of keys and values are plain products, which run at twice the speed of transposed ones.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from attendax.masks import Mask
from attendax.scores import ScoreModifier

from .. import dropout
from ..not_finite import Marks, RowsOfBackward, replace_nonfinite, with_marks
from ..numerics import broadcast_in_memory, product, sums_of_products, times, turned_in_memory
from ..online_softmax import at_most_zero, exp_scores, sum_or_one, weights_of
from ..operands import KEY, QUERY, REST, VALUE, Operands, Plan, Results, Tangents, Wanted
from ..score_modifiers import add_bias, modify
from .tiles import Tile


def part_of_forward(tile: Tile, marks: Marks, operands: Operands, plan: Plan) -> tuple[Array, ...]:
    """Over the keys of a tile: weighted sum of the values, maximum, sum of exponentials.

    ``marks`` are those of queries and keys (see ``not_finite``); keys have none where every query sees every key.
    """
    leaves = leaves_in(tile, operands)
    pairs = zip(("queries", "keys"), marks, strict=True)
    marks = [None if mark is None else tile.cut(role, mark) for role, mark in pairs]
    of_keys = marks[KEY]
    scores = query_major_scores(leaves, tile, operands, plan, marks)
    exps, row_max, row_sum = exp_scores(scores, may_be_empty=of_keys is not None)
    value = leaves[VALUE].astype(exps.dtype)
    value = value if of_keys is None else jnp.where(jnp.isnan(of_keys), 0, value)
    return _average(dropped(exps, tile, operands, plan), value, plan), row_max, row_sum


def weights_of_tile(tile: Tile, operands: Operands, plan: Plan) -> Array:
    """The weights (..., N, queries, keys) after dropout, of a tile that holds all keys."""
    exps, _, row_sum = exp_scores(scores_of_tile(tile, operands, plan))
    return dropped(exps / sum_or_one(row_sum), tile, operands, plan)


def part_of_tangent(
    tile: Tile, tangents: Tangents, operands: Operands, results: Results, plan: Plan
) -> tuple[Array, ...]:
    """Over the keys of a tile: ``Σ w (ds v + dv)`` and ``Σ p ds``."""
    leaves, compute_dtype, roles = leaves_in(tile, operands), operands.compute_dtype(), operands.roles()
    dots: list[Any] = [None if t is None else tile.cut(role, t) for role, t in zip(roles, tangents, strict=True)]
    leaves[:REST], dots[:REST] = with_marks(leaves[:REST], dots[:REST])
    if operands.bias is not None and dots[REST] is not None:
        dots[REST] = replace_nonfinite(dots[REST], jnp.nan)
    moving = [k for k, t in enumerate(dots) if t is not None and k != VALUE]
    shapes = [jnp.broadcast_shapes(leaves[k].shape, dots[k].shape) for k in moving]
    pairs = [
        (broadcast_in_memory(leaves[k], shape), broadcast_in_memory(dots[k], shape))
        for k, shape in zip(moving, shapes, strict=True)
    ]

    def scores(arrays):
        filled = dict(zip(moving, arrays, strict=True))
        return query_major_scores([filled.get(k, x) for k, x in enumerate(leaves)], tile, operands, plan)

    s, ds = jax.jvp(scores, ([one for one, _ in pairs],), ([t for _, t in pairs],))
    p = weights_of(s, tile.cut("queries", results.row_max), tile.cut("queries", results.row_sum))
    w = dropped(p, tile, operands, plan)
    summed = _average(w * ds, leaves[VALUE].astype(compute_dtype), plan)
    if dots[VALUE] is not None:
        summed += _average(w, dots[VALUE].astype(compute_dtype), plan)
    return summed, sums_of_products(p, ds)


def pulled_back(tile: Tile, rows: RowsOfBackward, operands: Operands, plan: Plan, wanted: Wanted) -> tuple[Array, ...]:
    """The share of a tile in each gradient that is wanted, in the order of the leaves."""
    leaves, rows, compute_dtype = (
        leaves_in(tile, operands),
        RowsOfBackward(*(tile.cut("queries", x) for x in rows)),
        operands.compute_dtype(),
    )
    leaves[QUERY] = jnp.where(rows.live, leaves[QUERY], 0)
    query, key, value = (
        replace_nonfinite(x).astype(compute_dtype) if k else x.astype(compute_dtype)
        for k, x in enumerate(leaves[:REST])
    )
    *head, T, S = tile.grid.shape  # broadcast outside of the vjp: inside, its gradient would be a sum
    products = jnp.broadcast_to(key_major_products(query, key, operands, plan), (*head, S, T))
    rest, moving = list(leaves[REST:]), {k: shape for k, shape in enumerate(wanted[REST:]) if shape is not None}
    for k, in_full in moving.items():
        _, shape = tile.where(operands.roles()[REST + k], in_full)
        rest[k] = jnp.broadcast_to(rest[k], jnp.broadcast_shapes(rest[k].shape, shape))
    rest = key_major_leaves(rest, operands)

    def scores(products, arrays):
        filled = dict(zip(moving, arrays, strict=True))
        arrays = [filled.get(k, x) for k, x in enumerate(rest)]
        return finished(products, arrays, tile, operands, key_major=True, live=rows.shift != jnp.inf)

    s, pull, allowed = jax.vjp(scores, products, [rest[k] for k in moving], has_aux=True)
    p = jnp.exp(at_most_zero(s - rows.shift.swapaxes(-1, -2)))
    p = p if allowed is None else jnp.where(allowed, p, 0)
    w, dp = (dropped(x, tile, operands, plan, key_major=True) for x in (p, key_major_product(value, rows.dout, plan)))
    ds = p * (dp - rows.delta.swapaxes(-1, -2))
    dz, drest = pull(ds if allowed is None else jnp.where(allowed, ds, 0))  # a value may be huge: 0 · inf
    found = []
    if wanted[QUERY] is not None:
        sums = times(key, _in_groups(dz, tile), transpose_left=True, flat=plan.flat, precision=plan.precision)
        sums = lax.optimization_barrier(sums).swapaxes(-1, -2)  # transposed in the product: 1.5 to 1.8 times the time
        found.append(plan.scale * sums.reshape(*sums.shape[:-3], *dz.shape[-3:-2], -1, sums.shape[-1]))
    for k, weights, array in ((KEY, dz, plan.scale * query), (VALUE, w, rows.dout)):
        if wanted[k] is not None:
            side_by_side = array.reshape(*array.shape[:-3], key.shape[-3], -1, array.shape[-1])
            found.append(times(_in_groups(weights, tile), side_by_side, flat=plan.flat, precision=plan.precision))
    if operands.bias is not None and 0 in moving:
        drest[0] = drest[0].swapaxes(-1, -2)
    return (*found, *drest)


def _in_groups(x: Array, tile: Tile) -> Array:
    """(..., N, S, T) with the queries of a group side by side: (..., G, S, N // G · T)."""
    if tile.grid.group == 1:
        return x
    lead, (N, S, T), group = x.shape[:-3], x.shape[-3:], tile.grid.group
    return jnp.moveaxis(x.reshape(*lead, N // group, group, S, T), -3, -2).reshape(*lead, N // group, S, group * T)


def dropped(weights: Array, tile: Tile, operands: Operands, plan: Plan, *, key_major: bool = False) -> Array:
    """Weights, or their cotangents, after dropout: the set kept depends on random keys and positions only (L10).

    A dropped weight is multiplied by the number 0, as in ``spec``, so that NaN stays NaN. Times a boolean, XLA gives 0.
    """
    if not plan.rate:
        return weights
    _, i, j = (x.swapaxes(-1, -2) if key_major else x for x in tile.positions(weights.ndim))
    dropout_keys = tuple(tile.cut("pairs", word) for word in operands.dropout_keys or ())
    kept = dropout.keep(dropout_keys, i, j, plan.rate)
    return weights * jnp.where(kept, 1 / (1 - plan.rate) if plan.rate < 1 else 1.0, 0.0)


def _average(weights: Array, values: Array, plan: Plan) -> Array:
    """``Σ_j weights_ij values_j`` for weights (..., N, queries, keys) and values (..., G, keys, V)."""
    grouped = weights.reshape(*weights.shape[:-3], values.shape[-3], -1, weights.shape[-1])
    result = product(grouped, values, False, plan.flat, plan.precision)
    return result.reshape(*result.shape[:-3], *weights.shape[-3:-1], values.shape[-1])


def scores_of_tile(tile: Tile, operands: Operands, plan: Plan) -> Array:
    """The scores (..., N, queries, keys) that softmax takes, -inf where forbidden."""
    return query_major_scores(leaves_in(tile, operands), tile, operands, plan)


def leaves_in(tile: Tile, operands: Operands) -> list[Array]:
    """The differentiable leaves of a call, cut to a tile."""
    return [tile.cut(*pair) for pair in zip(operands.roles(), operands.differentiable(), strict=True)]


def query_major_scores(
    leaves: Sequence[Array], tile: Tile, operands: Operands, plan: Plan, marks: Marks | None = None
) -> Array:
    """Scores (..., N, queries, keys), -inf where forbidden; before that, ``marks`` are added: see ``not_finite``."""
    products = _query_major_products(leaves[QUERY], leaves[KEY], operands, plan, marks)
    scores, allowed = finished(products, leaves[REST:], tile, operands)
    return scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)


def _query_major_products(
    query: Array, key: Array, operands: Operands, plan: Plan, marks: Marks | None = None
) -> Array:
    """``scale · Q Kᵀ``, (..., N, queries, keys), with ``marks`` of queries and of keys.

    Query heads that share a key are rows of one product.
    """
    query, key = (x.astype(operands.compute_dtype()) for x in (query, key))
    of_queries, of_keys = (None, None) if marks is None else marks
    before, after = plan.factors
    query = query * before if of_queries is None else query * before + of_queries.astype(query.dtype)
    grouped = query.reshape(*query.shape[:-3], key.shape[-3], -1, query.shape[-1])
    products = product(grouped, key, True, plan.flat, plan.precision)
    products = products if after is None else products * after
    if marks is not None and of_queries is None:
        products = products + jnp.subtract(products, products)
    products = products if of_keys is None else products + of_keys.astype(key.dtype).swapaxes(-1, -2)
    return products.reshape(*products.shape[:-3], *query.shape[-3:-1], key.shape[-2])


def key_major_products(query: Array, key: Array, operands: Operands, plan: Plan) -> Array:
    """``scale · K Qᵀ``, (..., N, keys, queries), rounded as ``Q Kᵀ`` is in the forward.

    The order in which XLA adds up depends on how many columns the result has. In another order a weight near 1 would be
    off by as much as its score: up to a hundred times the error of the dense formula (L8). Numbers of columns that are
    equal, or multiples of 64, are rounded alike. For others the product of the forward is turned, which takes longer;
    without the barrier XLA would turn it back.
    """
    keys, queries = key.shape[-2], query.shape[-2] * (query.shape[-3] // key.shape[-3])
    if keys != queries and (keys % 64 or queries % 64):
        return lax.optimization_barrier(_query_major_products(query, key, operands, plan)).swapaxes(-1, -2)
    query, key = (x.astype(operands.compute_dtype()) for x in (query, key))
    before, after = plan.factors
    products = key_major_product(key, query * before, plan)
    return products if after is None else products * after


def key_major_product(keys: Array, queries: Array, plan: Plan) -> Array:
    """``K Qᵀ``: of (..., G, S, .) and (..., N, T, .), (..., N, S, T). Queries of a group are columns of one product."""
    (N, T), (G, S) = queries.shape[-3:-1], keys.shape[-3:-1]
    queries = queries.reshape(*queries.shape[:-3], G, -1, queries.shape[-1])
    products = times(keys, queries, transpose_right=True, flat=plan.flat, precision=plan.precision)
    if N == G:
        return products
    lead = products.shape[:-3]
    return jnp.moveaxis(products.reshape(*lead, G, S, N // G, T), -2, -3).reshape(*lead, N, S, T)


def finished(
    products: Array,
    rest: Sequence[Array],
    tile: Tile,
    operands: Operands,
    *,
    key_major: bool = False,
    live: Array | bool = True,
) -> tuple[Array, Array | None]:
    """From products to scores (L2), the modifier and the bias; and which pairs are allowed, None for all.

    Scores of forbidden pairs are arbitrary. A forbidden product may be NaN and must not reach a modifier: its
    derivative would be NaN, too. The same holds for the products of a row that is not ``live``.

    Args:
        products: (..., N, queries, keys), or key-major.
        rest: the differentiable leaves after the value, of a key-major tile a key-major bias (``key_major_leaves``).
        tile, operands: of the scores.
        key_major: whether queries are columns.
        live: (..., N, queries, 1), the rows that count; read only if there is a modifier or a bias.
    """
    turned = (lambda x: x.swapaxes(-1, -2)) if key_major else (lambda x: x)
    filled = operands.replaced([*operands.differentiable()[:REST], *rest])
    bias, score_mod = filled.bias, filled.score_mod
    shape = tile.grid.shape
    scores = jnp.broadcast_to(products, (*shape[:-2], shape[-1], shape[-2]) if key_major else shape)
    allowed = allowed_pairs(tile, operands.mask)
    allowed = None if allowed is None else turned(allowed)
    if live is not True and (bias is not None or score_mod is not None):
        allowed = turned(live) if allowed is None else allowed & turned(live)
    if bias is not None:
        allowed = (bias != -jnp.inf) if allowed is None else allowed & (bias != -jnp.inf)
    if score_mod is not None:
        scores = scores if allowed is None else jnp.where(allowed, scores, 0)
        scores = turned(_modified(turned(scores), score_mod, tile))
    if score_mod is not None or operands.query.shape[-1] == 1:
        scores = _rounded(scores)
    if bias is not None:
        scores, _ = add_bias(scores, bias.astype(scores.dtype), jnp.bool_(True))
    return scores, allowed


def key_major_leaves(rest: Sequence[Array], operands: Operands) -> list[Any]:
    """The differentiable leaves after the value for a key-major tile: the bias is transposed.

    Where its rows are multiples of 2 KiB, a column falls into few lines of the cache, and reading it column by column
    takes 5 times as long. Such a bias is transposed in memory once; gradients are then 1.2 times as fast. For any other
    bias the copy costs more than it saves.
    """
    if operands.bias is None:
        return list(rest)
    bias, *others = rest
    return [turned_in_memory(bias) if bias.shape[-1] % 512 == 0 else bias.swapaxes(-1, -2), *others]


def _rounded(scores: Array) -> Array:
    """The scores, rounded to their dtype.

    Where they end in a multiplication, XLA may fuse it with the subtraction of the maximum into one multiply-add, which
    does not round the score as the maximum was rounded: at 1e30 the difference is 1e23 (L7). The ``where`` prevents the
    fusion.
    """
    return jnp.where(scores == scores, scores, jnp.nan)


def allowed_pairs(tile: Tile, mask: Mask | None) -> Array | None:
    """Which pairs of the tile are allowed, (..., N, queries, keys); None for all.

    Where two tiles overlap, the second forbids the pairs that are in the first.
    """
    grid, parts = tile.grid, []
    rank = len(grid.shape)
    _, i, j = tile.positions(rank)
    if mask is not None:
        found = mask.map(lambda part: mask_in_tile(part, tile)).allowed(i.reshape(-1, 1), j.reshape(1, -1), jnp)
        parts.append(found.reshape((1,) * (rank - found.ndim) + found.shape))
    _, i, j = tile.numbers(rank)
    parts += [place >= new for place, new in ((j, tile.new_column), (i, tile.new_row)) if new is not None]
    allowed = parts.pop() if parts else None
    while parts:
        allowed = allowed & parts.pop()
    return allowed


def mask_in_tile(part: Mask, tile: Tile) -> Mask:
    """One kind of mask with its arrays cut to the tile; a function is called with the positions of the tile."""
    if part.kind == "blocks":
        return dataclasses.replace(part, arrays=tuple(tile.cut("blocks", x) for x in part.arrays))
    if part.kind != "function":
        return Mask(part.kind, tuple(None if x is None else tile.cut("pairs", x) for x in part.arrays), part.settings)
    rank = len(tile.grid.shape)
    _, i, j = tile.positions(3)

    def ask(arrays):
        found = Mask(part.kind, arrays, part.settings).allowed(i[0], j[0], jnp)
        return found.reshape((1,) * (rank - tile.grid.batch - found.ndim) + found.shape)

    arrays = jax.tree.map(lambda x: tile.cut("own", x), part.arrays)
    if not arrays:
        found = ask(())
        return Mask("dense", (found.reshape((1,) * (rank - found.ndim) + found.shape),))
    for _ in range(tile.grid.batch):
        ask = jax.vmap(ask)
    return Mask("dense", (ask(arrays),))


def _modified(scores: Array, score_mod: ScoreModifier, tile: Tile) -> Array:
    """The modifier on query-major scores, for each entry of the axes from vmap, as its arrays have them; NaN stays."""
    positions = tile.positions(scores.ndim - tile.grid.batch)

    def apply(score_mod, scores):
        return modify(score_mod, scores, positions, in_order=tile.grid.in_order)

    for _ in range(tile.grid.batch):
        apply = jax.vmap(apply)
    found = apply(jax.tree.map(lambda x: tile.cut("own", x), score_mod), scores)
    return jnp.where(scores == scores, found, jnp.nan)
