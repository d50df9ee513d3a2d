"""Attention tile by tile, in pure JAX: memory O(T + S), on any device (Rabe & Staats 2021; Dao et al. 2022).

A tile is the scores of a block of queries with a block of keys. For each tile softmax is taken on its own, with its own
maximum, and the parts of a row are put together as ``online_softmax`` says (L9). The backward computes the scores
again. Nothing is kept but the average, the maximum and the sum of each row.

Forward, tangent and cotangent are one loop each over the tiles of a ``partition``. ``not_finite`` says how NaN and
infinity are treated.
"""

import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import Array

from ..not_finite import RowsOfBackward, mark_of_rows, marks_of
from ..numerics import turned_in_memory
from ..online_softmax import merge_accumulators, sum_or_one
from ..operands import REST, Cotangents, Operands, Plan, Results, Tangents, Wanted
from . import whole_heads
from .partition import Visits, loop, partition_of, rematerialized
from .tile import part_of_forward, part_of_tangent, pulled_back
from .tiles import folded


def forward(operands: Operands, plan: Plan) -> Results:
    """The average of the values, the maximum and the sum of exponentials of each row."""
    partition = partition_of(operands, plan, "forward")
    if partition.heads is not None:
        return whole_heads.forward(partition.heads, operands, plan)
    grid = partition.grid
    is_ragged = grid.S % grid.columns or (grid.T % grid.rows and grid.column_blocks > 1)
    all_see_all = all(x is None for x in operands[3:6]) and not is_ragged
    few = not grid.is_symbolic and grid.T * grid.axes[-1] <= 2 * operands.key.shape[-1]
    marks = marks_of(*operands.differentiable()[:REST], few=few, all_see_all=all_see_all)

    def work(tile):
        return part_of_forward(tile, marks, operands, plan)

    def finish(summed, row_max, row_sum):
        row_sum += mark_of_rows(summed) if all_see_all else 0
        return summed / sum_or_one(row_sum), row_max, row_sum

    neutral = [(operands.value.shape[-1], 0), (1, -jnp.inf), (1, 0)]
    visits = partition.visits(operands, plan)
    return Results(*by_rows(visits, operands, plan, neutral, work, merge_accumulators, finish))


def tangent(tangents: Tangents, operands: Operands, results: Results, plan: Plan) -> tuple[Array, ...]:
    """The tangents of out and lse, from ``tangents`` of the differentiable operands (None: 0).

    With p the weights before dropout and w those after it::

        dlse_i = Σ_j p_ij ds_ij
        dout_i = Σ_j w_ij (ds_ij v_j + dv_j) - dlse_i out_i
    """
    partition = partition_of(operands, plan, "tangent")
    if partition.heads is not None:
        return whole_heads.tangent(partition.heads, tangents, operands, plan)

    def work(tile):
        return part_of_tangent(tile, tangents, operands, results, plan)

    def added(one, other):
        return tuple(a + b for a, b in zip(one, other, strict=True))

    neutral = [(operands.value.shape[-1], 0), (1, 0)]
    summed, dlse = by_rows(partition.visits(operands, plan), operands, plan, neutral, work, added)
    return summed - dlse * results.out, dlse


def by_rows(
    visits: list[Visits],
    operands: Operands,
    plan: Plan,
    neutral: Sequence[tuple[int, float]],
    work: Callable,
    add: Callable,
    finish: Callable = lambda *parts: parts,
) -> tuple[Array, ...]:
    """The results of ``work`` for each tile, combined for each row of scores.

    Args:
        visits: the tiles.
        operands, plan: of the call.
        neutral: for each result of a row its width, and its value over no keys.
        work: from a tile to its part of each row.
        add: combines two parts of a row.
        finish: makes the results from the combined parts of a row.
    """
    rows, compute_dtype = (*plan.leading(operands), *operands.query.shape[-3:-1]), operands.compute_dtype()
    buffers = tuple(jnp.full((*rows, width), nothing, compute_dtype) for width, nothing in neutral)
    at_once = all(each.rows_are_whole for each in visits)
    for each in visits:
        tile_of = functools.partial(each.tile, rows_once=not each.rows_are_whole)

        def step(index, buffers, each=each, tile_of=tile_of):
            tile, parts = tile_of(index), rematerialized(plan, lambda index: work(tile_of(index)), index)
            if not each.rows_are_whole:
                parts = add([tile.cut("queries", x) for x in buffers], parts)
            parts = finish(*parts) if at_once else parts
            return tuple(tile.put("queries", *pair) for pair in zip(buffers, parts, strict=True))

        buffers = loop(each.count, step, buffers)
    return buffers if at_once else finish(*buffers)


def cotangent(grads: Cotangents, operands: Operands, results: Results, plan: Plan, wanted: Wanted) -> tuple[Array, ...]:
    """The transpose of ``tangent``: gradients of the leaves for which ``wanted`` gives a shape.

    The formulas are those of ``spec.attention_backward``; ``delta_i = dout_i · out_i - dlse_i``, which is D of
    FlashAttention less dlse, is the sum over k in them; ``RowsOfBackward.delta`` is this divided by the row sum. A
    gradient is summed over the axes along which its shape is 1.
    """
    partition = partition_of(operands, plan, "cotangent")
    if partition.heads is not None:
        return whole_heads.cotangent(partition.heads, grads, operands, results, plan, wanted)
    dout, dlse = grads
    rows, compute_dtype = RowsOfBackward.of(dout, dlse, results), operands.compute_dtype()
    used = [k for k, shape in enumerate(wanted) if shape is not None]
    roles, leaves = [operands.roles()[k] for k in used], [operands.differentiable()[k] for k in used]
    buffers = tuple(jnp.zeros(wanted[k], compute_dtype) for k in used)
    for each in partition.visits(operands, plan):

        def pull(index, each=each):
            tile = each.tile(index)
            shapes = [tile.where(role, wanted[k])[1] for role, k in zip(roles, used, strict=True)]
            parts = pulled_back(tile, rows, operands, plan, wanted)
            sums = (folded(part.astype(compute_dtype), shape) for part, shape in zip(parts, shapes, strict=True))
            pairs = zip(sums, roles, strict=True)
            return tuple(turned_in_memory(x.swapaxes(-1, -2)) if role == "pairs" else x for x, role in pairs)

        def step(index, buffers, each=each, pull=pull):
            tile, parts = each.tile(index), rematerialized(plan, pull, index)
            return tuple(tile.add(*of_leaf) for of_leaf in zip(roles, buffers, parts, strict=True))

        buffers = loop(each.count, step, buffers)
    if not plan.rounded:
        return buffers
    return tuple(buffer.astype(leaf.dtype) for buffer, leaf in zip(buffers, leaves, strict=True))
