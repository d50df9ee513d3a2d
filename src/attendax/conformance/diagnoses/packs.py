"""Reasons of functions of packed sequences: whose keys a query sees that are not its own."""

import functools
from collections.abc import Callable

import numpy as np

from ..adapters.implementation import PACKED
from ..cases.case import Inputs, Leaves
from ..judge.trial import Trial
from .hypothesis import Hypothesis

OF_QUERIES = ("out", "lse", "grad query")  # the gradients of other keys are not those of the case


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


def _gives(change: Callable[[Inputs], Inputs], trial: Trial) -> Leaves | None:
    if trial.implementation.layout != PACKED:
        return None
    return {leaf: x for leaf, x in trial.expected(change(trial.inputs)).items() if leaf in OF_QUERIES}


HYPOTHESES = [
    Hypothesis(name, gives=functools.partial(_gives, change))
    for name, change in {
        "a packed sequence sees the last key of the one before it": _before,
        "a packed sequence sees the first key of the one behind it": _behind,
        "keys of packed sequences are cut at cu_seqlens_q, not at cu_seqlens_k": _at_queries,
    }.items()
]
