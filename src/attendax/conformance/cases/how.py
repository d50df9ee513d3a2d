"""The settings of a run of the kit, as one value; and the order of its cases: first those that find the most."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from . import kinds
from .case import LAW, LEVELS, NUMBERS, PROFILES, SIZES, Case
from .kinds import DTYPES

PRECISIONS = ("highest", "tf32", "bf16")
# CPU seconds of a run, of JAX, and times so many in a profile of more cases.
RUN_SECONDS, JAX_RUN_SECONDS, MORE_CASES_FACTOR = 30.0, 60.0, 2.0
LADDER_SECONDS = 60.0  # seconds of the ladder of a thorough run
LADDER_SHARE = 0.4  # of the seconds of any other
TIMEOUT = 60.0  # seconds of a case
SEEDS = 10**9


Left = Callable[[], float]  # the seconds that are left of something; 0 or less when it is over


def forever() -> float:
    """Give the seconds that are left without a limit."""
    return math.inf


def drawn(seed: int | None = None) -> int:
    """The seed that is given, or a random one."""
    return int.from_bytes(os.urandom(8), "little") % SEEDS if seed is None else seed


class How(NamedTuple):
    """The way in which a case is judged."""

    seed: int = 0  # of the numbers
    dtype: str = "float32"  # of the cases that do not choose their own
    profile: str = LAW  # "numbers", "robust" or "law": which cases are run, and how much rounding is allowed
    sizes: Mapping[str, int] = {}  # of the axes, in place of those of the cases
    precision: str = "highest"  # of products of float32 arrays: "highest", "tf32" or "bf16"
    require: tuple[str, ...] = ()  # names of ``kinds.KINDS``; at least one case of each kind must be judged
    timeout: float | None = None  # seconds that the function may take for a case; 60 unless given
    total_timeout: float | None = None  # seconds for all cases; the cases that are left then are not judged
    repeat: int | None = None  # how often each case is judged; where a call is cheap three times, unless given
    # seconds of the run: those of both processes on a CPU, and those in which the function rests; 30 unless given, 60
    # of JAX, which rests may double. With 0 there is no limit, and no case is of sizes as people run them
    budget: float | None = None
    claims: tuple[str, ...] = ()  # names of ``kinds.CLAIMS``; what the function claims of itself
    # whether there is no limit; then the budget is the judge's seconds for these sizes, 60 unless given
    thorough: bool = False
    left: Left = forever  # of the run

    def checked(self, who: str = "check") -> "How":
        """The settings, checked; raises ValueError where a field has a value that is not allowed."""
        known = {"dtype": DTYPES, "profile": PROFILES, "precision": PRECISIONS}
        for name, words in (known | {"require": kinds.KINDS, "claims": kinds.CLAIMS}).items():
            kinds.checked(name, getattr(self, name), words, who)
        if self.budget is not None and not self.budget >= 0:
            raise ValueError(f"{who}: budget got {self.budget}, expected seconds, 0 or more")
        for axis, size in self.sizes.items():
            if axis not in SIZES or not isinstance(size, int) or size < 0:
                raise ValueError(f"{who}: sizes got {axis}={size}, expected sizes of {', '.join(SIZES)}")
        if "N" in self.sizes and "G" in self.sizes and self.sizes["N"] % max(self.sizes["G"], 1):
            raise ValueError(f"{who}: sizes got N={self.sizes['N']}, expected a multiple of G={self.sizes['G']}")
        if not (isinstance(self.seed, int) and self.seed >= 0):
            raise ValueError(f"{who}: seed got {self.seed!r}, expected 0 or more")
        for name, least in (("timeout", 0), ("total_timeout", 0), ("repeat", 1)):
            got = getattr(self, name)
            if got is not None and not (isinstance(got, (int, float)) and got >= least and got != 0):
                raise ValueError(f"{who}: {name} got {got!r}, expected {'1 or more' if least else 'more than 0'}")
        return self

    @property
    def is_limited(self) -> bool:
        """Tell whether the run ends after some time."""
        return not self.thorough and self.budget != 0

    @property
    def patience(self) -> float:
        """Seconds that the function may take for a case."""
        return TIMEOUT if self.timeout is None else self.timeout

    def seconds(self, arrays: str) -> float:
        """CPU seconds of a run."""
        cores = JAX_RUN_SECONDS if arrays == "jax" else RUN_SECONDS
        return self.budget or (cores if self.profile == NUMBERS else MORE_CASES_FACTOR * cores)

    def seconds_of_ladder(self, arrays: str) -> float:
        """Seconds of the judge that the sizes of a run are drawn for; equal for each run of a seed."""
        if self.thorough or self.budget == 0:
            return LADDER_SECONDS if self.budget is None else self.budget
        return LADDER_SHARE * self.seconds(arrays)

    @property
    def strict(self) -> bool:
        """Tell whether the law's precision is asked: twice the dense formula's error (L8), dtypes, the same bits."""
        return self.profile == LAW


DEAR_PAIRS = 2**18  # pairs of queries and keys, from which on the sizes of the ladder find more for the same seconds
PLAINEST = ("plain", "gradient: plain")
UNCOVERED = ("causal, from 2,048 on",)  # of a fault that no function of the corpora has
# Then what finds the most of the corpora for its seconds, beside those before it: benchmarks/kit.py --all.
FIRST_CASES = (
    *PLAINEST, "dropout: random key", "gradient: lse, grouped heads", "lse, masked", "causal with grouped heads",
    "dropout: gradient, bias", "cache: softcap, one query", "dropout: window", "a result is held",
    "gradient: value known, 40", "softcap of 60, all scores at -60", "dropout: key lengths", "dropout: wide heads",
    "in blocks: window of a neighbour, 300", "cache: window that looks ahead, one query", "gradient: lse, masked",
    "gradient: bias after a softcap", "cache: window and sinks, one query", "arrays that are views",
    "gradient: a cotangent that is a view", "in blocks: plain, 300", "one array for query, key and value",
    "gradient: bfloat16, a bias of many queries", "in blocks: mask of a prefix, 300", "logits to 100",
    "softcap of 30, logits to 60", "gradient: in blocks: window of a neighbour, 300", "dropout: many keys",
    *UNCOVERED,
)  # fmt: skip


def by_finds(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """The cheap cases and the dear ones, each in the order in which they are asked.

    A result is cheaper than a gradient, and this than what is asked beyond them.
    """

    def rank(case: Case) -> tuple[int, int, int]:
        first = FIRST_CASES.index(case.name) if case.name in FIRST_CASES else len(FIRST_CASES)
        return first, LEVELS.index(case.level), int(math.log2(max(case.pairs, 1))) // 4

    ordered = sorted(cases, key=rank)
    dear = [case for case in ordered if case.pairs >= DEAR_PAIRS and case.name not in FIRST_CASES]
    return [case for case in ordered if case not in dear], dear
