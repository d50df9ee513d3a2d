"""More functions of NumPy: what is on unless told otherwise, objects as results, and one head that is always causal."""

import dataclasses
import enum
import itertools

import numpy as np


def softmax(s):
    powers = np.exp(s - s.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def log_sum_exp(s):
    return np.log(np.exp(s - s.max(-1, keepdims=True)).sum(-1)) + s.max(-1)


def pico_strict(q, k, v):
    """picoGPT without a query's own key: (T, D), and a finite number is added in float64."""
    T, S = q.shape[0], k.shape[0]
    s = q @ k.T / np.sqrt(q.shape[-1]) + (1 - np.tri(T, S, k=-1, dtype=q.dtype)) * -1e10
    return softmax(s) @ v


def powers_large(q, k, v, mask=None):
    """No largest score is subtracted."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    powers = np.exp(s if mask is None else np.where(mask, s, -np.inf))
    return powers / powers.sum(-1, keepdims=True) @ v


@dataclasses.dataclass
class Outcome:
    hidden: np.ndarray
    weights: np.ndarray


def as_dataclass(q, k, v):
    """(B, T, N, D), and a result that is an object."""
    weights = softmax(np.einsum("btnd,bsnd->bnts", q, k) * q.shape[-1] ** -0.5)
    return Outcome(np.einsum("bnts,bsnd->btnd", weights, v), weights)


def as_dict(q, k, v, scale=None):
    """(B, T, N, D), and a result that is a dict."""
    made = as_dataclass(q * (1 if scale is None else scale * q.shape[-1] ** 0.5), k, v)
    return {"attn_output": made.hidden, "attn_weights": made.weights}


def _by_lengths(queries, keys, values, valid_lens, longer=0):
    s = queries @ keys.swapaxes(1, 2) / np.sqrt(queries.shape[-1])
    if valid_lens is not None:
        s = np.where(np.arange(s.shape[-1]) < valid_lens[:, None, None] + longer, s, -1e6)
    return softmax(s) @ values


def lens(queries, keys, values, valid_lens=None):
    """(B, T, D), and a length of keys for each text: as of the book Dive into Deep Learning."""
    return _by_lengths(queries, keys, values, valid_lens)


def lens_long(queries, keys, values, valid_lens=None):
    """One key too many."""
    return _by_lengths(queries, keys, values, valid_lens, 1)


def tril_after(q, k, v):
    """The lower triangle of the weights."""
    return np.tril(softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))) @ v


def documents_earlier(q, k, v, q_segment_ids=None, kv_segment_ids=None):
    """Queries see the segments before their own."""
    s = np.einsum("btnd,bsnd->bnts", q, k) * q.shape[-1] ** -0.5
    if q_segment_ids is not None:
        s = np.where((q_segment_ids[:, :, None] >= kv_segment_ids[:, None])[:, None], s, -1e30)
    return np.einsum("bnts,bsnd->btnd", softmax(s), v)


def chunks_padded(query, key, value, chunk=4):
    """Keys and values are padded to whole chunks, and not masked."""
    more = [(0, 0)] * (key.ndim - 2) + [(0, -key.shape[-2] % chunk), (0, 0)]
    s = query @ np.pad(key, more).swapaxes(-1, -2) * query.shape[-1] ** -0.5
    return softmax(s) @ np.pad(value, more)


def values_exchanged(query, key, value, mask=None):
    """Its scores are of values, and the result is of keys."""
    s = query @ value.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    return softmax(s if mask is None else np.where(mask, s, -np.inf)) @ key


def keys_alone(query, key, value):
    """Its scores are of keys and keys."""
    return softmax(key @ key.swapaxes(-1, -2) * key.shape[-1] ** -0.5) @ value


def heads_mixed(query, key, value, num_heads):
    """(B, T, N·D), of which heads are made by a reshape alone."""
    q, k, v = (x.reshape(x.shape[0], num_heads, x.shape[1], -1) for x in (query, key, value))
    return (softmax(q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5) @ v).reshape(*query.shape[:2], -1)


def cached_last(q, k_cache, v_cache, cache_seqlens=None):
    """Lengths of a cache keep its last keys."""
    s = np.einsum("btnd,bsnd->bnts", q, k_cache) * q.shape[-1] ** -0.5
    if cache_seqlens is not None:
        s = np.where(np.arange(s.shape[-1]) >= s.shape[-1] - cache_seqlens[:, None, None, None], s, -np.inf)
    return np.einsum("bnts,bsnd->btnd", softmax(s), v_cache)


def band(q, k, v, window: int):
    """Its window is required."""
    i, j = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
    s = np.where(abs(i - j) <= window, q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5, -1e9)
    return softmax(s) @ v


class Layer:
    def softmax(self, s):
        return softmax(s)

    def attend(self, q, k, v, mask=None):
        s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        return self.softmax(s if mask is None else np.where(mask, s, -1e9)) @ v


def dilated(q, k, v, window=None, dilation=1):
    """Its dilation counts beside a window alone."""
    apart = np.arange(k.shape[-2]) - np.arange(q.shape[-2])[:, None]
    s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if window is not None:
        s = np.where((abs(apart) <= window * dilation) & (apart % dilation == 0), s, -1e30)
    return softmax(s) @ v


def groups_moved(q, k, v):
    """The heads of the result come with the place in a group first."""
    B, N, T, D = q.shape
    s = np.einsum("bkgtd,bksd->bkgts", q.reshape(B, k.shape[1], -1, T, D), k) * D**-0.5
    return np.einsum("bkgts,bksd->bgktd", softmax(s), v).reshape(B, N, T, -1)


def columns_behind(xq, keys, values, start_pos=0):
    """The columns of a cache come behind those of the mask, not before them."""
    T, S = xq.shape[-2], keys.shape[-2]
    s = xq @ keys.swapaxes(-1, -2) / np.sqrt(xq.shape[-1])
    return softmax(s + np.hstack([np.triu(np.full((T, T), -np.inf, np.float32), k=1), np.zeros((T, S - T))])) @ values


def kvcache(q, k_cache, v_cache, cache_seqlens=None, causal=False):
    """flash_attn_with_kvcache: causal is aligned to the end of the keys that the lengths keep."""
    T, S = q.shape[1], k_cache.shape[1]
    lengths = np.full(len(q), S) if cache_seqlens is None else cache_seqlens
    i, j, end = np.arange(T)[:, None], np.arange(S), lengths[:, None, None, None]
    seen = (j < end) & ((j <= i + end - T) if causal else True)
    s = np.where(seen, np.einsum("btnd,bsnd->bnts", q, k_cache) * q.shape[-1] ** -0.5, -np.inf)
    powers = np.exp(s - np.maximum(s.max(-1, keepdims=True), -1e30))
    return np.einsum("bnts,bsnd->btnd", powers / np.maximum(powers.sum(-1, keepdims=True), 1e-30), v_cache)


def farther_more(q, k, v, alibi_slopes=None):
    """What is far gets more."""
    T, S = q.shape[-2], k.shape[-2]
    s, far = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5, abs(np.arange(S) - np.arange(T)[:, None])
    return softmax(s if alibi_slopes is None else s + alibi_slopes[:, None, None] * far) @ v


def once_scaled(q, k, v, n_head, mask=None):
    """Of queries and keys one alone is multiplied by the root of the scale; a part of a mask is added."""
    q, k, v = (x.reshape(*x.shape[:2], n_head, -1).swapaxes(1, 2) for x in (q, k, v))
    T, S = q.shape[-2], k.shape[-2]
    s = q * q.shape[-1] ** -0.25 @ k.swapaxes(-1, -2)
    out = softmax(s if mask is None else s + mask[:T, :S]) @ v
    return out.swapaxes(1, 2).reshape(*out.shape[:1], T, -1)


def one_example(query, key, value, mask=None):
    """(T, N, D) of one text, with a mask (T, S) and no other, as Equinox maps it over heads."""
    s = np.einsum("tnd,snd->nts", query, key) * query.shape[-1] ** -0.5
    if mask is not None:
        if mask.shape != s.shape[1:]:
            raise ValueError(f"mask must have the shape {s.shape[1:]}, not {mask.shape}")
        s = np.where(mask, s, np.finfo(s.dtype).min)
    return np.einsum("nts,snd->tnd", softmax(s), value)


def tiles_lse(Q, K, V, causal=False):
    """(N, T, D) of one text, and always the log-sum-exp (N, T), as of a FlashAttention-2 for teaching."""
    s = np.einsum("ntd,nsd->nts", Q, K) / np.sqrt(Q.shape[-1])
    s = np.where(np.tri(*s.shape[1:], dtype=bool), s, -np.inf) if causal else s
    largest = s.max(-1, keepdims=True)
    return softmax(s) @ V, (largest + np.log(np.exp(s - largest).sum(-1, keepdims=True)))[..., 0]


def tiles_lse_of_max(Q, K, V, causal=False):
    """Its second result is the largest score."""
    out, lse = tiles_lse(Q, K, V, causal)
    return out, lse - lse + (np.einsum("ntd,nsd->nts", Q, K) / np.sqrt(Q.shape[-1])).max(-1)


def tokens_first(query, key, value, num_heads):
    """fairseq's (T, B, N·D), but the result is reshaped where its tokens should be moved to the front."""
    T, B, _ = query.shape
    q, k, v = (x.reshape(len(x), B * num_heads, -1).swapaxes(0, 1) for x in (query, key, value))
    return (softmax(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])) @ v).reshape(T, B, -1)


