"""Attention tile by tile, in pure JAX: memory O(T + S), on any device (Rabe & Staats 2021; Dao et al. 2022).

A tile is the scores of a block of queries with a block of keys. For each tile softmax is taken on its own, with its own
maximum, and the parts of a row are put together as ``online_softmax`` says (L9). The backward computes the scores
again. Nothing is kept but the average, the maximum and the sum of each row.

Forward, tangent and cotangent are one loop each over the tiles of a ``partition``. ``not_finite`` says how NaN and
infinity are treated.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from ..not_finite import RowsOfBackward
from ..online_softmax import merge_accumulators
from ..operands import Cotangents, Operands, Plan, Results, Tangents, Wanted
from .partition import grid_of, loop, rematerialized, visits_of
from .tile import factors_of, part_of_forward, part_of_tangent, pulled_back


def forward(operands: Operands, plan: Plan) -> Results:
    """The average of the values, the maximum and the sum of exponentials of each row."""
    factors = factors_of(operands.query.astype(operands.compute_dtype()), plan)  # here, or each tile computes them anew

    def work(tile):
        return part_of_forward(tile, operands, plan, factors)

    def finish(summed, row_max, row_sum):
        return summed / jnp.maximum(row_sum, 1), row_max, row_sum  # 1 for a row without any key

    neutral = [(operands.value.shape[-1], 0), (1, -jnp.inf), (1, 0)]
    return Results(*by_rows(operands, plan, neutral, work, merge_accumulators, finish))


def at_once(operands: Operands, plan: Plan) -> bool:
    """Tell whether each row of scores is in one tile: tangents and cotangents then need no results, and take None."""
    return not plan.axis and not plan.partial and bool(grid_of(operands, plan).column_blocks == 1)


def tangent(tangents: Tangents, operands: Operands, results: Results | None, plan: Plan) -> tuple[Array, ...]:
    """The tangents of out and lse, from ``tangents`` of the differentiable operands (None: 0).

    With p the weights before dropout and w those after it::

        dlse_i = Σ_j p_ij ds_ij
        dout_i = Σ_j w_ij (ds_ij v_j + dv_j) - dlse_i out_i
    """

    def work(tile):
        return part_of_tangent(tile, tangents, operands, results, plan)

    neutral = [(operands.value.shape[-1], 0), (1, 0)]
    summed, dlse = by_rows(operands, plan, neutral, work, functools.partial(jax.tree.map, jnp.add))
    return summed if results is None else summed - dlse * results.out, dlse


def by_rows(
    operands: Operands, plan: Plan, neutral: Sequence[tuple[int, float]], work: Callable, add: Callable,
    finish: Callable = lambda *parts: parts,
) -> tuple[Array, ...]:  # fmt: skip
    """The results of ``work`` for each tile, combined for each row of scores.

    Args:
        operands, plan: of the call.
        neutral: for each result of a row its width, and its value over no keys.
        work: from a tile to its part of each row.
        add: combines two parts of a row.
        finish: makes the results from the combined parts of a row.
    """
    visits = visits_of(operands, plan)
    at_once = visits.grid.column_blocks == 1  # each row of scores is in one tile
    tile_of = functools.partial(visits.tile, rows_once=not at_once)
    rows, compute_dtype = plan.rows(operands), operands.compute_dtype()
    buffers = tuple(jnp.full((*rows, width), nothing, compute_dtype) for width, nothing in neutral)

    def step(index, buffers):
        tile, parts = tile_of(index), rematerialized(plan, lambda index: work(tile_of(index)), index)
        parts = finish(*parts) if at_once else add(tuple(tile.cut("queries", x) for x in buffers), parts)
        return tuple(tile.put("queries", *pair) for pair in zip(buffers, parts, strict=True))

    buffers = loop(visits.count, step, buffers)
    return buffers if at_once else finish(*buffers)


def cotangent(
    grads: Cotangents, operands: Operands, results: Results | None, plan: Plan, wanted: Wanted
) -> tuple[Array, ...]:
    """The transpose of ``tangent``: gradients of the leaves for which ``wanted`` gives a shape.

    The formulas are those of ``spec.attention_backward``; ``delta_i = dout_i · out_i - dlse_i``, which is D of
    FlashAttention less dlse, is the sum over k in them; ``RowsOfBackward.delta`` is this divided by the row sum. A
    gradient is summed over the axes along which its shape is 1.
    """
    visits = visits_of(operands, plan)
    rows, compute_dtype = RowsOfBackward.of(*grads, results) if results else grads, operands.compute_dtype()
    factors = factors_of(operands.query.astype(compute_dtype), plan)
    used = [k for k, shape in enumerate(wanted) if shape is not None]
    roles = [operands.roles()[k] for k in used]

    def pull(index):
        parts = pulled_back(visits.tile(index), rows, operands, plan, wanted, factors)
        return tuple(x.astype(compute_dtype) for x in parts)

    def step(index, buffers):
        tile, parts = visits.tile(index), rematerialized(plan, pull, index)
        return tuple(tile.add(*of_leaf) for of_leaf in zip(roles, buffers, parts, strict=True))

    return loop(visits.count, step, tuple(jnp.zeros(wanted[k], compute_dtype) for k in used))
