"""vllm-project/vllm#9679: (w, w) looks ahead, too; a sliding window of a decoder is (w - 1, 0)."""

import numpy as np

from .parts import softmax

EXPECTED = ("window", "before", "between two sides", "j <= i + right")


def a(query, key, value, sliding_window=None, mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    i, j = np.indices(scores.shape[-2:])
    if sliding_window is not None:
        scores = np.where((j <= i) & (j > i - sliding_window), scores, -1e9)
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    return softmax(scores) @ value


def b(query, key, value, window_size=None, mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    i, j = np.indices(scores.shape[-2:])
    if window_size is not None:
        left, right = window_size
        scores = np.where((j >= i - left) & (j <= i + right), scores, -1e9)
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    return softmax(scores) @ value
