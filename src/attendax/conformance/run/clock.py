"""Time of a run: on the clock, and of the cores by both of its processes; its parts; and one core for the judge.

A case that nobody gave a limit has one by the time that others took: one that hangs is a fault.
"""

import contextlib
import ctypes
import math
import time
from collections.abc import Callable, Iterator

import numpy as np  # noqa: F401  one_core is for its library

from ..adapters.implementation import Implementation
from ..cases import Case
from ..cases.case import SIZES
from ..cases.how import How
from ..worker.calling import subject_of

NEARLY = 0.92  # of what is promised: what was begun is ended
LONGER = 2.0  # times as long on the clock as of the cores, which others may have, too
ASKING, AGAIN, ENDING = 0.85, 0.95, 1.0  # of the time: until when cases are asked, asked again, and all is done
CAUSES = 0.88  # until when another cause is looked for: a look may take seconds
WITH_FAULTS = 0.75  # times as much of it, where there are faults to find the causes of
LOOK, LOOKING = 0.15, 0.2  # when reasons of the plainest faults are looked for at the latest, and how long at most
ENOUGH = 2  # cases of the same direction that are as large, and were answered
TIMES, STARTS = 20, 3  # times as long as any call took, and as the start of the process, which compiles the first call
FIRST, LEAST = 5.0, 1.0  # seconds, at least, before the first of these faults, and before those after it
SAID = ", where larger cases are answered in a twentieth of that"
MAPPED = "/proc/self/maps"
NAMES = "scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads"


class Clock:
    """The time of one run. Without a limit there is any amount of it."""

    def __init__(self, how: How, begun: float | None = None) -> None:
        """``begun``, and ``total``, when the user's limit for all cases is reached, are of ``time.monotonic``."""
        self.begun = time.monotonic() if begun is None else begun
        self._cores_before = time.process_time() - (time.monotonic() - self.begun)
        self._of_worker: Callable[[], float] = lambda: 0.0
        self.limited = how.is_limited
        self.length = self._cores = math.inf
        if self.limited:
            self.length = NEARLY * (how.budget or LONGER * how.seconds("jax"))  # until its arrays are known
        self.total = math.inf

    @property
    def until(self) -> float:
        """The end of the run, of ``time.monotonic``; before it has begun, the function has to be there by then."""
        return min(self.begun + self.length, self.total)

    def watch(self, implementation: Implementation, how: How) -> None:
        """The run is of this function: what it may take is that of its arrays, and its process counts, too.

        Files of a folder are read as long as that takes.
        """
        self.total = time.monotonic() + (how.total_timeout or math.inf)
        if implementation.recorded:
            self.limited, self.length = False, math.inf
        self._of_worker = subject_of(implementation).cores
        if self.limited and not how.budget:
            self._cores = NEARLY * how.seconds(implementation.arrays)
            self.length = LONGER * self._cores

    def cores(self) -> float:
        """CPU seconds of both processes so far."""
        return time.process_time() - self._cores_before + self._of_worker()

    def left(self, share: float = ENDING) -> float:
        """Seconds until a share of the time is over, by the clock or by the cores."""
        by_clock = share * self.length - (time.monotonic() - self.begun)
        by_cores = share * self._cores - self.cores() if self._cores < math.inf else math.inf
        return min(by_clock, by_cores, self.total - time.monotonic())


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


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Have NumPy's products of matrices use one core, where OpenBLAS makes them on Linux.

    The judge's blocks are small, and threads that wait take time from the function.
    """
    library = None
    with contextlib.suppress(OSError), open(MAPPED) as lines:
        paths = {line.split(maxsplit=5)[-1].strip() for line in lines if "openblas" in line}
        library = ctypes.CDLL(min(paths)) if paths else None
    name = next((name for name in NAMES if library and hasattr(library, name.format("set"))), None)
    if library is None or name is None:
        yield
        return
    before = int(getattr(library, name.format("get"))())
    getattr(library, name.format("set"))(1)
    try:
        yield
    finally:
        getattr(library, name.format("set"))(before)
