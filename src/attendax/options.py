"""The options of ``attention``, for type checkers: the same in NumPy and JAX."""

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from attendax.masks import ArrayLike, Mask
    from attendax.scores import ScoreModifier


class Meaning(TypedDict, total=False):
    """The options that decide the result. Without ``return_lse``, which decides the type of the result."""

    mask: "Mask | ArrayLike | None"
    bias: "ArrayLike | None"
    score_mod: "ScoreModifier | None"
    scale: "float | ArrayLike | None"
    dropout_rate: float
    dropout_rng: Any


class Options(Meaning, total=False):
    """Those options, and the one that decides how the result is computed."""

    implementation: str | None
