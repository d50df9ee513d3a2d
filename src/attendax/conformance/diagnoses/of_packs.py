"""Reasons that packed sequences have: keys of a neighbour, and ends that are those of the queries."""

import functools
from collections.abc import Callable

import numpy as np

from ..adapters.packed import PACKED
from ..cases.case import Inputs, Leaves
from ..judge.trial import Trial
from .hypothesis import Hypothesis, lengths, with_

OF_QUERIES = ("out", "lse", "grad query")  # the gradients of other keys are not those of the case


def _with_keys(inputs: Inputs, change: Callable[[np.ndarray], np.ndarray]) -> Inputs:
    return with_(inputs, **{name: change(inputs.arrays[name]) for name in ("key", "value")})


def _short(x: np.ndarray) -> np.ndarray:
    """What is packed behind each sequence of keys, as ``packed.in_packs`` has it."""
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


HYPOTHESES = [
    Hypothesis(name, gives=functools.partial(_gives, change=change))
    for name, change in (
        ("a packed sequence sees the last key of the one before it", _before),
        ("a packed sequence sees the first key of the one behind it", _behind),
        ("keys of packed sequences are cut at cu_seqlens_q, not at cu_seqlens_k", _at_queries),
    )
]
