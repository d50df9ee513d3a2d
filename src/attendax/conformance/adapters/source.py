"""Objects by their paths, and the text that makes a function in a script of its own."""

import ast
import functools
import importlib
import importlib.metadata
import inspect
import os
import re
import sys
import textwrap
from types import ModuleType
from typing import Any

from attendax.legible import did_you_mean


def resolve(path: str) -> Any:
    """Import the object of a path ``"module:name"``; ValueError where it is none, or has no such name."""
    module, separator, names = path.partition(":")
    if not (module and separator and names):
        raise ValueError(f"check: {path!r} is not module:function, such as jax.nn:dot_product_attention")
    found = importlib.import_module(module)
    for name in names.split("."):
        if not hasattr(found, name):
            raise ValueError(f"check: {module} has no {names}{did_you_mean(name, dir(found))}")
        found = getattr(found, name)
    return found


def path_of(function: Any) -> str:
    """The "module:name" that names a function; empty where none does."""
    home, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if home not in sys.modules or home == "__main__" or not qualified or "<" in qualified:
        return ""
    try:
        return f"{home}:{qualified}" if resolve(f"{home}:{qualified}") is function else ""
    except (ImportError, ValueError):
        return ""


def import_line(function: Any, path: str | None = None, name: str = "fn", known: tuple[Any, ...] = ()) -> str:
    """Python that makes ``name`` the function, as far as it can be told; else it raises, and says what to define."""
    if path:
        module, _, names = path.partition(":")
        if "." in names:
            return f"{_findable(module)}import {module}\n{name} = {module}.{names}"
        return f"{_findable(module)}from {module} import {names} as {name}"
    if path := path_of(function):
        return import_line(function, path, name)
    if isinstance(function, functools.partial):
        words = [repr(x) for x in function.args] + [f"{k}={x!r}" for k, x in function.keywords.items()]
        inner = import_line(function.func, None, name, known)
        return f"{inner}\nimport functools\n{name} = functools.partial({', '.join([name, *words])})"
    text = _definition(function, name)
    if text is None:
        shown = getattr(function, "__qualname__", "") or type(function).__qualname__
        return f"raise NotImplementedError({f'define {name} here: {shown}, which was judged, cannot be shown'!r})"
    return "\n".join([*_used(function, (*known, function)), text])


@functools.cache
def _installed() -> frozenset[str]:
    """The modules that distributions have: reading them all takes a tenth of a second."""
    return frozenset(importlib.metadata.packages_distributions())


def _findable(module: str) -> str:
    """A line that finds a module which no installed distribution has."""
    top = module.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None)
    if not file or top in sys.stdlib_module_names or top in _installed():
        return ""
    folder = os.path.dirname(os.path.abspath(file))
    folder = os.path.dirname(folder) if os.path.basename(file) == "__init__.py" else folder
    return f"import sys\nsys.path.insert(0, {folder!r})\n"


def _definition(function: Any, name: str) -> str | None:
    """The text of a function, bound to ``name``; None where the text alone does not make it."""
    if inspect.ismethod(function) or not inspect.isfunction(inspect.unwrap(function)):
        return None
    text = source_of(function)
    if function.__name__ == "<lambda>":
        return _lambda(text, name)
    tree = ast.parse(text)
    if not (tree.body and isinstance(tree.body[0], ast.FunctionDef)):
        return None
    return text if function.__name__ == name else f"{text}\n{name} = {function.__name__}"


def _lambda(text: str, name: str) -> str | None:
    """The one lambda of a piece of a statement; None where there are several."""
    if text.count("lambda") != 1:
        return None
    text = text[text.index("lambda") :]
    for end in range(len(text), 0, -1):  # what follows it belongs to the statement
        try:
            ast.parse(f"{name} = {text[:end]}")
        except SyntaxError:
            continue
        return f"{name} = {text[:end].rstrip().rstrip(',')}"
    return None


def _used(function: Any, known: tuple[Any, ...]) -> list[str]:
    """Lines that define what a function uses from around it, and its decorators."""
    inner = inspect.unwrap(function)
    around = inspect.getclosurevars(inner)
    given = {**around.globals, **around.nonlocals}
    names = set(re.findall(r"\w+", source_of(function)))
    given |= {n: inner.__globals__[n] for n in names if n in inner.__globals__}  # of decorators and defaults
    lines = []
    for name, x in given.items():
        if isinstance(x, ModuleType):
            lines.append(f"{_findable(x.__name__)}import {x.__name__} as {name}")
        elif isinstance(x, (bool, int, float, str, tuple, type(None))):
            lines.append(f"{name} = {x!r}")
        elif callable(x) and not any(x is y for y in known):
            lines.append(import_line(x, None, name, known))
    return lines


def text_of(function: Any, known: tuple[Any, ...] = ()) -> str:
    """Python that defines a function of this package and what it uses of it, for scripts that run without."""
    inner, source = inspect.unwrap(function), source_of(function)
    lines = []
    for name in dict.fromkeys(re.findall(r"\w+", source)):
        x = inner.__globals__.get(name)
        if isinstance(x, ModuleType):
            lines.append(f"import {x.__name__} as {name}" if x.__name__ != name else f"import {name}")
        elif inspect.isfunction(x) and x is not function and x not in known and x.__module__.startswith("attendax."):
            lines.append(text_of(x, (*known, function)))
    return "\n".join([*lines, source])


def source_of(function: Any) -> str:
    """The text of a function, without decorators' indentation; a comment where there is none."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError):
        return f"# the source of {getattr(function, '__qualname__', function)} cannot be read: define it here"
