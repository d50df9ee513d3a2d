"""What a run tells while it goes on."""

from collections.abc import Callable

from ..cases import Case
from ..report.outcome import Outcome


class Telling:
    """Who is told what a run does: nothing comes of it here.

    Args:
        before: is told index, number and case before each.
    """

    def __init__(self, before: Callable[[int, int, Case], None] | None = None) -> None:
        self.before = before

    def begins(self, what: str, left: Callable[[], float] | None = None) -> None:
        """Another part of the run begins; ``left`` gives the seconds that it has."""

    def asks(self, index: int, number: int, case: Case) -> None:
        """A case is asked, one of so many."""
        if self.before:
            self.before(index, number, case)

    def found(self, outcome: Outcome) -> None:
        """A case was judged."""
