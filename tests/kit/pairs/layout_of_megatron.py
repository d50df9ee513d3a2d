"""EleutherAI/gpt-neox#271: Megatron has (T, B, N, D)."""

import numpy as np

from .parts import softmax

EXPECTED = ("layout", "(B, T, N, D)", "(T, B, N, D)")


def a(query, key, value):
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1])
    return np.einsum("bhqk,bkhd->bqhd", softmax(scores), value)


def b(query, key, value):
    scores = np.einsum("qbhd,kbhd->bhqk", query, key) / np.sqrt(query.shape[-1])
    return np.einsum("bhqk,kbhd->qbhd", softmax(scores), value)
