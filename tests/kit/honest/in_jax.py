"""Right candidates of JAX."""

from .honest import Honest

HONEST = [
    Honest(
        "the plain formula", "jax",
        '''
import jax
import jax.numpy as jnp


def attention(query, key, value, *, mask=None, is_causal=False, scale=None):
    key, value = (jnp.repeat(x, query.shape[-3] // key.shape[-3], axis=-3) for x in (key, value))
    scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -jnp.inf)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return (jax.nn.softmax(scores.astype(jnp.float32)) @ value).astype(query.dtype)
''', least=30,
    ),
    Honest(
        "a scan over blocks, with a custom rule", "jax",
        '''
import functools

import jax
import jax.numpy as jnp

BLOCK = 16


def scores_of(query, key, is_causal, start):
    scores = jnp.einsum("...td,...sd->...ts", query, key) * query.shape[-1] ** -0.5
    if is_causal:
        seen = start + jnp.arange(key.shape[-2]) <= jnp.arange(query.shape[-2])[:, None]
        scores = jnp.where(seen, scores, -jnp.inf)
    return scores


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def attend(query, key, value, is_causal):
    return forward(query, key, value, is_causal)[0]


def forward(query, key, value, is_causal):
    row_max = jnp.full(query.shape[:-1], -jnp.inf)
    row_sum, out = jnp.zeros(query.shape[:-1]), jnp.zeros((*query.shape[:-1], value.shape[-1]))
    for j in range(0, key.shape[-2], BLOCK):
        scores = scores_of(query, key[..., j : j + BLOCK, :], is_causal, j)
        new_max = jnp.maximum(row_max, scores.max(axis=-1))
        powers, keep = jnp.exp(scores - new_max[..., None]), jnp.exp(row_max - new_max)
        row_sum = row_sum * keep + powers.sum(axis=-1)
        out = out * keep[..., None] + powers @ value[..., j : j + BLOCK, :]
        row_max = new_max
    out = out / row_sum[..., None]
    return out, (query, key, value, out, row_max + jnp.log(row_sum))


def pulled_back(is_causal, kept, grad_output):
    query, key, value, out, lse = kept
    weights = jnp.exp(scores_of(query, key, is_causal, 0) - lse[..., None])
    delta = (grad_output * out).sum(axis=-1, keepdims=True)
    grad_scores = weights * (grad_output @ value.swapaxes(-1, -2) - delta) * query.shape[-1] ** -0.5
    return grad_scores @ key, grad_scores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ grad_output


attend.defvjp(forward, pulled_back)


def attention(query, key, value, *, is_causal=False):
    wide = (x.astype(jnp.float32) for x in (query, key, value))
    query32, key, value = wide
    key, value = (jnp.repeat(x, query.shape[-3] // key.shape[-3], axis=-3) for x in (key, value))
    if max(query.shape[-2], key.shape[-2]) > 512:  # its loop is unrolled: 32,768 keys take minutes to compile
        raise NotImplementedError("at most 512 queries and 512 keys")
    return attend(query32, key, value, is_causal).astype(query.dtype)
''', least=30,
    ),
    Honest(
        "a scan over keys, one at a time", "jax",
        '''
import jax
import jax.numpy as jnp


def attention(query, key, value, *, is_causal=False):
    T, scale = query.shape[-2], query.shape[-1] ** -0.5

    def step(carry, inputs):
        top, total, out = carry
        j, k, v = inputs
        score = jnp.einsum("bhqd,bhd->bhq", query.astype("float32"), k.astype("float32")) * scale
        score = jnp.where(is_causal & (j > jnp.arange(T)), -1e30, score)
        new = jnp.maximum(top, score)
        kept, weight = jnp.exp(top - new), jnp.exp(score - new)
        out = out * kept[..., None] + weight[..., None] * v[:, :, None].astype("float32")
        return (new, total * kept + weight, out), None

    shape = query.shape[:-1]
    start = (jnp.full(shape, -1e30), jnp.zeros(shape), jnp.zeros((*shape, value.shape[-1])))
    keys = (jnp.arange(key.shape[-2]), jnp.moveaxis(key, 2, 0), jnp.moveaxis(value, 2, 0))
    _, total, out = jax.lax.scan(step, start, keys)[0]
    return (out / total[..., None]).astype(query.dtype)
''', least=30,
    ),
    Honest(
        "jax.nn, with the mask as it takes it", "jax",
        '''
import jax


def attention(query, key, value, *, mask=None, is_causal=False, scale=None):
    if mask is not None and mask.ndim == 2:
        mask = mask[None, None]
    arrays = (x.swapaxes(-3, -2) for x in (query, key, value))
    return jax.nn.dot_product_attention(*arrays, mask=mask, is_causal=is_causal, scale=scale).swapaxes(-3, -2)
''', ("--contract", "narrow.toml"),
    ),
    Honest(
        "one head, mapped over the others", "jax",
        '''
import jax
import jax.numpy as jnp


def head(query, key, value):
    scores = (query @ key.T).astype(jnp.float32) / jnp.sqrt(query.shape[-1]).astype(jnp.float32)
    return (jax.nn.softmax(scores) @ value).astype(query.dtype)


def attention(query, key, value):
    key, value = (jnp.repeat(x, query.shape[-3] // key.shape[-3], axis=-3) for x in (key, value))
    return jax.vmap(jax.vmap(head))(query, key, value)
''',
    ),
]  # fmt: skip
