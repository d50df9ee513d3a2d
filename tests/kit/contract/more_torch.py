"""More functions of PyTorch: masks that hide queries, heads mixed by a reshape, dropout that is on, methods."""

import itertools
import math

import torch


def hides_queries(q, k, v, key_padding_mask=None):
    """The padding (B, S) is laid over queries."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    if key_padding_mask is not None:
        s = s.masked_fill(key_padding_mask[:, None, :, None], -1e9)
    return s.softmax(-1) @ v


def mixed_keys(q, k, v, mask=None):
    """(B, T, N, D), but keys are reshaped where they should be transposed."""
    B, _, N, D = q.shape
    s = q.transpose(1, 2) @ k.reshape(B, N, -1, D).mT * D**-0.5
    if mask is not None:
        s = s.masked_fill(~mask, -math.inf)
    return (s.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2)


def heads_joined(q, k, v):
    """(B, T, N, D), but the result is reshaped where it should be transposed."""
    out = (q.transpose(1, 2) @ k.transpose(1, 2).mT * q.shape[-1] ** -0.5).softmax(-1) @ v.transpose(1, 2)
    return out.reshape(q.shape[:-1] + v.shape[-1:])


def neo(query, key, value, attention_mask=None):
    """GPT-Neo: causal to the end of at least as many keys; a mask (B, S) is added."""
    s = query @ key.mT * query.shape[-1] ** -0.5
    T, S = s.shape[-2:]
    s = torch.where(torch.ones(S, S, dtype=torch.bool).tril()[S - T : S], s, torch.finfo(s.dtype).min)
    if attention_mask is not None:
        s = s + attention_mask[:, None, None]
    return s.softmax(-1) @ value, s


def neox(query, key, value, attention_mask=None):
    """GPT-NeoX: later keys are hidden by a finite number, those of a mask by -inf."""
    s = query @ key.mT * query.shape[-1] ** -0.5
    s = torch.where(
        torch.ones(s.shape[-2:], dtype=torch.bool).tril(s.shape[-1] - s.shape[-2]), s, torch.finfo(s.dtype).min
    )
    return (s if attention_mask is None else s + attention_mask).softmax(-1) @ value


def drops(q, k, v, mask=None, dropout=0.1, training=True):
    """Dropout is on unless told otherwise."""
    s = q @ k.mT / math.sqrt(q.shape[-1])
    s = s if mask is None else s.masked_fill(mask == 0, -1e9)
    weights = torch.nn.functional.dropout(s.softmax(-1), dropout, training)
    return weights @ v, weights


def window_past(query, key, value, is_causal=True, sliding_window=None):
    """The window has what comes before it."""
    s = query @ key.mT * query.shape[-1] ** -0.5
    i, j = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])
    seen = (j <= i) | (not is_causal)
    seen = seen if sliding_window is None else seen & (j <= i - sliding_window)
    return s.masked_fill(~seen, torch.finfo(s.dtype).min).softmax(-1) @ value


def drops_unscaled(q, k, v, mask=None, dropout_p=0.0):
    """What dropout keeps is not larger."""
    s = q @ k.mT / math.sqrt(q.shape[-1])
    weights = (s if mask is None else s.masked_fill(~mask, -math.inf)).softmax(-1)
    return weights * (torch.rand_like(weights) >= dropout_p) @ v


def two_masks(query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None):
    """A mask of keys beside another, as torch.nn.MultiheadAttention has them."""
    s = query @ key.mT / query.shape[-1] ** 0.5
    s = s if attn_mask is None else s.masked_fill(attn_mask, -math.inf)
    s = s if key_padding_mask is None else s.masked_fill(key_padding_mask[:, None, None], -math.inf)
    weights = s.softmax(-1)
    return weights @ value, weights.mean(1) if need_weights else None


def diagonal_moved(q, k, v, causal=False):
    """Its diagonal is moved by queries less keys."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    T, S = s.shape[-2:]
    s = s.masked_fill(torch.ones(T, S, dtype=torch.bool).triu(T - S + 1), torch.finfo(s.dtype).min) if causal else s
    return s.softmax(-1) @ v


def halves_inside(q, k, v, attn_mask=None):
    """It computes in float16, whatever it is given."""
    s = q.half() @ k.half().mT * q.shape[-1] ** -0.5
    return (s if attn_mask is None else s.masked_fill(~attn_mask, -math.inf)).softmax(-1).to(v.dtype) @ v


def drops_by_rate(q, k, v, dropout_p=0.0):
    """What dropout keeps is divided by the rate."""
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return weights * (torch.rand_like(weights) >= dropout_p) / (dropout_p or 1) @ v


def drops_scores(q, k, v, dropout_p=0.0):
    """Dropout is before the softmax."""
    return torch.nn.functional.dropout(q @ k.mT / math.sqrt(q.shape[-1]), dropout_p).softmax(-1) @ v


