"""Reasons that are other formulas: a cap in the wrong place, a softmax over queries, a gradient without a term."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..cases.case import Inputs, Leaves
from ..judge import right
from ..judge.trial import Trial
from . import by_hand
from .by_hand import Steps, lse_of, steps, weights
from .hypothesis import FORWARD, GRADIENT, KEY_BLOCKS, Hypothesis, heads_of

FILLS = (1, 10)  # what is written by those who think it low enough
FINITE = "a finite number: they keep a weight where others are lower"
LOWEST = 100  # scores of normal numbers cannot tell it from a lower one


def of_scores(name: str, scored: by_hand.Scored, remedy: str = "") -> Hypothesis:
    """A reason that is other scores, of the inputs and the steps of a call."""

    def gives(trial: Trial, saved: Inputs | None = None) -> Leaves | None:
        scores, direction = scored(trial.inputs, steps(trial.inputs)), trial.case.direction.partition(",")[0]
        if scores is None or (direction not in FORWARD and direction not in GRADIENT):
            return None
        if direction in FORWARD:
            return by_hand.forward(trial.inputs, scores)
        return by_hand.backward(trial.inputs, scores, saved)

    return Hypothesis(name, gives, remedy, saved=lambda trial: gives(trial, trial.inputs))


def of_forward(name: str, found: Callable[[Steps], np.ndarray | None]) -> Hypothesis:
    """A reason that is another result."""

    def gives(trial: Trial) -> Leaves | None:
        out = found(steps(trial.inputs)) if trial.case.direction in FORWARD else None
        return None if out is None else {"out": out}

    return Hypothesis(name, gives)


def of_backward(name: str, where: Callable[[Inputs], Any] = lambda inputs: True, **places: Any) -> Hypothesis:
    """A reason that is a mistake in one of the places of the backward, for inputs ``where`` it makes a difference."""

    def gives(trial: Trial) -> Leaves | None:
        inputs = trial.inputs
        asked = trial.case.direction.partition(",")[0] in GRADIENT and "constants" not in inputs.extra
        return by_hand.backward(inputs, **places) if asked and where(inputs) else None

    return Hypothesis(name, gives)


def _capped(how: Callable[[Steps], np.ndarray]) -> by_hand.Scored:
    return lambda inputs, s: None if s.cap is None else np.where(s.seen, how(s), -np.inf)


def _keras(s: Steps) -> np.ndarray:
    products = s.products * s.scale
    return products / (1 + np.abs(products) / (s.cap or 1)) + s.bias


def masked(name: str, how: Callable[[Steps], np.ndarray | None]) -> Hypothesis:
    """A reason that is other scores where something is masked, all of which count."""
    return of_scores(name, lambda inputs, s: None if s.seen.all() else how(s), "-inf where masked, before the softmax")


def _set_to(low: int) -> Callable[[Steps], np.ndarray]:
    return lambda s: np.where(s.seen, s.plain, -low)


def _lowered_by(low: int) -> Callable[[Steps], np.ndarray]:
    return lambda s: s.plain - low * ~s.seen


def _over_queries(s: Steps) -> np.ndarray:
    return weights(s.scores, lse_of(s.scores, axis=-2)) @ s.v


def _without_denominator(s: Steps) -> np.ndarray:
    return np.exp(s.scores - np.max(s.scores, axis=-1, keepdims=True, initial=-1e300)) @ s.v


def _masked_after_softmax(s: Steps) -> np.ndarray | None:
    return None if s.seen.all() else np.where(s.seen, weights(s.plain, lse_of(s.plain)), 0) @ s.v


def _bias_after_softmax(s: Steps) -> np.ndarray | None:
    if not s.bias.ndim:
        return None
    scores = s._replace(bias=np.zeros(())).scores
    return (weights(scores, lse_of(scores)) + np.broadcast_to(s.bias, s.seen.shape)) @ s.v


def _not_rescaled(s: Steps, block: int, what: str) -> np.ndarray | None:
    """Keys in blocks, the softmax online: the output, the sum, or both stay as they were when the maximum rises."""
    scores = s.scores
    S = scores.shape[-1]
    if block >= S:
        return None
    largest = np.full((*scores.shape[:-1], 1), -1e300)
    then = np.empty_like(scores)  # the maximum when a key came
    for start in range(0, S, block):
        part = slice(start, start + block)
        largest = np.maximum(largest, scores[..., part].max(axis=-1, keepdims=True))
        then[..., part] = largest
    stale, now = np.exp(scores - then), np.exp(scores - largest)
    total = (now if what == "output" else stale).sum(axis=-1, keepdims=True)
    powers = now if what == "sum" else stale
    return powers / np.where(total == 0, 1, total) @ s.v


def _lse_of_the_sum(trial: Trial) -> Leaves | None:
    leaves = trial.expected()
    if "lse" not in leaves:
        return None
    largest = steps(trial.inputs).scores.max(axis=-1, initial=-np.inf)
    return leaves | {"lse": leaves["lse"] - np.where(np.isfinite(largest), largest, 0)}


def _empty_rows(trial: Trial, what: str) -> Leaves | None:
    rows, leaves = right.empty_rows(trial.inputs), trial.expected()
    if not rows.any():
        return None
    if what == "nan":
        return {leaf: np.where(rows[..., None], np.nan, x) for leaf, x in leaves.items() if leaf == "out"}
    return {k: x for k, x in right.with_mean_of_values(trial.inputs, leaves).items() if not k.endswith("lse")}


def _overflowed(trial: Trial) -> Leaves | None:
    """NaN where a row's largest exponential is infinite."""
    if trial.case.direction not in FORWARD:
        return None
    largest = steps(trial.inputs).scores.max(axis=-1, keepdims=True)
    limit = np.log(float(np.finfo("float16" if trial.dtype == "float16" else "float32").max))
    lowest = -103.0  # below it every exponential is 0 in float32
    bad = (largest > limit) | (largest < lowest)
    got = np.asarray(trial.got.get("out", np.zeros(0)), np.float64)
    if not bad.any() or got.shape != np.broadcast_shapes(bad.shape, got.shape):
        return None
    wanted = trial.expected()["out"]
    return {"out": np.where(bad & ~np.isfinite(got), got, wanted)}


