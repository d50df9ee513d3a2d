"""pytorch/pytorch#108108: torch aligns is_causal to the upper left, flash-attention since 2.1 to the lower right."""

import numpy as np

from .parts import softmax

EXPECTED = ("causal", "start", "end")


def a(query, key, value, is_causal=False):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    return softmax(scores) @ value


def b(q, k, v, causal=False):
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        T, S = scores.shape[-2:]
        scores = np.where(np.tri(T, S, S - T, dtype=bool), scores, -np.inf)
    return np.nan_to_num(softmax(scores)) @ v
