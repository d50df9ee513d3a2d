"""A call as a folder: what is asked in ``case.json`` and arrays; what is answered in arrays, or ``error.json``.

An array of a request is ``{"file": "query.npy", "dtype": "float32", "shape": [2, 3, 5, 4]}`` in its place; bfloat16,
which ``.npy`` does not know, lies there as uint16. Answers are ``out.npy``, ``lse.npy``, ``grad_query.npy``,
``tangent_out.npy``, ``second_query.npy``; one of uint16 is read as bfloat16. Nothing says what is right.
"""

import json
import math
import os
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .cases.case import ARRAYS, Inputs, Leaves, allowed_pairs

SCHEMA = 1
MAPPED_BYTES = 2**16  # bytes: from there on, an array of a request is mapped, not read
SPARE_BYTES = 2**20  # bytes that an answer may have, whatever it was asked
BYTES_FACTOR = 64  # as many bytes as those of the request
# The last says whether the function has a rule of its own for its gradient.
RESULT_FILES = ("out.npy", "lse.npy", "rule.npy")
PREFIXES = ("grad", "again", "tangent", "second", "after", "held", "wrote")  # of leaves of two words
ERROR_KINDS = ("refusal", "not offered", "failed", "no numbers", "died")  # of ``error.json``
ERROR = '{"kind": "not offered", "said": ["why"]}'
PREFIXED = ("known", "cotangent")  # the names of these arrays begin so


ASKS_FOR = {"bias": "bias", "sinks": "sinks", "softcap": "softcap", "dropout_rate": "dropout", "return_lse": "lse"}
# Keywords that are all in "allowed".
HIDING_OPTIONS = ("mask", "is_causal", "window", "key_lengths", "query_segment_ids", "key_segment_ids", "offset")
Told = dict[str, Any]


class Request(NamedTuple):
    """One call of a function of attention."""

    direction: str  # "forward", "gradient", "jvp", ...: a function of the drivers in ``frameworks``, in words
    arrays: Leaves  # query, key, value and, where it is a floating array, bias; without those that are known
    options: dict[str, Any]  # the other keywords
    given: dict[str, Any]  # what the direction needs beyond them: cotangents, tangents, mapped axes
    constants: dict[str, str]  # the kind of each array that a compiler knows
    known: Leaves  # these arrays
    dtype: str  # of the query
    optimized: bool = False  # whether XLA compiles a small call as it does by default


def size_of(x: Any) -> int:
    """Bytes of all arrays in it."""
    if isinstance(x, np.ndarray):
        return x.nbytes
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, (tuple, list)) else ()
    return sum(map(size_of, parts))


def room_for(told: Any) -> int:
    """Bytes that an answer may have."""
    return SPARE_BYTES + BYTES_FACTOR * size_of(told)


def write_case(folder: str, told: Mapping[str, Any]) -> None:
    """Write what is told as ``case.json``, and a file for each array in it."""

    def put(x: Any, *names: str) -> Any:
        if isinstance(x, Mapping):
            return {k: put(v, *names, k) for k, v in x.items()}
        if isinstance(x, (tuple, list)):
            return [put(v, *names, str(k)) for k, v in enumerate(x)]
        if isinstance(x, np.ndarray):
            return _put(folder, "_".join(names if names[0] in PREFIXED else names[1:] or names), x)
        return x

    with open(os.path.join(folder, "case.json"), "w", encoding="utf-8") as file:
        json.dump({"schema": SCHEMA} | {k: put(x, k) for k, x in told.items()}, file)


def read_request(folder: str, kind: Any = Request) -> Any:
    """Read a named tuple of that kind which ``write_case`` wrote; raises ValueError where its schema is not known."""
    with open(os.path.join(folder, "case.json"), encoding="utf-8") as file:
        told = json.load(file)
    if told.pop("schema", None) != SCHEMA:
        raise ValueError(f"{folder}: case.json is not of schema {SCHEMA}")

    def get(x: Any) -> Any:
        if isinstance(x, list):
            return tuple(map(get, x))
        if not isinstance(x, dict):
            return x
        return _get(folder, x) if "file" in x else {k: get(v) for k, v in x.items()}

    return kind(**get(told))


