"""emmtrix/emx-onnx-cgen#731: ONNX caps the scores and adds the bias; a generator of code capped the sum."""

import numpy as np

from .parts import softmax

EXPECTED = ("order", "scale, softcap, bias", "scale, bias, softcap")


def a(query, key, value, attn_bias=None, softcap=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
    return softmax(scores if attn_bias is None else scores + attn_bias) @ value


def b(query, key, value, attn_bias=None, softcap=None):
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    scores = scores if attn_bias is None else scores + attn_bias
    return softmax(scores if softcap is None else softcap * np.tanh(scores / softcap)) @ value
