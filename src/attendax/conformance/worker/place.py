"""The function that is judged, from what a user gives; and where it is run: another process, or this one, and why."""

import builtins
import contextlib
import dataclasses
import functools
import importlib.machinery
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ..adapters.implementation import RANK_4, Implementation, keywords, lacking, signature, unknown
from ..cases import CASES, Inputs
from ..cases.how import How
from ..cases.square import FORMS, plain_of
from ..frameworks import framework, kind_of, kinds, others
from ..frameworks.text import import_line, instance, path_of, printed, resolve
from . import foreign
from .calling import Subject, Worker, call, subject_of
from .errors import MAX_CHARS, Died, Failed, NoNumbers, Unusable, first_line

DECLARED_SETTINGS = ("lacks", "means")  # of the user; another process has no need of them
OTHER_ARRAYS = "gives arrays of another kind"
LONGER_TIMEOUT = ": --timeout SECONDS, or timeout=, gives it longer"
NAMED = {"fn": "the function"}


def implement(
    fn: Any, *, in_process: bool = False, how: How | None = None, worker: Worker | None = None, **asked: Any
) -> Implementation:
    """Make an ``Implementation`` of anything that ``check`` takes: in a process of its own where that can import it.

    A ``worker`` that has it already is used. It raises as ``here``, or what importing the function raised.
    """
    how = how or How()
    asked = {k: lacking(x) if k == "lacks" else x for k, x in asked.items() if x is not None}
    if isinstance(fn, Implementation):
        return here(fn, how=how, **asked)
    given = {"backward": asked.get("backward"), "fn": fn}
    named = {k: path_in_other_process(x, NAMED.get(k, k)) for k, x in given.items() if x is not None}
    why = next((reason for path, reason in named.values() if not path), "")
    if why or in_process:
        made = here(fn, how=how, **asked)
        return dataclasses.replace(made, process="as requested" if in_process else why)
    asked |= {k: path for k, (path, _) in named.items()}
    if not isinstance(fn, str):
        asked.setdefault("name", name_of(fn))
    declared = {k: asked.pop(k) for k in DECLARED_SETTINGS if k in asked}
    first = how.patience if foreign.is_path(asked["fn"]) or how.timeout is not None else None
    candidate = asked | {"dtype": how.dtype, "sizes": dict(how.sizes)}
    worker = worker.become(candidate, first) if worker else Worker("function", candidate, first)
    worker.of_run = lambda: how.left() + worker.waited()  # until its run counts what it takes
    try:
        made = _described(_started(worker, asked), worker, asked)
        declared["lacks"] = made.lacks | declared.get("lacks", {})
        return dataclasses.replace(made, **declared, device=asked.get("device", ""))
    except BaseException:
        worker.close()
        raise


def path_in_other_process(x: Any, what: str) -> tuple[str, str]:
    """The path by which another process finds it, or why none does."""
    if isinstance(x, str):
        return x, ""
    if (path := path_of(x)) and _is_found(path.partition(":")[0]):
        return path, ""
    home, name = getattr(x, "__module__", ""), getattr(x, "__qualname__", "")
    if home == "__main__":
        return "", f"{what} is defined in __main__, which no other process imports"
    if "<" in name:
        return "", f"{what} is defined inside another function, or is a lambda, so no other process can import it"
    return "", f"{what} is no function that another process can import by its name"


def _is_found(module: str) -> bool:
    """Tell whether a fresh process finds the file that this module is of."""
    file = getattr(sys.modules.get(module), "__file__", None)
    origin, where = None, None
    for k in range(1, module.count(".") + 2):
        spec = importlib.machinery.PathFinder.find_spec(".".join(module.split(".")[:k]), where)
        if spec is None:
            return file is None  # built in
        origin, where = spec.origin, spec.submodule_search_locations
    return file is None or (origin is not None and os.path.realpath(origin) == os.path.realpath(file))


