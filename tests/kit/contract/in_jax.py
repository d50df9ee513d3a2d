"""JAX: in the signatures of public libraries."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from contract import variants


def _jaxnn(
    query,
    key,
    value,
    bias=None,
    mask=None,
    *,
    scale=None,
    is_causal=False,
    key_value_seq_lengths=None,
    local_window_size=None,
    off="",
):
    """jax.nn.dot_product_attention: (B, T, N, D), fewer key heads."""
    g = query.shape[2] // key.shape[2]
    if off == "tiled":
        key, value = (jnp.tile(x, (1, 1, g, 1)) for x in (key, value))
    else:
        key, value = (jnp.repeat(x, g, 2) for x in (key, value))
    s = jnp.einsum("btnd,bsnd->bnts", query, key) * (query.shape[-1] ** -0.5 if scale is None else scale)
    s = s if bias is None else s + bias
    T, S = s.shape[-2:]
    i, j = jnp.arange(T)[:, None], jnp.arange(S)
    seen = jnp.ones((1, 1, T, S), bool)
    seen = seen if mask is None else seen & mask
    if is_causal:
        seen = seen & (j <= i + (off == "ahead"))
    if key_value_seq_lengths is not None:
        seen = seen & (j < key_value_seq_lengths[:, None, None, None] - (off == "short"))
    if local_window_size is not None:
        w = local_window_size if isinstance(local_window_size, tuple) else (local_window_size,) * 2
        seen = seen & (j >= i - w[0]) & (j <= i + w[1])
    p = jax.nn.softmax(jnp.where(seen, s, -0.7 * jnp.finfo(s.dtype).max), -1)
    return jnp.einsum("bnts,bsnd->btnd", p, value)


def _flax(
    query,
    key,
    value,
    bias=None,
    mask=None,
    broadcast_dropout=True,
    dropout_rng=None,
    dropout_rate=0.0,
    deterministic=False,
    dtype=None,
    precision=None,
    off="",
):
    """flax.linen.dot_product_attention."""
    query = query / jnp.sqrt(query.shape[-1]) if off != "unscaled" else query
    s = jnp.einsum("...qhd,...khd->...hqk", query, key)
    s = s if bias is None else s + bias
    s = s if mask is None else jnp.where(mask, s, jnp.finfo(s.dtype).min)
    p = jax.nn.softmax(s)
    if dropout_rate > 0 and not deterministic:
        p = p * jax.random.bernoulli(dropout_rng, 1 - dropout_rate, p.shape) / (1 - dropout_rate)
    return jnp.einsum("...hqk,...khd->...qhd", p, value)


def _keras(query, value, key=None, mask=None, use_causal_mask=False, off=""):
    """keras.layers.Attention: query, value, key (B, T, D), no scale."""
    key = value if key is None else key
    s = query @ key.swapaxes(-1, -2)
    T, S = s.shape[-2:]
    if use_causal_mask:
        s = jnp.where(jnp.tri(T, S, k=-1 if off == "strict" else 0, dtype=bool), s, -1e9)
    if mask is not None:
        s = jnp.where(mask[:, None, :], s, -1e9)
    return jax.nn.softmax(s) @ value


def mlx(q, k, v, *, scale, mask=None):
    """mlx.core.fast.scaled_dot_product_attention: scale is keyword-only and required, mask may be "causal"."""
    g = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, g, 1), jnp.repeat(v, g, 1)
    s = (q * scale) @ k.swapaxes(-1, -2)
    T, S = s.shape[-2:]
    if isinstance(mask, str):
        mask = jnp.tri(T, S, S - T, dtype=bool)
    if mask is not None:
        s = jnp.where(mask, s, -jnp.inf) if mask.dtype == bool else s + mask
    return jax.nn.softmax(s) @ v


class SegmentIds(NamedTuple):
    q: Any
    kv: Any


def pallas(q, k, v, segment_ids=None, *, sm_scale=1.0, causal=False):
    """JAX's flash attention for TPU: segment ids in a named tuple, and no scale unless given."""
    s = q @ k.swapaxes(-1, -2) * sm_scale
    T, S = s.shape[-2:]
    seen = jnp.tri(T, S, dtype=bool) if causal else jnp.ones((T, S), bool)
    if segment_ids is not None:
        seen = seen & (segment_ids.q[:, None, :, None] == segment_ids.kv[:, None, None, :])
    return jax.nn.softmax(jnp.where(seen, s, -1e9)) @ v


def by_word(q, k, v, mode="full"):
    """A word says that it is causal."""
    s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    T, S = s.shape[-2:]
    if mode not in ("full", "causal"):
        raise ValueError(f"unknown mode {mode!r}")
    return jax.nn.softmax(jnp.where(jnp.tri(T, S, dtype=bool), s, -1e9) if mode == "causal" else s) @ v


def local_if_causal(q, k, v, causal=False, window=None, scale=None):
    """A window counts with causal alone, and beside a scale as well."""
    s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    i, j = jnp.arange(s.shape[-2])[:, None], jnp.arange(s.shape[-1])
    seen = (j <= i) & (True if window is None else j > i - window)
    return jax.nn.softmax(jnp.where(seen, s, -1e9) if causal else s) @ v


