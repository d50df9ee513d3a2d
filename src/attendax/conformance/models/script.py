"""A script that shows a fault in a fresh Python without attendax."""

import inspect

import numpy as np

from ..frameworks.text import printed, text_of
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
draws = [{call} for seed in range({draws})]
share = (np.mean(draws, 0) * plain).sum() / (plain * plain).sum()
print('mean of the draws, times the result without dropout:', share)"""


def script(model: Model, law: Law, found: Found) -> str:
    """The script; it ends in an error as long as the fault is there."""
    about = f"# {law.case.name}: {law.case.about}\n# {model.name}: {found.finding.message}"
    evidence, header = found.evidence, text_of(model.arrays).header
    if evidence is None:
        return f"{about}\n\n{header}\n\n{model.lines['model']}\n"
    named = {"one": evidence.one, "other": evidence.other}
    if evidence.kind in ("finite", "zero", "some"):
        del named["other"]
    requests = [x for x in named.values() if isinstance(x, Request)]
    calls = [_call(model, request) for request in requests]
    parts = [about, header, "# the model", model.lines["model"]]
    if any(request.chunks for request in requests):
        parts.append(model.lines.get("cache", "raise NotImplementedError('define cache here: functions init, step')"))
    ways = dict.fromkeys(request.way for request in requests)
    parts += filter(None, [model.lines.get(f"made {way}") for way in ways])
    runs = dict.fromkeys(_run(model, request) for request in requests)
    made = {_attend(apply): apply for run, apply in runs if run != "in_steps"}
    around = (apply.partition("(")[0] for apply in made.values() if "(" in apply)
    parts += ["# how it is run", printed(model.arrays, (*(run for run, _ in runs), "per_position", *around))]
    parts += ["\n".join(f"{name} = per_position({apply})" for name, apply in made.items())] * bool(made)
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
        plain = [*_inputs(requests[0]), f"plain = {calls[0]}.astype(float)", told, ending]
        return "\n\n".join([*parts, "\n".join(plain)]) + "\n"
    for (name, asked), at in zip(named.items(), (evidence.at, evidence.beside), strict=False):
        if isinstance(asked, np.ndarray):
            parts.append(f"{name} = {_literal(asked)}  # what is right there, in float64")
        else:
            parts.append("\n".join([*_inputs(asked), f"{name} = {_call(model, asked)}[{at[0]}, {at[1]}]"]))
    largest = "np.abs(one - other).max()" if len(named) > 1 else "np.abs(one).max()"
    return "\n\n".join([*parts, f"print('largest:', {largest})\n{ending}"]) + "\n"


def _inputs(request: Request) -> list[str]:
    lines = [f"tokens = {_literal(request.tokens)}"]
    options = ", ".join(f"{name}={_literal(x)}" for name, x in request.options.items())
    lines.append(f"options = dict({options})")
    return lines + ([] if request.weights is None else [f"weights = {_literal(request.weights)}"])


def _literal(x: np.ndarray) -> str:
    dtype = {"bool": "bool", "int32": "np.int32", "float32": "np.float32", "float64": "float"}[str(x.dtype)]
    return f"np.array({x.tolist()}, {dtype})"


def _run(model: Model, request: Request) -> tuple[str, str]:
    """The function of the driver that runs a request, and what it runs."""
    if request.chunks:
        return "in_steps", "cache"
    function, apply = model.lines[f"{'way' if request.weights is None else 'gradient of'} {request.way}"].split(" ", 1)
    return function, apply


def _attend(apply: str) -> str:
    return "attend" if apply == "apply" else "attend_of_way"


def _call(model: Model, request: Request) -> str:
    inputs = "tokens" if model.inputs == "tokens" else "table[tokens]"
    run, apply = _run(model, request)
    if request.chunks:
        return f"in_steps(cache, {inputs}, options, {request.chunks}, {request.room}, {request.order})['out']"
    given = f"{_attend(apply)}, dict(query={inputs}), options"
    if request.weights is None:
        return f"{run}({given})['out']"
    embedding = ", embedding(model_of_way)" if "of_way" in apply else ", embedding(model)"
    given += f", dict(out=weights[:, :, None] * direction({model.lines['results']}))"
    return f"{run}({given}{embedding * ('embedding' in model.lines)})['grad query']"
