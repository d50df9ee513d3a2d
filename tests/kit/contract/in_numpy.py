"""NumPy: from lecture notes, tutorials and libraries."""

import numpy as np

from contract import variants


def _soft(x, axis=-1):
    x = x - x.max(axis, keepdims=True)
    e = np.exp(x)
    return e / e.sum(axis, keepdims=True)


def _flat(Q, K, V, off=""):
    """Two-dimensional, as in lecture notes."""
    s = Q @ K.T / np.sqrt(Q.shape[-1] if off != "noroot" else Q.shape[-1] ** 2)
    return _soft(s, 0 if off == "axis" else -1) @ V


def _flatmask(Q, K, V, mask=None, off=""):
    """Two-dimensional, mask True = allowed."""
    s = Q @ K.T / np.sqrt(Q.shape[-1])
    if mask is not None:
        s = np.where(mask if off != "inverted_twice" else np.roll(mask, 1, -1), s, -1e9)
    return _soft(s) @ V


def _timefirst(query, key, value, attn_mask=None, off=""):
    """(T, B, N, D), additive mask (T, S), as fairseq."""
    s = query.transpose(1, 2, 0, 3) @ key.transpose(1, 2, 3, 0) / np.sqrt(query.shape[-1])
    if attn_mask is not None:
        s = s + (attn_mask if off != "half" else attn_mask / 2)
    return (_soft(s) @ value.transpose(1, 2, 0, 3)).transpose(2, 0, 1, 3)


