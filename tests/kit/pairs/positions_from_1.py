"""jadore801120/attention-is-all-you-need-pytorch#99: Position 0 is padding, and those of words begin at 1."""

import numpy as np

from . import parts

EXPECTED = ("positions", "sines from 0", "sines from 1")
LAYER = True


def a(params, x, start=0):
    x = x + parts.sines(start + np.arange(x.shape[1]), x.shape[2])
    return x + parts.self_attention(params, x, 2)


def b(params, x, start=1):
    return a(params, x, start)
