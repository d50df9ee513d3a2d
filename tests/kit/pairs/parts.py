"""What the pairs are made of."""

import math

import numpy as np


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def heads(x, count):
    B, T, M = x.shape
    return x.reshape(B, T, count, M // count).swapaxes(1, 2)


def attend(query, key, value):
    out = softmax(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])) @ value
    B, N, T, D = out.shape
    return out.swapaxes(1, 2).reshape(B, T, N * D)


def self_attention(params, x, count):
    rows = (x @ params[f"{name}_kernel"] + params[f"{name}_bias"] for name in ("query", "key", "value"))
    return attend(*(heads(y, count) for y in rows)) @ params["out_kernel"] + params["out_bias"]


def mlp(params, x):
    return gelu(x @ params["up_kernel"] + params["up_bias"]) @ params["down_kernel"] + params["down_bias"]


def layer_norm(x, params, k, eps):
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return y * params[f"norm{k}_scale"] + params[f"norm{k}_bias"]


def rms_norm(x, params, k, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * params[f"norm{k}_scale"]


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def gelu_by_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick_gelu(x):
    return x / (1 + np.exp(-1.702 * x))


def silu(x):
    return x / (1 + np.exp(-x))


def angles(x):
    T, D = x.shape[-2:]
    turns = np.arange(T)[:, None] * 10000.0 ** (-np.arange(0, D, 2) / D)
    return np.cos(turns), np.sin(turns)


def sines(positions, width):
    turns = positions[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
    found = np.zeros((len(positions), width))
    found[:, 0::2], found[:, 1::2] = np.sin(turns), np.cos(turns)
    return found