def case_of(direction: str, arrays: Leaves, options: Mapping[str, Any], cotangent: Leaves) -> Told:
    """A call for a candidate that is not a Python function, for its results or gradients: as ``case.json`` tells it.

    Arrays lie without gaps, masks of every kind are one array, the scale is a number, and results have their shapes.
    """
    arrays = arrays | {k: options[k] for k in ARRAYS[3:] if options.get(k) is not None}
    options = {k: x for k, x in options.items() if k not in arrays}
    query, key, value = (arrays[name] for name in ARRAYS[:3])
    dtype, rows = str(query.dtype), query.shape[:-1]
    lse = "float64" if dtype == "float64" else "float32"
    if direction == "forward":
        results = {"out": (dtype, (*rows, value.shape[-1]))}
        results |= {"lse": (lse, rows)} if options.get("return_lse") else {}
    else:
        results = {f"grad_{name}": (str(x.dtype), x.shape) for name, x in arrays.items()}
    given = {k for k, x in (options | arrays).items() if x is not None}
    given |= {"return_lse"} if "lse" in cotangent else set()
    sizes = dict(zip("BNTD", query.shape, strict=True)) | {"G": key.shape[1], "S": key.shape[2], "V": value.shape[3]}
    allowed = allowed_pairs(Inputs(arrays, options, {}))  # (B or 1, N or 1, T, S)
    full = np.broadcast_to(allowed, (*allowed.shape[:-2], sizes["T"], sizes["S"]))[(None,) * (4 - allowed.ndim)]
    return {
        "direction": direction,
        "dtype": dtype,
        "sizes": {axis: sizes[axis] for axis in "BNGTSDV"},
        "scale": query.shape[-1] ** -0.5 if options.get("scale") is None else float(options["scale"]),
        "allowed": None if allowed.all() else np.array(full),  # none where each query may look at every key
        "asks_for": [word for option, word in ASKS_FOR.items() if option in given],
        "options": {k: _whole(x) for k, x in options.items()},
        "arrays": {k: _whole(x) for k, x in arrays.items()},
        "cotangent": {k: _whole(x) for k, x in cotangent.items()},
        "results": {k: {"file": f"{k}.npy", "dtype": kind, "shape": shape} for k, (kind, shape) in results.items()},
    }


def _whole(x: Any) -> Any:
    """An array without gaps; a word or a number as it is."""
    return np.ascontiguousarray(x).reshape(x.shape) if isinstance(x, np.ndarray) else x


def write_results(folder: str, leaves: Leaves) -> None:
    """The answer: a file for each leaf."""
    for leaf, x in leaves.items():
        wide = x if x.dtype.isbuiltin != 2 or x.dtype == "bfloat16" else x.astype(np.float32)
        np.save(os.path.join(folder, f"{leaf.replace(' ', '_')}.npy"), plain(wide), allow_pickle=False)


def write_error(folder: str, kind: str, *said: Any) -> None:
    """The answer that there is none: one of ``ERROR_KINDS``, and what was said."""
    with open(os.path.join(folder, "error.json"), "w", encoding="utf-8") as file:
        json.dump({"kind": kind, "said": said}, file)


def read_results(folder: str, most: int) -> Leaves | tuple[str, list[Any]]:
    """The leaves that were written, or the kind of an error and what was said; nothing that was written is run.

    Raises ValueError where a file is none of those, is torn, or is larger than ``most`` bytes.
    """
    found = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        head, _, tail = name.removesuffix(".npy").partition("_")
        if name in RESULT_FILES or (head in PREFIXES and name.endswith(".npy")):
            found[f"{head} {tail}".strip()] = read_array(path, most)
        elif name == "error.json":
            with _regular(path, SPARE_BYTES) as file:
                try:
                    told = json.load(file)
                    kind, said = told["kind"], told["said"]
                except (ValueError, TypeError, KeyError, RecursionError) as error:
                    raise ValueError(f"error.json cannot be read: expected {ERROR}") from error
            said = [said] if isinstance(said, str) else said
            if kind not in ERROR_KINDS or not isinstance(said, list):
                raise ValueError(f"error.json says nothing that is known: expected {ERROR}")
            return kind, said
    return found


