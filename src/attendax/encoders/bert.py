"""Weights of real checkpoints: a BERT directory (``config.json``, ``model.safetensors``) into ``EncoderParams``.

Every tensor is accounted for in both directions. It has to be: the matrices are square, so a missing transpose fits;
and a key bias that was never read changes no output at all (softmax does not see a shift of its scores).
"""

import json
import os
import reprlib
from pathlib import Path
from typing import Any, NoReturn

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

FLOATING = ("F16", "BF16", "F32", "F64")  # as safetensors names them
LARGEST = 2**31 - 1  # of a size in config.json
LONGEST_NAME = 80  # that an error shows whole
JSON_BYTES = 2**24  # settings take a few thousand

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
    return _read_params(directory / "model.safetensors", config), config


def read_json(path: Path, function: str, kind: type = dict) -> Any:
    """The content of a JSON file, an object unless ``kind`` says otherwise.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, too large, or of another kind. All messages name ``function`` and the file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{function}: {path} is missing")
    if path.stat().st_size > JSON_BYTES:
        raise ValueError(f"{function}: {path} has {path.stat().st_size} bytes, more than settings ever take")
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
            raise NotImplementedError(f"load_bert: config.json has {key}={reprlib.repr(got)}, supported is {wanted!r}")
    missing = [key for key in CONFIG_KEYS.values() if key not in settings]
    if missing:
        raise ValueError(f"load_bert: config.json lacks {', '.join(missing)}")
    sizes: dict[str, Any] = {ours: _size(settings, theirs) for ours, theirs in CONFIG_KEYS.items()}
    if sizes["d_model"] % sizes["num_heads"]:
        facts = f"hidden_size={sizes['d_model']}, which num_attention_heads={sizes['num_heads']} does not divide"
        raise ValueError(f"load_bert: config.json has {facts}")
    activation = settings.get("hidden_act", "gelu")
    if not isinstance(activation, str):
        _refuse("hidden_act", activation, "a string")
    if activation not in ACTIVATIONS:
        got, choices = reprlib.repr(activation), ", ".join(ACTIVATIONS)
        raise NotImplementedError(f"load_bert: config.json has hidden_act={got}, supported are {choices}")
    eps = settings.get("layer_norm_eps", 1e-12)
    if type(eps) not in (int, float) or not 0 <= eps <= 1:
        _refuse("layer_norm_eps", eps, "a number from 0 to 1")
    return EncoderConfig(**sizes, activation=ACTIVATIONS[activation], eps=float(eps))


def _size(settings: dict[str, Any], key: str) -> int:
    value, least = settings[key], 0 if key == "num_hidden_layers" else 1
    if type(value) is not int or not least <= value <= LARGEST:  # exactly an int: True is an instance, too
        _refuse(key, value, f"an integer from {least} to {LARGEST}")
    return value


def _refuse(key: str, value: Any, wanted: str) -> NoReturn:
    raise ValueError(f"load_bert: config.json has {key}={reprlib.repr(value)}, expected {wanted}")


def _read_params(path: Path, config: EncoderConfig) -> EncoderParams:
    """The weights that ``config`` asks for; of what else the file may hold, only the names are read."""
    safetensors = require("safetensors", "load_bert")
    require("safetensors.numpy", "load_bert")
    if not path.is_file():
        raise FileNotFoundError(f"load_bert: {path} is missing; only weights in a single safetensors file are read")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return _params(file, _stored_names(path, file.keys()), config)
    except safetensors.SafetensorError as error:
        raise ValueError(f"load_bert: {path} is corrupt ({error})") from None


def _stored_names(path: Path, stored: list[str]) -> dict[str, str]:
    """Name -> name in the file, which may begin with ``bert.``, of every tensor that could belong to an encoder."""
    names = {name.removeprefix("bert."): name for name in stored}
    if len(names) != len(stored):
        raise ValueError(f"load_bert: {path} holds a tensor twice, with and without the prefix 'bert.'")
    return {name: full for name, full in names.items() if not _is_unused(name)}


def _params(file: Any, stored: dict[str, str], config: EncoderConfig) -> EncoderParams:
    """Every leaf from the open file. The layers are counted before a tree with as many as ``config`` says is built."""
    layers = len({name.split(".")[2] for name in stored if name.startswith("encoder.layer.")})
    if config.num_layers > layers:
        facts = f"config.json has num_hidden_layers={config.num_layers}, but model.safetensors holds {layers} layers"
        raise ValueError(f"load_bert: {facts}")
    leaves, structure = jax.tree_util.tree_flatten_with_path(encoder_shapes(config))
    _check_names(wanted={_tensor_name(path) for path, _ in leaves}, found=set(stored))
    return jax.tree.unflatten(structure, [_leaf(path, leaf.shape, file, stored) for path, leaf in leaves])


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
            raise ValueError(f"load_bert: model.safetensors {kind} {listed(sorted(names))}")


def listed(names: list[str]) -> str:
    """The first names of a list that may be long; of what a file holds, a few words are enough.

    Example:
        >>> listed(["a", "b", "c", "d", "e", "f"])
        'a, b, c, d and 2 more'
    """
    shown = ", ".join(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..." for name in names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _leaf(path: tuple[Any, ...], shape: tuple[int, ...], file: Any, stored: dict[str, str]) -> np.ndarray:
    """One weight in our orientation, contiguous: read (out, in), a matrix costs a quarter of the speed at batch 1."""
    name = _tensor_name(path)
    found = file.get_slice(stored[name])  # shape and dtype; the numbers are not read yet
    is_matrix = path[-1].name.startswith("W")
    stored_shape = shape[::-1] if is_matrix else shape
    if tuple(found.get_shape()) != stored_shape:
        got = tuple(found.get_shape())
        raise ValueError(f"load_bert: tensor {name} has shape {got}, config.json says {stored_shape}")
    if found.get_dtype() not in FLOATING:
        got = found.get_dtype()
        raise ValueError(f"load_bert: tensor {name} has dtype {got}, supported are {', '.join(FLOATING)}")
    tensor = file.get_tensor(stored[name])
    return np.ascontiguousarray(tensor.T if is_matrix else tensor, dtype=np.promote_types(tensor.dtype, np.float32))
