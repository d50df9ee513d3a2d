"""Mistakes planted into a right attention, one at a time, and which case of the kit catches each first."""

import functools
import inspect
import random
from typing import NamedTuple

import numpy as np

import right_attention
import right_blockwise
from attendax.conformance import CASES, Implementation, checking
from stated import check

by_law = functools.partial(check, profile="law", budget=0)
SOURCE = inspect.getsource(right_attention)
BLOCKWISE = inspect.getsource(right_blockwise)
EARLIER = 8  # cases before its own that a mistake is shown; all of them would take twenty minutes


class Mistake(NamedTuple):
    """The case that catches it first, what in ``right_attention`` is replaced (it occurs once), and by what."""

    case: str
    old: str
    new: str


class BlockMistake(NamedTuple):
    """A mistake in ``right_blockwise``, in blocks of a size; ``where`` is "forward", or "gradient": only there."""

    case: str
    old: str
    new: str
    block: int
    where: str


class ByOthers(NamedTuple):
    """A mistake whose author had not seen the cases; ``shown_by`` is the author's example of an input."""

    name: str
    old: str
    new: str
    why: str
    shown_by: str


def planted(source: str, mistake: Mistake | BlockMistake | ByOthers) -> dict:
    """The names of the module with the mistake."""
    assert source.count(mistake.old) == 1, f"{mistake[0]}: {mistake.old!r} occurs {source.count(mistake.old)} times"
    space = {}
    exec(compile(source.replace(mistake.old, mistake.new), mistake[0], "exec"), space)
    return space


def implementation(mistake: Mistake | BlockMistake) -> Implementation:
    """The mistaken attention."""
    if isinstance(mistake, Mistake):
        space = planted(SOURCE, mistake)
        attend, backward = space["attend"], space["backward"]
    else:
        sizes = f"BLOCK_Q = {mistake.block}\nBLOCK_K = {mistake.block}\n"
        space = planted(BLOCKWISE.replace("BLOCK_Q = 128\nBLOCK_K = 128\n", sizes), mistake)
        attend = space["attend"] if mistake.where == "forward" else functools.partial(right_blockwise.attend)
        backward = space["backward"]
    attend.backward = backward
    return Implementation(attend, mistake.case, arrays="numpy", backward=backward)


def first_to_catch(mistake: Mistake | BlockMistake):
    """The first case that finds a fault, as an outcome; None where none does.

    Asked are its own case, and before it some of the earlier ones, others for each mistake.
    """
    mistaken = implementation(mistake)
    cases = [case for case in CASES if "numpy" in case.frameworks]
    if isinstance(mistake, BlockMistake):  # in the others there is one block
        cases = [case for case in cases if max(case.sizes.get("T", 0), case.sizes.get("S", 0)) > mistake.block]
    names = [case.name for case in cases]
    if mistake.case in names:
        own = names.index(mistake.case)
        earlier = random.Random(mistake.new).sample(range(own), min(EARLIER, own))
        cases = [cases[k] for k in (*sorted(earlier), own)]
    return first_of(mistaken, cases)


def first_by_others(mistake: ByOthers, source: str, *how):
    """The same of a mistake by others, among all cases."""
    space = planted(source, mistake)
    attend, backward = space["attend"], space["backward"]
    attend.backward = backward
    mistaken = Implementation(attend, mistake.name, arrays="numpy", backward=backward)
    return first_of(mistaken, [case for case in CASES if "numpy" in case.frameworks], *how)


def first_of(mistaken: Implementation, cases, *how):
    """The first of some cases that finds a fault, as an outcome; None where none does."""
    with np.errstate(all="ignore"):
        outcomes = (checking.judge(mistaken, case, *how) for case in cases)
        return next((outcome for outcome in outcomes if outcome.verdict.fails), None)
