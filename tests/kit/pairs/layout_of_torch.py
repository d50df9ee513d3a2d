"""pytorch/pytorch#152257: torch takes (B, N, T, D); many models have (B, T, N, D)."""

import numpy as np

from .parts import softmax

EXPECTED = ("layout", "(B, N, T, D)", "(B, T, N, D)")


def a(query, key, value, is_causal=False):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -1e9)
    return softmax(scores) @ value


def b(query, key, value, is_causal=False):
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1])
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -1e9)
    return np.einsum("bhqk,bkhd->bqhd", softmax(scores), value)
