"""Pairs of functions that should be equal and differ by a convention, each with the public thread where it was met."""

import inspect
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

rng = np.random.default_rng(0)


class Pair(NamedTuple):
    """Where it was met; the words that ``attendax diff`` has to say of it first; the two functions."""

    source: str
    says: tuple[str, ...]
    a: Callable
    b: Callable

    @property
    def is_layer(self):
        return "params" in inspect.signature(self.a).parameters


# What functions of attention are made of


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def scored(query, key, scale=None):
    return query @ key.swapaxes(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)


def hide(scores, allowed, lowest=-1e9):
    return scores if allowed is None else np.where(allowed, scores, lowest)


def within(scores, left, right):
    i, j = np.indices(scores.shape[-2:])
    return (j >= i - left) & (j <= i + right)


def cap(scores, limit):
    return scores if limit is None else limit * np.tanh(scores / limit)


def plus(scores, bias):
    return scores if bias is None else scores + bias


def plain(query, key, value):
    return softmax(scored(query, key)) @ value


def masked(query, key, value, mask=None):
    return softmax(hide(scored(query, key), mask)) @ value


def of_tokens(function, *arrays, **options):
    """A function of (B, N, T, D), given (B, T, N, D)."""
    return function(*(x.swapaxes(1, 2) for x in arrays), **options).swapaxes(1, 2)


def with_lse(query, key, value, return_lse, lse):
    scores = scored(query, key)
    return (softmax(scores) @ value, lse(scores)) if return_lse else softmax(scores) @ value


def causal_at_the_start(query, key, value, is_causal, mask=None, scale=None, offset=0, lowest=-1e9):
    """Aligned to the start, unless the offset is something else."""
    scores = scored(query, key, scale)
    allowed = np.tri(*scores.shape[-2:], offset, dtype=bool) if is_causal else None
    return softmax(hide(hide(scores, allowed, lowest), mask)) @ value


def causal_at_the_end(query, key, value, is_causal, **rest):
    return causal_at_the_start(query, key, value, is_causal, offset=key.shape[-2] - query.shape[-2], **rest)


def windowed(query, key, value, left, right=0, mask=None):
    scores = scored(query, key)
    return softmax(hide(hide(scores, None if left is None else within(scores, left, right)), mask)) @ value


def less_one(window):
    return None if window is None else window - 1


def dropped(query, key, value, rate, factor):
    weights = softmax(scored(query, key))
    return np.where(rng.random(weights.shape) < rate, 0, weights * factor) @ value


def wide(query, key, value):
    return plain(*(x.astype(np.float32) for x in (query, key, value)))


def coarse(query, key, value):
    """Scores and weights of them in the dtype of the arrays."""
    scores = (query.astype(np.float32) @ key.astype(np.float32).swapaxes(-1, -2)).astype(query.dtype)
    scores = (scores * query.dtype.type(query.shape[-1] ** -0.5)).astype(query.dtype).astype(np.float32)
    return (softmax(scores) @ value.astype(np.float32)).astype(query.dtype)


# What layers are made of


