"""Dao-AILab/flash-attention#404: log sum exp(x), or log sum exp(x - max x)?"""

import numpy as np

from .parts import softmax

EXPECTED = ("log-sum-exp", "base e", "without the maximum")


def a(query, key, value, return_lse=False):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    out = softmax(scores) @ value
    return (out, np.logaddexp.reduce(scores, -1)) if return_lse else out


def b(query, key, value, return_lse=False):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    out = softmax(scores) @ value
    return (out, np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1))) if return_lse else out
