"""What a terminal shows while a run goes on: a line that lives, and faults as they come. Elsewhere it is quiet."""

import collections
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attendax.legible import one_line

from ..cases import Case
from ..judge.verdicts import Verdict
from ..report.outcome import Outcome
from ..report.summary import clean
from ..run.telling import Telling
from .output import LINES

SHOWN = 6  # faults, each of another kind
RIGHT = (Verdict.OK, Verdict.CONVENTION, Verdict.BY_DESIGN)


@contextmanager
def live(*, quiet: bool = False) -> Iterator[Telling]:
    """Who is told what a run does: a line in a terminal; nobody elsewhere, but a process that asks for lines."""
    if os.environ.get(LINES):
        yield Telling(_print)
    elif quiet or sys.stderr is None or not sys.stderr.isatty():
        yield Telling()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
        from rich.text import Text

        line = Line()

        class Told(ProgressColumn):
            """Drawn again several times a second, whatever the run is at."""

            def render(self, task: Any) -> Text:
                return Text(str(line))

        columns = SpinnerColumn(), BarColumn(bar_width=16), MofNCompleteColumn(), Told()
        now = TextColumn("{task.description}", markup=False)
        with Progress(*columns, now, console=Console(file=sys.stderr), transient=True) as bar:
            line.bar, line.task = bar, bar.add_task("", total=None)
            yield line


def _print(index: int, number: int, case: Case) -> None:
    print(f"attendax check: {index + 1}/{number} {case.law} {case.name}", file=sys.stderr, flush=True)


class Line(Telling):
    """The line: how many cases, how many ended how, the time that is left, and what is tried now."""

    def __init__(self) -> None:
        super().__init__()
        self.bar: Any = None
        self.task: Any = None
        self.counts: collections.Counter[str] = collections.Counter()
        self.kinds: set[tuple[str, ...]] = set()
        self.left: Callable[[], float] | None = None
        self.begun = time.monotonic()

    def __str__(self) -> str:
        """How many ended how, and the time that is left, or was taken where there is no limit."""
        parts = [f"{self.counts[kind]} {kind}" for kind in ("ok", "wrong") if self.counts[kind] or kind == "ok"]
        left = self.left() if self.left else float("inf")
        seconds = f"{max(left, 0):.0f} s left" if left < float("inf") else f"{time.monotonic() - self.begun:.0f} s"
        return ", ".join([*parts, seconds])

    def begins(self, what: str, left: Callable[[], float] | None = None) -> None:
        """Show what."""
        self.left = left or self.left
        self.bar.update(self.task, description=what)

    def asks(self, index: int, number: int, case: Case) -> None:
        """Show the case."""
        self.bar.update(self.task, completed=index, total=number, description=f"{case.law} {case.name}")

    def found(self, outcome: Outcome) -> None:
        """Count it; of a fault of a kind that was not seen yet, a line above."""
        self.counts["ok"] += outcome.verdict in RIGHT
        if not outcome.verdict.fails or outcome.known:
            return
        self.counts["wrong"] += 1
        case, finding = outcome.case, outcome.finding
        kind = (outcome.verdict.value, case.level, finding.leaf or finding.message)
        if kind not in self.kinds and len(self.kinds) < SHOWN:
            self.kinds.add(kind)
            from rich.text import Text

            self.bar.console.print(Text(clean(one_line(f"{case.name} ({case.law}): {outcome.told()}"))))
