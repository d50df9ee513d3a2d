"""Dao-AILab/flash-attention#392: flash_attn_qkvpacked_func takes one array (B, T, 3, N, D)."""

import numpy as np

from .parts import softmax

EXPECTED = ("layout", "(B, N, T, D)", "qkv (B, T, 3, N, D)")


def a(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])) @ value


def b(qkv):
    query, key, value = (qkv[:, :, k].swapaxes(1, 2) for k in range(3))
    out = softmax(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])) @ value
    return out.swapaxes(1, 2)
