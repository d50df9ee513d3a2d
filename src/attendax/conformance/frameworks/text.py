"""Objects by their paths, and the text that makes a function, or a driver, in a script of its own.

The text of a driver is read without importing its framework.
"""

import ast
import functools
import importlib
import importlib.metadata
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from attendax.legible import did_you_mean

SHARED, PACKAGE = "shared", "attendax.conformance"
PLAIN_TYPES = (bool, int, float, str, tuple, type(None))


def resolve(path: str) -> Any:
    """Import the object of a path ``"module:name"``, "module:Class().method" of a new object; else ValueError."""
    module, separator, names = path.partition(":")
    if not (module and separator and names):
        raise ValueError(f"check: {path!r} is not module:function, such as jax.nn:dot_product_attention")
    found = importlib.import_module(module)
    for name in names.split("."):
        made = name.removesuffix("()")
        if not hasattr(found, made):
            raise ValueError(f"check: {module} has no {names}{did_you_mean(made, dir(found))}")
        found = getattr(found, made)() if made != name else getattr(found, name)
    return found


def instance(found: Any) -> Any:
    """A new object of a class, if it needs no argument and its objects are called; else what was given.

    Raises ValueError for any other class.
    """
    if not isinstance(found, type):
        return found
    parameters = inspect.signature(found).parameters.values()
    needs = [x.name for x in parameters if x.default is x.empty and x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
    if needs:
        line = f"layer = {found.__name__}({', '.join(needs)})"
        raise ValueError(
            f"check: {found.__name__} is a class; write a line such as `{line}`, and give the path of layer"
        )
    if not any("__call__" in vars(x) for x in found.__mro__):
        raise ValueError(
            f"check: {found.__name__} is a class; give the path of a method, such as {found.__name__}().forward"
        )
    return found()


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
    if path := path or path_of(function):
        module, _, names = path.partition(":")
        if "." in names or names.endswith("()"):
            return f"{_findable(module)}import {module}\n{name} = {module}.{names}"
        return f"{_findable(module)}from {module} import {names} as {name}"
    if isinstance(function, functools.partial):
        words = [repr(x) for x in function.args] + [f"{k}={x!r}" for k, x in function.keywords.items()]
        inner = import_line(function.func, None, name, known)
        return f"{inner}\nimport functools\n{name} = functools.partial({', '.join([name, *words])})"
    if text := _definition(function, name):
        return "\n".join([*_used(function, (*known, function)), text])
    shown = getattr(function, "__qualname__", "") or type(function).__qualname__
    return f"raise NotImplementedError({f'define {name} here: {shown}, which was judged, cannot be shown'!r})"


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


def _definition(function: Any, name: str) -> str:
    """The text of a function, bound to ``name``; empty where the text alone does not make it."""
    if inspect.ismethod(function) or not inspect.isfunction(inspect.unwrap(function)):
        return ""
    text = source_of(function)
    if function.__name__ != "<lambda>":
        tree = ast.parse(text)
        bound = "" if function.__name__ == name else f"\n{name} = {function.__name__}"
        return text + bound if tree.body and isinstance(tree.body[0], ast.FunctionDef) else ""
    text = text[text.index("lambda") :] if text.count("lambda") == 1 else ""  # of several, which one is not known
    for end in range(len(text), 0, -1):  # what follows it belongs to the statement
        try:
            ast.parse(f"{name} = {text[:end]}")
        except SyntaxError:
            continue
        return f"{name} = {text[:end].rstrip().rstrip(',')}"
    return ""


def _used(function: Any, known: tuple[Any, ...], home: str = PACKAGE) -> list[str]:
    """Lines that define what a function uses from around it, and its decorators; nothing of ``home`` is imported."""
    inner = inspect.unwrap(function)
    around = inspect.getclosurevars(inner)
    given = {**around.globals, **around.nonlocals}
    names = dict.fromkeys(re.findall(r"\w+", source_of(function)))  # of decorators and defaults, too
    given |= {n: inner.__globals__[n] for n in names if n in inner.__globals__}
    lines = []
    for name, x in given.items():
        if isinstance(x, ModuleType):
            lines.append(f"{_findable(x.__name__)}import {x.__name__}" + f" as {name}" * (name != x.__name__))
        elif isinstance(x, PLAIN_TYPES):
            lines.append(f"{name} = {x!r}")
        elif callable(x) and not any(x is y for y in known):
            is_shown = inspect.isfunction(x) and f"{x.__module__}.".startswith((f"{PACKAGE}.", f"{home}."))
            lines.append(defined(x, known) if is_shown else import_line(x, None, name, known))
    return lines


def defined(function: Any, known: tuple[Any, ...] = ()) -> str:
    """Python that defines a function, and all that it uses of its package, for scripts that run without that."""
    used = _used(function, (*known, function), function.__module__.rpartition(".")[0])
    return "\n".join([*used, source_of(function)])


def source_of(function: Any) -> str:
    """The text of a function, without decorators' indentation; a comment if it has none."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError):
        return f"# the source of {getattr(function, '__qualname__', function)} cannot be read: define it here"


class Text(NamedTuple):
    """The part of a driver that a reproduction has."""

    header: str  # its imports
    wide: str  # a line that keeps float64; empty where none is needed
    functions: dict[str, str]  # the source of each by its name, those of ``shared`` first


@functools.cache
def text_of(name: str) -> Text:
    """Read the driver of a framework."""
    body, functions, constants = *_read(f"in_{name}"), {}
    imported = [x for node in body if isinstance(node, ast.ImportFrom) and node.module == SHARED for x in node.names]
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            target = node.targets[0].id
            if isinstance(node.value, ast.Constant):
                constants[target] = str(node.value.value)
            elif isinstance(node.value, ast.Name):  # another name of a function
                functions[target] = functions[node.value.id].replace(f"def {node.value.id}(", f"def {target}(", 1)
            elif isinstance(node.value, ast.Call):  # a function of which some arguments are given
                functions[target] = ast.unparse(node)
    shared = _read(SHARED)[1]
    return Text(constants["HEADER"], constants["WIDE"], {x.name: shared[x.name] for x in imported} | functions)


@functools.cache
def _read(file: str) -> tuple[list[ast.stmt], dict[str, str]]:
    """The statements of a file, and the source of each function, its decorators among it."""
    text = Path(__file__).with_name(f"{file}.py").read_text("utf-8")
    body, lines, functions = ast.parse(text).body, text.splitlines(), {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            functions[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return body, functions


@functools.cache
def printed(framework: str, functions: Iterable[str]) -> str:
    """The source of functions of a driver, and of what those use."""
    known = _read(SHARED)[1] | text_of(framework).functions
    wanted, used = [*functions], set()
    while wanted:
        name = wanted.pop()
        used.add(name)
        body = re.sub('""".*?"""', "", known[name].replace(f"def {name}(", ""), count=1, flags=re.DOTALL)
        wanted += [n for n in known if re.search(rf"\b{n}\b", body) and n not in used]
    return "\n\n\n".join(text for name, text in known.items() if name in used)
