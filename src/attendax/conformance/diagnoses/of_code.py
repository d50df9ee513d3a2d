"""Reasons that are no conventions: how blocks are joined and filled, where exp overflows, packs."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..adapters.layout import PACKED
from ..cases.case import Inputs, Leaves
from ..conventions import formula
from ..conventions.table import KEY_BLOCKS
from ..judge.trial import Trial
from .hypothesis import FORWARD, Hypothesis, lengths, with_


def _not_rescaled(trial: Trial, block: int, what: str) -> Leaves | None:
    """Keys in blocks, the softmax online: the output, the sum, or both stay as they were when the maximum rises."""
    if trial.case.direction not in FORWARD or block >= lengths(trial.inputs)[1]:
        return None
    steps = formula.Steps(trial.inputs)
    scores = steps.scores()
    largest = np.full((*scores.shape[:-1], 1), -1e300)
    then = np.empty_like(scores)  # the maximum when a key came
    for start in range(0, scores.shape[-1], block):
        part = slice(start, start + block)
        largest = np.maximum(largest, scores[..., part].max(axis=-1, keepdims=True))
        then[..., part] = largest
    stale, now = np.exp(scores - then), np.exp(scores - largest)
    total = (now if what == "output" else stale).sum(axis=-1, keepdims=True)
    powers = now if what == "sum" else stale
    out = powers / np.where(total == 0, 1, total) @ steps.v
    return {"out": out.reshape(*steps.lead, *out.shape[-2:])}


def _padded(inputs: Inputs, block: int) -> Inputs | None:
    """Keys and values of zeros up to a multiple of a block, which count."""
    more = -lengths(inputs)[1] % block
    if not more or inputs.options.keys() - {"scale", "softcap", "return_lse"} or "bias" in inputs.arrays:
        return None
    wide = {k: np.pad(inputs.arrays[k], [(0, 0)] * (inputs.arrays[k].ndim - 2) + [(0, more), (0, 0)])
            for k in ("key", "value")}  # fmt: skip
    return with_(inputs, **wide)


def _counted(trial: Trial, block: int) -> Leaves | None:
    inputs, S = _padded(trial.inputs, block), lengths(trial.inputs)[1]
    found = {} if inputs is None else trial.expected(inputs)
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
    lowest = -103.0  # below it every exponential is 0 in float32
    wanted = trial.expected()["out"]
    bad = ((largest > limit) | ((largest < lowest) & (largest > -np.inf))).reshape(*wanted.shape[:-1], 1)
    got = np.asarray(trial.got.get("out", np.zeros(0)), np.float64)
    if not bad.any() or got.shape != wanted.shape:
        return None
    return {"out": np.where(bad & ~np.isfinite(got), got, wanted)}


OF_QUERIES = ("out", "lse", "grad query")  # the gradients of other keys are not those of the case


def _with_keys(inputs: Inputs, change: Callable[[np.ndarray], np.ndarray]) -> Inputs:
    return with_(inputs, **{name: change(inputs.arrays[name]) for name in ("key", "value")})


def _short(x: np.ndarray) -> np.ndarray:
    """Arrays packed behind each sequence of keys, as ``packed.in_packs`` has it."""
    return x[..., : min(x.shape[-2], 2), :]


def _before(inputs: Inputs) -> Inputs:
    def longer(x: np.ndarray) -> np.ndarray:
        first = np.concatenate([x[:1], 0 * x[:1, ..., :1, :]], axis=-2)
        return np.concatenate([first, np.concatenate([_short(x)[:-1, ..., -1:, :], x[1:]], axis=-2)])

    B, S = inputs.arrays["query"].shape[0], lengths(inputs)[1]
    ends = np.array([S] + [S + 1] * (B - 1), "int32")  # there is none before the first
    return with_(_with_keys(inputs, longer), key_lengths=ends)


def _behind(inputs: Inputs) -> Inputs:
    return _with_keys(inputs, lambda x: np.concatenate([x, x[..., :1, :]], axis=-2))


def _at_queries(inputs: Inputs) -> Inputs:
    T = lengths(inputs)[0]

    def cut(x: np.ndarray) -> np.ndarray:
        packed = np.concatenate([part for row in x for part in (row, _short(row))], axis=-2)
        begins = np.arange(len(x)) * (T + min(T, 1))
        return np.stack([packed[..., begin : begin + T, :] for begin in begins])

    return _with_keys(inputs, cut)


def _gives(trial: Trial, change: Callable[[Inputs], Inputs]) -> Leaves | None:
    if trial.implementation.layout != PACKED:
        return None
    leaves = trial.expected(change(trial.inputs))
    return {leaf: x for leaf, x in leaves.items() if leaf in OF_QUERIES}


OF_PACKS = [
    Hypothesis(name, gives=functools.partial(_gives, change=change))
    for name, change in (
        ("a packed sequence sees the last key of the one before it", _before),
        ("a packed sequence sees the first key of the one behind it", _behind),
        ("keys of packed sequences are cut at cu_seqlens_q, not at cu_seqlens_k", _at_queries),
    )
]


def _hypothesis(name: str, gives: Any, remedy: str = "", **places: Any) -> Hypothesis:
    return Hypothesis(name, remedy, gives=functools.partial(gives, **places))


HYPOTHESES = [
    _hypothesis("the result is (.., T, N, V) reshaped to (.., N, T, V), where axes have to be swapped",
        _not_transposed),
    *(
        _hypothesis(
            f"keys of zeros that fill the last block of {block} are counted", _counted, "mask what lies beyond S",
            block=block,
        )
        for block in KEY_BLOCKS[1:]
    ),
    *(
        _hypothesis(
            f"blocks of keys are joined, but the {what} is not multiplied by exp(old maximum - new maximum)",
            _not_rescaled, block=block, what=what,
        )
        for what in ("output", "sum", "output and sum")
        for block in KEY_BLOCKS
    ),
    _hypothesis("exp overflows: the row's largest score is not subtracted", _overflowed, "exp(s - max(s))"),
    *OF_PACKS,
]  # fmt: skip
