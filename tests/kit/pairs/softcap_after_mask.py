"""Dao-AILab/flash-attention#1025: Capped after the mask, masked keys have a weight again."""

import numpy as np

from .parts import softmax

EXPECTED = ("order", "softcap, mask", "mask, softcap")


def a(query, key, value, mask=None, logits_soft_cap=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if logits_soft_cap is not None:
        scores = logits_soft_cap * np.tanh(scores / logits_soft_cap)
    return softmax(scores if mask is None else np.where(mask, scores, -1e9)) @ value


def b(query, key, value, mask=None, logits_soft_cap=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    scores = scores if mask is None else np.where(mask, scores, -1e9)
    if logits_soft_cap is not None:
        scores = logits_soft_cap * np.tanh(scores / logits_soft_cap)
    return softmax(scores) @ value
