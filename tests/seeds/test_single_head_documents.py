"""The two single-head documents: the guide to the class Attention, step by step, and the demo, figure by figure."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import ops, spec

TWINS = pytest.mark.parametrize("twin", [spec, ops], ids=["spec", "ops"])

# --- The guide -------------------------------------------------------------------------------------------------------

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


def test_attention_softmax_as_the_checklist_says(rng):
    """Numerically stable, along the last axis, rows sum to 1."""
    scores = rng.standard_normal((2, 5, 5)) + 1000.0  # exp(1000) is infinite
    weights = spec.softmax(scores, axis=-1)
    assert weights.shape == scores.shape
    assert ((weights > 0) & (weights < 1)).all()
    np.testing.assert_allclose(weights.sum(axis=-1), np.ones((2, 5)), rtol=1e-14)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(weights, exponentials / exponentials.sum(axis=-1, keepdims=True), rtol=1e-14)


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


def test_attention_testing_checklist(rng):
    """Batch 2, sequence 10, width 64: the output has the shape of the input, weights lie in [0, 1], rows sum to 1."""
    attention = spec.Attention(embedding_dimension=64)
    assert attention.forward(rng.standard_normal((2, 10, 64))).shape == (2, 10, 64)
    weights = attention.attention_weights
    assert weights.shape == (2, 10, 10)
    assert ((weights >= 0) & (weights <= 1)).all()
    np.testing.assert_allclose(weights.sum(axis=-1), np.ones((2, 10)), rtol=1e-14)


def test_attention_backward_is_the_slope(rng):
    attention = spec.Attention(6, rng=0)
    params = {name: 20 * weights for name, weights in attention.get_params().items()}
    x, grad, direction = rng.standard_normal((3, 2, 5, 6))
    moves = {name: rng.standard_normal((6, 6)) for name in WEIGHTS}

    def loss(step):
        attention.set_params({name: weights + step * moves[name] for name, weights in params.items()})
        return np.sum(grad * attention.forward(x + step * direction, causal=True))

    loss(0.0)
    grad_x, grad_params = attention.backward(grad)
    assert list(grad_params) == WEIGHTS
    by_hand = np.sum(grad_x * direction) + sum(np.sum(grad_params[name] * moves[name]) for name in WEIGHTS)
    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    assert abs(slope) > 0.1
    assert abs(by_hand - slope) < 1e-7 * abs(slope)


# --- The demo --------------------------------------------------------------------------------------------------------


def as_written(Q, K, V, mask=None):
    """The function of the document, line by line."""
    scaled_scores = np.matmul(Q, K.transpose(0, 2, 1)) / np.sqrt(K.shape[-1])
    if mask is not None:
        scaled_scores = np.where(mask, scaled_scores, -1e9)
    exp_x = np.exp(scaled_scores - np.max(scaled_scores, axis=-1, keepdims=True))
    weights = exp_x / np.sum(exp_x, axis=-1, keepdims=True)
    return np.matmul(weights, V), weights


WITHOUT_MASK = """\
[[0.25239951 0.24751685 0.25106345 0.24902019]
 [0.24893051 0.25202596 0.24813962 0.25090392]
 [0.24710991 0.25421605 0.24841189 0.25026215]
 [0.25241656 0.24979312 0.24903318 0.24875714]]"""
FIRST_OUTPUT = """\
[-0.02728092  0.00473303 -0.04275996 -0.07967607  0.03838312  0.06356303
 -0.08637104  0.06873783]"""
CAUSAL_BEGINS = """\
[[1.         0.         0.         0.        ]
 [0.49691046 0.50308954 0.         0.     """  # here the document is cut


@TWINS
def test_the_figures_of_the_demo(twin):
    np_random = np.random.RandomState(42)
    Q, K, V = (np_random.randn(2, 4, 8) * 0.1 for _ in range(3))
    causal_mask = np.broadcast_to(np.tril(np.ones((4, 4)), k=0).astype(bool), (2, 4, 4))
    attend = twin.scaled_dot_product_attention if twin is spec else jax.jit(ops.scaled_dot_product_attention)
    output, weights = map(np.asarray, attend(Q, K, V))
    _, masked = attend(Q, K, V, mask=causal_mask)
    assert (output.shape, weights.shape) == ((2, 4, 8), (2, 4, 4))
    assert str(weights[0]) == WITHOUT_MASK
    assert str(weights[0].sum(axis=1).round(12)) == "[1. 1. 1. 1.]"
    assert str(output[0, 0]) == FIRST_OUTPUT
    assert str(np.asarray(masked)[0]).startswith(CAUSAL_BEGINS)
    assert str(causal_mask[0].astype(int)) == "[[1 0 0 0]\n [1 1 0 0]\n [1 1 1 0]\n [1 1 1 1]]"


@pytest.mark.parametrize("masked", [False, True])
@TWINS
def test_the_function_of_the_demo(twin, rng, masked):
    """Also where d_k, d_v and both lengths differ, which the demo does not show."""
    Q, K, V = (rng.standard_normal(shape) for shape in ((2, 5, 3), (2, 7, 3), (2, 7, 11)))
    mask = np.tri(5, 7, dtype=bool) if masked else None
    attend = twin.scaled_dot_product_attention if twin is spec else jax.jit(ops.scaled_dot_product_attention)
    got = attend(Q, K, V, mask)
    for one, other in zip(got, as_written(Q, K, V, mask), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@TWINS
def test_softmax_along_any_axis(twin, rng, axis):
    x = rng.standard_normal((2, 3, 5))
    got = twin.softmax(x if twin is spec else jnp.asarray(x), axis)
    np.testing.assert_allclose(got, np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True), rtol=1e-14)
