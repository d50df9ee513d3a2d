"""Reasons that are other formulas: a cap in the wrong place, a softmax over queries, a gradient without a term."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..cases.case import Inputs, Leaves
from ..judge import right
from ..judge.trial import Trial
from .hypothesis import KEY_BLOCKS, Hypothesis, allowed

FILLS = (1, 10, 100)  # what is written by those who think it low enough
FORWARD, GRADIENT = ("forward", "eager"), ("gradient", "gradient of a loss", "gradient under checkpoint")


def _parts(inputs: Inputs) -> dict[str, Any]:
    """The arrays in float64, key heads repeated, the scale."""
    arrays = {k: np.asarray(x, np.float64) for k, x in inputs.arrays.items()}
    q, k, v = (arrays[name] for name in ("query", "key", "value"))
    if q.ndim > 2 and k.shape[-3] != q.shape[-3]:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    given = inputs.options.get("scale")
    return dict(q=q, k=k, v=v, bias=arrays.get("bias", 0.0), scale=q.shape[-1] ** -0.5 if given is None else given)


def _scores(inputs: Inputs, order: str) -> np.ndarray:
    """With the cap where ``order`` puts it."""
    p, cap = _parts(inputs), inputs.options.get("softcap")
    products = p["q"] @ p["k"].swapaxes(-1, -2)

    def capped(x: np.ndarray) -> np.ndarray:
        return x if cap is None else cap * np.tanh(x / cap)

    if order == "cap, scale, bias":
        return capped(products) * p["scale"] + p["bias"]
    if order == "scale, bias, cap":
        return capped(products * p["scale"] + p["bias"])
    if order == "no multiplication":
        return np.tanh(products * p["scale"] / cap) + p["bias"]
    if order == "keras":
        s = products * p["scale"]
        return s / (1 + np.abs(s) / cap) + p["bias"]
    return capped(products * p["scale"]) + p["bias"]


def _average(scores: np.ndarray, seen: np.ndarray, values: np.ndarray, axis: int = -1) -> np.ndarray:
    scores = np.where(seen, scores, -np.inf)
    powers = np.exp(scores - np.max(scores, axis=axis, keepdims=True, initial=-1e300))
    total = powers.sum(axis=axis, keepdims=True)
    return powers / np.where(total == 0, 1, total) @ values


def ordered(trial: Trial, order: str) -> Leaves | None:
    """The result with the cap elsewhere."""
    if trial.case.direction not in FORWARD or trial.inputs.options.get("softcap") is None:
        return None
    return {"out": _average(_scores(trial.inputs, order), allowed(trial.inputs), _parts(trial.inputs)["v"])}


def _over_queries(trial: Trial) -> Leaves | None:
    if trial.case.direction not in FORWARD:
        return None
    return {"out": _average(_scores(trial.inputs, ""), allowed(trial.inputs), _parts(trial.inputs)["v"], axis=-2)}


def _without_denominator(trial: Trial) -> Leaves | None:
    if trial.case.direction not in FORWARD:
        return None
    scores = np.where(allowed(trial.inputs), _scores(trial.inputs, ""), -np.inf)
    powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-1e300))
    return {"out": powers @ _parts(trial.inputs)["v"]}


def _bias_after_softmax(trial: Trial) -> Leaves | None:
    if trial.case.direction not in FORWARD or "bias" not in trial.inputs.arrays:
        return None
    p, seen = _parts(trial.inputs), allowed(trial.inputs)
    plain = _scores(trial.inputs._replace(arrays={k: x for k, x in trial.inputs.arrays.items() if k != "bias"}), "")
    return {"out": _average(plain, seen, p["v"]) + np.broadcast_to(p["bias"], seen.shape) @ p["v"]}


def _lse_of_the_sum(trial: Trial) -> Leaves | None:
    leaves = trial.expected()
    if "lse" not in leaves:
        return None
    scores = np.where(allowed(trial.inputs), _scores(trial.inputs, ""), -np.inf)
    largest = scores.max(axis=-1, initial=-np.inf)
    return leaves | {"lse": leaves["lse"] - np.where(np.isfinite(largest), largest, 0)}


def _not_rescaled(trial: Trial, block: int, what: str) -> Leaves | None:
    """Keys in blocks, the softmax online: the output, the sum, or both stay as they were when the maximum rises."""
    scores = np.where(allowed(trial.inputs), _scores(trial.inputs, ""), -np.inf)
    S = scores.shape[-1]
    if trial.case.direction not in FORWARD or block >= S:
        return None
    largest = np.full((*scores.shape[:-1], 1), -1e300)
    then = np.empty_like(scores)  # the maximum when a key came
    for start in range(0, S, block):
        part = slice(start, start + block)
        largest = np.maximum(largest, scores[..., part].max(axis=-1, keepdims=True))
        then[..., part] = largest
    stale, right = np.exp(scores - then), np.exp(scores - largest)
    total = (right if what == "output" else stale).sum(axis=-1, keepdims=True)
    powers = right if what == "sum" else stale
    return {"out": powers / np.where(total == 0, 1, total) @ _parts(trial.inputs)["v"]}


def _masked_after_softmax(trial: Trial) -> Leaves | None:
    seen = allowed(trial.inputs)
    if trial.case.direction not in FORWARD or seen.all():
        return None
    scores = _scores(trial.inputs, "")
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e300))
    return {"out": np.where(seen, powers / powers.sum(axis=-1, keepdims=True), 0) @ _parts(trial.inputs)["v"]}


def _masked_scores(trial: Trial, change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Leaves | None:
    """Of the scores and of which pairs are seen, other scores, all of which count."""
    seen = allowed(trial.inputs)
    if trial.case.direction not in FORWARD or seen.all():
        return None
    scores = change(_scores(trial.inputs, ""), seen)
    return {"out": _average(scores, np.ones_like(seen), _parts(trial.inputs)["v"])}


def masked(name: str, change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Hypothesis:
    """A reason that is other scores where the mask forbids."""
    return Hypothesis(name, functools.partial(_masked_scores, change=change), "-inf where masked, before the softmax")


def _set_to(low: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda s, seen: np.where(seen, s, -low)


def _lowered_by(low: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda s, seen: s - low * ~seen


def _empty_rows(trial: Trial, what: str) -> Leaves | None:
    inputs = trial.inputs
    if not right.empty_rows(inputs).any():
        return None
    if what == "nan":
        rows = right.empty_rows(inputs)
        leaves = trial.expected()
        filled = {"out": rows[..., None], "lse": rows}
        return {leaf: np.where(filled[leaf], np.nan, x) for leaf, x in leaves.items() if leaf == "out"}
    return {k: x for k, x in right.with_mean_of_values(inputs, trial.expected()).items() if not k.endswith("lse")}


def _overflowed(trial: Trial) -> Leaves | None:
    """NaN where a row's largest exponential is infinite."""
    if trial.case.direction not in FORWARD:
        return None
    largest = np.where(allowed(trial.inputs), _scores(trial.inputs, ""), -np.inf).max(axis=-1, keepdims=True)
    limit = np.log(float(np.finfo("float16" if trial.dtype == "float16" else "float32").max))
    lowest = -103.0  # below it every exponential is 0 in float32
    bad = (largest > limit) | (largest < lowest)
    got = np.asarray(trial.got.get("out", np.zeros(0)), np.float64)
    if not bad.any() or got.shape != np.broadcast_shapes(bad.shape, got.shape):
        return None
    wanted = trial.expected()["out"]
    return {"out": np.where(bad & ~np.isfinite(got), got, wanted)}


