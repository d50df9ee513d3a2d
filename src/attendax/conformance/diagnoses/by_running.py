"""Reasons that are found by calling again: a race, strides, a compiler; and sizes at which it is right."""

import ast
import contextlib
import contextvars
import functools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..cases.case import SIZES, Case, Inputs, Leaves
from ..cases.how import Left, forever
from ..judge.comparing import compare
from ..judge.trial import Trial
from ..worker.calling import Worker, subject_of
from ..worker.errors import Failed, NoNumbers
from .hypothesis import FORWARD_WAYS, GRADIENT_WAYS, is_near, is_right, loosely

RACE = "a race, or state kept between calls"
UNWRITTEN = "uninitialised memory: whole rows are never written"
ANEW = "state kept between calls: the first call in a new process is right"
STRIDES = "wrong for arrays that are not contiguous: strides are not read"
COMPILED = "right without jax.jit, wrong under it"
TRACED_ONCE = "what the function does in Python it does once, when it is traced"
BEYOND_ROUNDING, BEYOND_COMPILING = 4.0, 1000.0  # times what rounding may explain
MARK = 0x3FFD5  # the first bits, in float64, of the NaN that freed memory is left with
FARTHEST = 2**13  # of a size that is looked at
SIZE_DRAWS, SEED_STEP = 2, 104729  # of the numbers by which a size is tried again, and what lies between their seeds
LARGEST = "float(np.abs(np.nan_to_num({0}, nan=0, posinf=0, neginf=0)).max(initial=0))"
ROWS_OF_KEYS = "np.repeat(key.reshape(-1, *key.shape[-2:]), query[..., 0, 0].size // key[..., 0, 0].size, 0)"
PRODUCTS = f"query.reshape(-1, *query.shape[-2:]) @ {ROWS_OF_KEYS}.swapaxes(-1, -2)"
REACHES = (("query", "query"), ("key", "key"), ("value", "value"), (PRODUCTS, "query"))  # of what, and what is scaled


SEARCH_PARTS = {  # of the time in which causes are looked for, each with the share by which it ends
    "calls again": 0.40,
    "search": 0.75,
    "telling apart": 0.90,
    "names": 1.00,
}


class Looking:
    """The time in which causes are looked for: a phase of a run, and the part of it that goes on."""

    def __init__(self, seconds: float, left: Left) -> None:
        """``seconds`` that calls may take in all, and those that are ``left`` of the phase, which begins now."""
        self.seconds, self.part = seconds, "names"
        self.cut_short = False  # whether the search for reasons used up its part of the time
        self._of_phase, self._whole = left, max(left(), 0.0)

    def left(self) -> float:
        """Seconds until the part is over."""
        rest = 0.0 if math.isinf(self._whole) else (1 - SEARCH_PARTS[self.part]) * self._whole
        return self._of_phase() - rest


_looking: contextvars.ContextVar[Looking] = contextvars.ContextVar("the time in which causes are looked for")


@contextlib.contextmanager
def patience(seconds: float, left: Left = forever) -> Iterator[None]:
    """Calls may take so long in all; then no more are made, and none when nothing is ``left`` of a part of a run."""
    token = _looking.set(Looking(seconds, left))
    try:
        yield
    finally:
        _looking.reset(token)


@contextlib.contextmanager
def until_the_end_of(part: str) -> Iterator[None]:
    """Look for causes in a part of the time: whatever comes after it has the rest."""
    looking = _looking.get()
    before, looking.part = looking.part, part
    try:
        yield
    finally:
        looking.cut_short |= part == "search" and looking.left() <= 0
        looking.part = before


def was_cut_short() -> bool:
    """Tell whether the search for reasons ended because its time was over."""
    return _looking.get().cut_short


def is_late() -> bool:
    """Tell whether there is no time to look for anything else."""
    looking = _looking.get(None)
    return looking is not None and looking.left() <= 0


