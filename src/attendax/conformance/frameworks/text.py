"""The text of a driver, read without importing its framework: a reproduction prints it."""

import ast
import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SHARED = "shared"


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