def _btnd(q, k, v, causal=False, scale=None, off=""):
    """(B, T, N, D), the most common layout."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    s = q.swapaxes(1, 2) @ k.transpose(0, 2, 3, 1) * (scale if off != "squared" else scale**2)
    T, S = s.shape[-2:]
    if causal:
        s = np.where(np.tri(T, S, 1 if off == "ahead" else 0, dtype=bool), s, -np.inf)
    return (_soft(s) @ v.swapaxes(1, 2)).swapaxes(1, 2)


def _heads_merged(q, k, v, num_heads, mask=None, off=""):
    """(B, T, N·D) with num_heads, which is required."""
    B, T, E = q.shape

    def split(x):
        return x.reshape(x.shape[0], x.shape[1], num_heads, -1).transpose(0, 2, 1, 3)

    q, k, v = split(q), split(k), split(v)
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1] if off != "scale_by_model" else E)
    if mask is not None:
        s = np.where(mask, s, -1e30)
    return (_soft(s) @ v).transpose(0, 2, 1, 3).reshape(B, T, -1)


def _padded(query, key, value, key_padding_mask=None, off=""):
    """(B, N, T, D); True is padding."""
    s = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if key_padding_mask is not None:
        m = key_padding_mask[:, None, None, :] if off != "first" else key_padding_mask[:1, None, None, :]
        s = np.where(m, -1e9, s)
    return _soft(s) @ value


def _onnx(Q, K, V, attn_mask=None, is_causal=0, scale=None, softcap=0.0, off=""):
    """(B, N, T, D), names of the operator of ONNX; fewer key heads; gives a tuple."""
    g = Q.shape[1] // K.shape[1]
    K, V = np.repeat(K, g, 1), np.repeat(V, g, 1)
    s = Q @ K.swapaxes(-1, -2) * (Q.shape[-1] ** -0.5 if scale is None else scale)

    def cap(x):
        return softcap * np.tanh(x / softcap) if softcap else x

    s = s if off == "softcap_order" else cap(s)
    T, S = s.shape[-2:]
    if is_causal:
        s = np.where(np.tri(T, S, dtype=bool), s, -np.inf)
    if attn_mask is not None:
        s = s + (np.where(attn_mask, 0, -np.inf) if attn_mask.dtype == bool else attn_mask)
    s = cap(s) if off == "softcap_order" else s
    with np.errstate(invalid="ignore"):
        m = s.max(-1, keepdims=True)
        e = np.exp(s - np.where(np.isfinite(m), m, 0))
        z = e.sum(-1, keepdims=True)
        p = e / np.where(z == 0, 1, z)
    return p @ V, p


def _onehead(q, k, v, mask=None, off=""):
    """(B, T, D); mask (B, T, S), 0 drops."""
    s = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    if mask is not None:
        turned = off == "turned" and mask.shape[-1] == mask.shape[-2]
        s = np.where((mask.swapaxes(-1, -2) if turned else mask) == 0, -1e9, s)
    return _soft(s) @ v


def mystery(q, k, v, causal=False, slope=0.0):
    """(B, T, N, D) with an option nobody documents: a linear bias."""
    s = q.swapaxes(1, 2) @ k.transpose(0, 2, 3, 1) * q.shape[-1] ** -0.5
    T, S = s.shape[-2:]
    s = s - slope * np.abs(np.arange(T)[:, None] - np.arange(S))
    if causal:
        s = np.where(np.tri(T, S, dtype=bool), s, -np.inf)
    return (_soft(s) @ v.swapaxes(1, 2)).swapaxes(1, 2)


def _tensorflow(q, k, v, mask, off=""):
    """TensorFlow tutorial: mask is required, 1 drops."""
    s = q @ k.swapaxes(-2, -1) / np.sqrt(np.float32(k.shape[-1]))
    if mask is not None:
        s = s + mask * np.float32(-1e9 if off != "small" else -2)
    w = _soft(s)
    return w @ v, w


def _llama(xq, xk, xv, mask, off=""):
    """Llama: (B, T, N, D), an additive mask (T, S) or None, fewer key heads."""
    n = xq.shape[2] // xk.shape[2]
    xk, xv = (np.repeat(x, n, 2) if off != "tile" else np.tile(x, (1, 1, n, 1)) for x in (xk, xv))
    q, k, v = (x.swapaxes(1, 2) for x in (xq, xk, xv))
    s = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    return (_soft(s if mask is None else s + mask) @ v).swapaxes(1, 2)


def _megatron(query_layer, key_layer, value_layer, attention_mask=None, off=""):
    """Megatron: (T, B, N, D), True drops, (B, 1, T, S); gives (T, B, N·D)."""
    q, k, v = (x.transpose(1, 2, 0, 3) for x in (query_layer, key_layer, value_layer))
    s = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    if attention_mask is not None:
        s = np.where(attention_mask, np.float32(-10000.0 if off != "zero" else 0.0), s)
    c = (_soft(s) @ v).transpose(2, 0, 1, 3)
    return c.reshape(c.shape[0], c.shape[1], -1)


def _vllm(q, k, v, scale, causal=True, alibi_slopes=None, off=""):
    """Tokens, heads, width: one sequence; the scale is required; slopes of ALiBi of each head."""
    s = np.einsum("tnd,snd->nts", q, k) * scale
    T, S = s.shape[-2:]
    if alibi_slopes is not None:
        s = s + alibi_slopes[:, None, None] * (np.arange(S) - np.arange(T)[:, None])
    if causal:
        s = np.where(np.tri(T, S, S - T - (off == "strict"), dtype=bool), s, np.float32(-1e30))
    return np.einsum("nts,snd->tnd", _soft(s), v)


def kvpacked(q, kv, causal=False):
    """FlashAttention's kvpacked: (B, S, 2, N, D); causal aligned to the end."""
    k, v = kv[:, :, 0], kv[:, :, 1]
    s = q.swapaxes(1, 2) @ k.transpose(0, 2, 3, 1) / np.sqrt(q.shape[-1])
    T, S = s.shape[-2:]
    if causal:
        s = np.where(np.tri(T, S, S - T, dtype=bool), s, np.float32(-1e30))
    return (_soft(s) @ v.swapaxes(1, 2)).swapaxes(1, 2)


def temper(q, k, v, temperature, mask=None):
    """jadore801120: a temperature that divides, required; gives (out, attn)."""
    s = (q / temperature) @ k.swapaxes(2, 3)
    if mask is not None:
        s = np.where(mask == 0, np.float32(-1e9), s)
    a = _soft(s)
    return a @ v, a


def _local(query, key, value, attention_window=None, is_causal=False, off=""):
    """Longformer: half of the window on each side; (B, N, T, D)."""
    s = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    T, S = s.shape[-2:]
    d = np.arange(S) - np.arange(T)[:, None]
    seen = np.ones((T, S), bool)
    if attention_window is not None:
        seen &= abs(d) <= attention_window // 2 - (off == "less")
    if is_causal:
        seen &= d <= 0
    return _soft(np.where(seen, s, np.float32(-1e30))) @ value


variants(globals(), _flat, "noroot", "axis")
variants(globals(), _flatmask, "inverted_twice")
variants(globals(), _timefirst, "half")
variants(globals(), _btnd, "ahead", "squared")
variants(globals(), _heads_merged, "scale_by_model")
variants(globals(), _padded, "first")
variants(globals(), _onnx, "softcap_order")
variants(globals(), _onehead, "turned")
variants(globals(), _tensorflow, "small")
variants(globals(), _llama, "tile")
variants(globals(), _megatron, "zero")
variants(globals(), _vllm, "strict")
variants(globals(), _local, "less")
