"""A script that shows a fault in a fresh Python without attendax."""

import inspect
import re

import numpy as np

from .blackbox import Model
from .law import Law
from .request import Request, direction, vectors
from .trial import Found

ENDINGS = {
    "equal": "assert np.abs(one - other).max() <= {allowed:.3g}",
    "other": "assert np.abs(one - other).max() > {allowed:.3g}, 'nothing changed'",
    "finite": "assert np.isfinite(one).all()",
    "zero": "assert np.abs(one).max() <= {allowed:.3g}",
    "some": "assert np.abs(one).max() > 0, 'no gradient'",
}


def script(model: Model, law: Law, found: Found) -> str:
    """The script; it ends in an error as long as the fault is there."""
    about = f"# {law.name}: {law.about}\n# {model.name}: {found.finding.message}"
    evidence = found.evidence
    if evidence is None:
        return f"{about}\n\n{model.lines['header']}\n\n{model.lines['model']}\n"
    requests = [evidence.one] if evidence.kind in ("finite", "zero", "some") else [evidence.one, evidence.other]
    calls = [_call(model, request) for request in requests]
    parts = [about, model.lines["header"], "# the model", model.lines["model"]]
    if any(request.chunks for request in requests):
        parts.append(model.lines.get("cache", "raise NotImplementedError('define cache here: functions init, step')"))
    parts += ["# how it is run", _functions(model, " ".join(calls))]
    if model.inputs == "vectors":
        count, width = "COUNT, LONGER = 64, 48", int(model.lines["width"])
        parts += [f"{count}\n\n\n{inspect.getsource(vectors).rstrip()}", f"table = vectors({width})"]
    if evidence.one.weights is not None:
        parts.append(inspect.getsource(direction).rstrip())
        parts += filter(None, [model.lines.get("embedding")])
    parts.append("# the inputs")
    for name, request, call, at in zip(("one", "other"), requests, calls, (evidence.at, evidence.beside), strict=False):
        parts.append("\n".join([*_inputs(request), f"{name} = to_numpy({call})[{at[0]}, {at[1]}]"]))
    largest = "np.abs(one - other).max()" if len(requests) > 1 else "np.abs(one).max()"
    parts.append(f"print('largest:', {largest})\n{ENDINGS[evidence.kind].format(allowed=evidence.allowed)}")
    return "\n\n".join(parts) + "\n"


def _inputs(request: Request) -> list[str]:
    lines = [f"tokens = {_literal(request.tokens)}"]
    options = ", ".join(f"{name}={_literal(x)}" for name, x in request.options.items())
    lines.append(f"options = dict({options})")
    return lines + ([] if request.weights is None else [f"weights = {_literal(request.weights)}"])


def _literal(x: np.ndarray) -> str:
    dtype = {"bool": "bool", "int32": "np.int32", "float32": "np.float32"}[str(x.dtype)]
    return f"np.array({x.tolist()}, {dtype})"


def _call(model: Model, request: Request) -> str:
    inputs = "tokens" if model.inputs == "tokens" else "table[tokens]"
    if request.chunks:
        return f"steps(cache, {inputs}, options, {request.chunks}, {request.room}, {request.order})"
    function, apply = model.lines.get(f"way {request.way}", "forward apply").split(" ", 1)
    if request.weights is None:
        return f"{function}({apply}, {inputs}, options)"
    width = model.lines["results"]
    embedding = ", embedding" * ("embedding" in model.lines)
    return f"gradient({apply}, {inputs}, options, weights[:, :, None] * direction({width}){embedding})"


def _functions(model: Model, calls: str) -> str:
    """The functions of the library that the calls use, and what those use."""
    known = {name.removeprefix("def "): text for name, text in model.lines.items() if name.startswith("def ")}
    wanted, used = [*re.findall(r"(\w+)\(", calls), "to_numpy"], set()
    while wanted:
        name = wanted.pop()
        if name in known and name not in used:
            used.add(name)
            wanted += re.findall(r"(\w+)\(", known[name])
    return "\n\n\n".join(text for name, text in known.items() if name in used)
