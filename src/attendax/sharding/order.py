"""The order in which the tokens of a sequence lie on its devices: contiguous or zigzag.

"contiguous": device k of n holds the k-th part. Under a causal mask the last device then has far more to do than the
first. "zigzag": the sequence is cut into 2 n parts, and device k holds parts k and 2 n - 1 - k: all have equally much.
"""

import jax.numpy as jnp
from jax import Array

from attendax.checks import fail, integer
from attendax.masks import ArrayLike


def _indices(function: str, length: int, devices: int) -> Array:
    """The position of the token that lies at each place, in zigzag order."""
    devices = integer(function, "devices", devices, minimum=1)
    if length % (2 * devices):
        sentence = f"{length} tokens are not a multiple of 2 x {devices} devices."
        advice = "Pad the tokens, and leave the padding out by masks.padding(lengths)."
        fail(ValueError, function, sentence, advice=advice)
    parts = jnp.arange(length, dtype=jnp.int32).reshape(2 * devices, -1)
    pairs = jnp.stack([parts[:devices], parts[devices:][::-1]], axis=1)
    return pairs.reshape(-1)


def positions(length: int, devices: int, order: str = "zigzag") -> Array:
    """The original position of the token at each place, int32 (length,).

    Args:
        length: how many tokens there are.
        devices: how many devices share them.
        order: "contiguous" or "zigzag".

    Raises:
        ValueError: another order, or a length that cannot be divided so.

    Example:
        >>> positions(8, 2).tolist()
        [0, 1, 6, 7, 2, 3, 4, 5]
    """
    if order == "contiguous":
        return jnp.arange(length, dtype=jnp.int32)
    if order != "zigzag":
        fail(ValueError, "positions", f"order must be 'contiguous' or 'zigzag', got {order!r}.")
    return _indices("positions", length, devices)


def zigzag(x: ArrayLike, devices: int, axis: int = -2) -> Array:
    """The array with the tokens along an axis in zigzag order; a bias or dense mask has two axes of tokens.

    Args:
        x: an array.
        devices: how many devices share the axis.
        axis: that of the tokens: -2 of queries, keys and values (..., T, D).

    Raises:
        ValueError: a number of tokens that is not a multiple of twice the devices.

    Example:
        >>> zigzag(jnp.arange(8), 2, axis=0).tolist()
        [0, 1, 6, 7, 2, 3, 4, 5]
    """
    x = jnp.asarray(x)
    return jnp.take(x, _indices("zigzag", x.shape[axis], devices), axis=axis)


def restore(x: ArrayLike, devices: int, axis: int = -2) -> Array:
    """The array in its original order again: the inverse of ``zigzag``.

    Args:
        x: an array in zigzag order.
        devices, axis: as in ``zigzag``.

    Raises:
        ValueError: a number of tokens that is not a multiple of twice the devices.

    Example:
        >>> restore(zigzag(jnp.arange(8), 2, axis=0), 2, axis=0).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    x = jnp.asarray(x)
    return jnp.take(x, jnp.argsort(_indices("restore", x.shape[axis], devices)), axis=axis)
