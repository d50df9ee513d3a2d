"""tensorflow/text#1017: Keras takes query, value, key."""

import numpy as np

from .parts import softmax

EXPECTED = ("order of the arguments", "query, key, value", "query, value, key")


def a(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])) @ value


def b(query, value, key):
    return softmax(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])) @ value
