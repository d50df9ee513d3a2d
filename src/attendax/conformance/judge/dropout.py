"""Judging dropout (L10): with one-hot values the result is the weights, so the kept set is seen."""

import itertools
from collections.abc import Callable

import numpy as np

from ..cases.case import Inputs
from ..conventions import right
from . import dense
from .comparing import Tolerance, compare, judge_leaf, largest, unchanged
from .tolerances import EASY
from .trial import Trial
from .verdicts import WITHOUT, ZEROS, Finding, Verdict

SIGMAS = 6  # of what chance gives, for dropout: once in 5e8
GRADIENT_TOLERANCE = 2e-6
# The plain formula in bfloat16 is off by 1e-3.
WEIGHT_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-3}


def dropped(trial: Trial) -> Finding:
    """Answer ``extra["question"]`` about dropout (L10); the values are one-hot, so the result is the weights."""
    question = trial.inputs.extra["question"]
    rate = trial.inputs.options["dropout_rate"]
    plain = {k: x for k, x in trial.inputs.options.items() if not k.startswith("dropout")}
    weights = right.forward(trial.meant(trial.inputs._replace(options=plain)))["out"]
    got = np.asarray(trial.run(direction="forward")["out"], np.float64)
    if (bad := np.isnan(got)).any():
        return Finding(Verdict.NAN, f"out is NaN at {int(bad.sum())} of {bad.size}", "out")
    kept = got > weights / 2
    off, allowed = np.abs(got - np.where(kept, weights / (1 - rate), 0)).max(), WEIGHT_TOLERANCE[trial.dtype]
    if (kept.all() and off <= allowed) or np.abs(got - weights).max() <= allowed:
        return Finding(Verdict.SILENT, "the result is as if dropout_rate were not given", "out")
    if off > allowed:
        said = f"{_kept_wrongly(got, weights, kept, allowed)}: off by {off:.2g}"
        found = [Finding(Verdict.WRONG, said, "out", error=off)]
    else:
        found = [DROPOUT[one](trial, kept, rate) for one in question.split(", ")]  # all: folders are written for each
        if not np.any(got):
            return Finding(Verdict.WRONG, ZEROS, "out")
    finding = next((one for one in found if one.verdict.fails), found[0])
    if finding.verdict.fails and not trial.implementation.recorded:
        alone = np.asarray(trial.run(trial.inputs._replace(options=plain), "forward")["out"], np.float64)
        if not np.abs(alone - weights).max() <= allowed:
            return Finding(Verdict.WRONG, WITHOUT, "out", error=off)
    return finding


def _kept_wrongly(got: np.ndarray, weights: np.ndarray, kept: np.ndarray, allowed: float) -> str:
    """Words for the numbers where something is kept."""
    if not kept.any() or np.abs(got[~kept]).max(initial=0.0) > allowed:
        return "a weight is neither 0 nor p / (1 - rate)"
    if not weights[kept].all():
        return "what no query looks at is kept"
    factor = float(np.median(got[kept] / weights[kept]))
    if np.abs(got[kept] - factor * weights[kept]).max() > allowed:
        return "a weight is neither 0 nor p / (1 - rate)"
    if abs(factor - 1) < 0.02:
        return "what dropout keeps is not divided by 1 - rate"
    return f"what dropout keeps is {factor:.3g} times its weight, not 1 / (1 - rate)"


def dropped_none(trial: Trial) -> Finding:
    """Rate 0 changes no bit."""
    plain = {k: x for k, x in trial.inputs.options.items() if not k.startswith("dropout")}
    return unchanged(trial.run(trial.inputs._replace(options=plain)), trial.run(), {})


def dropped_all(trial: Trial) -> Finding:
    """Rate 1 gives zeros."""
    wanted = {leaf: np.zeros_like(x) for leaf, x in trial.expected().items()}
    return compare(trial.run(), wanted, dict.fromkeys(wanted, Tolerance(0.0)))


def _away(kept: np.ndarray, chance: float) -> float:
    """The distance of a share from what chance gives, in standard deviations."""
    return float(abs(kept.mean() - chance) / np.sqrt(chance * (1 - chance) / kept.size))


def _share(trial: Trial, kept: np.ndarray, rate: float) -> Finding:
    away = _away(kept, 1 - rate)
    words = f"keeps {kept.mean():.3f} of the weights, expected {1 - rate:.3f}: {away:.1f} standard deviations"
    return Finding(Verdict.OK if away <= SIGMAS else Verdict.WRONG, words, "out", error=away, allowed=SIGMAS)


def _repeated(words: str, alike: np.ndarray, rate: float) -> Finding | None:
    """A fault where sets are alike more, or less, often than chance has it."""
    same = rate**2 + (1 - rate) ** 2
    if not alike.size or (away := _away(alike, same)) <= SIGMAS:
        return None
    how = "keep the same set" if alike.mean() > (1 + same) / 2 else "keep sets that are not independent"
    return Finding(Verdict.WRONG, f"{words} {how}: {away:.0f} standard deviations", "out")


