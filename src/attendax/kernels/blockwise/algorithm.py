"""Attention tile by tile, in pure JAX: memory O(T + S), on any device (Rabe & Staats 2021; Dao et al. 2022).

A tile is the scores of a block of queries with a block of keys. For each tile of a row of tiles, softmax is taken on
its own, with its own maximum, and the parts are put together as ``online_softmax`` says (L9). The backward computes the
scores again. Nothing is kept but the average, the maximum and the sum of each row.

L6 costs a check. ``0 * NaN`` is NaN, so what is not finite is taken out of a tile's arrays before its products, and in
the backward also the rows of the queries that see it. These rows, if there are any, are then taken ``by_definition``.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..numerics import all_below, any_true, rows_finite, turned_in_memory
from ..online_softmax import combined, sum_or_one
from ..operands import VALUE, Operands, Plan, Results
from . import by_definition, whole_heads
from .partition import ONE_TILE, Partition, partition_of
from .schedule import MASKED, SKIPPED, Schedule, in_one_loop, kinds_of_tiles, once_more, repeat
from .tile_work import (
    Rows,
    all_is_seen,
    nan_may_spread,
    part_of_delta,
    part_of_forward,
    part_of_sums,
    part_of_tangent,
    pulled_back,
    value_divisor,
)
from .tiles import folded


def forward(operands: Operands, plan: Plan) -> Results:
    """The average of the values, the maximum and the sum of exponentials of each row."""
    partition, widths = partition_of(operands, plan, "forward"), (operands.value.shape[-1], 1, 1)
    if partition.heads is not None:
        return whole_heads.forward(partition.heads, operands, plan)
    fine, divisor = value_divisor(operands.value, operands.wide(), branches=plan.branches)

    def work(tile, is_open):
        return part_of_forward(tile, operands, plan, divisor, is_open)

    def finish(tile, parts):
        average, largest, total = parts
        return average / sum_or_one(total) * divisor, largest, total

    results = Results(*by_rows(partition, operands, plan, widths, (0, -jnp.inf, 0), work, combined, finish))
    if all_is_seen(partition.grid, operands):
        return results
    none = jnp.zeros(results.total.shape, bool)
    seen = lax.cond(fine, lambda: none, lambda: by_definition.that_see(~rows_finite(operands.value), operands, plan))
    return by_definition.forward(seen & ~jnp.isnan(results.total), results, operands, plan)


def added(one: Any, other: Any) -> tuple[Array, ...]:
    """Two parts of a row as one, where both are of the same maximum."""
    return tuple(a + b for a, b in zip(one, other, strict=True))


def tangent(tangents: Any, operands: Operands, results: Results, plan: Plan) -> tuple[Array, ...]:
    """How out and lse move when the differentiable operands move by ``tangents`` (None: not at all).

    With p the weights before dropout and w those after it::

        dlse_i = Σ_j p_ij ds_ij
        dout_i = Σ_j w_ij (ds_ij v_j + dv_j) - dlse_i out_i
    """
    partition, widths = partition_of(operands, plan, "tangent"), (operands.value.shape[-1], 1)
    if partition.heads is not None:
        return whole_heads.tangent(partition.heads, tangents, operands, plan)

    def work(tile, is_open):
        return part_of_tangent(tile, tangents, operands, results, plan, is_open)

    def finish(tile, parts):
        summed, dlse = parts
        return summed - dlse * tile.cut("queries", results.out), dlse

    found = by_rows(partition, operands, plan, widths, (0, 0), work, added, finish)
    if all_is_seen(partition.grid, operands):
        return found
    marked = ~jnp.isfinite(results.total) | ~rows_finite(results.out)
    if (dvalue := tangents[VALUE]) is not None:
        fine = all_below([dvalue], float(jnp.finfo(dvalue.dtype).max) / 2)
        none = jnp.zeros((*found[0].shape[:-1], 1), bool)
        seen = lax.cond(fine, lambda: none, lambda: by_definition.that_see(~rows_finite(dvalue), operands, plan))
        marked = marked | seen
    if plan.partial:
        return by_definition.tangent_of_part(marked, found, tangents, operands, results, plan)
    return by_definition.tangent(marked, found, tangents, operands, plan)


def by_rows(
    partition: Partition,
    operands: Operands,
    plan: Plan,
    widths: Any,
    neutral: Any,
    work: Callable,
    add: Callable,
    finish: Any,
    *,
    often: bool = True,
) -> tuple[Array, ...]:
    """For every row of tiles, put the parts of its tiles together; each row of the scores gives ``widths`` numbers.

    What does not run ``often`` has no program of its own for OPEN tiles.
    """
    grid, wide = partition.grid, operands.wide()
    kinds = kinds_of_tiles(operands.mask, grid)
    schedule = Schedule(kinds if often else kinds.clip(SKIPPED, MASKED))

    def nothing():
        return tuple(jnp.full((*grid.shape[:-1], n), x, wide) for n, x in zip(widths, neutral, strict=True))

    def row_of_tiles(index, buffers):
        chunk, row = index // grid.row_blocks, index % grid.row_blocks
        parts = schedule.visit(
            chunk,
            row,
            lambda column, is_open: once_more(lambda *at: work(grid.tile(*at), is_open), chunk, row, column),
            lambda _, one, other: other if grid.column_blocks == 1 else add(one, other),
            nothing(),
            nothing,
        )
        tile = grid.tile(chunk, row, 0)
        return tuple(tile.put("queries", *pair) for pair in zip(buffers, finish(tile, parts), strict=True))

    lead, (N, T) = plan.leading(operands), operands.query.shape[-3:-1]
    buffers = tuple(jnp.zeros((*lead, N, T, n), wide) for n in widths)
    if not plan.branches and isinstance(kinds, np.ndarray):

        def one_tile(chunk, row, column, is_open, is_first, carry):
            buffers, before = carry
            tile = grid.tile(chunk, row, column)
            parts = once_more(lambda *at: work(grid.tile(*at), is_open), chunk, row, column)
            if grid.column_blocks > 1:
                pairs = zip(nothing(), before, strict=True)
                parts = add(tuple(jnp.where(is_first, *pair) for pair in pairs), parts)
            pairs = zip(buffers, finish(tile, parts), strict=True)
            return tuple(tile.put("queries", *pair) for pair in pairs), parts

        return in_one_loop(kinds, grid.chunks, one_tile, (buffers, nothing()), every_outer=True)[0]
    for band in partition.bands:

        def of_band(index, buffers, band=band):
            tile = band.tile(index)
            parts = once_more(lambda index: work(band.tile(index), False), index)
            return tuple(tile.put("queries", *pair) for pair in zip(buffers, finish(tile, parts), strict=True))

        buffers = repeat(band.tiles, of_band, buffers)
    if partition.bands:
        return buffers
    return repeat(grid.chunks * grid.row_blocks, row_of_tiles, buffers)


def cotangent(grads: Any, operands: Operands, results: Results, plan: Plan, wanted: Any) -> tuple[Array, ...]:
    """The transpose of ``tangent``: gradients of the leaves for which ``wanted`` gives a shape.

    The formulas are those of ``spec.attention_backward``; ``delta_i = dout_i · out_i - dlse_i`` is its sum over k. A
    gradient is summed over the axes along which its shape is 1. The loop goes by columns of tiles.
    """
    partition = partition_of(operands, plan, "cotangent")
    if partition.heads is not None:
        return whole_heads.cotangent(partition.heads, grads, operands, plan, wanted)
    grid, wide = partition.grid, operands.wide()
    kinds = kinds_of_tiles(operands.mask, grid, rows_count_once=True)
    schedule = Schedule(kinds.swapaxes(1, 2))
    dout, dlse = grads
    rows = Rows.of(dout, dlse, results)
    if not plan.partial:  # of some of the keys no row can be taken again
        rows = steady(rows, dlse, partition, operands, plan)
    if spreads := nan_may_spread(grid, operands, plan):
        marked, rows = rows.live, rows.read()
    else:
        rows = rows._replace(shift=jnp.where(_see_what_is_not_finite(operands, plan), jnp.inf, rows.shift))
        marked, rows = rows.live & ~rows.are_finite(), rows.cleaned()
    of_one_tile = jnp.where(rows.live, dlse, 0) if plan.limits == ONE_TILE and not plan.partial else None
    used = [k for k, shape in enumerate(wanted) if shape is not None]
    roles, leaves = [operands.roles()[k] for k in used], [operands.differentiable()[k] for k in used]
    shapes = [grid.tile(0, 0, 0).where(role, wanted[k])[1] for role, k in zip(roles, used, strict=True)]

    def part_of(chunk, row, column, is_open):
        def pull(*at):
            parts = pulled_back(grid.tile(*at), rows, operands, plan, wanted, is_open, of_one_tile)
            sums = (folded(part.astype(wide), shape) for part, shape in zip(parts, shapes, strict=True))
            pairs = zip(sums, roles, strict=True)
            return tuple(turned_in_memory(x.swapaxes(-1, -2)) if role == "pairs" else x for x, role in pairs)

        return once_more(pull, chunk, row, column)

    def column_of_tiles(index, buffers):
        chunk, column = index // grid.column_blocks, index % grid.column_blocks

        def work(row, is_open):
            return part_of(chunk, row, column, is_open)

        def nothing():
            return tuple(jnp.zeros(shape, wide) for shape in shapes)

        def add(row, buffers, parts):
            tile = grid.tile(chunk, row, column)
            return tuple(tile.add(*each) for each in zip(roles, buffers, parts, strict=True))

        return schedule.visit(chunk, column, work, add, buffers, nothing)

    buffers = tuple(jnp.zeros(wanted[k], wide) for k in used)
    for band in partition.bands:

        def of_band(index, buffers, band=band):
            tile = band.tile(index)
            parts = once_more(lambda at: pulled_back(band.tile(at), rows, operands, plan, wanted, False), index)
            return tuple(tile.add(*each) for each in zip(roles, buffers, parts, strict=True))

        buffers = repeat(band.tiles, of_band, buffers)
    if not plan.branches and isinstance(kinds, np.ndarray):

        def one_tile(chunk, column, row, is_open, is_first, buffers):
            tile, parts = grid.tile(chunk, row, column), part_of(chunk, row, column, is_open)
            return tuple(tile.add(*each) for each in zip(roles, buffers, parts, strict=True))

        buffers = in_one_loop(kinds.swapaxes(1, 2), grid.chunks, one_tile, buffers)
    elif not partition.bands:
        buffers = repeat(grid.chunks * grid.column_blocks, column_of_tiles, buffers)
    if plan.partial and not spreads:
        buffers = by_definition.cotangent_of_part(marked, buffers, grads, operands, results, plan, wanted)
    elif not spreads:
        buffers = by_definition.cotangent(marked, buffers, grads, operands, plan, wanted)
    if not plan.rounded:
        return buffers
    return tuple(buffer.astype(leaf.dtype) for buffer, leaf in zip(buffers, leaves, strict=True))


def _see_what_is_not_finite(operands: Operands, plan: Plan) -> Array:
    """Which rows are or see a query or key that is not finite; a score of -inf, or a softcap, may hide it."""
    query, key = operands.query, operands.key
    none = jnp.zeros((*plan.leading(operands), *query.shape[-3:-1], 1), bool)

    def seen():
        return ~rows_finite(query) | by_definition.that_see(~rows_finite(key), operands, plan)

    return lax.cond(all_below([query, key], float(jnp.finfo(query.dtype).max) / 2), lambda: none, seen)


def is_huge(shift: Array) -> Array:
    """Which rows have scores of which a unit in the last place is not small; see ``steady``."""
    return (jnp.abs(shift) > 2.0**-17 / jnp.finfo(shift.dtype).eps) & jnp.isfinite(shift)


def sums_again(operands: Operands, plan: Plan, partition: Partition | None = None) -> tuple[Array, ...]:
    """Maximum and sum of exponentials of each row, from the products of the backward."""
    partition = partition or partition_of(operands, plan, "cotangent")

    def sums(tile, is_open):
        return part_of_sums(tile, operands, plan, is_open)

    return by_rows(
        partition, operands, plan, (1, 1), (-jnp.inf, 0), sums, combined, lambda _, parts: parts, often=False
    )


def delta_again(rows: Rows, operands: Operands, plan: Plan, partition: Partition | None = None) -> Array:
    """``Σ p dout · v`` of each row, from the products of the backward."""
    partition = partition or partition_of(operands, plan, "cotangent")

    def products(tile, is_open):
        return (part_of_delta(tile, rows, operands, plan, is_open),)

    return by_rows(partition, operands, plan, (1,), (0,), products, added, lambda _, parts: parts, often=False)[0]


def moved_by_shift(shift: Array, total: Array) -> tuple[Array, Array]:
    """The two, of which the first moves as lse does, and the second is a constant."""
    share = jnp.log(sum_or_one(total))
    return shift + (share - lax.stop_gradient(share)), lax.stop_gradient(total)


def of_huge(huge: Array, rows: Rows, shift: Array, total: Array) -> Rows:
    """The rows with maximum and sum of those that are huge, and weights 0 in all others."""
    return rows._replace(shift=jnp.where(huge, shift, jnp.inf), total=jnp.where(huge, total, 1))


def steady(rows: Rows, dlse: Array, partition: Partition, operands: Operands, plan: Plan) -> Rows:
    """The rows, where scores are large with maximum, sum and delta taken again from the products of the backward.

    Its products may be of another shape than those of the forward, and round differently. That does not matter as long
    as a unit in the last place of a score is small; at scores of 1e30 it is 1e23, and no weight would be right (L7). In
    float32 scores are large from 64 on: at 400, the weights of a row sum to 1 but for 1e-5, and a common part of the
    keys, times that, stood in the gradient of the query (L8).

    Two passes, and not one with a running maximum: then delta moves by ``Σ p ((ds - dlse) dp + ddp)``, the difference
    first. Where one weight is all but 1, that is all but 0, and ``Σ p ds dp - dlse Σ p dp`` would be noise.
    """
    huge = is_huge(rows.shift)

    def again():
        shift, total = moved_by_shift(*sums_again(operands, plan, partition))
        delta = delta_again(of_huge(huge, rows, shift, total), operands, plan, partition)
        pairs = zip((delta - dlse, shift, total), as_they_are, strict=True)
        return tuple(jnp.where(huge, *pair) for pair in pairs)

    shape = *plan.leading(operands), *operands.query.shape[-3:-1], 1
    as_they_are = tuple(jnp.broadcast_to(x, shape) for x in (rows.delta, rows.shift, rows.total))
    delta, shift, total = lax.cond(any_true(huge), again, lambda: as_they_are)
    return rows._replace(delta=delta, shift=shift, total=total)
