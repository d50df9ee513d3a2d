"""pytorch/pytorch#109072: A boolean mask, and one that is added to the scores."""

import numpy as np

from .parts import softmax

EXPECTED = ("mask", "True attends", "added")


def a(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ value


def b(query, key, value, attention_mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return softmax(scores if attention_mask is None else scores + attention_mask) @ value
