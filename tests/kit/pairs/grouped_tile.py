"""ekzhang/jax-js#180: Grouped heads: key heads have to be repeated, not tiled."""

import numpy as np

from .parts import softmax

EXPECTED = ("grouped heads", "repeats", "in turn")


def a(query, key, value):
    key, value = (np.repeat(x, query.shape[1] // x.shape[1], 1) for x in (key, value))
    return softmax(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])) @ value


def b(query, key, value):
    key, value = (np.tile(x, (1, query.shape[1] // x.shape[1], 1, 1)) for x in (key, value))
    return softmax(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])) @ value
