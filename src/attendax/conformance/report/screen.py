"""A report on one screen of a terminal, or through a pipe."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .outcome import Cause, number_of
from .outcomes import Outcomes
from .summary import clean, how, summary, tables

if TYPE_CHECKING:
    from rich.console import Console

MOST = 8  # causes that a screen shows
Line = tuple[int, *tuple[tuple[str, str], ...]]  # how far it is indented; words, and how they look


def terminal(report: Outcomes, console: "Console", *, scripts: bool = False) -> None:
    """Print the result in a sentence, the causes by harm, and what is no fault; with ``scripts`` one for each cause."""
    from rich.padding import Padding
    from rich.text import Text

    def say(indent: int, *parts: tuple[str, str]) -> None:
        text = Text.assemble(*((clean(words), style) for words, style in parts))
        console.print(Padding(text, (0, 0, 0, indent)) if indent else text)

    for line in _lines(report):
        say(*line)
    shown = [cause.cases[0] for cause in report.causes] or [outcome.case.name for outcome in report.failures]
    for outcome in report.cases if scripts else ():
        if outcome.case.name in shown and outcome.reproduction:
            console.rule(Text(f"{outcome.case.law}, {outcome.case.name}"), style="dim", align="left")
            console.print(Text(clean(outcome.reproduction)), soft_wrap=True)
    if report.failures and not scripts:
        say(0, ('A script that shows it: --reproduce "NAME OF A CASE", or --reproduce for each cause.', "dim"))
    say(0, (str(report.coverage), "" if report.ok else "bold"))


def _lines(report: Outcomes) -> Iterator[Line]:
    yield 0, (report.name, "bold"), (f" {report.version}".rstrip(), ""), (f"   {how(report)}", "dim")
    if report.process:
        yield 0, (f"Called in this process: {report.process}.", "dim")
    yield 0, (summary(report), "bold green" if report.ok else "bold red")
    for number, cause in enumerate(report.causes[:MOST], start=1):
        yield 0, (f"{number}. {cause.harm.value}: ", "bold red"), (cause.name, "bold")
        yield 3, (_told(cause, report), "dim")
        if cause.remedy:
            clears = f" clears {cause.tried}" if cause.tried and cause.remedy.startswith("--") else ""
            yield 3, (cause.remedy, "cyan"), (clears, "")
    if len(report.causes) > MOST:
        yield 0, (f"and {len(report.causes) - MOST} causes more: --markdown FILE or --html FILE has all.", "")
    for outcome in () if report.causes else report.failures[:MOST]:
        yield 0, (f"{outcome.case.law} {outcome.case.name}", "bold"), (f"  {outcome.case.about}", "dim")
        yield 3, (outcome.told(), "")
    for table in tables(report):
        if table.line:
            yield 0, (table.line, "dim")
    if report.left_out:
        told = "; ".join(report.left_out[:3]) + "; ..." * (len(report.left_out) > 3)
        yield 0, (f"left out for want of budget ({len(report.left_out)}): {told}", "dim")


def _told(cause: Cause, report: Outcomes) -> str:
    """The number of cases that show it, the plainest of them, and what was tried, or else what that case gave."""
    first = next((o for o in report.cases if o.case.name == cause.cases[0]), None)
    shown = f"{cause.cases[0]!r}" + (f" ({first.case.law})" if first else "")
    told = f"{number_of(len(cause.cases), 'case')}, such as {shown}" if len(cause.cases) > 1 else shown
    if cause.tried:
        others = "; the others may follow from it" if cause.tried < len(cause.cases) else ""
        return f"{told}; tried: it explains {cause.tried}{others}"
    facts = first.facts() if first else {}
    if {"expected", "got"} <= facts.keys():
        return f"{told}; expected {facts['expected']}, got {facts['got']}"
    if first and first.finding.message not in cause.name:
        return f"{told}; {first.finding.message.removeprefix(f'{cause.name}: ')}"
    return told
