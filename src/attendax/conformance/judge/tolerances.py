"""Largest errors that are allowed: from that of the plain dense formula in the same dtype (L8)."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from ..cases.case import FORWARD, GRADIENT, GRADIENT_HELD, HELD, SIZES, Case, Inputs, Leaves
from ..cases.how import How
from ..conventions import right
from ..conventions.parts import in_parts, part
from . import dense
from .comparing import Tolerance, judge_leaf, largest, scale_of

DENSE_DRAWS = (1, 16)  # of the dense formula: one error of so few numbers may be small by chance
MANY_DRAWS = 64
ENOUGH_PAIRS = 2**20  # of queries and keys: fewer draws are enough
FEW_DRAWS = 4  # of a case that has up to so many
FEW_HEADS, OF_LARGE = 6, 16  # of a case that has more of them: fewer are drawn again, to so many times the pairs
EXACT, NEARLY_EXACT = 1e-12, 1e-10  # float64: by L8, and where only numbers are asked
EASY = 4.0  # where only numbers are asked: times the error of the dense formula, every step of it in the dtype
EXP = 20  # roundings that the exp of a float32 kernel may be off by there: torch's is, in the forward and once more
MOST_EFFORT = 2  # effort
# Roundings, times √S, of the sum of a row's gradients, which may pass through the largest score.
THROUGH_MAXIMUM = 1 / 2
FIRST_ORDER = FORWARD, HELD, GRADIENT, GRADIENT_HELD
OTHERWISE: tuple[dict[str, Any], ...] = (  # styles that people write as well
    {"in_turn": dense.SUMS}, {"in_turn": dense.SUMS_AND_PRODUCTS}, {"by_lse": True},
)  # fmt: skip


def tolerances(
    case: Case, how: How, wanted: Leaves, *, in_jax: bool, effort: int = MOST_EFFORT
) -> dict[str, Tolerance]:
    """The largest error of each leaf that is allowed.

    By the law twice the error of the dense formula in the same dtype (L8). If only numbers are asked, four times that
    of the formula with every step in the dtype. Then the formula may also have exp(score - lse) as weights. In float32
    it may add one term after the other, and what a quick exp may add is allowed. Of gradients plus eps |dout| |v|, or
    8 times that if all values that a row sees are equal. In float32 a gradient through a row's largest score may also
    be off by the rounding of the row's sum. The largest error counts, so that more effort only allows more. With effort
    0 the formula is evaluated for one draw of the numbers, with 1 for more, with 2 for many, and with -1 not at all.
    With 2 a JAX function also runs under ``jax.jit``.
    """
    dtype = case.dtype or how.dtype
    fine = dtype == "float64"  # there the error of the dense formula is told, and no bound
    precision = "" if how.precision == "highest" or dtype != "float32" else how.precision
    style = dense.Style(precision, "float32" if how.strict else dtype)
    errors: dict[str, float] = {}
    if effort >= 0:
        errors = dense_errors(case, how.seed, dtype, draws=DENSE_DRAWS[0 if fine else min(effort, 1)], style=style)
    if effort == MOST_EFFORT and not fine:
        for compiled in (False, True) if in_jax else (False,):
            more = dense_errors(case, how.seed, dtype, draws=MANY_DRAWS, in_jax=compiled, style=style)
            errors = {leaf: max(x, more.get(leaf, 0.0)) for leaf, x in errors.items()}
        of_float32 = dtype == "float32"
        for way in OTHERWISE[0 if of_float32 else -1 :] if not how.strict and case.direction in FIRST_ORDER else ():
            many = 1 if of_float32 else MANY_DRAWS
            more = dense_errors(case, how.seed, dtype, draws=many, style=style._replace(**way))
            errors = {leaf: max(x, more.get(leaf, 0.0)) for leaf, x in errors.items()}
    found = {leaf: _tolerance(case, how, dtype, leaf, errors.get(leaf)) for leaf in wanted}
    if effort >= 0 and not fine and case.direction in (GRADIENT, GRADIENT_HELD):
        size = right.around(case.inputs(how.seed, dtype), in_parts(dense.of_delta))
        tree = max(map(largest, wanted.values()), default=0.0)
        for leaf in found.keys() & size.keys():
            beside = _eps("float32") * largest(size[leaf]) / scale_of(wanted[leaf], found[leaf], tree)
            found[leaf] = found[leaf]._replace(allowed=found[leaf].allowed + beside)
        if effort == MOST_EFFORT and not how.strict and dtype == "float32":
            inputs = case.inputs(how.seed, dtype)
            roundings = THROUGH_MAXIMUM * math.sqrt(inputs.arrays["key"].shape[-2]) * _eps(dtype)
            through = right.around(inputs, in_parts(dense.of_largest))
            for leaf in found.keys() & through.keys():
                found[leaf] = found[leaf]._replace(more=roundings * through[leaf])
    return found


def _tolerance(case: Case, how: How, dtype: str, leaf: str, dense_error: float | None) -> Tolerance:
    unit = case.units.get(leaf, 0.0)
    if dtype == "float64":
        return Tolerance(EXACT if how.strict else NEARLY_EXACT, dense_error, unit)
    narrow = "float32" if leaf.endswith("lse") and how.strict else dtype
    rounding = max(_eps(narrow), 2 * _eps("float32"))  # where the dense formula happens to be exact
    if how.strict:
        return Tolerance(case.slack * max(2 * (dense_error or 0.0), rounding), dense_error, unit)
    least = 2 * rounding * (EASY if dtype == "float32" else 1)  # a long sum in bfloat16 is off by 4 of its roundings
    exp = 2 * EXP * _eps(dtype) if dtype == "float32" else 0.0
    return Tolerance(max(EASY * (dense_error or 0.0), least) + exp, dense_error, unit)


def _eps(dtype: str) -> float:
    return float(ml_dtypes.finfo(dtype).eps)


def dense_errors(
    case: Case, seed: int, dtype: str, *, draws: int = DENSE_DRAWS[-1], in_jax: bool = False,
    style: dense.Style = dense.Style(),  # noqa: B008  a value
) -> dict[str, float]:  # fmt: skip
    """The largest error of each leaf of the dense formula in a dtype, relative to its largest number, over some draws.

    It is the same for every implementation, and kept.
    """
    draws = min(draws, _available(case))
    key = f"{all_of(case, seed, dtype)} {draws} {in_jax} {style}"
    if key in _dense_errors:
        return _dense_errors[key]
    formula = dense.formula(case.direction, in_jax, style)
    formula = in_parts(formula) if _is_cut(case) else formula
    worst: dict[str, float] = {}
    for inputs in _samples(case, seed, dtype, draws):
        with np.errstate(all="ignore"):
            wanted, got = right.leaves(inputs, case.direction), right.around(inputs, formula)
        tree = max((largest(x) for x in wanted.values()), default=0.0)
        for leaf in wanted:
            tolerance = Tolerance(np.inf, unit=case.units.get(leaf, 0.0))
            found = judge_leaf(leaf, np.asarray(got[leaf]), wanted[leaf], tolerance, tree)
            if found.error is not None and not found.verdict.fails:  # where it fails itself, nothing is granted
                worst[leaf] = max(worst.get(leaf, 0.0), found.error)
    return _dense_errors.setdefault(key, worst)


_dense_errors: dict[str, dict[str, float]] = {}


def all_of(case: Case, seed: int, dtype: str) -> str:
    """All that the numbers of a case depend on, as a key."""
    return f"{case.text(seed, dtype)} {case.call} {case.direction}"


def _samples(case: Case, seed: int, dtype: str, draws: int) -> Iterator[Inputs]:
    """Draws of the numbers; of a large case key heads, whose errors are as large as those of all."""
    first = case.inputs(seed, dtype)
    others = (case.inputs(seed + 1000 * draw, dtype) for draw in range(1, draws))
    every = itertools.chain([first], (other._replace(options=first.options) for other in others))
    if case.pairs > ENOUGH_PAIRS and _is_cut(case):
        every = itertools.chain.from_iterable(_heads(inputs, seed) for inputs in every)
    yield from itertools.islice(every, draws)


def _heads(inputs: Inputs, seed: int) -> Iterator[Inputs]:
    (B, G), allowed = inputs.arrays["key"].shape[:2], right.allowed_pairs(inputs)
    for head in np.random.default_rng(seed).permutation(B * G):
        yield part(inputs, allowed, *divmod(int(head), G))[0]


def _available(case: Case) -> int:
    """The number of samples: draws; of a large case its key heads, and more draws where these are few."""
    if case.pairs <= ENOUGH_PAIRS:
        return max(FEW_DRAWS, ENOUGH_PAIRS // max(case.pairs, 1))
    if not _is_cut(case):
        return 1
    heads = math.prod((SIZES | case.sizes)[axis] for axis in "BG")
    return heads if heads >= FEW_HEADS else max(heads, min(OF_LARGE, OF_LARGE * ENOUGH_PAIRS * heads // case.pairs))


def _is_cut(case: Case) -> bool:
    """Tell whether its key heads, and blocks of queries, are calls of their own."""
    return case.leading == "B" and case.direction in (FORWARD, GRADIENT, HELD, GRADIENT_HELD)