def _started(worker: Worker, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Start the process; where trying the candidate ends it, that is for the cases to tell."""
    try:
        told = worker.start()
    except Died as died:
        if foreign.is_path(asked["fn"]):  # a program, which is not imported
            name = asked.get("name") or foreign.name_of(asked["fn"])
            when = "on the plainest call" if worker.trying else "when it is loaded"
            raise Unusable(f"check: {name} fails {when}: {died}" + LONGER_TIMEOUT * (died.how == "timeout")) from died
        if not worker.trying:
            raise Unusable(f"check: {asked['fn']}: when it was imported: {died}") from died
        worker.candidate |= {"arrays": worker.trying}
        try:
            told = worker.start()
        except Died as again:
            raise Unusable(f"check: {asked['fn']}: when it was imported again: {again}") from again
    if "raised" in told:
        raise error_of(told, str(asked["fn"]))
    worker.candidate |= {"arrays": told.get("arrays"), "eager": bool(told.get("eager"))}
    return told


def error_of(told: Mapping[str, Any], candidate: str) -> BaseException:
    """Remake the error of importing the candidate, as far as its type is of Python itself."""
    kind, said = getattr(builtins, str(told["raised"]), None), str(told["said"])
    if told["raised"] == Unusable.__name__:
        return Unusable(said)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # it takes other arguments
            return kind(said)
    ends = isinstance(kind, type) and issubclass(kind, BaseException)
    return Unusable(f"check: {candidate}: {told['line']}") if ends else ImportError(str(told["line"]))


def _described(told: dict[str, Any], worker: Worker, asked: Mapping[str, Any]) -> Implementation:
    """The function as its process tells of it."""
    fn = str(asked["fn"])
    sure: dict[str, Any] = {"process": "", "foreign": foreign.is_path(fn), "recorded": fn.startswith("folder:")}
    try:
        worker.__signature__ = signature(told.pop("accepted"), told.pop("others"))
        if told["backward"]:
            told["backward"] = worker.backward = worker
        return Implementation(worker, **told | sure)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unusable(f"check: {fn}: its process says nothing that can be read") from error


def here(
    fn: Any, *, name: str | None = None, arrays: str | None = None, backward: Any = None, how: How | None = None,
    eager: bool = False, trying: Callable[[str], Any] = str, fit: str = "", layout: str = "", **settings: Any,
) -> Implementation:  # fmt: skip
    """Make an ``Implementation`` in this process; ``trying`` is told of the arrays of each try.

    ``fit`` is Python that defines ``adapted``, the function by the protocol, whose own arrays have that ``layout``.
    """
    how = how or How()
    if isinstance(fn, Implementation):
        return _overridden(fn, arrays, settings)
    if isinstance(fn, str) and foreign.is_path(fn):
        made = _overridden(foreign.implementation(fn, name), arrays, settings)
        return made if made.recorded else _first_that_runs([made], how, trying)
    path = fn if isinstance(fn, str) else None
    backward = resolve(backward) if isinstance(backward, str) else backward
    if fit:
        made = fitted(fit, str(name or path or name_of(fn)), str(arrays), None if path else fn)
        return dataclasses.replace(_overridden(made, None, settings), layout=layout)
    given = resolve(path) if path else fn
    fn = instance(given)
    path = f"{path}()" if path and fn is not given else path
    if isinstance(fn, Implementation):
        return _overridden(fn, arrays, settings)
    if not callable(fn):
        raise TypeError(f"check: fn got {type(fn).__name__}, expected a function or the path module:function of one")
    name, guessed = str(name or path or name_of(fn)), tuple[str, ...]()
    if not arrays:
        tries = [plain(fn, name, kind, eager=eager, **settings) for kind, eager in kinds()]
        made = _first_that_runs(tries, how, trying)
        arrays, eager, guessed = made.arrays, made.eager, others(made.arrays)
    framework(arrays)
    made = plain(fn, name, arrays, path=path, backward=backward, eager=eager, **settings)
    return dataclasses.replace(made, guessed=guessed)


def plain(
    fn: Callable[..., Any], name: str, arrays: str, *, path: str | None = None,
    backward: Callable[..., Any] | None = None, lacks: Mapping[str, str] | None = None, **settings: Any,
) -> Implementation:  # fmt: skip
    """A function that is called by the protocol; it may carry its gradients as ``backward``."""
    attend, lines = fn, [import_line(fn, path), "attend = fn"]
    own = getattr(fn, "backward", None)
    by_hand = "backward = fn.backward" if own and not backward else import_line(backward, name="backward")
    backward = backward or own
    try:
        hash(attend)
    except TypeError:  # jax.jit takes it as a static argument
        attend = functools.partial(attend)
        lines = ["import functools", *lines, "attend = functools.partial(attend)"]
    if backward and arrays == "numpy":
        lines += ["import functools", by_hand, "attend = functools.partial(attend)", "attend.backward = backward"]
    elif backward:
        shown = ["", "", printed(arrays, ("with_backward",)), "", "", by_hand]
        lines += [*shown, "attend = with_backward(attend, backward)"]
        attend, backward = framework(arrays).with_backward(attend, backward), None
    source = "\n".join(lines)
    return Implementation(attend, name, arrays, backward, lacks=lacks or {}, source=source, **settings)


def fitted(text: str, name: str, arrays: str, fn: Any = None) -> Implementation:
    """The function ``adapted`` of a text, which has the import of what it calls, or calls ``fn``."""
    names: dict[str, Any] = {"__name__": "adapter", "fn": fn}
    exec(compile(text, "adapter.py", "exec"), names)
    if getattr(names["fn"], "backward", None):
        said = "gradients by hand are called by the protocol, and the function is called in its own way"
        raise Unusable(f"check: {name}: {said}; write both by the protocol")
    source = "\n".join([*[import_line(fn)] * (fn is not None), text, "attend = adapted"])
    return Implementation(names["adapted"], name, arrays, source=source, lacks=dict(RANK_4))


def _overridden(made: Implementation, arrays: str | None, settings: dict[str, Any]) -> Implementation:
    """Put the conventions that the user declares in the place of those that it has."""
    if arrays not in (None, made.arrays):
        why = "is not a Python function" if made.foreign else f"is an Implementation, for {made.arrays}"
        raise ValueError(f"check: arrays got {arrays!r}, but {made.name} {why}: leave arrays out")
    return dataclasses.replace(made, **settings | {"lacks": {**made.lacks, **settings.get("lacks", {})}})


def name_of(fn: Any) -> str:
    """The name of a function that has no other."""
    return getattr(fn, "__qualname__", type(fn).__name__)


def _first_that_runs(tries: list[Implementation], how: How, trying: Callable[[str], Any]) -> Implementation:
    """The first of them that one of the plainest calls runs on."""
    said: list[str] = []
    for form in FORMS:  # what is said is of the first: the plainest call of all
        inputs = plain_of(form, how.sizes).inputs(0, how.dtype)
        for made in tries:
            trying(made.arrays)
            if not (error := _tried(made, inputs)):
                return made
            if form == FORMS[0] and error != OTHER_ARRAYS:
                said.append(error if made.foreign else f"  {made.arrays:<6} {error}")
    head, rows = f"check: {tries[0].name} fails on the plainest call, {how.dtype}", ";\n".join(dict.fromkeys(said))
    if tries[0].foreign:
        raise Unusable(f"{head}: {rows}")
    first = (CASES[0].sized(how.sizes) or CASES[0]).inputs(0, how.dtype).arrays
    raise Unusable(
        f"{head}, query {first['query'].shape}, key and value {first['key'].shape}:\n{rows};\n"
        "  and also with T = S, causal, and multiples of 64 and 128; dtype, sizes and arrays ask for another call"
    )


def _gives_its_own(made: Implementation, inputs: Inputs) -> bool:
    """Tell whether NumPy's arrays come for NumPy's, and none of torch for JAX's; what is compiled gives its own."""
    if made.arrays == "torch" or (made.arrays == "jax" and not made.eager):
        return True
    given = map(framework(made.arrays).asarray, inputs.arrays.values())
    kind = kind_of(made.attend(*given, **inputs.options))
    return kind == "numpy" if made.arrays == "numpy" else kind != "torch"


def _tried(made: Implementation, inputs: Inputs) -> str:
    """Try a call; give the error that it raises, empty where it runs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if made.arrays == "numpy" and not (made.foreign or (made.device or "cpu").startswith("cpu")):
                return f"has no device {made.device}"
            if not made.foreign and not _gives_its_own(made, inputs):
                return OTHER_ARRAYS
            call(made, inputs, "forward")
    except (Failed, NoNumbers, NotImplementedError, ValueError) as error:
        return str(error)
    except (Exception, SystemExit) as error:  # of the call with NumPy's arrays
        return first_line(error)
    return ""


def told(made: Implementation) -> dict[str, Any]:
    """All that a process tells of a candidate."""
    found = {k: x for k, x in vars(made).items() if k not in ("attend", "form")} | {"source": made.source[:MAX_CHARS]}
    found |= {"lacks": dict(made.lacks), "means": dict(made.means), "backward": True if made.backward else None}
    return found | {"accepted": keywords(made.attend), "others": unknown(made.attend)}


def subject(message: dict[str, Any], trying: Callable[[str], None]) -> Subject:
    """Make the candidate of a message."""
    how = How(dtype=message.pop("dtype"), sizes=message.pop("sizes"))
    made = here(**message, how=how, trying=trying)
    found = subject_of(made)
    found.told = told(made)
    return found
