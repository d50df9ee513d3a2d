"""Attention by its definition, row after row: what a number that is not finite does to those that really see it (L6).

Nothing forbidden is read: for a query that may not look at it, a key or value becomes 0 before it is multiplied. And
there is no product of matrices, in which one row would meet another. That is slow. It runs only where something is not
finite and is seen, and takes the memory of one row of scores.

Query, key and value are (..., N, T, D), (..., G, S, D) and (..., G, S, V); ``allowed`` is boolean, (..., N, T, S).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from .tiles import once_more


def forward(arrays: Any, allowed: Array, scale: float) -> tuple[Array, ...]:
    """out (..., N, T, V), and of each row the maximum and the sum of exponentials, (..., N, T, 1)."""
    query, key, value = (_each_head(x, allowed) for x in arrays)

    def row(query, allowed):
        return _row([query, key, value], allowed, scale)

    return _by_rows(row, query, allowed)


def tangent(dots: dict[int, Array], arrays: Any, allowed: Array, scale: float) -> tuple[Array, ...]:
    """How out and lse move with ``dots`` of query (0), key (1) and value (2)."""
    query, key, value = (_each_head(x, allowed) for x in arrays)
    moves = {k: _each_head(dot, allowed) for k, dot in dots.items()}

    def row(query, allowed, dquery):
        arrays = {0: query, 1: key, 2: value}
        moving = {k: dquery if k == 0 else dot for k, dot in moves.items()}

        def of_moving(given):
            return _row(list((arrays | given).values()), allowed, scale)

        (_, _, total), (dout, _, dtotal) = jax.jvp(of_moving, ({k: arrays[k] for k in moving},), (moving,))
        return dout, dtotal / jnp.where(total == 0, 1, total)

    return _by_rows(row, query, allowed, moves.get(0, query))


def cotangent(dout: Array, dlse: Array, arrays: Any, allowed: Array, scale: float) -> tuple[Array, ...]:
    """Gradients of query, key and value. A row of which nothing is read, dout and dlse all 0, adds nothing."""
    query, key, value = (_each_head(x, allowed) for x in arrays)

    def row(query, allowed, dout, dlse):
        (_, shift, total), pull = jax.vjp(lambda *arrays: _row(arrays, allowed, scale), query, key, value)
        live = jnp.any(dout != 0, axis=-1, keepdims=True) | (dlse != 0)
        found = pull((dout, jnp.zeros_like(shift), dlse / jnp.where(total == 0, 1, total)))
        dquery, *shared = (jnp.where(live, x, 0) for x in found)
        return dquery, [_summed_over_groups(x, like) for x, like in zip(shared, arrays[1:], strict=True)]

    def step(sums, rows):
        dquery, found = once_more(row, *rows)
        return [x + y for x, y in zip(sums, found, strict=True)], dquery

    sums, dquery = lax.scan(step, [jnp.zeros_like(x) for x in arrays[1:]], _rows(query, allowed, dout, dlse))
    return _stacked(dquery), *sums


def _row(arrays: Any, allowed: Array, scale: float) -> tuple[Array, ...]:
    """One query of each head, (..., N, 1, D), with keys and values of every head; ``allowed`` is (..., N, 1, S)."""
    query, key, value = arrays
    seen = allowed.swapaxes(-1, -2)
    key, value = jnp.where(seen, key, 0), jnp.where(seen, value, 0)
    scores = jnp.sum(query * scale * key, axis=-1)[..., None, :]
    scores = jnp.where(allowed, scores, -jnp.inf)
    largest = lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    powers = jnp.exp(scores - jnp.where(largest == -jnp.inf, 0, largest))
    total = powers.sum(axis=-1, keepdims=True)
    weights = powers / jnp.where(total == 0, 1, total)
    out = jnp.sum(weights.swapaxes(-1, -2) * value, axis=-2, keepdims=True)
    return out, jnp.where(jnp.isnan(lax.stop_gradient(total)), jnp.nan, largest), total


def _by_rows(row: Callable, *arrays: Array) -> Any:
    return jax.tree.map(_stacked, lax.map(lambda each: once_more(row, *each), _rows(*arrays)))


def _rows(*arrays: Array) -> tuple[Array, ...]:
    """Arrays (..., T, .) as (T, ..., 1, .)."""
    return tuple(jnp.moveaxis(x, -2, 0)[..., None, :] for x in arrays)


def _stacked(rows: Array) -> Array:
    return jnp.moveaxis(jnp.squeeze(rows, -2), 0, -2)


def _each_head(x: Array, allowed: Array) -> Array:
    group = allowed.shape[-3] // x.shape[-3]
    return x if group == 1 else jnp.repeat(x, group, axis=-3)


def _summed_over_groups(x: Array, like: Array) -> Array:
    """(..., N, S, .) summed over the query heads that share a key head."""
    return x if x.shape == like.shape else x.reshape(*like.shape[:-2], -1, *like.shape[-2:]).sum(axis=-3)
