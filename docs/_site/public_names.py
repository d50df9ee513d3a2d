"""`{public} module` describes every public name of a module; a name, a method or a module left out ends the build."""

import importlib
import inspect
import itertools
import re
import types
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

import attendax


class Public(SphinxDirective):
    """Entries for all public names, in the order in which the module has them, under the files that they come from."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The entries, made by autodoc."""
        module = importlib.import_module(self.arguments[0])
        lines = ["```{eval-rst}", f".. currentmodule:: {module.__name__}", ""]
        by_file = module.__name__ in ("attendax.spec", "attendax.ops")
        names, source = public_names(module), None
        for name in sorted(names, key=lambda name: not by_file and inspect.isclass(names[name])):  # functions first
            member = names[name]
            origin = inspect.getmodule(member) if callable(member) else None
            if by_file and origin not in (source, None):
                source = origin
                summary = inspect.getdoc(origin).partition("\n")[0].rstrip(".")
                lines += [f".. rubric:: {summary}", ""]
            lines += _entry(name, member)
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


def _entry(name: str, member: Any) -> list[str]:
    if inspect.isclass(member):
        return [f".. autoclass:: {name}", "   :members:", ""]
    return [f".. autofunction:: {name}", ""] if callable(member) else [f".. data:: {name}", ""]


def public_modules(module: types.ModuleType = attendax) -> Iterator[types.ModuleType]:
    """The module, and the public modules among its public names."""
    yield module
    for name in getattr(module, "__all__", ()):
        if isinstance(member := getattr(module, name), types.ModuleType):
            yield from public_modules(member)


def public_names(module: types.ModuleType) -> dict[str, Any]:
    """The functions, classes and values of a module: `__all__`, or everything of ours without an underscore."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    members = {name: getattr(module, name) for name in names if name != "__version__"}
    return {
        name: member
        for name, member in members.items()
        if not isinstance(member, types.ModuleType) and getattr(member, "__module__", "attendax").startswith("attendax")
    }


def undocumented(name: str, member: Any) -> list[str]:
    """The name, where it has no docstring, and those of its public methods that have none."""
    if not callable(member):  # a value: its page says what it is
        return []
    own = [name] if not inspect.getdoc(member) else []
    methods = vars(member).items() if inspect.isclass(member) else ()
    kinds = types.FunctionType | property | classmethod | staticmethod
    public = [key for key, value in methods if not key.startswith("_") and isinstance(value, kinds)]
    return own + [f"{name}.{key}" for key in public if not inspect.getdoc(getattr(member, key))]


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Compare the public names with what the pages describe."""
    described, faults = set(env.domains["py"].objects), []
    for module in public_modules():
        for name, member in public_names(module).items():
            full = f"{module.__name__}.{name}"
            faults += [f"{full} is on no page of docs/api"] if full not in described else []
            faults += [f"{each} has no docstring" for each in undocumented(full, member)]
    if faults:
        raise ExtensionError("Public names without documentation:\n  " + "\n  ".join(faults))


def name_results(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """A section "Returns" that names several results becomes a list of them; napoleon would run them together."""
    if "Returns:" in lines:
        start = lines.index("Returns:")
        section = itertools.takewhile(lambda line: not line or line.startswith(" "), lines[start + 1 :])
        if sum(bool(re.match(r"    [a-z]\w*(, \w+)*: ", line)) for line in section) > 1:
            lines[start] = "Results:"


def skip_fields(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool:
    """The fields of a NamedTuple are described by its docstring."""
    return skip or type(obj).__name__ == "_tuplegetter"


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive; run the check when all pages are read."""
    app.add_directive("public", Public)
    app.connect("autodoc-process-docstring", name_results, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
