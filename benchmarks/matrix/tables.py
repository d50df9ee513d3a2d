"""Several reports as one table: in Markdown, and in a terminal."""

import collections
import datetime
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attendax.conformance.cases import Case, named
from attendax.conformance.judge.verdicts import Finding, Verdict
from attendax.conformance.report import Report
from attendax.conformance.report.markdown import cause_markdown, escaped, table
from attendax.conformance.report.outcomes import KINDS, Cause, Harm, Outcome, Outcomes, to_json, versions
from attendax.conformance.report.summary import clean, summary

from .adapters.known import DESIGN, FAULTS

if TYPE_CHECKING:
    from rich.console import Console

LEGEND = (
    "A cause is one reason for some faults: one typing error is one cause, however many cases show it. By design: "
    "differences that the library's own documentation or source states; neither faults nor passes. Convention: "
    "the adapter declares it. Not offered: no such argument."
)
NUMBERS = ("expected", "got", "error", "allowed", "dense_error")  # of a finding; JSON has them as text if not finite
MATRIX = ("", *KINDS, "by design", "convention", "ok", "not offered")


def today() -> str:
    """The date of the run, for the record."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def in_lines(x: Any, levels: int = 4) -> str:
    """JSON with a line for each case: lists and mappings of the first levels are written over several lines."""
    if not levels or not x or not isinstance(x, (dict, list)):
        return json.dumps(x, allow_nan=False)
    parts = [in_lines(one, levels - 1) for one in (x.values() if isinstance(x, dict) else x)]
    if isinstance(x, dict):
        parts = [f"{json.dumps(name)}: {part}" for name, part in zip(x, parts, strict=True)]
    opening, closing = "{}" if isinstance(x, dict) else "[]"
    return f"{opening}\n" + ",\n".join(parts) + f"\n{closing}"


def reports_json(reports: Sequence[Outcomes], left_out: Mapping[str, str]) -> str:
    """The date, versions, who was left out, and each report without seconds, with a script for each cause."""
    told = json.loads(to_json([report.to_dict() for report in reports]))
    for report in told:
        firsts = {cause["cases"][0] for cause in report["causes"]}
        for cause in report["causes"]:
            if known := FAULTS.get(cause["name"]):
                cause |= {"where": known.where, "report": known.report}
        for case in report["cases"]:
            del case["seconds"]
            if case.get("known", "").startswith(DESIGN):
                case["verdict"] = DESIGN.removesuffix(": ")
            if case["name"] not in firsts:
                del case["reproduction"]
        report["counts"] = collections.Counter(case["verdict"] for case in report["cases"])
    found = {"date": today(), "versions": versions("jax"), "left_out": dict(left_out), "reports": told}
    return in_lines(found) + "\n"


def report_from(found: Mapping[str, Any]) -> Report:
    """The report of which ``to_dict`` gave this, after JSON."""
    about = {name: x for name, x in found.items() if name in Report._fields}
    causes = [{name: x for name, x in cause.items() if name in Cause._fields} for cause in found["causes"]]
    lists = "require", "left_out", "called", "unsettled", "defects"
    return Report(**about | {name: tuple(found.get(name, ())) for name in lists} | {
        "cases": tuple(map(_outcome_from, found["cases"])),
        "causes": tuple(Cause(**x | {"harm": Harm(x["harm"]), "cases": tuple(x["cases"])}) for x in causes),
    })  # fmt: skip


def _outcome_from(found: Mapping[str, Any]) -> Outcome:
    case = named(found["name"]) or Case(found["name"], found["law"], found["about"])
    given = {name: x for name, x in found.items() if name in Finding._fields}
    given |= {name: float(given[name]) for name in NUMBERS if name in given}
    given |= {"verdict": Verdict(found["verdict"]), "index": tuple(found["index"]) if "index" in found else None}
    own = {name: x for name, x in found.items() if name in ("seconds", "reproduction", "known", "seed")}
    return Outcome(case, Finding(**given), **{"seconds": 0.0, "reproduction": ""} | own)


def all_versions(reports: Sequence[Outcomes]) -> str:
    """Versions of everything that was run, in a line."""
    versions = {name: version for report in reports for name, version in report.versions.items()}
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def matrix_row(report: Outcomes) -> list[str]:
    """Causes by kind, then cases."""
    kinds = collections.Counter(cause.harm.kind for cause in report.causes)
    cases = [report.number(v) for v in (Verdict.CONVENTION, Verdict.OK, Verdict.NOT_OFFERED)]
    return [str(x or "-") for x in (*(kinds[kind] for kind in KINDS), len(by_design(report)), *cases)]


def by_design(report: Outcomes) -> list[Outcome]:
    """The cases in which it differs as its documentation or source states."""
    return [outcome for outcome in report.cases if outcome.known.startswith(DESIGN)]


def matrix_markdown(reports: Sequence[Outcomes], left_out: Mapping[str, str] | None = None) -> str:
    """Implementations by kinds of causes, then the causes of each, and who was left out with the reason."""
    rows = [[f"{report.name} {report.version}".strip(), *matrix_row(report)] for report in reports]
    seeds = ", ".join(dict.fromkeys(str(report.seed) for report in reports))
    parts = ["# attendax check\n", table(MATRIX, rows), escaped(LEGEND) + "\n"]
    parts += [f"{today()}, seed {seeds}. {all_versions(reports)}.\n"]
    for report in reports:
        parts.append(f"## {escaped(report.name)}\n\n{escaped(summary(report))}\n")
        parts += [_cause(cause, report) for cause in report.causes]
        if by_design(report):
            parts += ["### By design\n", "".join(f"- {escaped(line)}\n" for line in _contracts(report))]
    if left_out:
        parts += ["## Left out\n", "".join(f"- {escaped(name)}: {escaped(why)}\n" for name, why in left_out.items())]
    return "\n".join(parts)


def _cause(cause: Cause, report: Outcomes) -> str:
    """A cause; a known one with its place, and the text for its maintainers."""
    known = FAULTS.get(cause.name)
    return cause_markdown(cause, report, known.report, where=known.where) if known else cause_markdown(cause, report)


def _contracts(report: Outcomes) -> list[str]:
    """List each contract once, with the cases in which it counts."""
    found = collections.defaultdict(list)
    for outcome in by_design(report):
        found[outcome.known.removeprefix(DESIGN)].append(outcome.case.name)
    return [f"{contract}: {'; '.join(names)}" for contract, names in found.items()]


def matrix_terminal(reports: Sequence[Outcomes], console: "Console", left_out: Mapping[str, str] | None = None) -> None:
    """Print implementations by kinds of causes; narrow columns, so that a name and all of them fit 40 columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    short = {"wrong numbers": "wrong", "robustness gap": "gap", "by design": "design", "convention": "conv",
             "not offered": "none"}  # fmt: skip
    columns = [
        k for k, name in enumerate(MATRIX[1:]) if name not in ("convention", "not offered") or console.width >= 60
    ]
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, header_style="bold")
    taken = sum(max(3, len(short.get(MATRIX[k + 1], MATRIX[k + 1]))) + 1 for k in columns)
    room = max(8, console.width - taken - 3)
    found.add_column("", no_wrap=True, width=room)
    for k in columns:
        found.add_column(short.get(MATRIX[k + 1], MATRIX[k + 1]), justify="right", no_wrap=True, min_width=3)
    for report in reports:
        name = report.name if len(report.name) <= room else f"{report.name[: room - 1]}…"
        cells = matrix_row(report)
        found.add_row(Text(clean(name), "bold" if report.ok else ""), *(_styled(k, cells[k]) for k in columns))
    console.print(found)
    console.print(Text("causes that give wrong numbers, crash, or are a gap in robustness; then cases", "dim"))
    for name, why in (left_out or {}).items():
        console.print(Text.assemble(("left out  ", "yellow"), clean(f"{name}: {why}")))


def _styled(k: int, cell: str) -> Any:
    from rich.text import Text

    return Text(cell, "dim" if cell == "-" else ("bold red", "red", "yellow", "blue")[k] if k < 4 else "")