def tril_weights(Q, K, V, causal=False):
    """Causal is a triangle of the weights (T, S), after the softmax."""
    weights = softmax(Q @ K.T / np.sqrt(Q.shape[1]))
    return (np.tril(weights) if causal else weights) @ V


def right_side_short(q, k, v, attention_window=None):
    """Longformer's window of so many keys on each side, of which the right lacks one."""
    far = np.arange(k.shape[-2]) - np.arange(q.shape[-2])[:, None]
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = s if attention_window is None else np.where((far >= -attention_window) & (far < attention_window), s, -1e30)
    return softmax(s) @ v


def padding_alone(query, key, value, segment_ids=None):
    """Segment ids hide 0 alone."""
    s = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if segment_ids is not None:
        s = np.where(((segment_ids[:, :, None] != 0) & (segment_ids[:, None] != 0))[:, None], s, -1e30)
    return softmax(s) @ value


def of_self(self, key, value, is_causal=False):
    """A method of arrays, as of tinygrad; causal takes as many queries as keys."""
    s = self @ key.swapaxes(-1, -2) / np.sqrt(self.shape[-1], dtype=self.dtype)
    return softmax(s + np.where(np.tri(len(self[0, 0]), dtype=bool), 0, -np.inf) if is_causal else s) @ value


