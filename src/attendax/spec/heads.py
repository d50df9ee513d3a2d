"""Heads: the last axis in equal slices, one for each, and put together again."""

from attendax import checks

from .weighted_sum import Array


def split_heads(x: Array, num_heads: int) -> Array:
    """Split the last axis into heads: head h owns the columns h·d_k to (h+1)·d_k.

    Args:
        x: (B, T, M).
        num_heads: N, a divisor of M.

    Returns:
        (B, N, T, d_k) with d_k = M / N.

    Raises:
        TypeError: ``x`` is not floating, or ``num_heads`` not an integer.
        ValueError: another rank, or M not divisible by N.

    Example:
        >>> import numpy as np
        >>> x = np.random.randn(2, 10, 512)  # batch=2, seq=10, d_model=512
        >>> split = split_heads(x, num_heads=8)
        >>> split.shape
        (2, 8, 10, 64)
    """
    B, N, T, d_k = checks.split_heads("split_heads", {"x": x}, num_heads)
    return x.reshape(B, T, N, d_k).swapaxes(1, 2)


def split_heads_backward(grad_output: Array, x: Array, num_heads: int) -> Array:
    """Pull a gradient back through ``split_heads``: a rearrangement is undone by the opposite one.

    Args:
        grad_output: (B, N, T, d_k).
        x: the input of the forward (B, T, M).
        num_heads: N.

    Returns:
        Gradient with respect to ``x`` (B, T, M).

    Raises:
        TypeError, ValueError: as the forward, or a ``grad_output`` that is not of the shape of its result.
    """
    checks.split_heads("split_heads_backward", {"x": x, "grad_output": grad_output}, num_heads)
    return merge_heads(grad_output)


def merge_heads(x: Array) -> Array:
    """Put the heads side by side again: the inverse of ``split_heads``.

    Args:
        x: (B, N, T, d_k).

    Returns:
        (B, T, M) with M = N·d_k.

    Raises:
        TypeError: ``x`` is not floating.
        ValueError: another rank.
    """
    shape = checks.merge_heads("merge_heads", {"x": x})
    return x.swapaxes(1, 2).reshape(shape)


def merge_heads_backward(grad_output: Array, x: Array) -> Array:
    """Pull a gradient back through ``merge_heads``: split it into as many heads as ``x`` has.

    Args:
        grad_output: (B, T, M).
        x: the input of the forward (B, N, T, d_k).

    Returns:
        Gradient with respect to ``x`` (B, N, T, d_k).

    Raises:
        TypeError, ValueError: as the forward, or a ``grad_output`` that is not of the shape of its result.
    """
    checks.merge_heads("merge_heads_backward", {"x": x, "grad_output": grad_output})
    return split_heads(grad_output, x.shape[1])
