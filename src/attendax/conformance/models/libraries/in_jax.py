"""Models of JAX arrays, under ``jax.jit`` unless they cannot be."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

HEADER = "from functools import partial\n\nimport jax\nimport jax.numpy as jnp\nimport numpy as np"
WAYS = {"not compiled": ("eager", None), "gradient checkpointing": (None, "checkpointed")}  # forward, gradient


def results(found):
    """The results of each position, of what a call gives: the first of several."""
    found = found[0] if isinstance(found, (tuple, list)) else found
    return found.reshape(*found.shape[:2], -1)


@partial(jax.jit, static_argnums=0)
def forward(apply, inputs, options):
    """Results (B, T, C)."""
    return results(apply(inputs, **options))


def eager(apply, inputs, options):
    """The same, not compiled."""
    return results(apply(jnp.asarray(inputs), **{name: jnp.asarray(x) for name, x in options.items()}))


def in_float64(apply, inputs, options):
    """The same of a model in float64, not compiled."""
    with jax.enable_x64(True):
        inputs = np.asarray(inputs)
        inputs = inputs.astype(np.float64) if inputs.dtype == np.float32 else inputs
        return np.asarray(eager(apply, inputs, options))


@partial(jax.jit, static_argnums=0)
def checkpointed(apply, inputs, options, cotangent):
    """The gradient, with all that the model computes computed again for it."""
    return gradient(jax.checkpoint(apply), inputs, options, cotangent)


@partial(jax.jit, static_argnums=0)
def gradient(apply, inputs, options, cotangent):
    """Of Σ cotangent · results."""
    found, pull = jax.vjp(lambda inputs: results(apply(inputs, **options)), inputs)
    return pull(jnp.asarray(cotangent, found.dtype))[0]


@partial(jax.jit, static_argnums=0)
def compiled(step, inputs, state, options):
    """A step of the cache."""
    return step(inputs, state, **options)


def stepped(step, inputs, state, options):
    """The same, not compiled where it cannot be: a cache may be more than arrays."""
    try:
        return compiled(step, inputs, state, options)
    except (TypeError, ValueError, jax.errors.UnexpectedTracerError):
        return step(inputs, state, **options)


def steps(cache, inputs, options, chunks, room, order):
    """Results (B, T, C), so many tokens at a time."""
    init, step, *reorder = cache
    state, found, start = init(len(inputs), room), [], 0
    for count in chunks:
        given = {name: jnp.asarray(x[:, start : start + count]) for name, x in options.items()}
        one, state = stepped(step, jnp.asarray(inputs[:, start : start + count]), state, given)
        found.append(results(one))
        if order and not start:
            state = reorder[0](state, jnp.asarray(order))
        start += count
    return jnp.concatenate(found, axis=1)


def to_numpy(x):
    """The numbers."""
    return np.asarray(x)
