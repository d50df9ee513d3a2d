"""6. Equal bits: log probabilities of a text that is sampled token by token, then scored by one call in another batch.

python docs/examples/same_bits.py
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendax import attention, masks, ops
from attendax.ops.token_wise import affine


def init(rng: Any, layers: int, width: int, vocabulary: int) -> dict[str, Any]:
    """Random weights of a causal language model."""
    shapes = dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), (width, width)) | {"W1": (width, 4 * width)}
    shapes |= {"W2": (4 * width, width)}

    def drawn(rng, shape):
        return jax.random.normal(rng, shape) / shape[0] ** 0.5

    def layer(rng):
        return {name: drawn(key, shapes[name]) for name, key in zip(shapes, jax.random.split(rng, 6), strict=True)}

    first, last, *keys = jax.random.split(rng, layers + 2)
    table = jax.random.normal(first, (vocabulary, width))
    return {"table": table, "layers": [layer(key) for key in keys], "W": 3 * drawn(last, (width, vocabulary))}


def by_attendax(query, key, value, start):
    """Attention to the first ``start`` tokens of a cache, and to the tokens of the call."""
    return attention(query, key, value, mask=masks.causal(offset=start))


def by_jax_nn(query, key, value, start):
    """Equal to ``by_attendax``, by jax.nn."""
    seen = jnp.arange(key.shape[2]) <= jnp.arange(query.shape[2])[:, None] + start
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    return jax.nn.dot_product_attention(query, key, value, mask=seen[None, None]).swapaxes(1, 2)


LIBRARIES = {"attendax": (by_attendax, affine), "jax.nn": (by_jax_nn, jnp.matmul)}


def model(params, tokens, cache, start, heads, library):
    """The log probabilities of the next tokens, (B, T, vocabulary), and the cache with the tokens' keys and values."""
    attend, times = LIBRARIES[library]
    ones, zeros = (f(params["table"].shape[1]) for f in (jnp.ones, jnp.zeros))
    hidden, places = params["table"][tokens], start + jnp.arange(tokens.shape[1])
    written = []
    for layer, old in zip(params["layers"], cache, strict=True):
        x = ops.layer_norm(hidden, ones, zeros)
        query, key, value = (ops.split_heads(times(x, layer[name]), heads) for name in ("W_Q", "W_K", "W_V"))
        query, key = (ops.rotary_encoding(y, positions=places) for y in (query, key))
        new = [
            jax.lax.dynamic_update_slice_in_dim(*pair, start, axis=2) for pair in zip(old, (key, value), strict=True)
        ]
        hidden += times(ops.merge_heads(attend(query, *new, start)), layer["W_O"])
        hidden += times(jax.nn.gelu(times(ops.layer_norm(hidden, ones, zeros), layer["W1"])), layer["W2"])
        written.append(new)
    return log_softmax(times(ops.layer_norm(hidden, ones, zeros), params["W"])), written


def log_softmax(logits):
    """``log(exp(x) / Σ exp(x))``: the largest of these is 1 / Σ exp(x - max)."""
    return logits - logits.max(-1, keepdims=True) + jnp.log(ops.softmax(logits).max(-1, keepdims=True))


def empty(params, batch, room, heads):
    """A cache with room for so many tokens."""
    width = params["table"].shape[1]
    return [[jnp.zeros((batch, heads, room, width // heads))] * 2 for _ in params["layers"]]


def of_next(logs, tokens):
    """The log probability of each token except the first."""
    return jnp.take_along_axis(logs[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]


def draw(params, prompt, length, heads, run):
    """Texts that the model samples one token at a time, (B, length), and the log probability of each token."""
    logs, cache = run(params, prompt, empty(params, len(prompt), 2 * length, heads), 0)
    text, of_text = prompt, [logs]
    for number in range(prompt.shape[1], length):
        token = jax.random.categorical(jax.random.key(number), of_text[-1][:, -1])[:, None]
        logs, cache = run(params, token, cache, number)
        text, of_text = jnp.concatenate([text, token], axis=1), [*of_text, logs]
    return text, of_next(jnp.concatenate(of_text, axis=1), text)


def score(params, text, heads, run):
    """The log probability of each token of whole texts, by one call."""
    return of_next(run(params, text, empty(params, *text.shape, heads), 0)[0], text)


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Run the example; returns the largest difference of a log probability by each library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args(argv)
    heads, batch, vocabulary = 4, 4, 1000
    params = init(jax.random.key(0), args.layers, args.width, vocabulary)
    prompt = jax.random.randint(jax.random.key(1), (batch, args.tokens // 4), 0, vocabulary)
    found = {}
    for library in LIBRARIES:
        run = jax.jit(lambda *given, library=library: model(*given, heads, library))
        text, drawn = draw(params, prompt, args.tokens, heads, run)
        again = score(params, text[::-1][:3], heads, run)  # in another order, and without one of the texts
        apart = np.abs(np.asarray(again) - np.asarray(drawn)[::-1][:3])
        found[library] = float(apart.max())
        told = f", by at most {apart.max():.1e}" if apart.any() else ": every bit is equal"
        print(f"{library + ':':10}{(apart > 0).sum()} of {apart.size} log probabilities differ{told}")
    return found


if __name__ == "__main__":
    main()
