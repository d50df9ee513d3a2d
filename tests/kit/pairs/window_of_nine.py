"""apple/axlearn#1009: A sliding_window_size of 8 is a window of 9 tokens."""

import numpy as np

from .parts import softmax

EXPECTED = ("window", "w keys beside its own", "w keys, its own among them")


def a(query, key, value, sliding_window_size=None):
    scores = np.einsum("btnh,bsnh->bnts", query, key) * query.shape[-1] ** -0.5
    i, j = np.indices(scores.shape[-2:])
    if sliding_window_size is not None:
        scores = np.where((i >= j) & (i - j <= sliding_window_size), scores, -1e15)
    return np.einsum("bnts,bsnh->btnh", softmax(scores), value)


def b(query, key, value, window=None):
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    i, j = np.indices(scores.shape[-2:])
    if window is not None:
        scores = np.where((i >= j) & (i - j < window), scores, -1e15)
    return softmax(scores) @ value
