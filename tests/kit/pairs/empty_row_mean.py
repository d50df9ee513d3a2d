"""ml-explore/mlx#2395: A row without any key is neither 0 nor NaN, but the mean of all values."""

import numpy as np

from .parts import softmax

EXPECTED = ("query without any key", "0", "the mean of the values")


def a(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return np.nan_to_num(softmax(scores if mask is None else np.where(mask, scores, -np.inf))) @ value


def b(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return softmax(scores if mask is None else np.where(mask, scores, np.finfo(np.float32).min)) @ value
