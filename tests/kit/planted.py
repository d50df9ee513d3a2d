"""Mistakes planted into a right attention, one at a time, and which case of the kit catches each first."""

import functools
import inspect
import random
from typing import NamedTuple

import numpy as np

import right_attention
import right_kernel
from attendax.conformance import CASES, Implementation, checking
from stated import check

by_law = functools.partial(check, profile="law", budget=0)
SOURCE = inspect.getsource(right_attention)
KERNEL = inspect.getsource(right_kernel)
SIZES = "BLOCK_Q, BLOCK_K, BLOCK_D = {}, {}, 32\n"
EARLIER = 8  # cases before its own that a mistake is shown; all of them would take twenty minutes


class Mistake(NamedTuple):
    """The case that catches it first, what in ``right_attention`` is replaced (it occurs once), and by what."""

    case: str
    old: str
    new: str


class BlockMistake(NamedTuple):
    """A mistake in ``right_kernel``, in blocks of a size; ``where`` is "forward", or "gradient": only there."""

    case: str
    old: str
    new: str
    block: int
    where: str
    keys: int | None = None  # of a block of keys, if it is another


def planted(source: str, mistake: Mistake | BlockMistake) -> dict:
    """The names of the module with the mistake."""
    assert source.count(mistake.old) == 1, f"{mistake[0]}: {mistake.old!r} occurs {source.count(mistake.old)} times"
    space = {}
    exec(compile(source.replace(mistake.old, mistake.new), mistake[0], "exec"), space)
    return space


def implementation(mistake: Mistake | BlockMistake) -> Implementation:
    """The mistaken attention."""
    if isinstance(mistake, Mistake):
        space = planted(SOURCE, mistake)
    else:
        sizes = SIZES.format(mistake.block, mistake.keys or mistake.block)
        space = planted(KERNEL.replace(SIZES.format(64, 32), sizes), mistake)
    is_right = isinstance(mistake, BlockMistake) and mistake.where == "gradient"
    attend = functools.partial(right_kernel.attend) if is_right else space["attend"]
    backward = space["backward"]
    attend.backward = backward
    return Implementation(attend, mistake.case, arrays="numpy", backward=backward)


def first_to_catch(mistake: Mistake | BlockMistake):
    """The first case that finds a fault, as an outcome; None where none does.

    Asked are its own case, and before it some of the earlier ones, others for each mistake. Of a mistake in blocks they
    have more tokens than a block, and no more than its own case; none has NaN behind a mask, which the kernel reads.
    """
    mistaken = implementation(mistake)
    cases = [case for case in CASES if "numpy" in case.frameworks]
    if isinstance(mistake, BlockMistake):
        cases = [case for case in cases if length_of(case) > mistake.block]
        most = next((length_of(case) for case in cases if case.name == mistake.case), np.inf)
        cases = [case for case in cases if length_of(case) <= most and case.judge != "same_bits"]
    names = [case.name for case in cases]
    if mistake.case in names:
        own = names.index(mistake.case)
        earlier = random.Random(mistake.new).sample(range(own), min(EARLIER, own))
        cases = [cases[k] for k in (*sorted(earlier), own)]
    return first_of(mistaken, cases)


def length_of(case) -> int:
    """Of the longer axis of its scores."""
    return max(case.sizes.get("T", 0), case.sizes.get("S", 0))


def first_of(mistaken: Implementation, cases, *how):
    """The first of some cases that finds a fault, as an outcome; None where none does."""
    with np.errstate(all="ignore"):
        outcomes = (checking.judge(mistaken, case, *how) for case in cases)
        return next((outcome for outcome in outcomes if outcome.verdict.fails), None)
