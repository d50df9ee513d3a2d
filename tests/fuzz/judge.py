"""The judge of a case: runs its program and compares the results with the definition.

A result must satisfy two bounds.

The rounding model (L17) holds for every case. A result must be as near to float64 as the definition itself stays if its
inputs and all numbers on its way move at random by a unit in the last place, plus one unit of the array's largest
entry; all that times ``ALLOWED``. So the bound follows the conditioning of each case, also if scores are so large that
a weight is uncertain by much.

The plain formula (L8) is what users would write otherwise, dense and in the dtype of the case. A result may be off by
twice its error, or in derivatives 8 times if scores are beyond 64 (8 in 16 bits), plus ``ROOM`` units of the model,
since the plain formula may be right by luck. It does not judge float64, nor derivatives if scores are beyond 1e3.
"""

import dataclasses
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

import attendax

from . import data, poison, rows
from .case import Case
from .numpy_program import Perturbed, Rounded
from .program import Definition, Program, largest_score

ALLOWED, ROOM = 16.0, 2.0
ALIKE = ("ones", "equal", "columns", "shifted", "iota")  # values of which rows are nearly equal, and rounded alike
MODERATE, LARGE, HUGE = 64.0, 1e3, 1e6  # scores, in float32
OFTEN = 3  # of so many cases one runs in tiles also: compiling them takes most of the time


class Finding(NamedTuple):
    """A law that a case breaks, and how."""

    law: str
    what: str


class Verdict(NamedTuple):
    """The end of a case: its findings, the largest error in units of what rounding explains, and what was refused."""

    findings: list[Finding]
    error: float = 0.0
    refused: str = ""
    program: Program | None = None


def judge(attention: Callable, case: Case, program: Program | None = None) -> Verdict:
    """Run a case under all laws; ``program``: that of a case with other numbers."""
    with jax.enable_x64(case.x64), np.errstate(all="ignore"):
        arrays = data.leaves(case)
        moves = data.directions(case, arrays)
        numbers = Numbers(case, arrays, moves)
        try:
            is_new, program = program is None, program or Program(attention, case, arrays)
            got, again = program(arrays, moves), program(arrays, moves)
            findings = list(poisoned(program, numbers))
            if is_new and attention is attendax.attention and runs_natively(case):
                if not case.broadcast:
                    findings += [Finding("L15 rows", what) for what in rows.differences(attention, case, arrays, got)]
                if case.seed % OFTEN == 0:
                    tiles = Program(attention, dataclasses.replace(case, implementation="blockwise"), arrays)
                    findings += in_tiles(program, tiles, numbers)
        except NotImplementedError as error:
            return Verdict([], refused=str(error).partition("\n")[0])
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            line = " ".join(str(error).split())[:300]
            place = f"{where.filename.rpartition('site-packages/')[2]}:{where.lineno}"
            return Verdict([Finding("L12", f"{type(error).__name__}: {line} ({place})")])
        if any(got[name].tobytes() != again[name].tobytes() for name in got):
            findings.append(Finding("L15", "other bits at the second run"))
        return Verdict(findings + numbers.compare(got), numbers.worst, program=program)


def runs_natively(case: Case) -> bool:
    """Whether the native path computes the case, by default or by name; it does not take a function."""
    has_function = "'function'" in repr((case.mask, case.modifier))
    return case.implementation in (None, "native", "triton") and not has_function and not case.layers


def in_tiles(native: Program, tiles: Program, numbers: "Numbers") -> Iterator[Finding]:
    """Compare the tiles with the definition, and where one of the two paths has NaN or infinity (L6)."""
    case, arrays, moves = numbers.case, numbers.arrays, numbers.moves
    for finding in numbers.compare(tiles(arrays, moves)):
        yield finding._replace(what=f"in tiles: {finding.what}")
    for run in poison.spoilt(case, arrays, moves, native.known) if case.poison[1:2] != ("big",) else ():
        one, other = native(*run.dirty), tiles(*run.dirty)
        for name in (name for name in one if data.group(name) != "mod"):
            differ = np.isfinite(fine(one[name])) != np.isfinite(fine(other[name]))
            if differ.any():
                what = f"{differ.sum()} of {differ.size} are finite on one path alone"
                yield Finding("L6 paths", f"{run.what}: {name}: {what}")


def fine(x: np.ndarray) -> np.ndarray:
    return x.astype(data.FINE)


def largest(x: np.ndarray) -> float:
    return float(np.max(abs(x), where=np.isfinite(x), initial=0.0))