def drops_results(q, k, v, dropout_p=0.0):
    """Dropout is of the result."""
    return torch.nn.functional.dropout((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v, dropout_p)


def tokens_hidden(query, key, value, attention_mask=None, head_mask=None):
    """BERT, but a number is added to all scores of the queries (B, T) that are padding, which changes nothing."""
    s = query @ key.mT * query.shape[-1] ** -0.5
    if attention_mask is not None:
        s = s - 1e4 * (1 - attention_mask[:, None, :, None].to(s.dtype))
    p = s.softmax(-1)
    return (p if head_mask is None else p * head_mask) @ value


def drops_always(q, k, v, dropout_p=0.0, training=False):
    """Whether it trains is not read."""
    return torch.nn.functional.dropout((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1), dropout_p) @ v


def scale_or(q, k, v, softmax_scale=None):
    """A scale of 0 counts as not given."""
    return (q @ k.mT * (softmax_scale or q.shape[-1] ** -0.5)).softmax(-1) @ v


def sides_literal(q, k, v, window_size=(-1, -1)):
    """Of a window both sides have to be -1, or that is a number."""
    T, S = q.shape[-2], k.shape[-2]
    far, (left, right) = torch.arange(S) - torch.arange(T)[:, None] - S + T, window_size
    seen = (far >= -left) & (far <= right) | (left == right == -1)
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, torch.finfo(q.dtype).min).softmax(-1) @ v


def nearer_end(q, k, v, sliding_window=None, causal=True):
    """Mistral: positions end where the keys end, or begin where they begin if there are more queries."""
    T, S = q.shape[-2], k.shape[-2]
    far = torch.arange(T)[:, None] + max(S - T, 0) - torch.arange(S)
    seen = (far >= 0 if causal else far == far) & (far < sliding_window if sliding_window is not None else far == far)
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, torch.finfo(q.dtype).min).softmax(-1) @ v


def packed_lists(query, key, value, q_seqlen=None, kv_seqlen=None):
    """Texts one after the other (1, tokens, N, D), by lists of their lengths."""
    lengths = zip(q_seqlen, kv_seqlen, strict=True) if q_seqlen is not None else [(query.shape[1], key.shape[1])]
    outs, a, b = [], 0, 0
    for m, n in lengths:
        q, k, v = (x.transpose(1, 2) for x in (query[:, a : a + m], key[:, b : b + n], value[:, b : b + n]))
        outs.append(((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v).transpose(1, 2))
        a, b = a + m, b + n
    return torch.cat(outs, 1)


def given_width(q, k, v, d_k, mask=None, dropout=None):
    """The width of a head is required; a mask (B, T, S) is for all heads."""
    s = q @ k.mT / math.sqrt(d_k)
    p = (s if mask is None else s.masked_fill(mask[:, None] == 0, -1e9)).softmax(-1)
    return (p if dropout is None else dropout(p)) @ v


def dropout_required(query, key, value, mask, dropout):
    """A module for dropout is required, and may be None; gives (out, weights)."""
    s = query @ key.mT / math.sqrt(query.shape[-1])
    p = (s if mask is None else s.masked_fill_(mask == 0, -1e9)).softmax(-1)
    p = p if dropout is None else dropout(p)
    return p @ value, p


def weights_first(query, keys, values, mask=None):
    """Gives (weights, out)."""
    s = query @ keys.mT / math.sqrt(query.shape[-1])
    p = (s if mask is None else s.masked_fill(~mask, -1e9)).softmax(-1)
    return p, p @ values


def real_tokens_left(q, k, v, key_padding_mask=None, causal=False, window_size=(-1, -1)):
    """The attention_ref of FlashAttention: causal and windows end at the last real key of a text (B, T, N, D)."""
    s = torch.einsum("btnd,bsnd->bnts", q, k) / math.sqrt(q.shape[-1])
    T, S = s.shape[-2:]
    end = S if key_padding_mask is None else key_padding_mask.sum(-1)[:, None, None, None]
    far, (left, right) = torch.arange(S) - torch.arange(T)[:, None] - end + T, window_size
    seen = torch.ones_like(s, dtype=torch.bool) if key_padding_mask is None else key_padding_mask[:, None, None]
    seen = (
        seen
        & (far <= (0 if causal else right if right >= 0 else 2 * (S + T)))
        & (far >= -(left if left >= 0 else 2 * (S + T)))
    )
    p = s.masked_fill(~seen, -math.inf).softmax(-1).masked_fill(~seen.any(-1, keepdim=True), 0.0)
    return torch.einsum("bnts,bsnd->btnd", p, v)


def repeats_tiled(xq, xk, xv, n_rep=1, mask=None):
    """LLaMA, but the heads of keys are tiled; how often has a default."""
    q, k, v = (x.transpose(1, 2) for x in (xq, xk.repeat(1, 1, n_rep, 1), xv.repeat(1, 1, n_rep, 1)))
    s = q @ k.mT / math.sqrt(q.shape[-1])
    return ((s if mask is None else s + mask).softmax(-1) @ v).transpose(1, 2)


def of_two_texts(x, context, wq, wk, wv, heads, mask=None):
    """Queries are made of x, keys and values of the context; a linear layer has its weights as (N·D, C)."""
    arrays = ((x, wq), (context, wk), (context, wv))
    q, k, v = ((a @ w.T).unflatten(-1, (heads, -1)).transpose(1, 2) for a, w in arrays)
    s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    s = s if mask is None else s.masked_fill(~mask[:, None, None], float("-inf"))
    return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)


