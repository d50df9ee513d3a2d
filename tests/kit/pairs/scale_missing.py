"""mlc-ai/mlc-llm#3426: A fallback ran with a scale of 1.0, where 1/√D was meant."""

import numpy as np

from .parts import softmax

EXPECTED = ("scale", "1/√D", "by 1")


def a(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])) @ value


def b(q, k, v, sm_scale=1.0):
    return softmax(q @ k.swapaxes(-1, -2) * sm_scale) @ v
