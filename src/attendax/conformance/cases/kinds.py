"""Kinds of a case that a verdict counts by: results, gradients, masks, bfloat16, ..."""

from collections.abc import Iterable, Sequence
from typing import Any

from attendax.legible import did_you_mean

from .case import SIZES, Case
from .invariance import CLAIM

RESULTS, GRADIENTS = "results", "gradients"
OF_OPTIONS = {  # what a keyword is counted as
    "dropout_rate": "dropout", "return_lse": "lse", "offset": "caches", "sinks": "sinks",
    "query_segment_ids": "segments", "key_lengths": "lengths", "window": "windows", "mask": "masks", "bias": "biases",
    "softcap": "softcaps", "is_causal": "causal", "scale": "scales",
}  # fmt: skip
OF_LAWS = {"L5": "empty rows", "L6": "leaks", "L7": "extremes"}
DIRECTIONS = {"jvp": "tangents", "second": "second derivatives", "vmap": "vmap", "per example gradient": "vmap"}
DTYPES = ("float32", "float64", "bfloat16", "float16")
GROUPED = "grouped heads"
BY_DIRECTION = tuple(dict.fromkeys((RESULTS, GRADIENTS, *DIRECTIONS.values())))  # each case is of one
CLAIMS = (CLAIM,)
KINDS = (*BY_DIRECTION, *OF_OPTIONS.values(), *OF_LAWS.values(), GROUPED, *DTYPES, *CLAIMS)


def directed(case: Case) -> str:
    """The part of the function that a case is about: its results, its gradients, ..."""
    name = case.direction.partition(",")[0]
    return DIRECTIONS.get(name, GRADIENTS if "gradient" in name else RESULTS)


def options_of(case: Case) -> list[str]:
    """The kinds that its keywords are, the rarest first."""
    return [kind for option, kind in OF_OPTIONS.items() if option in case.options]


def kinds_of(case: Case, dtype: str) -> set[str]:
    """Every kind that a case is of, in a run of a dtype."""
    sizes = SIZES | case.sizes
    grouped = GROUPED if sizes["N"] != sizes["G"] else ""
    found = {directed(case), *options_of(case), case.dtype or dtype, grouped, OF_LAWS.get(case.law, ""), case.claim}
    return found - {""}


def checked(name: str, given: Any, known: Sequence[str], who: str = "check") -> None:
    """Refuse a word, or words, that are not known, by ValueError."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    words, many = (given, "some") if several else ([given], "one")
    for got in words:
        if got not in known:
            near = did_you_mean(got, known)
            raise ValueError(f"{who}: {name} got {got!r}, expected {many} of {', '.join(known)}{near}")
