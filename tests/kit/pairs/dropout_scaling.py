"""keras-team/keras#3305: What dropout keeps is scaled by 1/(1 - rate), or is not."""

import numpy as np

from .parts import softmax

EXPECTED = ("dropout", "scales what is kept", "does not scale")


rng = np.random.default_rng(0)


def a(query, key, value, dropout_rate=0.0):
    weights = softmax(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5)
    return np.where(rng.random(weights.shape) < dropout_rate, 0, weights / (1 - dropout_rate)) @ value


def b(query, key, value, dropout_rate=0.0):
    weights = softmax(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5)
    return np.where(rng.random(weights.shape) < dropout_rate, 0, weights) @ value
