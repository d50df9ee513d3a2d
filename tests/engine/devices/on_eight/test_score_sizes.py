"""L8 across devices: one head for each device, no mask, scores from a thousandth to ten thousand, in float32.

Beyond scores of 1e3 a weight is uncertain by much, and gradients need only be finite.
"""

import jax
import numpy as np
import pytest
import sequences

from attendax import attention
from judges import by_definition

STRATEGIES = ("ring", "all_gather", "ulysses")
SIZES = (1e-3, 1.0, 30.0, 200.0, 1e4)
EPS = float(np.finfo(np.float32).eps)
WIDTH = 16


def arrays_of(rng, T, heads, size):
    shape = 1, heads, T, WIDTH
    query, *rest = (rng.normal(size=shape).astype(np.float32) for _ in range(4))
    return np.float32(size) * query, *rest


@pytest.mark.law("L8", "sharded")
@pytest.mark.sample(1)
@pytest.mark.parametrize("T", [256, 514, 600, 1024])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_l8_scores_of_every_size(strategy, size, T, rng):
    """Results and gradients of all tokens equal those of the specification in float64, as far as eps |s| allows."""
    devices, heads = 2, 2 if strategy == "ulysses" else 1  # which divides heads over devices
    *arrays, dout = arrays_of(rng, T, heads, size)
    dlse = rng.normal(size=(1, heads, T)).astype(np.float32)
    attend = sequences.attend_by(devices, strategy, "in order", {}, {}, T)
    found = jax.jit(sequences.results_and_gradients(attend))(*arrays, {}, dout, dlse)
    wanted = by_definition([x.astype(np.float64) for x in arrays], dout.astype(np.float64), dlse)
    for k, (ours, right) in enumerate(zip(found, wanted, strict=True)):
        assert np.isfinite(ours).all()
        if k < 2 or size <= 1e3:
            tolerance = 64 * EPS * (1 + 5 * size)
            np.testing.assert_allclose(ours, right, rtol=0, atol=tolerance * np.abs(right).max())


@pytest.mark.law("L12", "sharded")
@pytest.mark.slow
@pytest.mark.parametrize("size", [1.0, 30.0, 200.0])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_l12_second_derivatives_with_scores_of_every_size(strategy, size, rng):
    """In float64 those of one device: jvp, forward over reverse, reverse over reverse."""
    T, heads = 40, 2 if strategy == "ulysses" else 1
    *leaves, w = (x.astype(np.float64) for x in arrays_of(rng, T, heads, size))
    directions, u = tuple(rng.normal(size=x.shape) for x in leaves), rng.normal(size=(1, heads, T))

    def alone(query, key, value, given):
        return attention(query, key, value, return_lse=True)

    across = sequences.attend_by(2, strategy, "in order", {}, {}, T)
    programs = (jax.jit(sequences.every_direction(attend)) for attend in (alone, across))
    expected, found = (program(tuple(leaves), directions, {}, w, u) for program in programs)
    for ours, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, right, rtol=0, atol=1e-12 * (1 + size) ** 2 * np.abs(right).max())
