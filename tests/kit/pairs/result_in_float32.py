"""lucidrains/flash-attention-jax#13: Results are float32 whatever the arrays are."""

import numpy as np

from .parts import softmax

EXPECTED = ("dtype of the result", "of the query", "float32")


def a(query, key, value):
    wide = [x.astype(np.float32) for x in (query, key, value)]
    out = softmax(wide[0] @ wide[1].swapaxes(-1, -2) * query.shape[-1] ** -0.5) @ wide[2]
    return out.astype(query.dtype)


def b(query, key, value):
    wide = [x.astype(np.float32) for x in (query, key, value)]
    return softmax(wide[0] @ wide[1].swapaxes(-1, -2) * query.shape[-1] ** -0.5) @ wide[2]
