"""One of two functions, called with arrays of NumPy and giving such: in a process of its own, or in this one."""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attendax.exits import Refusal

from .. import protocol
from ..adapters import ADAPTERS
from ..adapters.implementation import OPTIONS
from ..adapters.source import path_of, resolve
from ..frameworks import NAMES, framework
from ..worker import foreign
from ..worker.errors import Died, Failed, NoNumbers
from ..worker.place import path_in_other_process
from ..worker.process import Worker

TIMEOUT, WHOLE = 60.0, 600.0  # seconds of a call, and of all calls
PLAIN = (bool, int, float, str, type(None))
IMPORTS = {"jax": "import jax.numpy as xp", "numpy": "import numpy as xp", "torch": "import torch as xp"}
FOUND = {  # Python that finds a function which no module has
    "adapter": "from attendax.conformance.adapters import ADAPTERS\n\nfn = ADAPTERS[{0!r}].implementation('').attend",
    "foreign": "from attendax.conformance.worker.foreign import implementation\n\nfn = implementation({0!r}).attend",
}
LITERAL = re.compile(r"None|True|False|[\d.]+")
LEAVES = ("out", "lse")


class Here:
    """A function in this process; arrays of NumPy are tried first, then those of the frameworks that it imports.

    Attributes:
        path: by which it is told.
        names, required, defaults: of its parameters: all, those that must be given, and what the others are else.
    """

    def __init__(self, fn: Any, path: str = "") -> None:
        self.path = path or path_of(fn) or getattr(fn, "__name__", "a function")
        made = None
        if isinstance(fn, str) and (fn in ADAPTERS or foreign.is_path(fn)):
            made = ADAPTERS[fn].implementation(fn) if fn in ADAPTERS else foreign.implementation(fn)
            self.fn, self.kinds = made.attend, [made.arrays]
        else:
            self.fn = resolve(fn) if isinstance(fn, str) else fn
            self.kinds = ["numpy", *(kind for kind in ("jax", "torch") if kind in sys.modules)]
        if not callable(self.fn):
            raise ValueError(f"{fn} is of type {type(self.fn).__name__}, expected a function")
        self.names, self.required, self.defaults = _parameters(self.fn)
        if made:
            self.required = self.names[:3]
        if made and len(self.names) == 3:  # it takes every keyword of attendax
            self.names += OPTIONS

    def __call__(self, *arrays: Any, **options: Any) -> tuple[np.ndarray, ...]:
        """One call; raises Failed where it raises, dies, or gives no arrays."""
        return self.run(self.fn, arrays, options)

    def run(
        self, fn: Callable[..., Any], arrays: tuple[Any, ...], options: Mapping[str, Any]
    ) -> tuple[np.ndarray, ...]:
        """A call of a function of the same arrays."""
        said: Exception | None = None
        for kind in list(self.kinds):
            try:
                with np.errstate(all="ignore"):
                    found = fn(*_made(arrays, kind), **_made(options, kind))
            except (Exception, SystemExit) as error:
                said = said or Failed.by(error)
                continue
            parts = [x for x in (found if isinstance(found, (tuple, list)) else [found]) if hasattr(x, "dtype")][:2]
            if not parts:
                raise Failed(f"it gives {type(found).__name__}, expected an array")
            self.kinds = [_kind_of(parts[0], kind)]  # its own from now on
            return tuple(framework("torch").to_numpy(x) if _kind_of(x, "") == "torch" else np.array(x) for x in parts)
        assert said is not None
        raise said

    def kind(self) -> str:
        """The framework of its arrays, as far as it was called."""
        return self.kinds[0]

    def adapted(self, code: str) -> Callable[..., tuple[np.ndarray, ...]]:
        """The function ``adapted`` of that code, run where this function is."""
        names: dict[str, Any] = {"__name__": "adapter", "fn": self.fn}
        exec(compile(code, "adapter.py", "exec"), names)
        return lambda *arrays, **options: self.run(names["adapted"], arrays, options)

    def close(self) -> None:
        """Nothing is left."""

    def told(self) -> dict[str, Any]:
        """Facts that a process tells of it."""
        return {"names": self.names, "required": self.required, "defaults": self.defaults}

    def answer(self, request: protocol.Request, device: str) -> dict[str, np.ndarray]:
        """A call that another process asks for."""
        if request.direction == "kind":
            return {"out": np.array(NAMES.index(self.kind()))}
        given = {**request.arrays, **request.options}
        first = [given.pop(f"array{k}") for k in range(request.given["count"])]
        call = self.adapted(request.given["code"]) if request.given["code"] else self
        return dict(zip(LEAVES, call(*first, **given), strict=False))


