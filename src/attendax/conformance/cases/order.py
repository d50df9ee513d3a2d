"""In which order cases are asked: first what finds the most for its seconds."""

import math
from collections.abc import Sequence

from .case import FORWARD, GRADIENT, Case

DEAR = 2**18  # pairs of queries and keys, from which on the sizes of the ladder find more for the same seconds
FIRST = ("plain", "gradient: plain")


def by_finds(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """The cheap cases and the dear ones, each in the order in which they are asked.

    A result is cheaper than a gradient, and this than what is asked beyond them.
    """
    ordered = sorted(cases, key=_rank)
    return [case for case in ordered if case.pairs < DEAR], [case for case in ordered if case.pairs >= DEAR]


def _rank(case: Case) -> tuple[bool, int, int]:
    ways = (FORWARD, GRADIENT)
    way = ways.index(case.level) if case.level in ways else len(ways)
    return case.name not in FIRST, way, int(math.log2(max(case.pairs, 1))) // 4
