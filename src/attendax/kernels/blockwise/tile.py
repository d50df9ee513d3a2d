"""One tile: its scores, where bias and mask are applied (L2), softmax, average; tangents and gradients, the bias's too.

Scores and weights are (..., N, queries, keys), in the backward as in the forward: so a score is rounded alike in both,
and a weight near 1 is not off by as much as its score (L8). Queries of heads that share a key are rows of one product.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attendax.masks import Mask
from attendax.scores import ScoreModifier

from .. import dropout
from ..not_finite import RowsOfBackward, is_read
from ..numerics import (
    finite_straight_through,
    in_memory,
    mark_of_rows,
    of_one_shape,
    product,
    replace_nonfinite,
    sums_of_products,
    times,
)
from ..online_softmax import at_most_zero, exp_scores, softmax, weights_of
from ..operands import KEY, QUERY, REST, VALUE, Cotangents, Operands, Plan, Results, Tangents, Wanted
from ..score_modifiers import add_bias, modify
from .tiles import Tile


def part_of_forward(tile: Tile, operands: Operands, plan: Plan) -> tuple[Array, ...]:
    """The weighted sum of the values, the maximum and the sum of exponentials over the keys of a tile."""
    leaves = leaves_in(tile, operands)
    query, key, value = (x.astype(operands.compute_dtype()) for x in leaves[:REST])
    products = _marked(_scaled_products(query, key, plan), mark_of_rows(value))
    scores, allowed = finished(products, leaves[REST:], tile, operands)
    if allowed is not None:
        scores, value = jnp.where(allowed, scores, -jnp.inf), replace_nonfinite(value)
    exps, row_max, row_sum = exp_scores(scores)
    return _of_rows(dropped(exps, tile, operands, plan), value, plan), row_max, row_sum


def weights_of_tile(tile: Tile, operands: Operands, plan: Plan) -> Array:
    """The weights (..., N, queries, keys) after dropout, of a tile that holds all keys."""
    return dropped(softmax(scores_of_tile(tile, operands, plan)), tile, operands, plan)


def part_of_tangent(
    tile: Tile, tangents: Tangents, operands: Operands, results: Results | None, plan: Plan
) -> tuple[Array, ...]:
    """Sums over the keys of a tile: ``Σ w (ds v + dv)`` and ``dlse = Σ p ds``.

    Without results, a tile has all keys of its rows, and the first sum is that of ``w ((ds - dlse) v + dv)``.
    """
    leaves, compute_dtype, roles = leaves_in(tile, operands), operands.compute_dtype(), operands.roles()
    dots: list[Any] = [None if t is None else tile.cut(role, t) for role, t in zip(roles, tangents, strict=True)]
    moving = [k for k, t in enumerate(dots) if t is not None and k != VALUE]
    primals, given = of_one_shape([leaves[k] for k in moving], [dots[k] for k in moving])

    def scores(arrays):
        filled = dict(zip(moving, arrays, strict=True))
        query, key, _, *rest = (filled.get(k, x) for k, x in enumerate(leaves))
        products = _scaled_products(query.astype(compute_dtype), key.astype(compute_dtype), plan)
        return finished(products if results else _marked(products, marks), rest, tile, operands)

    value, dvalue = leaves[VALUE].astype(compute_dtype), dots[VALUE]
    marks = in_memory(mark_of_rows(value))  # not in the kernel of the products, which takes longer with it
    s, ds, allowed = jax.jvp(scores, (primals,), (given,), has_aux=True)
    ds = _marked(ds, marks if dvalue is None else in_memory(mark_of_rows(dvalue)))
    if allowed is not None:
        s, ds = jnp.where(allowed, s, -jnp.inf), jnp.where(allowed, ds, 0)
    p = softmax(s) if results is None else weights_of(s, *(tile.cut("queries", x) for x in results[1:3]))
    w, dlse = dropped(p, tile, operands, plan), sums_of_products(p, ds)
    summed = _of_rows(w * (ds - dlse if results is None else ds), replace_nonfinite(value), plan)
    if dvalue is not None:
        summed += _of_rows(w, replace_nonfinite(dvalue.astype(compute_dtype)), plan)
    return summed, dlse


def pulled_back(
    tile: Tile, rows: RowsOfBackward | Cotangents, operands: Operands, plan: Plan, wanted: Wanted
) -> tuple[Array, ...]:
    """The share of a tile in each gradient that is wanted, in the order of the leaves.

    Where a tile has all keys of its rows, ``rows`` may be the cotangents of out and lse themselves. Then what is not
    finite becomes NaN in the products, reaches delta, and so the whole row of weights, in derivatives of this, too.
    """
    leaves, compute_dtype = leaves_in(tile, operands), operands.compute_dtype()
    query, key, value = (x.astype(compute_dtype) for x in leaves[:REST])
    dout, *of_rows = (tile.cut("queries", x) for x in rows)
    if at_once := not isinstance(rows, RowsOfBackward):
        read = is_read(dout, *of_rows)
    else:
        delta, shift, live = of_rows
        read = shift != jnp.inf
        query, key, value = jnp.where(live, query, 0), replace_nonfinite(key), replace_nonfinite(value)
    # broadcast outside of the vjp: inside, its gradient would be a sum
    products = jnp.broadcast_to(_scaled_products(query, key, plan, times), tile.grid.shape)
    rest, moving = leaves[REST:], {k: shape for k, shape in enumerate(wanted[REST:]) if shape is not None}
    for k, in_full in moving.items():
        _, shape = tile.where(operands.roles()[REST + k], in_full)
        rest[k] = jnp.broadcast_to(rest[k], jnp.broadcast_shapes(rest[k].shape, shape))

    def scores(products, arrays):
        filled = dict(zip(moving, arrays, strict=True))
        return finished(products, [filled.get(k, x) for k, x in enumerate(rest)], tile, operands, live=read)

    s, pull, seen = jax.vjp(scores, products, [rest[k] for k in moving], has_aux=True)
    dp = dropped(_of_rows(dout, value, plan, True, times), tile, operands, plan)
    if at_once:
        s = in_memory(s)  # else products and softmax's derivative are one kernel, slower for a short text
        s = s + (s - s)
        p = softmax(s if seen is None else jnp.where(seen, s, -jnp.inf))
        seen = read if seen is None else read & seen
        delta = sums_of_products(jnp.where(seen, p, 0), jnp.where(seen, dp, 0)) - of_rows[0]
        p = p + delta * (delta - delta)  # NaN in a row that is not finite, and so is its tangent
        query, key, dout = map(finite_straight_through, (query, key, dout))
    else:
        p = jnp.exp(at_most_zero(s - shift))
    p = p if seen is None else jnp.where(seen, p, 0)
    ds = p * (dp - delta)
    dz, drest = pull(ds if seen is None else jnp.where(seen, ds, 0))  # a value may be huge: 0 · inf
    dz = plan.scale * dz  # times a query or a key, the scale might overflow where dz is 0
    found = [_of_rows(dz, key, plan, False, times)] if wanted[QUERY] is not None else []
    for k, weights, array in ((KEY, dz, query), (VALUE, dropped(p, tile, operands, plan), dout)):
        if wanted[k] is not None:
            one, other = (_in_groups(x, key.shape[-3]) for x in (weights, array))
            found.append(times(one, other, False, plan.flat, plan.precision, transpose_left=True))
    return (*found, *drest)


def _in_groups(x: Array, G: int) -> Array:
    """(..., N, T, .) as (..., G, N // G · T, .): the queries of heads that share a key, one after the other."""
    return x.reshape(*x.shape[:-3], G, -1, x.shape[-1])


def _of_heads(x: Array, shape: tuple[int, ...]) -> Array:
    """Go the other way, for (..., N, T, .) of a shape, whose last axis and whose axes from vmap may be others."""
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


def _of_rows(
    x: Array, other: Array, plan: Plan, transpose_right: bool = False, multiplied: Callable[..., Array] = product
) -> Array:
    """The product for each query of x (..., N, queries, .) with what its keys have, (..., G, keys, .) or transposed."""
    grouped = _in_groups(x, other.shape[-3])
    return _of_heads(multiplied(grouped, other, transpose_right, plan.flat, plan.precision), x.shape)


def _scaled_products(query: Array, key: Array, plan: Plan, multiplied: Callable[..., Array] = product) -> Array:
    """``scale · Q Kᵀ``, (..., N, queries, keys)."""
    before, after = plan.factors
    products = _of_rows(query * before, key, plan, True, multiplied)
    return products if after is None else products * after


def _marked(x: Array, marks: Array) -> Array:
    """An array (..., N, queries, keys), with NaN where it is not finite, or the key has a mark (..., G, keys, 1)."""
    grouped = _in_groups(x, marks.shape[-3])
    return _of_heads(grouped + jnp.subtract(grouped, grouped) + marks.swapaxes(-1, -2), x.shape)


def scores_of_tile(tile: Tile, operands: Operands, plan: Plan) -> Array:
    """The scores (..., N, queries, keys) that softmax takes, -inf where forbidden."""
    leaves = leaves_in(tile, operands)
    query, key = (x.astype(operands.compute_dtype()) for x in leaves[:VALUE])
    scores, allowed = finished(_scaled_products(query, key, plan), leaves[REST:], tile, operands)
    return scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)


def leaves_in(tile: Tile, operands: Operands) -> list[Array]:
    """The differentiable leaves of a call, cut to a tile."""
    return [tile.cut(*pair) for pair in zip(operands.roles(), operands.differentiable(), strict=True)]


def finished(
    products: Array, rest: Sequence[Array], tile: Tile, operands: Operands, *, live: Array | bool = True
) -> tuple[Array, Array | None]:
    """Make scores of products (L2), by the modifier and the bias; and tell which pairs are allowed, None for all.

    Scores of forbidden pairs are arbitrary. A forbidden product may be NaN and must not reach a modifier: its
    derivative would be NaN, too. So may the products of a row that is not ``live``.

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


def allowed_pairs(tile: Tile, mask: Mask | None) -> Array | None:
    """The pairs of the tile that are allowed, (..., N, queries, keys); None for all.

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
