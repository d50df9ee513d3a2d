"""Reasons that are no conventions: how blocks are filled, where exp overflows, packs."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..adapters.implementation import PACKED
from ..cases.case import Inputs, Leaves
from ..conventions import formula
from ..conventions.table import KEY_BLOCKS
from ..judge.trial import Trial
from .hypothesis import FORWARD, Hypothesis, lengths

LOWEST = -103.0  # below it every exponential is 0 in float32
OF_QUERIES = ("out", "lse", "grad query")  # the gradients of other keys are not those of the case


def _counted(trial: Trial, block: int) -> Leaves | None:
    """Keys and values of zeros up to a multiple of a block, which count."""
    inputs, S = trial.inputs, lengths(trial)[1]
    more = -S % block
    if not more or inputs.options.keys() - {"scale", "softcap", "return_lse"} or "bias" in inputs.arrays:
        return None
    wide = _with_keys(inputs, lambda x: np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, more), (0, 0)]))
    found = trial.expected(wide)
    return {leaf: x[..., :S, :] if leaf in ("grad key", "grad value") else x for leaf, x in found.items()}


def _not_transposed(trial: Trial) -> Leaves | None:
    """(.., T, N, V) read as (.., N, T, V), as without a transposition back."""
    leaves = trial.expected()
    if trial.case.direction not in FORWARD or leaves["out"].ndim < 3:
        return None
    out = leaves["out"]
    return leaves | {"out": out.swapaxes(-2, -3).reshape(out.shape)}


def _overflowed(trial: Trial) -> Leaves | None:
    """NaN where a row's largest exponential is infinite."""
    if trial.case.direction not in FORWARD:
        return None
    largest = formula.top(formula.Steps(trial.inputs).scores())
    limit = np.log(float(np.finfo("float16" if trial.dtype == "float16" else "float32").max))
    wanted = trial.expected()["out"]
    bad = ((largest > limit) | ((largest < LOWEST) & (largest > -np.inf))).reshape(*wanted.shape[:-1], 1)
    got = np.asarray(trial.got.get("out", np.zeros(0)), np.float64)
    if not bad.any() or got.shape != wanted.shape:
        return None
    return {"out": np.where(bad & ~np.isfinite(got), got, wanted)}


def _with_keys(inputs: Inputs, change: Callable[[np.ndarray], np.ndarray]) -> Inputs:
    return inputs._replace(arrays=inputs.arrays | {name: change(inputs.arrays[name]) for name in ("key", "value")})


# Behind each packed sequence is one of its first token alone, as ``against.options.VARLEN`` has it.


def _short(x: np.ndarray) -> np.ndarray:
    return x[..., :1, :]


def _before(inputs: Inputs) -> Inputs:
    def longer(x: np.ndarray) -> np.ndarray:
        first = np.concatenate([x[:1], 0 * x[:1, ..., :1, :]], axis=-2)
        return np.concatenate([first, np.concatenate([_short(x)[:-1, ..., -1:, :], x[1:]], axis=-2)])

    B, S = len(inputs.arrays["query"]), inputs.arrays["key"].shape[-2]
    ends = np.array([S] + [S + 1] * (B - 1), "int32")  # there is none before the first
    return _with_keys(inputs, longer)._replace(options=inputs.options | {"key_lengths": ends})


def _behind(inputs: Inputs) -> Inputs:
    return _with_keys(inputs, lambda x: np.concatenate([x, x[..., :1, :]], axis=-2))


def _at_queries(inputs: Inputs) -> Inputs:
    T = inputs.arrays["query"].shape[-2]

    def cut(x: np.ndarray) -> np.ndarray:
        packed = np.concatenate([part for row in x for part in (row, _short(row))], axis=-2)
        begins = np.arange(len(x)) * (T + min(T, 1))
        return np.stack([packed[..., begin : begin + T, :] for begin in begins])

    return _with_keys(inputs, cut)


def _of_packs(trial: Trial, change: Callable[[Inputs], Inputs]) -> Leaves | None:
    if trial.implementation.layout != PACKED:
        return None
    return {leaf: x for leaf, x in trial.expected(change(trial.inputs)).items() if leaf in OF_QUERIES}


def _hypothesis(name: str, gives: Callable[..., Leaves | None], remedy: str = "", **places: Any) -> Hypothesis:
    return Hypothesis(name, remedy, gives=functools.partial(gives, **places))


TRANSPOSED = "the result is (.., T, N, V) reshaped to (.., N, T, V), where axes have to be swapped"
COUNTED = "keys of zeros that fill the last block of {} are counted"
OVERFLOWS = "exp overflows: the row's largest score is not subtracted"
OF_PACKS = {
    "a packed sequence sees the last key of the one before it": _before,
    "a packed sequence sees the first key of the one behind it": _behind,
    "keys of packed sequences are cut at cu_seqlens_q, not at cu_seqlens_k": _at_queries,
}
HYPOTHESES = [
    _hypothesis(TRANSPOSED, _not_transposed),
    *(_hypothesis(COUNTED.format(b), _counted, "mask what lies beyond S", block=b) for b in KEY_BLOCKS[1:]),
    _hypothesis(OVERFLOWS, _overflowed, "exp(s - max(s))"),
    *(_hypothesis(name, _of_packs, change=change) for name, change in OF_PACKS.items()),
]
