"""Softmax, and the sum over the keys that a query may look at: what every attention below is made of.

This is where "nothing" gets its meaning. A query that may look at no key has weights 0, not 0/0 (L5), and a forbidden
key is absent from every sum, not present as ``0 * value``, because ``0 * NaN`` is NaN (L6).
"""

from typing import Any

import numpy as np

from attendax import checks

Array = np.ndarray
"""Of any floating dtype (L8); shapes are in the docstrings, with the axis letters of docs/laws.md."""

quiet = np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore")
"""NaN and Inf are legal inputs here and go where the formulas send them; NumPy need not warn of each."""


def widen(*arrays: Any) -> tuple[Any, ...]:
    """Return the arrays in the dtype to compute in: the widest among them, float32 at least (L8). None stays None."""
    dtype = np.result_type(np.float32, *(array.dtype for array in arrays if array is not None))
    return tuple(None if array is None else np.asarray(array, dtype) for array in arrays)


@quiet
def softmax(x: Array, axis: int = -1) -> Array:
    """Turn scores into positive numbers that sum to 1 along an axis.

    ``softmax(x)ᵢ = exp(xᵢ) / Σⱼ exp(xⱼ)``, computed as ``exp(xᵢ - m) / Σⱼ exp(xⱼ - m)`` with ``m = max x``: the same
    number, and no exponential exceeds 1. Where every entry is -inf, the set to choose from is empty: the result is 0
    (L5), where the well-known version gives NaN.

    Args:
        x: floating array of any shape.
        axis: the axis that sums to 1.

    Returns:
        Array of the shape and dtype of ``x``; float16 is computed in float32.

    Raises:
        TypeError: ``x`` is not a floating array.
        ValueError: ``x`` has no such axis.

    Example:
        >>> softmax(np.array([0.0, np.log(3.0)]))
        array([0.25, 0.75])
        >>> softmax(np.array([-np.inf, -np.inf]))
        array([0., 0.])
    """
    checks.softmax("softmax", {"x": x}, axis)
    (wide,) = widen(x)
    largest = np.max(wide, axis=axis, keepdims=True, initial=-np.inf)
    exponentials = np.exp(wide - np.where(largest == -np.inf, 0, largest))
    last = np.ascontiguousarray(np.moveaxis(exponentials, axis, -1))  # NumPy sums in pairs along this axis only
    total = np.expand_dims(last.sum(axis=-1), axis)
    return (exponentials / np.where(total == 0, 1, total)).astype(x.dtype)


@quiet
def softmax_backward(grad_output: Array, x: Array, axis: int = -1) -> Array:
    """Pull a gradient back through softmax.

    With p = softmax(x) and g the gradient with respect to p::

        ∂pᵢ/∂xⱼ = pᵢ (δᵢⱼ - pⱼ)                  raising xⱼ raises pⱼ and lowers all in proportion
        dxⱼ = Σᵢ gᵢ pᵢ (δᵢⱼ - pⱼ)
            = pⱼ (gⱼ - Σᵢ gᵢ pᵢ)                 the sum is one number per row

    Args:
        grad_output: gradient with respect to the result, shape of ``x``.
        x: the input of the forward.
        axis: the axis of the forward.

    Returns:
        Gradient with respect to ``x``, of its shape and dtype.

    Raises:
        TypeError: an array is not floating.
        ValueError: the shapes differ.

    Example:
        >>> softmax_backward(np.array([1.0, 0.0]), np.array([0.0, 0.0]))
        array([ 0.25, -0.25])
    """
    checks.softmax("softmax_backward", {"x": x, "grad_output": grad_output}, axis)
    gradient, wide = widen(grad_output, x)
    return through_softmax(gradient, softmax(wide, axis), axis).astype(x.dtype)


def through_softmax(grad_weights: Array, weights: Array, axis: int = -1) -> Array:
    """``p (g - Σ g p)``: the rule of ``softmax_backward``, from the weights p themselves."""
    return weights * (grad_weights - np.sum(grad_weights * weights, axis=axis, keepdims=True))


def sum_over_allowed(weights: Array, values: Array, allowed: Array) -> Array:
    """Sum the values of the allowed keys, each times its weight: ``outᵢ = Σ_{j allowed to i} wᵢⱼ valueⱼ``.

    Where all values are finite this is ``weights @ values``, for a forbidden weight is 0. A value that is not finite is
    left out of that product and then added, by definition, to those queries alone that may look at it.

    Args:
        weights: (..., T, S), 0 where not allowed.
        values: (..., S, V).
        allowed: boolean (..., T, S).

    Returns:
        (..., T, V).
    """
    finite = np.isfinite(values)
    total = weights @ np.where(finite, values, 0)
    every_axis_but_keys = tuple(axis for axis in range(values.ndim) if axis != values.ndim - 2)
    for j in np.flatnonzero(~finite.all(axis=every_axis_but_keys)):
        term = weights[..., j, None] * values[..., j, None, :]
        total = total + np.where(allowed[..., j, None] & ~finite[..., j, None, :], term, 0)
    return total


