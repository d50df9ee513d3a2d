"""georg-wolflein/good-features#1: Scores times the mask are 0, which softmax takes for scores."""

import numpy as np

from .parts import softmax

EXPECTED = ("what a mask does", "minus infinity", "scores set to 0")


def a(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return softmax(scores if mask is None else np.where(mask, scores, -1e9)) @ value


def b(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return softmax(scores if mask is None else scores * mask) @ value
