"""Words and rows of a report, for every way to show it."""

import collections
import re
from collections.abc import Sequence
from typing import NamedTuple

from ..cases import PROFILES, profiles
from ..judge.verdicts import Verdict
from .coverage import LEFT
from .outcome import Harm, Outcome, number_of
from .outcomes import MODEL_LAWS, Outcomes


def clean(text: str) -> str:
    """Replace characters that a terminal obeys; lines stay."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


class Table(NamedTuple):
    """Cases that are no fault, why, a row for each, and all of it in a line; empty where the coverage says it."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    line: str = ""


def tables(report: Outcomes) -> list[Table]:
    """Tables of cases without a fault: contracts, known failures, conventions, and not offered."""
    known = [o for o in report.cases if o.known]
    passed = "; ".join(o.case.name for o in known if not o.verdict.fails)
    now = f"no longer failing: {passed}" if passed else "all still fail"
    by_reason = collections.defaultdict(list)
    for o in report.of(Verdict.NOT_OFFERED):
        by_reason[o.finding.message.removeprefix("NotImplementedError: ")].append(f"{o.case.law} {o.case.name}")
    found = [
        _table("By design", "Documented, so neither fault nor pass.", "contract", report.by_design, " ("),
        _table("Differs by convention", "Declared, so no fault.", "convention", report.of(Verdict.CONVENTION)),
        Table(
            "Known failures", "", ("law", "case", "now", "why"),
            [(o.case.law, o.case.name, o.verdict.value, o.known) for o in known],
            f"known failures ({number_of(len(known), 'case')}): {now}",
        ),
        Table("Not offered", "", ("why", "cases"), [(why, "; ".join(names)) for why, names in by_reason.items()]),
    ]  # fmt: skip
    return [table for table in found if table.rows]


def _table(title: str, note: str, column: str, outcomes: Sequence[Outcome], end: str = "\n") -> Table:
    rows = [(o.case.law, o.case.name, o.finding.message) for o in outcomes]
    said = "; ".join(dict.fromkeys(message.partition(end)[0] for _, _, message in rows))
    line = f"{title.lower()} ({number_of(len(rows), 'case')}): {said}"
    return Table(title, note, ("law", "case", column), rows, line)


def how(report: Outcomes) -> str:
    """Settings of the run, in a line."""
    level = "" if report.level == "everything" else f"level {report.level}, "
    return f"{report.arrays}, {report.dtype}, {profile_told(report)}, {level}seed {report.seed}"


def about(report: Outcomes) -> list[tuple[str, str]]:
    """Facts about the subject and the run."""
    rows = [("judged", f"{report.name} {report.version}".strip()), ("arrays", report.arrays)]
    rows += [("dtype", report.dtype), ("seed", str(report.seed))]
    rows += [("profile", profile_told(report)), ("level", report.level)]
    rows += [("called in", f"the judging process: {report.process}")] if report.process else []
    rows += [("left out for want of budget", "; ".join(report.left_out))] if report.left_out else []
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return [*rows, ("versions", versions)] if versions else rows


def summary(report: Outcomes) -> str:
    """The result in a sentence, of the cases that were judged; then how many were not, and why."""
    known = [outcome.verdict.value for outcome in report.cases if outcome.known and outcome.verdict.fails]
    told = {verdict: number - known.count(verdict) for verdict, number in report.counts().items()}
    lacking, late = (told.pop(verdict.value, 0) for verdict in LEFT)
    cases = number_of(sum(told.values()) + len(known), "case")
    counts = ", ".join(f"{number} {verdict}" for verdict, number in told.items() if number)
    counts += f", {number_of(len(known), 'known failure')}" if known else ""
    counts = re.sub(r"\b(?!1 )(\d+) differs", r"\1 differ", counts)
    if report.failures:
        found = collections.Counter(cause.harm for cause in report.causes)
        kinds = ", ".join(f"{harm} {found[harm]}" for harm in Harm if found[harm])
        causes = f", of {number_of(len(report.causes), 'cause')} ({kinds})" if report.causes else ""
        said = f"{number_of(len(report.failures), 'fault')} in {cases}{causes}: {counts}."
    elif report.judged:
        little = "" if report.ok else ", and too little was judged"
        said = f"Nothing is wrong in {cases}{little}: {counts}."
    else:
        said = f"Nothing was judged, so nothing is shown{f': {counts}' if counts else ''}."
    asking = f"{lacking} more" if counts else number_of(lacking, "case")
    said += f" {asking} {'asks' if lacking == 1 else 'ask'} for what it does not offer." if lacking else ""
    return said + (f" There was no time for {number_of(late, 'case')}." if late else "")


def profile_told(report: Outcomes) -> str:
    """The profile that was asked, and numbers of cases that those after it would add."""
    later = () if report.laws().keys() & MODEL_LAWS.keys() else PROFILES[PROFILES.index(report.profile) + 1 :]
    beyond = [f"{name} adds {number_of(profiles(report.level)[name], 'case')}" for name in later]
    return f"profile {report.profile}" + (f" ({', '.join(beyond)})" if beyond else "")