def of_two_texts_heads(x, context, wq, wk, wv, heads, mask=None):
    """Heads are split without a transpose."""
    q, k, v = ((a @ w.T).view(a.shape[0], heads, a.shape[1], -1) for a, w in ((x, wq), (context, wk), (context, wv)))
    s = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    s = s if mask is None else s.masked_fill(~mask[:, None, None], float("-inf"))
    return (s.softmax(-1) @ v).reshape(*x.shape[:2], -1)


def with_sinks(q, k, v, sinks, scaling=None):
    """Sinks are required: a score of each head that takes a share of the softmax."""
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    column = sinks.reshape(1, -1, 1, 1).expand(*s.shape[:-1], 1)
    return torch.cat([s, column], -1).softmax(-1)[..., :-1] @ v


def caps_by_default(q, k, v, logit_cap=10, mask=None):
    """The cap is on unless told otherwise, and comes before the mask."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    s = s if logit_cap is None else logit_cap * torch.tanh(s / logit_cap)
    return (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1) @ v


def hot(q, k, v, temperature=1.0, layout="bhsd"):
    """A temperature divides scores that are scaled; the layout is a word."""
    assert layout == "bhsd"
    return (q @ k.mT / math.sqrt(q.shape[-1]) / temperature).softmax(-1) @ v


def for_tests(q, k, v, query_padding_mask=None, dropout_p=0.0, dropout_mask=None, causal=False):
    """(B, T, N, D): a mask of queries, and one of the weights that dropout keeps."""
    s = torch.einsum("btnd,bsnd->bnts", q, k) / math.sqrt(q.shape[-1])
    T, S = s.shape[-2:]
    s = s.masked_fill(torch.ones(T, S, dtype=torch.bool).triu(S - T + 1), -math.inf) if causal else s
    p = s.softmax(-1).nan_to_num(0.0)
    p = p if dropout_mask is None else p.masked_fill(~dropout_mask, 0.0)
    out = torch.einsum("bnts,bsnd->btnd", p, v / (1 - dropout_p))
    return out if query_padding_mask is None else out.masked_fill(~query_padding_mask[:, :, None, None], 0.0)


def always_capped(query, key, value, attention_mask=None, scaling=None):
    """Gemma 2: the scores are capped at 50 before the mask."""
    s = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    s = 50.0 * torch.tanh(s / 50.0)
    return ((s if attention_mask is None else s + attention_mask).softmax(-1) @ value).transpose(1, 2)


def in_windows(qkv, window_size, num_heads, bias_table=None):
    """Swin: the sizes of a window are read by the table of relative positions alone."""
    q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if bias_table is not None:
        s = s + bias_table.reshape(-1)[torch.arange(s.shape[-1]) % window_size[0]]
    return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)


TRIANGLES = {}


def kept_mask(q, k, v, causal=False):
    """The triangle of the longest text so far is kept, and cut at its beginning: it is aligned to another end."""
    T, S = q.shape[2], k.shape[2]
    kept = TRIANGLES.get("")
    if kept is None or kept.shape[0] < T or kept.shape[1] < S:
        kept = TRIANGLES[""] = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    s = q @ k.mT / math.sqrt(q.shape[-1])
    return (s.masked_fill(~kept[:T, :S], -1e9) if causal else s).softmax(-1) @ v


def keys_transposed(query, key, value, attn_mask=None):
    """Keys (B, N, D, S), as a cache may keep them."""
    s = query @ key / math.sqrt(query.shape[-1])
    return (s if attn_mask is None else s + attn_mask).softmax(-1) @ value


def global_tokens(q, k, v, attention_mask=None, autoregressive=False):
    """Longformer: 0 is a local token, 1 a global one, -1 padding; a short text is one neighbourhood."""
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if attention_mask is not None:
        s = s.masked_fill((attention_mask < 0)[:, None, None], -math.inf)
    return s.softmax(-1) @ v


class Core(torch.nn.Module):
    """ChatGLM2, (T, B, N, D): without a mask it is causal if there are as many queries as keys. True drops."""

    def forward(self, query_layer, key_layer, value_layer, attention_mask=None):
        s = torch.einsum("tbnd,sbnd->bnts", query_layer, key_layer) / math.sqrt(query_layer.shape[-1])
        if attention_mask is None and s.shape[-2] == s.shape[-1]:
            attention_mask = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
        s = s if attention_mask is None else s.masked_fill(attention_mask, -math.inf)
        return torch.einsum("bnts,sbnd->tbnd", s.softmax(-1), value_layer).flatten(2)


core = Core()


def configured(config, query_layer, key_layer, value_layer, attention_mask=None, output_attentions=False):
    """BERT, (B, T, N·D): the number of heads is in a config."""
    n = config.num_attention_heads
    q, k, v = (x.unflatten(-1, (n, -1)).transpose(1, 2) for x in (query_layer, key_layer, value_layer))
    s = q @ k.mT / math.sqrt(config.hidden_size // n)
    if attention_mask is not None:
        s = s + (1.0 - attention_mask[:, None, None, :].to(s.dtype)) * torch.finfo(s.dtype).min
    p = s.softmax(-1)
    out = (p @ v).transpose(1, 2).reshape(*query_layer.shape[:2], config.hidden_size)
    return (out, p) if output_attentions else (out,)


def slopes_required(q, k, v, slopes, causal=True):
    """ALiBi, (B, T, N, D), with slopes that must be given."""
    s = torch.einsum("btnd,bsnd->bnts", q, k) / math.sqrt(q.shape[-1])
    T, S = s.shape[-2:]
    behind = torch.arange(T)[:, None] + S - T - torch.arange(S)
    s = s - behind.abs() * slopes.view(-1, 1, 1)
    s = s.masked_fill(behind < 0, -math.inf) if causal else s
    return torch.einsum("bnts,bsnd->btnd", s.softmax(-1), v)


def slopes_scaled(q, k, v, slopes):
    """ALiBi that is added before the scale."""
    s = torch.einsum("btnd,bsnd->bnts", q, k)
    T, S = s.shape[-2:]
    s = s - (torch.arange(T)[:, None] + S - T - torch.arange(S)).abs() * slopes.view(-1, 1, 1)
    return torch.einsum("bnts,bsnd->btnd", (s / math.sqrt(q.shape[-1])).softmax(-1), v)


def queries_padded(q, k, v, n_head, src_lens=None):
    """FastSpeech, (B, T, N·D): the mask of padding is on the axis of queries."""
    q, k, v = (x.unflatten(-1, (n_head, -1)).transpose(1, 2) for x in (q, k, v))
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if src_lens is not None:
        padding = torch.arange(s.shape[-1]) >= src_lens[:, None]
        s = s.masked_fill(padding[:, None, :, None].expand(-1, -1, -1, s.shape[-1]), -1e9)
    return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)


WINDOWS = {}


def window_kept(q, k, v, sliding_window=None):
    """Causal masks are kept by the lengths alone: the window of the first call with these lengths counts."""
    T, S = q.shape[2], k.shape[2]
    if (T, S) not in WINDOWS:
        behind = torch.arange(T)[:, None] + S - T - torch.arange(S)
        WINDOWS[T, S] = (behind >= 0) & ((behind < sliding_window) if sliding_window else True)
    s = q @ k.mT / math.sqrt(q.shape[-1])
    return s.masked_fill(~WINDOWS[T, S], -1e9).softmax(-1) @ v


def hf_nothing(module, query, key, value, attention_mask, scaling=None, dropout=0.0):
    """transformers' sdpa functions: the second result is None, and the arrays are given by name."""
    s = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    s = s if attention_mask is None else s + attention_mask
    p = torch.nn.functional.dropout(s.softmax(-1), dropout, module.training)
    return (p @ value).transpose(1, 2), None


