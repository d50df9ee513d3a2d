"""TransformerLensOrg/TransformerLens#284: Which diagonal triu begins at decides whether a token sees itself."""

import numpy as np

from .parts import softmax

EXPECTED = ("causal", "aligned to the start", "without its own key")


def a(query, key, value, causal=False, mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if causal:
        scores = np.where(np.triu(np.ones(scores.shape[-2:]), k=1) > 0, -1e9, scores)
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    return softmax(scores) @ value


def b(query, key, value, causal=False, mask=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if causal:
        scores = np.where(np.triu(np.ones(scores.shape[-2:]), k=0) > 0, -1e9, scores)
    if mask is not None:
        scores = np.where(mask, scores, -1e9)
    return softmax(scores) @ value
