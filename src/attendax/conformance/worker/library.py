"""A library that is judged: C functions over plain pointers and sizes, as ``docs/examples/attendax.h`` has them."""

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..cases.case import Leaves
from ..protocol import HIDING, SCHEMA, Told, read_json
from .errors import Failed

INPUTS = ("query", "key", "value", "bias", "sinks", "cotangent_out", "cotangent_lse")  # const float *
RESULTS = ("out", "lse", "grad_query", "grad_key", "grad_value", "grad_bias", "grad_sinks")  # float *
SIZES = tuple("BNGTSDV")
AS_LONG_AS = {"G": "N", "S": "T", "V": "D"}
NUMBERS: dict[str, Any] = {"scale": ctypes.c_float, "softcap": ctypes.c_float, "is_causal": ctypes.c_int32}
WORDS = (*INPUTS, "allowed", *RESULTS, *SIZES, *NUMBERS)  # of an order
NEEDED = {"forward": (*INPUTS[:3], "out"), "backward": ("cotangent_out", *RESULTS[2:5])}
ONLY_IN = {"forward": RESULTS[:2], "backward": (*INPUTS[5:], *RESULTS[2:])}
OTHER = {"forward": "backward", "backward": "forward"}
SAID: dict[str, tuple[Callable[[Any], bool], str]] = {  # of a function in a signature: what it may be, and in words
    "symbol": (lambda x: isinstance(x, str), "a name in quotes"),
    "order": (lambda x: isinstance(x, list) and all(isinstance(y, str) for y in x), "a list of names in quotes"),
    "sizes": (lambda x: x in ("int64", "int32"), "int64 or int32"),
}
ORDERS = {  # as attendax.h has them
    "forward": ("query", "key", "value", "bias", "allowed", "out", "lse", *SIZES, "scale", "softcap"),
    "backward": ("query", "key", "value", "bias", "allowed", "cotangent_out", "cotangent_lse", "grad_query", "grad_key",
        "grad_value", "grad_bias", *SIZES, "scale", "softcap"),
}  # fmt: skip
ACCEPTED = {  # the keywords that an argument of the forward stands for
    "allowed": HIDING,
    "lse": ("return_lse",),
    **{k: (k,) for k in ("bias", "sinks", "softcap", "scale", "is_causal")},
}
NOT_OFFERED = 1
POINTER = ctypes.c_void_p


