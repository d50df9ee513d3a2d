"""Measuring: in turns, on undisturbed cores.

Every contestant runs in every round, so that a disturbance hits all of them alike; a figure is the median over rounds,
a ratio the median of the ratios within rounds. A round is thrown away if other processes took
the cores, threads of a contestant waited for each other's core, or the host had moved the cores to different caches.
"""

import contextlib
import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from round_trip import far

TURN_S = 0.02  # a shorter call is repeated until a turn takes this long
WARM_S = 0.1  # a shorter call comes once more before its turn, uncounted: the caches hold what the last one left
MOST_REPEATS = 200
FEWEST_ROUNDS = 3
DISTURBED = 0.05  # share of the cores that others may take in a round
FARTHER = 1.3  # times the shortest round trip so far
WAITED = 0.1  # seconds that threads may wait for a core, for each second of a round
MOST_OVER = 2.0  # beyond so many times its budget, a case also keeps disturbed rounds
REST_S = 0.05  # at most so long is waited for threads of the last turn that still spin
KEPT = 2**25 - 2**16  # bytes of the block by which ``keep_freed_memory`` raises glibc's limits, just below their bounds
TICK_S = 0.02  # the system counts CPU time in steps of 10 ms, at both ends of a round


class Unable(Exception):
    """A contestant cannot do a case; the reason in words."""


class Contestant(NamedTuple):
    """One way to compute a case: ``call`` runs it once, waits for the result and returns its arrays."""

    name: str
    call: Callable[[], Any]
    first_call_s: float | None = None  # compilation and the first run
    temporary_bytes: int | None = None  # exact, where XLA says it


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    lower: float
    upper: float


class Timing(NamedTuple):
    """The measurements of one contestant; the rounds of all contestants of one ``measure`` belong together."""

    seconds: list[float]  # of one call, round by round
    page_faults: float  # minor ones, of one call, median
    repeats: int  # calls in a turn
    thrown_away: int  # disturbed rounds that were repeated
    disturbed: int  # disturbed rounds that were kept: the machine would not come to rest
    round_trips: list[float] = []  # of a number between two cores, ns, round by round, where it was measured

    @property
    def spread(self) -> Spread:
        return spread(self.seconds)

    @property
    def median(self) -> float:
        return self.spread.median

    @property
    def quartiles(self) -> tuple[float, float]:
        return self.spread[1:]

    def ratio_to(self, reference: "Timing") -> Spread:
        """Seconds in times of the reference's: of the ratios within rounds."""
        return spread([a / b for a, b in zip(self.seconds, reference.seconds, strict=True)])


def spread(numbers: Sequence[float]) -> Spread:
    """Median and quartiles, the ends included: of one number three times that number."""
    if len(numbers) == 1:
        return Spread(numbers[0], numbers[0], numbers[0])
    lower, median, upper = statistics.quantiles(numbers, n=4, method="inclusive")
    return Spread(median, lower, upper)


