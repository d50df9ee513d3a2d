"""The arguments of ``attention``, alike in NumPy and JAX: their text, and their types for type checkers."""

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

if TYPE_CHECKING:
    from attendax.masks import ArrayLike, Mask
    from attendax.scores import ScoreModifier

Function = TypeVar("Function", bound=Callable[..., Any])

ARGUMENTS = """\
query: (..., N, T, D); or (T, D) for one head, with key and value of two dimensions as well (L1).
key: (..., G, S, D), N a multiple of G: query head n reads key head n // (N // G).
value: (..., G, S, V).
mask: None; a boolean array, (T, S) or of the full rank of the scores, each axis full or 1, True = may look (L3);
    or a mask from ``attendax.masks``.
bias: None, or floating, broadcastable to the scores (..., N, T, S); -inf forbids (L5).
score_mod: None, or a modifier from ``attendax.scores``.
scale: a number, or a scalar array such as a learned temperature (default: 1/√D).
dropout_rate: from 0 to 1 (L10).
dropout_rng: a random key; required if the rate is above 0.
return_lse: also return the log-sum-exp of the scores (L9)."""

RESULTS = """\
out (..., N, T, V) in the dtype of ``query``; with ``return_lse`` also lse (..., N, T), natural logarithm,
float32 or wider. A query that may look at no key has out 0 and lse -inf (L5)."""

ERRORS = """\
TypeError: an array is not floating, dtypes differ, or the mask is not boolean.
ValueError: a rank, a size or an option is out of bounds."""


def in_full(function: Function) -> Function:
    """Decorate an ``attention``: in its docstring ``{arguments}``, ``{results}``, ``{errors}`` become these texts."""
    told = function.__doc__ or ""  # python -OO leaves none
    for name, text in {"arguments": ARGUMENTS, "results": RESULTS, "errors": ERRORS}.items():
        told = told.replace(f"{{{name}}}", textwrap.indent(text, 8 * " ").lstrip())
    function.__doc__ = told
    return function


class ResultOptions(TypedDict, total=False):
    """The options that decide the result. Without ``return_lse``, which decides the type of the result."""

    mask: "Mask | ArrayLike | None"
    bias: "ArrayLike | None"
    score_mod: "ScoreModifier | None"
    scale: "float | ArrayLike | None"
    dropout_rate: float
    dropout_rng: Any


class Options(ResultOptions, total=False):
    """These options, and the one that decides how the result is computed."""

    implementation: str | None
