"""An implementation to be judged: the function of the protocol, its conventions, and the text that makes it."""

import ast
import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from attendax.legible import did_you_mean

from .cases.case import Case
from .documented import Documented, Known
from .verdicts import Finding, Verdict

OPTIONS = (
    "mask", "bias", "is_causal", "scale", "softcap", "window", "key_lengths", "query_segment_ids", "key_segment_ids",
    "dropout_rate", "dropout_rng", "return_lse", "offset",
)  # fmt: skip
TRAITS = (  # what no keyword shows
    "grouped heads", "V != D", "rank 2", "rank 3", "rank 5", "batch", "heads", "heads apart", "empty arrays",
    "gradients", "gradient of bias", "bias of rank 1", "bias of rank 3", "determinism", "float64", "float32",
    "bfloat16", "float16",
)  # fmt: skip
PROTOCOL_TRAITS = (*TRAITS, *OPTIONS)
CAUSAL, EMPTY_ROWS = ("start", "end"), ("zero", "mean", "nan")


@dataclasses.dataclass(frozen=True)
class Implementation:
    """What is judged.

    Attributes:
        attend: ``fn(query, key, value, *, mask=None, ...)`` on arrays (..., N, T, D) of its framework.
        name: for the report.
        arrays: "jax", "torch" or "numpy".
        backward: of a NumPy function: ``backward(grad_output, query, key, value, *, ..., grad_lse=None)``.
        causal: where ``is_causal`` begins: "start" (L4) or "end".
        empty_rows: what a query without any key gets: "zero" (L5), "mean" of the values, or "nan".
        lacks: what it does not offer, of ``TRAITS`` and ``OPTIONS``, each with the reason.
        source: Python that defines ``attend`` in a reproduction.
        eager: whether JAX may not compile it.
        version: of its library.
        device: where its arrays are made, as its framework names it; its own default unless given.
        documented: where it differs by design, each with the text that says so.
        known: the causes of its faults that have a name.
    """

    attend: Callable[..., Any]
    name: str
    arrays: str = "jax"
    backward: Callable[..., Any] | None = None
    causal: str = "start"
    empty_rows: str = "zero"
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    source: str = ""
    eager: bool = False
    version: str = ""
    device: str = ""
    documented: tuple[Documented, ...] = ()
    known: tuple[Known, ...] = ()

    def documented_or(self, case: Case, finding: Finding) -> Finding:
        """The finding; by design where it is a fault that its documentation or source explains."""
        if not finding.verdict.fails:
            return finding
        entry = next((entry for entry in self.documented if entry.fits(case, finding)), None)
        if entry is None:
            return finding
        found = f"{finding.verdict}: {finding.message}"
        return finding._replace(verdict=Verdict.BY_DESIGN, message=f"{entry.says} ({entry.source}); found {found}")

    def __post_init__(self) -> None:
        """Refuse settings that are none; a function carries its backward."""
        for name, known in (("causal", CAUSAL), ("empty_rows", EMPTY_ROWS)):
            if getattr(self, name) not in known:
                raise ValueError(f"check: {name} got {getattr(self, name)!r}, expected one of {', '.join(known)}")
        if unknown := sorted(set(self.lacks) - {*OPTIONS, *TRAITS}):
            some = ", ".join((*TRAITS, *OPTIONS)) + did_you_mean(unknown[0], (*TRAITS, *OPTIONS))
            raise ValueError(f"check: lacks got {unknown[0]!r}, expected some of {some}")
        if self.backward is not None and not hasattr(self.attend, "backward"):
            attend: Any = functools.partial(self.attend)
            attend.backward = self.backward
            object.__setattr__(self, "attend", attend)

    def conventions(self) -> bool:
        """Whether it declares to differ."""
        return self.causal != "start" or self.empty_rows != "zero"

    def lack(self, traits: list[str]) -> str | None:
        """Why it does not offer one of the traits of a case; None if it offers all."""
        accepted = _keywords(self.attend)
        for trait in traits:
            if trait in self.lacks:
                return self.lacks[trait]
            if trait in OPTIONS and accepted is not None and trait not in accepted:
                others = never_given(self.attend)
                return f"no argument {trait}" + (f"; never given: {', '.join(others)}" if others else "")
        return None


def never_given(function: Callable[..., Any]) -> list[str]:
    """The parameters after query, key and value that are no keywords of the protocol: perhaps they have other names."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[3:]
    except (TypeError, ValueError):
        return []
    bound = getattr(function, "keywords", {})
    named = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return [name for name in named if name not in OPTIONS and name not in bound]


def _keywords(function: Callable[..., Any]) -> set[str] | None:
    """The names that a function takes as keywords; None if it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def resolve(path: str) -> Any:
    """What ``"module:name"`` names; the current directory is searched, too.

    Raises:
        ValueError: it is no such path, or the module has no such name.
        ModuleNotFoundError: there is no such module.
    """
    module, separator, names = path.partition(":")
    if not (module and separator and names):
        raise ValueError(f"check: {path!r} is not module:function, such as jax.nn:dot_product_attention")
    found = importlib.import_module(module)
    for name in names.split("."):
        if not hasattr(found, name):
            raise ValueError(f"check: {module} has no {names}{did_you_mean(name, dir(found))}")
        found = getattr(found, name)
    return found


def import_line(function: Any, path: str | None = None, name: str = "fn", known: tuple[Any, ...] = ()) -> str:
    """Python that makes ``name`` the function, as far as it can be told; else it raises, and says what to define."""
    if path:
        module, _, names = path.partition(":")
        if "." in names:
            return f"{_findable(module)}import {module}\n{name} = {module}.{names}"
        return f"{_findable(module)}from {module} import {names} as {name}"
    home, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if home in sys.modules and home != "__main__" and "<" not in qualified:
        try:
            if qualified and resolve(f"{home}:{qualified}") is function:
                return import_line(function, f"{home}:{qualified}", name)
        except (ImportError, ValueError):
            pass
    if isinstance(function, functools.partial):
        words = [repr(x) for x in function.args] + [f"{k}={x!r}" for k, x in function.keywords.items()]
        inner = import_line(function.func, None, name, known)
        return f"{inner}\nimport functools\n{name} = functools.partial({', '.join([name, *words])})"
    text = _definition(function, name)
    if text is None:
        shown = qualified or type(function).__qualname__
        return f"raise NotImplementedError({f'define {name} here: {shown}, which was judged, cannot be shown'!r})"
    return "\n".join([*_used(function, (*known, function)), text])


def _findable(module: str) -> str:
    """A line that finds a module which no installed distribution has."""
    top = module.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None)
    if not file or top in sys.stdlib_module_names or top in importlib.metadata.packages_distributions():
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


def source_of(function: Any) -> str:
    """The text of a function, without decorators' indentation; a comment where there is none."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError):
        return f"# the source of {getattr(function, '__qualname__', function)} cannot be read: define it here"