def gradient(
    trial: Trial, *, delta: bool = True, cap: bool = True, lse: float = 1.0, group: str = "", power: int = 1
) -> Leaves | None:
    """By hand with a term left out: delta, the derivative of the cap, the cotangent of lse, or all heads of a group.

    ``power`` is that of the scale.
    """
    inputs = trial.inputs
    if trial.case.direction.partition(",")[0] not in GRADIENT or inputs.extra.get("constants"):
        return None
    p, softcap = _parts(inputs), inputs.options.get("softcap")
    seen, cotangent = allowed(inputs), np.asarray(inputs.extra["cotangent"], np.float64)
    scores = np.where(seen, _scores(inputs, ""), -np.inf)
    powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-1e300))
    total = powers.sum(axis=-1, keepdims=True)
    weights = powers / np.where(total == 0, 1, total)
    dweights = cotangent @ p["v"].swapaxes(-1, -2)
    dscores = weights * (dweights - delta * (dweights * weights).sum(-1, keepdims=True))
    if "lse_cotangent" in inputs.extra:
        dscores = dscores + lse * weights * np.asarray(inputs.extra["lse_cotangent"], np.float64)[..., None]
    dproducts = dscores * p["scale"] ** power
    if softcap is not None and cap:
        products = p["q"] @ p["k"].swapaxes(-1, -2) * p["scale"]
        dproducts = dproducts * (1 - np.tanh(products / softcap) ** 2)
    found = {"grad query": dproducts @ p["k"]}
    of_keys = {"grad key": dproducts.swapaxes(-1, -2) @ p["q"], "grad value": weights.swapaxes(-1, -2) @ cotangent}
    for leaf, x in of_keys.items():
        shape = inputs.arrays[leaf.removeprefix("grad ")].shape
        if x.shape != shape:
            grouped = x.reshape(*shape[:-2], -1, *shape[-2:])
            x = grouped[..., 0 if group == "first" else -1, :, :] if group else grouped.sum(axis=-3)
        found[leaf] = x
    return found


