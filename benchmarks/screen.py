"""The screen while it runs: progress on standard error, tables on standard output."""

import contextlib
from collections.abc import Iterator
from typing import Any

import report
from attendax.legible import columns


class Screen:
    """Progress on standard error, a table for each case on standard output as soon as it is measured."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.out = Console(width=columns(140), highlight=False)
        bar = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
        self.progress = Progress(*bar, console=Console(stderr=True), transient=True)
        self.task = self.progress.add_task("", total=None)
        self.where = ""

    def at(self, number: int, total: int, where: str) -> None:
        self.where = where
        self.progress.update(self.task, completed=number, total=total, description=where)

    def doing(self, what: str) -> None:
        self.progress.update(self.task, description=f"{self.where}: {what}")

    def print_table(self, title: str, header: Any, rows: list[list[str]], remarks: list[str]) -> None:
        from rich.table import Table

        table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False, box=None)
        for column, name in enumerate(header):
            table.add_column(name, justify="right" if column else "left")
        for cells in rows:
            table.add_row(*cells)
        if table.__rich_measure__(self.out, self.out.options).minimum <= self.out.width:
            self.out.print(table)
        else:  # a block for each row
            self.out.print(title, markup=False)
            for first, *cells in rows:
                self.out.print(first, markup=False)
                for name, cell in zip(header[1:], cells, strict=True):
                    self.out.print(f"  {name}: {cell}", markup=False)
        for remark in remarks:
            self.out.print(f"  {remark}", markup=False)
        self.out.print()

    def show(self, case: str, measure: str, records: list[dict[str, Any]], results: dict[str, Any]) -> None:
        rows = [report.row(record) for record in records if record["status"] == "timed"]
        self.print_table(report.title(case, measure, results), report.HEADER, rows, report.remarks(records))

    def summary(self, results: dict[str, Any]) -> None:
        self.print_table("this run", ("", ""), report.about_rows(results), results["left_out"])
        if report.means(results):
            self.print_table("above 1: attendax is faster", report.MEANS_HEADER, report.means(results), [])


@contextlib.contextmanager
def terminal() -> Iterator[Screen]:
    screen = Screen()
    with screen.progress:
        yield screen
