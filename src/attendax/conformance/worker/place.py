"""The place where the candidate is run: another process, or this one, with the reason."""

import builtins
import contextlib
import dataclasses
import importlib.machinery
import os
import sys
from collections.abc import Mapping
from typing import Any

from ..adapters import ADAPTERS, adapter_for, shipped
from ..adapters.implementation import Adapter, Documented, Implementation, Known, lacking, signature
from ..cases.how import How
from ..frameworks.text import path_of
from . import candidate, foreign
from .errors import Died, Unusable
from .subject import Worker

LONGER = ": --timeout SECONDS, or timeout=, gives it longer"
DECLARED = ("causal", "empty_rows", "lacks")  # of the user; the other process has no need of them
NAMED = {"fn": "the function"}


def implement(fn: Any, *, in_process: bool = False, how: How | None = None, **asked: Any) -> Implementation:
    """Make an ``Implementation`` of anything that ``check`` takes: in a process of its own where that can import it.

    It raises as ``candidate.implement``, or what importing the function raised.
    """
    candidate.refuse_unknown(asked)
    how = how or How()
    asked = {k: lacking(x) if k == "lacks" else x for k, x in asked.items() if x is not None}
    if isinstance(fn, Implementation):
        return candidate.implement(fn, how=how, **asked)
    given = {"adapter": asked.get("adapter"), "backward": asked.get("backward"), "fn": fn}
    named = {k: path_in_other_process(x, NAMED.get(k, k)) for k, x in given.items() if x is not None}
    why = next((reason for path, reason in named.values() if not path), "")
    if why or in_process:
        made = candidate.implement(fn, how=how, **asked)
        return dataclasses.replace(made, process="as asked for" if in_process else why)
    asked |= {k: path for k, (path, _) in named.items()}
    if not isinstance(fn, str):
        asked.setdefault("name", candidate.name_of(fn))
    declared = {k: asked.pop(k) for k in DECLARED if k in asked}
    first = how.patience if foreign.is_path(asked["fn"]) else None
    worker = Worker("function", asked | {"dtype": how.dtype, "sizes": dict(how.sizes)}, first)
    worker.until = how.until
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
    if isinstance(x, Adapter):
        home = getattr(x.call, "__module__", "")
        names = vars(sys.modules[home]) if home in sys.modules and home != "__main__" else {}
        known = ADAPTERS | {f"{home}:{name}": found for name, found in names.items()}
        path = next((name for name, found in known.items() if found is x), "")
    else:
        path = path_of(x)
    if path and (path in ADAPTERS or _is_found(path.partition(":")[0])):
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
        if worker.first is not None:  # a program or a library, which is not imported
            name = asked.get("name") or foreign.name_of(asked["fn"])
            when = "on the plainest call" if worker.trying else "when it is loaded"
            raise Unusable(f"check: {name} fails {when}: {died}" + LONGER * (died.how == "timeout")) from died
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
    """The function as its process tells of it; declarations count where the user, or an adapter, makes them."""
    fn = str(asked["fn"])
    adapter = asked.get("adapter", "") or (fn if fn in ADAPTERS else adapter_for(fn) or "")
    sure: dict[str, Any] = {"process": "", "foreign": foreign.is_path(fn), "recorded": fn.startswith("folder:")}
    try:
        if ":" in adapter:
            sure |= {k: tuple(kind(*x) for x in told[k]) for k, kind in (("documented", Documented), ("known", Known))}
        else:
            own = shipped(adapter) if adapter in ADAPTERS else Adapter(str, fn)
            sure |= {k: getattr(own, k) for k in ("causal", "empty_rows", "documented", "known")}
        worker.__signature__ = signature(told.pop("accepted"), told.pop("others"))
        if told["backward"]:
            told["backward"] = worker.backward = worker
        return Implementation(worker, **told | sure)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unusable(f"check: {fn}: its process says nothing that can be read") from error