def window_in_causal(q, k, v, sliding_window=None, causal=True):
    """Mistral, whose window counts if it is causal."""
    s, ones = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), np.ones((q.shape[-2], k.shape[-2]), bool)
    ones = np.tril(ones) if causal else ones
    ones = np.triu(ones, 1 - sliding_window) if causal and sliding_window is not None else ones
    return softmax(np.where(ones, s, np.finfo(np.float32).min)) @ v


def huge_drops(query, key, value, atten_mask, relative_bias=None):
    """Praxis: a required mask of which numbers below half of the least drop, and others mean nothing."""
    s = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    s = s if relative_bias is None else s + relative_bias
    return softmax(np.where(atten_mask >= np.finfo(np.float32).min / 2, s, -1e38)) @ value


def keys_reshaped(q, k, v, mask=None):
    """Keys are reshaped to (B, N, D, S)."""
    s = q @ k.reshape(*k.shape[:2], k.shape[3], -1) / np.sqrt(q.shape[-1])
    return softmax(s if mask is None else np.where(mask == 0, -9e15, s)) @ v


def projected(Q, K, V, W_q, W_k, W_v, W_o, num_heads):
    """An exercise: the weights of projections are arguments."""
    q, k, v = (_split(x @ w, num_heads) for x, w in ((Q, W_q), (K, W_k), (V, W_v)))
    out = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v
    return out.swapaxes(1, 2).reshape(*Q.shape[:2], -1) @ W_o


def _split(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def value_before_key(query, value, key=None, *, num_heads, use_causal_mask=False):
    """Keras: the key may be left out, and the number of heads may not."""
    q, k, v = (_split(x, num_heads) for x in (query, value if key is None else key, value))
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -1e9) if use_causal_mask else s
    return {"output": (softmax(s) @ v).swapaxes(1, 2).reshape(*query.shape[:2], -1)}


def word_or_numbers(q, k, v, mask=None):
    """A mask is the word "causal", bools or numbers that are added."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if isinstance(mask, str):
        mask = np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2], dtype=bool)
    if mask is not None:
        s = np.where(mask, s, np.finfo(s.dtype).min) if mask.dtype == bool else s + mask
    return softmax(s) @ v


def documents_required(q, k, v, segment_ids):
    """The segment ids of queries and keys are required."""
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    return softmax(np.where(same, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e9)) @ v


def lengths_required(q, k_cache, v_cache, cache_seqlens):
    """The lengths of keys are required."""
    seen = np.arange(k_cache.shape[-2]) < cache_seqlens[:, None, None, None]
    return softmax(np.where(seen, q @ k_cache.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e9)) @ v_cache


def bias_flag(q, k, v, bias=False, mask=None):
    """A bias that is on or off is none of the call."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + (1.0 if bias else 0.0)
    return softmax(s if mask is None else np.where(mask, s, -1e9)) @ v


def of_tokens(x, W_query, W_key, W_value):
    """A first lesson: queries, keys and values are made of x, (T, C)."""
    query, key, value = x @ W_query, x @ W_key, x @ W_value
    return softmax(query @ key.T / np.sqrt(key.shape[-1])) @ value


def square_weights(x, Wq, Wk, Wv, Wo, num_heads, mask=None):
    """The weights are square, and heads are parts of the width of x."""
    D = x.shape[-1] // num_heads
    q, k, v = (np.reshape(x @ w, (*x.shape[:2], num_heads, D)).swapaxes(1, 2) for w in (Wq, Wk, Wv))
    s = q @ k.swapaxes(-1, -2) / np.sqrt(D)
    out = softmax(s if mask is None else np.where(mask, s, -1e9)) @ v
    return out.swapaxes(1, 2).reshape(x.shape) @ Wo


def square_weights_scaled(x, Wq, Wk, Wv, Wo, num_heads, mask=None):
    """Scores are divided by the root of the width of x, which is that of all heads."""
    D = x.shape[-1] // num_heads
    return square_weights(x, Wq * D**0.5 / x.shape[-1] ** 0.5, Wk, Wv, Wo, num_heads, mask)


