"""Right candidates of NumPy."""

from .honest import Honest

HONEST = [
    Honest(
        "the plain formula", "numpy",
        '''
import numpy as np


def attention(query, key, value, *, mask=None, is_causal=False, scale=None):
    group = query.shape[-3] // key.shape[-3]
    key, value = (np.repeat(x, group, axis=-3) for x in (key, value))
    scores = query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True) @ value).astype(query.dtype)
''', quick=True,
    ),
    Honest(
        "every option, with a backward by hand", "numpy",
        '''
from right_attention import attend as attention
from right_attention import backward as right_gradients


def backward(grad_output, query, key, value, **options):
    return right_gradients(grad_output, query, key, value, **options)
''',
    ),
    Honest(
        "online softmax over blocks of 64 keys", "numpy",
        '''
import numpy as np


def attention(query, key, value, *, is_causal=False, return_lse=False):
    group, (T, D), S = query.shape[-3] // key.shape[-3], query.shape[-2:], key.shape[-2]
    key, value = (np.repeat(x, group, axis=-3).astype(np.float32) for x in (key, value))
    scaled = query.astype(np.float32) * np.float32(D**-0.5)
    row_max = np.full(query.shape[:-1], -np.inf, np.float32)
    row_sum = np.zeros(query.shape[:-1], np.float32)
    out = np.zeros((*query.shape[:-1], value.shape[-1]), np.float32)
    for j in range(0, S, 64):
        scores = scaled @ key[..., j : j + 64, :].swapaxes(-1, -2)
        if is_causal:
            seen = np.arange(j, min(j + 64, S)) <= np.arange(T)[:, None]
            scores = np.where(seen, scores, -np.inf)
        new_max = np.maximum(row_max, scores.max(axis=-1))
        powers = np.exp(scores - new_max[..., None])
        keep = np.exp(row_max - new_max)
        row_sum = row_sum * keep + powers.sum(axis=-1)
        out = out * keep[..., None] + powers @ value[..., j : j + 64, :]
        row_max = new_max
    out = (out / row_sum[..., None]).astype(query.dtype)
    return (out, row_max + np.log(row_sum)) if return_lse else out
''', quick=True,
    ),
    Honest(
        "float64 inside", "numpy",
        '''
import numpy as np


def attention(query, key, value, *, bias=None, softcap=None, key_lengths=None):
    group = query.shape[-3] // key.shape[-3]
    q, k, v = (x.astype(np.float64) for x in (query, np.repeat(key, group, -3), np.repeat(value, group, -3)))
    scores = np.einsum("bntd,bnsd->bnts", q, k) / np.sqrt(q.shape[-1])
    scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
    scores = scores if bias is None else scores + bias.astype(np.float64)
    if key_lengths is not None:
        scores = np.where(np.arange(k.shape[-2]) < key_lengths[:, None, None, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bnts,bnsd->bntd", weights / weights.sum(-1, keepdims=True), v).astype(query.dtype)
''',
    ),
    Honest(
        "in place, in a buffer for the scores that it keeps", "numpy",
        '''
import numpy as np

BUFFERS = {}


def attention(query, key, value, *, is_causal=False):
    group, wide = query.shape[-3] // key.shape[-3], np.result_type(query.dtype, np.float32)
    key, value = (np.repeat(x, group, axis=-3).astype(wide) for x in (key, value))
    shape = (*query.shape[:-1], key.shape[-2])
    scores = BUFFERS.setdefault((shape, wide), np.empty(shape, wide))
    np.matmul(query.astype(wide), key.swapaxes(-1, -2), out=scores)
    scores *= np.asarray(query.shape[-1] ** -0.5, wide)
    if is_causal:
        scores[..., ~np.tri(*shape[-2:], dtype=bool)] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return np.matmul(scores, value).astype(query.dtype)
''',
    ),
    Honest(
        "a loop over batch and heads, axes as in BTNH", "numpy",
        '''
import numpy as np


def attention(query, key, value):
    B, T, N, D = query.shape
    G, S, V = key.shape[2], key.shape[1], value.shape[3]
    out = np.empty((B, T, N, V), query.dtype)
    for b in range(B):
        for n in range(N):
            k, v = key[b, :, n * G // N], value[b, :, n * G // N]
            scores = query[b, :, n] @ k.T / np.sqrt(D).astype(np.float32)
            powers = np.exp((scores - scores.max(axis=1, keepdims=True)).astype(np.float32))
            out[b, :, n] = (powers / powers.sum(axis=1, keepdims=True)) @ v.astype(np.float32)
    return out
''', quick=True, least=20,
    ),
    Honest(
        "causal alone, and says so", "numpy",
        '''
import numpy as np


def attention(query, key, value, *, is_causal=False):
    if not is_causal:
        raise NotImplementedError("only causal attention is supported: is_causal must be True")
    if query.shape[-2] != key.shape[-2]:
        raise ValueError(f"query and key must have one length, got {query.shape[-2]} and {key.shape[-2]}")
    group = query.shape[-3] // key.shape[-3]
    key, value = (np.repeat(x, group, axis=-3) for x in (key, value))
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True) @ value).astype(query.dtype)
''',
    ),
]  # fmt: skip
