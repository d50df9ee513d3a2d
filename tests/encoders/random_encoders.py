"""Encoders of random weights, and two texts for them."""

import jax
import numpy as np

from attendax.encoders import encoder_shapes

IDS = np.array([[2, 5, 7, 11, 3], [2, 13, 3, 0, 0]], np.int32)
MASK = np.array([[True] * 5, [True] * 3 + [False] * 2])
TYPES = np.array([[0, 0, 1, 1, 0], [0, 1, 1, 0, 0]], np.int32)


def random_params(config, *, seed=0, dtype=np.float64):
    """NumPy weights in which every leaf matters: biases away from 0, gammas away from 1."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(0.1, 0.5, leaf.shape).astype(dtype), encoder_shapes(config))
