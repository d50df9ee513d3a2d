"""The errors of ``describe``: why there is nothing to describe, and the next step."""

from collections.abc import Iterator

import numpy as np

from attendax.exits import Refusal

from ..against.asking import TOLERANCE, Candidate, Probe
from ..against.caller import Caller
from ..against.forms import Form
from ..against.remote import Function
from ..against.weights import projected
from ..worker.errors import Failed
from .contract import arrays_of

FARTHEST = 0.3  # 1 less the cosine between results, up to which the nearest formula is named
NEXT = "; write a function of query, key and value, (B, N, T, D), around it, and describe that"


class NoFormula(Refusal):
    """No known formula gives its result without options."""

    path = ""  # of the function
    layout = ""  # of the nearest form


def refused(fn: Function, failed: Failed, calls: int) -> Refusal:
    """The error for a function of which no call has an answer, and the next step."""
    if str(failed).startswith("it requires"):
        return Refusal(f"{fn.path}: {failed}")
    if not failed.said:
        required = ", ".join(fn.required) or "nothing"
        words = f"has to be given {required}, expected query, key and value, or one array of them"
        return Refusal(f"{fn.path} {words}{_next(fn)}")
    if failed.said.startswith("it gives"):
        return Refusal(f"{fn.path}: {failed.said}{_next(fn)}")
    words = f"each of the {calls} calls that were tried raises; the first said: {failed.said}"
    module, _, name = fn.path.partition(":")
    owner, _, method = name.rpartition(".")
    if owner and "self" in fn.meant:
        return Refusal(f"{fn.path}: {words}; if {owner}() makes an object, name '{module}:{owner}().{method}'")
    return Refusal(f"{fn.path}: {words}{_next(fn)}")


def no_formula(caller: Caller, within: str) -> Refusal:
    """The error for a function that gives results by no known formula, within some time in words."""
    path = caller.fn.path
    if _draws(caller):
        return Refusal(f"{path}: two equal calls give different results: switch off what it draws at random")
    layout, nearest = _nearest(caller)
    words = f"no known formula gives its result without options{within}; {nearest}"
    error = NoFormula(f"{path}: {words}{_next(caller.fn)}")
    error.path, error.layout = path, layout
    return error


def _next(fn: Function) -> str:
    """The next step, in words."""
    if not (weights := fn.weights):
        return NEXT
    width = next((shape[-1] for shape in weights.values() if len(shape) == 2), "M")
    command = f"attendax check --layer '{fn.path}' --width {width} --causal (or --no-causal)"
    return f"; it has weights of its own ({', '.join(list(weights)[:3])}), so test it as a layer: {command}"


def _nearest(caller: Caller) -> tuple[str, str]:
    """The layout of the form whose results point most nearly where its own do, and that form in words."""
    near: dict[tuple[bool, str, str], list[tuple[float, float]]] = {}  # angles and shares of each form
    answers = list(_plain_answers(caller))
    for form, probe, found in [x for x in answers if not x[0].of_keys] or answers:
        for scale in ("1/√D", "1", "1/D"):
            right = Candidate(caller.fn, form.but(scale=scale)).right(probe)[0]
            with np.errstate(all="ignore"):
                close = np.abs(found - right) <= 10 * TOLERANCE * max(1.0, float(np.abs(right).max()))
                cosine = np.vdot(found, right) / (np.linalg.norm(found) * np.linalg.norm(right))
            words = f"nearest: {arrays_of(form)} with scale {scale}"
            key = form.layout != Form().layout, words, form.layout * (not form.of_keys)
            near.setdefault(key, []).append((1 - abs(float(np.nan_to_num(cosine))), 1 - float(close.mean())))
    if not near:
        return "", "no call gives an array of the shape of a result"
    means = {key: np.mean(x, axis=0).round(3).tolist() for key, x in near.items()}
    angle, (_, words, nearest), share = min((angle, key, share) for key, (angle, share) in means.items())
    if not share and len(projected(caller.fn.meant)) > 1:
        return nearest, "its keys are made of both arrays, not of the second alone"
    if angle > FARTHEST:
        return nearest, "no formula is near it"
    return nearest, f"{words}, where {max(share, 0.01):.0%} of the results differ"


def _draws(caller: Caller) -> bool:
    """Tell whether a plain call gives something else the second time."""
    for form, probe, found in list(_plain_answers(caller))[:1]:
        again = Candidate(caller.fn, form).answer(probe)  # whatever time it has left
        return not isinstance(again, Failed) and not np.allclose(again[0], found, atol=1e-4, equal_nan=True)
    return False


def _plain_answers(caller: Caller) -> Iterator[tuple[Form, Probe, np.ndarray]]:
    """Results without options that have the shape of one, and the forms by which they were asked for."""
    for found, probe, form in caller.answers.values():
        drawn = np.ptp(probe.arrays[0]) > 0  # not what a scale is measured by
        if drawn and not probe.options and caller.is_result(found, probe):
            yield form, probe, found[0]
