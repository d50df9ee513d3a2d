"""Where the command writes: progress, files, and the console for tables."""

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attendax import writing
from attendax.exits import Refusal

LINES = "ATTENDAX_CHECK_LINES"  # in the environment of a process of ``--all-installed``: a line for each case

if TYPE_CHECKING:
    from rich.console import Console

    from ..cases import Case


@contextmanager
def progress(*, quiet: bool = False) -> "Iterator[Callable[[int, int, Case], None] | None]":
    """What is told before each case: a bar in a terminal; nothing elsewhere, but to a process that asks for lines."""
    if os.environ.get(LINES):
        yield lambda k, n, case: print(
            f"attendax check: {k + 1}/{n} {case.law} {case.name}", file=sys.stderr, flush=True
        )
    elif quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda k, n, case: bar.update(task, completed=k, total=n, description=f"{case.law} {case.name}")


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


def console() -> "Console":
    """Standard output for tables; a closed pipe is for the caller to end on, as with ``print``."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Output(file=sys.stdout, highlight=False)


def took(start: float) -> str:
    """Seconds since, in words."""
    return f"{time.monotonic() - start:.0f} s"
