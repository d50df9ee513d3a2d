"""Dropout by position (L10), in JAX: the rule is written out in the module of the same name in ``spec``."""

import math

import jax.numpy as jnp
from jax import Array, lax

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: tuple[Array, ...], counter: tuple[Array, ...]) -> tuple[Array, Array]:
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


def head_keys(key_data: Array, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """The key of each head, as two words of the shape (..., N), leading axes counted through: ``fold_in(key, n)``."""
    heads = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    first, second = threefry((key_data[:1], key_data[1:]), (jnp.zeros_like(heads), heads))
    return first.reshape(shape), second.reshape(shape)


def keep(dropout_keys: tuple[Array, ...], i: Array, j: Array, rate: float) -> Array:
    """Draw which weights dropout keeps.

    Args:
        dropout_keys: the random key of each head, two words (..., N, 1, 1).
        i, j: positions of queries (..., T, 1) and of keys (..., 1, S).
        rate: of dropout.
    """
    if rate == 1:
        return jnp.zeros(jnp.broadcast_shapes(dropout_keys[0].shape, i.shape, j.shape), bool)
    drawn, _ = threefry(dropout_keys, (i.astype(jnp.uint32), j.astype(jnp.uint32)))
    return drawn >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
