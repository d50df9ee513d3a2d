"""The text of a driver, read without importing its framework: a reproduction prints it."""

import ast
import functools
from pathlib import Path
from typing import NamedTuple

SHARED = "shared"


class Text(NamedTuple):
    """The part of a driver that a reproduction has.

    Attributes:
        header: its imports.
        wide: a line that keeps float64; empty where none is needed.
        functions: the source of each by its name, those of ``shared`` first.
    """

    header: str
    wide: str
    functions: dict[str, str]


@functools.cache
def text_of(name: str) -> Text:
    """Read the driver of a framework."""
    own, shared = _read(f"in_{name}"), _read(SHARED)
    imported = [x for node in own if isinstance(node, ast.ImportFrom) and node.module == SHARED for x in node.names]
    functions = {alias.name: _source(SHARED, shared, alias.name) for alias in imported}
    constants: dict[str, str] = {}
    for node in own:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = _source(f"in_{name}", own, node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            target = node.targets[0].id
            if isinstance(node.value, ast.Constant):
                constants[target] = str(node.value.value)
            elif isinstance(node.value, ast.Name):  # another name of a function
                functions[target] = functions[node.value.id].replace(f"def {node.value.id}(", f"def {target}(", 1)
    return Text(constants["HEADER"], constants["WIDE"], functions)


@functools.cache
def _text(file: str) -> str:
    return Path(__file__).with_name(f"{file}.py").read_text("utf-8")


@functools.cache
def _read(file: str) -> list[ast.stmt]:
    return ast.parse(_text(file)).body


def _source(file: str, body: list[ast.stmt], name: str) -> str:
    """The lines of a function, its decorators among them."""
    node = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == name)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(_text(file).splitlines()[first - 1 : node.end_lineno])
