"""lablup/mlxcel#928: GPT-NeoX packs query, key and value head by head, GPT-2 beside each other."""

import numpy as np

from . import parts

EXPECTED = ("columns of qkv_kernel", "[q | k | v]", "each head")
LAYER = True


def a(params, x, heads=2):
    query, key, value = (parts.heads(y, heads) for y in np.split(x @ params["qkv_kernel"] + params["qkv_bias"], 3, -1))
    return parts.attend(query, key, value) @ params["out_kernel"] + params["out_bias"]


def b(params, x, heads=2):
    y = x @ params["qkv_kernel"] + params["qkv_bias"]
    query, key, value = np.split(parts.heads(y, heads), 3, -1)
    return parts.attend(query, key, value) @ params["out_kernel"] + params["out_bias"]
