"""`{twins} names`: functions as they stand in the source of `spec`, and below them those of `ops`."""

import ast
import importlib
import inspect
import textwrap
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Twins(SphinxDirective):
    """Code of `attendax.spec` (the argument: names) and of `attendax.ops` (`:ops:`; the same names unless given)."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {"ops": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """The two pieces of code, each under its title."""
        by_hand = self.arguments[0]
        found: list[nodes.Node] = []
        for module, names in (("spec", by_hand), ("ops", self.options.get("ops", by_hand))):
            code = "\n\n\n".join(source(f"attendax.{module}", name) for name in names.split())
            what = {"spec": "By hand, in NumPy", "ops": "The twin, in JAX"}[module]
            lines = [f"```{{code-block}} python\n:caption: {what}", "", code, "```"]
            found += self.parse_text_to_nodes("\n".join(lines)) if code else []
        return found


def source(module: str, name: str) -> str:
    """The function `file.name`, or a public `name`, without its docstring."""
    path, _, name = name.rpartition(".")
    member: Any = getattr(importlib.import_module(f"{module}.{path}" if path else module), name)
    lines = textwrap.dedent(inspect.getsource(inspect.unwrap(member))).splitlines()
    function = ast.parse("\n".join(lines)).body[0]
    first = function.body[0]  # type: ignore[attr-defined]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(function.body) > 1:  # type: ignore[attr-defined]
        del lines[first.lineno - 1 : first.end_lineno]
    return "\n".join(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("twins", Twins)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
