"""Dropout by position (L10), in JAX: the rule is written out in the module of the same name in ``spec``."""

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: Any, counter: Any) -> tuple[Array, Array]:
    """Threefry-2x32 (Salmon et al. 2011) of two words under two words, uint32, any shapes that broadcast."""
    schedule = (*key, key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    a, b = counter[0] + schedule[0], counter[1] + schedule[1]
    for group in range(5):
        for bits in ROTATIONS[group % 2]:
            a = a + b
            rotated = lax.shift_left(b, jnp.uint32(bits)) | lax.shift_right_logical(b, jnp.uint32(32 - bits))
            b = a ^ rotated
        a, b = a + schedule[(group + 1) % 3], b + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return a, b


def keep(words: Any, shape: tuple[int, ...], rate: float) -> Array:
    """Which weights (..., T, S) dropout keeps: a function of the random key and of each one's position alone."""
    if rate == 1:
        return jnp.zeros(shape, bool)
    *leading, T, S = shape
    heads = jnp.arange(math.prod(leading), dtype=jnp.uint32)[:, None, None]
    word = words[0].reshape(1, 1, 1), words[1].reshape(1, 1, 1)
    row = jnp.arange(T, dtype=jnp.uint32)[None, :, None]
    column = jnp.arange(S, dtype=jnp.uint32)[None, None, :]
    drawn, _ = threefry(threefry(word, (jnp.zeros_like(heads), heads)), (row, column))
    return (drawn >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))).reshape(shape)
