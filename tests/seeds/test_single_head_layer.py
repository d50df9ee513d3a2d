"""The single-head layer of phase 15: its six tests under their own names, then dropout, one input, gradients."""

import jax
import numpy as np
import pytest

from attendax import ops, spec
from attendax.conformance import assert_gradients

B, T, S, D, V = 2, 5, 7, 3, 11


def draw(rng, *shapes):
    return [rng.standard_normal(shape) for shape in shapes]


# --- The six ---------------------------------------------------------------------------------------------------------


def test_phase_15_attention_shape(rng):
    query, key, value = draw(rng, *[(2, 8, 64)] * 3)
    assert spec.ScaledDotProductAttention().forward(query, key, value).shape == (2, 8, 64)
    assert jax.jit(ops.ScaledDotProductAttention().forward)(query, key, value).shape == (2, 8, 64)
    query, key, value = draw(rng, (B, T, D), (B, S, D), (B, S, V))
    layer = spec.ScaledDotProductAttention()
    assert layer.forward(query, key, value).shape == (B, T, V)
    assert layer.attention_weights.shape == (B, T, S)


def test_phase_15_attention_scale():
    """With head_dim 64 a product of 8 is a score of 1: the second of two keys weighs e times the first."""
    query, key = np.zeros((1, 1, 64)), np.zeros((1, 2, 64))
    query[0, 0, 5], key[0, 1, 5] = 2.0, 4.0
    value = np.array([[[1.0], [0.0]]])
    wanted = 1 / (1 + np.exp(8.0 * 0.125))
    for output in (
        spec.ScaledDotProductAttention().forward(query, key, value),
        jax.jit(ops.ScaledDotProductAttention().forward)(query, key, value),
    ):
        np.testing.assert_allclose(output, [[[wanted]]], rtol=1e-15)


def test_phase_15_causal_mask():
    wanted = [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [True, True, True, True],
    ]
    for twin in (spec, ops):
        mask = twin.causal_mask(seq_len=4)
        assert mask.dtype == bool
        assert mask.tolist() == wanted
        assert twin.causal_mask(0).shape == (0, 0)


def test_phase_15_masked_attention(rng):
    """No bit of the outputs up to a position depends on what comes after it, be it another number or NaN."""
    query, key, value = draw(rng, (B, T, D), (B, T, D), (B, T, V))
    layer, mask = spec.ScaledDotProductAttention(), spec.causal_mask(T)
    before = layer.forward(query, key, value, mask)
    assert not layer.attention_weights[:, ~mask].any()
    assert layer.attention_weights[:, mask].all()
    for future in (100.0, np.nan):
        key[:, 3:], value[:, 3:] = future, future
        after = layer.forward(query, key, value, mask)
        np.testing.assert_array_equal(after[:, :3], before[:, :3])
        assert not (after[:, 3:] == before[:, 3:]).any()


@pytest.mark.sample(1)
@pytest.mark.parametrize("masked", [False, True])
def test_phase_15_attention_backward(rng, masked):
    """The gradients flow to query, key and value, and are the slopes; jax.grad of the twin says the same."""
    query, key, value, grad = draw(rng, (B, T, D), (B, S, D), (B, S, V), (B, T, V))
    mask = np.tri(T, S, dtype=bool) if masked else None
    layer = spec.ScaledDotProductAttention()
    layer.forward(query, key, value, mask)
    gradients = layer.backward(grad)
    assert [g.shape for g in gradients] == [(B, T, D), (B, S, D), (B, S, V)]
    for gradient in gradients:
        assert np.abs(gradient).max() > 1e-3

    def forward(*arrays):
        return spec.ScaledDotProductAttention().forward(*arrays, mask)

    assert_gradients(forward, query, key, value, backward=lambda grad_output, *arrays: layer.backward(grad_output))
    by_autodiff = jax.jit(ops.ScaledDotProductAttention().backward)(grad, query, key, value, mask)
    for gradient, other in zip(gradients, by_autodiff, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=0, atol=1e-12)


def test_phase_15_attention_weights_sum(rng):
    query, key, value = draw(rng, (B, T, D), (B, S, D), (B, S, V))
    layer = spec.ScaledDotProductAttention()
    for mask in (None, np.tri(T, S, dtype=bool)):
        layer.forward(30 * query, key, value, mask)
        weights = layer.attention_weights
        assert (weights >= 0).all()
        np.testing.assert_allclose(weights.sum(axis=-1), np.ones((B, T)), rtol=1e-14)


# --- Self-attention --------------------------------------------------------------------------------------------------


def test_one_input_and_a_mask(rng):
    (x,) = draw(rng, (B, T, D))
    layer, mask = spec.ScaledDotProductAttention(), spec.causal_mask(T)
    output = layer.forward(x, mask=mask)
    np.testing.assert_array_equal(output, layer.forward(x, x, x, mask))
    np.testing.assert_array_equal(output[:, 0], x[:, 0])  # the first token sees itself alone


