"""A report in Markdown, with what can be sent to maintainers."""

import collections
import re
from collections.abc import Iterable, Sequence

from ..judge.verdicts import Verdict
from .outcomes import KINDS, LAWS, Cause, Outcome, Outcomes
from .summary import about, clean, summary

MEASURED = {"error": "worst error", "allowed": "allowed", "of allowed": "of allowed"}
OF_ERRORS = (
    "An error is the largest difference as a share of the largest number expected; allowed is twice that of the plain "
    "dense formula in the same dtype, or what the case says."
)


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
    title = escaped(f"{report.name} {report.version}".strip())
    parts = [f"# attendax check: {title}\n", table(("", ""), about(report))]
    parts += [f"**{escaped(summary(report))}**\n", f"{escaped(str(report.coverage))}\n"]
    parts += ["## Laws\n", _laws(report), f"{OF_ERRORS}\n"]
    if report.causes:
        parts += ["## Causes\n", *(cause_markdown(cause, report) for cause in report.causes)]
    if report.failures:
        parts += ["## Faults\n", *map(_fault, report.failures)]
    if rows := [(o.case.law, o.case.name, o.finding.message) for o in report.of(Verdict.CONVENTION)]:
        head = "## Differs by convention\n", "Declared, so not a fault.\n"
        parts += [*head, table(("law", "case", "convention"), rows)]
    if known := [(o.case.law, o.case.name, o.verdict.value, o.known) for o in report.cases if o.known]:
        parts += ["## Known failures\n", table(("law", "case", "now", "why"), known)]
    by_reason = collections.defaultdict(list)
    for o in report.of(Verdict.NOT_OFFERED):
        by_reason[o.finding.message.removeprefix("NotImplementedError: ")].append(f"{o.case.law} {o.case.name}")
    if by_reason:
        parts += ["## Not offered\n", table(("why", "cases"), ((why, "; ".join(x)) for why, x in by_reason.items()))]
    return "\n".join(parts)


def _laws(report: Outcomes) -> str:
    """Each law: verdicts that occur, and its worst error."""
    kinds = [v for v in Verdict if v is Verdict.OK or report.number(v)]
    rows = []
    for law, own in report.laws().items():
        facts, name = (own.worst.facts(), own.worst.case.name) if own.worst else ({}, "")
        measured = (facts.get(fact, "") for fact in MEASURED)
        rows.append([law, LAWS.get(law, ""), *(str(own.number(v) or "") for v in kinds), *measured, name])
    return table(["law", "", *(verdict.value for verdict in kinds), *MEASURED.values(), "in case"], rows)


def _fault(outcome: Outcome) -> str:
    case = outcome.case
    facts = "".join(f"- {name}: {escaped(text)}\n" for name, text in outcome.facts().items())
    head = f"### {case.law}, {escaped(case.name)}\n\nAsked: {escaped(case.about)}.\n"
    found = f"**{outcome.verdict}**: {escaped(outcome.finding.message)}\n"
    return "\n".join(filter(None, [head, found, facts, fenced(outcome.reproduction)]))


def cause_markdown(cause: Cause, report: Outcomes, body: str = "", **more: str) -> str:
    """A cause: what it is, the cases that show it, ``more`` facts, and a ``body`` to be sent to the maintainers."""
    lines = [f"### {cause.harm.value}: {escaped(cause.name)}\n"]
    lines.append("".join(f"- {escaped(f'{name}: {text}')}\n" for name, text in (cause.facts() | more).items()))
    if cause.harm.kind != KINDS[-1]:
        quoted = (f"> {line}".rstrip() + "\n" for line in upstream(cause, report, body).splitlines())
        lines += ["Ready to be sent:\n", "".join(quoted)]
    return "\n".join(lines)


def upstream(cause: Cause, report: Outcomes, body: str = "") -> str:
    """A report for the maintainers: the fault, the right result, and a script."""
    first = next((o for o in report.cases if o.case.name in cause.cases and o.verdict.fails), None)
    versions = ", ".join(f"{k} {x}" for k, x in report.versions.items() if k != "attendax")
    head = f"**{cause.name}** ({report.name} {report.version}; {versions})\n"
    body = body or (first.told() + "\n" if first else "")
    script = cause.script or (first.reproduction if first else "")
    return "\n".join(filter(None, [head, body, fenced(script) if script else ""]))
