"""An implementation to be judged: the function of the protocol, its conventions, and the text that makes it."""

import dataclasses
import functools
import importlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

OPTIONS = (
    "mask", "bias", "is_causal", "scale", "softcap", "window", "key_lengths", "query_segment_ids", "key_segment_ids",
    "dropout_rate", "dropout_rng", "return_lse",
)  # fmt: skip
TRAITS = (  # what no keyword shows
    "grouped heads", "V != D", "rank 2", "rank 3", "rank 5", "batch", "heads", "empty arrays", "gradient of bias",
    "float64", "float32", "bfloat16", "float16",
)  # fmt: skip
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

    def __post_init__(self) -> None:
        """Refuse settings that are none; a function carries its backward."""
        for name, known in (("causal", CAUSAL), ("empty_rows", EMPTY_ROWS)):
            if getattr(self, name) not in known:
                raise ValueError(f"check: {name} got {getattr(self, name)!r}, expected one of {', '.join(known)}")
        if unknown := sorted(set(self.lacks) - {*OPTIONS, *TRAITS}):
            raise ValueError(f"check: lacks got {unknown[0]!r}, expected some of {', '.join((*TRAITS, *OPTIONS))}")
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
                return f"no argument {trait}"
        return None


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
            raise ValueError(f"check: {module} has no {names}")
        found = getattr(found, name)
    return found


def import_line(function: Any, path: str | None = None, name: str = "fn") -> str:
    """Python that makes ``name`` the function, as far as it can be told."""
    if path:
        module, _, names = path.partition(":")
        if "." in names:
            return f"import {module}\n{name} = {module}.{names}"
        return f"from {module} import {names} as {name}"
    home, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if home and home != "__main__" and qualified.isidentifier():
        try:
            if resolve(f"{home}:{qualified}") is function:
                return import_line(function, f"{home}:{qualified}", name)
        except (ImportError, ValueError):
            pass
    return f"{source_of(function)}\n{name} = {getattr(function, '__name__', '...')}"


def source_of(function: Any) -> str:
    """The text of a function, without decorators' indentation; a comment where there is none."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError):
        return f"# the source of {getattr(function, '__qualname__', function)} cannot be read: define it here"
