"""Time of a number from one core to another and back: it tells whether two cores lie beside the same cache.

The cores of a virtual machine can be moved by its host, within seconds, to places whose caches are far apart. Programs
whose kernels read on one core what another has written then take up to twice as long.
"""

import contextlib
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

BATCHES, TRIPS = 20, 250
FAR = 260.0  # ns: beside one cache 170 to 230 were seen, half of it Python's; with a cache each, 320 to 390
ECHO = f"""
import mmap, os, sys
os.sched_setaffinity(0, {{int(sys.argv[2])}})
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), {mmap.PAGESIZE})
for _ in sys.stdin:
    for _ in range({BATCHES * TRIPS + 1}):
        while not shared[0]:
            pass
        shared[0] = 0
"""


class RoundTrip:
    """Measures it between two cores; the other one's process sleeps in between.

    Args:
        one, other: the numbers of the cores.
    """

    def __init__(self, one: int, other: int) -> None:
        self._core = one
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(mmap.PAGESIZE)
            self._shared = mmap.mmap(file.fileno(), mmap.PAGESIZE)
            command = [sys.executable, "-S", "-c", ECHO, file.name, str(other)]
            self._other = subprocess.Popen(command, stdin=subprocess.PIPE)
            self()  # the file is open there now

    def __call__(self) -> float:
        """Nanoseconds of Python on both sides and of the way between: the least of some batches."""
        assert self._other.stdin is not None
        bound, shared = os.sched_getaffinity(0), self._shared
        os.sched_setaffinity(0, {self._core})
        try:
            self._other.stdin.write(b"\n")
            self._other.stdin.flush()
            shared[0] = 1
            while shared[0]:  # the other one wakes up
                if self._other.poll() is not None:
                    raise RuntimeError(f"round_trip: the other core's process ended with {self._other.returncode}")
            took = []
            for _ in range(BATCHES):
                start = time.perf_counter()
                for _ in range(TRIPS):
                    shared[0] = 1
                    while shared[0]:
                        pass
                took.append(time.perf_counter() - start)
        finally:
            os.sched_setaffinity(0, bound)
        return 1e9 * min(took) / TRIPS

    def stop(self) -> None:
        """End the other process."""
        self._other.communicate()
        self._shared.close()


@contextlib.contextmanager
def round_trip(cores: Sequence[int]) -> Iterator[RoundTrip]:
    """Between the first two of these cores."""
    found = RoundTrip(*cores[:2])
    try:
        yield found
    finally:
        found.stop()


def far(round_trips: Sequence[float]) -> list[bool]:
    """Tell of each round whether the two cores were far apart."""
    return [x > FAR for x in round_trips]