def rerun(trial: Trial, inputs: Inputs | None = None, direction: str | None = None) -> Leaves | None:
    """The results of another call; None where it raises, or there is no time for one."""
    looking, start, subject = _looking.get(), time.monotonic(), subject_of(trial.implementation)
    if looking.seconds <= 0 or is_late():
        return None
    subject.allow(looking.seconds)
    try:
        return trial.run(inputs, direction)
    except (Failed, NoNumbers, NotImplementedError):
        return None
    finally:
        looking.seconds -= subject.taken or time.monotonic() - start


def repeated(trial: Trial) -> Leaves | None:
    """The results of this call another time: one answer for all who ask."""
    if trial.again is None:
        trial.again = rerun(trial)
    return trial.again


def is_right_anew(trial: Trial) -> bool:
    """Tell whether the call is right where it is the first of a process, and was wrong by more than rounding."""
    subject = subject_of(trial.implementation)
    if not isinstance(subject, Worker) or not is_called_once(trial) or is_right(trial, trial.got):
        return False
    subject.stop()
    got = rerun(trial)
    return got is not None and is_right(trial, got)


def is_called_once(trial: Trial) -> bool:
    """Tell whether the numbers are those of one call, which can be made again."""
    return trial.case.judge == "value" and trial.case.direction.partition(",")[0] in (*FORWARD_WAYS, *GRADIENT_WAYS)


def is_unsteady(trial: Trial) -> bool:
    """Tell whether one call gives other numbers, by more than rounding, another time."""
    for call in (repeated, rerun) if is_called_once(trial) else ():
        again = call(trial)
        if again is None or again.keys() != trial.got.keys() or _are_the_same(again, trial.got):
            continue
        wanted = trial.expected()
        if not is_near(trial, again, trial.got):
            return True
        if is_right(trial, again) and not compare(again, wanted, trial.tolerances(wanted)).verdict.fails:
            return True
    return False


def is_unwritten(trial: Trial) -> bool:
    """Tell whether rows of the result, or of another call's, were never written, and most others are right."""
    again = repeated(trial) if is_called_once(trial) else None
    if again is None or again.keys() != trial.got.keys():
        return False
    if _are_the_same(again, trial.got) and not any(np.isnan(x).any() for x in again.values()):
        return False
    changes = not is_near(trial, again, trial.got)
    return any(_has_junk(trial, got, changes) for got in (trial.got, again))


def _are_the_same(one: Leaves, other: Leaves) -> bool:
    """Tell whether they agree to the bit; of large arrays this takes no time, and rounding does."""
    return all(np.array_equal(x, other[leaf], equal_nan=True) for leaf, x in one.items())


def _has_junk(trial: Trial, got: Leaves, changes: bool) -> bool:
    """Tell whether whole rows hold what freed memory is filled with, or absurd numbers that are others each time.

    NaN alone does not prove it, even if it comes and goes: a function may compute it.
    """
    junk, wrong, proven = 0, 0, False
    for leaf, wanted in trial.expected().items():
        x = np.asarray(got[leaf], np.float64) if leaf in got else wanted
        if leaf.endswith("lse") or x.shape != wanted.shape or x.ndim < 2 or not x.size:
            continue
        largest = np.abs(wanted).max() or 1
        off = ~(np.abs(x - wanted) <= loosely(trial, trial.expected())[leaf].allowed * largest)
        marked, absurd = x.view(np.uint64) >> np.uint64(45) == MARK, ~(np.abs(x) <= 1e6 * largest) & changes
        rows = (marked | absurd).all(axis=-1)
        proven |= bool((marked | absurd & np.isfinite(x))[rows].any())
        junk, wrong = junk + int(rows.sum()), wrong + int(off.any(axis=-1).sum())
    return proven and 2 * junk >= wrong


def is_cured_by_copies(trial: Trial) -> bool:
    """Tell whether the call is right with copies that are contiguous."""
    if not is_called_once(trial) or not any(_is_spread(x) for some in trial.inputs for x in some.values()):
        return False
    copies = ({name: x.copy() if _is_spread(x) else x for name, x in some.items()} for some in trial.inputs)
    if is_near(trial, trial.got, trial.expected(), BEYOND_ROUNDING):  # sums in another order round otherwise
        return False
    spread, copied = trial.inputs, Inputs(*copies)
    for inputs, cured in (copied, True), (spread, False), (spread, False), (copied, True):  # once is luck
        got = rerun(trial, inputs)
        if got is None or is_right(trial, got) is not cured:
            return False
    return True


