"""4. Decoding with a cache: one token at a time, compiled once, equal to attention over the whole text.

python docs/examples/decode_with_cache.py
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from attendax import attention, masks, ops


def main(argv: list[str] | None = None) -> float:
    """Run the example; returns the largest difference to causal attention over everything at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args(argv)
    T, M, heads, key_heads, D = args.tokens, args.width, 8, 2, args.width // 8
    keys = jax.random.split(jax.random.key(0), 4)
    W_Q = jax.random.normal(keys[0], (M, heads * D)) / M**0.5
    W_K, W_V = (jax.random.normal(key, (M, key_heads * D)) / M**0.5 for key in keys[1:3])
    x = jax.random.normal(keys[3], (1, T, M))

    def project(x, start):
        """Queries and keys are turned by their places; ``start`` may be traced."""
        query, key, value = (ops.split_heads(x @ W, n) for W, n in ((W_Q, heads), (W_K, key_heads), (W_V, key_heads)))
        places = start + jnp.arange(x.shape[1])
        return *(ops.rotary_encoding(y, positions=places) for y in (query, key)), value

    @jax.jit
    def step(cache, token, length):
        """One token more: write its key and value, then look at what is there. The mask says what is."""
        query, key, value = project(token, length)
        cache = tuple(
            jax.lax.dynamic_update_slice_in_dim(old, new, length, axis=2)
            for old, new in zip(cache, (key, value), strict=True)
        )
        return cache, attention(query, *cache, mask=masks.causal(offset=length))

    query, key, value = project(x, 0)
    wanted = attention(query, key, value, mask=masks.causal())
    cache = (jnp.zeros_like(key), jnp.zeros_like(value))
    found, start = [], time.perf_counter()
    for length in range(T):
        cache, out = step(cache, x[:, length : length + 1], jnp.int32(length))
        found.append(out)
        if length == 0:
            jax.block_until_ready(out)
            start = time.perf_counter()
    difference = float(np.abs(jnp.concatenate(found, axis=2) - wanted).max())
    rate = (T - 1) / (time.perf_counter() - start)
    print(f"{T} tokens, {rate:.0f} a second; the largest difference to all at once is {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
