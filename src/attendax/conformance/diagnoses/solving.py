"""Numbers that are solved for, from calls whose result tells them: a scale, and how far causal reaches."""

from collections.abc import Mapping

import numpy as np

from ..cases import CASES
from ..cases.case import SIZES
from ..cases.square import plain_of
from ..conventions.solving import Measure, factor_of, scale_of_first, solved
from ..judge.trial import Trial
from .by_running import with_case

ONE_KEY = """query = np.full_like(query, 2 / D); key = 0 * key; key[..., 0, :] = 1
value = 0 * value; value[..., 0, :] = 1"""  # the first score is twice the scale, all others are 0
EQUAL = """query = 0 * query; value = np.broadcast_to(np.arange(S)[:, None], value.shape).astype(dtype)"""
BIASED = """query = 0 * query; value = 0 * value; value[..., 0, :] = 1
bias = np.zeros((1, 1, T, S), dtype); bias[..., 0] = 1"""  # the first score is what a bias of 1 adds
MANY, MORE_KEYS = 9, (0, 5)
GIVEN = 0.3


def measured(trial: Trial) -> Measure:
    """The scale of a function at sizes, with one that is given or without."""

    def measure(sizes: Mapping[str, int], given: float | None) -> float | None:
        form = trial.implementation.form
        case = plain_of(form, {}, ONE_KEY, "" if given is None else f"scale={given}", case=CASES[0])
        case = case._replace(sizes=SIZES | case.sizes | dict(sizes), direction="forward", judge="value")
        if form.lacking(case) or trial.implementation.lack(case.traits(case.inputs(0, trial.dtype))):
            return None
        other = with_case(trial, case)
        return None if other is None else scale_of_first(other.got["out"], (SIZES | case.sizes)["S"])

    return measure


def scales(trial: Trial) -> dict[str, str]:
    """The scales of a function, by axis, where they can be solved for."""
    measure = measured(trial)
    sizes = SIZES | plain_of(trial.implementation.form, {}).sizes
    found = {"scale": solved(measure, sizes)}
    if trial.implementation.lack(["scale"]) is None:
        found["given_scale"] = solved(measure, sizes, GIVEN)
    return found


def bias(trial: Trial) -> str:
    """The number that a bias is multiplied by, 2·bias, where it is one at every width."""
    found = []
    for width in (4, 9):
        sizes = trial.case.sizes | {"D": width, "V": width}
        other = with_case(trial, trial.case._replace(lines=BIASED, call="bias=bias", sizes=sizes))
        found.append(None if other is None else scale_of_first(other.got["out"], other.inputs.arrays["key"].shape[-2]))
    return factor_of(found[0], found[1], "bias")


def causal(trial: Trial) -> str:
    """The reach of causal, j <= i + 2, where it is a number of keys from the start or from the end."""
    reach = []
    for more in MORE_KEYS:
        case = trial.case._replace(lines=EQUAL, sizes=trial.case.sizes | {"T": MANY, "S": MANY + more})
        if trial.implementation.form.lacking(case) or (other := with_case(trial, case)) is None:
            return ""
        out = np.asarray(other.got["out"], np.float64).reshape(-1, MANY, other.got["out"].shape[-1])
        last = np.rint(2 * out) if np.isfinite(out).all() else np.full(out.shape, -1)
        ahead = (last - np.arange(MANY)[:, None])[(last > 0) & (last < MANY + more - 1)]
        if not ahead.size or np.ptp(ahead):
            return ""
        reach.append(int(ahead[0]))
    if reach[1] - reach[0] not in (0, MORE_KEYS[1]):
        return ""
    end = "i + S - T" if reach[1] > reach[0] else "i"
    if reach[0] in (0, -1):
        return f"j {'<' if reach[0] else '<='} {end}"
    return f"j <= {end} {'-' if reach[0] < 0 else '+'} {abs(reach[0])}"
