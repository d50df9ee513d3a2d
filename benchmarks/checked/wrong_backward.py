"""The backward of JAX forgets to subtract the mean of the gradient of the weights from each row."""

from functools import partial

import jax
import jax.numpy as jnp


def attention(query, key, value, *, mask=None, is_causal=False, scale=None):
    """The formula with a rule of its own."""
    key, value = (jnp.repeat(x, query.shape[-3] // key.shape[-3], axis=-3) for x in (key, value))
    seen = jnp.tri(query.shape[-2], key.shape[-2], dtype=bool) if is_causal else None
    seen = mask if seen is None else seen if mask is None else seen & mask
    return _attend(query, key, value, seen, query.shape[-1] ** -0.5 if scale is None else scale)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(query, key, value, seen, scale):
    return _forward(query, key, value, seen, scale)[0]


def _forward(query, key, value, seen, scale):
    scores = jnp.einsum("...td,...sd->...ts", query, key, preferred_element_type=jnp.float32) * scale
    scores = scores if seen is None else jnp.where(seen, scores, -jnp.inf)
    weights = jax.nn.softmax(scores)
    return (weights @ value).astype(query.dtype), (query, key, value, seen, weights)


def _backward(scale, kept, grad_out):
    query, key, value, _, weights = kept
    grad_weights = grad_out @ value.swapaxes(-1, -2)
    grad_scores = weights * grad_weights * scale
    grads = grad_scores @ key, grad_scores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ grad_out
    return *(x.astype(query.dtype) for x in grads), None


_attend.defvjp(_forward, _backward)