def _grouped(trial: Trial, which: str) -> Leaves | None:
    query, key = trial.inputs.arrays["query"], trial.inputs.arrays["key"]
    if query.ndim < 3 or query.shape[-3] == key.shape[-3]:
        return None
    return gradient(trial, group=which)


def _without_cap(trial: Trial) -> Leaves | None:
    return None if trial.inputs.options.get("softcap") is None else gradient(trial, cap=False)


def _lse_subtracted(trial: Trial) -> Leaves | None:
    return gradient(trial, lse=-1.0) if "lse_cotangent" in trial.inputs.extra else None


def _swapped(trial: Trial) -> Leaves | None:
    found = trial.expected()
    if {"grad key", "grad value"} <= found.keys() and found["grad key"].shape == found["grad value"].shape:
        return found | {"grad key": found["grad value"], "grad value": found["grad key"]}
    return None


HYPOTHESES = [
    Hypothesis("softcap caps after the bias is added", functools.partial(ordered, order="scale, bias, cap")),
    Hypothesis("softcap caps before the scale", functools.partial(ordered, order="cap, scale, bias")),
    Hypothesis("softcap is tanh(s / cap) without · cap", functools.partial(ordered, order="no multiplication")),
    Hypothesis("softcap is s / (1 + |s| / cap), not cap · tanh(s / cap)", functools.partial(ordered, order="keras")),
    Hypothesis("softmax runs over the queries", _over_queries),
    Hypothesis("the softmax is not divided by its sum", _without_denominator),
    Hypothesis("the mask is applied after the softmax", _masked_after_softmax),
    Hypothesis("the bias is added after the softmax", _bias_after_softmax),
    Hypothesis("lse is of the sum alone: the row's largest score is not added", _lse_of_the_sum),
    *(
        Hypothesis(
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
    masked("masked scores are 0 instead of minus infinity", lambda s, seen: np.where(seen, s, 0)),
    masked("the mask is added to the scores as 0 and 1", lambda s, seen: s + seen),
    *(masked(f"masked scores are {-low} only: they keep a weight", _set_to(low)) for low in FILLS),
    *(masked(f"masked scores are lowered by {low} only: they keep a weight", _lowered_by(low)) for low in FILLS),
    Hypothesis("exp overflows: the row's largest score is not subtracted", _overflowed, "exp(s - max(s))"),
    Hypothesis("dS = P · dP: the row sum of P · dP is not subtracted", functools.partial(gradient, delta=False)),
    Hypothesis("gradients of queries and keys are not multiplied by the scale", functools.partial(gradient, power=0)),
    Hypothesis("gradients of queries and keys are multiplied by the scale twice", functools.partial(gradient, power=2)),
    Hypothesis("the derivative of the softcap is left out", _without_cap),
    Hypothesis("the cotangent of lse has the wrong sign", _lse_subtracted),
    Hypothesis(
        "gradients of keys and values are of the first head of a group only", functools.partial(_grouped, which="first")
    ),
    Hypothesis(
        "gradients of keys and values are of the last head of a group only", functools.partial(_grouped, which="last")
    ),
    Hypothesis("gradients of keys and of values are swapped", _swapped),
]