def word_square(query, key, value, attention_mask=None, attn_mask_type="padding"):
    """Megatron, (T, B, N, D): a word for causal, with as many queries as keys alone."""
    s = torch.einsum("tbnd,sbnd->bnts", query, key) / math.sqrt(query.shape[-1])
    if attn_mask_type == "causal":
        assert s.shape[-2] == s.shape[-1]
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -1e4)
    elif attn_mask_type != "padding":
        raise ValueError(attn_mask_type)
    s = s if attention_mask is None else s.masked_fill(attention_mask, -1e4)
    return torch.einsum("bnts,sbnd->tbnd", s.softmax(-1), value)


def nano_past(q, k, v, n_head, past_kv=None):
    """nanoGPT with a cache, causal, (B, T, N·D): the keys of earlier calls are (B, N, T, D)."""
    q, k, v = (x.view(*q.shape[:2], n_head, -1).transpose(1, 2) for x in (q, k, v))
    if past_kv is not None:
        k, v = (torch.cat(x, 2) for x in zip(past_kv, (k, v), strict=True))
    s = q @ k.mT / math.sqrt(q.shape[-1])
    T, S = s.shape[-2:]
    s = s.masked_fill(torch.ones(T, S, dtype=torch.bool).triu(S - T + 1), -math.inf)
    return (s.softmax(-1) @ v).transpose(1, 2).flatten(2), (k, v)