def into_heads(x, count):
    B, T, M = x.shape
    return x.reshape(B, T, count, M // count).swapaxes(1, 2)


def joined(out):
    B, N, T, D = out.shape
    return out.swapaxes(1, 2).reshape(B, T, N * D)


def projected(params, x):
    return [x @ params[f"{name}_kernel"] for name in ("query", "key", "value")]


def self_attention(params, x, count=2):
    rows = (y + params[f"{name}_bias"] for y, name in zip(projected(params, x), ("query", "key", "value"), strict=True))
    return joined(plain(*(into_heads(y, count) for y in rows))) @ params["out_kernel"] + params["out_bias"]


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def gelu_by_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick_gelu(x):
    return x / (1 + np.exp(-1.702 * x))


def silu(x):
    return x / (1 + np.exp(-x))


def mlp(params, x, activation=gelu):
    return activation(x @ params["up_kernel"] + params["up_bias"]) @ params["down_kernel"] + params["down_bias"]


def layer_norm(x, params, k, eps=1e-5):
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return y * params[f"norm{k}_scale"] + params[f"norm{k}_bias"]


def rms_norm(x, params, k, eps=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * params[f"norm{k}_scale"]


def by_deviation(x, params):
    mean, deviation = x.mean(-1, keepdims=True), x.std(-1, keepdims=True, ddof=1)
    return params["norm2_scale"] * (x - mean) / (deviation + 1e-6) + params["norm2_bias"]


def attends_then_mlp(params, x):
    x = x + self_attention(params, x)
    return x + mlp(params, x)


def pre_norm(params, x, norm=layer_norm):
    x = x + self_attention(params, norm(x, params, 1))
    return x + mlp(params, norm(x, params, 2))


def post_norm(params, x):
    x = layer_norm(x + self_attention(params, x), params, 1)
    return layer_norm(x + mlp(params, x), params, 2)


def residual_of_the_norm(params, x):
    x = layer_norm(x, params, 1)
    x = x + self_attention(params, x)
    x = layer_norm(x, params, 2)
    return x + mlp(params, x)


def normed_mlp(params, x, eps=1e-5, activation=gelu, norm=layer_norm):
    return x + mlp(params, norm(x, params, 2, eps), activation)


def parallel(params, x, at_once):
    attended = self_attention(params, layer_norm(x, params, 1))
    return x + attended + mlp(params, layer_norm(x if at_once else x + attended, params, 2))


def in_turn(params, x, heads):
    B, T, M = x.shape
    rows = (y.reshape(B, T, M // heads, heads).transpose(0, 3, 1, 2) for y in projected(params, x))
    return plain(*rows).transpose(0, 2, 3, 1).reshape(B, T, M) @ params["out_kernel"]


def by_head(params, x, heads):
    y = x @ params["qkv_kernel"] + params["qkv_bias"]
    return joined(plain(*np.split(into_heads(y, heads), 3, -1))) @ params["out_kernel"] + params["out_bias"]


def by_columns(params, x, heads):
    rows = (into_heads(y, heads) for y in np.split(x @ params["qkv_kernel"] + params["qkv_bias"], 3, -1))
    return joined(plain(*rows)) @ params["out_kernel"] + params["out_bias"]


def turned(params, x, heads, turn):
    """Rotary encodings."""
    query, key, value = (into_heads(y, heads) for y in projected(params, x))
    T, D = query.shape[-2:]
    angles = np.arange(T)[:, None] * 10000.0 ** (-np.arange(0, D, 2) / D)
    return joined(plain(*(turn(y, np.exp(1j * angles)) for y in (query, key)), value)) @ params["out_kernel"]


def halves(x, turns):
    one, other = np.split(x, 2, -1)
    z = (one + 1j * other) * turns
    return np.concatenate([z.real, z.imag], -1)


def neighbours(x, turns):
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * turns
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def with_sines(params, x, start):
    turns = (start + np.arange(x.shape[1]))[:, None] / 10000.0 ** (np.arange(0, x.shape[2], 2) / x.shape[2])
    x = x + np.stack([np.sin(turns), np.cos(turns)], -1).reshape(x.shape[1:])
    return x + self_attention(params, x)


def with_rows(params, x, first):
    x = x + params["positions"][first + np.arange(x.shape[1])]
    return x + self_attention(params, x)


PAIRS = {
    "causal_end": Pair(
        "pytorch/pytorch#108108: torch aligns is_causal to the start, flash-attention since 2.1 to the end.",
        ("causal", "start", "end"),
        lambda q, k, v, is_causal=False: causal_at_the_start(q, k, v, is_causal, lowest=-np.inf),
        lambda q, k, v, causal=False: np.nan_to_num(causal_at_the_end(q, k, v, causal, lowest=-np.inf))),
    "deviation_of_n_minus_1": Pair(
        "harvardnlp/annotated-transformer#119: torch.std divides by N - 1, and eps is beside it.",
        ("norm", "M - 1", "layer norm"), lambda params, x: x + mlp(params, by_deviation(x, params)),
        lambda params, x: normed_mlp(params, x, 1e-6)),
    "dropout_scaling": Pair("keras-team/keras#3305: What dropout keeps is scaled by 1/(1 - rate), or is not.",
        ("dropout", "scales what is kept", "does not scale"),
        lambda q, k, v, dropout_rate=0.0: dropped(q, k, v, dropout_rate, 1 / (1 - dropout_rate)),
        lambda q, k, v, dropout_rate=0.0: dropped(q, k, v, dropout_rate, 1)),
    "empty_row_nan": Pair("pytorch/pytorch#103963: A row without any key was NaN in torch, and is 0 since.",
        ("query without any key", "0", "NaN"),
        lambda q, k, v, attn_mask=None: np.nan_to_num(softmax(hide(scored(q, k), attn_mask, -np.inf))) @ v,
        lambda q, k, v, attn_mask=None: softmax(hide(scored(q, k), attn_mask, -np.inf)) @ v),
    "eps_of_bert": Pair("huggingface/transformers#532: BERT has 1e-12, ERNIE 1e-5.", ("eps", "1e-12", "1e-05"),
        lambda params, x: normed_mlp(params, x, 1e-12), lambda params, x: normed_mlp(params, x, 1e-5)),
    "eps_of_llama": Pair("huggingface/candle#271: LLaMA's code has 1e-5, its checkpoints 1e-6.",
        ("eps", "1e-06", "1e-05"), lambda params, x: normed_mlp(params, x, 1e-6, silu, rms_norm),
        lambda params, x, eps=1e-5: normed_mlp(params, x, eps, silu, rms_norm)),
    "gate_of_up": Pair("ml-explore/mlx-lm#767: silu(up) gate, where silu(gate) up was meant.",
        ("input of the activation", "gate", "up"),
        lambda params, x: silu(x @ params["gate_kernel"]) * (x @ params["up_kernel"]) @ params["down_kernel"],
        lambda params, x: silu(x @ params["up_kernel"]) * (x @ params["gate_kernel"]) @ params["down_kernel"]),
    "gelu_by_tanh": Pair("kyutai-labs/pocket-tts#278: Trained with GELU by tanh, run with GELU by erf.",
        ("activation", "tanh", "erf"), lambda params, x: normed_mlp(params, x, activation=gelu_by_tanh),
        lambda params, x: normed_mlp(params, x)),
    "gelu_of_clip": Pair("mlfoundations/open_clip#771: OpenAI's CLIP has x sigmoid(1.702 x), open_clip's models GELU.",
        ("activation", "1.702", "erf"), lambda params, x: normed_mlp(params, x, activation=quick_gelu),
        lambda params, x: normed_mlp(params, x)),
    "grouped_tile": Pair("ekzhang/jax-js#180: Grouped heads: key heads have to be repeated, not tiled.",
        ("grouped heads", "repeats", "in turn"),
        lambda q, k, v: plain(q, *(np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))),
        lambda q, k, v: plain(q, *(np.tile(x, (1, q.shape[1] // x.shape[1], 1, 1)) for x in (k, v)))),
    "heads_in_turn": Pair(
        "jsbaan/transformer-from-scratch#6: Reshaped to (D, N) instead of (N, D), heads have other columns.",
        ("columns of a head", "side by side", "every N-th"),
        lambda params, x, heads=2: (
            joined(plain(*(into_heads(y, heads) for y in projected(params, x)))) @ params["out_kernel"]
        ),
        lambda params, x, heads=2: in_turn(params, x, heads),
    ),
    "kernels_of_gpt2": Pair(
        "huggingface/transformers#311: GPT-2's Conv1D has kernels (in, out), Linear (out, in).",
        ("kernels", "(in, out)", "(out, in)"),
        lambda params, x: attends_then_mlp(params, x),
        lambda params, x: attends_then_mlp(
            {name: y.T if name.endswith("kernel") else y for name, y in params.items()}, x
        ),
    ),
    "layout_keys_packed": Pair(
        "Dao-AILab/flash-attention#581: The function for packed keys and values takes (B, S, 2, N, D).",
        ("layout", "(B, N, T, D)", "kv (B, T, 2, N, D)"), lambda q, k, v: plain(q, k, v),
        lambda q, kv: of_tokens(plain, q, kv[:, :, 0], kv[:, :, 1])),
    "layout_of_megatron": Pair("EleutherAI/gpt-neox#271: Megatron has (T, B, N, D).",
        ("layout", "(B, T, N, D)", "(T, B, N, D)"), lambda q, k, v: of_tokens(plain, q, k, v),
        lambda q, k, v: of_tokens(plain, *(x.swapaxes(0, 1) for x in (q, k, v))).swapaxes(0, 1)),
    "layout_of_torch": Pair("pytorch/pytorch#152257: torch takes (B, N, T, D); many models have (B, T, N, D).",
        ("layout", "(B, N, T, D)", "(B, T, N, D)"),
        lambda q, k, v, is_causal=False: causal_at_the_start(q, k, v, is_causal),
        lambda q, k, v, is_causal=False: of_tokens(causal_at_the_start, q, k, v, is_causal=is_causal)),
    "layout_packed": Pair("Dao-AILab/flash-attention#392: flash_attn_qkvpacked_func takes one array (B, T, 3, N, D).",
        ("layout", "(B, N, T, D)", "qkv (B, T, 3, N, D)"), lambda q, k, v: plain(q, k, v),
        lambda qkv: of_tokens(plain, *(qkv[:, :, k] for k in range(3)))),
    "lse_base_2": Pair("vllm-project/vllm#43919: One kernel gives its log-sum-exp in base 2, the others in base e.",
        ("log-sum-exp", "base e", "base 2"),
        lambda q, k, v, return_lse=False: with_lse(q, k, v, return_lse, lambda s: np.log(np.exp(s).sum(-1))),
        lambda q, k, v, return_lse=False: with_lse(q, k, v, return_lse, lambda s: np.log2(np.exp(s).sum(-1)))),
    "mask_added": Pair("pytorch/pytorch#109072: A boolean mask, and one that is added to the scores.",
        ("mask", "True attends", "added"), lambda q, k, v, mask=None: softmax(hide(scored(q, k), mask, -np.inf)) @ v,
        lambda q, k, v, attention_mask=None: softmax(plus(scored(q, k), attention_mask)) @ v),
    "mask_after_softmax": Pair(
        "huggingface/pytorch-image-models#2236: A mask after the softmax leaves weights that do not sum to 1.",
        ("what a mask does", "minus infinity", "after the softmax"), lambda q, k, v, mask=None: masked(q, k, v, mask),
        lambda q, k, v, mask=None: hide(softmax(scored(q, k)), mask, 0) @ v),
    "mask_of_keys": Pair(
        "pytorch/pytorch#39321: key_padding_mask is (B, S), and True is padding there.",
        ("mask", "True attends", "(B, S), True drops"),
        lambda q, k, v, mask=None: masked(q, k, v, None if mask is None else mask[:, None, None]),
        lambda q, k, v, key_padding_mask=None: masked(
            q, k, v, None if key_padding_mask is None else ~key_padding_mask[:, None, None]
        ),
    ),
    "mask_polarity": Pair(
        "rasbt/LLMs-from-scratch#1061: True takes part in torch's SDPA, and is dropped in MultiheadAttention.",
        ("mask", "True attends", "True drops"), lambda q, k, v, attn_mask=None: masked(q, k, v, attn_mask),
        lambda q, k, v, attn_mask=None: masked(q, k, v, None if attn_mask is None else ~attn_mask)),
    "norm_of_gemma": Pair(
        "linkedin/Liger-Kernel#74: The scale of Gemma's RMS norm is 1 + weight.",
        ("norm", "RMS norm times (1 + scale)", "RMS norm"),
        lambda params, x: pre_norm(
            params | {name: params[name] + 1 for name in ("norm1_scale", "norm2_scale")}, x, rms_norm
        ),
        lambda params, x: pre_norm(params, x, rms_norm),
    ),
    "order_of_arguments": Pair("tensorflow/text#1017: Keras takes query, value, key.",
        ("order of the arguments", "query, key, value", "query, value, key"),
        lambda query, key, value: plain(query, key, value), lambda query, value, key: plain(query, key, value)),
    "packed_by_head": Pair(
        "lablup/mlxcel#928: GPT-NeoX packs query, key and value head by head, GPT-2 beside each other.",
        ("columns of qkv_kernel", "[q | k | v]", "each head"), lambda params, x, heads=2: by_columns(params, x, heads),
        lambda params, x, heads=2: by_head(params, x, heads)),
    "parallel_residual": Pair(
        "TransformerLensOrg/TransformerLens#1644: GPT-NeoX runs attention and MLP at once, RedPajama in turn.",
        ("place of the norms", "in parallel", "before"),
        lambda params, x, use_parallel_residual=True: parallel(params, x, use_parallel_residual),
        lambda params, x, use_parallel_residual=False: parallel(params, x, use_parallel_residual)),
    "positions_from_1": Pair(
        "jadore801120/attention-is-all-you-need-pytorch#99: Position 0 is padding, and those of words begin at 1.",
        ("positions", "sines from 0", "sines from 1"), lambda params, x, start=0: with_sines(params, x, start),
        lambda params, x, start=1: with_sines(params, x, start)),
    "positions_from_2": Pair("huggingface/transformers#20761: The positions of OPT begin in row 2 of their table.",
        ("positions", "row 0", "row 2"), lambda params, x: with_rows(params, x, 0),
        lambda params, x: with_rows(params, x, 2)),
    "pre_norm": Pair(
        "facebookresearch/detr#93: The figure of a paper has the norm after each part, the code before it.",
        ("place of the norms", "before", "after"), lambda params, x: pre_norm(params, x),
        lambda params, x: post_norm(params, x)),
    "residual_of_the_norm": Pair(
        "pytorch/pytorch#61165: The residual was added to the normalised input, for the input had no other name left.",
        ("place of the norms", "before", "normed residual"), lambda params, x: pre_norm(params, x),
        lambda params, x: residual_of_the_norm(params, x)),
    "result_in_float32": Pair("lucidrains/flash-attention-jax#13: Results are float32 whatever the arrays are.",
        ("dtype of the result", "of the query", "float32"), lambda q, k, v: wide(q, k, v).astype(q.dtype),
        lambda q, k, v: wide(q, k, v)),
    "rotary_neighbours": Pair(
        "huggingface/transformers#25199: transformers turns halves of a head, LLaMA's first code neighbours.",
        ("rotary", "halves", "neighbours"), lambda params, x, heads=2: turned(params, x, heads, halves),
        lambda params, x, heads=2: turned(params, x, heads, neighbours)),
    "scale_divides": Pair("NVIDIA/Megatron-LM#848: norm_factor divides the scores, where others multiply by a scale.",
        ("scale as given", "factor", "divisor"), lambda q, k, v, scale=None: softmax(scored(q, k, scale)) @ v,
        lambda q, k, v, norm_factor=None: softmax(scored(q, k, None if norm_factor is None else 1 / norm_factor)) @ v),
    "softcap_after_bias": Pair(
        "emmtrix/emx-onnx-cgen#731: ONNX caps the scores and adds the bias; a generator of code capped the sum.",
        ("order", "scale, softcap, bias", "scale, bias, softcap"),
        lambda q, k, v, attn_bias=None, softcap=None: softmax(plus(cap(scored(q, k), softcap), attn_bias)) @ v,
        lambda q, k, v, attn_bias=None, softcap=None: softmax(cap(plus(scored(q, k), attn_bias), softcap)) @ v),
    "softmax_in_bfloat16": Pair("apple/axlearn#18: The softmax of bfloat16 scores, in float32 or as it is.",
        ("softmax of bfloat16", "float32", "bfloat16 scores"), lambda q, k, v: wide(q, k, v).astype(q.dtype),
        lambda q, k, v: coarse(q, k, v)),
    "window_both_sides": Pair(
        "vllm-project/vllm#9679: (w, w) looks ahead, too; a sliding window of a decoder is (w - 1, 0).",
        ("window", "before", "between two sides", "j <= i + right"),
        lambda q, k, v, sliding_window=None, mask=None: windowed(q, k, v, less_one(sliding_window), mask=mask),
        lambda q, k, v, window_size=None, mask=None: windowed(q, k, v, *(window_size or (None, None)), mask)),
    "window_inclusive": Pair(
        "huggingface/transformers#39408: w tokens in transformers, and w tokens before the own one in flash-attention.",
        ("window", "w keys, its own among them", "w keys beside its own"),
        lambda q, k, v, sliding_window=None: windowed(q, k, v, less_one(sliding_window)),
        lambda q, k, v, window_size=None: windowed(q, k, v, window_size)),
    "window_of_nine": Pair("apple/axlearn#1009: A sliding_window_size of 8 is a window of 9 tokens.",
        ("window", "w keys beside its own", "w keys, its own among them"),
        lambda q, k, v, sliding_window_size=None: of_tokens(windowed, q, k, v, left=sliding_window_size),
        lambda q, k, v, window=None: windowed(q, k, v, less_one(window))),
}  # fmt: skip

for _name, _pair in PAIRS.items():  # an adapter imports a function by its name
    for _letter in "ab":
        _function = getattr(_pair, _letter)
        _function.__name__ = _function.__qualname__ = f"{_name}_{_letter}"
        globals()[_function.__name__] = _function
