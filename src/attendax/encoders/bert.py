"""Weights of real checkpoints: a BERT directory (``config.json``, ``model.safetensors``) into ``EncoderParams``.

Every tensor is accounted for in both directions. It has to be: the matrices are square, so a missing transpose fits;
and a key bias that was never read changes no output at all (softmax does not see a shift of its scores).
"""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attendax.extras import require
from attendax.params import EncoderParams

from .encoder import EncoderConfig, encoder_shapes

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
    as in checkpoints saved with a head. Half-precision weights are widened to float32, exactly.

    Args:
        directory: holds ``config.json`` and ``model.safetensors``.

    Returns:
        ``(params, config)``. The leaves of ``params`` are NumPy arrays; ``jax.device_put(params)`` moves them once.

    Raises:
        FileNotFoundError: the directory or one of its two files is missing.
        ValueError: a file is corrupt, a value in ``config.json`` is of another type, or a tensor is missing, unexpected
            or of another shape than ``config.json`` says.
        NotImplementedError: another kind of model, position embedding or activation.
        ModuleNotFoundError: ``safetensors`` is not installed.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"load_bert: there is no directory {directory}")
    config = _encoder_config(read_json(directory / "config.json", "load_bert"))
    tensors = _read_tensors(directory / "model.safetensors")
    leaves, structure = jax.tree_util.tree_flatten_with_path(encoder_shapes(config))
    _check_names(wanted={_tensor_name(path) for path, _ in leaves}, found=set(tensors))
    return jax.tree.unflatten(structure, [_leaf(path, leaf.shape, tensors) for path, leaf in leaves]), config


def read_json(path: Path, function: str, kind: type = dict) -> Any:
    """The content of a JSON file, an object unless ``kind`` says otherwise.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, or of another kind. Both messages name ``function`` and the file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{function}: {path} is missing")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or brackets without end
        raise ValueError(f"{function}: {path} is not valid JSON ({error})") from None
    if not isinstance(content, kind):
        raise ValueError(f"{function}: {path} must hold a {kind.__name__}, got a {type(content).__name__}")
    return content


def _encoder_config(settings: dict[str, Any]) -> EncoderConfig:
    """``EncoderConfig`` from ``config.json``; what would change the meaning of the weights is refused, not ignored."""
    supported = {"model_type": "bert", "position_embedding_type": "absolute", "is_decoder": False}
    for key, wanted in supported.items():
        got = settings.get(key, None if key == "model_type" else wanted)
        if got != wanted:
            raise NotImplementedError(f"load_bert: config.json has {key}={got!r}, supported is {wanted!r}")
    missing = [key for key in CONFIG_KEYS.values() if key not in settings]
    if missing:
        raise ValueError(f"load_bert: config.json lacks {', '.join(missing)}")
    for key in CONFIG_KEYS.values():
        _check_type(key, settings[key], (int,), "an integer")
    activation = settings.get("hidden_act", "gelu")
    _check_type("hidden_act", activation, (str,), "a string")
    eps = settings.get("layer_norm_eps", 1e-12)
    _check_type("layer_norm_eps", eps, (int, float), "a number")
    if activation not in ACTIVATIONS:
        choices = ", ".join(ACTIVATIONS)
        raise NotImplementedError(f"load_bert: config.json has hidden_act={activation!r}, supported are {choices}")
    sizes = {ours: settings[theirs] for ours, theirs in CONFIG_KEYS.items()}
    return EncoderConfig(**sizes, activation=ACTIVATIONS[activation], eps=eps)


def _check_type(key: str, value: Any, kinds: tuple[type, ...], wanted: str) -> None:
    """Refuse a value of ``config.json`` that is of another type; exactly, since ``True`` is an ``int`` too."""
    if type(value) not in kinds:
        raise ValueError(f"load_bert: config.json has {key}={value!r}, expected {wanted}")


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of the file that could belong to an encoder, by its name without the leading ``bert.``."""
    safetensors = require("safetensors", "load_bert")
    load_file = require("safetensors.numpy", "load_bert").load_file
    if not path.is_file():
        raise FileNotFoundError(f"load_bert: {path} is missing; only weights in a single safetensors file are read")
    try:
        stored = load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(f"load_bert: {path} is corrupt ({error})") from None
    tensors = {name.removeprefix("bert."): tensor for name, tensor in stored.items()}
    if len(tensors) != len(stored):
        raise ValueError(f"load_bert: {path} holds a tensor twice, with and without the prefix 'bert.'")
    return {name: tensor for name, tensor in tensors.items() if not _is_unused(name)}


def _is_unused(name: str) -> bool:
    return name in UNUSED_TENSORS or name.startswith(UNUSED_PREFIXES)


def _tensor_name(path: tuple[Any, ...]) -> str:
    """The name in the checkpoint of the leaf at ``path``, such as ``.blocks[3].attention.W_Q``."""
    field = path[-1].name
    if path[0].name == "embeddings":
        return f"embeddings.{EMBEDDING_TENSORS[field]}"
    return f"encoder.layer.{path[1].idx}.{BLOCK_TENSORS[field]}"


def _check_names(wanted: set[str], found: set[str]) -> None:
    for kind, names in (("lacks", wanted - found), ("holds, and an encoder has no place for,", found - wanted)):
        if names:
            listed = ", ".join(sorted(names)[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            raise ValueError(f"load_bert: model.safetensors {kind} {listed}")


def _leaf(path: tuple[Any, ...], shape: tuple[int, ...], tensors: dict[str, np.ndarray]) -> np.ndarray:
    """One weight in our orientation, contiguous: read (out, in), a matrix costs a quarter of the speed at batch 1."""
    name = _tensor_name(path)
    tensor = tensors[name]
    is_matrix = path[-1].name.startswith("W")
    stored_shape = shape[::-1] if is_matrix else shape
    if tensor.shape != stored_shape:
        raise ValueError(f"load_bert: tensor {name} has shape {tensor.shape}, config.json says {stored_shape}")
    if str(tensor.dtype) not in ("float16", "bfloat16", "float32", "float64"):
        raise ValueError(f"load_bert: tensor {name} has dtype {tensor.dtype}, expected a floating one")
    return np.ascontiguousarray(tensor.T if is_matrix else tensor, dtype=np.promote_types(tensor.dtype, np.float32))
