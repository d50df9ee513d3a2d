"""Reports as tables: in Markdown, and in a terminal."""

import collections
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .outcomes import LAWS, Outcome, Outcomes, Tally
from .verdicts import Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LEGEND = (
    '"ok 14": nothing is wrong in the 14 cases that are offered. "12 of 14": 2 have a fault. "~2": 2 more differ by a '
    'convention that the adapter declares, which is no fault. "-": nothing of the kind is offered.'
)
KEY = "ok: no fault   ok~: some differ by a declared convention   3: so many faults   -: nothing offered"
SCRIPTS = 3  # how many reproductions a screen shows, no two of one law; a file or a pipe gets them all


def clean(text: str) -> str:
    """Without characters that a terminal obeys; lines stay."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def times(multiple: float | None) -> str:
    """A multiple of what is allowed, in at most seven characters."""
    if multiple is None:
        return ""
    return f"{multiple:.2f} x" if multiple < 99.995 else f"{multiple:.0e} x".replace("e+0", "e").replace("e+", "e")


def by_reason(report: Outcomes) -> dict[str, list[Outcome]]:
    """The cases that are not offered, by the reason."""
    found = collections.defaultdict(list)
    for outcome in report.cases:
        if outcome.verdict is Verdict.NOT_OFFERED:
            found[outcome.finding.message.removeprefix("NotImplementedError: ")].append(outcome)
    return dict(found)


def about(report: Outcomes) -> list[tuple[str, str]]:
    """What was judged, and how."""
    rows = [("judged", f"{report.name} {report.version}".strip()), ("arrays", report.arrays)]
    rows += [("dtype", report.dtype), ("seed", str(report.seed)), ("level", report.level)]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return [*rows, ("versions", versions)] if versions else rows


def summary(report: Outcomes) -> str:
    """The result in a sentence."""
    counts = ", ".join(f"{number} {verdict}" for verdict, number in report.counts().items())
    counts = re.sub(r"\b(?!1 )(\d+) differs", r"\1 differ", counts)
    if report.failures:
        faults = len(report.failures)
        return f"{faults} {'fault' if faults == 1 else 'faults'} in {len(report.cases)} cases: {counts}."
    if not report.ok:
        return f"Nothing was judged, so nothing is shown: {counts or 'no case'}."
    return f"Nothing is wrong in {len(report.cases)} cases: {counts}."


def law_rows(report: Outcomes) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table of laws: verdicts that occur, and the worst error of each law."""
    kinds = [v for v in Verdict if v is Verdict.OK or any(outcome.verdict is v for outcome in report.cases)]
    header = ["law", "", *(verdict.value for verdict in kinds), "worst error", "allowed", "of allowed", "in case"]
    rows = []
    for law, tally in report.laws().items():
        worst = tally.worst
        facts = worst.facts() if worst else {}
        measured = [facts.get("error", ""), facts.get("allowed", ""), times(worst.multiple if worst else None)]
        numbers = [str(tally.number(verdict) or "") for verdict in kinds]
        rows.append([law, LAWS.get(law, ""), *numbers, *measured, worst.case.name if worst else ""])
    return header, rows


# Markdown


def escaped(text: str) -> str:
    """Text that Markdown leaves as it is, on one line."""
    return re.sub(r"([\\`*_<|~])", r"\\\1", " ".join(clean(text).split())).replace("](", "]\\(")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; the cells are escaped."""
    lines = [[escaped(cell) for cell in line] for line in (header, *rows)]
    lines.insert(1, ["---"] * len(header))
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def fenced(script: str) -> str:
    """Python as a block, whatever is in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", script)), default=0))
    return f"{fence}python\n{clean(script).rstrip()}\n{fence}\n"


def markdown(report: Outcomes) -> str:
    """The whole report: counts, laws with their measured errors, faults with reproductions, what is not offered."""
    parts = [f"# attendax check: {escaped(f'{report.name} {report.version}'.strip())}\n"]
    parts += [
        table(("", ""), about(report)),
        f"**{escaped(summary(report))}**\n",
        "## Laws\n",
        table(*law_rows(report)),
    ]
    parts.append(
        'An error is the largest difference as a share of the largest number expected; allowed is twice that of the '
        "plain dense formula in the same dtype, or what the case says.\n"
    )  # fmt: skip
    if report.failures:
        parts += ["## Faults\n", *map(_fault, report.failures)]
    conventions = [outcome for outcome in report.cases if outcome.verdict is Verdict.CONVENTION]
    if conventions:
        rows = [[o.case.law, o.case.name, o.finding.message] for o in conventions]
        parts += ["## Differs by convention\n", "Declared, so no fault.\n", table(("law", "case", "convention"), rows)]
    if reasons := by_reason(report):
        parts.append("## Not offered\n")
        parts.append("".join(f"- {escaped(reason)}: {escaped(_names(found))}\n" for reason, found in reasons.items()))
    return "\n".join(parts)


