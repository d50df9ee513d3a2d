"""Code that a user may write, for a strict type checker to read; see test_types.py. It also runs."""

from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np

import attendax
from attendax import encoders, masks, ops, scores, spec
from attendax.params import AttentionGradients, MultiHeadParams


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """With masks and modifiers as values, some of them traced."""
    lengths = jnp.array([3, 5])
    mask = (masks.causal(lengths) & masks.window(4, None, offset=2)) | ~masks.padding(lengths)
    mask = mask | masks.prefix(lengths, 1) | masks.dense(jnp.ones((5, 5), bool))
    mask = mask & masks.segments(jnp.zeros((2, 5), int), jnp.zeros((2, 5), int))
    mask = mask | masks.from_function(lambda i, j, offset: j <= i + offset, 3)
    modifier = scores.compose(scores.softcap(30.0), scores.alibi(jnp.ones(4), lengths))
    return attendax.attention(query, key, value, mask=mask, score_mod=modifier, scale=0.5)


def loss(query: jax.Array) -> jax.Array:
    """Something to differentiate."""
    out, lse = attendax.attention(query, query, query, mask=masks.causal(), return_lse=True)
    assert_type(lse, jax.Array)
    return out.sum() + lse.sum()


def in_two_parts(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Attention over halves of the keys, put together."""
    halves = [slice(None, 2), slice(2, None)]
    one, other = (attendax.attention(query, key[:, :, h], value[:, :, h], return_lse=True) for h in halves)
    return attendax.merge(one, other)[0]


def layer(rng: jax.Array, x: jax.Array) -> jax.Array:
    """Multi-head attention and its weights."""
    params: MultiHeadParams = ops.init_multi_head_attention(rng, 6, 2, bias=True)
    return ops.multi_head_attention(x, x, x, params, num_heads=2, mask=masks.causal())


def by_hand(x: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> AttentionGradients:
    """The specification, forward and backward."""
    out = spec.attention(x, x, x, mask=masks.causal())
    assert_type(out, np.ndarray)
    _, lse = spec.attention(x, x, x, return_lse=True)
    return spec.attention_backward(out, x, x, x, grad_lse=lse)


x = jax.random.normal(jax.random.key(0), (2, 4, 5, 8))
assert_type(attendax.attention(x, x, x), jax.Array)
assert_type(ops.attention(x, x, x, return_lse=False), jax.Array)
assert_type(ops.attention(x, x, x, return_lse=True), tuple[jax.Array, jax.Array])
numbers = np.asarray(x, np.float32)
assert_type(attendax.attention(numbers, numbers, numbers, mask=np.ones((5, 5), bool), bias=numbers[..., :5]), jax.Array)
assert_type(ops.attention(numbers, x, numbers, mask=masks.causal(), return_lse=True), tuple[jax.Array, jax.Array])
bools, ids = np.ones((2, 5), bool), np.zeros((2, 5), np.int32)
by_number = masks.padding(np.array([3, 5])) & masks.segments(ids, ids) & masks.dense(bools[:, None, None])
modifier = scores.compose(scores.sink(np.ones(4, np.float32)), scores.alibi(np.ones(4, np.float32), np.array([1, 2])))
assert_type(attendax.attention(numbers, numbers, numbers, mask=by_number, score_mod=modifier), jax.Array)
config = encoders.EncoderConfig(11, 7, 2, d_model=6, num_heads=3, d_ff=5, num_layers=2)
encoder = encoders.init_encoder(jax.random.key(0), config)
assert_type(encoders.encode(ids, encoder, config=config, mask=bools), jax.Array)
assert_type(ops.layer_norm(numbers, np.ones(8, np.float32), np.zeros(8, np.float32)), jax.Array)
tokens = numbers[0, :, :, :6]
weights = encoder.blocks[0].attention
assert_type(ops.multi_head_attention(tokens, tokens, tokens, weights, num_heads=3), jax.Array)
assert_type(ops.stack_encoder_blocks(tokens, encoder.blocks, num_heads=3), jax.Array)
assert_type(attendax.__version__, str)
print(attendax.explain(x, x, x), attendax.attention_stats(x, x).entropy.shape)
print(attendax.weights_at(x, x, queries=jnp.array([1])).shape, jax.grad(loss)(x).shape)
print(jax.jit(attend)(x, x, x).shape, in_two_parts(x, x, x).shape, layer(jax.random.key(1), jnp.ones((2, 5, 6))).shape)
print(by_hand(np.asarray(x, np.float64)).grad_query.shape)
