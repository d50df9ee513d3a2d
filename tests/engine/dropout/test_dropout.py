"""L10: random key and position decide which weights are kept; the mean over many keys is the plain result."""

import jax
import numpy as np
import pytest

import loops
from attendax import ops, spec
from cases import B, D, N, S, T, V
from judges import assert_close, assert_same_bits
from test_laws import every_implementation, qkv


@pytest.mark.law("L10", "spec", "ops")
def test_dropout_keeps_by_position(rng):
    """L10: a weight is kept by the word that threefry draws for its head, query and key, and by nothing else."""
    query, key, value = rng.normal(size=(B, N, T, D)), rng.normal(size=(B, N, S, D)), rng.normal(size=(B, N, S, V))
    words, rate = (123456789, 4000000000), 0.4
    options = {"dropout_rate": rate, "dropout_rng": np.array(words, np.uint32)}
    got = [twin.attention(query, key, value, **options) for twin in (spec, ops)]
    kept = 0
    for b, n, *head in loops.heads(query, key, value):
        _, weights, _ = loops.attend(*head, lambda i, j: True, loops.scaled(*head[:2]))
        head_key = loops.threefry(words, (0, b * N + n))
        keep = [[loops.threefry(head_key, (i, j))[0] >= rate * 2**32 for j in range(S)] for i in range(T)]
        kept += np.sum(keep)
        wanted = np.asarray(weights) * keep / (1 - rate) @ value[b, n]
        for out in got:
            assert_close(out[b, n], wanted)
    assert abs(kept / (B * N * T * S) - (1 - rate)) < 0.1


@pytest.mark.law("L10")
@pytest.mark.sample(2)
@every_implementation
def test_l10_rate_zero_is_the_identity_and_rate_one_is_zero(attention, rng):
    query, key, value = qkv(rng)
    plain = attention(query, key, value)
    assert_same_bits(attention(query, key, value, dropout_rate=0.0, dropout_rng=jax.random.key(1)), plain, "rate 0")
    assert (np.asarray(attention(query, key, value, dropout_rate=1.0, dropout_rng=jax.random.key(1))) == 0).all()


@pytest.mark.law("L10", "spec")
def test_l10_every_kind_of_key_gives_the_same_set(rng):
    query, key, value = qkv(rng)
    typed = jax.random.key(5)
    keys = typed, jax.random.PRNGKey(5), np.asarray(jax.random.key_data(typed))
    outs = [spec.attention(query, key, value, dropout_rate=0.5, dropout_rng=k) for k in keys]
    assert_same_bits(outs[1:], [outs[0]] * 2, "key")
    other = spec.attention(query, key, value, dropout_rate=0.5, dropout_rng=jax.random.key(6))
    assert np.abs(other - outs[0]).max() > 0.1


@pytest.mark.law("L10", "spec", "ops")
def test_l10_the_words_are_those_of_jax_random():
    from attendax.kernels.dropout import threefry as in_jax
    from attendax.spec.dropout import threefry as in_numpy

    words = np.asarray(jax.random.key_data(jax.random.key(99)))
    for n in (0, 1, 2**31 + 5):
        folded = np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.key(99), np.uint32(n))))
        counter = np.array([[0], [n]], np.uint32)
        for threefry in (in_numpy, in_jax):
            assert np.ravel(threefry(words[:, None], counter)).tolist() == folded.tolist()


@pytest.mark.law("L10", "ops")
def test_l10_the_mean_over_many_keys_is_the_plain_result(rng):
    """Inverted dropout: the expectation is the plain output; independent in every head."""
    query, key, value = rng.normal(size=(1, 2, 1, D)), rng.normal(size=(1, 2, S, D)), rng.normal(size=(1, 2, S, 1))
    run = jax.jit(jax.vmap(lambda k: ops.attention(query, key, value, dropout_rate=0.5, dropout_rng=k)))
    outs = np.asarray(run(jax.random.split(jax.random.key(0), 4096)))[:, 0, :, 0, 0]
    deviation = outs.std(axis=0) / np.sqrt(len(outs))
    assert (np.abs(outs.mean(axis=0) - spec.attention(query, key, value)[0, :, 0, 0]) < 5 * deviation).all()
    assert abs(np.corrcoef(outs.T)[0, 1]) < 0.08
