"""Functions as a user writes them: `right`, causal aligned to the end of the keys, and others that are off or odd."""

import time

import numpy as np


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v, causal=False, off=0):
    s = np.einsum("btnd,bsnd->bnts", q, k) * q.shape[-1] ** -0.5
    T, S = s.shape[-2:]
    s = np.where(np.tri(T, S, S - T + off), s, -np.inf) if causal else s
    return np.einsum("bnts,bsnd->btnd", softmax(s), v)


def right(q, k, v, causal=False):
    return attention(q, k, v, causal)


def ahead(q, k, v, causal=False):
    return attention(q, k, v, causal, 1)


def shifted(q, k, v, causal=False):
    return attention(q, k, v, causal) + 0.01 * v[:, :1, :1, :1]


def unscaled(q, k, v):
    return attention(q * q.shape[-1] ** 0.5, k, v)


def blocks(q, k, v, block_size=64, eps=1e-6):
    return attention(q, k, v)


def slopes(q, k, v, slope=0.0):
    return attention(q, k, v * (1 + slope))


def squared(q, k, v):
    s = np.einsum("btnd,bsnd->bnts", q, k) * q.shape[-1] ** -0.5
    return np.einsum("bnts,bsnd->btnd", softmax(s) ** 2, v)


def causal_by_a_number(query, key, value, attention_mask=None):
    s = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    T, S = s.shape[-2:]
    if T > S:
        raise ValueError("no more queries than keys")
    s = np.where(np.tri(T, S, S - T, dtype=bool), s, np.finfo(np.float32).min)
    return softmax(s if attention_mask is None else s + attention_mask) @ value


def nothing(q, k, v):
    return None


def merged(q, k, v, num_heads, needs_weights=False):
    q, k, v = (x.reshape(*x.shape[:2], num_heads, -1) for x in (q, k, v))
    out = attention(q, k, v)
    return out.reshape(*out.shape[:2], -1), (out if needs_weights else None), None


def drops(q, k, v):
    out = attention(q, k, v)
    return out * (np.random.default_rng().random(out.shape) < 0.9)


class Layer:
    def __init__(self, width):
        self.width = width

    def attend(self, q, k, v):
        return attention(q, k, v)


def waits(q, k, v):
    time.sleep(1e6)


def by_hand(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5) @ value


def backward(grad_output, query, key, value, times=1):
    scale = query.shape[-1] ** -0.5
    p = softmax(query @ key.swapaxes(-1, -2) * scale)
    dp = grad_output @ value.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale * times
    return ds @ key, ds.swapaxes(-1, -2) @ query, p.swapaxes(-1, -2) @ grad_output


def wrong(query, key, value):
    return by_hand(query, key, value)


by_hand.backward = backward
wrong.backward = lambda *arrays: backward(*arrays, times=2)
