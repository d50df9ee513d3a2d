"""A script that shows a fault in a fresh Python without attendax."""

import inspect
import re

import numpy as np

from .blackbox import Model, Request, direction, vectors
from .trial import Found, Law

ENDINGS = {
    "equal": "assert np.abs(one - other).max() <= {allowed:.3g}",
    "other": "assert np.abs(one - other).max() > {allowed:.3g}, 'nothing changed'",
    "finite": "assert np.isfinite(one).all()",
    "zero": "assert np.abs(one).max() <= {allowed:.3g}",
    "some": "assert np.abs(one).max() > 0, 'no gradient'",
    "mean": "assert abs(share - 1) <= {allowed:.3g}",
}
MEAN = """\
draws = [to_numpy({call}) for seed in range({draws})]
share = (np.mean(draws, 0) * plain).sum() / (plain * plain).sum()
print('mean of the draws, times the result without dropout:', share)"""


def script(model: Model, law: Law, found: Found) -> str:
    """The script; it ends in an error as long as the fault is there."""
    about = f"# {law.name}: {law.about}\n# {model.name}: {found.finding.message}"
    evidence = found.evidence
    if evidence is None:
        return f"{about}\n\n{model.lines['header']}\n\n{model.lines['model']}\n"
    named = {"one": evidence.one, "other": evidence.other}
    if evidence.kind in ("finite", "zero", "some"):
        del named["other"]
    requests = [x for x in named.values() if isinstance(x, Request)]
    calls = [_call(model, request) for request in requests]
    parts = [about, model.lines["header"], "# the model", model.lines["model"]]
    if any(request.chunks for request in requests):
        parts.append(model.lines.get("cache", "raise NotImplementedError('define cache here: functions init, step')"))
    ways = dict.fromkeys(request.way for request in requests)
    parts += filter(None, [model.lines.get(f"made {way}") for way in ways])
    parts += ["# how it is run", _functions(model, " ".join(calls))]
    if model.inputs == "vectors":
        count, width = "COUNT, LONGER = 64, 48", int(model.lines["width"])
        parts += [f"{count}\n\n\n{inspect.getsource(vectors).rstrip()}", f"table = vectors({width})"]
    if any(request.weights is not None for request in requests):
        parts.append(inspect.getsource(direction).rstrip())
        parts += filter(None, [model.lines.get("embedding")])
    parts.append("# the inputs")
    ending = ENDINGS[evidence.kind].format(allowed=evidence.allowed)
    if evidence.kind == "mean":
        draws = int(evidence.other.options["seed"])
        told = MEAN.format(call=calls[1].replace("options", "dict(seed=np.array(seed, np.int32))"), draws=draws)
        plain = [*_inputs(requests[0]), f"plain = to_numpy({calls[0]}).astype(float)", told, ending]
        return "\n\n".join([*parts, "\n".join(plain)]) + "\n"
    for (name, asked), at in zip(named.items(), (evidence.at, evidence.beside), strict=False):
        parts.append(_lines(model, name, asked, at))
    largest = "np.abs(one - other).max()" if len(named) > 1 else "np.abs(one).max()"
    return "\n\n".join([*parts, f"print('largest:', {largest})\n{ending}"]) + "\n"


def _lines(model: Model, name: str, asked: Request | np.ndarray, at: tuple[int, int]) -> str:
    """Python that makes ``name`` what the model gives at a place, or the numbers that are right there."""
    if isinstance(asked, np.ndarray):
        return f"{name} = {_literal(asked)}  # what is right there, in float64"
    return "\n".join([*_inputs(asked), f"{name} = to_numpy({_call(model, asked)})[{at[0]}, {at[1]}]"])


def _inputs(request: Request) -> list[str]:
    lines = [f"tokens = {_literal(request.tokens)}"]
    options = ", ".join(f"{name}={_literal(x)}" for name, x in request.options.items())
    lines.append(f"options = dict({options})")
    return lines + ([] if request.weights is None else [f"weights = {_literal(request.weights)}"])


def _literal(x: np.ndarray) -> str:
    dtype = {"bool": "bool", "int32": "np.int32", "float32": "np.float32", "float64": "float"}[str(x.dtype)]
    return f"np.array({x.tolist()}, {dtype})"


def _call(model: Model, request: Request) -> str:
    inputs = "tokens" if model.inputs == "tokens" else "table[tokens]"
    if request.chunks:
        return f"steps(cache, {inputs}, options, {request.chunks}, {request.room}, {request.order})"
    kind = "way" if request.weights is None else "gradient of"
    function, apply = model.lines[f"{kind} {request.way}"].split(" ", 1)
    if request.weights is None:
        return f"{function}({apply}, {inputs}, options)"
    width = model.lines["results"]
    embedding = f", {'embedding(model_of_way)' if apply == 'of_way' else 'embedding(model)'}" * (
        "embedding" in model.lines
    )
    return f"{function}({apply}, {inputs}, options, weights[:, :, None] * direction({width}){embedding})"


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
