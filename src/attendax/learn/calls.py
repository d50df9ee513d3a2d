"""What a learner's function calls, and by that the library that it is written in."""

import dis
import inspect
import itertools
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CellType, CodeType
from typing import Any

from .arrays import KINDS

HERE = (str(Path(__file__).parent), "<frozen", *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))


def foreign(file: str) -> bool:
    """Whether a file is of a library, not of the learner."""
    return file.startswith(HERE) or "site-packages" in file


def reached(candidate: Any) -> list[Any]:
    """The values that the code of a function or class names, and so on through the learner's functions among them."""
    found, waiting = {}, [candidate]
    while waiting:
        each = inspect.unwrap(waiting.pop())
        if id(each) in found:
            continue
        found[id(each)] = each
        if inspect.isclass(each) and _root(each) not in (*KINDS, "attendax"):
            waiting += vars(each).values()
        if _by_learner(each):
            waiting += [each.__globals__[name] for name in _globals(each.__code__) if name in each.__globals__]
            waiting += [cell.cell_contents for cell in each.__closure__ or () if cell != CellType()]
    return list(found.values())


def library(candidate: Any) -> str:
    """The library whose names the code of a function reaches; where it reaches none, that of its module."""
    found = reached(candidate)
    roots = {_root(each) for each in found}
    if not roots & set(KINDS):
        around = itertools.chain(*(each.__globals__.values() for each in found if _by_learner(each)))
        roots = {_root(each) for each in around if getattr(each, "__name__", "") in ("jax.numpy", "torch")}
    return next((kind for kind in ("torch", "jax") if kind in roots), "numpy")


def own(candidate: Any) -> set[str]:
    """The names of the learner's functions and classes that a function or class calls."""
    return {getattr(each, "__name__", "") for each in reached(candidate) if _root(each) not in KINDS}


def _by_learner(value: Any) -> bool:
    return inspect.isfunction(value) and _root(value) != "attendax" and not foreign(value.__code__.co_filename)


def _root(value: Any) -> str:
    module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None) or type(value).__module__
    return str(module).partition(".")[0]


def _globals(code: CodeType) -> Iterator[str]:
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)
