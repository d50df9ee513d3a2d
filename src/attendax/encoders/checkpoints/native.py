"""Encoders in files of our own: safetensors, the configuration inside."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from attendax import writing
from attendax.extras import require
from attendax.params import EncoderParams
from attendax.rotary import Frequencies

from ..config import EncoderConfig, encoder_shapes
from ..inputs import check_params
from ..stack import unstacked
from .files import LARGEST, check_dtype, check_names, listed, opened

FORMAT = "attendax encoder 1"
SIZES = ("vocab_size", "max_positions", "d_model", "num_heads", "d_ff")


def save(path: str | os.PathLike[str], params: EncoderParams, config: EncoderConfig) -> None:
    """Write an encoder to one safetensors file: every weight under its name, such as ``blocks.0.attention.W_Q``.

    The file is there whole or not at all: it is written beside its place and then moved. An older file stays until
    then. Layers of a stack (``stack_layers``) are stored one by one. All of it is in memory once more meanwhile.

    Args:
        path: the file.
        params: the weights, NumPy or JAX, of one floating dtype or several.
        config: sizes and options; those of ``params``.

    Raises:
        TypeError, ValueError: the weights are not those of the configuration.
        OSError: the disk is full, there is no such folder, or nothing may be written there; ``path`` is as it was.
        ModuleNotFoundError: ``safetensors`` is not installed.

    Example:
        >>> import tempfile
        >>> from attendax.encoders import init_encoder
        >>> config = EncoderConfig(11, 7, 2, d_model=6, num_heads=3, d_ff=5, num_layers=2)
        >>> file = Path(tempfile.mkdtemp()) / "encoder.safetensors"
        >>> save(file, init_encoder(jax.random.key(0), config), config)
        >>> load(file)[1] == config
        True
    """
    check_params(params, config, "save")
    writer = require("safetensors.numpy", "save")
    blocks = tuple(unstacked(params.blocks))
    leaves = jax.tree_util.tree_leaves_with_path(params._replace(blocks=blocks))
    tensors = {_name(where): np.ascontiguousarray(leaf) for where, leaf in leaves}
    metadata = {"format": FORMAT, "config": json.dumps(dataclasses.asdict(config))}
    writing.write(path, writer.save(tensors, metadata=metadata))  # save_file renames a file of its own


def load(path: str | os.PathLike[str]) -> tuple[EncoderParams, EncoderConfig]:
    """Read an encoder that ``save`` wrote.

    Args:
        path: the file.

    Returns:
        ``(params, config)``; the leaves of ``params`` are NumPy arrays of the dtypes that were saved.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is corrupt, not such a file, or a tensor is missing, unexpected or of another shape or dtype.
        ModuleNotFoundError: ``safetensors`` is not installed.
    """
    path = Path(path)

    def read(file: Any) -> tuple[EncoderParams, EncoderConfig]:
        names = set(file.keys())
        layers = {name.split(".")[1] for name in names if name.startswith("blocks.")}
        config = _config(path, file.metadata() or {}, len(layers))
        leaves, structure = jax.tree_util.tree_flatten_with_path(encoder_shapes(config))
        check_names("load", {_name(where) for where, _ in leaves}, names, str(path))
        return jax.tree.unflatten(structure, [_leaf(file, _name(where), leaf.shape) for where, leaf in leaves]), config

    return opened(path, "load", read)


def _name(where: tuple[Any, ...]) -> str:
    """``.blocks[0].attention.W_Q`` as ``blocks.0.attention.W_Q``."""
    return ".".join(str(key.idx) if hasattr(key, "idx") else key.name for key in where)


def _config(path: Path, metadata: dict[str, str], layers: int) -> EncoderConfig:
    """The configuration in the header; a size that the tensors cannot have is refused before anything is built."""
    if metadata.get("format") != FORMAT:
        raise ValueError(f"load: {path} is not a file that save wrote (no {FORMAT!r} in its header)")
    try:
        settings = json.loads(metadata.get("config", ""))
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise ValueError(f"load: the configuration in {path} is not a JSON object")
    fields = {field.name for field in dataclasses.fields(EncoderConfig)}
    if settings.keys() != fields:
        raise ValueError(f"load: the configuration in {path} lacks or adds {listed(sorted(settings.keys() ^ fields))}")
    if settings["num_layers"] != layers or type(settings["num_layers"]) is not int:
        said = str(settings["num_layers"])[:20]
        raise ValueError(f"load: the configuration in {path} has num_layers={said}, but there are {layers} layers")
    if any(type(settings[name]) is not int or settings[name] > LARGEST for name in SIZES):
        raise ValueError(f"load: the configuration in {path} has a size that is not an integer up to {LARGEST}")
    options: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in settings.items()}
    options["rope_theta"] = _thetas(settings["rope_theta"])
    try:
        return EncoderConfig(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"load: the configuration in {path} is wrong: {str(error).splitlines()[0][:200]}") from None


def _thetas(said: Any) -> Any:
    """A base, frequencies, or a tuple with those of each layer: JSON has lists for all but the first."""
    if not isinstance(said, list):
        return said
    is_one = len(said) == 2 and isinstance(said[0], list) and not any(isinstance(x, list) for x in said[0])
    return Frequencies(tuple(said[0]), said[1]) if is_one else tuple(map(_thetas, said))


def _leaf(file: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    found = file.get_slice(name)  # shape and dtype; the numbers are not read yet
    if tuple(found.get_shape()) != shape:
        raise ValueError(f"load: tensor {name} has shape {tuple(found.get_shape())}, the configuration says {shape}")
    check_dtype("load", name, found.get_dtype())
    return file.get_tensor(name)
