"""Statistics and selected rows or columns of the weights, without all T x S of them."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax.checks import bounds, fail, is_traced
from attendax.checks.advice import on_integers
from attendax.kernels.blockwise.algorithm import by_rows
from attendax.kernels.blockwise.partition import grid_of
from attendax.kernels.blockwise.tile import dropped, scores_of_tile
from attendax.kernels.blockwise.tiles import Grid, Tile
from attendax.kernels.call import Call, checked_call
from attendax.kernels.derivatives import attend
from attendax.kernels.numerics import fusion_barrier
from attendax.kernels.online_softmax import max_or_zero, parts_of_softmax, parts_of_weights, sum_or_one
from attendax.kernels.operands import Operands, Plan, public
from attendax.masks import ArrayLike, Mask
from attendax.scores import ScoreModifier
from attendax.sharding.layout import refuse_divided_tokens


class AttentionStats(NamedTuple):
    """Statistics of the weights of a call; all but ``where`` in the dtype of lse.

    Attributes:
        entropy: (..., N, T), ``-Σ_j p_ij log p_ij`` in nats: 0 for one key, log S for all alike.
        largest: (..., N, T), the largest weight of each query; 0 if the query may look at no key.
        where: (..., N, T), int32, the key with the largest weight, the first of equals; -1 without keys.
        received: (..., N, S), ``Σ_i p_ij``: the weight that each key receives from all queries.
    """

    entropy: Array
    largest: Array
    where: Array
    received: Array


@public
def attention_stats(
    query: ArrayLike,
    key: ArrayLike,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    score_mod: ScoreModifier | None = None,
    scale: float | ArrayLike | None = None,
) -> AttentionStats:
    """Describe the weights of ``attention`` in memory O(T + S): their entropy, their largest, who receives them.

    Args:
        query, key, mask, bias, score_mod, scale: as in ``attention``; the weights do not depend on the values.

    Returns:
        ``AttentionStats``.

    Raises:
        TypeError, ValueError: as ``attention``.
        NotImplementedError: Explicit mesh axes divide the tokens; a sink.

    Example:
        >>> stats = attention_stats(jnp.zeros((2, 3)), jnp.zeros((4, 3)))
        >>> [f"{entropy:.3f}" for entropy in stats.entropy], stats.received.tolist()
        (['1.386', '1.386'], [0.5, 0.5, 0.5, 0.5])
    """
    call = _checked("attention_stats", query, key, mask, bias, score_mod, scale)
    shape = *query.shape[:-1], key.shape[-2]
    if 0 in shape:
        zeros = jnp.zeros(shape[:-1], call.operands.compute_dtype())
        received = jnp.zeros((*shape[:-2], shape[-1]), zeros.dtype)
        return AttentionStats(zeros, zeros, zeros.astype(jnp.int32) - 1, received)
    results = attend(*call)
    neutral = (1, 0), (1, -jnp.inf), (1, -1)

    def work(tile):
        scores = scores_of_tile(tile, *call)
        row_max, row_sum = (tile.cut("queries", x) for x in (results.row_max, results.row_sum))
        below = jnp.where(scores == -jnp.inf, 0, scores - max_or_zero(row_max))
        p = jnp.where(scores == -jnp.inf, 0, jnp.exp(below)) / sum_or_one(row_sum)
        best = jnp.argmax(scores, axis=-1, keepdims=True)
        surprise = jnp.log(sum_or_one(row_sum)) - below
        largest = jnp.max(scores, axis=-1, keepdims=True)
        where = jnp.where(largest == -jnp.inf, -1, tile.column + best)
        return jnp.sum(p * surprise, axis=-1, keepdims=True), largest, where.astype(p.dtype)

    def add(one, other):
        first = one[1] >= other[1]
        return one[0] + other[0], *(jnp.where(first, a, b) for a, b in zip(one[1:], other[1:], strict=True))

    parts = by_rows(call.operands, dataclasses.replace(call.plan, reversible=True), neutral, work, add)
    entropy, top, where = (x.reshape(shape[:-1]) for x in parts)
    row_sum = results.row_sum.reshape(shape[:-1])
    top = max_or_zero(top)
    largest = jnp.exp(top - lax.stop_gradient(top)) / sum_or_one(row_sum)  # its score also moves
    return AttentionStats(entropy, jnp.where(row_sum == 0, 0, largest), where.astype(jnp.int32), _received(call, shape))


def _received(call: Call, shape: tuple[int, ...]) -> Array:
    """The gradient of ``Σ_i out_i`` with respect to values (..., N, S, 1): each is its column's sum of weights."""
    operands, plan = call
    N, G = operands.query.shape[-3], operands.key.shape[-3]
    key = jnp.repeat(operands.key, N // G, axis=-3)
    ones = jnp.ones((*key.shape[:-1], 1), operands.compute_dtype())

    def total(values):
        return attend(operands._replace(key=key, value=values), plan).out.sum()

    return jax.grad(total)(ones).reshape(*shape[:-2], shape[-1])


def _checked(function: str, query: Any, key: Any, mask: Any, bias: Any, score_mod: Any, scale: Any) -> Call:
    call = checked_call(function, query, key, key, mask, bias, score_mod, scale)
    if score_mod is not None and score_mod.sinks():
        advice = "Leave it out: it multiplies all weights of a query by exp(lse without it - lse with it)."
        fail(NotImplementedError, function, "score_mod has a sink, with which weights do not sum to 1.", advice=advice)
    refuse_divided_tokens(function, query, key)
    return call


@public
def weights_at(
    query: ArrayLike,
    key: ArrayLike,
    *,
    queries: ArrayLike | None = None,
    keys: ArrayLike | None = None,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    score_mod: ScoreModifier | None = None,
    scale: float | ArrayLike | None = None,
) -> Array:
    """Some rows or columns of the weights of ``attention``, before dropout, without the rest of them.

    Args:
        query, key, mask, bias, score_mod, scale: as in ``attention``.
        queries: None for all, or integers (r,) from 0 to T - 1: the rows to compute.
        keys: None for all, or integers (c,) from 0 to S - 1: the columns. Pass at least one of the two.

    Returns:
        (..., N, r or T, c or S), in the dtype of lse.

    Raises:
        TypeError, ValueError: as ``attention``; positions are not integers, or out of bounds.
        NotImplementedError: Explicit mesh axes divide the tokens; a sink.

    Example:
        >>> weights_at(jnp.zeros((3, 2)), jnp.zeros((4, 2)), queries=jnp.array([1])).tolist()
        [[0.25, 0.25, 0.25, 0.25]]
    """
    call = _checked("weights_at", query, key, mask, bias, score_mod, scale)
    T, S = query.shape[-2], key.shape[-2]
    if queries is None and keys is None:
        sentence = "queries and keys are both None; pass one, so that not all T x S weights are built."
        fail(ValueError, "weights_at", sentence)
    rows: Any = None if queries is None else _positions("queries", queries, T)
    columns: Any = None if keys is None else _positions("keys", keys, S)
    if 0 in (*query.shape[:-1], S) or 0 in (x.shape[0] for x in (rows, columns) if x is not None):
        size = tuple(full if x is None else x.shape[0] for x, full in ((rows, T), (columns, S)))
        return jnp.zeros((*query.shape[:-2], *size), call.operands.compute_dtype())
    weights = _columns(call, columns) if rows is None else _rows(call, rows)
    if rows is not None and columns is not None:
        weights = jnp.take(weights, columns, axis=-1)
    return weights.reshape(*query.shape[:-2], *weights.shape[-2:])


def _rows(call: Call, rows: Array) -> Array:
    """Softmax of each row on its own."""
    grid = _one_tile(call, rows=1)

    def row(i):
        return jnp.squeeze(_of_tile(Tile(grid, grid.starts(0), i, 0), *call), -2)

    return jnp.moveaxis(lax.map(row, rows), 0, -2)


def all_weights(call: Call) -> Array:
    """All weights (..., N, T, S), after dropout."""
    leaves, tree = jax.tree.flatten(call.operands)
    grid = _one_tile(call)
    if 0 in grid.shape:
        return jnp.zeros(grid.shape, call.operands.compute_dtype())

    def weights(*leaves):
        return _of_tile(Tile(grid, grid.starts(0), 0, 0), jax.tree.unflatten(tree, leaves), call.plan)

    return fusion_barrier(weights, *leaves)


def _of_tile(tile: Tile, operands: Operands, plan: Plan) -> Array:
    """The weights (..., N, queries, keys) after dropout, of a tile that holds all keys."""
    weights = jnp.multiply(*parts_of_softmax(scores_of_tile(tile, operands, plan)))
    return dropped(weights, tile, operands, plan)


def _columns(call: Call, columns: Array) -> Array:
    """Compute each weight from its score and from the maximum and sum of its whole row."""
    grid, results = _one_tile(call, columns=1), attend(*call)

    def column(j):
        scores = scores_of_tile(Tile(grid, grid.starts(0), 0, j), *call)
        exps, factor = parts_of_weights(scores, results.row_max, results.row_sum)
        return jnp.squeeze(exps * factor, -1)

    return jnp.moveaxis(lax.map(column, columns), 0, -1)


def _one_tile(call: Call, *, rows: int = 0, columns: int = 0) -> Grid:
    """A grid with one tile, or with tiles of that many rows or columns."""
    whole = grid_of(*call)
    return Grid(whole.axes, whole.axes, whole.T, whole.S, rows or whole.T, columns or whole.S)


def _positions(name: str, value: ArrayLike, size: int) -> Array:
    """Refuse what is not a vector of integers within bounds; traced ones are not known."""
    dtype = str(getattr(value, "dtype", type(value).__name__))
    if not dtype.startswith(("int", "uint")) or len(getattr(value, "shape", ())) != 1:
        got = f"{tuple(value.shape)} {dtype}" if hasattr(value, "shape") else dtype
        sentence = f"{name} must be a vector of integers, got {got}."
        fail(TypeError, "weights_at", sentence, advice=on_integers(name, value))
    if not is_traced(value) and value.shape[0]:
        known = np.asarray(value)
        if known.min() < 0 or known.max() >= size:
            fail(ValueError, "weights_at", f"{name} must lie in [0, {size - 1}], got {bounds(known)}.")
    return jnp.asarray(value, jnp.int32)
