"""Steps of a function that does not take large scores as they are: it clips them, or gives NaN.

A value of the axis "large" is a sentence without its subject.
"""

import math
import re
from typing import Any

import numpy as np

from ..conventions.formula import Steps, top

LARGE = (  # values of the axis; a function may clip scores to any bounds
    "takes them as they are",
    "gives NaN: it does not subtract a row's largest score",
    "gives NaN in rows far below others: it subtracts the largest score of other rows",
)
AS_THEY_ARE, NOTHING_SUBTRACTED, OTHER_ROWS = LARGE
FREE = -math.inf, math.inf  # bounds of a function that clips nothing
HIGHEST, LOWEST = 88.7, -103.9  # scores beyond which the exponential is inf or 0 in float32
CLIPS = re.compile(r"clips them to \[(.*), (.*)\]")


def clips(low: float, high: float) -> str:
    """The value of a function that clips scores."""
    return f"clips them to [{low:.4g}, {high:.4g}]"


def bounds(value: str) -> tuple[float, float]:
    """The bounds of a value; infinite if it clips nothing."""
    found = CLIPS.fullmatch(value)
    return (float(found[1]), float(found[2])) if found else FREE


class Scores(Steps):
    """The steps of a call by the value of the axis."""

    def __init__(self, *given: Any, large: str) -> None:
        self.large = large
        super().__init__(*given)

    def scaled(self, s: np.ndarray) -> np.ndarray:
        """The products times the scale, clipped."""
        return super().scaled(s).clip(*bounds(self.large))

    def spoiled(self) -> np.ndarray:
        """The rows (..., T, 1) that are NaN."""
        if self.large not in LARGE[1:]:
            return np.zeros((), bool)
        largest = top(self.scores())
        if self.large == OTHER_ROWS:
            return largest - largest.max() < LOWEST
        return (largest > HIGHEST) | ((largest < LOWEST) & (largest > -np.inf))
