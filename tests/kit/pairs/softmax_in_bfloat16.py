"""apple/axlearn#18: The softmax of bfloat16 scores, in float32 or as it is."""

import numpy as np

from .parts import softmax

EXPECTED = ("softmax of bfloat16", "float32", "bfloat16 scores")


def a(query, key, value):
    wide = [x.astype(np.float32) for x in (query, key, value)]
    out = softmax(wide[0] @ wide[1].swapaxes(-1, -2) * query.shape[-1] ** -0.5) @ wide[2]
    return out.astype(query.dtype)


def b(query, key, value):
    scores = (query.astype(np.float32) @ key.astype(np.float32).swapaxes(-1, -2)).astype(query.dtype)
    scores = (scores * query.dtype.type(query.shape[-1] ** -0.5)).astype(query.dtype).astype(np.float32)
    return (softmax(scores) @ value.astype(np.float32)).astype(query.dtype)