def _independent(trial: Trial, kept: np.ndarray, rate: float) -> Finding:
    """No two heads of any batches, and no two queries, keep the same sets."""
    heads = itertools.combinations(np.ndindex(kept.shape[:2]), 2)
    pairs = {f"head {n} of batch {b} and head {m} of batch {c}": kept[b, n] == kept[c, m] for (b, n), (c, m) in heads}
    pairs |= {f"query 0 and {t}": kept[:, :, 0] == kept[:, :, t] for t in range(1, kept.shape[2])}
    pairs |= {  # of an index that counts a row as T, or one, apart
        f"a query and the one before it, {step} keys further,": kept[..., 1:, :-step] == kept[..., :-1, step:]
        for step in {1, kept.shape[-2]} - {kept.shape[-1]}
    }
    found = (_repeated(words, alike, rate) for words, alike in pairs.items())
    return next(filter(None, found), _of_one_number(kept, rate))


def _of_one_number(kept: np.ndarray, rate: float) -> Finding:
    """A fault where rows, or columns, keep numbers of weights that differ less than chance has it."""
    for axis, words in ((-1, "queries keep nearly as many keys each"), (-2, "keys are kept nearly as often each")):
        numbers, size = kept.sum(axis), kept.shape[axis]
        variance = np.square(numbers - size * (1 - rate)).mean() / (size * rate * (1 - rate))
        if (away := (1 - variance) * np.sqrt(numbers.size / 2)) > SIGMAS:
            return Finding(Verdict.WRONG, f"{words}: {away:.0f} standard deviations", "out")
    return Finding(Verdict.OK)


def _independent_in_blocks(trial: Trial, kept: np.ndarray, rate: float) -> Finding:
    """No block of queries or keys, of any power of two, keeps the set of the one before it."""
    for axis, words in ((-2, "queries"), (-1, "keys")):
        for step in (2**k for k in range(3, 13) if 2**k < kept.shape[axis]):
            before, after = np.split(kept, [kept.shape[axis] - step], axis)[0], np.split(kept, [step], axis)[1]
            if found := _repeated(f"{words} {step} apart", before == after, rate):
                return found
    return Finding(Verdict.OK)


def _position_only(trial: Trial, kept: np.ndarray, rate: float) -> Finding:
    """Other numbers, same random key: the same set."""
    again = np.asarray(trial.run(direction="forward")["out"]) > 0  # NaN is not: it would be another set
    if (again != kept).any():
        return Finding(Verdict.WRONG, "the same random key gives another set", "out")
    arrays = trial.inputs.arrays
    other = arrays | {"query": arrays["query"][::-1] / 2}
    moved = np.asarray(trial.run(trial.inputs._replace(arrays=other), "forward")["out"]) > 0
    if (moved != kept).any():
        return Finding(Verdict.WRONG, "the kept set depends on the numbers", "out")
    return _of_weights(trial, kept / (1 - rate))


def _of_weights(trial: Trial, factors: np.ndarray) -> Finding:
    """Values that are all 1, same random key: the sums of the weights that are kept, in all columns of a result."""
    ones = trial.inputs._replace(arrays=trial.inputs.arrays | {"value": np.ones_like(trial.inputs.arrays["value"])})
    got = np.asarray(trial.run(ones, "forward")["out"], np.float64)
    off = np.abs(got - dense.forward(_wide(trial.meant(ones)), kept=factors)["out"]).max()
    allowed = 4 * WEIGHT_TOLERANCE[trial.dtype]
    if off <= allowed:
        return Finding(Verdict.OK)
    columns = np.ptp(got, axis=-1).max() > allowed
    words = "entries of the result are dropped, not weights" if columns else "the kept set depends on the values"
    return Finding(Verdict.WRONG, words, "out", error=off, allowed=allowed)


def _other_key(trial: Trial, kept: np.ndarray, rate: float) -> Finding:
    seed = 2**16 + int(trial.inputs.options["dropout_rng"])  # is the same to who keeps 16 bits of it
    options = trial.inputs.options | {"dropout_rng": seed}
    other = np.asarray(trial.run(trial.inputs._replace(options=options), "forward")["out"]) > 0
    return Finding(Verdict.SILENT, "dropout_rng is ignored", "out") if (other == kept).all() else Finding(Verdict.OK)


def _wide(inputs: Inputs) -> Inputs:
    return inputs._replace(arrays={k: x.astype(np.float64) for k, x in inputs.arrays.items()})


def _gradient_of_kept(trial: Trial, kept: np.ndarray, rate: float) -> Finding:
    """The gradient goes through the very set that the forward kept."""
    inputs = trial.meant()
    wanted = dense.gradient(_wide(inputs), kept / (1 - rate))
    plain = dense.gradient(inputs, (kept / (1 - rate)).astype(np.float32))
    tree = max(map(largest, wanted.values()))
    off = {leaf: judge_leaf(leaf, plain[leaf], x, Tolerance(np.inf), tree).error or 0.0 for leaf, x in wanted.items()}
    # A sum of n rounded products is off by eps √n; the plain formula on this machine may add in a luckier order.
    least = max(GRADIENT_TOLERANCE, float(np.finfo(np.float32).eps) * np.sqrt(max(kept.shape[-2:])))
    allowed = {leaf: Tolerance(max(EASY * x, least), x) for leaf, x in off.items()}
    return compare(trial.run(direction="gradient"), wanted, allowed)


DROPOUT: dict[str, Callable[..., Finding]] = {
    "share": _share, "independent": _independent, "independent in blocks": _independent_in_blocks,
    "position only": _position_only, "other key": _other_key, "gradient": _gradient_of_kept,
}  # fmt: skip
