"""Attention inspected in O(T + S): each number is one that the dense weights of the specification give."""

import functools

import jax
import numpy as np
import pytest

import attendax
from attendax import masks, scores, spec
from attendax.conformance import assert_gradients
from blockwise import in_tiny_tiles
from cases import B, D, G, N, S, T
from compilation import quickly, temporaries

ids = np.arange(T)[None] // np.array([[2], [3]]), np.arange(S)[None] // np.array([[2], [3]])
OPTIONS = {
    "plain": {},
    "causal": {"mask": masks.causal(-1)},
    "padding": {"mask": masks.padding(np.array([S, 0]))},
    "segments": {"mask": masks.segments(*ids)},
    "dense": {"mask": np.random.default_rng(1).random((B, N, T, S)) < 0.5},
    "function": {"mask": masks.from_function(lambda i, j: (i + j) % 2 == 0)},
    "bias": {"bias": np.random.default_rng(2).normal(size=(N, T, S)), "scale": 0.3},
    "softcap": {"score_mod": scores.softcap(0.7)},
    "relative bias": {"score_mod": scores.relative_bias(np.random.default_rng(3).normal(size=(N, 5)), offset=1)},
}
SIZES = {"whole": lambda f: f, "tiny": in_tiny_tiles}
every_case = [pytest.mark.parametrize("name", OPTIONS), pytest.mark.parametrize("size", SIZES)]


def both(test):
    return functools.reduce(lambda f, mark: mark(f), every_case, test)


def arrays_and_weights(rng, options):
    query, key = rng.normal(size=(B, N, T, D)), rng.normal(size=(B, G, S, D))
    weights = spec.attention_with_weights(query, key, key, **options)[2]
    assert weights.max() > 0.1
    return query, key, weights


@pytest.mark.sample(1)
@both
def test_stats_are_those_of_the_weights(size, name, rng):
    query, key, weights = arrays_and_weights(rng, OPTIONS[name])
    stats = quickly(SIZES[size](functools.partial(attendax.attention_stats, **OPTIONS[name])))(query, key)
    logs = np.log(np.where(weights > 0, weights, 1))
    np.testing.assert_allclose(stats.entropy, -(weights * logs).sum(-1), atol=1e-12)
    np.testing.assert_allclose(stats.largest, weights.max(-1), atol=1e-12)
    np.testing.assert_allclose(stats.received, weights.sum(-2), atol=1e-12)
    np.testing.assert_array_equal(stats.where, np.where(weights.any(-1), weights.argmax(-1), -1))


@pytest.mark.sample(1)
@both
def test_some_weights_are_those_of_all(size, name, rng):
    query, key, weights = arrays_and_weights(rng, OPTIONS[name])
    at = SIZES[size](functools.partial(attendax.weights_at, query, key, **OPTIONS[name]))
    rows, columns = np.array([3, 0, 3]), np.array([6, 1])
    np.testing.assert_allclose(at(queries=rows), weights[..., rows, :], atol=1e-12)
    np.testing.assert_allclose(at(keys=columns), weights[..., columns], atol=1e-12)
    np.testing.assert_allclose(at(queries=rows, keys=columns), weights[..., rows, :][..., columns], atol=1e-12)


@pytest.mark.slow
def test_one_head_and_nothing_at_all(rng):
    query, key = rng.normal(size=(T, D)), rng.normal(size=(S, D))
    weights = spec.attention_with_weights(query, key, key)[2]
    stats = attendax.attention_stats(query, key)
    assert stats.received.shape == (S,)
    np.testing.assert_allclose(stats.received, weights.sum(0), atol=1e-12)
    np.testing.assert_allclose(attendax.weights_at(query, key, queries=np.array([1])), weights[[1]], atol=1e-12)
    empty = attendax.attention_stats(query, key[:0])
    assert [x.shape for x in empty] == [(T,), (T,), (T,), (0,)]
    assert (np.asarray(empty.where) == -1).all()
    assert attendax.weights_at(query, key, keys=np.array([], int)).shape == (T, 0)


@pytest.mark.law("L16", "tiles")
@pytest.mark.slow
def test_stats_build_nothing_of_size_t_x_s():
    rows = np.array([1, 5])
    for f in (
        attendax.attention_stats,
        functools.partial(attendax.weights_at, keys=rows),
        functools.partial(attendax.weights_at, queries=rows),
    ):
        short, long = (temporaries(f, *[(1, 2, S, 16)] * 2) for S in (4096, 16384))
        assert long < 5 * short < 4096 * 4096 * 4


@pytest.mark.slow
def test_chosen_weights_have_their_gradient(rng):
    arrays = rng.normal(size=(N, T, D)), rng.normal(size=(N, S, D))
    for where in ({"queries": np.array([1, 4])}, {"keys": np.array([0, 3])}):
        assert_gradients(jax.jit(functools.partial(attendax.weights_at, mask=masks.causal(2), **where)), *arrays)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [masks.causal(1), masks.padding(np.array(3))], ids=["causal", "padding"])
@pytest.mark.parametrize("name", ["entropy", "largest", "received"])
def test_stats_have_their_gradient(name, mask, rng):
    """In both directions of differentiation."""

    def statistic(query, key):
        return getattr(attendax.attention_stats(query, key, mask=mask), name)

    assert_gradients(jax.jit(statistic), rng.normal(size=(N, T, D)), rng.normal(size=(N, S, D)))


QUERY, KEY = np.zeros((N, T, D)), np.zeros((N, S, D))
REFUSED = {
    "neither": (ValueError, {}, "weights_at: queries and keys are both None"),
    "floats": (
        TypeError,
        {"queries": np.zeros(2)},
        "weights_at: queries must be a vector of integers, got (2,) float64.",
    ),
    "a number": (TypeError, {"keys": 3}, "weights_at: keys must be a vector of integers, got int."),
    "matrix": (TypeError, {"keys": np.zeros((1, 1), int)}, "weights_at: keys must be a vector of integers"),
    "too late": (ValueError, {"keys": np.array([0, S])}, "weights_at: keys must lie in [0, 6], got 0 to 7."),
    "negative": (ValueError, {"queries": np.array([-1])}, "weights_at: queries must lie in [0, 4], got -1."),
    "mask": (
        ValueError,
        {"queries": np.array([1]), "mask": np.ones((2, 2), bool)},
        "weights_at: mask has shape (2, 2)",
    ),
}


@pytest.mark.smoke
@pytest.mark.law("L14", "ops")
@pytest.mark.parametrize("name", REFUSED)
def test_l14_weights_at_refuses(name):
    error, options, message = REFUSED[name]
    with pytest.raises(error) as caught:
        attendax.weights_at(QUERY, KEY, **options)
    assert str(caught.value).startswith(message)


@pytest.mark.law("L14", "ops")
def test_l14_stats_refuse():
    with pytest.raises(ValueError, match=r"^attention_stats: query has D=3 but key has D=2"):
        attendax.attention_stats(QUERY, KEY[..., :2])
