"""Arrays of NumPy, JAX and PyTorch: what a learner's functions are given, and NumPy arrays of what they return."""

import contextlib
import importlib
from typing import Any

import numpy as np

from attendax import spec

from .steps import by_numpy

KINDS = ("numpy", "jax", "torch")


class Unusable(TypeError):
    """A learner's function returned what is no result; the message goes on after "It returns"."""


def described(value: Any) -> str:
    """A value in a learner's words: "one array", "a tuple of 2"."""
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "one array" if hasattr(value, "shape") else f"one {type(value).__name__}"


class Arrays:
    """The arrays of one library, in float64.

    Raises:
        ValueError: no such library.
        ModuleNotFoundError: it is not installed.
    """

    def __init__(self, kind: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"grade: arrays got {kind!r}, expected one of {', '.join(KINDS)}")
        self.kind, self._library = kind, importlib.import_module(kind)

    def wide(self) -> Any:
        """A context in which JAX has float64, and does not compile."""
        return by_numpy(self._library) if self.kind == "jax" else contextlib.nullcontext()

    def given(self, value: Any) -> Any:
        """An input, as a learner's function gets it; never the array itself, which it may write to."""
        if isinstance(value, list):
            return [_Block(each, self) for each in value] if self.kind != "numpy" else value
        if not isinstance(value, np.ndarray):
            return value
        if self.kind == "torch":
            return self._library.from_numpy(value.copy())
        return self._library.numpy.asarray(value) if self.kind == "jax" else value.copy()

    def returned(self, value: Any, role: str = "") -> np.ndarray:
        """A result as an array of NumPy; its role, such as " as output", joins the errors.

        Raises:
            Unusable: it is no array of numbers.
        """
        if value is None:
            raise Unusable(f"None{role}: is a `return` missing?")
        if isinstance(value, tuple | list | dict):
            raise Unusable(f"{described(value)}{role}; expected one array")
        if self.kind == "torch" and isinstance(value, self._library.Tensor):
            value = value.detach().numpy()
        found = np.asarray(value)
        if found.dtype.kind not in "biuf" and found.dtype.name != "bfloat16":
            raise Unusable(f"{described(value)}{role}; expected an array of numbers")
        return found


class _Block:
    """A block of the specification for tokens of another library."""

    def __init__(self, block: spec.TransformerEncoderBlock, arrays: Arrays) -> None:
        self._block, self._arrays = block, arrays

    def forward(self, x: Any, mask: Any = None) -> Any:
        """The tokens, encoded."""
        inputs: Any = [None if each is None else self._arrays.returned(each) for each in (x, mask)]
        return self._arrays.given(self._block.forward(*inputs))
