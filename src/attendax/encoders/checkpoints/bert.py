"""A BERT directory (``config.json``, ``model.safetensors``) as ``EncoderParams``, and back.

Every tensor is accounted for in both directions. The matrices are square, so a missing transpose would fit. A missing
key bias would not change any output, because softmax does not see a shift of its scores.
"""

import os
from typing import Any

from attendax.params import EncoderParams

from ..config import EncoderConfig
from .files import Settings, Source
from .published import Kind, read_model, write_model

EMBEDDING_TENSORS = {
    "token": "word_embeddings.weight",
    "position": "position_embeddings.weight",
    "token_type": "token_type_embeddings.weight",
    "gamma": "LayerNorm.weight",
    "beta": "LayerNorm.bias",
}

BLOCK_TENSORS = {
    "W_Q": "attention.self.query.weight",
    "W_K": "attention.self.key.weight",
    "W_V": "attention.self.value.weight",
    "W_O": "attention.output.dense.weight",
    "b_Q": "attention.self.query.bias",
    "b_K": "attention.self.key.bias",
    "b_V": "attention.self.value.bias",
    "b_O": "attention.output.dense.bias",
    "W1": "intermediate.dense.weight",
    "b1": "intermediate.dense.bias",
    "W2": "output.dense.weight",
    "b2": "output.dense.bias",
    "gamma1": "attention.output.LayerNorm.weight",
    "beta1": "attention.output.LayerNorm.bias",
    "gamma2": "output.LayerNorm.weight",
    "beta2": "output.LayerNorm.bias",
}

# What a checkpoint may hold beside the encoder: the positions 0, 1, 2, ... stored as a tensor, the pooler that belongs
# to next-sentence prediction, and the heads of the usual tasks. Anything else that is left over is an error.
UNUSED_TENSORS = ("embeddings.position_ids", "embeddings.token_type_ids")
UNUSED_PREFIXES = ("pooler.", "cls.", "classifier.", "qa_outputs.")

# Old files, bert-base-uncased among them, name the weights of a norm as TensorFlow does.
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
CLASSES = ("BertModel", "BertFor", "BertLMHead")  # they say the kind of a model that is older than model_type

ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}

CONFIG_KEYS = {
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "num_token_types": "type_vocab_size",
    "d_model": "hidden_size",
    "num_heads": "num_attention_heads",
    "d_ff": "intermediate_size",
    "num_layers": "num_hidden_layers",
}


def load_bert(directory: str | os.PathLike[str]) -> tuple[EncoderParams, EncoderConfig]:
    """Read the encoder of a BERT checkpoint.

    Matrices are stored (out, in) there and (in, out) here: they are transposed. Tensor names may begin with ``bert.``,
    as in checkpoints saved with a head. The weights of a norm may have their old names, ``LayerNorm.gamma`` and
    ``LayerNorm.beta``, as in bert-base-uncased. Half-precision weights are widened to float32, exactly.

    Args:
        directory: holds ``config.json`` and ``model.safetensors``.

    Returns:
        ``(params, config)``. The leaves of ``params`` are NumPy arrays; ``jax.device_put(params)`` moves them once.

    Raises:
        FileNotFoundError: the directory or one of its two files is missing.
        ValueError: a file is corrupt, a value in ``config.json`` has the wrong type, or a tensor is missing,
            unexpected, or does not have the shape in ``config.json``.
        NotImplementedError: the kind of model, of position embedding or of activation is not supported.
        ModuleNotFoundError: ``safetensors`` is not installed.
    """
    return read_model("load_bert", KIND, directory)


def save_bert(
    directory: str | os.PathLike[str],
    params: EncoderParams,
    config: EncoderConfig,
    *,
    like: str | os.PathLike[str] | None = None,
) -> None:
    """Write a BERT checkpoint, as ``load_bert`` and transformers read it: ``config.json`` and ``model.safetensors``.

    Both files appear only when they are complete. Copy other files, such as a tokenizer's, yourself. Layers of a stack
    (``stack_layers``) are stored one by one.

    Args:
        directory: created if it is missing.
        params: the weights, NumPy or JAX. The tensors get the widest of their dtypes.
        config: the sizes and options of ``params``.
        like: a BERT directory of the same configuration, such as the one that the weights come from. The new files then
            also have its tensors that ``load_bert`` leaves out (pooler, heads), its other settings and its prefix of
            names. Without it, transformers draws the missing tensors at random and says so.

    Raises:
        TypeError, ValueError: the weights are not those of the configuration, or traced; ``like`` is corrupt.
        NotImplementedError: the configuration is not BERT's, or not that of ``like``.
        OSError: a file cannot be written; if a file of ``like`` is missing, ``FileNotFoundError``.
        ModuleNotFoundError: ``safetensors`` is not installed.

    Example:
        >>> import jax, tempfile
        >>> from attendax.encoders import init_encoder
        >>> config = EncoderConfig(11, 7, 2, d_model=6, num_heads=3, d_ff=5, num_layers=2)
        >>> directory = tempfile.mkdtemp()
        >>> save_bert(directory, init_encoder(jax.random.key(0), config), config)
        >>> load_bert(directory)[1] == config
        True
    """
    write_model("save_bert", KIND, directory, params, config, like)


def _config(settings: Settings) -> EncoderConfig:
    settings.only(position_embedding_type="absolute", is_decoder=False)
    sizes = settings.sizes(CONFIG_KEYS)
    activation = settings.activation("hidden_act", ACTIVATIONS)
    return EncoderConfig(**sizes, activation=activation, eps=settings.number("layer_norm_eps", 1e-12, 1))


def _settings(config: EncoderConfig) -> dict[str, Any]:
    """The settings that ``_config`` reads, back; what it does not read as ``config`` is not BERT's."""
    activations = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    activation = activations.get(config.activation, config.activation)
    return {"hidden_act": activation, "layer_norm_eps": float(config.eps)}


def _source(path: tuple[Any, ...], shapes: EncoderParams) -> Source:
    """The tensor of the leaf at ``path``, such as ``.blocks[3].attention.W_Q``; matrices are stored (out, in)."""
    field = path[-1].name
    if path[0].name == "embeddings":
        return Source(f"embeddings.{EMBEDDING_TENSORS[field]}", getattr(shapes.embeddings, field).shape)
    block = shapes.blocks[path[1].idx]
    shape = getattr(block.attention if field in block.attention._fields else block, field).shape
    name, turned = f"encoder.layer.{path[1].idx}.{BLOCK_TENSORS[field]}", field.startswith("W")
    return Source(name, shape[::-1] if turned else shape, turned=turned)


KIND = Kind(
    name="BERT",
    model_type="bert",
    sizes=CONFIG_KEYS,
    prefix="bert.",
    layers="encoder.layer.",
    dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    classes=CLASSES,
    renamed=RENAMED,
    unused=lambda name: name in UNUSED_TENSORS or name.startswith(UNUSED_PREFIXES),
    config=_config,
    settings=_settings,
    defaults={"architectures": ["BertModel"], "position_embedding_type": "absolute"},
    source=_source,
)