def _names(outcomes: Iterable[Outcome]) -> str:
    return "; ".join(f"{outcome.case.law} {outcome.case.name}" for outcome in outcomes)


def _fault(outcome: Outcome) -> str:
    case = outcome.case
    facts = "".join(f"- {name}: {escaped(text)}\n" for name, text in outcome.facts().items())
    head = f"### {case.law}, {escaped(case.name)}\n\nAsked: {escaped(case.about)}.\n"
    found = f"**{outcome.verdict}**: {escaped(outcome.finding.message)}\n"
    return "\n".join(filter(None, [head, found, facts, fenced(outcome.reproduction)]))


def cell(tally: Tally | None) -> str:
    """A law of an implementation, in a few characters."""
    if tally is None or not tally.judged:
        return "-"
    differing = tally.number(Verdict.CONVENTION)
    fine, judged = tally.number(Verdict.OK), tally.judged - differing
    told = f"{fine} of {judged}" if tally.failed else f"ok {fine}" if fine else ""
    return f"{told} ~{differing}".strip() if differing else told


def laws_of(reports: Sequence[Outcomes]) -> list[str]:
    """The laws that any of the reports has cases of, in order."""
    return sorted({law for report in reports for law in report.laws()}, key=lambda law: (len(law), law))


def all_versions(reports: Sequence[Outcomes]) -> str:
    """Of everything that was run, in a line."""
    versions = {name: version for report in reports for name, version in report.versions.items()}
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def matrix_markdown(reports: Sequence[Outcomes], left_out: Mapping[str, str] | None = None) -> str:
    """Implementations by laws, then the faults of each, and who was left out with the reason."""
    laws = laws_of(reports)
    rows = []
    for report in reports:
        tallies = report.laws()
        rows.append([f"{report.name} {report.version}".strip(), *(cell(tallies.get(law)) for law in laws)])
    parts = ["# attendax check\n", table(["", *laws], rows), escaped(LEGEND) + "\n", f"{all_versions(reports)}.\n"]
    parts += ["| law | |\n| --- | --- |\n" + "".join(f"| {law} | {LAWS.get(law, '')} |\n" for law in laws)]
    for report in reports:
        parts.append(f"## {escaped(report.name)}\n\n{escaped(summary(report))}\n")
        found = [[o.case.law, o.case.name, o.verdict.value, _reason(o)] for o in report.failures]
        parts += [table(("law", "case", "verdict", "found"), found)] if found else []
    if left_out:
        parts += ["## Left out\n", "".join(f"- {escaped(name)}: {escaped(why)}\n" for name, why in left_out.items())]
    return "\n".join(parts)


def _reason(outcome: Outcome) -> str:
    return outcome.told().removeprefix(f"{outcome.verdict}: ")


# The terminal


def terminal(report: Outcomes, console: "Console") -> None:
    """Print the result, the laws, each fault in two lines, and a few reproductions."""
    from rich.text import Text

    title = Text.assemble((clean(report.name), "bold"), f" {report.version}", (f"   {_how(report)}", "dim"))
    console.print(title, soft_wrap=True)
    console.print(_law_table(report, wide=console.width >= 110))
    for outcome in report.failures:
        _print_fault(outcome, console)
    first = {outcome.case.law: outcome for outcome in reversed(report.failures)}
    shown = [o for o in report.failures if not console.is_terminal or first[o.case.law] is o]
    shown = shown[:SCRIPTS] if console.is_terminal else shown
    for outcome in shown:
        console.rule(Text(f"reproduction of {outcome.case.law}, {outcome.case.name}"), style="dim", align="left")
        console.print(Text(clean(outcome.reproduction)), soft_wrap=True)
    words = collections.Counter(o.finding.message for o in report.cases if o.verdict is Verdict.CONVENTION)
    for convention, count in words.items():
        console.print(Text(f"differs by convention: {clean(convention)} ({count})", "blue"))
    for reason, found in by_reason(report).items():
        number = "1 case" if len(found) == 1 else f"{len(found)} cases"
        console.print(Text(f"not offered: {clean(reason)} ({number})", "dim"))
    if len(report.failures) > len(shown):
        console.print(
            Text('The other reproductions: --reproduce "NAME OF A CASE", --markdown FILE or --html FILE.', "dim")
        )
    console.print(Text(clean(summary(report)), "bold green" if report.ok else "bold red"))