class There(Worker):
    """A stand-in for a function of another process."""

    def __init__(self, path: str) -> None:
        super().__init__("either", {"path": path})
        self.path, self.spent = path, 0.0
        try:
            told = self.start()
        except Died as died:
            self.close()
            raise Refusal(f"{path}: when it was imported: {died}") from died
        if "raised" in told:
            self.close()
            raise Refusal(f"{path}: {told['line'].removeprefix('ValueError: ').removeprefix('check: ')}")
        self.names, self.required = told["names"], told["required"]
        self.defaults = {k: tuple(x) if isinstance(x, list) else x for k, x in told["defaults"].items()}

    def __call__(self, *arrays: Any, **options: Any) -> tuple[np.ndarray, ...]:
        """See ``Here``."""
        return self.run("", arrays, options)

    def run(self, code: str, arrays: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
        """A call of the function, or of that of a code around it."""
        self.allow(TIMEOUT)
        given = {f"array{k}": x for k, x in enumerate(arrays)}
        whole = {k: x for k, x in given.items() if isinstance(x, np.ndarray)}
        others = {k: x for k, x in given.items() if k not in whole} | dict(options)
        request = protocol.Request("call", whole, others, {"count": len(arrays), "code": code}, {}, {}, "")
        try:
            found = self.ask(request)
        except NoNumbers as error:
            raise Failed(str(error.args[-1])) from error
        except Died as died:
            if died.how == "timeout":
                raise Refusal(f"{self.path}: a call with {len(arrays)} small arrays: {died.args[0]}") from died
            raise
        finally:
            self.spent += self.taken
        if self.spent > WHOLE:
            raise Refusal(f"{self.path}: its calls took {WHOLE:.0f} seconds, too long to compare; make it quicker")
        return tuple(found[name] for name in LEAVES if name in found)

    def kind(self) -> str:
        """See ``Here``."""
        found = self.ask(protocol.Request("kind", {}, {}, {}, {}, {}, ""))
        return NAMES[int(found["out"])]

    def adapted(self, code: str) -> Callable[..., tuple[np.ndarray, ...]]:
        """See ``Here``."""
        return lambda *arrays, **options: self.run(code, arrays, options)


Function = Here | There


def function(fn: Any) -> Function:
    """Start a process of its own where that can import it; refuse what is no function."""
    path, _ = path_in_other_process(fn, "the function")
    try:
        return There(path) if path else Here(fn)
    except ValueError as error:
        raise Refusal(str(error).removeprefix("check: ")) from error


def import_line(path: str) -> str:
    """Python that makes ``fn`` the function of that path."""
    if path in ADAPTERS or foreign.is_path(path):
        return FOUND["adapter" if path in ADAPTERS else "foreign"].format(path)
    module, _, name = path.partition(":")
    if not name:
        return f"# fn is {path}"
    return f"import {module}\n\nfn = {module}.{name}" if "." in name else f"from {module} import {name} as fn"


def _parameters(fn: Any) -> tuple[list[str], list[str], dict[str, Any]]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # compiled: its documentation begins with its signature
        parameters = _documented(fn)
    anything = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    parameters = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if anything and not parameters:  # *args
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("query", "key", "value")]
    defaults = {p.name: p.default for p in parameters if _is_plain(p.default)}
    return [p.name for p in parameters], [p.name for p in parameters if p.default is p.empty], defaults


def _is_plain(x: Any) -> bool:
    return isinstance(x, PLAIN) or (isinstance(x, tuple) and all(isinstance(y, PLAIN) for y in x))


def _documented(fn: Any) -> list[inspect.Parameter]:
    found = re.search(r"\((.*?)\) ?->", getattr(fn, "__doc__", "") or "", re.DOTALL)
    if not found:
        raise ValueError("it does not tell its parameters; wrap it in a function that does")
    words = [word.strip() for word in found[1].replace("\n", " ").split(",") if word.strip() not in ("*", "/")]
    pairs = [[x.strip() for x in word.split("=")] for word in words]
    defaults = {pair[0]: pair[1] for pair in pairs if pair[1:]}
    known = {k: ast.literal_eval(x) if LITERAL.fullmatch(x) else ... for k, x in defaults.items()}
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(pair[0], kind, default=known.get(pair[0], inspect.Parameter.empty)) for pair in pairs]


def _made(x: Any, kind: str) -> Any:
    if isinstance(x, Mapping):
        return {k: _made(v, kind) for k, v in x.items()}
    if isinstance(x, tuple) and any(isinstance(v, (np.ndarray, Mapping)) for v in x):
        return tuple(_made(v, kind) for v in x)
    if not isinstance(x, np.ndarray) or kind == "numpy":
        return x
    if kind == "torch":
        return framework("torch").tensor(x)
    import jax.numpy as jnp

    return jnp.asarray(x)


def _kind_of(x: Any, kind: str) -> str:
    home = type(x).__module__.partition(".")[0]
    return "jax" if home in ("jax", "jaxlib") else "torch" if home == "torch" else kind


def subject(message: dict[str, Any], trying: Any) -> Here:
    """One of the two, as the process answers with it."""
    return Here(message["path"], message["path"])