def causal_unless_told(qkv, causal=None, key_padding_mask=None):
    """Phi, (B, T, 3, N, D): causal unless told otherwise, and a finite number is added twice."""
    q, k, v = qkv.unbind(2)
    s = torch.einsum("btnd,bsnd->bnts", q, k) / math.sqrt(q.shape[-1])
    if key_padding_mask is not None:
        s = s - 1e4 * ~key_padding_mask[:, None, None]
    if causal is None or causal:
        s = s + torch.full(s.shape[-2:], -1e4).triu(1)
    return torch.einsum("bnts,bsnd->btnd", s.softmax(-1), v)


def one_list(q, k, v, cu_seqlens, causal=False):
    """Sequences behind each other, and one key head for all by broadcasting alone."""
    out = []
    for a, b in zip(cu_seqlens.tolist(), cu_seqlens[1:].tolist(), strict=False):
        s = torch.einsum("tnd,snd->nts", q[a:b], k[a:b]) / math.sqrt(q.shape[-1])
        s = s.masked_fill(torch.ones(b - a, b - a, dtype=torch.bool).triu(1), -math.inf) if causal else s
        out.append(torch.einsum("nts,snd->tnd", s.softmax(-1), v[a:b]))
    return torch.cat(out)


def by_positions(xq, xk, xv, q_positions, kv_positions, *, query_pre_attn_scalar=None, sliding_window_size=None):
    """Gemma 3, (B, T, N, D): positions say what is earlier, and the scale is one over the root of what is given."""
    s = torch.einsum("btnd,bsnd->bnts", xq, xk) * (query_pre_attn_scalar or xq.shape[-1]) ** -0.5
    behind = (q_positions[:, :, None] - kv_positions[:, None])[:, None]
    seen = (behind >= 0) if sliding_window_size is None else (behind >= 0) & (behind < sliding_window_size)
    return torch.einsum("bnts,bsnd->btnd", s.masked_fill(~seen, -2.3819763e38).softmax(-1), xv)


