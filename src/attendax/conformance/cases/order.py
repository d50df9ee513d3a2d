"""The order of cases: first those that find the most for their seconds."""

import math
from collections.abc import Sequence

from .case import LEVELS, Case

DEAR = 2**18  # pairs of queries and keys, from which on the sizes of the ladder find more for the same seconds
PLAINEST = ("plain", "gradient: plain")
FIRST = (  # then what finds the most of the corpora for its seconds, beside those before it: benchmarks/kit.py --all
    *PLAINEST, "dropout: random key", "gradient: lse, grouped heads", "lse, masked", "causal with grouped heads",
    "dropout: gradient, bias", "cache: softcap, one query", "dropout: window", "a result is held",
    "gradient: value known, 40", "softcap of 60, all scores at -60", "dropout: key lengths", "dropout: wide heads",
    "in blocks: window of a neighbour, 300", "cache: window that looks ahead, one query", "gradient: lse, masked",
    "gradient: bias after a softcap", "cache: window and sinks, one query", "arrays that are views",
    "gradient: a cotangent that is a view", "in blocks: plain, 300", "one array for query, key and value",
    "gradient: bfloat16, a bias of many queries", "in blocks: mask of a prefix, 300", "logits to 100",
    "softcap of 30, logits to 60", "gradient: in blocks: window of a neighbour, 300", "dropout: many keys",
)  # fmt: skip


def by_finds(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """The cheap cases and the dear ones, each in the order in which they are asked.

    A result is cheaper than a gradient, and this than what is asked beyond them.
    """

    def rank(case: Case) -> tuple[int, int, int]:
        first = FIRST.index(case.name) if case.name in FIRST else len(FIRST)
        return first, LEVELS.index(case.level), int(math.log2(max(case.pairs, 1))) // 4

    ordered = sorted(cases, key=rank)
    return [case for case in ordered if case.pairs < DEAR], [case for case in ordered if case.pairs >= DEAR]