class Library:
    """Answers what is asked by a call of a function in C, in this process."""

    def __init__(self, file: str, signature: str = "") -> None:
        """Load it."""
        said = read_signature(signature) if signature else {way: {} for way in ORDERS}
        try:
            library = ctypes.CDLL(os.path.abspath(file))
        except OSError as error:
            why = error if os.path.exists(file) else "there is no such file"
            raise ValueError(f"check: the library {file} cannot be loaded: {why}") from error
        self.functions: dict[str, Any] = {}
        self.orders: dict[str, tuple[str, ...]] = {}
        for way, told in said.items():
            symbol = told.get("symbol", f"attendax_{way}")
            try:
                self.functions[way] = getattr(library, symbol)
            except AttributeError as error:
                if way == "backward" and not told:  # a library without gradients
                    continue
                named = f"name its {way} in a file of --signature"
                raise ValueError(f"check: {file} has no symbol {symbol!r}: {named}") from error
            self.orders[way] = tuple(told.get("order", ORDERS[way]))
        self.size = ctypes.c_int32 if said["forward"].get("sizes") == "int32" else ctypes.c_int64
        # the keywords that the order of its forward has room for
        self.accepted = [k for word in self.orders["forward"] for k in ACCEPTED.get(word, ())]

    def __call__(self, told: Told) -> Leaves:
        """The results of one case."""
        way = "forward" if told["direction"] == "forward" else "backward"
        if way not in self.functions:
            raise NotImplementedError("the library has no backward")
        if told["dtype"] != "float32":
            raise NotImplementedError("pointers are to float32")
        if "dropout" in told["asks_for"]:
            raise NotImplementedError("there is no argument for dropout")
        given, found = self._arrays(told, order := self.orders[way])
        known = given | found
        implied = {axis: known[AS_LONG_AS[axis]] if axis in AS_LONG_AS else 1 for axis in SIZES if axis not in order}
        lacking = [axis for axis, size in implied.items() if known[axis] != size]
        lacking += [k for k, x in known.items() if isinstance(x, np.ndarray) and k not in order]
        if lacking:
            raise NotImplementedError(f"the {way} has no argument {lacking[0]}")
        kinds = dict.fromkeys(SIZES, self.size) | NUMBERS
        pointers = {k: POINTER(x.ctypes.data) for k, x in known.items() if k not in kinds}
        function = self.functions[way]
        function.restype = ctypes.c_int
        status = function(*(kinds[k](known[k]) if k in kinds else pointers.get(k, POINTER(None)) for k in order))
        if status == NOT_OFFERED:
            raise NotImplementedError(f"its {way} gave status 1")
        if status:
            raise Failed(f"its {way} gave status {status}")
        return {k.replace("_", " "): _summed(x, told["results"][k]["shape"]) for k, x in found.items()}

    def _arrays(self, told: Told, order: Sequence[str]) -> tuple[dict[str, Any], Leaves]:
        """Its inputs, and arrays of NaN for what it writes; a bias has a gradient for each score."""
        scores = tuple(told["sizes"][axis] for axis in "BNTS")
        given = dict(told["arrays"]) | {f"cotangent_{k}": x for k, x in told["cotangent"].items()}
        T, S, allowed = *scores[2:], told["allowed"]
        causal = "is_causal" in order and allowed is not None and (allowed == np.tri(T, S, dtype=bool)).all()
        if allowed is not None and not causal:
            given["allowed"] = allowed
        for name in given.keys() & {"bias", "allowed"}:
            given[name] = np.ascontiguousarray(np.broadcast_to(given[name], scores))
        given |= told["sizes"] | {"scale": told["scale"], "softcap": told["options"].get("softcap") or 0.0}
        shapes = {k: scores if k == "grad_bias" else x["shape"] for k, x in told["results"].items()}
        found = {k: np.full(shape, np.nan, np.float32) for k, shape in shapes.items()}
        return given | {"is_causal": int(causal)}, found


def read_signature(file: str) -> dict[str, dict[str, Any]]:
    """Read a file of ``--signature``: ``symbol``, ``order`` and ``sizes`` of each function."""
    told, head = read_json(file, "the signature "), f"check: the signature {file}"
    if not isinstance(told, dict) or not isinstance(told.get("forward"), dict):
        raise ValueError(f'{head} has no "forward", expected {{"forward": {{"symbol": ...}}}}')
    if told.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"{head} is of schema {told['schema']}, this version reads {SCHEMA}")
    said = {way: told[way] for way in ORDERS if isinstance(told.get(way), dict)}
    for way, one in said.items():
        for k, value in one.items():
            if k not in SAID:
                raise ValueError(f"{head}: the {way} has {k!r}, expected some of {', '.join(SAID)}")
            if not SAID[k][0](value):
                raise ValueError(f"{head}: the {k} of {way} is {value!r}, expected {SAID[k][1]}")
        order = one.get("order", ORDERS[way])
        wrong = {
            f"has {{!r}}, expected some of {', '.join(WORDS)}": [word for word in order if word not in WORDS],
            "lacks {!r}": [word for word in NEEDED[way] if word not in order],
            "has {!r} twice": [word for k, word in enumerate(order) if word in order[:k]],
            f"has {{!r}}, which is of {OTHER[way]}": [word for word in order if word in ONLY_IN[OTHER[way]]],
        }
        for how, words in wrong.items():
            if words:
                raise ValueError(f"{head}: the order of {way} {how.format(words[0])}")
    return said


def _summed(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The gradient of what was broadcast."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape)))) if x.ndim > len(shape) else x
    axes = tuple(k for k, (n, m) in enumerate(zip(x.shape, shape, strict=True)) if n != m)
    return x.sum(axis=axes, keepdims=True)
