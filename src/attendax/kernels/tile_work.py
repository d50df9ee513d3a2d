"""What is done in one tile: scores, their softmax and average, how both move, and how both are pulled back.

Tiles are flat, (..., N, queries, keys), in the forward; in the backward they are tall, (..., N, keys, queries), because
then the gradients of keys and values are plain products, which run at twice the speed of transposed ones.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax.masks import Mask

from . import dropout
from .numerics import all_below, product, repeated, times, vary_alike
from .online_softmax import exp_scores, sum_or_one, weights_of
from .operands import KEY, QUERY, REST, VALUE, Operands, Plan, Results
from .score_modifiers import add_bias, modify
from .tiles import Grid, Tile


def part_of_forward(tile: Tile, operands: Operands, plan: Plan, divisor: Array, is_open: bool) -> tuple[Array, ...]:
    """Over the keys of a tile: weighted sum of the values divided by ``divisor``, maximum, sum of exponentials."""
    leaves = leaves_in(tile, operands)
    scores = _flat_scores(leaves, tile, operands, plan, is_open)
    exps, largest, total = exp_scores(scores)
    value = _summable(leaves[VALUE], tile, operands).astype(scores.dtype) / divisor
    return _average(dropped(exps, tile, operands, plan), value), largest, total


def all_is_seen(grid: Grid, operands: Operands) -> bool:
    """Whether every query of every tile sees every key of it: then a product is the definition, and NaN may spread."""
    return operands.mask is None and operands.bias is None and grid.S % grid.columns == 0


def _summable(values: Array, tile: Tile, operands: Operands) -> Array:
    """The values, 0 for what is not finite; the rows that see it come by definition."""
    return values if all_is_seen(tile.grid, operands) else _finite(values)


def value_divisor(values: Array, dtype: Any) -> tuple[Array, Array]:
    """Whether the values are finite and far from overflow; and what they are divided by, so that no sum of them is inf.

    Mostly that is 1: small values would lose digits below the range of the dtype. Only a finite value above
    ``max / (4 S)`` makes it a power of two, at least the number S of keys (L7).
    """
    bits = (values.shape[-2] - 1).bit_length()
    limit = np.ldexp(1.0, jnp.finfo(dtype).maxexp - 2 - bits)

    def count_large():
        large = jnp.isfinite(values) & (jnp.abs(values.astype(dtype)) > limit)
        return jnp.where(jnp.any(large), jnp.asarray(2.0**bits, dtype), 1)

    one = vary_alike((jnp.ones((), dtype), values))[0]
    fine = all_below([values], limit)
    return fine, lax.stop_gradient(lax.cond(fine, lambda: one, count_large))


def scores_of_tile(tile: Tile, operands: Operands, plan: Plan, is_open: bool) -> Array:
    """The scores (..., N, queries, keys) as softmaxed, -inf where forbidden."""
    return _flat_scores(leaves_in(tile, operands), tile, operands, plan, is_open)


def weights_of_tile(tile: Tile, operands: Operands, plan: Plan) -> Array:
    """The weights (..., N, queries, keys) after dropout, of a tile that holds all keys."""
    exps, _, total = exp_scores(scores_of_tile(tile, operands, plan, False))
    return dropped(exps / sum_or_one(total), tile, operands, plan)


def part_of_sums(tile: Tile, operands: Operands, plan: Plan, is_open: bool) -> tuple[Array, ...]:
    """Maximum and sum of exponentials, from the very products that the backward will form."""
    query, key, _, *rest = leaves_in(tile, operands)
    products = _tall_products(query, key, operands, plan)
    scores, _ = finished(products, rest, tile, operands, plan, is_open, tall=True)
    _, largest, total = exp_scores(scores, axis=-2)
    return largest.swapaxes(-1, -2), total.swapaxes(-1, -2)


def part_of_delta(tile: Tile, rows: "Rows", operands: Operands, plan: Plan, is_open: bool) -> Array:
    """``Σ p dout · v``, from the very products that the backward will form."""
    query, key, value, *rest = leaves_in(tile, operands)
    products = _tall_products(query, key, operands, plan)
    scores, allowed = finished(products, rest, tile, operands, plan, is_open, tall=True)
    shift, total, dout = (tile.cut("queries", x) for x in (rows.shift, rows.total, rows.dout))
    p = jnp.exp(scores - shift.swapaxes(-1, -2)) / total.swapaxes(-1, -2)
    dp = dropped(_tall(value.astype(products.dtype), dout), tile, operands, plan, tall=True)
    return (p * (dp if allowed is None else jnp.where(allowed, dp, 0))).sum(-2)[..., None]


def part_of_tangent(
    tile: Tile, tangents: Any, operands: Operands, results: Results, plan: Plan, is_open: bool
) -> tuple[Array, ...]:
    """Over the keys of a tile: ``Σ w (ds v + dv)`` and ``Σ p ds``."""
    leaves, wide, roles = leaves_in(tile, operands), operands.wide(), operands.roles()
    moving = [k for k, t in enumerate(tangents) if t is not None and k != VALUE]
    pairs = [(leaves[k], tile.cut(roles[k], tangents[k])) for k in moving]
    shapes = [jnp.broadcast_shapes(one.shape, t.shape) for one, t in pairs]
    pairs = [(repeated(one, shape), repeated(t, shape)) for (one, t), shape in zip(pairs, shapes, strict=True)]

    def scores(arrays):
        filled = dict(zip(moving, arrays, strict=True))
        return _flat_scores([filled.get(k, x) for k, x in enumerate(leaves)], tile, operands, plan, is_open)

    s, ds = jax.jvp(scores, ([one for one, _ in pairs],), ([t for _, t in pairs],))
    shift, total = tile.cut("queries", results.shift), tile.cut("queries", results.total)
    p = weights_of(s, shift, total)
    w = dropped(p, tile, operands, plan)
    summed = _average(w * ds, _summable(leaves[VALUE], tile, operands).astype(wide))
    if tangents[VALUE] is not None:
        summed += _average(w, _summable(tile.cut("keys", tangents[VALUE]), tile, operands).astype(wide))
    return summed, jnp.sum(p * ds, axis=-1, keepdims=True)


class Rows(NamedTuple):
    """What the backward knows of every query, (..., N, T, V) and (..., N, T, 1)."""

    dout: Array
    delta: Array  # dout · out - dlse
    live: Array  # whether anything depends on the row: its gradient is not 0, and it sees some key
    shift: Array
    total: Array

    @classmethod
    def of(cls, dout: Array, dlse: Array, results: Results) -> "Rows":
        """The rows of a call, from the gradients of its out and lse and from its results."""
        delta = jnp.sum(dout * results.out, axis=-1, keepdims=True) - dlse
        live = ((dout != 0).any(axis=-1, keepdims=True) | (dlse != 0)) & (results.shift != -jnp.inf)
        return cls(dout, delta, live, results.shift, results.total)

    def are_finite(self) -> Array:
        """Whether what is known of the row is finite, and it sees some key. Delta knows of dout."""
        return jnp.isfinite(self.delta) & jnp.isfinite(self.shift) & jnp.isfinite(self.total)

    def cleaned(self) -> "Rows":
        """A row that is not finite gets the weight exp(-inf) everywhere, and the gradient 0: it adds nothing."""
        pairs = zip(self, (0, 0, False, jnp.inf, 1), strict=True)
        return Rows(*(jnp.where(self.are_finite(), x, neutral) for x, neutral in pairs))


def pulled_back(
    tile: Tile, rows: Rows, operands: Operands, plan: Plan, wanted: Any, is_open: bool
) -> tuple[Array, ...]:
    """What the pairs of a tile add to the gradients of the leaves that are wanted.

    Rows are ``cleaned``, and query, key, value and bias are: 0 for what is not finite, seen by rows left out alone.
    """
    leaves, rows = leaves_in(tile, operands), Rows(*(tile.cut("queries", x) for x in rows))
    left_out = rows.shift == jnp.inf
    leaves[:REST] = (_finite(x) for x in leaves[:REST])  # what a modifier reads stays: there, inf may be a parameter
    leaves[QUERY] = jnp.where(left_out, 0, leaves[QUERY])
    if operands.bias is not None:
        leaves[REST] = jnp.where(leaves[REST] == -jnp.inf, -jnp.inf, _finite(leaves[REST]))
    wide = operands.wide()
    query, key, value = (x.astype(wide) for x in leaves[:REST])
    *head, T, S = tile.grid.shape  # in full: the gradient of what is repeated inside would be a sum
    products = jnp.broadcast_to(_tall_products(query, key, operands, plan), (*head, S, T))
    rest, moving = list(leaves[REST:]), [k for k, shape in enumerate(wanted[REST:]) if shape is not None]
    for k in moving:
        _, shape = tile.where(operands.roles()[REST + k], wanted[REST + k])
        rest[k] = jnp.broadcast_to(rest[k], jnp.broadcast_shapes(rest[k].shape, shape))

    def scores(products, arrays):
        filled = dict(zip(moving, arrays, strict=True))
        arrays = [filled.get(k, x) for k, x in enumerate(rest)]
        scores, allowed = finished(products, arrays, tile, operands, plan, is_open, tall=True, rows_once=True)
        if operands.score_mod is not None:
            scores = jnp.where(left_out.swapaxes(-1, -2), -jnp.inf, scores)
        return scores, allowed

    s, pull, _ = jax.vjp(scores, products, [rest[k] for k in moving], has_aux=True)
    shift, total, delta = (x.swapaxes(-1, -2) for x in (rows.shift, rows.total, rows.delta))
    p, gradient = jnp.exp(s - shift), rows.dout / rows.total
    dw = _tall(value, gradient)
    w, dp = (dropped(x, tile, operands, plan, tall=True) for x in (p, dw))
    dz, drest = pull(p * (dp - delta / total))
    if operands.score_mod is not None:
        dz = jnp.where(left_out.swapaxes(-1, -2), 0, dz)
    found = []
    if wanted[QUERY] is not None:
        sums = times(key, _in_groups(dz, tile), transpose_left=True).swapaxes(-1, -2)
        found.append(plan.scale * sums.reshape(*sums.shape[:-3], *dz.shape[-3:-2], -1, sums.shape[-1]))
    for k, weights, array in ((KEY, dz, plan.scale * query), (VALUE, w, gradient)):
        if wanted[k] is not None:
            side_by_side = array.reshape(*array.shape[:-3], key.shape[-3], -1, array.shape[-1])
            found.append(times(_in_groups(weights, tile), side_by_side))
    return (*found, *drest)


def leaves_in(tile: Tile, operands: Operands) -> list[Array]:
    """The differentiable leaves of a call, cut to a tile."""
    return [tile.cut(*pair) for pair in zip(operands.roles(), operands.differentiable(), strict=True)]


def _flat_scores(leaves: Any, tile: Tile, operands: Operands, plan: Plan, is_open: bool) -> Array:
    """Scores (..., N, queries, keys), -inf where forbidden. Query heads that share a key are rows of one product."""
    products = _flat_products(leaves[QUERY], leaves[KEY], operands, plan)
    return finished(products, leaves[REST:], tile, operands, plan, is_open)[0]


def _flat_products(query: Array, key: Array, operands: Operands, plan: Plan) -> Array:
    """``scale · Q Kᵀ``, (..., N, queries, keys)."""
    query, key = (x.astype(operands.wide()) for x in (query, key))
    grouped = query.reshape(*query.shape[:-3], key.shape[-3], -1, query.shape[-1]) * plan.scale
    products = product(grouped, key, True)
    return products.reshape(*products.shape[:-3], *query.shape[-3:-1], key.shape[-2])


def _tall_products(query: Array, key: Array, operands: Operands, plan: Plan) -> Array:
    """``scale · K Qᵀ``, (..., N, keys, queries), rounded as ``Q Kᵀ`` is in the forward.

    The order in which XLA adds up depends on how many columns the result has. In another order a weight near 1 would be
    off by as much as its score: up to a hundred times the error of the dense formula (L8). Numbers of columns that are
    equal, or multiples of 64, are rounded alike. For others the product of the forward is turned, which takes longer;
    without the barrier XLA would turn it back.
    """
    keys, queries = key.shape[-2], query.shape[-2] * (query.shape[-3] // key.shape[-3])
    if keys != queries and (keys % 64 or queries % 64):
        return lax.optimization_barrier(_flat_products(query, key, operands, plan)).swapaxes(-1, -2)
    query, key = (x.astype(operands.wide()) for x in (query, key))
    return _tall(key, query * plan.scale)


def _tall(keys: Array, queries: Array) -> Array:
    """``K Qᵀ``: of (..., G, S, .) and (..., N, T, .), (..., N, S, T). Queries of a group are columns of one product."""
    (N, T), (G, S) = queries.shape[-3:-1], keys.shape[-3:-1]
    queries = queries.reshape(*queries.shape[:-3], G, -1, queries.shape[-1])
    products = times(keys, queries, transpose_right=True)
    if N == G:
        return products
    lead = products.shape[:-3]
    return jnp.moveaxis(products.reshape(*lead, G, S, N // G, T), -2, -3).reshape(*lead, N, S, T)


def _in_groups(x: Array, tile: Tile) -> Array:
    """(..., N, S, T) with the queries of a group side by side: (..., G, S, N // G · T)."""
    if tile.grid.group == 1:
        return x
    lead, (N, S, T), group = x.shape[:-3], x.shape[-3:], tile.grid.group
    return jnp.moveaxis(x.reshape(*lead, N // group, group, S, T), -3, -2).reshape(*lead, N // group, S, group * T)


def finished(
    scores: Array,
    rest: Any,
    tile: Tile,
    operands: Operands,
    plan: Plan,
    is_open: bool,
    *,
    tall: bool = False,
    rows_once: bool = False,
) -> tuple[Array, Array | None]:
    """From products to scores (L2): the modifier, the bias, the mask; and which pairs are allowed, None for all.

    ``rest`` are the differentiable leaves after the value. A forbidden product, perhaps NaN, must not reach a modifier,
    whose derivative there would be NaN, too.
    """
    turned = (lambda x: x.swapaxes(-1, -2)) if tall else (lambda x: x)
    *_, bias, score_mod, _, _ = operands.replaced([*operands.differentiable()[:REST], *rest])
    shape = tile.grid.shape
    scores = jnp.broadcast_to(scores, (*shape[:-2], shape[-1], shape[-2]) if tall else shape)
    allowed = None if is_open else allowed_pairs(tile, operands.mask, rows_once=rows_once)
    if bias is not None:
        allowed = (bias != -jnp.inf) if allowed is None else allowed & (bias != -jnp.inf)
        bias = turned(bias.astype(scores.dtype))
    allowed = None if allowed is None else turned(allowed)
    if score_mod is not None:
        scores = scores if allowed is None else jnp.where(allowed, scores, 0)
        scores = turned(_modified(turned(scores), score_mod, tile))
    if score_mod is not None or operands.query.shape[-1] == 1:
        scores = _rounded(scores)
    if bias is not None:
        scores, _ = add_bias(scores, bias, jnp.bool_(True))
    return (scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)), allowed


def _rounded(scores: Array) -> Array:
    """The scores, as numbers of their dtype.

    Where they end in a multiplication, XLA may fuse it with the subtraction of the maximum into one multiply-add, which
    does not round the score as the maximum was rounded: at 1e30 the difference is 1e23 (L7). A choice between the two
    prevents that.
    """
    return jnp.where(scores == scores, scores, jnp.nan)


def allowed_pairs(tile: Tile, mask: Mask | None, *, rows_once: bool = False) -> Array | None:
    """Which pairs of the tile are allowed, (..., N, queries, keys); None for all.

    Of two tiles that overlap, the second leaves out the keys of the first, and with ``rows_once`` its queries.
    """
    grid, parts = tile.grid, []
    rank = len(grid.shape)
    _, i, j = tile.positions(rank)
    if mask is not None:
        found = mask.map(lambda part: mask_in_tile(part, tile)).allowed(i.reshape(-1, 1), j.reshape(1, -1), jnp)
        parts.append(found.reshape((1,) * (rank - found.ndim) + found.shape))
    if tile.column_block is not None and grid.S % grid.columns:
        parts.append(j >= tile.column_block * grid.columns)
    if rows_once and tile.row_block is not None and grid.T % grid.rows:
        parts.append(i >= tile.row_block * grid.rows)
    allowed = parts.pop() if parts else None
    while parts:
        allowed = allowed & parts.pop()
    return allowed


def mask_in_tile(part: Mask, tile: Tile) -> Mask:
    """One kind of mask with its arrays cut to the tile; a function is asked for the positions of the tile."""
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


def _modified(scores: Array, score_mod: Any, tile: Tile) -> Array:
    """The modifier on flat scores, for each entry of the axes from vmap, which its arrays have, too."""
    positions = tile.positions(scores.ndim - tile.grid.batch)

    def apply(score_mod, scores):
        return modify(score_mod, scores, positions)

    for _ in range(tile.grid.batch):
        apply = jax.vmap(apply)
    return apply(jax.tree.map(lambda x: tile.cut("own", x), score_mod), scores)


def dropped(weights: Array, tile: Tile, operands: Operands, plan: Plan, *, tall: bool = False) -> Array:
    """Weights, or what becomes of them, after dropout: a function of the keys of the heads and the positions (L10)."""
    if not plan.rate:
        return weights
    _, i, j = (x.swapaxes(-1, -2) if tall else x for x in tile.positions(weights.ndim))
    keys = tuple(tile.cut("pairs", word) for word in operands.dropout)
    kept = dropout.keep(keys, i, j, plan.rate)
    return jnp.where(kept, weights / (1 - plan.rate if plan.rate < 1 else 1), 0)


def _average(weights: Array, values: Array) -> Array:
    """``Σ_j weights_ij values_j`` for weights (..., N, queries, keys) and values (..., G, keys, V)."""
    grouped = weights.reshape(*weights.shape[:-3], values.shape[-3], -1, weights.shape[-1])
    result = product(grouped, values, False)
    return result.reshape(*result.shape[:-3], *weights.shape[-3:-1], values.shape[-1])


def _finite(x: Array) -> Array:
    return jnp.where(jnp.isfinite(x), x, 0)
