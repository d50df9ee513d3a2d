"""Reports as tables: in Markdown, and in a terminal."""

import collections
import re
from collections.abc import Iterable, Mapping, Sequence

from .causes import KINDS, Cause
from .outcomes import LAWS, Outcome, Outcomes
from .verdicts import Verdict

LEGEND = (
    "A cause is one reason for some faults: one typing error is one cause, however many cases show it. By design: "
    "differences that the library's own documentation or source states; neither faults nor passes. Convention: "
    "the adapter declares it. Not offered: no such argument."
)


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
    rows += [("dtype", report.dtype), ("seed", str(report.seed))]
    rows += [("profile", report.profile), ("level", report.level)]
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return [*rows, ("versions", versions)] if versions else rows


def summary(report: Outcomes) -> str:
    """The result in a sentence."""
    known = [outcome.verdict.value for outcome in report.cases if outcome.known and outcome.verdict.fails]
    told = {verdict: number - known.count(verdict) for verdict, number in report.counts().items()}
    counts = ", ".join(f"{number} {verdict}" for verdict, number in told.items() if number)
    counts += f", {_number(len(known), 'known failure')}" if known else ""
    counts = re.sub(r"\b(?!1 )(\d+) differs", r"\1 differ", counts)
    if report.failures:
        said = f"{_number(len(report.failures), 'fault')} in {len(report.cases)} cases"
        return f"{said}{_of_causes(report)}: {counts}."
    if not report.ok:
        return f"Nothing was judged, so nothing is shown: {counts or 'no case'}."
    return f"Nothing is wrong in {len(report.cases)} cases: {counts}."


def _number(count: int, of: str) -> str:
    return f"{count} {of}{'' if count == 1 else 's'}"


def _of_causes(report: Outcomes) -> str:
    if not report.causes:
        return ""
    kinds = ", ".join(f"{kind} {number}" for kind, number in report.kinds().items() if number)
    return f", of {_number(len(report.causes), 'cause')} ({kinds})"


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
    if report.causes:
        parts += ["## Causes\n", *(cause_markdown(cause, report) for cause in report.causes)]
    if report.failures:
        parts += ["## Faults\n", *map(_fault, report.failures)]
    if designed := report.by_design:
        rows = [[o.case.law, o.case.name, o.finding.message] for o in designed]
        parts += [
            "## By design\n",
            "Documented, so neither fault nor pass.\n",
            table(("law", "case", "contract"), rows),
        ]
    if expected := [o for o in report.cases if o.known]:
        rows = [[o.case.law, o.case.name, o.verdict.value, o.known] for o in expected]
        parts += ["## Known failures\n", table(("law", "case", "now", "why"), rows)]
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


def cause_markdown(cause: Cause, report: Outcomes, level: str = "###") -> str:
    """A cause: what it is, where, the cases that show it, and what can be sent to the maintainers."""
    lines = [f"{level} {cause.harm.value}: {escaped(cause.name)}\n"]
    told = [f"{_number(len(cause.cases), 'case')}: {'; '.join(cause.cases[:6])}{'; ...' * (len(cause.cases) > 6)}"]
    told += [f"where: {cause.where}"] * bool(cause.where)
    told += [f"tried: {cause.tried} of them computed as if it were so, and equal"] * bool(cause.tried)
    told += [f"remedy: {cause.remedy}"] * bool(cause.remedy)
    lines.append("".join(f"- {escaped(line)}\n" for line in told))
    if cause.harm.kind != KINDS[-1]:
        lines += ["Ready to be sent:\n", quoted(upstream(cause, report))]
    return "\n".join(lines)


def upstream(cause: Cause, report: Outcomes) -> str:
    """What to send to the maintainers: what happens, what was expected, and a script."""
    first = next((o for o in report.cases if o.case.name in cause.cases and o.verdict.fails), None)
    versions = ", ".join(f"{k} {x}" for k, x in report.versions.items() if k != "attendax")
    head = f"**{cause.name}** ({report.name} {report.version}; {versions})\n"
    body = cause.report or (first.told() + "\n" if first else "")
    script = cause.script or (first.reproduction if first else "")
    return "\n".join(filter(None, [head, body, fenced(script) if script else ""]))


def quoted(text: str) -> str:
    """Text as a quotation of Markdown."""
    return "".join(f"> {line}".rstrip() + "\n" for line in text.splitlines())


def laws_of(reports: Sequence[Outcomes]) -> list[str]:
    """The laws that any of the reports has cases of, in order."""
    return sorted({law for report in reports for law in report.laws()}, key=lambda law: (len(law), law))


def all_versions(reports: Sequence[Outcomes]) -> str:
    """Of everything that was run, in a line."""
    versions = {name: version for report in reports for name, version in report.versions.items()}
    return ", ".join(f"{name} {version}" for name, version in versions.items())


MATRIX = ("", *KINDS, "by design", "convention", "ok", "not offered")


def matrix_row(report: Outcomes) -> list[str]:
    """Causes by kind, then cases."""
    kinds = report.kinds()
    cases = [report.number(v) for v in (Verdict.BY_DESIGN, Verdict.CONVENTION, Verdict.OK, Verdict.NOT_OFFERED)]
    return [str(x or "-") for x in (*kinds.values(), *cases)]


def matrix_markdown(reports: Sequence[Outcomes], left_out: Mapping[str, str] | None = None) -> str:
    """Implementations by kinds of causes, then the causes of each, and who was left out with the reason."""
    rows = [[f"{report.name} {report.version}".strip(), *matrix_row(report)] for report in reports]
    parts = ["# attendax check\n", table(MATRIX, rows), escaped(LEGEND) + "\n", f"{all_versions(reports)}.\n"]
    for report in reports:
        parts.append(f"## {escaped(report.name)}\n\n{escaped(summary(report))}\n")
        parts += [cause_markdown(cause, report) for cause in report.causes]
        if report.by_design:
            parts += ["### By design\n", "".join(f"- {escaped(line)}\n" for line in _contracts(report))]
    if left_out:
        parts += ["## Left out\n", "".join(f"- {escaped(name)}: {escaped(why)}\n" for name, why in left_out.items())]
    return "\n".join(parts)


def _contracts(report: Outcomes) -> list[str]:
    """Each contract once, with the cases in which it counts."""
    found = collections.defaultdict(list)
    for outcome in report.by_design:
        found[outcome.finding.message.partition("; found ")[0]].append(outcome.case.name)
    return [f"{contract}: {'; '.join(names)}" for contract, names in found.items()]
