"""Heads: the last axis in equal slices, one for each, and put together again. Pure JAX."""

import jax.numpy as jnp
from jax import Array

from attendax import checks
from attendax.kernels.numerics import fusion_barrier
from attendax.kernels.operands import takes_arrays
from attendax.masks import ArrayLike

from .weighted_sum import pull_back


@takes_arrays
def split_heads(x: ArrayLike, num_heads: int) -> Array:
    """Split the last axis into heads: head h owns the columns h·d_k to (h+1)·d_k.

    Args:
        x: (B, T, M).
        num_heads: N, a divisor of M.

    Returns:
        (B, N, T, d_k) with d_k = M / N.

    Raises:
        TypeError: ``x`` is not floating, or ``num_heads`` is not an integer.
        ValueError: the rank is not 3, or M is not divisible by N.

    Example:
        >>> split_heads(jnp.ones((2, 10, 512)), num_heads=8).shape
        (2, 8, 10, 64)
    """
    B, N, T, d_k = checks.split_heads("split_heads", {"x": x}, num_heads)
    return jnp.reshape(x, (B, T, N, d_k)).swapaxes(1, 2)


@takes_arrays
def split_heads_backward(grad_output: ArrayLike, x: ArrayLike, num_heads: int) -> Array:
    """Gradient with respect to ``x``."""
    checks.split_heads("split_heads_backward", {"x": x, "grad_output": grad_output}, num_heads)
    return pull_back(lambda x: split_heads(x, num_heads), grad_output, x)[0]


@takes_arrays
def merge_heads(x: ArrayLike) -> Array:
    """Put the heads side by side again: the inverse of ``split_heads``.

    Args:
        x: (B, N, T, d_k).

    Returns:
        (B, T, M) with M = N·d_k.

    Raises:
        TypeError: ``x`` is not floating.
        ValueError: the rank is not 4.
    """
    shape = checks.merge_heads("merge_heads", {"x": x})
    return jnp.reshape(x.swapaxes(1, 2), shape)


@takes_arrays
def merge_heads_backward(grad_output: ArrayLike, x: ArrayLike) -> Array:
    """Gradient with respect to ``x``."""
    checks.merge_heads("merge_heads_backward", {"x": x, "grad_output": grad_output})
    return pull_back(merge_heads, grad_output, x)[0]


def in_heads(*each: tuple[Array, int]) -> list[Array]:
    """``split_heads``, of (x, num_heads), in memory: else XLA turns x for attention, and again for its backward."""
    counts = [num_heads for _, num_heads in each]
    split = lambda *arrays: [split_heads(*pair) for pair in zip(arrays, counts, strict=True)]  # noqa: E731
    return fusion_barrier(split, *(x for x, _ in each))
