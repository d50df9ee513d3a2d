"""pytorch/pytorch#103963: A row without any key was NaN in torch, and is 0 since."""

import numpy as np

from .parts import softmax

EXPECTED = ("query without any key", "0", "NaN")


def a(query, key, value, attn_mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return np.nan_to_num(softmax(scores if attn_mask is None else np.where(attn_mask, scores, -np.inf))) @ value


def b(query, key, value, attn_mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return softmax(scores if attn_mask is None else np.where(attn_mask, scores, -np.inf)) @ value
