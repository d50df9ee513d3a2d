"""Arrays of NumPy, JAX and PyTorch: what a learner's functions are given, and NumPy arrays of what they return."""

import contextlib
import importlib
from typing import Any

import numpy as np

from attendax import spec

KINDS = ("numpy", "jax", "torch")


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
        self.patience = 3 if kind == "jax" else 1  # it compiles each step, for each shape

    def wide(self) -> Any:
        """A context in which JAX has float64."""
        return self._library.enable_x64(True) if self.kind == "jax" else contextlib.nullcontext()

    def given(self, value: Any) -> Any:
        """An input, as a learner's function gets it; never the array itself, which it may write to."""
        if isinstance(value, list):
            return [_Block(each, self) for each in value] if self.kind != "numpy" else value
        if not isinstance(value, np.ndarray):
            return value
        if self.kind == "torch":
            return self._library.from_numpy(value.copy())
        return self._library.numpy.asarray(value) if self.kind == "jax" else value.copy()

    def returned(self, name: str, value: Any) -> np.ndarray:
        """A result as an array of NumPy.

        Raises:
            TypeError: it is none.
        """
        if value is None:
            raise TypeError(f"{name} is None: is a return missing?")
        if self.kind == "torch" and isinstance(value, self._library.Tensor):
            value = value.detach().numpy()
        found = np.asarray(value)
        if found.dtype.kind not in "biuf" and found.dtype.name != "bfloat16":
            raise TypeError(f"{name} is one {type(value).__name__}, expected an array of numbers")
        return found


class _Block:
    """A block of the specification for tokens of another library."""

    def __init__(self, block: spec.TransformerEncoderBlock, arrays: Arrays) -> None:
        self._block, self._arrays = block, arrays

    def forward(self, x: Any, mask: Any = None) -> Any:
        """The tokens, encoded."""
        inputs: Any = [None if each is None else self._arrays.returned("x", each) for each in (x, mask)]
        return self._arrays.given(self._block.forward(*inputs))
