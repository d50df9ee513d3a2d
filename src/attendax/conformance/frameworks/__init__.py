"""Drivers run and differentiate a function, one for each framework; imported when a function of it is judged.

The functions of each module take the protocol function ``attend``, the floating arrays and the other options as NumPy
arrays, and give NumPy arrays by name. A reproduction prints their source, so each one uses nothing of this package but
its neighbours in the file and ``shared``.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

NAMES = ("jax", "torch", "numpy")
KINDS = (("jax", False), ("numpy", False), ("jax", True), ("torch", False))  # of arrays, and whether not compiled


def kinds() -> list[tuple[str, bool]]:
    """List the kinds of arrays that a call is tried with, frameworks that are not imported yet last.

    So a NumPy function does not load JAX.
    """
    known = [kind for kind in KINDS if importlib.util.find_spec(kind[0])]
    return sorted(known, key=lambda kind: kind[0] not in sys.modules)


def kind_of(found: Any) -> str:
    """The kind of the arrays that a function gives, by the first of several; empty where it is not known."""
    found = found[0] if isinstance(found, (tuple, list)) and found else found
    modules = {kind.__module__.partition(".")[0].removesuffix("lib") for kind in type(found).__mro__}
    return next((name for name in NAMES if name in modules), "")


def others(kind: str) -> tuple[str, ...]:
    """Name the other frameworks whose arrays a function may mean: those that are imported, beside NumPy."""
    return tuple(name for name in ("jax", "torch") if name != kind and name in sys.modules)


def corrected(kind: str, guessed: Iterable[str], option: str) -> str:
    """The option that corrects a guess of arrays, for a finding that rests on it; empty where nothing was guessed."""
    options = " or ".join(option.format(name) for name in guessed)
    return f"it was given {kind} arrays, which is a guess; for others: {options}" if options else ""


def framework(name: str) -> ModuleType:
    """The module that runs functions of arrays of that framework."""
    if name not in NAMES:
        raise ValueError(f"check: arrays got {name!r}, expected one of {', '.join(NAMES)}")
    return importlib.import_module(f"{__name__}.in_{name}")


def needs(direction: str) -> list[str]:
    """Name the arguments of a direction's driver beyond a function, its arrays and options."""
    name = direction.partition(", ")[0]
    found = ["cotangents"] * ("gradient" in name or name == "second")
    found += ["tangents"] * (name in ("jvp", "second"))
    found += ["mapped"] * (name in ("vmap", "per example gradient"))
    return found + ["changed"] * (name == "changed in place")
