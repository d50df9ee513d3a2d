"""NaN and infinity in query, key and value (L6): how they reach the rows that see them, and no others.

A product of a query and a key that is not finite becomes NaN, and so does every score of a key whose value holds such a
number. A query that may look at it then has a NaN in its row of scores, and so in its row sum, its weights, its out and
its lse. A mask is applied by *selecting* between the score and -inf, so a query that may not look at the key has -inf
there, as for any other key. The kernels need no list of who sees which NaN, and compute nothing twice. In a tangent,
keys whose value has a tangent that is not finite are also marked, and so is a row whose tangent of lse is not finite.

The backward selects between a weight and 0. A row of scores with a NaN has the weight NaN at each allowed pair. All
other factors are made finite first: 0 times a factor is 0, and NaN times it is NaN.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from .numerics import rows_finite, sums_of_products
from .operands import Results


def is_read(dout: Array, dlse: Array) -> Array:
    """Tell whether the cotangent of a row is not zero, in dout or dlse: (..., N, T, 1)."""
    return ~(jnp.sum(jnp.abs(lax.stop_gradient(dout)), axis=-1, keepdims=True) == 0) | (dlse != 0)


class RowsOfBackward(NamedTuple):
    """Numbers that the backward needs of each row of scores: ``p = exp(s - shift)``, and ``ds = p (dp - delta)``.

    dout, and so dp and delta, are divided by the row sum.

    - Rows with a zero cotangent, and rows without any key: shift is inf, and the weights are 0.
    - Other rows with NaN or inf in results or cotangent: shift is NaN, and the weights are NaN.
    - All others: shift is the row maximum.
    """

    dout: Array  # (..., N, T, V)
    delta: Array  # (dout · out - dlse) / row_sum, (..., N, T, 1)
    shift: Array
    live: Array  # whether the row is finite, and its cotangent is not zero

    @classmethod
    def of(cls, dout: Array, dlse: Array, results: Results) -> "RowsOfBackward":
        """The rows of a call, from the gradients of its out and lse and from its results."""
        read = is_read(dout, dlse) & (results.row_sum != 0)
        delta = sums_of_products(dout, results.out) - dlse
        is_fine = rows_finite(delta, results.row_sum, results.row_max)  # where dout or out is not finite, delta is not
        live = read & is_fine
        shift = jnp.where(is_fine, results.row_max, jnp.nan)
        row_sum = jnp.where(live, results.row_sum, 1)
        dout, delta = (jnp.where(live, x, 0) / row_sum for x in (dout, delta))
        return cls(dout, delta, jnp.where(read, shift, jnp.inf), live)


def spoiled_by(tangents: Sequence[Array], results: Any) -> tuple[Array, Any, tuple[Array, ...]]:  # Results, or None
    """Tell which rows have finite tangents; mark the other rows in the results and the tangents.

    There out becomes NaN and the tangents become 0. The second derivative then treats such a row as not finite.
    """
    fine = rows_finite(*tangents)
    results = results and results._replace(out=jnp.where(fine, results.out, jnp.nan))
    return fine, results, tuple(jnp.where(fine, t, 0) for t in tangents)