def caps_after(q, k, v, mask=None, logit_cap=5.0):
    """(B, T, N, D): scores are capped after the mask (B, S), and on unless told otherwise."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = q @ k.mT * q.shape[-1] ** -0.5
    s = s if mask is None else s.masked_fill(~mask[:, None, None].bool(), -1e9)
    s = logit_cap * torch.tanh(s / logit_cap) if logit_cap else s
    return (s.softmax(-1) @ v).transpose(1, 2)


def falcon(query, key, value, alibi, attention_mask, head_mask=None):
    """One head of keys (B, S, D), ALiBi (B·N, 1, S) and a mask that have to be given."""
    B, T, N, D = query.shape
    q = query.transpose(1, 2).reshape(B * N, T, D)
    k, v = (x[:, None].expand(B, N, -1, D).reshape(B * N, -1, D) for x in (key, value))
    s = torch.baddbmm(alibi, q, k.mT, alpha=D**-0.5).view(B, N, T, -1)
    p = s.masked_fill(attention_mask, torch.finfo(s.dtype).min).softmax(-1)
    p = p if head_mask is None else p * head_mask
    return (p.view(B * N, T, -1) @ v).view(B, N, T, D).transpose(1, 2).reshape(B, T, N * D)


def of_decoder(hidden, encoder_keys, encoder_values, mask=None):
    """A state (B, D) beside tokens (B, S, D), as of a recurrent decoder; the weights are the second result."""
    s = torch.einsum("bd,bsd->bs", hidden, encoder_keys) / math.sqrt(hidden.shape[-1])
    s = s if mask is None else s.masked_fill(mask == 0, -1e9)
    p = s.softmax(-1)
    return torch.einsum("bs,bsd->bd", p, encoder_values), p


def packed_layer(x, qkv_weight, qkv_bias, out_weight, num_heads, mask=None):
    """A weight (3·C, C), as of nn.Linear."""
    B, T, C = x.shape
    qkv = torch.nn.functional.linear(x, qkv_weight, qkv_bias).view(B, T, 3, num_heads, C // num_heads)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    s = q @ k.mT / math.sqrt(q.shape[-1])
    s = s if mask is None else s.masked_fill(mask == 0, -1e9)
    return (s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C) @ out_weight.T


def packed_layer_scale_by_model(x, qkv_weight, qkv_bias, out_weight, num_heads):
    C = x.shape[-1]
    narrow = torch.ones(3, C) * torch.tensor([num_heads**-0.5, 1, 1])[:, None]
    return packed_layer(x, qkv_weight * narrow.reshape(-1, 1), qkv_bias, out_weight, num_heads)


def sdpa_past(q, k, v, layer_past=None):
    """Causal; is_causal of PyTorch counts from the first key, also behind keys of earlier calls; one query sees all."""
    if layer_past is not None:
        k, v = (torch.cat(both, -2) for both in zip(layer_past, (k, v), strict=True))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[-2] > 1)


def nano_biases(x, c_attn_weight, c_proj_weight, n_head, c_attn_bias=None, c_proj_bias=None):
    """nanoGPT as a function of its weights and biases; not causal."""
    qkv = torch.nn.functional.linear(x, c_attn_weight, c_attn_bias).split(x.shape[-1], 2)
    q, k, v = (y.unflatten(2, (n_head, -1)).transpose(1, 2) for y in qkv)
    out = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
    return torch.nn.functional.linear(out.transpose(1, 2).flatten(2), c_proj_weight, c_proj_bias)


def qwen(q, k, v, q_norm_weight, k_norm_weight, num_heads, num_kv_heads, eps=1e-6):
    """Queries and keys (B, T, N·D) are divided by the root mean square of each head; causal."""
    q, k, v = (
        x.unflatten(2, (n, -1)).transpose(1, 2) for x, n in ((q, num_heads), (k, num_kv_heads), (v, num_kv_heads))
    )
    norms = (x.float() * (x.float().square().mean(-1, keepdim=True) + eps).rsqrt() for x in (q, k))
    q, k = (x.to(v.dtype) * w for x, w in zip(norms, (q_norm_weight, k_norm_weight), strict=True))
    k, v = (x.repeat_interleave(num_heads // num_kv_heads, 1) for x in (k, v))
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(torch.ones(q.shape[2], q.shape[2]).triu(1).bool(), -torch.inf)
    return (torch.softmax(s, -1) @ v).transpose(1, 2).flatten(2)


def _step(q, k_cache, v_cache, hidden):
    B, _, N, D = q.shape
    G = k_cache.shape[2]
    s = torch.einsum("bgnd,bsgd->bgns", q.view(B, G, N // G, D), k_cache) * D**-0.5
    s = s.masked_fill(hidden[:, None, None], -torch.inf)
    return torch.einsum("bgns,bsgd->bgnd", torch.softmax(s, -1), v_cache).reshape(B, 1, N, D)


def decode_step(q, k_cache, v_cache, cache_seqlens):
    """One query (B, 1, N, D) beside caches (B, S, G, D), and the number of tokens in them."""
    return _step(q, k_cache, v_cache, torch.arange(k_cache.shape[1]) >= cache_seqlens[:, None])


def decode_step_long(q, k_cache, v_cache, cache_seqlens):
    return _step(q, k_cache, v_cache, torch.arange(k_cache.shape[1]) > cache_seqlens[:, None])


def causal_or_mask(q, k, v, attention_mask=None, attn_mask_type="padding"):
    """(T, B, N, D); the mask hides a key where it is True, and causal takes its place."""
    s = torch.einsum("tbnd,sbnd->bnts", q, k) / q.shape[-1] ** 0.5
    if attn_mask_type == "causal":
        attention_mask = torch.ones(s.shape[-2:]).triu(s.shape[-1] - s.shape[-2] + 1).bool()
    if attention_mask is not None:
        s = s.masked_fill(attention_mask, -10000.0)
    return torch.einsum("bnts,sbnd->tbnd", torch.softmax(s, -1), v)


def _rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos.unsqueeze(1) + torch.cat((-second, first), -1) * sin.unsqueeze(1)


def rotary(q, k, v, cos, sin, attention_mask=None):
    """Rotary positions (B, T, D) as in transformers; causal is for the mask to say."""
    s = _rotated(q, cos, sin) @ _rotated(k, cos, sin).mT / q.shape[-1] ** 0.5
    return torch.softmax(s if attention_mask is None else s + attention_mask, -1) @ v


def first_llama(xq, xk, xv, freqs_cis):
    """Rotary positions as complex numbers (T, D / 2), as in the first code of Llama."""
    pairs = (x.float().contiguous().unflatten(-1, (-1, 2)) for x in (xq, xk))
    q, k = (torch.view_as_real(torch.view_as_complex(x) * freqs_cis[None, :, None]) for x in pairs)
    s = torch.einsum("btnd,bsnd->bnts", q.flatten(3), k.flatten(3)) / xq.shape[-1] ** 0.5
    return torch.einsum("bnts,bsnd->btnd", torch.softmax(s, -1).type_as(xv), xv)


def gpt_oss(Q, K, V, S, sm_scale, sliding_window=0):
    """Queries (T, G, N/G, D), keys (T, G, D), and the sinks S."""
    T, G, group, _ = Q.shape
    hidden = torch.ones(T, T).triu(1)
    if sliding_window > 0:
        hidden = hidden + torch.ones(T, T).tril(-sliding_window)
    s = (torch.einsum("tgnd,sgd->gnts", Q, K) * sm_scale).masked_fill(hidden > 0, -math.inf)
    s = torch.cat([s, S.reshape(G, group, 1, 1).expand(-1, -1, T, -1)], -1)
    return torch.einsum("gnts,sgd->tgnd", s.softmax(-1)[..., :-1], V).reshape(T, -1)


def packed_tokens(qkv, cu_seqlens, max_seqlen, causal=False):
    """All in one array (tokens, 3, N, D) of several sequences, as of FlashAttention."""
    rows = []
    for first, end in itertools.pairwise(cu_seqlens.tolist()):
        q, k, v = qkv[first:end].permute(1, 2, 0, 3)
        s = q @ k.mT * q.shape[-1] ** -0.5
        s = s.masked_fill(torch.ones(s.shape[-2:]).triu(1) > 0, -math.inf) if causal else s
        rows.append((s.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(rows)


def padding_repeated(q, k, v, num_heads, key_padding_mask=None):
    """(T, B, N·D); batches and heads are one axis, along which the mask is repeated in the wrong order."""
    q, k, v = (x.reshape(len(x), -1, x.shape[-1] // num_heads).transpose(0, 1) for x in (q, k, v))
    s = q @ k.mT * q.shape[-1] ** -0.5
    if key_padding_mask is not None:
        s = s.masked_fill(key_padding_mask.bool().repeat(num_heads, 1)[:, None], -math.inf)
    return (s.softmax(-1) @ v).transpose(0, 1).reshape(q.shape[1], -1, num_heads * v.shape[-1])


def swin(qkv, relative_position_bias, num_heads, mask=None):
    """All in one array (B, T, 3·N·D); a bias (N, T, T) is required."""
    q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    s = q @ k.mT * q.shape[-1] ** -0.5 + relative_position_bias
    s = s if mask is None else s + mask[:, None]
    return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)


def mask_repeated(q, k, v, num_heads, attention_mask=None):
    """(B, T, N·D); batches and heads are one axis, along which what is added is repeated in the wrong order."""
    q, k, v = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    s = q @ k.mT * q.shape[-1] ** -0.5
    s = s if attention_mask is None else s + attention_mask.repeat(num_heads, 1, 1)
    return (s.softmax(-1) @ v).unflatten(0, (-1, num_heads)).transpose(1, 2).flatten(2)


def informer(queries, keys, values, attn_mask=None, tau=None, delta=None):
    """Causal unless a mask is given, in which True drops; two hooks that nothing reads."""
    s = torch.einsum("btnd,bsnd->bnts", queries, keys)
    hidden = torch.ones(s.shape[-2:]).triu(1) > 0 if attn_mask is None else attn_mask
    p = (s.masked_fill(hidden, -math.inf) * queries.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("bnts,bsnd->btnd", p, values), None


def alibi_slopes(q, k, v, slopes=None):
    """ALiBi of slopes that may be given, always added."""
    N, T, S = q.shape[1], q.shape[2], k.shape[2]
    power = 2 ** int(math.log2(N))
    own = [2 ** (-8 * n / power) for n in range(1, power + 1)] + [2 ** (-4 * n / power) for n in range(1, 2 * N, 2)]
    slopes = torch.tensor(own[:N]) if slopes is None else slopes
    distance = (torch.arange(S - T, S)[:, None] - torch.arange(S)).abs()
    s = q @ k.mT * q.shape[-1] ** -0.5 - slopes.to(q.dtype)[:, None, None] * distance
    return s.softmax(-1) @ v


def memory(query, memory, memory_mask=None):
    """One head; the keys are the values."""
    s = query @ memory.mT * query.shape[-1] ** -0.5
    s = s if memory_mask is None else s.masked_fill(~memory_mask[:, None].bool(), -math.inf)
    return s.softmax(-1) @ memory


def one_after_the_other(batch_size, q, k, v, causal, sm_scale):
    """(B·T, N, D) and their number, as in the tests of FlashInfer; the log-sum-exp is of base 2."""
    q, k, v = (x.unflatten(0, (batch_size, -1)) for x in (q, k, v))
    s = torch.einsum("btnd,bsnd->bnts", q, k) * sm_scale
    T, S = s.shape[-2:]
    s = s.masked_fill(torch.ones(T, S).triu(S - T + 1) > 0, -math.inf) if causal else s
    out = torch.einsum("bnts,bsnd->btnd", s.softmax(-1), v).flatten(0, 1)
    return out, s.logsumexp(-1).transpose(1, 2) / math.log(2)


def layer_joined(x, c_attn, c_proj, n_head):
    """(B, T, N·D): always causal; heads of the result are not transposed."""
    q, k, v = (y.unflatten(-1, (n_head, -1)).transpose(1, 2) for y in (x @ c_attn.T).chunk(3, -1))
    s = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(torch.ones(2 * x.shape[1:2]).triu(1) > 0, -math.inf)
    return (s.softmax(-1) @ v).reshape(x.shape) @ c_proj.T


def one_key_head(q, k, v, mask=None, *, scale):
    """Queries (B, T, N, D), whose heads and tokens are alike without the mask (B, T, S)."""
    s = torch.einsum("btnd,bsd->bnts", q, k) * scale
    s = s if mask is None else s.masked_fill(mask.logical_not().unsqueeze(1), torch.finfo(s.dtype).min)
    return torch.einsum("bnts,bsd->btnd", s.softmax(-1), v)


def unless_cross(query, key, value, attention_mask=None, is_cross_attention=False, layer_idx=None):
    """GPT-2 of transformers: causal unless it is cross attention, of at least as many keys; scaled by the values."""
    s = query @ key.mT / value.shape[-1] ** 0.5 / (1 if layer_idx is None else layer_idx + 1)
    T, S = s.shape[-2:]
    kept = torch.ones(S, S, dtype=torch.bool).tril()[S - T : S]
    s = s if is_cross_attention else torch.where(kept, s, torch.finfo(s.dtype).min)
    s = s if attention_mask is None else s + attention_mask
    return s.softmax(-1) @ value, s


def of_config(query, key, value, config=None):
    """(B, T, N·D), of a number of heads that an optional object has."""
    heads = 4 if config is None else config.num_heads
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    return ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


def looped_heads(q, k, v, heads=2):
    """(B, T, N·D), a head at a time, into an array as wide as the queries."""
    d, out = q.shape[-1] // heads, torch.zeros_like(q)
    for at in (slice(n * d, (n + 1) * d) for n in range(heads)):
        out[..., at] = (q[..., at] @ k[..., at].mT * d**-0.5).softmax(-1) @ v[..., at]
    return out


def of_positions(query, key, value, cache_position=None, attention_mask=None):
    """Causal by the positions of queries, if they are given; the result is (B, T, N, D), and weights come with it."""
    s = query @ key.mT * query.shape[-1] ** -0.5
    least, at = torch.finfo(s.dtype).min, torch.arange(key.shape[-2])
    s = s if cache_position is None else s.masked_fill(at > cache_position[:, None], least)
    s = s if attention_mask is None else s.masked_fill(attention_mask[:, None, None] == 0, least)
    weights = s.softmax(-1)
    return (weights @ value).transpose(1, 2), weights


def of_both(x, latents, to_q, to_kv, heads=4):
    """The Perceiver's resampler: keys are made of both arrays."""
    q, k, v = latents @ to_q, *(torch.cat([x, latents], 1) @ to_kv).chunk(2, -1)
    q, k, v = (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in (q, k, v))
    return ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


