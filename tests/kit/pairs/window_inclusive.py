"""huggingface/transformers#39408: w tokens in transformers, and w tokens before the own one in flash-attention."""

import numpy as np

from .parts import softmax

EXPECTED = ("window", "w keys, its own among them", "w keys beside its own")


def a(query, key, value, sliding_window=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    i, j = np.indices(scores.shape[-2:])
    if sliding_window is not None:
        scores = np.where((j <= i) & (j > i - sliding_window), scores, -1e9)
    return softmax(scores) @ value


def b(query, key, value, window_size=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    i, j = np.indices(scores.shape[-2:])
    if window_size is not None:
        scores = np.where((j <= i) & (j >= i - window_size), scores, -1e9)
    return softmax(scores) @ value
