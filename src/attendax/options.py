"""The options of ``attention``, for type checkers: the same in NumPy and JAX."""

from typing import Any, TypedDict


class Meaning(TypedDict, total=False):
    """What a call means, wherever it runs; but for ``return_lse``, on which the type of the result depends."""

    mask: Any
    bias: Any
    score_mod: Any
    scale: float | None
    dropout_rate: float
    dropout_rng: Any


class Options(Meaning, total=False):
    """And how it is computed."""

    implementation: str | None
