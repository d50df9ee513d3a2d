"""Arrays of NumPy, JAX and PyTorch: what a learner's functions are given, and NumPy arrays of what they return."""

import contextlib
import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np

from attendax import spec

from .steps import by_numpy

KINDS = ("numpy", "jax", "torch")


class Unusable(TypeError):
    """A learner's function returned what is no result; the message goes on after "It returns"."""

    def __init__(self, value: Any, expected: str, role: str = "") -> None:
        found = "one array" if hasattr(value, "shape") else f"one {type(value).__name__}"
        if isinstance(value, tuple | list):
            found = f"a {type(value).__name__} of {len(value)}"
        missing = f"None{role}: is a `return` missing?"
        super().__init__(missing if value is None else f"{found}{role}; expected {expected}")


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
            return [self._block(each) for each in value] if self.kind != "numpy" else value
        if not isinstance(value, np.ndarray):
            return value
        if self.kind == "torch":
            return self._library.from_numpy(value.copy())
        return self._library.numpy.asarray(value) if self.kind == "jax" else value.copy()

    def _block(self, block: spec.TransformerEncoderBlock) -> Any:
        """A block of the specification, for tokens of this library."""

        def forward(x: Any, mask: Any = None) -> Any:
            return self.given(block.forward(self.returned(x), None if mask is None else self.returned(mask)))

        return SimpleNamespace(forward=forward)

    def returned(self, value: Any, role: str = "") -> np.ndarray:
        """A result as an array of NumPy; its role, such as " as output", joins the errors.

        Raises:
            Unusable: it is no array of numbers.
        """
        if value is None or isinstance(value, tuple | list | dict):
            raise Unusable(value, "one array", role)
        if self.kind == "torch" and isinstance(value, self._library.Tensor):
            value = value.detach().numpy()
        found = np.asarray(value)
        if found.dtype.kind not in "biuf" and found.dtype.name != "bfloat16":
            raise Unusable(value, "an array of numbers", role)
        return found
