"""Mistakes planted into ``right_attention``, one at a time, and which case of the kit catches each first."""

import inspect
from typing import NamedTuple

import numpy as np

import right_attention
from attendax.conformance import CASES, Implementation, checking

SOURCE = inspect.getsource(right_attention)


class Mistake(NamedTuple):
    """The case that catches it first, what in ``right_attention`` is replaced (it occurs once), and by what."""

    case: str
    old: str
    new: str


def implementation(mistake: Mistake) -> Implementation:
    """The mistaken attention."""
    assert SOURCE.count(mistake.old) == 1, f"{mistake.case}: {mistake.old!r} occurs {SOURCE.count(mistake.old)} times"
    space = {}
    exec(compile(SOURCE.replace(mistake.old, mistake.new), mistake.case, "exec"), space)
    attend, backward = space["attend"], space["backward"]
    attend.backward = backward
    return Implementation(attend, mistake.case, arrays="numpy", backward=backward)


def first_to_catch(mistake: Mistake):
    """The first case that finds a fault, as an outcome; None where none does."""
    mistaken = implementation(mistake)
    with np.errstate(all="ignore"):
        outcomes = (checking.judge(mistaken, case, 0, "float32") for case in CASES if "numpy" in case.frameworks)
        return next((outcome for outcome in outcomes if outcome.verdict.fails), None)
