"""Softmax along any axis; and helpers of the layers here: products, gradients of a function, a mask in full shape."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from attendax import checks
from attendax.kernels.numerics import fusion_barrier, row_sums, times
from attendax.kernels.operands import takes_arrays, widen
from attendax.kernels.rules import product
from attendax.mask_kinds import lifted
from attendax.masks import ArrayLike, Mask


def matmul(left: Array, right: Array) -> Array:
    """``times`` behind a fusion barrier of its own."""
    return fusion_barrier(times, left, right)


def matmul_transposed(left: Array, right: Array) -> Array:
    """``left rightᵀ``, likewise; its derivative takes numbers that are not finite as 0."""
    return fusion_barrier(lambda left, right: product(left, right, True), left, right)


def pull_back(function: Callable, grad_output: ArrayLike, *arrays: Any) -> tuple[Any, ...]:  # arrays and weights
    """The gradients of ``function`` with respect to its arrays: what each ``*_backward`` here is."""
    return jax.vjp(function, *arrays)[1](grad_output)


@takes_arrays
def softmax(x: ArrayLike, axis: int = -1) -> Array:
    """Turn scores into positive numbers that sum to 1 along an axis: ``exp(xᵢ) / Σⱼ exp(xⱼ)``; see ``spec.softmax``.

    Args:
        x: floating array of any shape.
        axis: the axis that sums to 1.

    Returns:
        Array of the shape and dtype of ``x``; all 0 if every entry is -inf (L5).

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
def softmax_backward(grad_output: ArrayLike, x: ArrayLike, axis: int = -1) -> Array:
    """Gradient with respect to ``x``; derived by hand in ``spec.softmax_backward``."""
    checks.softmax("softmax_backward", {"x": x, "grad_output": grad_output}, axis)
    return pull_back(lambda x: softmax(x, axis), grad_output, x)[0]


def _normalised(scores: Array, axis: int = -1) -> Array:
    """Softmax along an axis; the empty set, all -inf, gives 0, and gradient 0.

    The maximum is subtracted twice. If a score ends in a multiplication (a scale, softcap, a width of 1), XLA may fuse
    it with the first subtraction into one multiply-add. That does not round the score as the maximum did: at scores of
    1e30 they differ by 1e23, and every weight of the row would be 0 or infinite (L7). The second maximum is
    of the very differences whose exponentials are taken. (On CPU neither an optimization barrier nor reduce_precision
    prevents the fusion.)
    """
    largest = lax.stop_gradient(jnp.max(scores, axis=axis, keepdims=True, initial=-jnp.inf))
    empty = largest == -jnp.inf
    below = scores - jnp.where(empty, 0, largest)
    rest = lax.stop_gradient(jnp.max(below, axis=axis, keepdims=True, initial=-jnp.inf))
    rest = jnp.where(empty, 0, rest)
    exponentials = jnp.exp(below - rest)
    total = row_sums(exponentials, axis)
    empty &= ~jnp.isnan(lax.stop_gradient(total))  # a maximum may have dropped a NaN; a sum does not
    return exponentials / jnp.where(empty, 1, total)


def as_allowed(mask: Mask | ArrayLike | None, shape: tuple[int, ...]) -> Array:
    """The mask, None for all, or a value from ``attendax.masks``, as boolean array of the shape of the scores."""
    if mask is None:
        return jnp.ones(shape, bool)
    mask = jnp.asarray(mask.to_dense(*shape[-2:], rank=len(shape)) if isinstance(mask, Mask) else mask)
    return jnp.broadcast_to(lifted(mask, len(shape)), shape)
