"""The limit of ``describe``: CPU seconds of both processes after the import, and seconds on the clock."""

import time

from ..against.remote import Function

SECONDS = {"jax": 10.0}  # CPU seconds, by framework
OTHER_SECONDS = 4.0  # those of other frameworks
CLOCK_SECONDS = 120.0  # seconds on the clock, of a function that waits


class OutOfTime(Exception):
    """The limit is reached."""


class Limit:
    """The limit of one function, and what is spent of it."""

    def __init__(self, fn: Function, seconds: float | None = None, times: int = 1) -> None:
        """``times`` the limit that the framework has, unless ``seconds`` are given."""
        self.fn, self.seconds, self.times, self.calls = fn, seconds, times, 0
        self.framework = ""  # from the first answer on
        self.begun, self.clock_begun = 0.0, time.monotonic()
        self.begun = self.spent()

    def spent(self) -> float:
        """CPU seconds so far."""
        return time.process_time() + self.fn.subject.cores() - self.begun

    def most(self) -> float:
        """CPU seconds that it may take."""
        return self.seconds or self.times * SECONDS.get(self.framework or "jax", OTHER_SECONDS)

    def count(self) -> None:
        """Count a call; raise OutOfTime if the limit is reached."""
        self.calls += 1
        clock, most = time.monotonic() - self.clock_begun, self.most()
        if self.calls % 4 == 0 and (self.spent() > most or clock > max(CLOCK_SECONDS, most)):
            raise OutOfTime
