"""The ``repr`` of masks and modifiers: the Python code that makes them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .values import is_traced

FEW = 8  # numbers that are shown one by one


def call(name: str, *arguments: Any) -> str:
    """``name(first, second)``."""
    return f"{name}({', '.join(map(argument, arguments))})"


def argument(value: Any) -> str:
    """A number as it is, few numbers of an array as a list, other arrays by dtype and shape, a function by its name."""
    if callable(value):
        return _name(value)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return repr(value)
    if is_traced(value) or not hasattr(value, "__array__") or value.size > FEW:
        return f"{value.dtype}{list(value.shape)}"
    return repr(np.asarray(value).tolist())


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "lambda" if name == "<lambda>" else name
