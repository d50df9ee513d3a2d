"""Dropout by position: whether a weight is kept depends on the random key and on where it stands, only (L10).

Any implementation, in tiles or whole, on one device or many, can ask about any single position and gets the same
answer. The random bits are those of Threefry-2x32 (Salmon et al. 2011), the generator behind ``jax.random``.
"""

from typing import Any

import numpy as np

from .weighted_sum import Array

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry(key: Any, counter: Any) -> tuple[Array, Array]:
    """Scramble a counter of two 32-bit words under a key of two: twenty rounds of add, rotate, exclusive or.

    Args:
        key: two uint32 arrays.
        counter: two uint32 arrays, broadcastable with the key.

    Returns:
        Two uint32 arrays.

    Example:
        >>> a, b = threefry(np.zeros((2, 1), np.uint32), np.zeros((2, 1), np.uint32))
        >>> hex(a[0]), hex(b[0])
        ('0x6b200159', '0x99ba4efe')
    """
    schedule = key[0], key[1], key[0] ^ key[1] ^ np.uint32(PARITY)
    a, b = counter[0] + schedule[0], counter[1] + schedule[1]
    for group in range(5):
        for bits in ROTATIONS[group % 2]:
            a = a + b
            b = a ^ (b << np.uint32(bits) | b >> np.uint32(32 - bits))
        a = a + schedule[(group + 1) % 3]
        b = b + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def keep(key_data: Any, shape: tuple[int, ...], rate: float) -> Array:
    """The weights that dropout keeps.

    Head n of the call, counted over all leading axes in row-major order, has its own key ``threefry(key, (0, n))``,
    which is ``jax.random.fold_in(key, n)``; the pair (i, j) draws the first word of ``threefry(key_n, (i, j))`` and is
    kept when that is at least ``rate · 2³²``.

    Args:
        key_data: the random key, uint32 (2,).
        shape: of the weights (..., T, S).
        rate: in [0, 1].

    Returns:
        Boolean array of that shape.
    """
    if rate == 1:
        return np.zeros(shape, bool)
    *leading, T, S = shape
    heads = np.arange(int(np.prod(leading)), dtype=np.uint32)
    word = np.asarray(key_data, np.uint32)[:, None]
    head_key = [k[:, None, None] for k in threefry(word, (np.zeros_like(heads), heads))]
    row, column = np.arange(T, dtype=np.uint32)[:, None], np.arange(S, dtype=np.uint32)[None]
    drawn, _ = threefry(head_key, (row, column))
    return (drawn >= threshold(rate)).reshape(shape)


def threshold(rate: float) -> np.uint32:
    """``rate · 2³²`` as uint32."""
    return np.uint32(min(round(rate * 2**32), 2**32 - 1))
