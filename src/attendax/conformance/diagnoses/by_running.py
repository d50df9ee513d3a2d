"""Reasons that are seen in the numbers themselves, or by calling again: a factor, a block, a cache, a compiler."""

import numpy as np

from ..cases import CASES
from ..cases.case import Leaves
from ..judge.comparing import Tolerance, compare
from ..judge.trial import Trial
from ..worker.errors import Failed, NoNumbers
from .hypothesis import loosely, multiplied

BLOCKS = (512, 256, 128, 64, 32, 16)
SEEN = ("all zeros", "times what is right")  # ends of names that say what is seen, and no reason
MOST_ROWS = 0.5  # of those from a block on, where it is the block that is wrong
FACTORS = 1e-4  # how constant a factor is


def told(trial: Trial) -> tuple[str, str]:
    """A reason and what to do about it; empty where nothing is seen."""
    for look in (_precision, _again, _compiled, _factor, _from_a_block_on):
        if found := look(trial):
            return found
    return "", ""


def _right(trial: Trial, got: Leaves) -> bool:
    wanted = trial.expected()
    return wanted.keys() <= got.keys() and not compare(got, wanted, trial.tolerances(wanted)).verdict.fails


def _precision(trial: Trial) -> tuple[str, str] | None:
    """The numbers of a coarser product."""
    wanted = trial.expected()
    if trial.dtype == "float64":
        allowed = {leaf: Tolerance(1e-5) for leaf in wanted}
        coarse = not compare(trial.got, wanted, allowed).verdict.fails
        return ("float64 is computed in float32", "") if coarse else None
    if trial.dtype != "float32" or trial.how.precision != "highest" or trial.case.tolerance is not None:
        return None
    if _plain_is_right(trial):  # where products are coarse, all of them are
        return None
    for precision, unit, words in (("tf32", 2**-11, "tf32 or in float16"), ("bf16", 2**-8, "bf16")):
        coarser = Trial(trial.implementation, trial.case, trial.how._replace(precision=precision))
        allowed = coarser.tolerances(wanted, effort=1)
        found = compare(trial.got, wanted, allowed)
        if not found.verdict.fails and (found.error or 0) > unit / 64:
            return f"float32 products run at {words}", f"--precision {precision}"
    return None


def _plain_is_right(trial: Trial) -> bool:
    case = next(case for case in CASES if case.name == "plain")
    plain = Trial(trial.implementation, case.sized(trial.how.sizes) or case, trial.how)
    got = _rerun(plain)
    return got is not None and _right(plain, got)


def _rerun(trial: Trial, direction: str | None = None) -> Leaves | None:
    try:
        return trial.run(direction=direction)
    except (Failed, NoNumbers, NotImplementedError):
        return None


def _again(trial: Trial) -> tuple[str, str] | None:
    """The same call gives something else the second time, or is right then."""
    if trial.case.judge != "value" or trial.case.direction not in ("forward", "eager", "gradient"):
        return None
    again = _rerun(trial)
    if again is None or all(np.array_equal(again[leaf], x, equal_nan=True) for leaf, x in trial.got.items()):
        return None
    said = "the same call gives other numbers the next time"
    return f"{said}: something is kept between calls, or it is not deterministic", ""


def _compiled(trial: Trial) -> tuple[str, str] | None:
    """Right without ``jax.jit``, wrong under it."""
    if trial.case.judge != "value" or trial.case.direction != "forward":
        return None
    if trial.implementation.arrays != "jax" or trial.implementation.eager:
        return None
    eager = _rerun(trial, "eager")
    if eager is None or not _right(trial, eager):
        return None
    return "right without jax.jit, wrong under it", "what the function does in Python it does once, when it is traced"


def _factor(trial: Trial) -> tuple[str, str] | None:
    """A leaf is a constant times what is right."""
    off = []
    for leaf, wanted in trial.expected().items():
        got = np.asarray(trial.got.get(leaf, np.zeros(0)), np.float64)
        if got.shape != wanted.shape or not got.size or not np.isfinite(got).all() or not np.isfinite(wanted).all():
            return None
        size = float((wanted * wanted).sum())
        if not size:
            continue
        factor = float((got * wanted).sum()) / size
        if np.abs(got - factor * wanted).max() > max(FACTORS, 2 * _eps(trial)) * np.abs(factor * wanted).max():
            return None
        if abs(factor - 1) > 1e-3 + 2 * _eps(trial) and factor:
            off.append((leaf, factor))
    if not off:
        return None
    leaves = ", ".join(leaf for leaf, _ in off)
    return f"{leaves}: {off[0][1]:.4g} times what is right", ""  # of ``SEEN``


def _eps(trial: Trial) -> float:
    return {"bfloat16": 2e-2, "float16": 4e-3}.get(multiplied(trial), 0.0)


def _from_a_block_on(trial: Trial) -> tuple[str, str] | None:
    """Right in the first rows, wrong from a multiple of a block on."""
    for leaf, axis in (("out", "query"), ("grad query", "query"), ("grad key", "key"), ("grad value", "key")):
        wanted, got = trial.expected().get(leaf), trial.got.get(leaf)
        if wanted is None or got is None or wanted.shape != np.shape(got) or wanted.shape[-2] <= BLOCKS[-1]:
            continue
        off = np.abs(np.asarray(got, np.float64) - wanted) > loosely(trial, trial.expected())[leaf].allowed * (
            np.abs(wanted).max() or 1
        )
        rows = np.atleast_1d(off.any(axis=tuple(k for k in range(off.ndim) if k != off.ndim - 2)))
        if not rows.any() or rows.all():
            continue
        first, last = int(np.argmax(rows)), len(rows) - 1 - int(np.argmax(rows[::-1]))
        block = next((b for b in BLOCKS if first % b == 0 and first), None)
        if block is None or first == last or rows[first : last + 1].mean() < MOST_ROWS:  # a row here and there
            continue
        where = f"{axis} {first} (a multiple of {block})"
        return f"{leaf} is right below {where}, wrong from there to {last}: blocks are joined or indexed wrongly", ""
    return None
