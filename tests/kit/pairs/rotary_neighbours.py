"""huggingface/transformers#25199: transformers turns the halves of a head, the first code of LLaMA turns neighbours."""

import numpy as np

from . import parts

EXPECTED = ("rotary", "halves", "neighbours")
LAYER = True


def a(params, x, heads=2):
    query, key, value = (parts.heads(x @ params[f"{name}_kernel"], heads) for name in ("query", "key", "value"))
    cos, sin = parts.angles(query)
    turned = []
    for y in (query, key):
        one, other = np.split(y, 2, -1)
        turned.append(np.concatenate([one * cos - other * sin, other * cos + one * sin], -1))
    return parts.attend(*turned, value) @ params["out_kernel"]


def b(params, x, heads=2):
    query, key, value = (parts.heads(x @ params[f"{name}_kernel"], heads) for name in ("query", "key", "value"))
    cos, sin = parts.angles(query)
    turned = []
    for y in (query, key):
        z = (y[..., 0::2] + 1j * y[..., 1::2]) * (cos + 1j * sin)
        turned.append(np.stack([z.real, z.imag], -1).reshape(y.shape))
    return parts.attend(*turned, value) @ params["out_kernel"]
