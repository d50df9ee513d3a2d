"""The judge of a case: runs its program and holds the results against the definition.

How near is near enough? Two judges answer, and a result must satisfy both.

The model of rounding (L17) holds for every case: a result must be as near to float64 as the definition itself stays
when its inputs, and the numbers that any program must round on the way, move at random by one unit in the last place,
and one unit of the array's largest entry; all that times ``ALLOWED``. So the bound follows the conditioning of each
case, also where scores are so large that a weight is uncertain by much.

The plain formula (L8) is what users would write otherwise, dense and in the dtype of the case, run on the same arrays.
Its error, twice, or 8 times in derivatives where scores are beyond 64 (8 in 16 bits), is what a result may be off;
``ROOM`` units of the model come on top, since the plain formula may be right by luck. Derivatives are not
held against it where scores are beyond 1e3, and float64 is not: there the model alone judges.
"""

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

import attendax

from . import data, paths, poison, reference
from .case import JACOBIANS, SECOND, Case
from .program import Program
from .rounding import EXACT, Rounding

ALLOWED = 16.0
ALIKE = ("ones", "equal", "columns", "shifted", "iota")  # values of which rows are nearly equal, and rounded alike
ROOM = 2.0
MODERATE, LARGE, HUGE = 64.0, 1e3, 1e6  # scores, in float32


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
        try:
            is_new, program = program is None, program or Program(attention, case, arrays)
            got = program(arrays, moves)
            again = program(arrays, moves)
            findings = poisoned(program, case, arrays, moves) if case.poison else []
            if is_new and attention is attendax.attention:
                findings += on_both_paths(attention, program, case, arrays, moves, got)
        except NotImplementedError as error:
            return Verdict([], refused=str(error).partition("\n")[0])
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            line = " ".join(str(error).split())[:300]
            place = f"{where.filename.rpartition('site-packages/')[2]}:{where.lineno}"
            return Verdict([Finding("L12", f"{type(error).__name__}: {line} ({place})")])
        if not same_bits(got, again):
            findings.append(Finding("L15", "other bits at the second run"))
        numbers, error = compare(case, arrays, moves, got)
        return Verdict(findings + numbers, error, program=program)


def on_both_paths(
    attention: Callable, program: Program, case: Case, arrays: Any, moves: Any, got: Any
) -> list[Finding]:
    """Hold rows to the bit on the native path (L15), and what tiles find against the definition and the native path."""
    findings = [Finding("L15 rows", what) for what in paths.other_rows(attention, case, arrays, got)]
    if tiles := paths.in_tiles(attention, case, arrays):
        numbers, _ = compare(case, arrays, moves, tiles(arrays, moves))
        findings += [finding._replace(what=f"in tiles: {finding.what}") for finding in numbers]
        told = paths.other_not_finite(program, tiles, case, arrays, moves)
        findings += [Finding("L6 paths", what) for what in told]
    return findings