def _is_spread(x: Any) -> bool:
    return isinstance(x, np.ndarray) and not x.flags.c_contiguous


def is_wrong_when_compiled(trial: Trial) -> bool:
    """Right without ``jax.jit``, wrong under it."""
    if not is_called_once(trial) or trial.case.direction != "forward":
        return False
    if trial.implementation.arrays != "jax" or trial.implementation.eager:
        return False
    if is_near(trial, trial.got, trial.expected(), BEYOND_COMPILING):  # which rounds otherwise
        return False
    eager = rerun(trial, direction="eager")
    return eager is not None and is_right(trial, eager)


RERUNS: tuple[tuple[str, Callable[[Trial], bool], str], ...] = (  # words, whether it is so, and the remedy
    (UNWRITTEN, is_unwritten, ""),
    (RACE, is_unsteady, ""),
    (STRIDES, is_cured_by_copies, ""),
    (COMPILED, is_wrong_when_compiled, TRACED_ONCE),
)


def smaller(trial: Trial) -> Trial:
    """The question without options and at small sizes, as far as it is also wrong there."""
    if not is_called_once(trial):
        return trial
    if trial.case.call:
        trial = _if_wrong(with_case(trial, trial.case._replace(call=""))) or _without_some(trial)
    for axis, (small, times) in _axes(trial).items():
        if (SIZES | trial.case.sizes)[axis] != times[axis] * small:
            trial = _if_wrong(_at(trial, times, small)) or trial
    return trial


def _without_some(trial: Trial) -> Trial:
    """The question without each option that the fault does not need."""
    tried = set[str]()
    for option in dict(without_each(trial.case)):
        less = dict(without_each(trial.case)).get(option)
        if less and less.call not in tried:
            trial = _if_wrong(with_case(trial, less)) or trial
            tried.add(less.call)
    return trial


def without_each(case: Case) -> Iterator[tuple[str, Case]]:
    """Each option of a call, and the call without it; what makes no sense alone goes together."""
    asked = ast.parse(f"f({case.call})", mode="eval").body.keywords  # type: ignore[attr-defined]
    kinds = {x.arg: re.sub("query_|key_|_rate|_rng", "", x.arg) for x in asked}  # both ids, both of dropout
    for option, kind in kinds.items():
        kept = [ast.unparse(x) for x in asked if kinds[x.arg] != kind]
        yield option, case._replace(call=", ".join(kept))


def _if_wrong(trial: Trial | None) -> Trial | None:
    return None if trial is None or is_right(trial, trial.got) else trial


def where_wrong(trial: Trial) -> str:
    """The sizes from which on it is wrong, as numbers of one axis each; empty if it is also wrong at small sizes.

    The trial is as ``smaller`` has it. In a narrow dtype rounding may hide it at the sizes below. Calls at other sizes
    have numbers as large as this one: of fewer numbers that are drawn the largest is smaller, and that may be why.
    """
    if not is_called_once(trial) or trial.dtype in ("float16", "bfloat16"):
        return ""
    trial, found = reaching(trial), []
    for axis, (small, times) in _axes(trial).items():
        if (SIZES | trial.case.sizes)[axis] != times[axis] * small and _is_right_at(trial, times, small):
            found.append(_bound(trial, axis, small, times))
    return " and ".join(filter(None, found))


def reaching(trial: Trial) -> Trial:
    """Give the same call, whose numbers and scores are at least as large at other sizes."""
    lines, arrays = [trial.case.lines], trial.inputs.arrays
    for measured, scaled in REACHES if all(x.size for x in arrays.values()) else ():
        largest = LARGEST.format(measured)
        with np.errstate(all="ignore"):
            most = eval(largest, {"np": np} | arrays)
        lines += [f"largest = {largest}", f"if 0 < largest < {most}:\n    {scaled} *= {most} / largest"]
    lines += ["del largest"] * (len(lines) > 1)
    return Trial(trial.implementation, trial.case._replace(lines="\n".join(lines)), trial.how)


