"""Read untrusted files: JSON, and tensors, each accounted for in both directions.

Nothing in them is executed. Sizes are compared with the file before anything of that size is built. An error is one
line that names the function and the file.
"""

import json
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from attendax.extras import require

FLOATING = ("F16", "BF16", "F32", "F64")  # as safetensors names them
LARGEST = 2**31 - 1  # of a size in config.json
LONGEST_NAME = 80  # that an error shows whole
JSON_BYTES = 2**24  # settings take a few thousand
WEIGHTS = "model.safetensors"
SETTINGS = "config.json"


class Source(NamedTuple):
    """The place of a weight: the tensor, its whole shape, the rows of it that are meant, whether it is turned."""

    name: str
    shape: tuple[int, ...]
    rows: slice = slice(None)
    turned: bool = False  # stored (out, in), wanted (in, out)


class Settings(NamedTuple):
    """The content of ``config.json``, for the function that reads it."""

    function: str
    content: dict[str, Any]

    def refuse(self, key: str, value: Any, wanted: str) -> NoReturn:
        """Say what a value is, and what it should be."""
        raise ValueError(f"{self.function}: config.json has {key}={reprlib.repr(value)}, expected {wanted}")

    def only(self, **supported: Any) -> None:
        """Refuse settings that would change the meaning of the weights; one that is missing has the value supported."""
        for key, wanted in supported.items():
            got = self.content.get(key, wanted)
            if got != wanted:
                facts = f"config.json has {key}={reprlib.repr(got)}, supported is {wanted!r}"
                raise NotImplementedError(f"{self.function}: {facts}")

    def model_type(self, wanted: str, classes: tuple[str, ...] = ()) -> None:
        """Refuse another kind of model. A file older than ``model_type`` says its kind by the name of a class."""
        got = self.content.get("model_type")
        if got is None and classes:
            names = self.content.get("architectures")
            if isinstance(names, list) and names and all(isinstance(x, str) and x.startswith(classes) for x in names):
                return
            facts = f"config.json has no model_type, and architectures={reprlib.repr(names)}"
            advice = f'If it is the configuration of such a model, add "model_type": "{wanted}" to it.'
            raise NotImplementedError(f"{self.function}: {facts}, supported is {wanted!r}. {advice}")
        if got != wanted:
            facts = f"config.json has model_type={reprlib.repr(got)}, supported is {wanted!r}"
            raise NotImplementedError(f"{self.function}: {facts}")

    def sizes(self, keys: dict[str, str]) -> dict[str, Any]:
        """Sizes, by our name for theirs."""
        missing = [key for key in keys.values() if key not in self.content]
        if missing:
            raise ValueError(f"{self.function}: config.json lacks {', '.join(missing)}")
        sizes = {ours: self.size(theirs) for ours, theirs in keys.items()}
        if sizes["d_model"] % sizes["num_heads"]:
            facts = f"hidden_size={sizes['d_model']}, which num_attention_heads={sizes['num_heads']} does not divide"
            raise ValueError(f"{self.function}: config.json has {facts}")
        return sizes

    def size(self, key: str) -> int:
        """An integer from 1 up; layers may be 0."""
        value, least = self.content[key], 0 if key == "num_hidden_layers" else 1
        if type(value) is not int or not least <= value <= LARGEST:  # exactly an int: True is also an instance
            self.refuse(key, value, f"an integer from {least} to {LARGEST}")
        return value

    def number(self, key: str, default: float, most: float, content: dict[str, Any] | None = None) -> float:
        """A number from 0 to ``most``."""
        value = (self.content if content is None else content).get(key, default)
        if type(value) not in (int, float) or not 0 <= value <= most:
            self.refuse(key, value, f"a number from 0 to {most:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.content.get(key, default)
        if type(value) is not bool:
            self.refuse(key, value, "true or false")
        return value

    def activation(self, key: str, names: dict[str, str]) -> str:
        """Our name for theirs."""
        value = self.content.get(key, "gelu")
        if not isinstance(value, str):
            self.refuse(key, value, "a string")
        if value not in names:
            facts = f"config.json has {key}={reprlib.repr(value)}, supported are {', '.join(names)}"
            raise NotImplementedError(f"{self.function}: {facts}")
        return names[value]


JSON_KINDS: dict[type, str] = {dict: "an object", list: "an array", str: "a string"}


def read_settings(directory: Path, function: str) -> Settings:
    """``config.json`` of a directory."""
    if not directory.is_dir():
        raise FileNotFoundError(f"{function}: directory {directory} does not exist")
    return Settings(function, read_json(directory / SETTINGS, function))


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
        got = JSON_KINDS.get(type(content), reprlib.repr(content))
        raise ValueError(f"{function}: {path} must hold {JSON_KINDS[kind]}, got {got}")
    return content


def opened(path: Path, function: str, read: Callable[[Any], Any]) -> Any:
    """``read(file)`` of an open safetensors file; tensors in it are read when they are asked for."""
    safetensors = require("safetensors", function)
    require("safetensors.numpy", function)
    if not path.is_file():
        raise FileNotFoundError(f"{function}: {path} is missing; only weights in a single safetensors file are read")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return read(file)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{function}: {path} is corrupt ({error})") from None


def stored_names(
    path: Path, file: Any, function: str, prefix: str, unused: Callable[[str], bool],
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:  # fmt: skip
    """Name -> name in the file of every tensor that could belong to an encoder.

    A name in the file may begin with ``prefix``, and end in an older ending: ``renamed`` is old ending -> new one.

    Raises:
        ValueError: the file holds two tensors for one name.
    """
    names: dict[str, str] = {}
    every = file.keys()  # an open file is not iterable
    for stored in every:
        name = stored.removeprefix(prefix)
        if unused(name):
            continue
        old = next((ending for ending in renamed if name.endswith(ending)), "")
        name = name.removesuffix(old) + renamed.get(old, "")
        if name in names:
            both = " and as ".join(sorted((names[name], stored)))
            raise ValueError(f"{function}: {path} holds a tensor twice, as {both}; keep one of them")
        names[name] = stored
    return names


def check_layers(function: str, said: int, found: int, stored: dict[str, str]) -> None:
    """Refuse more layers than the file holds, before a tree with as many is built."""
    if said > found:
        facts = f"config.json has num_hidden_layers={said}, but {WEIGHTS} holds {found} layers"
        names = "" if found else f"; its tensors are {listed(sorted(stored)) or 'none'}"
        raise ValueError(f"{function}: {facts}{names}")


def read_leaves(
    function: str, file: Any, stored: dict[str, str], shapes: Any, source_of: Callable[[Any], Source]
) -> Any:
    """The tree of weights with these shapes, each leaf from where ``source_of`` its path says."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    sources = [source_of(path) for path, _ in leaves]
    check_names(function, wanted={source.name for source in sources}, found=set(stored))
    return jax.tree.unflatten(structure, [_leaf(function, source, file, stored[source.name]) for source in sources])


def check_names(function: str, wanted: set[str], found: set[str], where: str = WEIGHTS) -> None:
    """Refuse tensors that are missing or left over."""
    for kind, names in (("lacks", wanted - found), ("holds tensors that an encoder does not have:", found - wanted)):
        if names:
            raise ValueError(f"{function}: {where} {kind} {listed(sorted(names))}")


def listed(names: list[str]) -> str:
    """The first names of a list that may be long; of what a file holds, a few words are enough.

    Example:
        >>> listed(["a", "b", "c", "d", "e", "f"])
        'a, b, c, d and 2 more'
    """
    shown = ", ".join(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..." for name in names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _leaf(function: str, source: Source, file: Any, stored: str) -> np.ndarray:
    """One weight in our orientation, contiguous: read (out, in), a matrix costs a quarter of the speed at batch 1."""
    found = file.get_slice(stored)  # shape and dtype; the numbers are not read yet
    if tuple(found.get_shape()) != source.shape:
        got = tuple(found.get_shape())
        raise ValueError(f"{function}: tensor {stored} has shape {got}, config.json says {source.shape}")
    check_dtype(function, stored, found.get_dtype())
    tensor = file.get_tensor(stored) if source.rows == slice(None) else found[source.rows]
    return np.ascontiguousarray(tensor.T if source.turned else tensor, dtype=np.promote_types(tensor.dtype, np.float32))


def check_dtype(function: str, name: str, dtype: str) -> None:
    """Refuse tensors that are not floating."""
    if dtype not in FLOATING:
        raise ValueError(f"{function}: tensor {name} has dtype {dtype}, supported are {', '.join(FLOATING)}")
