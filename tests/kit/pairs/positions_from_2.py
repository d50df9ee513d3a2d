"""huggingface/transformers#20761: The positions of OPT begin in row 2 of their table."""

import numpy as np

from . import parts

EXPECTED = ("positions", "row 0", "row 2")
LAYER = True


def a(params, x):
    x = x + params["positions"][: x.shape[1]]
    return x + parts.self_attention(params, x, 2)


def b(params, x):
    x = x + params["positions"][np.arange(x.shape[1]) + 2]
    return x + parts.self_attention(params, x, 2)
