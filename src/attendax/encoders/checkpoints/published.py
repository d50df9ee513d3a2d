"""Readers and writers of published model directories, with every tensor accounted for in both directions."""

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from attendax import writing
from attendax.extras import require
from attendax.params import EncoderParams

from ..config import EncoderConfig, encoder_shapes
from ..inputs import check_params, in_numpy
from ..stack import unstacked
from . import files
from .files import SETTINGS, WEIGHTS, Settings, Source, check_names, opened, read_settings, stored_names


class Kind(NamedTuple):
    """A kind of published model: all that reading and writing one needs."""

    name: str  # as in errors
    model_type: str  # as config.json says it
    sizes: dict[str, str]  # our names of sizes -> those of config.json
    prefix: str  # with which all names may begin
    layers: str  # with which the names of layers begin, up to their number
    unused: Callable[[str], bool]  # of a tensor, whether it belongs to a head and not to the encoder
    config: Callable[[Settings], EncoderConfig]
    settings: Callable[[EncoderConfig], dict[str, Any]]
    defaults: dict[str, Any]  # settings that an encoder knows nothing of
    dropouts: tuple[str, ...]  # settings of dropout, which are read from no file
    source: Callable[[Any, EncoderParams], Source]  # of the leaf at a path of a tree with these shapes
    classes: tuple[str, ...] = ()  # names of classes begin so, in a file that is older than model_type
    renamed: Mapping[str, str] = MappingProxyType({})  # endings of names of older files -> those of today


def read_model(function: str, kind: Kind, directory: str | os.PathLike[str]) -> tuple[EncoderParams, EncoderConfig]:
    """Read a directory of this kind; the number of layers is compared with the file before a tree of them is built."""
    settings = read_settings(Path(directory), function)
    settings.model_type(kind.model_type, kind.classes)
    num_layers = settings.sizes(kind.sizes)["num_layers"]
    path = Path(directory) / WEIGHTS

    def read(file: Any) -> tuple[EncoderParams, EncoderConfig]:
        stored = stored_names(path, file, function, kind.prefix, kind.unused, kind.renamed)
        layers = {name.removeprefix(kind.layers).partition(".")[0] for name in stored if name.startswith(kind.layers)}
        files.check_layers(function, num_layers, len(layers), stored)
        config = kind.config(settings)
        shapes = encoder_shapes(config)
        return files.read_leaves(function, file, stored, shapes, lambda leaf: kind.source(leaf, shapes)), config

    return opened(path, function, read)


def write_model(
    function: str, kind: Kind, directory: str | os.PathLike[str], params: EncoderParams, config: EncoderConfig,
    like: Any,
) -> None:  # fmt: skip
    """Write a directory of this kind: every weight, and what ``like`` holds beside the encoder."""
    check_params(params, config, function)
    params = in_numpy(function, params._replace(blocks=tuple(unstacked(params.blocks))))
    sizes = {theirs: int(getattr(config, ours)) for ours, theirs in kind.sizes.items()}
    content = sizes | {"model_type": kind.model_type} | kind.settings(config)
    _check_same(function, config, kind.config(Settings(function, content)), kind.name)
    tensors = _stored(params, lambda path: kind.source(path, encoder_shapes(config)))
    content["torch_dtype"] = str(next(iter(tensors.values())).dtype)
    rates = dict.fromkeys(kind.dropouts, float(config.dropout))
    settings = kind.defaults | rates
    if like is not None:
        others = read_settings(Path(like), function)
        others.model_type(kind.model_type, kind.classes)
        _check_same(function, config, kind.config(others), str(like))
        settings = settings | {key: value for key, value in others.content.items() if key != "dtype"}
        tensors = _with_others(function, kind, Path(like) / WEIGHTS, tensors)
    _write(function, Path(directory), tensors, settings | (rates if config.dropout else {}) | content)


def _check_same(function: str, config: EncoderConfig, other: EncoderConfig, where: str) -> None:
    ours, theirs = map(_plain, (config, other))
    facts = [f"{name}={ours[name]!r}, not {theirs[name]!r}" for name in ours if ours[name] != theirs[name]]
    if facts:
        raise NotImplementedError(f"{function}: config is not that of {where}: it has {', '.join(facts)}")


def _plain(config: EncoderConfig) -> dict[str, Any]:
    """The options of a configuration, one way of saying for each."""
    thetas = config.thetas if config.positions == "rotary" else 10000.0
    alike: dict[str, Any] = {
        "dropout": 0.0,
        "window": config.windows,
        "rope_theta": thetas,
        "num_kv_heads": config.key_heads,
    }
    return dataclasses.asdict(dataclasses.replace(config, **alike))


def _stored(params: EncoderParams, source_of: Callable[[Any], Source]) -> dict[str, np.ndarray]:
    """The tensors of a file, of one dtype: what ``read_leaves`` reads, back."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    dtype = functools.reduce(np.promote_types, (leaf.dtype for _, leaf in leaves))
    tensors: dict[str, np.ndarray] = {}
    for path, leaf in leaves:
        source = source_of(path)
        tensor = tensors.setdefault(source.name, np.empty(source.shape, dtype))
        tensor[source.rows] = leaf.T if source.turned else leaf
    return tensors


def _with_others(function: str, kind: Kind, path: Path, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors under the names of a file, and what it holds beside them."""

    def read(file: Any) -> dict[str, np.ndarray]:
        stored = stored_names(path, file, function, kind.prefix, kind.unused, kind.renamed)
        check_names(function, set(tensors), set(stored), str(path))
        others = set(file.keys()) - set(stored.values())
        return {stored[name]: x for name, x in tensors.items()} | {name: file.get_tensor(name) for name in others}

    return opened(path, function, read)


def _write(function: str, directory: Path, tensors: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
    """Write the two files; the places of both are as they were until both are whole."""
    writer = require("safetensors.numpy", function)
    directory.mkdir(parents=True, exist_ok=True)
    with writing.whole(directory / SETTINGS) as config, writing.whole(directory / WEIGHTS) as weights:
        config.write((json.dumps(settings, indent=2, sort_keys=True) + "\n").encode())
        config.flush()
        weights.write(writer.save(tensors, metadata={"format": "pt"}))
