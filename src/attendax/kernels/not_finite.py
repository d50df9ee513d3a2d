"""What is not finite (L6): the one place that knows what becomes of it.

A position that is not finite is a NaN in its scores. So whoever may look at it has a NaN in its row, and with it NaN
in its sum, its weights, its result and its lse. A mask *chooses* between a score and -inf, so whoever may not look at
it has -inf there, as for any other key. Nothing has to look for who sees what, and nothing is computed again.

In the backward the choice is between a weight and 0, and a row of scores that is not finite has NaN for each weight that
is allowed. All else that is multiplied is finite: then 0 times it is 0, and NaN times it is NaN.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from .numerics import rows_finite, rows_not_zero, sums_of_products
from .operands import KEY, QUERY, VALUE, Results


def finite(x: Array, other: float = 0) -> Array:
    """The array with 0, or ``other``, for each number that is not finite."""
    return jnp.where(jnp.isfinite(x), x, other)


def mark_of_rows(values: Array) -> Array:
    """NaN for each row that is not finite, 0 for the others, (..., S, 1): what is added to the scores of these keys."""
    return jnp.where(rows_finite(values), 0, jnp.nan)


def mark_of_heads(values: Array) -> Array:
    """The same for each head, (..., G, 1, 1): what is added to the row sums, where every query sees every key."""
    values = lax.stop_gradient(values)
    return jnp.sum(values - values, axis=(-2, -1), keepdims=True)


def bad_positions(leaves: Any, tangents: Any = (None, None, None)) -> tuple[Array | None, Array]:
    """Which queries (..., T, 1) move in a way that is not finite, None for none, and which keys (..., S, 1) are not.

    A position is a key with its value and the tangents of both.
    """
    keys = [x for x in (leaves[KEY], leaves[VALUE], tangents[KEY], tangents[VALUE]) if x is not None]
    return None if tangents[QUERY] is None else ~rows_finite(tangents[QUERY]), ~rows_finite(*keys)


def marked(bad: Array, key: Array, *others: Array) -> tuple[Array, ...]:
    """The keys, NaN where they are ``bad``; and values and tangents, 0 there, so that the NaN comes by the score alone."""
    return jnp.where(bad, jnp.nan, key), *(jnp.where(bad, 0, x) for x in others)


def spoiled_rows(dout: Array, dlse: Array, out: Array) -> Array:
    """NaN for each row that is not finite, or has a gradient that is not, and on which something depends; 0 for others."""
    read = rows_not_zero(dout) | (dlse != 0)
    return jnp.where(read & ~rows_finite(out, dout, dlse), jnp.nan, 0)


class Rows(NamedTuple):
    """What the backward knows of each row of scores: ``p = exp(s - shift)``, and ``ds = p (dp - delta)``.

    dout, and so dp and delta, are divided by the row sum. Of a row on which nothing depends, shift is inf, and each
    weight 0. Of any other that is not finite, or has a gradient that is not, shift is NaN, and so is each weight.
    """

    dout: Array  # (..., N, T, V)
    delta: Array  # (dout · out - dlse) / total, (..., N, T, 1)
    shift: Array
    live: Array  # whether something depends on the row, and it is finite

    @classmethod
    def of(cls, dout: Array, dlse: Array, results: Results) -> "Rows":
        """The rows of a call, from the gradients of its out and lse and from its results."""
        read = (rows_not_zero(dout) | (dlse != 0)) & (results.shift != -jnp.inf)
        delta = sums_of_products(dout, results.out) - dlse
        is_fine = rows_finite(delta, results.total, results.shift)  # delta knows of dout and out
        live = read & is_fine
        shift = jnp.where(is_fine, results.shift, jnp.nan)
        total = jnp.where(live, results.total, 1)
        dout, delta = (jnp.where(live, x, 0) / total for x in (dout, delta))
        return cls(dout, delta, jnp.where(read, shift, jnp.inf), live)


def spoiled_by(tangents: Any, results: Results) -> tuple[Array, Results, tuple[Array, ...]]:
    """Which rows move in a way that is finite; the results, where out is NaN for the others; and their tangents, 0 there.

    So a second derivative knows such a row as the first knows one that is not finite itself.
    """
    fine = rows_finite(*tangents)
    results = results._replace(out=jnp.where(fine, results.out, jnp.nan))
    return fine, results, tuple(jnp.where(fine, t, 0) for t in tangents)
