"""huggingface/pytorch-image-models#2236: A mask after the softmax leaves weights that do not sum to 1."""

import numpy as np

from .parts import softmax

EXPECTED = ("what a mask does", "minus infinity", "after the softmax")


def a(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return softmax(scores if mask is None else np.where(mask, scores, -1e9)) @ value


def b(query, key, value, mask=None):
    weights = softmax(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]))
    return (weights if mask is None else np.where(mask, weights, 0)) @ value