def _bound(trial: Trial, axis: str, right: int, times: Mapping[str, int]) -> str:
    """Between a size that is right and one that is wrong; where both come in turn, of which they are multiples.

    Empty if other numbers of these sizes say otherwise: then the numbers decide, not the size.
    """
    sizes, is_right_at = SIZES | trial.case.sizes, functools.partial(_is_right_at, trial, times)
    size = sizes[axis]
    wrong = size // times[axis]
    while wrong - right > 1:
        half = (right + wrong) // 2
        right, wrong = (half, wrong) if is_right_at(half) else (right, half)
    for draw in range(1, 1 + SIZE_DRAWS):
        drawn = Trial(trial.implementation, trial.case, trial.how._replace(seed=trial.how.seed + draw * SEED_STEP))
        if not _is_right_at(drawn, times, right) or not _if_wrong(_at(drawn, times, wrong)):
            return ""
    last, first = times[axis] * right, times[axis] * wrong
    axis = _alone(trial, axis, times, right, wrong)
    if size % first == 0 and is_right_at(wrong + 1) and not is_right_at(2 * wrong):  # it holds of this call, too
        return f"{axis} is a multiple of {first}"
    if right > 1 and size % last and is_right_at(2 * right) and not is_right_at(2 * right + 1):
        return f"{axis} is no multiple of {last}"
    return "V > D" if axis == "V" and last == sizes["D"] else f"{axis} > {last}"


def _alone(trial: Trial, axis: str, times: Mapping[str, int], right: int, wrong: int) -> str:
    """The axis, of those that went together, that is wrong by itself."""
    small = _at(trial, times, right) if axis in "SD" and len(times) > 1 else None
    if small is None:
        return axis
    alone = [one for one in sorted(times) if _if_wrong(_at(small, {one: 1}, wrong))]
    return " or ".join(alone) or " = ".join(sorted(times))


def _axes(trial: Trial) -> dict[str, tuple[int, dict[str, int]]]:
    """A small size for each axis, and those that go with it, each so many times as large: equal ones stay equal."""
    sizes = SIZES | trial.case.sizes
    T, S, D, V, G = (sizes[axis] for axis in "TSDVG")
    ratio = max(sizes["N"] // max(G, 1), 1)
    found = {"S": (7, {"T": 1, "S": 1})} if T == S else {"T": (5, {"T": 1}), "S": (7, {"S": 1})}
    found |= {"N": (min(3 if ratio == 1 else 2, G), {"N": ratio, "G": 1}), "B": (2, {"B": 1})}
    found |= {"D": (4, {"D": 1, "V": 1})} if D == V else {"D": (4, {"D": 1}), "V": (D, {"V": 1})}
    return {axis: (min(small, sizes[axis]), times) for axis, (small, times) in found.items()}


def _at(trial: Trial, times: Mapping[str, int], size: int) -> Trial | None:
    """The case at another size of some axes."""
    return with_case(trial, trial.case._replace(sizes=trial.case.sizes | {axis: n * size for axis, n in times.items()}))


def with_case(trial: Trial, case: Case) -> Trial | None:
    """Another case, and what is got; None where it cannot be made, is not offered, raises, or there is no time."""
    if is_late():
        return None
    implementation = trial.implementation
    try:
        other = Trial(implementation, case, trial.how)
        wanted = other.expected()
    except (IndexError, ValueError):
        return None
    if implementation.form.lacking(case) or implementation.lack(case.traits(other.inputs)):
        return None
    other.got = rerun(other) or {}
    return other if wanted.keys() <= other.got.keys() else None


def _is_right_at(trial: Trial, times: Mapping[str, int], size: int) -> bool:
    other = _at(trial, times, size) if max(times.values()) * size < FARTHEST else None
    return other is not None and is_right(other, other.got)
