"""The guide to the class Attention, step by step. The figures of the demo are in test_demo.py."""

import math

import jax
import numpy as np
import pytest

from attendax import ops, spec

WEIGHTS = ["query_weights", "key_weights", "value_weights", "output_weights"]


def test_attention_is_initialised_as_the_checklist_says():
    attention = spec.Attention(embedding_dimension=256, rng=0)
    assert attention.embedding_dimension == 256
    for name in WEIGHTS:
        weights = getattr(attention, name)
        assert weights.shape == (256, 256)
        assert abs(weights.mean()) < 0.02 * 4 / 256
        assert abs(weights.std() / 0.02 - 1) < 4 / (256 * math.sqrt(2))
        within = np.mean(np.abs(weights) < 0.02)  # 0.6827 of a normal distribution, 0.577 of a uniform one
        assert abs(within - 0.6827) < 0.01
    assert len({getattr(attention, name).tobytes() for name in WEIGHTS}) == 4
    drawn = ops.Attention(256).init(jax.random.key(0))
    assert list(drawn._fields) == WEIGHTS
    for weights in drawn:
        assert abs(weights.std() / 0.02 - 1) < 4 / (256 * math.sqrt(2))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_step_by_step(rng, causal):
    """Steps 1 to 7 of the guide, in its words; weights large enough that the scores matter."""
    attention = spec.Attention(embedding_dimension=11, causal=causal)
    attention.set_params({name: rng.standard_normal((11, 11)) for name in WEIGHTS})
    x = rng.standard_normal((2, 7, 11))
    queries, keys, values = x @ attention.query_weights, x @ attention.key_weights, x @ attention.value_weights
    attention_scores = np.matmul(queries, keys.transpose(0, 2, 1))
    scaled_scores = attention_scores / np.sqrt(11)
    causal_mask = np.tril(np.ones((7, 7))) if causal else np.ones((7, 7))
    masked_scores = np.where(causal_mask == 0, -1e9, scaled_scores)
    attention_weights = np.exp(masked_scores - masked_scores.max(axis=-1, keepdims=True))
    attention_weights = attention_weights / attention_weights.sum(axis=-1, keepdims=True)
    attention_output = np.matmul(attention_weights, values)
    wanted = np.matmul(attention_output, attention.output_weights)

    output = attention.forward(x)
    np.testing.assert_allclose(output, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
    np.testing.assert_allclose(attention.attention_weights, attention_weights, rtol=0, atol=1e-13)
    assert (attention.attention_weights[:, causal_mask == 0] == 0).all()
    params = ops.Attention(11).init(jax.random.key(0))._replace(**attention.get_params())
    in_jax, weights_in_jax = jax.jit(ops.Attention(11, causal=causal).forward_with_weights)(x, params)
    np.testing.assert_allclose(in_jax, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
    np.testing.assert_allclose(weights_in_jax, attention_weights, rtol=0, atol=1e-13)


def test_attention_causal_for_one_call(rng):
    attention, x = spec.Attention(6, rng=0), rng.standard_normal((2, 5, 6))
    open_output = attention.forward(x)
    causal_output = attention.forward(x, causal=True)
    assert not np.triu(attention.attention_weights, 1).any()
    assert not np.allclose(open_output, causal_output, rtol=1e-3)
    np.testing.assert_array_equal(spec.Attention(6, causal=True, rng=0).forward(x), causal_output)
    np.testing.assert_array_equal(spec.Attention(6, causal=True, rng=0).forward(x, causal=False), open_output)
