"""Patience with a case that nobody gave a limit, by the time that others took: one that hangs is a fault."""

import math

from ..cases import Case
from ..cases.case import SIZES

ENOUGH = 2  # cases of the same direction that are as large, and were answered
TIMES, STARTS = 20, 3  # times as long as any call took, and as the start of the process, which compiles the first call
FIRST, LEAST = 5.0, 1.0  # seconds, at least, before the first of these faults, and before those after it
SAID = ", where larger cases are answered in a twentieth of that"


class Patience:
    """Answers so far, and how often nothing came."""

    def __init__(self) -> None:
        self.late = 0  # so many cases had no answer
        self._answered: list[tuple[int, str]] = []

    def of(self, case: Case, slowest: float, start: float, most: float) -> float:
        """Seconds after which a case has hung; inf where too little is known to say so within the ``most``."""
        larger = [direction for size, direction in self._answered if size >= _size(case)]
        least = max(LEAST, TIMES * slowest, STARTS * start)
        if larger.count(case.direction) < ENOUGH or least > most:
            return math.inf
        return float(max(LEAST, math.floor(min(most, max(least, FIRST / 2**self.late)))))

    def answered(self, case: Case) -> None:
        """A case was answered."""
        self._answered.append((_size(case), case.direction))


def _size(case: Case) -> int:
    sizes = SIZES | case.sizes
    return case.pairs * (sizes["D"] + sizes["V"])
