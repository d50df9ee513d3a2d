"""The options of ``attention``, for type checkers: the same in NumPy and JAX."""

from typing import Any, TypedDict


class Options(TypedDict, total=False):
    """All but ``return_lse``, on which the type of the result depends."""

    mask: Any
    bias: Any
    score_mod: Any
    scale: float | None
    dropout_rate: float
    dropout_rng: Any
    implementation: str | None
