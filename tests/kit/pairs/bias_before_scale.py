"""NVIDIA/TransformerEngine#3391: pre_scale_bias is added before the scores are scaled, post_scale_bias after it."""

import numpy as np

from .parts import softmax

EXPECTED = ("order", "scale, bias", "bias, scale")


def a(query, key, value, bias=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    return softmax(scores if bias is None else scores + bias) @ value


def b(query, key, value, bias=None):
    scores = query @ key.swapaxes(-1, -2)
    scores = scores if bias is None else scores + bias
    return softmax(scores / np.sqrt(query.shape[-1])) @ value
