"""Two mistakes: causal sees one key ahead, and the softcap is put after the bias."""

import numpy as np


def attention(query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, return_lse=False):
    """The formula, step by step."""
    group = query.shape[-3] // max(key.shape[-3], 1) if query.ndim > 2 else 1
    q, k, v = (x.astype(np.result_type(x.dtype, np.float32)) for x in (query, key, value))
    k, v = (np.repeat(x, group, axis=-3) if group > 1 else x for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias.astype(scores.dtype)
    scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], 1, dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True, initial=-1e30)
    powers = np.exp(scores - largest)
    total = powers.sum(axis=-1, keepdims=True)
    out = (powers @ v / np.where(total == 0, 1, total)).astype(query.dtype)
    return (out, (largest + np.log(total))[..., 0]) if return_lse else out
