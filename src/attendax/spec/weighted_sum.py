"""Softmax, and the sum over the keys that a query may look at: what every attention below is made of.

This is where "nothing" gets its meaning. A query that may look at no key has weights 0, not 0/0 (L5). A forbidden key
has weight 0, and because ``0 * NaN`` is NaN, only finite numbers ever meet that 0 (L6).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from attendax import checks

Function = TypeVar("Function", bound=Callable[..., Any])

Array = np.ndarray
"""Of any floating dtype (L8); shapes are in the docstrings, with the axis letters of docs/laws.md."""

quiet = np.errstate(over="ignore", invalid="ignore", under="ignore", divide="ignore")
"""NaN and Inf are legal inputs here and go where the formulas send them; NumPy need not warn of each."""


def public(function: Function) -> Function:
    """Decorate a public function with options: ``quiet``, and advice for a wrong keyword."""
    return checks.knows_keywords(quiet(function))


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


def take_out(queries: Array, keys: Array, values: Array) -> tuple[Array, Array, Array, Array]:
    """Take out what is not finite, and say which pairs it spoils (L6).

    A position is a key together with its value. Where one of the two holds a number that is not finite, or the query
    does, the score of the pair counts as NaN. The numbers themselves never enter a product, so they reach no other row.

    Args:
        queries: (..., T, D).
        keys: (..., S, D).
        values: (..., S, V).

    Returns:
        The queries, keys and values, 0 in each row that is spoiled, and the pairs (..., T, S) whose score is NaN.
    """
    bad_query = ~np.isfinite(queries).all(axis=-1, keepdims=True)
    bad_position = ~(np.isfinite(keys).all(axis=-1, keepdims=True) & np.isfinite(values).all(axis=-1, keepdims=True))
    clean = np.where(bad_query, 0, queries), np.where(bad_position, 0, keys), np.where(bad_position, 0, values)
    return *clean, bad_query | bad_position.swapaxes(-1, -2)


def average(scores: Array, values: Array, allowed: Array, kept: Any = 1.0) -> tuple[Array, Array]:
    """Softmax over the allowed keys, then the weighted sum of their values: ``outᵢ = Σⱼ keptᵢⱼ pᵢⱼ valueⱼ``.

    Softmax makes a row NaN that may look at a NaN. The weight of a forbidden pair is 0 in every row, and ``0 * value``
    is 0 because the values are finite.

    Args:
        scores: (..., T, S), NaN for the pairs of ``take_out``; what stands at a forbidden place is not read.
        values: (..., S, V), finite.
        allowed: boolean (..., T, S).
        kept: what dropout multiplies the weights with.

    Returns:
        The average (..., T, V) and the weights (..., T, S) before dropout, 0 where forbidden.
    """
    weights = np.where(allowed, softmax(np.where(allowed, scores, -np.inf)), 0)
    return (weights * kept) @ values, weights


def average_backward(
    grad_output: Array, weights: Array, values: Array, allowed: Array, kept: Any = 1.0, grad_lse: Any = 0.0
) -> tuple[Array, Array]:
    """Pull a gradient back through ``average``, from its weights.

    From ``outᵢ = Σⱼ wᵢⱼ vⱼ`` over the allowed pairs, ``w = kept p``, ``p = softmax(s)`` and ``lse = log Σ exp(s)``::

        dvⱼ  = Σᵢ wᵢⱼ doutᵢ              value j went into outᵢ with weight wᵢⱼ
        dpᵢⱼ = keptᵢⱼ (doutᵢ · vⱼ)
        dsᵢⱼ = pᵢⱼ (dpᵢⱼ - Σₖ dpᵢₖ pᵢₖ)   softmax_backward; 0 where forbidden
             + pᵢⱼ dlseᵢ                 ∂lseᵢ/∂sᵢⱼ = pᵢⱼ

    A query that nothing depends on, whose own gradient is all 0, is left out: its weights count as 0, NaN or not (L6).
    A gradient that is not finite spoils its query: the weights count as NaN, so all that the query may look at is NaN.

    Returns:
        grad_scores (..., T, S) and grad_values (..., S, V).
    """
    finite, needed = np.isfinite(grad_output).all(axis=-1), (grad_output != 0).any(axis=-1)
    finite, needed = (finite & np.isfinite(grad_lse))[..., None], (needed | (grad_lse != 0))[..., None]
    weights = np.where(allowed & needed, np.where(finite, weights, np.nan), 0)
    grad_output = np.where(finite, grad_output, 0)
    grad_values = (weights * kept).swapaxes(-1, -2) @ grad_output
    grad_weights = np.where(allowed, grad_output @ values.swapaxes(-1, -2), 0) * kept
    through_lse = weights * np.asarray(grad_lse, weights.dtype)[..., None]
    return np.where(allowed, through_softmax(grad_weights, weights) + through_lse, 0), grad_values


def as_allowed(mask: Any, shape: tuple[int, ...]) -> Array:
    """The mask, None for all, or a value from ``attendax.masks``, as boolean array of the shape of the scores."""
    if mask is None:
        return np.broadcast_to(True, shape)
    return np.broadcast_to(mask.to_dense(*shape[-2:], rank=len(shape)) if hasattr(mask, "to_dense") else mask, shape)


def sum_to_shape(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the axes along which an array of ``shape`` was repeated: the backward of broadcasting."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return gradient.sum(axis=repeated, keepdims=True).reshape(shape)