# --- Dropout ---------------------------------------------------------------------------------------------------------


def test_no_dropout_unless_asked_for(rng):
    query, key, value = draw(rng, (B, T, D), (B, S, D), (B, S, V))
    layer = spec.ScaledDotProductAttention()
    assert layer.dropout_p == 0.0
    assert layer.training
    output, weights = spec.scaled_dot_product_attention(query, key, value)
    np.testing.assert_allclose(layer.forward(query, key, value), output, rtol=0, atol=1e-14)
    np.testing.assert_allclose(layer.attention_weights, weights, rtol=0, atol=1e-14)


def test_dropout_while_training(rng):
    """A dropped weight is 0, a kept one is divided by 1 - p; the output is made of these."""
    query, key, value = draw(rng, (B, 13, D), (B, 11, D), (B, 11, V))
    layer = spec.ScaledDotProductAttention(dropout_p=0.25, rng=3)
    output = layer.forward(query, key, value)
    _, plain = spec.scaled_dot_product_attention(query, key, value)
    dropped = layer.attention_weights == 0
    assert 0.15 < dropped.mean() < 0.35  # 286 draws at 0.25: four deviations
    np.testing.assert_allclose(layer.attention_weights[~dropped], plain[~dropped] / 0.75, rtol=1e-14)
    np.testing.assert_allclose(output, layer.attention_weights @ value, rtol=0, atol=1e-14)
    layer.forward(query, key, value)
    assert (dropped != (layer.attention_weights == 0)).any()  # a fresh draw every time


def test_dropout_is_seeded(rng):
    query, key, value = draw(rng, (B, T, D), (B, S, D), (B, S, V))
    one, same, other = (spec.ScaledDotProductAttention(0.5, rng=seed).forward(query, key, value) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.smoke
def test_eval_drops_nothing_and_train_drops_again(rng):
    query, key, value = draw(rng, (B, T, D), (B, S, D), (B, S, V))
    layer = spec.ScaledDotProductAttention(0.5, rng=1)
    plain, weights = spec.scaled_dot_product_attention(query, key, value)
    assert layer.eval() is layer
    assert not layer.training
    np.testing.assert_allclose(layer.forward(query, key, value), plain, rtol=0, atol=1e-14)
    np.testing.assert_allclose(layer.attention_weights, weights, rtol=0, atol=1e-14)
    assert layer.train() is layer
    assert layer.training
    layer.forward(query, key, value)
    assert (layer.attention_weights == 0).any()
    assert not layer.train(False).training


@pytest.mark.smoke
def test_dropout_of_everything(rng):
    query, key, value, grad = draw(rng, (B, T, D), (B, S, D), (B, S, V), (B, T, V))
    layer = spec.ScaledDotProductAttention(1.0, rng=1)
    assert not layer.forward(query, key, value).any()
    for gradient in layer.backward(grad):
        assert not gradient.any()


@pytest.mark.parametrize("masked", [False, True])
def test_backward_goes_through_the_weights_that_were_kept(rng, masked):
    """One seed drops the same weights, so finite differences see one fixed function."""
    query, key, value = draw(rng, (B, T, D), (B, S, D), (B, S, V))
    mask = np.tri(T, S, 1, dtype=bool) if masked else None
    layer = spec.ScaledDotProductAttention(0.4, rng=1)
    layer.forward(query, key, value, mask)
    assert (layer.attention_weights[..., mask if masked else slice(None)] == 0).any()

    def forward(*arrays):
        return spec.ScaledDotProductAttention(0.4, rng=1).forward(*arrays, mask)

    assert_gradients(forward, query, key, value, backward=lambda grad_output, *arrays: layer.backward(grad_output))


def test_dropout_of_the_twin_is_the_same_for_the_same_key(rng):
    """In JAX a random key means training and no key evaluation; the kept set is that of ``spec.attention``."""
    query, key, value = draw(rng, (B, T, D), (B, S, D), (B, S, V))
    layer, random_key = ops.ScaledDotProductAttention(0.5), jax.random.key(4)
    forward = jax.jit(layer.forward)
    one_head = [x[:, None] for x in (query, key, value)]
    wanted = spec.attention(*one_head, dropout_rate=0.5, dropout_rng=random_key)[:, 0]
    np.testing.assert_allclose(forward(query, key, value, rng=random_key), wanted, rtol=0, atol=1e-14)
    plain, _ = spec.scaled_dot_product_attention(query, key, value)
    np.testing.assert_allclose(forward(query, key, value), plain, rtol=0, atol=1e-14)
    assert not np.allclose(plain, wanted)