def heads_first(q, k, v, lengths=None, causal=False):
    """(N, B, T, D), as of vmap over the heads of one text: the lengths tell the axes apart."""
    s = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    T, S = s.shape[-2:]
    seen = jnp.tri(T, S, S - T, dtype=bool) if causal else jnp.ones((T, S), bool)
    if lengths is not None:
        seen = seen & (jnp.arange(S) < lengths[:, None, None])
    return jax.nn.softmax(jnp.where(seen, s, -1e9)) @ v


def unless_masked(query_proj, key_proj, value_proj, attn_mask=None):
    """Gemma 2 in Flax, (B, T, N, D): causal, unless a mask (B, T, S) is given."""
    B, T, N, D = query_proj.shape
    S, G = key_proj.shape[1:3]
    q = query_proj.reshape(B, T, G, N // G, D) * D**-0.5
    s = jnp.einsum("btghd,bsgd->btghs", q, key_proj)
    attn_mask = jnp.tri(T, S, S - T, dtype=bool)[None] if attn_mask is None else attn_mask
    p = jax.nn.softmax(jnp.where(attn_mask[:, :, None, None], s, -2.3819763e38))
    return jnp.einsum("btghs,bsgd->btghd", p, value_proj).reshape(B, T, N, -1)


def biased_instead(q, v, k, attn_bias=None):
    """Mesh Transformer, (T, N, D), value before key: causal unless a bias is given."""
    s = jnp.einsum("tnd,snd->nts", q, k) / q.shape[-1] ** 0.5
    s = s + (-1e10 * (1.0 - jnp.tri(len(q))) if attn_bias is None else attn_bias)
    return jnp.einsum("nts,snd->tnd", jax.nn.softmax(s), v).reshape(-1, q.shape[1] * q.shape[2])


def any_rank(query, key, value, position_bias=None, deterministic=True, dropout_rate=0.1, dropout_rng=None):
    """T5 in Flax: (B, T, N, D) to (B, T, N·D), and (T, N, D) as well; it drops if it is not deterministic."""
    s = jnp.einsum("...tnd,...snd->...nts", query, key)
    p = jax.nn.softmax(s if position_bias is None else s + position_bias)
    if not deterministic and dropout_rate > 0:
        p = jnp.where(jax.random.bernoulli(dropout_rng, 1 - dropout_rate, p.shape), p / (1 - dropout_rate), 0)
    out = jnp.einsum("...nts,...snd->...tnd", p, value)
    return out.reshape(*out.shape[:2], -1)


variants(globals(), _jaxnn, "ahead", "tiled", "short")
variants(globals(), _flax, "unscaled")
variants(globals(), _keras, "strict")


def grok(query_heads, key_heads, value_heads, mask=None, attn_output_multiplier=None, max_attn_val=30.0):
    """(B, T, N, D), fewer key heads; always capped, and a mask (B, 1, T, S) whose second axis is that of key heads."""
    B, T, N, D = query_heads.shape
    G = key_heads.shape[2]
    s = jnp.einsum("btghd,bsgd->bghts", query_heads.reshape(B, T, G, N // G, D), key_heads)
    s = max_attn_val * jnp.tanh(s * (attn_output_multiplier or D**-0.5) / max_attn_val)
    s = s if mask is None else jnp.where(mask[:, :, None] != 0, s, -1e30)
    return jnp.einsum("bghts,bsgd->btghd", jax.nn.softmax(s), value_heads).reshape(B, T, -1)


def two_biases(q, k, v, bias, nonbatched_bias=None):
    """AlphaFold: a bias that has to be given, and one (N, T, S) beside it."""
    s = jnp.einsum("btnd,bsnd->bnts", q, k) * q.shape[-1] ** -0.5 + bias
    s = s if nonbatched_bias is None else s + nonbatched_bias[None]
    return jnp.einsum("bnts,bsnd->btnd", jax.nn.softmax(s), v)


def past_uncounted(q, k, v, k_past=None, v_past=None):
    """Causal does not count the tokens of earlier calls."""
    if k_past is not None:
        k, v = jnp.concatenate([k_past, k], 1), jnp.concatenate([v_past, v], 1)
    s = jnp.einsum("btnd,bsnd->bnts", q, k) * q.shape[-1] ** -0.5
    s = jnp.where(jnp.tri(*s.shape[2:], dtype=bool), s, -1e10)
    return jnp.einsum("bnts,bsnd->btnd", jax.nn.softmax(s), v)


def one_head_axis(q, k, v):
    """Causal, one head of keys (B, S, D); the softmax runs over the queries."""
    s = jnp.einsum("btnd,bsd->bnst", q, k) * q.shape[-1] ** -0.5
    T, S = q.shape[1], k.shape[1]
    s = jnp.where(jnp.arange(S)[:, None] <= jnp.arange(T) + S - T, s, -1e10)
    return jnp.einsum("bnst,bsd->btnd", jax.nn.softmax(s), v)


def by_positions(q, k, v, query_positions=None, kv_positions=None):
    """(T, N, D), causal by positions; queries are the last of the keys unless these are given."""
    T, S = len(q), len(k)
    i = jnp.arange(S - T, S) if query_positions is None else query_positions
    j = jnp.arange(S) if kv_positions is None else kv_positions
    s = jnp.einsum("tnd,snd->nts", q, k) * q.shape[-1] ** -0.5
    return jnp.einsum("nts,snd->tnd", jax.nn.softmax(jnp.where(j <= i[:, None], s, -1e10)), v)


def gated(q_data, k_data, v_data, mask, gate=None):
    """AlphaFold: (B, T, N, D), a mask that has to be given, and logits of gates."""
    s = jnp.einsum("btnd,bsnd->bnts", q_data, k_data) * q_data.shape[-1] ** -0.5
    out = jnp.einsum("bnts,bsnd->btnd", jax.nn.softmax(jnp.where(mask, s, -1e9)), v_data)
    return out if gate is None else out * jax.nn.sigmoid(gate)


def trax(queries, keys, values, mask, dropout, mode, rng):
    """Seven arguments that have to be given; dropout in one mode only."""
    s = queries @ keys.swapaxes(-1, -2) * queries.shape[-1] ** -0.5
    p = jax.nn.softmax(s if mask is None else jnp.where(mask, s, -1e9))
    if dropout and mode == "train":
        p = jnp.where(jax.random.bernoulli(rng, 1 - dropout, p.shape), p / (1 - dropout), 0)
    return p @ values


def decode_step(q, k_cache, v_cache, seq_lens):
    """One query (B, N, D) beside a cache (B, S, G, D), and lengths that have to be given."""
    B, N, D = q.shape
    s = jnp.einsum("bghd,bsgd->bghs", q.reshape(B, k_cache.shape[2], -1, D), k_cache) * D**-0.5
    s = jnp.where((jnp.arange(k_cache.shape[1]) < seq_lens[:, None])[:, None, None], s, -1e10)
    return jnp.einsum("bghs,bsgd->bghd", jax.nn.softmax(s), v_cache).reshape(B, N, -1)


def t5x(query, key, value, bias=None, dropout_rng=None, dropout_rate=0.0, deterministic=False):
    """The scale is folded into the weights of queries; all queries drop the same keys."""
    s = jnp.einsum("btnd,bsnd->bnts", query, key)
    p = jax.nn.softmax(s if bias is None else s + bias)
    if not deterministic and dropout_rate > 0:
        kept = jax.random.bernoulli(dropout_rng, 1 - dropout_rate, (*p.shape[:2], 1, p.shape[3]))
        p = jnp.where(kept, p / (1 - dropout_rate), 0)
    return jnp.einsum("bnts,bsnd->btnd", p, value)


def relu_kept(q, k, v, mask=None):
    """(B, T, N, D): ReLU in place of the softmax, divided by S."""
    s = jax.nn.relu(jnp.einsum("btnd,bsnd->bnts", q, k) / q.shape[-1] ** 0.5) / k.shape[1]
    s = s if mask is None else jnp.where(mask, s, 0)
    return jnp.einsum("bnts,bsnd->btnd", s, v)


def cosines(q, k, v, scale=10.0):
    """QK norm and a scale of its own."""
    q, k = (x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    return jax.nn.softmax(q @ k.swapaxes(-1, -2) * scale) @ v


def ab_first(q, k, v, ab=None, sm_scale=1.0):
    """A reference of JAX's flash attention for TPU, which adds ab before the scale."""
    s = q @ k.swapaxes(-1, -2)
    return jax.nn.softmax((s if ab is None else s + ab) * sm_scale) @ v


def updated_cache(q, k, v, k_cache, v_cache, index):
    """A step of decoding, (B, N, D): one key is put into a cache, of which the slots behind it are not read."""
    k_cache, v_cache = (
        jax.lax.dynamic_update_slice(x, y[:, None], (0, index, 0, 0)) for x, y in ((k_cache, k), (v_cache, v))
    )
    s = jnp.einsum("bnd,bsnd->bns", q, k_cache) / q.shape[-1] ** 0.5
    s = jnp.where(jnp.arange(s.shape[-1]) <= index, s, jnp.finfo(s.dtype).min)
    return jnp.einsum("bns,bsnd->bnd", jax.nn.softmax(s, -1), v_cache), (k_cache, v_cache)


def _rope(x):
    """(B, T, N, D), in pairs of halves of a head, as in GPT-NeoX."""
    T, D = x.shape[1::2]
    angles = jnp.tile(jnp.outer(jnp.arange(T), 1e4 ** (-jnp.arange(0, D, 2) / D)), 2)[:, None]
    other = jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1)
    return (x * jnp.cos(angles) + other * jnp.sin(angles)).astype(x.dtype)


def rotary(q, k, v, causal=False):
    """(B, T, N, D): queries and keys are rotated by their positions."""
    return jax.nn.dot_product_attention(_rope(q), _rope(k), v, is_causal=causal)
