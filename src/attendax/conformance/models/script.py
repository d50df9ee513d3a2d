"""A script that shows a fault in a fresh Python without attendax."""

import inspect

import numpy as np

from ..frameworks.text import printed, text_of
from .blackbox import COUNT, LONGER, Model, Request, direction, vectors
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
    asked = {"one": (evidence.one, evidence.at), "other": (evidence.other, evidence.beside)}
    if evidence.kind in ("finite", "zero", "some"):
        del asked["other"]
    parts = [about, header, *_driver(model, [x for x, _ in asked.values() if isinstance(x, Request)]), "# the inputs"]
    ending = ENDINGS[evidence.kind].format(allowed=evidence.allowed)
    if evidence.kind == "mean" and isinstance(plain := evidence.one, Request):
        drawn = evidence.other
        call = _call(model, drawn).replace("options", "dict(seed=np.array(seed, np.int32))")
        told = MEAN.format(call=call, draws=int(drawn.options["seed"]))
        lines = [*_inputs(plain), f"plain = {_call(model, plain)}.astype(float)", told, ending]
        return "\n\n".join([*parts, "\n".join(lines)]) + "\n"
    for name, (x, at) in asked.items():
        if isinstance(x, Request):
            parts.append("\n".join([*_inputs(x), f"{name} = {_call(model, x)}[{at[0]}, {at[1]}]"]))
        else:
            parts.append(f"{name} = {_literal(x)}  # what is right there, in float64")
    parts.append(f"print('largest:', np.abs({' - '.join(asked)}).max())\n{ending}")
    return "\n\n".join(parts) + "\n"


def _driver(model: Model, requests: list[Request]) -> list[str]:
    """Lines that make the model, and the functions that run it."""
    parts = ["# the model", model.lines["model"]]
    if any(request.chunks for request in requests):
        parts.append(model.lines.get("cache", "raise NotImplementedError('define cache here: functions init, step')"))
    parts += filter(None, [model.lines.get(f"made {way}") for way in dict.fromkeys(x.way for x in requests)])
    runs = dict.fromkeys(_run(model, request) for request in requests)
    made = {_attend(apply): apply for run, apply in runs if run != "in_steps"}
    around = (apply.partition("(")[0] for apply in made.values() if "(" in apply)
    parts += ["# how it is run", printed(model.arrays, (*(run for run, _ in runs), "per_position", *around))]
    parts += ["\n".join(f"{name} = per_position({apply})" for name, apply in made.items())] * bool(made)
    if model.inputs == "vectors":
        source = inspect.getsource(vectors).rstrip()
        parts += [f"COUNT, LONGER = {COUNT}, {LONGER}\n\n\n{source}", f"table = vectors({model.lines['width']})"]
    if any(request.weights is not None for request in requests):
        parts += [inspect.getsource(direction).rstrip(), *filter(None, [model.lines.get("embedding")])]
    return parts


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