class Numbers:
    """The right results of a case, and how far off a result may be."""

    def __init__(self, case: Case, arrays: Any, moves: Any):
        self.case, self.arrays, self.moves, self.worst = case, arrays, moves, 0.0
        self.definition = Definition(case, arrays, moves)
        self.right = self.definition(arrays, moves)
        self.own = np.finfo(np.float64 if case.dtype == "float64" else np.float32)
        self.stored = ml_dtypes.finfo(data.storage(case, "query"))
        self.least = float(self.stored.smallest_subnormal if case.dtype == "float16" else self.own.tiny)
        # Of ones, the n terms of a sum are equal. Added one after the other, the k-th sum is rounded by at most eps / 2
        # of its k terms, and equal terms may round every sum the same way: n^2 eps / 4 of one, n eps / 4 of all.
        # A quotient of two such sums, as out is, is off by at most n eps / 2: ``ALLOWED`` times ``equal``. Sums over
        # queries, as those of dk and dv, have T terms. If there is one key all queries have the same result, so that
        # these terms are equal whatever the values are. Weights are equal if the scale is 0 or all keys are.
        every = case.values == "ones" or case.scale == 0 or {"query", "key"} & {*case.broadcast}
        terms = max(case.T, case.S) if every else case.T if case.S == 1 else 0
        self.equal = float(self.own.eps) * terms / 2 / ALLOWED
        self.units = self._units()
        self.factor = self._factor_of_plain()
        self.plain = self.definition(arrays, moves, Rounded(self.stored.dtype)) if self.factor else {}

    def _units(self) -> dict[str, float]:
        """Of each result, how far random errors lead, and one unit of its largest entry."""
        case, eps = self.case, float(self.own.eps)
        count, moved = int(np.clip(2**17 // max(1, case.work), 2, 12)), dict.fromkeys(self.right, 0.0)
        # If rows are nearly equal, so are their errors. No number then moves further than in the other samples, but all
        # of an array the same way: a sum of n errors is n of them, not their root.
        for sample in range(count + 6 * (case.values in ALIKE or bool(case.broadcast))):
            alike = sample >= count
            unit = eps + alike * self.equal
            rng = np.random.default_rng(sample)
            rounding = Perturbed(rng, unit, float(self.stored.eps), self.least, alike=alike)
            near = {name: rounding.computed(x, abs(x)) if x.dtype == data.FINE else x
                    for name, x in self.arrays.items()}  # fmt: skip
            for name, x in self.definition(near, self.moves, rounding).items():
                moved[name] = max(moved[name], largest(x - self.right[name]))
        sizes = {name: largest(x) for name, x in self.right.items()}
        all_sizes = max(sizes.values(), default=0.0)  # what is 0 in truth is measured against all the rest
        terms = max(1, case.T, case.S)  # each may be flushed to 0
        of_array = {name: eps if name == "lse" else float(self.stored.eps) for name in moved}
        return {name: moved[name] + (of_array[name] + self.equal) * (sizes[name] or all_sizes) + self.least * terms
                for name in moved}  # fmt: skip

    def _factor_of_plain(self) -> float:
        """The factor of the plain formula's error that is allowed; 0 if that error says nothing.

        The sum over a row that a layer norm has centred does not depend on anything. Its gradient is rounding alone.
        JAX leaves some of it, and the formula by hand none.
        """
        case = self.case
        of_nothing = case.layers and case.lse != "alone" and case.loss in ("sum", "mean", "rows")
        if case.dtype == "float64" or of_nothing:
            return 0.0
        scores = largest_score(self.case, self.arrays)
        if case.direction == "forward":
            return 2.0 * (scores <= HUGE)
        moderate = MODERATE if case.dtype == "float32" else MODERATE / 8
        return 2.0 if scores <= moderate else 8.0 * (scores <= LARGE)

    def compare(self, got: dict[str, np.ndarray]) -> list[Finding]:
        """Compare all results with the definition, by both bounds."""
        return [Finding(law, f"{name}: {what}") for name in got for law, what in self.of_array(name, got[name])]

    def of_array(self, name: str, got: np.ndarray) -> Iterator[tuple[str, str]]:
        right, unit = self.right[name], self.units[name]
        if got.shape != right.shape:
            yield "L1", f"shape {got.shape}, expected {right.shape}"
            return
        counted = np.isfinite(
            fine(right.astype(got.dtype))
        )  # beyond the range of the dtype only the definition is finite
        got, infinite = fine(got), np.isinf(right)
        if (got[infinite] != right[infinite]).any():
            yield "L5", "not -inf where a query may look at no key"
        elif (bad := counted & ~np.isfinite(got)).any():
            yield "L7", f"{bad.sum()} of {got.size} entries are not finite"
        else:
            error = largest((got - right)[counted])
            self.worst = max(self.worst, error / unit)
            if error > ALLOWED * unit:
                yield "L17", f"off by {error:.3g}, largest {largest(right):.3g}, {error / unit:.3g} units"
            elif self.factor and np.isfinite(self.plain[name][~infinite]).all():  # else the plain formula overflows
                own = largest(self.plain[name] - right)
                if error > self.factor * own + ROOM * unit:
                    much = f"{error / unit:.3g} units, {error / own if own else np.inf:.3g} times as far as plain"
                    yield "L8", f"off by {error:.3g}, {much}, allowed {self.factor:g} times and {ROOM:g} units"


def poisoned(program: Program, numbers: "Numbers") -> Iterator[Finding]:
    """Write what is not finite, or huge, and see which bits change, and that what sees it is NaN (L6)."""
    case, arrays = numbers.case, numbers.arrays
    for run in poison.spoilt(case, arrays, numbers.moves, program.known):
        clean, dirty = program(*run.clean), program(*run.dirty)
        if run.clean[0] is not arrays:  # of some rows nothing is read
            for name, right in numbers.definition(*run.clean).items():
                if (np.isnan(fine(clean[name])) & np.isfinite(fine(right.astype(clean[name].dtype)))).any():
                    yield Finding("L6", f"{run.what}: {name}: NaN without it")
        for name, x in dirty.items():
            y, is_nan = clean[name], np.isnan(fine(x))
            keep, lost = (np.broadcast_to(where.get(name, default), x.shape)
                          for where, default in ((run.same, True), (run.lost, False)))  # fmt: skip
            changed = keep & (x != y) & ~(is_nan & np.isnan(fine(y)))  # 0 and -0 are equal
            if changed.any():
                off, gone = largest((fine(x) - fine(y))[changed]), (changed & ~np.isfinite(fine(x))).sum()
                what = f"{changed.sum()} of {keep.sum()} entries changed by {off:.3g}, {gone} lost"
                yield Finding("L6", f"{run.what}: {name}: {what}")
            if (lost & ~is_nan).any():
                what = f"{(lost & ~is_nan).sum()} of {lost.sum()} entries are not NaN"
                yield Finding("L6 seen", f"{run.what}: {name}: {what}")
