"""vllm-project/vllm#43919: One kernel gives its log-sum-exp in base 2, the others in base e."""

import numpy as np

from .parts import softmax

EXPECTED = ("log-sum-exp", "base e", "base 2")


def a(query, key, value, return_lse=False):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    out = softmax(scores) @ value
    return (out, np.log(np.exp(scores).sum(-1))) if return_lse else out


def b(query, key, value, return_lse=False):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    out = softmax(scores) @ value
    return (out, np.log2(np.exp(scores).sum(-1))) if return_lse else out