class Clock:
    """Wall-clock time, CPU time of all processes, that of this one and its children, and its minor page faults.

    Args:
        workers: in whose processes contestants run; see ``workers.Worker``.
        round_trip: how long a number takes between two cores; see ``round_trip.RoundTrip``.
        only_near: whether a round in which the two cores were far apart is a disturbed one.
    """

    def __init__(
        self, workers: Sequence[Any] = (), round_trip: Callable[[], float] | None = None, *, only_near: bool = False
    ) -> None:
        import psutil

        self._psutil, self._process, self._workers = psutil, psutil.Process(), workers
        self.round_trip, self.only_near, self.nearest = round_trip, only_near, math.inf

    wall = staticmethod(time.perf_counter)

    def is_apart(self, round_trips: Sequence[float]) -> bool:
        """Tell whether the cores were far apart, and have been nearer: on some machines they always are as far."""
        self.nearest = min((self.nearest, *round_trips))
        return self.only_near and any(far(round_trips)) and max(round_trips) > FARTHER * self.nearest

    def everyone(self) -> float:
        """CPU seconds of all processes, including time that the host did not give to a virtual machine."""
        times = self._psutil.cpu_times()
        idle = ("idle", "iowait", "guest", "guest_nice")  # the last two are contained in others
        return sum(times) - sum(getattr(times, name, 0.0) for name in idle)

    def own(self) -> float:
        total = sum(self._process.cpu_times())  # with the children that have ended
        for child in self._process.children(recursive=True):
            try:
                total += sum(child.cpu_times()[:2])
            except self._psutil.Error:  # it has just ended
                continue
        return total

    def waited(self) -> float:
        """Seconds that threads of this process and its children waited for a core; 0 where the system does not say.

        A system may run two threads that wake up often on one core while another core is idle.
        """
        total = 0
        for process in (self._process, *self._process.children(recursive=True)):
            for path in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):  # the thread has just ended
                    total += int(path.read_text("ascii").split()[1])
        return total / 1e9

    def page_faults(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def rest(self) -> None:
        """Wait until no thread of this process or of a worker works; the next contestant needs the cores."""
        rest()
        for worker in self._workers:
            worker.ask("rest")


def rest() -> None:
    """Wait until no thread of this process works: some spin for a while after they have done their part."""
    start, step = time.perf_counter(), 0.002
    while time.perf_counter() - start < REST_S:
        before = time.process_time()
        time.sleep(step)
        if time.process_time() - before < step / 4:
            break


def keep_freed_memory() -> None:
    """Let the allocator keep what is freed, as it does in a process that has run for a while.

    glibc gives freed memory back to the system beyond twice the largest block that this process has ever freed, at most
    64 MiB. The next call then pays for new pages. In a young process that is little, so contestants
    were up to twice as slow, or not, depending on what their neighbours had freed.
    """
    np.empty(KEPT, np.int8).fill(1)


def measure(
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    budget_s: float | None = None,
    clock: Any = None,
    progress: Callable[[], Any] = lambda: None,
) -> dict[str, Timing]:
    """Let the contestants take turns, round by round.

    Each has run before (``first_call_s``). The first round, a call each, tells how often a call is repeated within a
    turn, and whether a warm-up call goes before; that round counts if no contestant needs either. The order is shifted
    by one from round to round, so that none always follows the same neighbour. Up to ``rounds`` disturbed rounds are
    discarded while there is time (``MOST_OVER``); more are kept, and counted.

    Args:
        contestants: with distinct names.
        rounds: how many are kept.
        budget_s: no round begins after so many seconds, once there are three.
        clock: what ``Clock`` offers, for tests.
        progress: called after every turn.

    Returns:
        The timing of each, by its name.
    """
    clock = clock or Clock()
    start = clock.wall()
    repeats, warm = {one.name: 1 for one in contestants}, {one.name: False for one in contestants}
    turns: dict[str, list[tuple[float, float]]] = {one.name: [] for one in contestants}
    round_trips: list[float] = []
    kept = thrown_away = disturbed = 0
    tried = False
    while contestants and kept < rounds:
        over = 0.0 if budget_s is None else (clock.wall() - start) / budget_s
        if over > 1 and kept >= min(FEWEST_ROUNDS, rounds):
            break
        shift = (kept + thrown_away) % len(contestants)
        took, others_came, round_trip = _round(
            (*contestants[shift:], *contestants[:shift]), repeats, warm, clock, progress
        )
        if not tried:
            tried = True
            repeats = {n: max(1, min(MOST_REPEATS, math.ceil(TURN_S / max(took[n][0], 1e-9)))) for n in took}
            warm = {n: took[n][0] < WARM_S for n in took}
            if max(repeats.values()) > 1 or any(warm.values()):
                continue
        if others_came and thrown_away < rounds and over <= MOST_OVER:
            thrown_away += 1
            continue
        kept, disturbed = kept + 1, disturbed + others_came
        round_trips += round_trip
        for name, turn in took.items():
            turns[name].append(turn)
    common = {"thrown_away": thrown_away, "disturbed": disturbed, "round_trips": round_trips}
    return {
        name: Timing([s for s, _ in all_], statistics.median(f for _, f in all_), repeats[name], **common)
        for name, all_ in turns.items()
    }


def _round(
    order: Sequence[Contestant],
    repeats: dict[str, int],
    warm: dict[str, bool],
    clock: Any,
    progress: Callable[[], Any],
) -> tuple[dict[str, tuple[float, float]], bool, list[float]]:
    """Seconds and page faults of a call of each; whether cores were taken; the longer of both round trips.

    They are taken if others work, if threads of a contestant wait for a core, or if the host moved one of them.
    """
    trips = [clock.round_trip()] if clock.round_trip else []
    begin = clock.wall(), clock.everyone(), clock.own(), clock.waited()
    took = {}
    for one in order:
        took[one.name] = _turn(one, repeats[one.name], warm[one.name], clock)
        progress()
    end = clock.wall(), clock.everyone(), clock.own(), clock.waited()
    trips += [clock.round_trip()] if clock.round_trip else []
    wall, everyone, own, waited = (after - before for before, after in zip(begin, end, strict=True))
    taken = everyone - own > DISTURBED * wall * threads() + TICK_S or waited > WAITED * wall
    taken = clock.is_apart(trips) or taken
    return took, taken, [max(trips)] if trips else []


def _turn(contestant: Contestant, repeats: int, warm: bool, clock: Any) -> tuple[float, float]:
    """Seconds and page faults of one call."""
    clock.rest()
    if warm:
        contestant.call()
    faults, start = clock.page_faults(), clock.wall()
    for _ in range(repeats):
        contestant.call()
    return (clock.wall() - start) / repeats, (clock.page_faults() - faults) / repeats


def threads() -> int:
    """The cores that this process may use; every contestant gets as many threads."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
