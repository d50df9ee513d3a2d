"""pytorch/pytorch#39321: key_padding_mask is (B, S), and True is padding there."""

import numpy as np

from .parts import softmax

EXPECTED = ("mask", "True attends", "(B, S), True drops")


def a(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return softmax(scores if mask is None else np.where(mask[:, None, None], scores, -1e9)) @ value


def b(query, key, value, key_padding_mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if key_padding_mask is not None:
        scores = np.where(key_padding_mask[:, None, None, :], -1e9, scores)
    return softmax(scores) @ value
