"""Softmax, and the sum over the keys that a query may look at, so that autodiff keeps L5 and L6 in every direction.

Two things would break them in the plain formulas. ``0 * NaN`` is NaN, in the forward and again in the transpose of
every product; and ``where`` differentiates both its branches. So what is not finite is taken out of the products, and
comes back, where a query may really see it, by a branch that touches no other query.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from attendax import checks
from attendax.kernels.numerics import finite, matmul
from attendax.kernels.operands import takes_arrays, widen


def pull_back(function: Callable, grad_output: Array, *arrays: Any) -> tuple[Any, ...]:
    """The gradients of ``function`` with respect to its arrays: what each ``*_backward`` here is."""
    return jax.vjp(function, *arrays)[1](grad_output)


@takes_arrays
def softmax(x: Array, axis: int = -1) -> Array:
    """Turn scores into positive numbers that sum to 1 along an axis: ``exp(xᵢ) / Σⱼ exp(xⱼ)``; see ``spec.softmax``.

    Args:
        x: floating array of any shape.
        axis: the axis that sums to 1.

    Returns:
        Array of the shape and dtype of ``x``; all 0 where every entry is -inf (L5).

    Raises:
        TypeError: ``x`` is not a floating array.
        ValueError: ``x`` has no such axis.

    Example:
        >>> softmax(jnp.array([0.0, 0.0, -jnp.inf])).tolist()
        [0.5, 0.5, 0.0]
    """
    checks.softmax("softmax", {"x": x}, axis)
    (wide,) = widen(x)
    return _normalised(wide, axis).astype(x.dtype)


@takes_arrays
def softmax_backward(grad_output: Array, x: Array, axis: int = -1) -> Array:
    """Gradient with respect to ``x``; derived by hand in ``spec.softmax_backward``."""
    checks.softmax("softmax_backward", {"x": x, "grad_output": grad_output}, axis)
    return pull_back(lambda x: softmax(x, axis), grad_output, x)[0]


def _normalised(scores: Array, axis: int = -1) -> Array:
    """Softmax along an axis; the empty set, all -inf, gives 0, and gradient 0.

    The maximum is subtracted twice. Where a score ends in a multiplication (a scale, softcap, a width of 1), XLA may
    fuse it with the first subtraction into one multiply-add, which does not round the score as the maximum did: at
    scores of 1e30 they differ by 1e23, and every weight of the row would be 0 or infinite (L7). The second maximum is
    of the very differences whose exponentials are taken. (On CPU neither an optimization barrier nor reduce_precision
    prevents the fusion.)
    """
    largest = lax.stop_gradient(jnp.max(scores, axis=axis, keepdims=True, initial=-jnp.inf))
    empty = largest == -jnp.inf
    below = scores - jnp.where(empty, 0, largest)
    rest = lax.stop_gradient(jnp.max(below, axis=axis, keepdims=True, initial=-jnp.inf))
    rest = jnp.where(empty, 0, rest)
    exponentials = jnp.exp(below - rest)
    total = jnp.sum(exponentials, axis=axis, keepdims=True)
    empty &= ~jnp.isnan(lax.stop_gradient(total))  # a maximum may have dropped a NaN; a sum does not
    return exponentials / jnp.where(empty, 1, total)


def sum_over_allowed(weights: Array, values: Array, allowed: Array) -> Array:
    """``outᵢ = Σ_{j allowed to i} wᵢⱼ valueⱼ``: a product where all is finite; see ``spec.weighted_sum``.

    Where something is not finite, the sum is taken once more, term by term over the allowed pairs, and replaces those
    entries, and those alone, in which a query really sees it. They also get their gradient that way, and a NaN in their
    cotangent stays away from the product that all others share.

    Args:
        weights: (..., T, S), 0 where not allowed.
        values: (..., S, V).
        allowed: boolean (..., T, S).

    Returns:
        (..., T, V).
    """
    clean = matmul(jnp.where(jnp.isfinite(weights), weights, 0), finite(values))

    @jax.checkpoint
    def terms_of_key(weight, value, seen):  # (..., T), (..., V), (..., T): all T x S x V terms at once would not fit
        seen = seen[..., None]
        return jnp.where(seen, weight[..., None], 0) * jnp.where(seen, value[..., None, :], 0)

    def term_by_term(weights, values):
        keys = jnp.moveaxis(weights, -1, 0), jnp.moveaxis(values, -2, 0), jnp.moveaxis(allowed, -1, 0)
        return lax.scan(lambda total, key: (total + terms_of_key(*key), None), jnp.zeros_like(clean), keys)[0]

    bad = _any_not_finite(lax.stop_gradient(weights)) | _any_not_finite(lax.stop_gradient(values))
    defined = lax.cond(bad, term_by_term, lambda weights, values: jnp.zeros_like(clean), weights, values)
    return jnp.where(jnp.isfinite(defined), clean, defined)


@jax.custom_batching.custom_vmap
def _any_not_finite(x: Array) -> Array:
    """Whether anything in x, a whole batch included, is not finite: one answer, so a branch stays one under vmap."""
    return ~jnp.isfinite(x).all()


@_any_not_finite.def_vmap
def _any_not_finite_in_batch(axis_size, in_batched, x):
    return _any_not_finite(x), False


def average(scores: Array, values: Array, allowed: Array) -> tuple[Array, Array]:
    """Softmax over the allowed keys, then the weighted sum of their values: the average and the weights.

    Forbidden scores are not read.
    """
    weights = jnp.where(allowed, _normalised(jnp.where(allowed, scores, -jnp.inf)), 0)
    return sum_over_allowed(weights, values, allowed), weights


def drop_unused(allowed: Array, queries: Any, keys: Any) -> tuple[Array, ...]:
    """Replace by 0 each query that may look at no key and each key that no query may look at (L6); see ``spec``."""
    pairs = allowed.any(axis=1) if allowed.ndim == 4 else allowed
    can_look, can_be_seen = pairs.any(axis=2)[..., None], pairs.any(axis=1)[..., None]
    return (*(jnp.where(can_look, x, 0) for x in queries), *(jnp.where(can_be_seen, x, 0) for x in keys))


def as_allowed(mask: Any, shape: tuple[int, ...]) -> Array:
    """The mask, None for all, or a value from ``attendax.masks``, as boolean array of the shape of the scores."""
    if mask is None:
        return jnp.ones(shape, bool)
    mask = jnp.asarray(mask.to_dense(*shape[-2:]) if hasattr(mask, "to_dense") else mask)
    return jnp.broadcast_to(mask.reshape((1,) * (len(shape) - mask.ndim) + mask.shape), shape)