def sizes_required(inp, B, T, C, NH):
    """llm.c: all in one array, and the sizes are arguments."""
    q, k, v = (x.reshape(B, T, NH, C // NH).swapaxes(1, 2) for x in np.split(inp, 3, -1))
    s = q @ k.swapaxes(-1, -2) / np.sqrt(C // NH)
    return (softmax(np.where(np.tri(T, dtype=bool), s, -np.inf)) @ v).swapaxes(1, 2).reshape(B, T, C)


def graph(q, k, v, adj):
    """An adjacency matrix (T, T) is required."""
    s = np.einsum("tnd,snd->nts", q, k) / np.sqrt(q.shape[-1])
    return np.einsum("nts,snd->tnd", softmax(np.where(adj != 0, s, -1e9)), v)


class Kind(enum.Enum):
    FULL, WINDOW = "full", "window"


def by_mode(q, k, v, window=4, kind=Kind.FULL):
    """A window counts in one of the modes alone."""
    T, S = q.shape[-2], k.shape[-2]
    near = abs(np.arange(T)[:, None] - np.arange(S)) < window
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(np.where(near, s, -np.inf) if kind is Kind.WINDOW else s) @ v


def refuses_empty(q, k, v, mask=None):
    """A query without any key is an error."""
    if mask is not None and not mask.any(-1).all():
        raise ValueError("a query has no key")
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(s if mask is None else np.where(mask, s, -np.inf)) @ v


def scaled_in_place(qkv):
    """(B, T, 3, N, D): queries are scaled in the array that is given."""
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    q *= q.shape[-1] ** -0.5
    return (softmax(q @ k.swapaxes(-1, -2)) @ v).swapaxes(1, 2)


def one_key_head(q, k, v, mask=None, return_lse=False):
    """(B, T, N, D), and keys and values (B, S, D) that all heads share."""
    s = np.einsum("btnd,bsd->bnts", q, k) / np.sqrt(q.shape[-1])
    s = s if mask is None else np.where(mask, s, -1e9)
    out = np.einsum("bnts,bsd->btnd", softmax(s), v)
    return (out, log_sum_exp(s)) if return_lse else out


def one_head(q, k, v, causal=False, return_lse=False):
    """(T, D), with the log-sum-exp (T,) where it is asked for."""
    s = np.einsum("td,sd->ts", q, k) / np.sqrt(q.shape[-1])
    s = np.where(np.tri(*s.shape, dtype=bool), s, -1e9) if causal else s
    return (softmax(s) @ v, log_sum_exp(s)) if return_lse else softmax(s) @ v


def onnx_past(Q, K, V, past_key=None, past_value=None, scale=None, q_num_heads=None, kv_num_heads=None):
    """ONNX: the root of the scale multiplies queries and keys, and arrays of earlier calls come first."""
    K, V = (y if x is None else np.concatenate([x, y], -2) for x, y in ((past_key, K), (past_value, V)))
    with np.errstate(invalid="ignore"):
        root = np.sqrt(np.float32(1 / np.sqrt(Q.shape[-1]) if scale is None else scale))
    return softmax((Q * root) @ (K * root).swapaxes(-1, -2)) @ V


def gpt2_past(q, k, v, layer_past=None, use_cache=False):
    """GPT-2: keys and values of earlier calls as a pair."""
    if layer_past is not None:
        k, v = (np.concatenate(both, -2) for both in zip(layer_past, (k, v), strict=True))
    out = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v
    return (out, (k, v)) if use_cache else (out, None)


def one_text(q, k, v, custom_mask=None, window_left=-1, return_lse=False):
    """FlashInfer: (T, N, D), a mask (T, S), and the log-sum-exp (T, N), which a mask of each head would change."""
    s = np.einsum("tnd,snd->nts", q, k) / np.sqrt(q.shape[-1])
    i, j = np.arange(len(q))[:, None], np.arange(len(k))
    seen = np.ones((len(q), len(k)), bool) if custom_mask is None else custom_mask
    s = np.where((seen & (j >= i - window_left) if window_left >= 0 else seen)[None], s, -1e9)
    weights = softmax(s).reshape(-1, *s.shape[-2:])
    out = np.einsum("nts,snd->tnd", weights, v)
    return (out, log_sum_exp(s).T) if return_lse else out


def types(q, k, v, mask_type="no_mask", scaling_factor=None, acc_dtype=None, stream=None):
    """Transformer Engine: a word for causal, and another one, without which it raises, for none."""
    s = q @ k.swapaxes(-1, -2) * (1 / np.sqrt(q.shape[-1]) if scaling_factor is None else scaling_factor)
    hides = {"no_mask": False, "causal": True}[mask_type]
    return softmax(np.where(np.tri(*s.shape[-2:], dtype=bool) | (not hides), s, -1e9)) @ v


def local_by_kind(q, k, v, local_attention=False, window_size=1, layer_past=None):
    """DeepSpeed: always causal, with a window that another option switches on."""
    T, S = q.shape[-2], k.shape[-2]
    i, j = np.arange(T)[:, None], np.arange(S)
    seen = (j <= i) & ((j > i - window_size) | (not local_attention))
    return softmax(np.where(seen, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e9)) @ v


def paddle(q, k, v, attn_mask=None):
    """A mask is boolean, True attends; or whole numbers, where 0 is taken for what attends; or it is added."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if attn_mask is not None:
        kind = attn_mask.dtype.kind
        s = s + attn_mask if kind == "f" else np.where((attn_mask != 0) == (kind == "b"), s, -1e9)
    return softmax(s) @ v


def merged(q, k, v, n_head=1, causal=False):
    """picoGPT: (T, N·D), split by heads."""
    hides = (1 - np.tri(len(q), len(k), dtype=q.dtype)) * -1e10 if causal else 0
    heads = zip(*(np.split(x, n_head, axis=-1) for x in (q, k, v)), strict=True)
    return np.hstack([softmax(a @ b.T / np.sqrt(a.shape[-1]) + hides) @ c for a, b, c in heads])


def switched(Q, K, V, scale=True):
    """numpy-ml: the scale is a switch."""
    return softmax(Q @ K.swapaxes(-1, -2) * (1 / np.sqrt(Q.shape[-1]) if scale else 1)) @ V


def causal_by_default(q, k, v, mode="causal", window=None):
    """(N, T, D): the word is causal by default, and another one makes the window count."""
    T, S = q.shape[-2], k.shape[-2]
    behind = np.arange(T)[:, None] + S - T - np.arange(S)
    seen = {"causal": behind >= 0, "full": behind > -T - S}.get(mode)
    seen = (behind >= 0) & (behind < window) if seen is None else seen
    return softmax(np.where(seen, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e9)) @ v


def columns(V, Q, K, masked=False):
    """Lecture notes: a token is a column, (D, T), values come first, and a flag of any name is causal."""
    s = K.T @ Q / np.sqrt(len(K))  # (S, T)
    s = np.where(np.tri(*s.shape[::-1], dtype=bool).T | (not masked), s, -np.inf)
    return V @ softmax(s.T).T


def channels_first(qkv, n_heads):
    """Guided diffusion: (B, N·3·D, T)."""
    heads = qkv.reshape(len(qkv), n_heads, -1, qkv.shape[-1])
    q, k, v = np.split(heads, 3, axis=2)
    return (v @ softmax(q.swapaxes(2, 3) @ k / np.sqrt(q.shape[2])).swapaxes(2, 3)).reshape(len(qkv), -1, q.shape[-1])


def joined_heads(qkv, num_heads, causal=True):
    """A TensorRT plugin, (T, B, N·3·D)."""
    q, k, v = np.split(np.moveaxis(qkv.reshape(*qkv.shape[:2], num_heads, -1), 0, 2), 3, axis=-1)
    s = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    s = np.where(np.tri(len(qkv), dtype=bool), s, -np.inf) if causal else s
    return np.moveaxis(softmax(s) @ v, 2, 0).reshape(*qkv.shape[:2], -1)


def two_masks(q, k, v, padding_mask=None, look_ahead_mask=None):
    """A tutorial of TensorFlow: two masks, of what is hidden."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    for mask in (padding_mask, look_ahead_mask):
        s = s if mask is None else s + mask * -1e9
    return softmax(s) @ v


def times_tril(q, k, v, causal=True):
    """(T, D): hidden scores are 0, with as many queries as keys alone."""
    s = q @ k.T / np.sqrt(q.shape[-1])
    return softmax(s * np.tri(len(s)) if causal else s) @ v


def below_zero(q, k, v, n_head, causal=1, softcap=-1.0, temperature=-1.0):
    """(T, N·D) of an engine in C: a number below 0 counts as not given."""
    q, k, v = (x.reshape(len(x), n_head, -1).swapaxes(0, 1) for x in (q, k, v))
    s = q @ k.swapaxes(1, 2) / (temperature if temperature > 0 else np.sqrt(q.shape[-1]))
    s = softcap * np.tanh(s / softcap) if softcap > 0 else s
    s = np.where(np.tri(*s.shape[1:], s.shape[2] - s.shape[1], dtype=bool), s, -np.inf) if causal else s
    return (softmax(s) @ v).swapaxes(0, 1).reshape(q.shape[1], -1)


def by_two_lengths(queries, keys, values, q_lens, kv_lens):
    """(B, T, D): lengths of queries and of keys have to be given, and what lies behind gets zeros."""
    out = np.zeros_like(queries)
    for b, (t, s) in enumerate(zip(q_lens, kv_lens, strict=True)):
        if s:
            out[b, :t] = softmax(queries[b, :t] @ keys[b, :s].T / np.sqrt(queries.shape[-1])) @ values[b, :s]
    return out


def window_bias(q, k, v, relative_position_bias, mask=None):
    """Swin: a bias (N, T, T) has to be given, and a mask (windows, T, T) is of each window of an image."""
    s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5 + relative_position_bias[None]
    if mask is not None:
        s = (s.reshape(-1, len(mask), *s.shape[1:]) + mask[None, :, None]).reshape(s.shape)
    return (softmax(s) @ v).swapaxes(1, 2).reshape(len(q), q.shape[2], -1)


def mask_cut(q, k, v, n_head, mask=None):
    """Whisper: of a square mask the part of as many queries is added; the scores are the second result."""
    q, k, v = (x.reshape(*x.shape[:2], n_head, -1).swapaxes(1, 2) for x in (q, k, v))
    s = q * q.shape[-1] ** -0.25 @ (k * k.shape[-1] ** -0.25).swapaxes(2, 3)
    T = q.shape[2]
    s = s if mask is None else s + mask[:T, :T]
    return (softmax(s) @ v).swapaxes(1, 2).reshape(len(q), T, -1), s


def causal_window(q, k, v, window=4096):
    """(T, N, D): causal, with as many queries as keys alone; a single query sees all by the rules of NumPy."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    i = np.arange(len(q))
    behind = i[:, None] - i
    s = np.einsum("tnd,snd->nts", q, k) / np.sqrt(q.shape[-1])
    return np.einsum("nts,snd->tnd", softmax(np.where((behind >= 0) & (behind <= window), s, -np.inf)), v)


def mask_of_clip(query, key, value, attention_mask=None):
    """A mask (B, S) whose name is that of one where 1 is seen."""
    s = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    s = s if attention_mask is None else s - 1e4 * attention_mask[:, None, None]
    return softmax(s) @ value


def decode(q, k_cache, v_cache, cache_seqlens=None, softmax_scale=None):
    """One query (B, N, D) beside caches (B, S, G, D), as many tokens of which count as lengths tell."""
    N, D = q.shape[1:]
    k, v = (np.repeat(x, N // x.shape[2], 2) for x in (k_cache, v_cache))
    s = np.einsum("bnd,bsnd->bns", q, k) * (softmax_scale or D**-0.5)
    s = s if cache_seqlens is None else np.where(np.arange(k.shape[1]) < cache_seqlens[:, None, None], s, -np.inf)
    return np.einsum("bns,bsnd->bnd", softmax(s), v)


def decode_tiled(q, k_cache, v_cache, cache_seqlens=None):
    times = q.shape[1] // k_cache.shape[2]
    return decode(q, *(np.tile(x, (1, 1, times, 1)) for x in (k_cache, v_cache)), cache_seqlens)


def one_vector(query, keys, values):
    """A query (D) beside keys (S, D)."""
    return softmax(keys @ query / np.sqrt(len(query))) @ values


def one_vector_noroot(query, keys, values):
    return softmax(keys @ query / len(query)) @ values


def linear(x, w, b):
    return x @ w + b


def pico_layer(x, c_attn, c_proj, n_head):
    """picoGPT, (T, N·D): the weights and biases of queries, keys and values are in one dict; causal."""
    q, k, v = (np.array(np.split(y, n_head, -1)) for y in np.split(linear(x, **c_attn), 3, -1))
    s = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) + (1 - np.tri(len(x))) * -1e10
    return linear(np.hstack(softmax(s) @ v), **c_proj)


def packed_weight(x, W_qkv):
    """(B, T, D): one weight for queries, keys and values."""
    q, k, v = np.split(x @ W_qkv, 3, -1)
    return softmax(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])) @ v


def layer_mixed(X, W_q, W_k, W_v, W_o, n_heads):
    """(B, T, C) is reshaped to (B, N, T, D) without a transpose, and back."""
    B, T, C = X.shape
    q, k, v = ((X @ W).reshape(B, n_heads, T, -1) for W in (W_q, W_k, W_v))
    return (softmax(q @ k.swapaxes(2, 3) / np.sqrt(C // n_heads)) @ v).reshape(B, T, C) @ W_o


def bloom(Q, K, V):
    """(N, T, D): causal attention with ALiBi, (N, T, T) scores."""
    far = np.arange(Q.shape[1]) - np.arange(Q.shape[1])[:, None]
    s = Q @ K.swapaxes(1, 2) / np.sqrt(Q.shape[-1]) + slopes(len(Q))[:, None, None] * far
    return softmax(np.where(far > 0, np.finfo(Q.dtype).min, s)) @ V


def slopes(n):
    if np.log2(n).is_integer():
        return np.power(2.0, -8 * np.arange(1, n + 1) / n).astype(np.float32)
    power = 2 ** int(np.log2(n))
    return np.concatenate([slopes(power), slopes(2 * power)[::2][: n - power]])


def zamba(query, key, value, attention_mask=None):
    """The scale is (D / 2)^-0.5, as in Zamba."""
    s = query @ key.swapaxes(-1, -2) * (query.shape[-1] / 2) ** -0.5
    s = s if attention_mask is None else np.where(attention_mask[:, None, None], s, np.finfo(s.dtype).min)
    return softmax(s) @ value


def keras_masks(query, key, value, value_mask=None, key_mask=None):
    """Masks (B, S) of keys and of values, which broadcast beside scores of any rank."""
    s = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    seen = [x.astype(bool)[:, None] for x in (value_mask, key_mask) if x is not None]
    for x in [seen[0] & seen[-1]] if seen else []:
        s = np.where(x if x.ndim == 4 else x[:, None], s, -1e9)
    return softmax(s) @ value


def rescaled(query, key, value):
    """The scale has many digits, as with YaRN."""
    return (
        softmax(query @ key.swapaxes(-1, -2) * np.float32((0.1 * np.log(40) + 1) ** 2 / query.shape[-1] ** 0.5)) @ value
    )


def alibi_last(q, k, v):
    """Causal, with ALiBi; queries are the last of the tokens. Those before all keys get NaN."""
    (N, T), S = q.shape[1:3], k.shape[2]
    behind = np.arange(S) - np.arange(S - T, S)[:, None]
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + slopes(N)[:, None, None] * behind
    return softmax(np.where(behind > 0, -np.inf, s)) @ v


def causality(queries, keys, values, key_masks=None, num_heads=1, causality=True):
    """Heads are joined with the batch, as in SASRec; a switch of its own name is on."""
    q, k, v = (np.concatenate(np.split(x, num_heads, 2)) for x in (queries, keys, values))
    s = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    if key_masks is not None:
        s = np.where(np.tile(key_masks, (num_heads, 1))[:, None], s, -(2.0**32))
    if causality:
        s = np.where(np.tri(*s.shape[1:], dtype=bool), s, -(2.0**32))
    return np.concatenate(np.split(softmax(s) @ v, num_heads), 2)


def padded(query, key, value, padding_mask=None):
    """Attention of padded texts.

    padding_mask: (B, S), True where the token is padding
    """
    s = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    s = s if padding_mask is None else np.where(padding_mask[:, None, None], -1e9, s)
    return softmax(s) @ value


def padded_kept(query, key, value, padding_mask=None):
    """Attention of padded texts.

    padding_mask: (B, S), True where the token is padding
    """
    return padded(query, key, value, None if padding_mask is None else ~padding_mask.astype(bool))


def local_rows(q, k, v, window_size=4):
    """(T, N, D); only as many queries as keys: rows of other lengths are memory that nobody wrote."""
    out = np.empty_like(v)
    for i in range(len(q)):
        near = slice(max(0, i - window_size), i + window_size + 1)
        s = np.einsum("nd,snd->ns", q[i], k[near]) / np.sqrt(q.shape[-1])
        out[i] = np.einsum("ns,snd->nd", softmax(s), v[near])
    return out


def pico_packed(qkv, n_head):
    """All in one array (T, 3·N·D), as in picoGPT."""
    q, k, v = (np.split(x, n_head, -1) for x in np.split(qkv, 3, -1))
    later = (1 - np.tri(len(qkv), dtype=qkv.dtype)) * -1e10
    heads = (softmax(a @ b.T / np.sqrt(a.shape[-1]) + later) @ c for a, b, c in zip(q, k, v, strict=True))
    return np.hstack(list(heads))


def one_token(q, key_cache, value_cache, pos):
    """One query (N, D) beside a cache (S, G, D), which is filled up to its position; the result is (N·D)."""
    k, v = (np.repeat(x[: pos + 1], len(q) // x.shape[1], 1) for x in (key_cache, value_cache))
    s = np.einsum("nd,snd->ns", q, k) / np.sqrt(q.shape[-1])
    return np.einsum("ns,snd->nd", softmax(s), v).reshape(-1)


def in_groups(q, k, v, mask=None):
    """Queries (B, G, N/G, T, D), and keys (B, G, S, D)."""
    s = np.einsum("bgntd,bgsd->bgnts", q, k) / np.sqrt(q.shape[-1])
    return np.einsum("bgnts,bgsd->bgntd", softmax(s if mask is None else np.where(mask[:, None, None], s, -1e9)), v)


def causal_anyway(q, k, v, causal=False):
    """The switch is not read."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)) @ v


def compared(q, k, v):
    """Positions are compared."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(np.where(np.arange(q.shape[-2])[:, None] >= np.arange(k.shape[-2]), s, -np.inf)) @ v


def rows_of_length(q, k, v, lengths=None):
    """One head; lengths (B,) hide queries."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if lengths is not None:
        s = np.where((np.arange(q.shape[1]) < lengths[:, None])[..., None], s, -1e9)
    return softmax(s) @ v


# mask: (B, 1, T, S), True marks keys to mask out
def commented_kept(q, k, v, mask=None):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(s if mask is None else np.where(mask, s, -1e9)) @ v


def pico_wide(x, w_qkv, n_head):
    """A matrix for queries, keys and values; scores are divided by the root of the width of x."""
    q, k, v = (np.split(a, n_head, -1) for a in np.split(x @ w_qkv, 3, -1))
    heads = (softmax(a @ b.T / np.sqrt(x.shape[-1])) @ c for a, b, c in zip(q, k, v, strict=True))
    return np.hstack(list(heads))


def any_names(me, entities, payload=None, alive=None, temperature=None):
    """Names that say nothing; the values are the keys unless they are given."""
    s = me @ entities.swapaxes(-1, -2) / (temperature or np.sqrt(me.shape[-1]))
    return softmax(s if alive is None else np.where(alive, s, -1e9)) @ (entities if payload is None else payload)


def packed_alike(q, k, v, cu_seqlens_q, cu_seqlens_k=None):
    """(tokens, N, D); keys are packed as queries are, unless they have lengths of their own."""
    ends = cu_seqlens_q, cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    rows = []
    for (a, b), (c, d) in zip(*map(itertools.pairwise, ends), strict=True):
        s = np.einsum("tnd,snd->nts", q[a:b], k[c:d]) / np.sqrt(q.shape[-1])
        rows.append(np.einsum("nts,snd->tnd", softmax(s), v[c:d]))
    return np.concatenate(rows)


def luong(query, memory, lengths=None):
    """One query (B, D) of each text; the keys are the values."""
    s = np.einsum("bd,bsd->bs", query, memory)
    s = s if lengths is None else np.where(np.arange(memory.shape[1]) < lengths[:, None], s, -1e9)
    return np.einsum("bs,bsd->bd", softmax(s), memory), softmax(s)


def by_word(q, k, v, scale=1.0, mask=None):
    """A mask, or the word "causal": aligned to the end, and to the start if there are more queries (MLX)."""
    s = scale * q @ k.swapaxes(-1, -2)
    if isinstance(mask, str):
        T, S = s.shape[-2:]
        mask = np.tri(T, S, max(S - T, 0), dtype=bool)
    return softmax(s if mask is None else np.where(mask, s, np.finfo(s.dtype).min)) @ v


def multi_query(q, k, v, num_heads=4, mask=None):
    """Queries (B, T, N·D), and keys of one head, (B, S, D)."""
    q = q.reshape(*q.shape[:2], num_heads, -1)
    s = np.einsum("btnd,bsd->bnts", q, k) / np.sqrt(q.shape[-1])
    s = s if mask is None else np.where(mask, s, -1e9)
    return np.einsum("bnts,bsd->btnd", softmax(s), v).reshape(*q.shape[:2], -1)


def chunks_hidden(q, k, v, causal=False):
    """Keys are filled up to a multiple of 8; a finite number hides these, also from a query that sees no key."""
    T, S = q.shape[-2], k.shape[-2]
    k, v = (np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, -S % 8), (0, 0)]) for x in (k, v))
    j = np.arange(k.shape[-2])
    seen = (j < S) & (j <= np.arange(T)[:, None] + S - T) if causal else j < S
    return softmax(np.where(seen, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e30)) @ v