def average(scores: Array, values: Array, allowed: Array) -> tuple[Array, Array]:
    """Softmax over the allowed keys, then the weighted sum of their values.

    Args:
        scores: (..., T, S); what stands at a forbidden place is not read.
        values: (..., S, V).
        allowed: boolean (..., T, S).

    Returns:
        The average (..., T, V) and the weights (..., T, S), 0 where forbidden.
    """
    weights = np.where(allowed, softmax(np.where(allowed, scores, -np.inf)), 0)
    return sum_over_allowed(weights, values, allowed), weights


def average_backward(grad_output: Array, weights: Array, values: Array, allowed: Array) -> tuple[Array, Array]:
    """Pull a gradient back through ``average``, from its weights.

    From ``outᵢ = Σⱼ pᵢⱼ vⱼ`` over the allowed pairs and ``p = softmax(s)``::

        dvⱼ  = Σᵢ pᵢⱼ doutᵢ            value j went into outᵢ with weight pᵢⱼ
        dpᵢⱼ = doutᵢ · vⱼ
        dsᵢⱼ = pᵢⱼ (dpᵢⱼ - Σₖ dpᵢₖ pᵢₖ)   softmax_backward; 0 where forbidden

    A query whose own gradient is all 0 is left out, whatever its weights: what nothing depends on cannot matter.

    Returns:
        grad_scores (..., T, S) and grad_values (..., S, V).
    """
    allowed = allowed & (grad_output != 0).any(axis=-1, keepdims=True)
    weights = np.where(allowed, weights, 0)
    grad_values = sum_over_allowed(weights.swapaxes(-1, -2), grad_output, allowed.swapaxes(-1, -2))
    grad_weights = np.where(allowed, grad_output @ values.swapaxes(-1, -2), 0)
    return np.where(allowed, through_softmax(grad_weights, weights), 0), grad_values


def product_backward(grad_scores: Array, left: Array, right: Array, allowed: Array) -> tuple[Array, Array]:
    """Pull a gradient back through ``scores = left rightᵀ``, over the allowed pairs alone.

    From ``sᵢⱼ = leftᵢ · rightⱼ``: ``dleftᵢ = Σⱼ dsᵢⱼ rightⱼ`` and ``drightⱼ = Σᵢ dsᵢⱼ leftᵢ``.

    Returns:
        grad_left (..., T, D) and grad_right (..., S, D).
    """
    grad_left = sum_over_allowed(grad_scores, right, allowed)
    grad_right = sum_over_allowed(grad_scores.swapaxes(-1, -2), left, allowed.swapaxes(-1, -2))
    return grad_left, grad_right


def drop_unused(allowed: Array, queries: Any, keys: Any) -> tuple[Array, ...]:
    """Replace by 0 each query that may look at no key and each key that no query may look at: neither can matter (L6).

    What a projection makes of them meets gradient 0 later; were they NaN, ``0 * NaN`` would spoil that of its weights.

    Args:
        allowed: boolean (B, T, S) or (B, N, T, S).
        queries: arrays (B, T, ...) as a list; keys: arrays (B, S, ...) as a list.

    Returns:
        The queries and then the keys, as one tuple.
    """
    pairs: Any = allowed.any(axis=1) if allowed.ndim == 4 else allowed
    can_look, can_be_seen = pairs.any(axis=2)[..., None], pairs.any(axis=1)[..., None]
    return (*(np.where(can_look, x, 0) for x in queries), *(np.where(can_be_seen, x, 0) for x in keys))


def as_allowed(mask: Any, shape: tuple[int, ...]) -> Array:
    """The mask, None for all, or a value from ``attendax.masks``, as boolean array of the shape of the scores."""
    if mask is None:
        return np.broadcast_to(True, shape)
    return np.broadcast_to(mask.to_dense(*shape[-2:]) if hasattr(mask, "to_dense") else mask, shape)


def sum_to_shape(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the axes along which an array of ``shape`` was repeated: the backward of broadcasting."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return gradient.sum(axis=repeated, keepdims=True).reshape(shape)