def _how(report: Outcomes) -> str:
    return f"{report.arrays}, {report.dtype}, seed {report.seed}, level {report.level}"


def _law_table(report: Outcomes, *, wide: bool) -> "Table":
    """At most 80 columns, of which those without a number are left out; wide, also the case of the worst error."""
    found = _table(
        ("law", "", "ok", "faults", "conven-\ntion", "not\noffered", "worst\nerror", "allowed", "times\nthat")
    )
    if wide:
        found.add_column("in case", no_wrap=True)
    rows = [_law_row(law, tally, wide) for law, tally in report.laws().items()]
    for row in rows:
        found.add_row(*row)
    for k in (8, 7, 6, 5, 4):
        if all(row[k].plain in ("", ".") for row in rows):
            del found.columns[k]
    return found


def _table(header: Sequence[str]) -> "Table":
    from rich import box
    from rich.table import Table

    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, header_style="bold")
    for k, name in enumerate(header):
        left = name in ("law", "")
        found.add_column(name, justify="left" if left else "right", no_wrap=True, min_width=None if left and k else 3)
    return found


def _law_row(law: str, tally: Tally, wide: bool) -> list[Any]:
    from rich.text import Text

    worst = tally.worst
    facts = worst.facts() if worst else {}
    counted = ((Verdict.OK, "green"), (None, "bold red"), (Verdict.CONVENTION, "blue"), (Verdict.NOT_OFFERED, ""))
    numbers = [(tally.number(verdict) if verdict else tally.failed, style) for verdict, style in counted]
    row = [Text(law, "" if not tally.judged else "bold red" if tally.failed else "green"), Text(LAWS.get(law, ""))]
    row += [Text(str(x or "."), style if x else "dim") for x, style in numbers]
    row += [Text(facts.get(name, "").replace(" standard deviations", " sd")) for name in ("error", "allowed")]
    over = worst is not None and (worst.multiple or 0) > 1
    row.append(Text(times(worst.multiple) if worst else "", "bold red" if over else "green"))
    return [*row, Text(f"  {clean(worst.case.name)}" if worst else "", "dim")] if wide else row


def _print_fault(outcome: Outcome, console: "Console") -> None:
    from rich.padding import Padding
    from rich.text import Text

    case = outcome.case
    head = Text.assemble((f"{case.law:<4}", "bold"), (clean(case.name), "bold"), (f"  {clean(case.about)}", "dim"))
    console.print(head)
    told = Text.assemble((outcome.verdict.value, "bold red"), clean(outcome.told().removeprefix(outcome.verdict.value)))
    console.print(Padding(told, (0, 0, 0, 4)))


def matrix_terminal(reports: Sequence[Outcomes], console: "Console", left_out: Mapping[str, str] | None = None) -> None:
    """Print implementations by laws; four characters a law, so that fifteen and a name fit 80 columns."""
    from rich.text import Text

    laws = laws_of(reports)
    found = _table(["", *laws])
    room = max(8, console.width - 2 - 4 * len(laws))
    for report in reports:
        tallies = report.laws()
        name = report.name if len(report.name) <= room else f"{report.name[: room - 1]}…"
        found.add_row(
            Text(clean(name), "bold" if report.ok else ""), *(Text(*_short(tallies.get(law))) for law in laws)
        )
    console.print(found)
    console.print(Text(KEY, "dim"))
    for name, why in (left_out or {}).items():
        console.print(Text.assemble(("left out  ", "yellow"), clean(f"{name}: {why}")))


def _short(tally: Tally | None) -> tuple[str, str]:
    if tally is None or not tally.judged:
        return "-", "dim"
    if tally.failed:
        return str(tally.failed), "bold red"
    return ("ok~", "blue") if tally.number(Verdict.CONVENTION) else ("ok", "green")
