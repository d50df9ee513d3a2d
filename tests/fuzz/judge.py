"""The judge of a case: runs its program and holds the results against the definition.

How near is near enough: a result must be as near to float64 as the definition itself stays when its inputs, and the
numbers that any program must round on the way, move at random by one unit in the last place, and one unit of the
array's largest entry; all that times ``ALLOWED``. So the bound follows the conditioning of each case.
"""

import dataclasses
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from . import data, reference
from .case import JACOBIANS, SECOND, Case
from .program import Program
from .rounding import EXACT, Rounding

ALLOWED = 16.0


class Finding(NamedTuple):
    """A law that a case breaks, and how."""

    law: str
    what: str


class Verdict(NamedTuple):
    """What came of a case: its findings, the largest error in units of what rounding explains, and what was refused."""

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
            program = program or Program(attention, case, arrays)
            got = program(arrays, moves)
            again = program(arrays, moves)
            findings = poisoned(program, case, arrays, moves, got) if case.poison else []
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
    for sample in range(int(np.clip(2**17 // max(1, case.work), 2, 12))):
        rounding = Rounding(np.random.default_rng(sample), float(own.eps), float(stored.eps), least)
        near = answer(case, {name: _nudged(rounding, x) for name, x in arrays.items()}, moves, rounding)
        for name, x in near.items():
            units[name] = max(units.get(name, 0.0), _largest(x - wanted[name]))
    findings, worst = [], 0.0
    got = contracted(case, got, arrays, moves)
    largest = {name: _largest(x) for name, x in wanted.items()}
    terms = max(case.T, case.S) if case.values == "ones" else 0
    alike = float(own.eps) * terms / 2 / ALLOWED  # of equal terms, added one by one, each sum is rounded the same way
    for name, x in got.items():
        eps = float(own.eps if name == "lse" else stored.eps)
        size = largest[name] or max(largest.values())  # what is 0 in truth is measured against all the rest
        unit = units[name] + (eps + alike) * size + least
        finding, error = compare_array(name, x, wanted[name], unit)
        findings += finding
        worst = max(worst, error)
    return findings, worst


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


def poisoned(program: Program, case: Case, arrays: Any, moves: Any, got: Any) -> list[Finding]:
    """Write what is not finite, or huge, where it cannot matter, and see that no other bit changes (L6)."""
    where, kind = case.poison
    poison = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "big": 3e38}[kind]
    places = unseen(case, arrays)
    untouched = np.ones(arrays["cotangent_lse"].shape, bool)
    if where == "seen":
        places, untouched = one_that_is_seen(case, arrays)
        quiet = {name: arrays[name] * untouched.reshape(untouched.shape + (1,) * (arrays[name].ndim - untouched.ndim))
                 for name in ("cotangent_out", "cotangent_lse")}  # fmt: skip
        arrays = arrays | quiet
        got = program(arrays, moves)
    places = {name: place for name, place in places.items() if name not in program.known}
    spoiled = {name: np.where(place, poison, arrays[name]) for name, place in places.items()}
    clean, spoilt = got, program(arrays | spoiled, moves)
    findings = []
    for name, x in spoilt.items():
        y = clean[name]
        if name in ("out", "lse"):
            keep = untouched if name == "lse" else np.broadcast_to(untouched[..., None], x.shape)
            x, y = np.where(keep, x, 0), np.where(keep, y, 0)
        if not np.array_equal(x, y, equal_nan=True):  # 0 and -0 are equal
            count, off = (x != y).sum(), _largest(x.astype(data.FINE) - y.astype(data.FINE))
            lost = (~np.isfinite(x.astype(data.FINE)) & np.isfinite(y.astype(data.FINE))).sum()
            findings.append(Finding("L6", f"{name}: {count} of {x.size} entries changed by {off:.3g}, {lost} lost"))
    return findings


def _pairs(case: Case, arrays: Any) -> dict[tuple[int, ...], np.ndarray]:
    """Which pairs are allowed in each call, by mask or bias."""
    found = {}
    for index in np.ndindex(*case.mapped):
        part = {name: x[data.place(case, name, index)] for name, x in arrays.items()}
        found[index] = data.allowed(case, part)
        if case.bias is not None:
            found[index] = found[index] & (part["bias"] != -np.inf)
    return found


def unseen(case: Case, arrays: Any) -> dict[str, np.ndarray]:
    """Where in query, key, value and bias nothing can matter: boolean, broadcastable to each."""
    places = {name: np.ones((*arrays[name].shape[:-1], 1), bool) for name in ("query", "key", "value")}
    if case.bias is not None:
        places["bias"] = np.asarray(arrays["bias"] != -np.inf)
    for index, pairs in _pairs(case, arrays).items():
        of_query, of_key = pairs.any(-1), pairs.any(-2)
        of_key = of_key.reshape(*of_key.shape[:-2], case.G, case.N // case.G, case.S).any(-2)
        rows = {"query": of_query, "key": of_key, "value": of_key}
        for name, used in rows.items():
            used = used[0] if case.one_head else used
            places[name][data.place(case, name, index)] &= ~used[..., None]
        if case.bias is not None:
            part = arrays["bias"][data.place(case, "bias", index)]
            used = reference.sum_to((pairs[0] if case.one_head else pairs).astype(int), part.shape) > 0
            places["bias"][data.place(case, "bias", index)] &= ~used
    return places


def one_that_is_seen(case: Case, arrays: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """One row of key or value, and which rows of out it cannot touch."""
    rng = data.generator(case, "poison")
    name = ("key", "value")[rng.integers(2)]
    place = np.zeros((*arrays[name].shape[:-1], 1), bool)
    if place.size:
        place.flat[rng.integers(place.size)] = True
    untouched = np.ones(arrays["cotangent_lse"].shape, bool)
    for index, pairs in _pairs(case, arrays).items():
        here = place[data.place(case, name, index)][..., 0]
        here = here[None] if case.one_head else here
        touched = (pairs & np.repeat(here, case.N // case.G, axis=-2)[..., None, :]).any(-1)
        untouched[index] = ~(touched[0] if case.one_head else touched)
    return {name: place}, untouched
