"""What is done with the scores of one tile: softmax and average, how both move, and how both are pulled back."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .. import dropout
from ..numerics import all_below, product, repeated, rows_not_zero, sums_of_products, times, vary_alike, walled
from ..online_softmax import exp_scores, sum_or_one, weights_of
from ..operands import KEY, QUERY, REST, VALUE, Operands, Plan, Results
from .tile_scores import (
    finished,
    flat_scores,
    leaves_in,
    scores_of_tile,
    tall_leaves,
    tall_product,
    tall_products,
)
from .tiles import Grid, Tile


def part_of_forward(tile: Tile, operands: Operands, plan: Plan, divisor: Array, is_open: bool) -> tuple[Array, ...]:
    """Over the keys of a tile: weighted sum of the values divided by ``divisor``, maximum, sum of exponentials."""
    leaves = leaves_in(tile, operands)
    scores = flat_scores(leaves, tile, operands, plan, is_open)
    exps, largest, total = exp_scores(scores)
    value = _summable(leaves[VALUE], tile, operands).astype(scores.dtype) / divisor
    return _average(dropped(exps, tile, operands, plan), value, plan), largest, total


def all_is_seen(grid: Grid, operands: Operands) -> bool:
    """Whether every query of every tile sees every key of it: then a product is the definition, and NaN may spread."""
    return operands.mask is None and operands.bias is None and grid.S % grid.columns == 0


def _summable(values: Array, tile: Tile, operands: Operands) -> Array:
    """The values, 0 for what is not finite; the rows that see it come by definition."""
    return values if all_is_seen(tile.grid, operands) else _finite(values)


def nan_may_spread(grid: Grid, operands: Operands, plan: Plan) -> bool:
    """Whether NaN spreads in the backward, too, since all is seen and a branch that finds it would cost more."""
    return not plan.branches and all_is_seen(grid, operands)


def value_divisor(values: Array, dtype: Any, *, branches: bool = True) -> tuple[Array, Array]:
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
    return fine, lax.stop_gradient(lax.cond(fine, lambda: one, count_large) if branches else count_large())


def weights_of_tile(tile: Tile, operands: Operands, plan: Plan) -> Array:
    """The weights (..., N, queries, keys) after dropout, of a tile that holds all keys."""
    exps, _, total = exp_scores(scores_of_tile(tile, operands, plan, False))
    return dropped(exps / sum_or_one(total), tile, operands, plan)


def part_of_sums(tile: Tile, operands: Operands, plan: Plan, is_open: bool) -> tuple[Array, ...]:
    """Maximum and sum of exponentials, from the very products that the backward will form."""
    query, key, _, *rest = leaves_in(tile, operands)
    products = tall_products(query, key, operands, plan)
    scores, _ = finished(products, tall_leaves(rest, operands), tile, operands, plan, is_open, tall=True)
    _, largest, total = exp_scores(scores, axis=-2)
    return largest.swapaxes(-1, -2), total.swapaxes(-1, -2)


def part_of_delta(tile: Tile, rows: "Rows", operands: Operands, plan: Plan, is_open: bool) -> Array:
    """``Σ p dout · v``, from the very products that the backward will form."""
    query, key, value, *rest = leaves_in(tile, operands)
    products = tall_products(query, key, operands, plan)
    rest = tall_leaves(rest, operands)
    scores, allowed = finished(products, rest, tile, operands, plan, is_open, tall=True)
    shift, total, dout = (tile.cut("queries", x) for x in (rows.shift, rows.total, rows.dout))
    p = jnp.exp(scores - shift.swapaxes(-1, -2)) / total.swapaxes(-1, -2)
    dp = dropped(tall_product(value.astype(products.dtype), dout, plan), tile, operands, plan, tall=True)
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
        return flat_scores([filled.get(k, x) for k, x in enumerate(leaves)], tile, operands, plan, is_open)

    s, ds = jax.jvp(scores, ([one for one, _ in pairs],), ([t for _, t in pairs],))
    shift, total = tile.cut("queries", results.shift), tile.cut("queries", results.total)
    p = weights_of(s, shift, total)
    w = dropped(p, tile, operands, plan)
    summed = _average(w * ds, _summable(leaves[VALUE], tile, operands).astype(wide), plan)
    if tangents[VALUE] is not None:
        summed += _average(w, _summable(tile.cut("keys", tangents[VALUE]), tile, operands).astype(wide), plan)
    return summed, sums_of_products(p, ds)


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
        delta = sums_of_products(dout, results.out) - dlse
        live = (rows_not_zero(dout) | (dlse != 0)) & (results.shift != -jnp.inf)
        return cls(dout, delta, live, results.shift, results.total)

    def are_finite(self) -> Array:
        """Whether what is known of the row is finite, and it sees some key. Delta knows of dout."""
        return jnp.isfinite(self.delta) & jnp.isfinite(self.shift) & jnp.isfinite(self.total)

    def read(self) -> "Rows":
        """A row that nothing depends on gets the weight exp(-inf). In another, what is not finite spreads."""
        spreading = self._replace(shift=jnp.where(self.shift == jnp.inf, jnp.nan, self.shift))
        pairs = zip(spreading, (0, 0, False, jnp.inf, 1), strict=True)
        return Rows(*(jnp.where(self.live, x, neutral) for x, neutral in pairs))

    def cleaned(self) -> "Rows":
        """A row that is not finite gets the weight exp(-inf) everywhere, and the gradient 0: it adds nothing."""
        pairs = zip(self, (0, 0, False, jnp.inf, 1), strict=True)
        return Rows(*(jnp.where(self.are_finite(), x, neutral) for x, neutral in pairs))


def pulled_back(
    tile: Tile, rows: Rows, operands: Operands, plan: Plan, wanted: Any, is_open: bool, dlse: Array | None = None
) -> tuple[Array, ...]:
    """What the pairs of a tile add to the gradients of the leaves that are wanted.

    Rows are ``cleaned``, and query, key, value and bias are: 0 for what is not finite, seen by rows left out alone. Or
    they are only ``read``, where ``nan_may_spread``.

    With ``dlse``, of a tile that holds all queries and keys, delta is a sum of the very products here: where one weight
    is all but 1, ``dp - delta`` is all but 0, and would be the rounding of another product (L8).
    """
    spreads = nan_may_spread(tile.grid, operands, plan)
    leaves, rows = leaves_in(tile, operands), Rows(*(tile.cut("queries", x) for x in rows))
    left_out = rows.shift == jnp.inf
    # What a modifier reads stays: there, inf may be a parameter.
    leaves[:REST] = (x if spreads else _finite(x) for x in leaves[:REST])
    leaves[QUERY] = jnp.where(left_out, 0, leaves[QUERY])
    if operands.bias is not None:
        leaves[REST] = jnp.where(leaves[REST] == -jnp.inf, -jnp.inf, _finite(leaves[REST]))
    wide = operands.wide()
    query, key, value = (x.astype(wide) for x in leaves[:REST])
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
        scores, allowed = finished(products, arrays, tile, operands, plan, is_open, tall=True, rows_once=True)
        if operands.score_mod is not None:
            scores = jnp.where(left_out.swapaxes(-1, -2), -jnp.inf, scores)
        return scores, allowed

    def read(x):
        return jnp.where(left_out.swapaxes(-1, -2), 0, x)

    s, pull, _ = jax.vjp(scores, products, [rest[k] for k in moving], has_aux=True)
    shift, total, delta = (x.swapaxes(-1, -2) for x in (rows.shift, rows.total, rows.delta))
    p, gradient = jnp.exp(s - shift), rows.dout / rows.total
    p = read(p) if spreads else p
    dw = tall_product(value, gradient, plan)
    w, dp = (dropped(x, tile, operands, plan, tall=True) for x in (p, dw))
    if dlse is not None:
        delta = walled(_sum_of_products, p, dp).swapaxes(-1, -2) - dlse.swapaxes(-1, -2)
    ds = p * (dp - delta / total)
    dz, drest = pull(read(ds) if spreads else ds)
    if operands.score_mod is not None or spreads:
        dz = read(dz)
    found = []
    if wanted[QUERY] is not None:
        sums = times(key, _in_groups(dz, tile), transpose_left=True, flat=plan.flat)
        sums = lax.optimization_barrier(sums).swapaxes(-1, -2)  # turned in the product it takes 1.5 to 1.8 times
        sums = plan.scale * sums.reshape(*sums.shape[:-3], *dz.shape[-3:-2], -1, sums.shape[-1])
        found.append(jnp.where(left_out, 0, sums) if spreads else sums)
    for k, weights, array in ((KEY, dz, plan.scale * query), (VALUE, w, gradient)):
        if wanted[k] is not None:
            side_by_side = array.reshape(*array.shape[:-3], key.shape[-3], -1, array.shape[-1])
            found.append(times(_in_groups(weights, tile), side_by_side, flat=plan.flat))
    if operands.bias is not None and 0 in moving:
        drest[0] = drest[0].swapaxes(-1, -2)
    return (*found, *drest)


def _sum_of_products(one: Array, other: Array) -> Array:
    """``Σ_j one_ji other_ji``, (..., T, 1). Not turned it takes 3 times as long, in the kernel of a product 60."""
    return (one.swapaxes(-1, -2) * other.swapaxes(-1, -2)).sum(-1, keepdims=True)


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


def _finite(x: Array) -> Array:
    return jnp.where(jnp.isfinite(x), x, 0)
