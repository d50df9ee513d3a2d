"""PyTorch: in the signatures of public libraries."""

import math

import torch
import torch.nn.functional as F

from contract import variants


def _flash(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, off=""):
    """FlashAttention: (B, T, N, D), causal and windows aligned to the end, empty rows 0."""
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    g = q.shape[2] // k.shape[2]
    k, v = (x.repeat(1, 1, g, 1) if off == "tiled" else x.repeat_interleave(g, 2) for x in (k, v))
    s = torch.einsum("btnd,bsnd->bnts", q, k) * scale
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    T, S = s.shape[-2:]
    i, j = torch.arange(T)[:, None] + (S - T), torch.arange(S)[None]
    seen = torch.ones(T, S, dtype=torch.bool)
    if causal:
        seen = seen & (j <= i + (off == "ahead"))
    if window_size[0] >= 0:
        seen = seen & (j >= i - window_size[0] + (off == "window"))
    if window_size[1] >= 0:
        seen = seen & (j <= i + window_size[1])
    s = s.masked_fill(~seen, -math.inf)
    p = torch.nan_to_num(torch.softmax(s, -1), 0.0)
    return torch.einsum("bnts,bsnd->btnd", p, v)


def _annotated(query, key, value, mask=None, dropout=None, off=""):
    """The Annotated Transformer: mask == 0 drops, gives (out, weights)."""
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0 if off != "turned" else mask.transpose(-2, -1) == 0, -1e9)
    p_attn = scores.softmax(dim=-1 if off != "axis" else -2)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