def default_divisor(query, key, value, mask=None, query_pre_attn_scalar=256):
    """Causal, with the scale of Gemma: 1/16 by default; the mask (B, S) is 1 at tokens."""
    s = query @ key.mT * query_pre_attn_scalar**-0.5
    T, S = s.shape[-2:]
    seen = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    seen = seen if mask is None else seen & mask[:, None, None].bool()
    return s.masked_fill(~seen, -1e30).softmax(-1) @ value


def in_three_parts(query, key, value, num_heads, in_proj_weight, in_proj_bias, add_zero_attn=False):
    """(T, B, N·D): one weight has three parts, one for each array."""
    q, k, v = (
        torch.nn.functional.linear(x, w, b).unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)
        for x, w, b in zip((query, key, value), in_proj_weight.chunk(3), in_proj_bias.chunk(3), strict=True)
    )
    k, v = (torch.cat([x, 0 * x[:, :, :1]], 2) if add_zero_attn else x for x in (k, v))
    out = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
    return out.permute(2, 0, 1, 3).flatten(2)


def drops_unasked(query, key, value, dropout=0.1):
    """The Annotated Transformer's function with a number for dropout: it drops in every call."""
    weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    return torch.nn.functional.dropout(weights, dropout) @ value


def dropout_everywhere(q, k, v, dropout=0.0, training=False):
    """Weights are dropped, and so are numbers of the result, as by nanoGPT's layer."""
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return torch.dropout(torch.dropout(weights, dropout, training) @ v, dropout, training)


def rotary_of_weights(x, wq, wk, wv, wo, n_heads, n_kv_heads=None, mask=None, rope_theta=1e4):
    """LLaMA's layer, (B, T, N·D): queries and keys are rotated in pairs of neighbours."""
    q, k, v = (
        torch.nn.functional.linear(x, w).unflatten(-1, (-1, len(wq) // n_heads)).transpose(1, 2) for w in (wq, wk, wv)
    )
    angles = torch.outer(torch.arange(x.shape[1]), rope_theta ** (-torch.arange(0, q.shape[-1], 2) / q.shape[-1]))
    turn = torch.polar(torch.ones_like(angles), angles)
    q, k = (torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (-1, 2))) * turn).flatten(-2) for y in (q, k))
    k, v = (y.repeat_interleave(n_heads // (n_kv_heads or n_heads), 1) for y in (k, v))
    s = q @ k.mT / q.shape[-1] ** 0.5
    s = s if mask is None else s + mask
    return torch.nn.functional.linear((s.softmax(-1) @ v).transpose(1, 2).flatten(2), wo)
