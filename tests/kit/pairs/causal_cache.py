"""Dao-AILab/flash-attention#282: One query beside a cache sees the first key alone, where causal begins there."""

import numpy as np

from .parts import softmax

EXPECTED = ("causal", "end", "start")


def a(q, k, v, causal=False):
    scores = np.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    T, S = scores.shape[-2:]
    if causal:
        scores = np.where(np.arange(S) <= np.arange(T)[:, None] + S - T, scores, -1e30)
    return np.einsum("bhts,bshd->bthd", softmax(scores), v)


def b(q, k, v, causal=False):
    scores = np.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    T, S = scores.shape[-2:]
    if causal:
        scores = np.where(np.arange(S) <= np.arange(T)[:, None], scores, -1e30)
    return np.einsum("bhts,bshd->bthd", softmax(scores), v)
