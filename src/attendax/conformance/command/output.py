"""Output of the command: a line in a terminal that lives while a run goes on, files, and the console for tables."""

import argparse
import collections
import io
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendax import writing
from attendax.exits import FAILED, Refusal
from attendax.legible import one_line

from ..cases import Case
from ..judge.verdicts import RIGHT
from ..report import Report
from ..report.outcomes import Outcome
from ..report.summary import clean, terminal
from ..run.run import Telling
from .arguments import files

if TYPE_CHECKING:
    from rich.console import Console

LINES_VARIABLE = "ATTENDAX_CHECK_LINES"  # in the environment of a process of benchmarks/matrix: a line for each case
SHOWN_FAULTS = 6  # faults, each of another kind


@contextmanager
def live(*, quiet: bool = False) -> Iterator[Telling]:
    """Tell a run's course to a terminal as a line, to a process that asks for lines, and else to nobody."""
    if os.environ.get(LINES_VARIABLE):
        yield Telling(_print)
    elif quiet or sys.stderr is None or not sys.stderr.isatty():
        yield Telling()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
        from rich.text import Text

        line = Status()

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


class Status(Telling):
    """The line: numbers of cases by their end, the time that is left, and what is tried now."""

    def __init__(self) -> None:
        super().__init__()
        self.bar: Any = None
        self.task: Any = None
        self.counts: collections.Counter[str] = collections.Counter()
        self.kinds: set[tuple[str, ...]] = set()
        self.left: Callable[[], float] | None = None
        self.begun = time.monotonic()

    def __str__(self) -> str:
        """Numbers of cases by their end, and the time that is left; without a limit, the time that was taken."""
        shown = [kind for kind in ("ok", "wrong") if self.counts[kind] or (kind == "ok" and self.counts)]
        left = self.left() if self.left else float("inf")
        seconds = f"{max(left, 0):.0f} s left" if left < float("inf") else f"{time.monotonic() - self.begun:.0f} s"
        return ", ".join([*(f"{self.counts[kind]} {kind}" for kind in shown), seconds])

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
        if kind not in self.kinds and len(self.kinds) < SHOWN_FAULTS:
            self.kinds.add(kind)
            self._print(f"{case.name} ({case.law}): {outcome.told()}")

    def stands(self, reason: str, cases: Sequence[str]) -> None:
        """Show it in a line above."""
        more = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        self._print(f"a reason for {cases[0]}{more}: {reason}")

    def _print(self, text: str) -> None:
        from rich.text import Text

        self.bar.console.print(Text(clean(one_line(text))))


def write(file: str, content: str) -> None:
    """Write a report, whole or not at all; "-" is standard output."""
    if file == "-":
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        print(content)
        return
    try:
        writing.write(file, content)
    except OSError as error:
        raise Refusal(f"cannot write {file}: {error.strerror}") from error


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder that is there whole or not at all: written beside its place, and moved there at the end."""
    place = Path(path).absolute()
    part = place.with_name(f"{place.name}.{secrets.token_hex(4)}.part")
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(place)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def show_script(outcome: Outcome) -> int:
    """Print the script of a fault, and nothing else; gives the exit status."""
    if outcome.verdict.fails:
        print(outcome.reproduction, end="")
        return FAILED
    print(f"attendax check: {outcome.case.law}, {outcome.case.name}: {outcome.told()}", file=sys.stderr)
    return 0


def show(report: Report, args: argparse.Namespace) -> int:
    """The files, and the tables unless a report takes standard output."""
    write_files(report, args)
    if "-" not in files(args).values():
        terminal(report, console(), scripts=args.reproduce is not None, whole=not args.only)
    return 0 if report.ok else FAILED


def write_files(report: Report, args: argparse.Namespace) -> None:
    """Write what is asked for, of which one may go to standard output."""
    for kind, file in files(args).items():
        write(file, getattr(report, f"to_{kind}")())


def console() -> "Console":
    """Standard output for tables; a closed pipe is for the caller to end on, as with ``print``."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Output(file=sys.stdout, highlight=False)
