"""Reasons that are seen in the numbers of many cases together: coarse products, a factor, a block of rows."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..cases import CASES
from ..cases.case import SIZES
from ..cases.square import plain_of
from ..conventions.table import TABLE, python
from ..judge.comparing import Tolerance, compare
from ..judge.judges import compared
from ..judge.trial import Trial
from ..judge.verdicts import Verdict
from .by_running import with_case
from .causes import Faults
from .explaining import varied
from .hypothesis import lengths, loosely, multiplied

ROUNDED_BLOCKS = (512, 256, 128, 64, 32, 16)
MOST = 0.9  # of the cases, where it is the precision of all products
MOST_ROWS = 0.5  # of those from a block on, where it is the block that is wrong; and of all, where it is the precision
LEAST_LENGTH = 4  # the fewest queries and keys that tell rounding from a mistake
# scores of 0 for a power of 2 of keys, and -256 for the rest: weights and averages are exact in any precision
EVEN = """query = 0 * query; query[..., 0] = 1; key[..., 0] = 0; value = np.rint(2 * value).astype(dtype)
key[..., 2 ** int(np.log2(S)) :, 0] = -(2.0 ** (8 + round(np.log2(D) / 2)))"""
# scaled scores of 0, 2, 4 and 6; the result is the weights, and no precision of products rounds one by more than itself
STEP_VALUES = """query = 0 * query; query[..., 0] = 1; key = 0 * key
key[..., 0] = 2 ** (1 + round(np.log2(D) / 2)) * (np.arange(S) % 4); value = value * 0 + np.eye(S, V, dtype=dtype)"""
EXACT_ERROR = 2e-6
ROUNDED = "rounds more than L8 allows, and no more than is allowed where only numbers are asked"
FACTORS = 1e-4  # how constant a factor is
SYMBOLS = (
    "2", "1/2", "-1", "1/log 2", "log 2", "1/scale", "scale", "√D", "1/√D", "D", "1/D", "G/N", "N/G", "1/S", "S", "1/B",
    "1/N", "1/T",
)  # fmt: skip
MEANS = {"1/scale": ": the scale is left out", "scale": ": the scale is applied once more",
         "1/log 2": ": in units of log 2", "log 2": ": in units of log 2"}  # fmt: skip
SCALE_LINES = TABLE["gradient_scale"]
WITHOUT_SCALE = {"grad key": SCALE_LINES["not of keys"].words, "grad query": SCALE_LINES["not of queries"].words}


def see(faults: Faults) -> None:
    """Take what is seen in the numbers of cases that are left, the surest first."""
    for level in ("forward", "gradient"):
        for dtype in WAYS:
            _precision(faults, level, dtype)
    _factors(faults)


def _precision(faults: Faults, level: str, dtype: str) -> None:
    """A coarser product: nearly all values (or all gradients) of the dtype show it, in most of their rows.

    The weight of one key is 1 in any precision, and a factor is not rounding.
    """
    every = [(n, t) for n, t in faults.of_numbers().items() if (t.case.level, t.dtype) == (level, dtype)]
    mine = {n: t for n, t in every if lengths(t)[1] > 1 and t.how.precision == "highest" and not _factor(t)}
    if not mine:
        return
    run = next(iter(mine.values())).how.dtype
    right = [o for o in faults.outcomes if o.verdict is Verdict.OK and (o.finding.error or 0) < 1e-5]
    right = [o for o in right if (o.case.level, o.case.judge, o.case.dtype or run) == (level, "value", dtype)]
    others = sum(o.case.sizes.get("S", 2) > 1 for o in right)
    told = [({n for n, t in mine.items() if is_so(t)}, words, flag, unit) for words, flag, unit, is_so in WAYS[dtype]]
    for names, words, remedy, unit in sorted(told, key=lambda one: -len(one[0])):  # the finest of those that are so
        if len(names) >= MOST * (len(mine) + others) and only_rounds(min((mine[n] for n in names), key=_size), unit):
            faults.take(words, names, remedy)
            return


def _size(trial: Trial) -> tuple[bool, int, str]:
    """The order in which trials are taken for ``only_rounds``: the smallest that has enough queries and keys."""
    return min(lengths(trial)) < LEAST_LENGTH, trial.case.pairs, trial.case.name


def only_rounds(trial: Trial, unit: float) -> bool:
    """Tell whether the averages that no precision of products rounds are right, and each weight except its own.

    A scale, or a decay, that is off by little is as near to right results as coarse products are. Small calls show
    most; the calls have the trial's sizes if the function refuses those.
    """
    form, own = trial.implementation.form, SIZES | trial.case.sizes
    axes = "S" if own["T"] == 1 and not form.causal else "TS"  # one query is all that some take
    for sizes in dict.fromkeys("TS", LEAST_LENGTH), own | {axis: max(own[axis], LEAST_LENGTH) for axis in axes}:
        case = CASES[0]._replace(sizes=sizes, dtype=trial.case.dtype)
        even, steps = (with_case(trial, plain_of(form, {}, lines, case=case)) for lines in (EVEN, STEP_VALUES))
        if even and steps:
            return _is_within(even, EXACT_ERROR) and _is_within(steps, 4 * unit, of_each=True)
    return False  # it cannot be asked, or there is no time


def _is_within(trial: Trial, allowed: float, *, of_each: bool = False) -> bool:
    """Tell whether a result is off by at most a part of the largest number, or of each."""
    wanted, got = (np.asarray(x["out"], np.float64) for x in (trial.expected(), trial.got))
    if got.shape != wanted.shape:
        return False
    rows = 2 ** np.arange(wanted.shape[-2].bit_length()) - 1  # causal queries that see a power of 2 of keys, too
    off, size = np.abs(got - wanted), np.abs(wanted) if of_each else np.abs(wanted).max()
    return bool((off <= allowed * size)[..., rows[rows < wanted.shape[-2]], :].all())


def _is_coarse(precision: str, unit: float) -> Callable[[Trial], bool]:
    def is_so(trial: Trial) -> bool:
        wanted = trial.expected()
        near = compare(trial.got, wanted, {leaf: Tolerance(16 * unit) for leaf in wanted})
        if near.verdict.fails or max(_off(trial, leaf).mean() for leaf in wanted) < MOST_ROWS:
            return False
        coarser = Trial(trial.implementation, trial.case, trial.how._replace(precision=precision))
        return not compare(trial.got, wanted, coarser.tolerances(wanted, effort=1)).verdict.fails

    return is_so


def _off(trial: Trial, leaf: str) -> np.ndarray:
    """Rows of a leaf that are off by more than a few roundings of float32."""
    wanted = trial.expected()[leaf]
    off = np.abs(np.asarray(trial.got[leaf], np.float64) - wanted) > 1e-5 * (np.abs(wanted).max(initial=0) or 1)
    return np.atleast_1d(off.any(axis=-1) if off.ndim > 1 else off)


def _in_float32(trial: Trial) -> bool:
    wanted = trial.expected()
    return not compare(trial.got, wanted, {leaf: Tolerance(1e-5) for leaf in wanted}).verdict.fails


TF32, BF16, IN_FLOAT32 = 2**-11, 2**-8, 2**-21  # roundings
WAYS: dict[str, list[tuple[str, str, float, Callable[[Trial], bool]]]] = {
    "float64": [("float64 is computed in float32", "", IN_FLOAT32, _in_float32)],
    "float32": [
        ("float32 is as coarse as products at tf32 or in float16", "--precision tf32", TF32, _is_coarse("tf32", TF32)),
        ("float32 is as coarse as products at bf16", "--precision bf16", BF16, _is_coarse("bf16", BF16)),
    ],
}


def _factors(faults: Faults) -> None:
    """Leaves that are a factor times what is right: one by the sizes, where it fits most of the cases, or a number."""
    trials = faults.of_numbers()
    left = {name: factor for name, trial in trials.items() if (factor := _factor(trial))}
    while left:
        leaves = next(iter(left.values())).keys()
        mine = {name for name, factor in left.items() if factor.keys() == leaves}
        fits = {x: {n for n in mine if _fits(left[n], _value(x, trials[n]), trials[n])} for x in SYMBOLS}
        likely = [x for x in sorted(SYMBOLS, key=lambda x: -len(fits[x])) if 2 * len(fits[x]) > len(mine)]
        others = [(_factor(x), x) for x in varied(trials[name] for name in mine)]  # of the plainest
        symbol = next((s for s in likely if all(_fits(factor, _value(s, x), x) for factor, x in others)), "")
        names = fits.get(symbol, mine)
        if not symbol:
            every = [*((left[name], trials[name]) for name in mine), *others]
            values = sorted(value for factor, _ in every for value in factor.values())
            middle = values[len(values) // 2]
            one = all(_fits(factor, middle, trial) for factor, trial in every)
            symbol = f"{middle:.4g}" if one else f"{values[0]:.4g} to {values[-1]:.4g}"
        words = f"{', '.join(leaves)}: {symbol} times what is right{MEANS.get(symbol, '')}"
        words = WITHOUT_SCALE.get(next(iter(leaves)), words) if (len(leaves), symbol) == (1, "1/scale") else words
        faults.take(words, names, tried=len(names) * (symbol in MEANS))
        left = {name: factor for name, factor in left.items() if name not in names}


def _value(symbol: str, trial: Trial) -> float:
    """The number that a symbol stands for in a call."""
    known = SIZES | trial.case.sizes
    scale = trial.inputs.options.get("scale", known["D"] ** -0.5)
    return float(eval(python(symbol.replace(" ", "")), {**known, "log2": math.log(2), "scale": scale or math.nan}))


def _eps(trial: Trial) -> float:
    return {"bfloat16": 2e-2, "float16": 4e-3}.get(multiplied(trial), 0.0)


def _fits(factors: Mapping[str, float], value: float, trial: Trial) -> bool:
    return all(abs(factor - value) < (1e-3 + 2 * _eps(trial)) * abs(value) for factor in factors.values())


def _factor(trial: Trial) -> dict[str, float]:
    """The factor of each leaf that is not right, where all numbers of it have one."""
    off = {}
    for leaf, wanted in trial.expected().items():
        got = np.asarray(trial.got.get(leaf, np.zeros(0)), np.float64)
        if got.shape != wanted.shape or not got.size or not np.isfinite(got).all() or not np.isfinite(wanted).all():
            return {}
        size = float((wanted * wanted).sum())
        factor = float((got * wanted).sum()) / (size or 1)
        if np.abs(got - factor * wanted).max() > max(FACTORS, 2 * _eps(trial)) * np.abs(factor * wanted).max():
            return {}
        if size and factor and abs(factor - 1) > 1e-3 + 2 * _eps(trial):
            off[leaf] = factor
    return off


def is_rounded(trial: Trial) -> bool:
    """Tell whether only the bound of the law, which the profile "law" has, makes it wrong."""
    if not trial.how.strict:
        return False
    wanted = trial.expected()
    if not compare(trial.got, wanted, trial.tolerances(wanted)).verdict.fails:
        return False  # it is no number that is wrong
    numbers = Trial(trial.implementation, trial.case, trial.how._replace(profile="numbers"))
    return not compared(numbers, trial.got, wanted).verdict.fails


def gives_zeros(got: Mapping[str, np.ndarray]) -> bool:
    """Tell whether the result is nothing but zeros."""
    out = got.get("out", np.ones(0))
    return bool(out.size) and not np.any(out)


def from_a_block_on(trial: Trial) -> str:
    """Right in the first rows of a leaf, wrong from a multiple of a block on, and the same with more rows."""
    found = _first_rows(trial)
    sizes = SIZES | trial.case.sizes
    longer = {axis: 2 * sizes[axis] + ROUNDED_BLOCKS[-1] for axis in "TS"}
    other = with_case(trial, trial.case._replace(sizes=sizes | longer)) if found else None
    if other is None or _first_rows(other)[:2] != found[:2]:
        return ""
    _, first, block, last = found
    where = f"right below row {first} (a multiple of {block}), wrong from there to {last}"
    return f"{where}: blocks are joined or indexed wrongly"


def _first_rows(trial: Trial) -> tuple[Any, ...]:
    """A leaf, its first row that is wrong, the block that this is a multiple of, and the last one; or nothing."""
    for leaf in ("out", "grad query", "grad key", "grad value"):
        wanted, got = trial.expected().get(leaf), trial.got.get(leaf)
        if wanted is None or got is None or wanted.shape != np.shape(got) or wanted.shape[-2] <= ROUNDED_BLOCKS[-1]:
            continue
        allowed = loosely(trial, trial.expected())[leaf].allowed * (np.abs(wanted).max() or 1)
        off = ~(np.abs(np.asarray(got, np.float64) - wanted) <= allowed)
        rows = np.atleast_1d(off.any(axis=tuple(k for k in range(off.ndim) if k != off.ndim - 2)))
        if not rows.any() or rows.all():
            continue
        first, last = int(np.argmax(rows)), len(rows) - 1 - int(np.argmax(rows[::-1]))
        block = next((b for b in ROUNDED_BLOCKS if first % b == 0 and first), None)
        if block and first < last and rows[first : last + 1].mean() >= MOST_ROWS:  # not a row here and there
            return leaf, first, block, last
    return ()
