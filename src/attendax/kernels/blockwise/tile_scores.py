"""The scores of one tile: products, modifier, bias, mask (L2).

Tiles are flat, (..., N, queries, keys), in the forward; in the backward they are tall, (..., N, keys, queries), because
then the gradients of keys and values are plain products, which run at twice the speed of transposed ones.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from attendax.masks import Mask

from ..numerics import product, times, turned_in_memory
from ..operands import KEY, QUERY, REST, Operands, Plan
from ..score_modifiers import add_bias, modify
from .tiles import Tile


def scores_of_tile(tile: Tile, operands: Operands, plan: Plan) -> Array:
    """The scores (..., N, queries, keys) as softmaxed, -inf where forbidden."""
    return flat_scores(leaves_in(tile, operands), tile, operands, plan)


def leaves_in(tile: Tile, operands: Operands) -> list[Array]:
    """The differentiable leaves of a call, cut to a tile."""
    return [tile.cut(*pair) for pair in zip(operands.roles(), operands.differentiable(), strict=True)]


def flat_scores(leaves: Any, tile: Tile, operands: Operands, plan: Plan, marks: Any = None) -> Array:
    """Scores (..., N, queries, keys), -inf where forbidden; before that, ``marks`` are added: see ``not_finite``."""
    products = _flat_products(leaves[QUERY], leaves[KEY], operands, plan, marks)
    scores, allowed = finished(products, leaves[REST:], tile, operands)
    return scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)


def _flat_products(query: Array, key: Array, operands: Operands, plan: Plan, marks: Any = None) -> Array:
    """``scale · Q Kᵀ``, (..., N, queries, keys), with ``marks`` of queries and of keys.

    Query heads that share a key are rows of one product.
    """
    query, key = (x.astype(operands.wide()) for x in (query, key))
    query = query * plan.scale if marks is None else query * plan.scale + marks[QUERY].astype(query.dtype)
    grouped = query.reshape(*query.shape[:-3], key.shape[-3], -1, query.shape[-1])
    products = product(grouped, key, True, plan.flat)
    products = products if marks is None else products + marks[KEY].astype(key.dtype).swapaxes(-1, -2)
    return products.reshape(*products.shape[:-3], *query.shape[-3:-1], key.shape[-2])


def tall_products(query: Array, key: Array, operands: Operands, plan: Plan) -> Array:
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
    return tall_product(key, query * plan.scale, plan)


def tall_product(keys: Array, queries: Array, plan: Plan) -> Array:
    """``K Qᵀ``: of (..., G, S, .) and (..., N, T, .), (..., N, S, T). Queries of a group are columns of one product."""
    (N, T), (G, S) = queries.shape[-3:-1], keys.shape[-3:-1]
    queries = queries.reshape(*queries.shape[:-3], G, -1, queries.shape[-1])
    products = times(keys, queries, transpose_right=True, flat=plan.flat)
    if N == G:
        return products
    lead = products.shape[:-3]
    return jnp.moveaxis(products.reshape(*lead, G, S, N // G, T), -2, -3).reshape(*lead, N, S, T)


def finished(
    products: Array, rest: Any, tile: Tile, operands: Operands, *, tall: bool = False, live: Any = True
) -> tuple[Array, Array | None]:
    """From products to scores (L2), the modifier and the bias; and which pairs are allowed, None for all.

    What the scores are where they are not allowed does not matter. A forbidden product, perhaps NaN, must not reach a
    modifier, whose derivative there would be NaN, too; nor may one of a row that is not ``live`` (..., N, queries, 1).

    Args:
        products: (..., N, queries, keys), or tall.
        rest: the differentiable leaves after the value, of a tall tile a tall bias (``tall_leaves``).
        tile, operands: of the scores.
        tall: whether queries are columns.
        live: rows that count, where there is a modifier or a bias.
    """
    turned = (lambda x: x.swapaxes(-1, -2)) if tall else (lambda x: x)
    filled = operands.replaced([*operands.differentiable()[:REST], *rest])
    bias, score_mod = filled.bias, filled.score_mod
    shape = tile.grid.shape
    scores = jnp.broadcast_to(products, (*shape[:-2], shape[-1], shape[-2]) if tall else shape)
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


def tall_leaves(rest: Any, operands: Operands) -> list[Any]:
    """The differentiable leaves after the value for a tall tile: the bias turned.

    Where its rows are multiples of 2 KiB, a column lies in few lines of the cache, and whoever reads it turned takes 5
    times as long: such a bias is turned once for all, and gradients are 1.2 times as fast. A copy of others costs more.
    """
    if operands.bias is None:
        return list(rest)
    bias, *others = rest
    return [turned_in_memory(bias) if bias.shape[-1] % 512 == 0 else bias.swapaxes(-1, -2), *others]


def _rounded(scores: Array) -> Array:
    """The scores, as numbers of their dtype.

    Where they end in a multiplication, XLA may fuse it with the subtraction of the maximum into one multiply-add, which
    does not round the score as the maximum was rounded: at 1e30 the difference is 1e23 (L7). A choice between the two
    prevents that.
    """
    return jnp.where(scores == scores, scores, jnp.nan)


def allowed_pairs(tile: Tile, mask: Mask | None) -> Array | None:
    """Which pairs of the tile are allowed, (..., N, queries, keys); None for all.

    Of two tiles that overlap, the second leaves out what counts in the first.
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
    """The modifier on flat scores, for each entry of the axes from vmap, which its arrays have, too; NaN stays NaN."""
    positions = tile.positions(scores.ndim - tile.grid.batch)

    def apply(score_mod, scores):
        return modify(score_mod, scores, positions, in_order=tile.grid.in_order)

    for _ in range(tile.grid.batch):
        apply = jax.vmap(apply)
    found = apply(jax.tree.map(lambda x: tile.cut("own", x), score_mod), scores)
    return jnp.where(scores == scores, found, jnp.nan)
