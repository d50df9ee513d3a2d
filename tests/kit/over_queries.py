"""Attention whose softmax runs over the queries, in NumPy, torch and JAX: wrong in its plainest use."""

import numpy as np


def numpy(query, key, value, *, mask=None, is_causal=False, scale=None):
    scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -1e30) if is_causal else scores
    scores = scores if mask is None else np.where(mask, scores, -1e30)
    weights = np.exp(scores - scores.max(axis=-2, keepdims=True))
    return weights / weights.sum(axis=-2, keepdims=True) @ value


def torch(query, key, value, *, mask=None, scale=None):
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if mask is None else scores.masked_fill(~mask, -1e30)
    return scores.softmax(-2) @ value


def jax(query, key, value, *, mask=None, scale=None):
    import jax.numpy as jnp
    from jax.nn import softmax

    scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if mask is None else jnp.where(mask, scores, -1e30)
    return softmax(scores, axis=-2) @ value