def read_array(path: str, most: int) -> np.ndarray:
    """An array that somebody else wrote; raises ValueError where it is none, not real, torn or too large."""
    name = os.path.basename(path)
    with _regular(path, most) as file:
        try:
            version = np.lib.format.read_magic(file)
        except Exception as error:
            raise ValueError(f"{name} is not a NumPy array: it does not begin with \\x93NUMPY") from error
        if version != (1, 0):
            raise ValueError(f"{name} is .npy of version {version[0]}.{version[1]}, expected 1.0")
        try:
            shape, transposed, dtype = np.lib.format.read_array_header_1_0(file)
        except Exception as error:  # whatever a header makes NumPy say
            raise ValueError(f"{name} is not a NumPy array: its header cannot be read") from error
        count, left = math.prod(shape), os.fstat(file.fileno()).st_size - file.tell()
        if dtype.kind not in "fiub":
            raise ValueError(f"{name} is {dtype}, expected real numbers")
        if (size := count * dtype.itemsize) != left:
            torn = ": it is torn" * (left < size)
            raise ValueError(f"{name} has {left} bytes of numbers, expected {size}{torn}")
        flat = np.fromfile(file, dtype, count)
    if flat.size != count:
        raise ValueError(f"{name} is torn")
    if dtype == np.uint16:
        import ml_dtypes

        flat = flat.view(ml_dtypes.bfloat16)
    return flat.reshape(shape, order="F" if transposed else "C")


def _regular(path: str, most: int) -> Any:
    """An open file, if it is one: neither a link nor a pipe, and no larger than it may be."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    name = os.path.basename(path)
    try:
        file = os.fdopen(os.open(path, flags), "rb")
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error
    about = os.fstat(file.fileno())
    if stat.S_ISREG(about.st_mode) and about.st_size <= most:
        return file
    file.close()
    raise ValueError(f"{name} is not a file of at most {most} bytes")


def plain(x: np.ndarray) -> np.ndarray:
    """View the bits in a dtype that ``.npy`` knows."""
    return x if x.dtype.isbuiltin != 2 else x.view(f"u{x.dtype.itemsize}")


def _put(folder: str, name: str, x: np.ndarray) -> dict[str, Any]:
    """Write an array; of a view also what lies between its numbers, so that it is the same view for who reads it."""
    told: dict[str, Any] = {"file": f"{name}.npy", "dtype": str(x.dtype), "shape": x.shape}
    steps = [step // x.itemsize for step in x.strides]
    if x.size and not x.flags.c_contiguous and all(step % x.itemsize == 0 for step in x.strides):
        forward = x[tuple(slice(None, None, -1 if step < 0 else 1) for step in steps)]
        ends = [(n - 1) * step for n, step in zip(x.shape, steps, strict=True)]
        whole = 1 + sum(abs(end) for end in ends)
        x = np.lib.stride_tricks.as_strided(forward, (whole,), (x.itemsize,))
        told |= {"strides": steps, "offset": -sum(end for end in ends if end < 0)}
    np.save(os.path.join(folder, told["file"]), plain(x), allow_pickle=False)
    return told


def _get(folder: str, told: Mapping[str, Any]) -> np.ndarray:
    """An array of a request, which may be written to: the file keeps its numbers."""
    path = os.path.join(folder, told["file"])
    mapped = os.path.getsize(path) >= MAPPED_BYTES
    x = np.asarray(np.load(path, mmap_mode="c" if mapped else None, allow_pickle=False))
    if str(x.dtype) != told["dtype"]:
        import ml_dtypes  # registers bfloat16

        x = x.view(getattr(ml_dtypes, told["dtype"]))
    if "strides" not in told:
        return x
    steps = [step * x.itemsize for step in told["strides"]]
    return np.lib.stride_tricks.as_strided(x[told["offset"] :], told["shape"], steps)
