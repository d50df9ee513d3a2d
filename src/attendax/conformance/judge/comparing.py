"""The test whether two numbers differ, in two sets of arrays: by more than a tolerance, or in any bit."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..cases.case import Leaves
from .verdicts import Finding, Verdict

LEAST_NORMAL = 2.0**-126  # of float32: smaller numbers may be 0


class Tolerance(NamedTuple):
    """The largest error of a leaf, relative to its largest number."""

    allowed: float
    dense: float | None = None
    unit: float = 0.0  # of the numbers: the size of the terms that cancel, where that is larger than any of them
    more: np.ndarray | float = 0.0  # what each number may be off by beside that


def compare(got: Leaves, expected: Leaves, tolerances: dict[str, Tolerance]) -> Finding:
    """The worst leaf: names, shapes, NaN, infinities, then the largest error against its tolerance."""
    if missing := [leaf for leaf in expected if leaf not in got]:
        return Finding(Verdict.WRONG, f"gives no {missing[0]}", missing[0])
    tree = max((largest(x) for x in expected.values()), default=0.0)
    worst = Finding(Verdict.OK, error=0.0)
    for leaf, wanted in expected.items():
        finding = judge_leaf(leaf, np.asarray(got[leaf]), wanted, tolerances[leaf], tree)
        if finding.verdict.fails:
            return finding
        if (finding.error or 0) / (finding.allowed or 1) >= (worst.error or 0) / (worst.allowed or 1):
            worst = finding
    return worst


def judge_leaf(leaf: str, got: np.ndarray, wanted: np.ndarray, tolerance: Tolerance, tree: float) -> Finding:
    """One leaf; if its own numbers are 0 up to rounding, it is measured by the largest of all leaves, ``tree``."""
    if got.shape != wanted.shape:
        return Finding(Verdict.WRONG, f"{leaf} has shape {got.shape}, expected {wanted.shape}", leaf)
    if not got.size:
        return Finding(Verdict.OK, leaf=leaf, error=0.0, allowed=tolerance.allowed)
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    off = tolerance.allowed * (scale := scale_of(wanted, tolerance, tree))
    bad = np.isnan(got) & ~np.isnan(wanted)
    if bad.any():
        share = f"{int(bad.sum())} of {bad.size}"
        found = at(Verdict.NAN, f"{leaf} is NaN at {share}", leaf, bad.astype(float), wanted, got)
        return found._replace(off=off)
    same = alike(got, wanted)
    if (infinite := ~np.isfinite(wanted) & ~same).any() or (infinite := ~np.isfinite(got) & ~same).any():
        return at(Verdict.WRONG, f"{leaf} is infinite or finite where it should not be", leaf, infinite, wanted, got)
    difference = np.abs(np.where(same, 0, got) - np.where(same, 0, wanted))
    difference = np.maximum(difference - tolerance.more, 0)
    error = difference.max() / scale
    verdict = Verdict.OK if error <= tolerance.allowed else Verdict.WRONG
    message = "" if verdict is Verdict.OK else f"{leaf} is off by {error:.2g} of its largest number"
    found = at(verdict, message, leaf, difference, wanted, got)
    return found._replace(error=float(error), allowed=tolerance.allowed, dense_error=tolerance.dense, off=off)


def scale_of(wanted: np.ndarray, tolerance: Tolerance, tree: float) -> float:
    """The number that the error of a leaf is relative to; ``tree`` is the largest number of all leaves."""
    own, tree = (x if x >= LEAST_NORMAL else 0.0 for x in (largest(wanted), tree))
    return max(own if own > 1e-9 * tree else tree, tolerance.unit) or 1.0  # 0 in truth is rounding in fact


def unchanged(one: Leaves, other: Leaves, where: dict[str, str], *, nan_rows: bool = False) -> Finding:
    """Compare bits, except the sign of 0: in the part of each leaf that ``where`` gives, or everywhere.

    ``one`` is of ordinary inputs, so nothing in it is NaN; with ``nan_rows`` something may be.
    """
    if fault := unsound(one, nan_rows=nan_rows):
        return fault
    for leaf in one:
        if where and leaf not in where:
            continue
        a, b = (part_of(x, leaf, where) for x in (one, other))
        differ = ~alike(a, b)
        if differ.any():
            share = f"{int(differ.sum())} of {differ.size} numbers of {leaf} change"
            found = at(Verdict.LEAK, share, leaf, differ, a, b)
            worse = np.isnan(b) & ~np.isnan(a)
            return at(Verdict.LEAK, f"{share}; NaN", leaf, worse, a, b) if worse.any() else found
    return Finding(Verdict.OK)


def alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mark where two arrays have equal numbers; NaN equals NaN."""
    return (a == b) | (np.isnan(a) & np.isnan(b))


def part_of(leaves: Leaves, leaf: str, where: Mapping[str, str]) -> np.ndarray:
    """The part of a leaf that ``where`` gives as an index, in float64; all of it where it gives none."""
    index = eval(f"np.s_[{where.get(leaf, '...')}]", {"np": np})
    return np.asarray(leaves[leaf], np.float64)[index]


def unsound(leaves: Leaves, *, nan_rows: bool = False) -> Finding | None:
    """Something must be there to compare: neither NaN (everywhere) nor, of the result, zeros everywhere."""
    for leaf, x in leaves.items():
        bad = np.isnan(np.asarray(x, np.float64))
        if x.size and (bad.all() if nan_rows else bad.any()):
            share = "everywhere" if bad.all() else f"at {int(bad.sum())} of {bad.size}"
            return Finding(Verdict.NAN, f"{leaf} is NaN {share}, with ordinary inputs", leaf)
        if x.size and leaf == "out" and not np.any(x):
            return Finding(Verdict.WRONG, "out is 0 everywhere, with ordinary inputs", leaf)
    return None


def at(verdict: Verdict, message: str, leaf: str, badness: Any, wanted: Any, got: Any) -> Finding:
    """A finding that points to where it is worst."""
    index = tuple(int(k) for k in np.unravel_index(np.argmax(badness), badness.shape))
    return Finding(verdict, message, leaf, index, float(wanted[index]), float(got[index]))


def largest(x: np.ndarray) -> float:
    """The largest finite number, without its sign."""
    x = np.asarray(x, np.float64)
    return float(np.abs(x, where=np.isfinite(x), out=np.zeros(x.shape)).max(initial=0.0))
