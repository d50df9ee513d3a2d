"""ml-explore/mlx#2835: MLX aligns its causal mask to the end, torch to the start; both take a mask, too."""

import numpy as np

from .parts import softmax

EXPECTED = ("causal", "end", "start")


def a(q, k, v, *, scale=None, mask=None, causal=False):
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    T, S = scores.shape[-2:]
    if causal:
        scores = np.where(np.tri(T, S, S - T, dtype=bool), scores, -1e9)
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    return softmax(scores) @ v


def b(query, key, value, attn_mask=None, is_causal=False, scale=None):
    scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -1e9)
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, -1e9)
    return softmax(scores) @ value
