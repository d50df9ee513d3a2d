"""The budget of a run: CPU seconds of both of its processes, and its phases with a share each; one core for the judge.

Seconds of other programs do not count. Rests do, as of a function that sleeps: without that it would never end. A
case that nobody gave a limit has one by the time that others took: one that hangs is a fault.
"""

import contextlib
import ctypes
import math
import time
from collections.abc import Iterator

import numpy as np  # noqa: F401  one_core is for its library

from ..adapters.implementation import Implementation
from ..cases import Case
from ..cases.case import SIZES
from ..cases.how import How, Left
from ..worker.calling import Subject, subject_of
from ..worker.child import waited_by

NEARLY = 0.92  # of what is promised: what was begun is ended
PHASES = {  # of a run, each with the share of the budget by which it ends: if nothing is wrong, and if something is
    "cases before the first look": (0.15, 0.15),  # which begins with the first fault after it
    "first look": (0.30, 0.30),
    "list": (0.60, 0.50),  # its cheap cases: sizes as people run them come next, and find more than its last ones
    "cases": (0.80, 0.60),
    "again": (0.92, 0.70),
    "causes": (0.92, 0.92),
    "left out": (1.00, 0.92),
    "causes of all": (1.00, 1.00),
}
CASE_SHARE = 1 / 3  # of the budget, which no case may take more of
RESTS_SECONDS = 0.05  # seconds after which rests are looked at again: the system is asked for them
ENOUGH = 2  # cases of the same direction that are as large, and were answered
# Times as long as any call took, and as the start of the process, which compiles the first call.
CALL_FACTOR, START_FACTOR = 20, 3
# Seconds, at least, before the first of these faults, and before those after it.
FIRST_HANG_SECONDS, HANG_SECONDS = 5.0, 1.0
SAID = ", where larger cases are answered in a twentieth of that"
MAPS_FILE = "/proc/self/maps"
OPENBLAS_NAMES = "scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads"


class Budget:
    """The time of one run. Without a limit there is any amount of it."""

    def __init__(self, how: How, begun: float | None = None) -> None:
        """``begun``, and ``total``, when the user's limit for all cases is reached, are of ``time.monotonic``.

        Unless the user gives the budget, so many seconds of rest are free as there are of the cores.
        """
        self.begun = time.monotonic() if begun is None else begun
        self._before = max(time.process_time() - (time.monotonic() - self.begun), 0.0)
        self._waited = waited_by("self") if begun is None else 0.0
        self._subject = Subject()
        self.limited = how.is_limited
        self.length = NEARLY * how.seconds("jax") if self.limited else math.inf  # until its arrays are known
        self.total, self._free = math.inf, 0.0 if how.budget else self.length
        self._rests = -math.inf, 0.0  # when they were looked at, and what they were
        self._start = 0.0  # CPU seconds until the function was understood

    def watch(self, implementation: Implementation, how: How) -> None:
        """The run is of this function: what it may take is that of its arrays, and its process counts as well.

        Files of a folder are read as long as that takes.
        """
        self.total = time.monotonic() + (how.total_timeout or math.inf)
        self._subject = subject_of(implementation)
        self.limited = self.limited and not implementation.recorded
        self.length = NEARLY * how.seconds(implementation.arrays) if self.limited else math.inf
        self._free = 0.0 if how.budget else self.length
        self._start = min(self.cores(), self.length)

    def cores(self) -> float:
        """CPU seconds of both processes so far."""
        return time.process_time() - self._before + self._subject.cores()

    def rests(self) -> float:
        """Seconds so far in which neither process ran, or waited for a core."""
        now = time.monotonic()
        if now - self._rests[0] > RESTS_SECONDS:
            waited = waited_by("self") - self._waited + self._subject.waited()
            self._rests = now, max(now - self.begun - self.cores() - waited, 0.0)
        return self._rests[1]

    def left(self, share: float = 1.0) -> float:
        """Seconds until a share is over of the budget that was left when the function was understood."""
        rests = max(self.rests() - self._free, 0.0)
        end = self._start + share * (self.length - self._start)
        return min(end - self.cores() - rests, self.total - time.monotonic())

    def left_of(self, phase: str, *, wrong: bool) -> float:
        """Seconds until a phase is over, of a run in which something is wrong or nothing is."""
        return self.left(PHASES[phase][wrong])

    def of_case(self) -> Left:
        """The seconds that are left for a question that begins now."""
        kept = self.left() - CASE_SHARE * self.length
        return (lambda: self.left() - kept) if 0 < kept < math.inf else self.left


class Patience:
    """Answers so far, and how often nothing came."""

    def __init__(self) -> None:
        self.late = 0  # so many cases had no answer
        self._answered: list[tuple[int, str]] = []

    def of(self, case: Case, slowest: float, start: float, most: float) -> float:
        """Seconds after which a case has hung; inf where too little is known to say so within the ``most``."""
        larger = [direction for size, direction in self._answered if size >= _size(case)]
        least = max(HANG_SECONDS, CALL_FACTOR * slowest, START_FACTOR * start)
        if larger.count(case.direction) < ENOUGH or least > most:
            return math.inf
        return float(max(HANG_SECONDS, math.floor(min(most, max(least, FIRST_HANG_SECONDS / 2**self.late)))))

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
    with contextlib.suppress(OSError), open(MAPS_FILE) as lines:
        paths = {line.split(maxsplit=5)[-1].strip() for line in lines if "openblas" in line}
        library = ctypes.CDLL(min(paths)) if paths else None
    name = next((name for name in OPENBLAS_NAMES if library and hasattr(library, name.format("set"))), None)
    if library is None or name is None:
        yield
        return
    before = int(getattr(library, name.format("get"))())
    getattr(library, name.format("set"))(1)
    try:
        yield
    finally:
        getattr(library, name.format("set"))(before)
