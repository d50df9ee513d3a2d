"""What a terminal shows: one screen, the same through a pipe."""

from typing import TYPE_CHECKING

from .outcomes import Cause, Outcome, Outcomes
from .summary import clean, number_of, profile_told, summary, tables

if TYPE_CHECKING:
    from rich.console import Console

MOST = 8  # causes that a screen shows


def terminal(report: Outcomes, console: "Console", *, scripts: bool = False) -> None:
    """Print the result in a sentence, the causes by harm, and what is no fault; with ``scripts`` one for each cause."""
    from rich.text import Text

    how = f"{report.arrays}, {report.dtype}, {profile_told(report)}, level {report.level}, seed {report.seed}"
    title = Text.assemble((clean(report.name), "bold"), f" {report.version}".rstrip(), (f"   {how}", "dim"))
    console.print(title)
    if report.process:
        console.print(Text(clean(f"Called in this process: {report.process}."), "dim"))
    console.print(Text(clean(summary(report)), "bold green" if report.ok else "bold red"))
    for number, cause in enumerate(report.causes[:MOST], start=1):
        _print_cause(number, cause, report, console)
    if len(report.causes) > MOST:
        console.print(Text(f"and {len(report.causes) - MOST} causes more: --markdown FILE or --html FILE has all."))
    if not report.causes:
        for outcome in report.failures[:MOST]:
            _print_fault(outcome, console)
    _print_rest(report, console)
    if scripts:
        _print_scripts(report, console)
    elif report.failures:
        console.print(
            Text('A script that shows it: --reproduce "NAME OF A CASE", or --reproduce for each cause.', "dim")
        )
    console.print(Text(clean(str(report.coverage)), "" if report.ok else "bold"))


def _print_cause(number: int, cause: Cause, report: Outcomes, console: "Console") -> None:
    from rich.padding import Padding
    from rich.text import Text

    head = Text.assemble((f"{number}. {cause.harm.value}: ", "bold red"), (clean(cause.name), "bold"))
    console.print(head)
    cases = number_of(len(cause.cases), "case")
    first = next((o for o in report.cases if o.case.name == cause.cases[0]), None)
    shown = f"{cause.cases[0]!r}" + (f" ({first.case.law})" if first else "")
    told = f"{cases}, such as {shown}" if len(cause.cases) > 1 else shown
    told += f"; tried: it explains {cause.tried}" if cause.tried else ""
    told += "; the others may follow from it" if 0 < cause.tried < len(cause.cases) else ""
    facts = first.facts() if first and not cause.tried else {}
    if {"expected", "got"} <= facts.keys():
        told += f"; expected {facts['expected']}, got {facts['got']}"
    elif first and not cause.tried and first.finding.message not in cause.name:
        told += f"; {first.finding.message.removeprefix(f'{cause.name}: ')}"
    console.print(Padding(Text(clean(told), "dim"), (0, 0, 0, 3)))
    if cause.remedy:
        clears = f" clears {cause.tried}" if cause.tried and cause.remedy.startswith("--") else ""
        console.print(Padding(Text.assemble((clean(cause.remedy), "cyan"), clears), (0, 0, 0, 3)))


def _print_fault(outcome: Outcome, console: "Console") -> None:
    from rich.padding import Padding
    from rich.text import Text

    case = outcome.case
    console.print(Text.assemble((f"{case.law} {clean(case.name)}", "bold"), (f"  {clean(case.about)}", "dim")))
    console.print(Padding(Text(clean(outcome.told())), (0, 0, 0, 3)))


def _print_rest(report: Outcomes, console: "Console") -> None:
    """What is no fault, a line each; and what the budget had no room for."""
    from rich.text import Text

    lines = [table.line for table in tables(report) if table.line]
    if report.left_out:
        told = "; ".join(report.left_out[:3]) + "; ..." * (len(report.left_out) > 3)
        lines.append(f"left out for want of budget ({len(report.left_out)}): {told}")
    for line in lines:
        console.print(Text(clean(line), "dim"))


def _print_scripts(report: Outcomes, console: "Console") -> None:
    from rich.text import Text

    firsts = [cause.cases[0] for cause in report.causes] or [o.case.name for o in report.failures]
    for outcome in report.cases:
        if outcome.case.name in firsts and outcome.reproduction:
            console.rule(Text(f"{outcome.case.law}, {outcome.case.name}"), style="dim", align="left")
            console.print(Text(clean(outcome.reproduction)), soft_wrap=True)
