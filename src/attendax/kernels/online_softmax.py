"""Softmax of a row in parts, and how two parts become one (Milakov & Gimelshein 2018; L9).

With some of the keys, a row has a maximum and a sum: ``row_max = max_j s_j``, ``row_sum = Σ_j exp(s_j - row_max)``. Its
weights are ``exp(s_j - row_max) / row_sum``, and ``lse = row_max + log row_sum``. The two are kept apart because at
scores of 1e30 their sum would lose the second. A row without any key has the maximum -inf and the sum 0;
``max_or_zero`` and ``sum_or_one`` make them safe to subtract and to divide by.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from .numerics import sums_of_products
from .operands import Results
from .rules import with_rule


def max_or_zero(row_max: Array) -> Array:
    """The maximum, 0 for a row without any key: -inf less -inf would be NaN."""
    return jnp.where(row_max == -jnp.inf, 0, row_max)


def sum_or_one(row_sum: Array) -> Array:
    """The sum, 1 for a row without any key, to divide by."""
    return jnp.where(row_sum == 0, 1, row_sum)


def at_most_zero(x: Array) -> Array:
    """Scores less their maximum. By another product than that of the maximum they may be above 0, by a rounding (L7).

    The derivative is that of the identity. That of a minimum would halve the tangent of the largest score, at 0.
    """
    return x - lax.stop_gradient(jnp.maximum(x, 0))


def exp_scores(scores: Array, marks: Array | float = 0.0, row_max: Array | None = None) -> tuple[Array, Array, Array]:
    """``exp(s - row_max)``, row_max, a constant to every derivative, and row_sum.

    ``marks``, NaN or 0, are added to the scores, but not for the maximum: XLA would write the sum into memory for it.
    A maximum may drop a NaN; a sum does not, so row_sum tells. The guard is a maximum: XLA's CPU compiler makes a
    kernel of its own of a ``where``.
    """
    row_max = lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True) if row_max is None else row_max)
    exps = jnp.exp(scores + marks - jnp.maximum(row_max, jnp.finfo(scores.dtype).min))
    return exps, row_max, exps.sum(-1, keepdims=True)


def parts_of_softmax(scores: Array, marks: Array | None = None) -> tuple[Array, Array]:
    """The weights of whole rows of scores as a product: ``exp(s - row_max)``, and a factor for each row.

    Rows without keys get 0. Differentiation treats the factor as a constant; the first part has the derivative of the
    weights, ``p (ds - Σ p ds)``. The difference comes first, so numbers common to a row do not leave a rounding (L8).
    """
    exps, factor = _parts(*(x for x in (scores, marks) if x is not None))
    return exps, factor


def _compute_parts(scores: Array, marks: Array | float = 0.0) -> tuple[Array, Array]:
    exps, _, row_sum = exp_scores(scores, marks)
    return exps, 1 / sum_or_one(row_sum)


def _tangents_of_parts(arrays: Sequence[Array], tangents: Sequence[Array | None]) -> tuple[Array, Array]:
    exps, factor = _parts(*arrays)
    ds = tangents[0]
    if ds is None:  # the marks alone have a tangent
        return jnp.zeros_like(exps), jnp.zeros_like(factor)
    return exps * (ds - factor * sums_of_products(exps, ds)), jnp.zeros_like(factor)


_parts = with_rule("parts_of_softmax", _compute_parts, _tangents_of_parts)


def parts_of_weights(scores: Array, row_max: Array, row_sum: Array) -> tuple[Array, Array]:
    """The weights of scores as a product, from the maximum and the sum of their row."""
    return jnp.exp(scores - max_or_zero(row_max)), 1 / sum_or_one(row_sum)


def merge_accumulators(one: Sequence[Array], other: Sequence[Array]) -> tuple[Array, ...]:
    """Two parts of a row as one, each rescaled from its own maximum to the common one; the row sum divides neither yet.

    A part is what was summed with the weights ``exp(s - row_max)``, row_max and row_sum. (0, -inf, 0) is neutral.
    """
    largest = jnp.maximum(one[-2], other[-2])
    common = lax.stop_gradient(max_or_zero(largest))
    scale_one, scale_other = (jnp.exp(part[-2] - common) for part in (one, other))
    *summed, row_sum = (one[k] * scale_one + other[k] * scale_other for k in (*range(len(one) - 2), -1))
    return *summed, largest, row_sum


def merge_results(one: Results, other: Results) -> Results:
    """The results over the union of two disjoint sets of keys, from those over each; out is divided by the row sum.

    An average lies between its parts; without that bound, that of the largest numbers could round to infinity (L7).
    """
    largest = jnp.maximum(one.row_max, other.row_max)
    sums = [x.row_sum * jnp.exp(x.row_max - max_or_zero(largest)) for x in (one, other)]
    row_sum = sums[0] + sums[1]
    out = sum(x.out * (part / sum_or_one(row_sum)) for x, part in zip((one, other), sums, strict=True))
    bounds = jnp.minimum(one.out, other.out), jnp.maximum(one.out, other.out)
    return Results(jnp.clip(out, *bounds), largest, row_sum)


def log_sum_exp(row_max: Array, row_sum: Array) -> Array:
    """``row_max + log row_sum``, -inf for the empty set."""
    return jnp.where(row_sum == 0, -jnp.inf, row_max + jnp.log(sum_or_one(row_sum)))