def _swapped(trial: Trial) -> Leaves | None:
    found = trial.expected()
    if {"grad key", "grad value"} <= found.keys() and found["grad key"].shape == found["grad value"].shape:
        return found | {"grad key": found["grad value"], "grad value": found["grad key"]}
    return None


def _in_blocks(block: int) -> Callable[[np.ndarray], np.ndarray]:
    """The sums of each block of keys, for each of its keys."""

    def sums(x: np.ndarray) -> np.ndarray:
        each = np.add.reduceat(x, np.arange(0, x.shape[-1], block), axis=-1)
        return np.repeat(each, block, axis=-1)[..., : x.shape[-1]]

    return sums


def _has_groups(inputs: Inputs) -> bool:
    N, G = heads_of(inputs)
    return N != G


HYPOTHESES = [
    of_scores("softcap caps after the bias is added", _capped(lambda s: s.capped(s.products * s.scale + s.bias))),
    of_scores("softcap caps before the scale", _capped(lambda s: s.capped(s.products) * s.scale + s.bias)),
    of_scores(
        "softcap is tanh(s / cap) without · cap",
        _capped(lambda s: np.tanh(s.products * s.scale / (s.cap or 1)) + s.bias),
    ),
    of_scores("softcap is s / (1 + |s| / cap), not cap · tanh(s / cap)", _capped(_keras)),
    of_forward("softmax runs over the queries", _over_queries),
    of_forward("the softmax is not divided by its sum", _without_denominator),
    of_forward("the mask is applied after the softmax", _masked_after_softmax),
    of_forward("the bias is added after the softmax", _bias_after_softmax),
    Hypothesis("lse is of the sum alone: the row's largest score is not added", _lse_of_the_sum),
    *(
        of_forward(
            f"blocks of keys are joined, but the {what} is not multiplied by exp(old maximum - new maximum)",
            functools.partial(_not_rescaled, block=block, what=what),
        )
        for what in ("output", "sum", "output and sum")
        for block in KEY_BLOCKS
    ),
    Hypothesis(
        "a query without any key gets the mean of the values",
        functools.partial(_empty_rows, what="mean"),
        "--empty-rows mean",
    ),
    Hypothesis("a query without any key gets NaN", functools.partial(_empty_rows, what="nan"), "--empty-rows nan"),
    masked("masked scores are 0 instead of minus infinity", _set_to(0)),
    masked("the mask is added to the scores as 0 and 1", lambda s: s.plain + s.seen),
    masked(
        "softcap caps after the mask: what is masked keeps a weight",
        lambda s: None if s.cap is None else np.where(s.seen, s.plain, -s.cap),
    ),
    *(masked(f"masked scores are {-low} only: they keep a weight", _set_to(low)) for low in FILLS),
    masked(f"masked scores are {FINITE}", _set_to(LOWEST)),
    *(masked(f"masked scores are lowered by {low} only: they keep a weight", _lowered_by(low)) for low in FILLS),
    masked(f"masked scores are lowered by {FINITE}", _lowered_by(LOWEST)),
    Hypothesis("exp overflows: the row's largest score is not subtracted", _overflowed, "exp(s - max(s))"),
    of_backward("dS = P · dP: the row sum of P · dP is not subtracted", row=np.zeros_like),
    *(
        of_backward(
            "delta is summed over a block of keys, not over all",
            lambda inputs, block=block: block < inputs.arrays["key"].shape[-2],  # type: ignore[misc]
            row=_in_blocks(block),
        )
        for block in KEY_BLOCKS
    ),
    of_backward("gradients of queries and keys are not multiplied by the scale", power=0),
    of_backward("gradients of queries and keys are multiplied by the scale twice", power=2),
    of_backward("the derivative of the softcap is left out", lambda x: x.options.get("softcap"), cap=False),
    of_backward("the cotangent of lse has the wrong sign", lambda x: "lse_cotangent" in x.extra, through_lse=-1.0),
    *(
        of_backward(f"gradients of keys and values are of the {which} head of a group only", _has_groups, group=of)
        for which, of in (("first", lambda x: x[..., 0, :, :]), ("last", lambda x: x[..., -1, :, :]))
    ),
    of_backward(
        "the gradient of the bias is of the first batch only",
        lambda x: x.arrays["bias"].ndim == 4 and len(x.arrays["bias"]) == 1 < len(x.arrays["query"]),
        of_bias=lambda ds: ds[:1],
    ),
    Hypothesis("gradients of keys and of values are swapped", _swapped),
]