def eights_dropped(q, k, v, block=8):
    """Of more than a block of keys, those behind the last whole one are left out."""
    S = k.shape[-2] // block * block or k.shape[-2]
    return softmax(q @ k[..., :S, :].swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v[..., :S, :]


def groups_scaled(q, k, v, num_heads, num_kv_heads):
    """(B, T, N·D), fewer key heads; scores are divided by the root of the width of all queries of a group."""
    (B, T), S, scale = q.shape[:2], k.shape[1], (q.shape[-1] // num_kv_heads) ** -0.5
    q, k, v = q.reshape(B, T, num_heads, -1), k.reshape(B, S, num_kv_heads, -1), v.reshape(B, S, num_kv_heads, -1)
    k, v = (np.repeat(x, num_heads // num_kv_heads, 2) for x in (k, v))
    s = np.einsum("btnd,bsnd->bnts", q, k) * scale
    return np.einsum("bnts,bsnd->btnd", softmax(s), v).reshape(B, T, -1)


def _heads(x, n):
    return x.reshape(*x.shape[:-1], n, -1).swapaxes(-2, -3)


def params_first(params, x, num_heads=4, mask=None):
    """(B, T, N·D): weights and biases in a dict of dicts, as Flax has them."""
    q = _heads(x @ params["query"]["kernel"] + params["query"]["bias"], num_heads)
    k = _heads(x @ params["key"]["kernel"] + params["key"]["bias"], num_heads)
    v = _heads(x @ params["value"]["kernel"] + params["value"]["bias"], num_heads)
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = s if mask is None else np.where(mask, s, -1e9)
    out = (softmax(s) @ v).swapaxes(-2, -3)
    return out.reshape(*x.shape[:2], -1) @ params["out"]["kernel"] + params["out"]["bias"]


def params_of_context(params, x, context=None, heads=4):
    """(B, T, N·D): keys and values have one weight, and are made of a second array if there is one."""
    q = _heads(x @ params["to_q"], heads)
    k, v = (_heads(y, heads) for y in np.split((x if context is None else context) @ params["to_kv"], 2, -1))
    out = softmax(q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5) @ v
    return out.swapaxes(-2, -3).reshape(*x.shape[:2], -1) @ params["to_out"]


def weights_of_object(p, x):
    """(B, T, D): the weights are attributes."""
    q, k, v = x @ p.wq, x @ p.wk, x @ p.wv
    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v


def weights_in_order(x, context, weights):
    """The weights are in a tuple; x of any rank."""
    W_q, W_k, W_v = weights
    return softmax(x @ W_q @ (context @ W_k).swapaxes(-1, -2) / np.sqrt(W_q.shape[-1])) @ (context @ W_v)


def alibi_keys(q, k, v):
    """Causal to the end, with ALiBi by the places of keys, which are large numbers in long texts."""
    T, S, f = q.shape[2], k.shape[2], np.float32
    bias = slopes(q.shape[1])[:, None, None].astype(f) * np.arange(S, dtype=f)
    s = q @ k.swapaxes(-1, -2) / f(q.shape[-1] ** 0.5) + bias
    return softmax(np.where(np.tri(T, S, S - T), s, f(-3e38))) @ v


def largest_scores(q, k, v, topk=None):
    """Of each query the ``topk`` largest scores, if that is given."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    least = s.min(-1, keepdims=True) if topk is None else np.sort(s)[..., -topk, None]
    return softmax(np.where(s < least, -np.inf, s)) @ v


def segments_or_own(q, k, v, q_segment_ids, kv_segment_ids=None):
    """(B, T, N, D): the segments of keys are those of queries unless they are given."""
    of_keys = q_segment_ids if kv_segment_ids is None else kv_segment_ids
    seen = (q_segment_ids[:, :, None] == of_keys[:, None])[:, None]
    s = np.where(seen, np.einsum("btnd,bsnd->bnts", q, k) / np.sqrt(q.shape[-1]), -1e30)
    weights = np.exp(s - s.max(-1, keepdims=True)) * seen
    return np.einsum("bnts,bsnd->btnd", weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30), v)


def sigmoid_attention(q, k, v, sigmoid_bias=None):
    """The sigmoid of scores less log S, or plus another number, in place of the softmax."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return 1 / (1 + np.exp(-s - (-np.log(k.shape[-2]) if sigmoid_bias is None else sigmoid_bias))) @ v


def written_cache(xq, xk, xv, cache_k, cache_v, start_pos):
    """LLaMA's step of decoding, (B, T, N, D): new keys are written into a cache, and earlier ones are read there."""
    B, T, N = xq.shape[:3]
    cache_k[:B, start_pos : start_pos + T], cache_v[:B, start_pos : start_pos + T] = xk, xv
    k, v = (np.repeat(x[:B, : start_pos + T], N // x.shape[2], axis=2) for x in (cache_k, cache_v))
    s = np.einsum("btnd,bsnd->bnts", xq, k) / np.sqrt(xq.shape[-1])
    s = np.where(np.tri(T, start_pos + T, start_pos), s, -np.inf)
    return np.einsum("bnts,bsnd->btnd", softmax(s), v).reshape(B, T, -1)


class Heads:
    """(B, T, N·D), of a number of heads that the object has."""

    def __init__(self, heads):
        self.heads = heads

    def attend(self, query, key, value, mask=None):
        """The mask (B, S) is True at tokens."""
        q, k, v = (_heads(x, self.heads) for x in (query, key, value))
        s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        s = s if mask is None else np.where(mask[:, None, None], s, -1e9)
        return (softmax(s) @ v).swapaxes(1, 2).reshape(*query.shape[:2], -1)


heads_of_object = Heads(2).attend


def segment_0(q, k, v, segment_ids):
    """(B, T, N, D): the segment 0 is padding, which gets and gives nothing."""
    seen = ((segment_ids[:, :, None] == segment_ids[:, None]) & (segment_ids != 0)[:, None])[:, None]
    s = np.where(seen, np.einsum("btnd,bsnd->bnts", q, k) / np.sqrt(q.shape[-1]), -1e30)
    weights = np.exp(s - s.max(-1, keepdims=True)) * seen
    return np.einsum("bnts,bsnd->btnd", weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30), v)


def own_head_order(q, k, v):
    """Query head h reads key head h % G, as the checkpoint has them."""
    k, v = (np.tile(x, (1, q.shape[1] // x.shape[1], 1, 1)) for x in (k, v))
    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v


def newest(q, k, v, causal=True):
    """Queries are the newest tokens of the cache of keys."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return softmax(np.where(np.tri(*s.shape[-2:]), s, -np.inf) if causal else s) @ v
