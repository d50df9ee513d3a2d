"""The options of ``attention``, for type checkers: the same in NumPy and JAX."""

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from attendax.masks import ArrayLike, Mask
    from attendax.scores import ScoreModifier


class Meaning(TypedDict, total=False):
    """What a call means, wherever it runs; but for ``return_lse``, on which the type of the result depends."""

    mask: "Mask | ArrayLike | None"
    bias: "ArrayLike | None"
    score_mod: "ScoreModifier | None"
    scale: float | None
    dropout_rate: float
    dropout_rng: Any


class Options(Meaning, total=False):
    """And how it is computed."""

    implementation: str | None