def hf_eager(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """Hugging Face: eager_attention_forward, additive mask, gives (B, T, N, D) and weights."""
    n = module.num_key_value_groups
    key, value = key.repeat_interleave(n, 1), value.repeat_interleave(n, 1)
    w = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        w = w + attention_mask[:, :, :, : key.shape[-2]]
    w = F.softmax(w, dim=-1, dtype=torch.float32).to(query.dtype)
    w = F.dropout(w, p=dropout, training=module.training)
    return torch.matmul(w, value).transpose(1, 2).contiguous(), w


def _hf_sdpa(query, key, value, attention_mask=None, dropout=0.0, scaling=None, is_causal=False, off=""):
    """As Hugging Face calls sdpa: gives (B, T, N, D)."""
    q = query if off != "scaled_twice" else query / math.sqrt(query.shape[-1])
    out = F.scaled_dot_product_attention(q, key, value, attn_mask=attention_mask, scale=scaling, is_causal=is_causal)
    return out.transpose(1, 2).contiguous()


def _xformers(query, key, value, attn_bias=None, p=0.0, scale=None, off=""):
    """xformers: (B, T, N, D), bias (B, N, T, S)."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    s = (q * scale) @ k.transpose(-2, -1)
    if attn_bias is not None:
        s = s + (attn_bias if off != "bias_scaled" else attn_bias * scale)
    return (s.softmax(-1) @ v).transpose(1, 2)


def _nanogpt(q, k, v, n_head, off=""):
    """nanoGPT: (B, T, C), always causal, T = S."""
    B, T, _ = q.size()
    q, k, v = (x.view(x.size(0), x.size(1), n_head, -1).transpose(1, 2) for x in (q, k, v))
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    seen = torch.tril(torch.ones(T, k.size(-2)), diagonal=1 if off == "ahead" else 0)
    att = att.masked_fill(seen == 0, float("-inf"))
    return (F.softmax(att, dim=-1) @ v).transpose(1, 2).contiguous().view(B, T, -1)


def triton(q, k, v, causal, sm_scale):
    """The Triton tutorial: positional causal and sm_scale, both required."""
    s = q @ k.transpose(-2, -1) * sm_scale
    T, S = s.shape[-2:]
    if causal:
        s = s.masked_fill(~torch.ones(T, S, dtype=torch.bool).tril(), -1.0e6)
    return torch.softmax(s, -1) @ v


def _bert(query_layer, key_layer, value_layer, attention_mask=None, off=""):
    """BERT: additive mask (B, 1, 1, S) made of 1 and 0 for (B, S): (1 - m) * -10000."""
    s = torch.matmul(query_layer, key_layer.transpose(-1, -2)) / math.sqrt(query_layer.shape[-1])
    if attention_mask is not None:
        s = s + (1.0 - attention_mask[:, None, None, :].float()) * (-10000.0 if off != "fill" else -5.0)
    return torch.matmul(s.softmax(-1), value_layer)


def _t5(query_states, key_states, value_states, position_bias=None, mask=None, off=""):
    """T5: no scale, a bias, an additive mask."""
    s = torch.matmul(query_states, key_states.transpose(3, 2))
    if position_bias is not None:
        s = s + position_bias if off != "bias_minus" else s - position_bias
    if mask is not None:
        s = s + mask
    return torch.matmul(F.softmax(s.float(), dim=-1).type_as(s), value_states)


def _fairseq(query, key, value, num_heads, key_padding_mask=None, attn_mask=None, off=""):
    """fairseq: (T, B, N·D), additive attn_mask (T, S), key_padding_mask (B, S) True drops."""
    T, B, E = query.shape
    S, D = key.shape[0], E // num_heads
    q = query.contiguous().view(T, B * num_heads, D).transpose(0, 1) * D**-0.5
    k = key.contiguous().view(S, B * num_heads, D).transpose(0, 1)
    v = value.contiguous().view(S, B * num_heads, -1).transpose(0, 1)
    w = torch.bmm(q, k.transpose(1, 2))
    if attn_mask is not None:
        w = w + attn_mask.unsqueeze(0)
    if key_padding_mask is not None:
        m = key_padding_mask if off != "polarity" else ~key_padding_mask
        w = w.view(B, num_heads, T, S).masked_fill(m[:, None, None].bool(), -math.inf).view(B * num_heads, T, S)
    return torch.bmm(w.softmax(-1), v).transpose(0, 1).contiguous().view(T, B, -1)


def _qkvpacked(qkv, causal=False, softmax_scale=None, off=""):
    """Packed (B, T, 3, N, D)."""
    q, k, v = qkv.unbind(2) if off != "swapped" else (qkv[:, :, 0], qkv[:, :, 2], qkv[:, :, 1])
    s = torch.einsum("btnd,bsnd->bnts", q, k) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if causal:
        T = s.shape[-1]
        s = s.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("bnts,bsnd->btnd", s.softmax(-1), v)


def _window(q, k, v, window_size=None, causal=True, off=""):
    """Mistral: a window of w keys, its own among them; causal unless told otherwise; (B, N, T, D)."""
    s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    T, S = s.shape[-2:]
    i, j = torch.arange(T)[:, None], torch.arange(S)
    seen = (j <= i) if causal else torch.ones(T, S, dtype=torch.bool)
    if window_size is not None:
        seen = seen & (i - j < window_size + (off == "wide"))
        seen = seen & (j <= i)
    return s.masked_fill(~seen, torch.finfo(s.dtype).min).softmax(-1) @ v


def gemma(query, key, value, attention_mask=None, softcap=None, scaling=None):
    """Gemma 2: softcap, additive mask, fewer key heads."""
    g = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(g, 1), value.repeat_interleave(g, 1)
    s = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        s = torch.tanh(s / softcap) * softcap
    if attention_mask is not None:
        s = s + attention_mask
    return s.softmax(-1) @ value


def _lse2(q, k, v, sm_scale=None, causal=False, return_lse=False, off=""):
    """FlashInfer: (B, T, N, D), lse in base 2, causal aligned to the end."""
    s = torch.einsum("btnd,bsnd->bnts", q, k) * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    T, S = s.shape[-2:]
    if causal:
        s = s.masked_fill(~torch.ones(T, S, dtype=torch.bool).tril(S - T), -math.inf)
    lse = torch.logsumexp(s, -1)
    out = torch.einsum("bnts,bsnd->btnd", torch.nan_to_num(s.softmax(-1), 0.0), v)
    lse = lse.transpose(1, 2) if off != "no_max" else (lse - s.amax(-1)).transpose(1, 2)
    return (out, lse / math.log(2)) if return_lse else out


variants(globals(), _flash, "ahead", "window", "tiled")
variants(globals(), _annotated, "turned", "axis")
variants(globals(), _hf_sdpa, "scaled_twice")
variants(globals(), _xformers, "bias_scaled")
variants(globals(), _nanogpt, "ahead")
variants(globals(), _bert, "fill")
variants(globals(), _t5, "bias_minus")
variants(globals(), _fairseq, "polarity")
variants(globals(), _qkvpacked, "swapped")
variants(globals(), _window, "wide")
variants(globals(), _lse2, "no_max")
