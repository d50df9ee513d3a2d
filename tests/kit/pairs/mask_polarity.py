"""rasbt/LLMs-from-scratch#1061: True takes part in torch's SDPA, and is dropped in MultiheadAttention."""

import numpy as np

from .parts import softmax

EXPECTED = ("mask", "True attends", "True drops")


def a(query, key, value, attn_mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return softmax(scores if attn_mask is None else np.where(attn_mask, scores, -1e9)) @ value


def b(query, key, value, attn_mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return softmax(scores if attn_mask is None else np.where(attn_mask, -1e9, scores)) @ value
