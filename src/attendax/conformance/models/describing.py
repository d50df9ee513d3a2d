"""A model from what a user gives: a path, a function, a module, and what is said of it."""

import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attendax.legible import did_you_mean

from ..adapters.implementation import lacking
from ..adapters.source import resolve
from ..cases.kinds import checked
from ..frameworks import kinds
from ..report.outcomes import MODEL_LAWS
from ..worker.errors import Failed
from .adapters import offer
from .blackbox import COUNT, KEYWORDS, POSITIONS, TRAITS, Model, Request
from .runner import Offer, Runner
from .sees import Sees, sees

SAID = (
    "name", "inputs", "vocabulary", "width", "arrays", "mask", "cache", "sees", "window", "layers", "positions",
    "longest", "pad", "ways", "lacks", "claims", "heads",
)  # fmt: skip
CLAIMS = ("bits", "own positions", "mean of dropout")


def describe(apply: Any, causal: bool | None, said: Mapping[str, Any]) -> Model:
    """Describe a model for ``check_model``."""
    if unknown := sorted(set(said) - set(SAID)):
        known = ", ".join(SAID) + did_you_mean(unknown[0], SAID)
        raise TypeError(f"check_model: got an unexpected setting {unknown[0]!r}, expected some of {known}")
    path = apply if isinstance(apply, str) else None
    target = resolve(apply) if path else apply
    if said.get("cache"):
        said = {**said, "cache": _cache(said["cache"])}
    if isinstance(said.get("heads"), str):
        said = {**said, "heads": resolve(said["heads"])}
    made, said, visible = _offered(target, causal, said)
    inputs, size = _inputs(said)
    try:
        accepts = frozenset(KEYWORDS) & set(inspect.signature(made.apply).parameters)
    except (TypeError, ValueError):
        accepts = frozenset()
    padding = said["mask"] if "mask" in said else next((k for k in ("mask", "lengths") if k in accepts), None)
    _check(said, padding)
    cache = said.get("cache") or ()
    steps = {"cache": cache, "reordering": len(cache) > 2}
    steps["positions of steps"] = cache and "positions" in inspect.signature(cache[1]).parameters
    runner, dtype, width = _runner(made, target, said, size if inputs == "vectors" else None)
    return Model(
        name=str(said.get("name") or path or getattr(target, "__qualname__", type(target).__name__)),
        arrays=runner.arrays, run=runner.run, ways=runner.ways, gradient=runner.gradient, heads=_heads(runner),
        inputs=inputs, known_tokens=_tokens(size if inputs == "tokens" else COUNT, said.get("pad")), nan=COUNT,
        sees=visible.words, causal=visible.causal, padding=padding, accepts=accepts, layers=said.get("layers") or 1,
        positions=said.get("positions"), longest=said.get("longest"), pad=said.get("pad"), dtype=dtype,
        steps=frozenset(name for name, offered in steps.items() if offered),
        lacks=said["lacks"], claims=frozenset(said["claims"]),
        lines=runner.lines(path) | {"width": str(size), "results": str(width)},
    )  # fmt: skip


def _offered(target: Any, causal: bool | None, said: Mapping[str, Any]) -> tuple[Offer, dict[str, Any], Sees]:
    """Adapt a model, join all that is said of it, and settle which tokens it sees."""
    if not isinstance(causal, bool | None):
        expected = "True (sees only what is before) or False (sees all)"
        raise ValueError(f"check_model: causal got {causal!r}, expected {expected}")
    declared = said.get("sees"), said.get("window")
    visible = None if declared == (None, None) else sees(declared[0], causal, declared[1])
    made = offer(target, visible.causal if visible else causal)
    lacks = lacking(made.facts.get("lacks")) | lacking(said.get("lacks"))
    claims = said.get("claims", ())
    claims = (*made.facts.get("claims", ()), *([claims] if isinstance(claims, str) else claims))
    said = {**made.facts, **said, "lacks": lacks, "claims": claims}
    of_itself = said.pop("causal", None)
    return made, said, visible or sees(None, of_itself if causal is None else causal)


def _cache(given: Any) -> tuple[Callable[..., Any], ...]:
    """The functions of a cache: each given, or by its path; or both by the path of a pair."""
    found = resolve(given) if isinstance(given, str) else given
    parts = [resolve(x) if isinstance(x, str) else x for x in (found if isinstance(found, (tuple, list)) else [found])]
    if len(parts) == 1 and isinstance(parts[0], (tuple, list)):
        parts = list(parts[0])
    if len(parts) not in (2, 3) or not all(map(callable, parts)):
        names = ", ".join(getattr(x, "__name__", type(x).__name__) for x in parts)
        raise ValueError(f"check_model: cache got {names}, expected functions (init, step) or (init, step, reorder)")
    return tuple(parts)


def _inputs(said: Mapping[str, Any]) -> tuple[str, int]:
    inputs = said.get("inputs") or ("vectors" if said.get("width") else "tokens")
    if inputs not in ("tokens", "vectors"):
        raise ValueError(f"check_model: inputs got {inputs!r}, expected tokens or vectors")
    name = "vocabulary" if inputs == "tokens" else "width"
    size = said.get(name)
    least = 4 if inputs == "tokens" else 1
    if not isinstance(size, int) or size < least:
        raise ValueError(f"check_model: {name} got {size!r}, expected a whole number, {least} or more, of {inputs}")
    return inputs, size


def _check(said: Mapping[str, Any], padding: Any) -> None:
    if padding not in ("mask", "lengths", None):
        raise ValueError(f"check_model: mask got {padding!r}, expected mask, lengths or None")
    for name, known in (("positions", POSITIONS), ("claims", CLAIMS), ("lacks", (*TRAITS, *MODEL_LAWS))):
        checked(name, said.get(name) or (), known, "check_model")
    for name in ("layers", "longest", "vocabulary", "width"):
        x = said.get(name)
        if x is not None and (not isinstance(x, int) or x < 1):
            raise ValueError(f"check_model: {name} got {x!r}, expected a whole number, 1 or more")


def _heads(runner: Runner) -> str:
    """Say why the weights of the heads are not known; empty where they are."""
    if runner.heads is None:
        return "no function heads is given that reads q, k and v"
    if runner.table is None:
        return "inputs are tokens"
    try:
        return "" if runner.weights else "no weights"
    except NotImplementedError as error:
        return str(error)


def _tokens(count: int, pad: int | None) -> np.ndarray:
    return np.array([k for k in range(count) if k != pad], np.int32)


def _runner(made: Offer, target: Any, said: Mapping[str, Any], width: int | None) -> tuple[Runner, str, int]:
    """Find arrays with which the plainest call works; give the dtype and the width of its results, too."""
    arrays, failed = said.get("arrays") or made.arrays, []
    request = Request(_tokens(6, said.get("pad"))[None, :4].repeat(2, axis=0))
    tried = [kind for kind in kinds() if arrays in (None, kind[0])]
    for offered, (kind, eager) in itertools.product([x for x in (made, made.otherwise) if x], tried):
        runner = Runner(offered, target, kind, eager, width, said)
        try:
            found = runner.run(request)
            return runner, str(found.dtype), found.shape[-1]
        except (Failed, NotImplementedError) as error:
            failed.append(f"  {kind:<6} {error}")
    rows = ";\n".join(dict.fromkeys(failed)) or "  expected arrays of jax, torch or numpy"
    raise ValueError(f"check_model: fails on the plainest call, inputs {request.tokens.shape}:\n{rows}")