def same_bits(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


def answer(case: Case, arrays: Any, moves: Any, rounding: Rounding = EXACT) -> dict[str, np.ndarray]:
    """The right results of a case."""
    if case.direction == "forward":
        return reference.forward(case, arrays, rounding)
    if case.direction in ("jvp", "linearize"):
        return reference.along(reference.forward, case, arrays, moves, rounding)
    if case.direction in (*SECOND, "hessian"):
        return reference.along(reference.gradient, case, arrays, moves, rounding)
    if case.direction in ("jacfwd", "jacrev"):
        tangents = reference.along(reference.forward, case, arrays, moves, rounding)
        plain = dataclasses.replace(case, loss="weighted", lse="")
        return {"tangent": tangents["out"]} | reference.gradient(plain, arrays, rounding)
    return reference.gradient(case, arrays, rounding)


def factor_of_plain(case: Case, arrays: Any) -> float:
    """How often the error of the plain formula is allowed; 0 where it is no judge.

    The sum over a row that a layer norm has centred does not depend on anything. Its gradient is rounding alone. JAX
    leaves some of it, and the formula by hand none.
    """
    of_nothing = case.layers and case.lse != "alone" and case.loss in ("sum", "mean", "rows")
    if case.dtype == "float64" or of_nothing:
        return 0.0
    largest = reference.largest_score(case, arrays)
    if case.direction == "forward":
        return 2.0 * (largest <= HUGE)
    moderate = MODERATE if case.dtype == "float32" else MODERATE / 8
    return 2.0 if largest <= moderate else 8.0 * (largest <= LARGE)


def contracted(case: Case, got: Any, arrays: Any, moves: Any) -> dict[str, np.ndarray]:
    """A Jacobian times the moves, and the cotangent times the Jacobian; a Hessian times the moves."""
    if case.direction not in JACOBIANS:
        return got
    fine = jax.tree.map(lambda x: x.astype(data.FINE), got)
    if case.direction == "hessian":
        return {name: sum(times(row[other], moves[other]) for other in row) for name, row in fine.items()}
    cotangent = arrays["cotangent_out"]
    found = {name: np.tensordot(cotangent, jacobian, cotangent.ndim) for name, jacobian in fine.items()}
    return found | {"tangent": sum(times(jacobian, moves[name]) for name, jacobian in fine.items())}


def times(jacobian: np.ndarray, move: np.ndarray) -> np.ndarray:
    return np.tensordot(jacobian, move, move.ndim)


def compare(case: Case, arrays: Any, moves: Any, got: Any) -> tuple[list[Finding], float]:
    """Hold the numbers against the definition (L17), and what is exactly 0 against that (L5)."""
    wanted, units = answer(case, arrays, moves), {}
    own = np.finfo(np.float64 if case.dtype == "float64" else np.float32)
    stored = ml_dtypes.finfo(data.storage(case, "query"))
    least = float(stored.smallest_subnormal if case.dtype == "float16" else own.tiny)
    # Of ones, the n terms of a sum are equal. Added one after the other, the k-th sum is rounded by at most eps / 2 of
    # its k terms, and equal terms may round every sum the same way: n^2 eps / 4 of one, n eps / 4 of all.
    # A quotient of two such sums, as out is, from which delta is taken, is off by at most n eps / 2: ``ALLOWED`` times
    # ``equal``. Sums over queries, as those of dk and dv, have T terms. Where there is one key all queries have the
    # same result, so that these terms are equal whatever the values are. With a scale of 0 all weights are equal.
    every = case.values == "ones" or case.scale == 0
    terms = max(case.T, case.S) if every else case.T if case.S == 1 else 0
    equal = float(own.eps) * terms / 2 / ALLOWED
    # Where rows are nearly equal, their errors are, too. No number is then moved further than in the other samples, but
    # all of an array the same way: the corner of the same room where a sum of n errors is n of them, not their root.
    count = int(np.clip(2**17 // max(1, case.work), 2, 12))
    for sample in range(count + 6 * (case.values in ALIKE)):
        alike = sample >= count
        unit = float(own.eps) + alike * equal
        rounding = Rounding(np.random.default_rng(sample), unit, float(stored.eps), least, alike=alike)
        near = answer(case, {name: _nudged(rounding, x) for name, x in arrays.items()}, moves, rounding)
        for name, x in near.items():
            units[name] = max(units.get(name, 0.0), _largest(x - wanted[name]))
    findings, worst, by_plain = [], 0.0, {}
    if factor := factor_of_plain(case, arrays):
        by_plain = reference.plain(case, arrays, moves, lambda *low: answer(case, *low))
    got = contracted(case, got, arrays, moves)
    largest = {name: _largest(x) for name, x in wanted.items()}
    for name, x in got.items():
        eps = float(own.eps if name == "lse" else stored.eps)
        size = largest[name] or max(largest.values())  # what is 0 in truth is measured against all the rest
        unit = units[name] + (eps + equal) * size + least * max(1, case.T, case.S)  # each term may be flushed to 0
        finding, error = compare_array(name, x, wanted[name], unit)
        if name in by_plain and not finding:
            finding = compare_with_plain(name, error * unit, by_plain[name], wanted[name], unit, factor)
        findings += finding
        worst = max(worst, error)
    return findings, worst


def compare_with_plain(
    name: str, error: float, plain: np.ndarray, wanted: np.ndarray, unit: float, factor: float
) -> list[Finding]:
    """Whether the error is more than so many times that of the plain formula."""
    both = np.isfinite(wanted)
    if not np.isfinite(plain[both]).all():  # it overflows
        return []
    own = _largest(np.where(both, plain - np.where(both, wanted, 0), 0))
    if error <= factor * own + ROOM * unit:
        return []
    what = f"off by {error:.3g}, {error / unit:.3g} units, {error / own if own else np.inf:.3g} times as far as plain"
    return [Finding("L8", f"{name}: {what}, allowed {factor:g} times and {ROOM:g} units")]


def _nudged(rounding: Rounding, x: np.ndarray) -> np.ndarray:
    return rounding.of(x) if x.dtype == data.FINE and np.all(abs(x) < 1e30) else x


def _largest(x: np.ndarray) -> float:
    return float(np.max(abs(x), where=np.isfinite(x), initial=0.0))


def compare_array(name: str, got: np.ndarray, wanted: np.ndarray, unit: float) -> tuple[list[Finding], float]:
    """Shape, what is not finite, and the largest error in units."""
    if got.shape != wanted.shape:
        return [Finding("L1", f"{name}: shape {got.shape}, expected {wanted.shape}")], 0.0
    low = wanted.astype(got.dtype)
    got = got.astype(data.FINE)
    counted = np.isfinite(low.astype(data.FINE))  # beyond the range of the dtype only the reference is finite
    infinite = np.isinf(wanted)
    if (got[infinite] != wanted[infinite]).any():
        return [Finding("L5", f"{name}: not -inf where a query may look at no key")], np.inf
    bad = counted & ~np.isfinite(got)
    if bad.any():
        return [Finding("L7", f"{name}: {bad.sum()} of {got.size} entries are not finite")], np.inf
    error = _largest(np.where(counted, got - np.where(counted, wanted, 0), 0))
    if error <= ALLOWED * unit:
        return [], error / unit
    size = _largest(wanted)
    return [Finding("L17", f"{name}: off by {error:.3g}, largest {size:.3g}, {error / unit:.3g} units")], error / unit


def poisoned(program: Program, case: Case, arrays: Any, moves: Any) -> list[Finding]:
    """Write what is not finite, or huge, and see which bits change, and that what sees it is NaN (L6)."""
    findings = []
    for run in poison.spoilt(case, arrays, moves, program.known):
        clean, dirty = program(*run.clean), program(*run.dirty)
        for name, x in dirty.items():
            y, fine = clean[name], x.astype(data.FINE)
            keep = np.broadcast_to(run.same.get(name, True), x.shape)
            changed = keep & (x != y) & ~(np.isnan(fine) & np.isnan(y.astype(data.FINE)))  # 0 and -0 are equal
            if changed.any():
                off, lost = _largest(np.where(changed, fine - y.astype(data.FINE), 0)), (changed & ~np.isfinite(fine))
                what = f"{changed.sum()} of {keep.sum()} entries changed by {off:.3g}, {lost.sum()} lost"
                findings.append(Finding("L6", f"{run.what}: {name}: {what}"))
            lost = np.broadcast_to(run.lost.get(name, False), x.shape)
            if (lost & ~np.isnan(fine)).any():
                count = (lost & ~np.isnan(fine)).sum()
                findings.append(Finding("L6 seen", f"{run.what}: {name}: {count} of {lost.sum()} entries are not NaN"))
    return findings
