"""Words and rows of a report, for every way to show it; and the screen of a terminal, or a pipe."""

import itertools
import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..cases import PROFILES, kinds, profiles
from ..cases.case import FORWARD
from ..judge.verdicts import Verdict
from .outcomes import LEFT, MODEL_LAWS, Cause, Harm, Outcomes, number_of

if TYPE_CHECKING:
    from rich.console import Console


def clean(text: str) -> str:
    """Replace characters that a terminal obeys; lines stay."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def others(report: Outcomes) -> Iterator[str]:
    """Lines about cases that are neither faults nor passes: differences by convention, and known failures."""
    if conventions := [o.finding.message.partition("\n")[0] for o in report.of(Verdict.CONVENTION)]:
        number = number_of(len(conventions), "case")
        yield f"differs by convention ({number}): {'; '.join(dict.fromkeys(conventions))}"
    if known := [o for o in report.cases if o.known]:
        passed = "; ".join(o.case.name for o in known if not o.verdict.fails)
        now = f"no longer failing: {passed}" if passed else "all still fail"
        yield f"known failures ({number_of(len(known), 'case')}): {now}"


def how(report: Outcomes) -> str:
    """Settings of the run, in a line."""
    level = "" if report.level == "everything" else f"level {report.level}, "
    settings = (report.arrays, report.dtype, f'profile "{report.profile}"', f"{level}seed {report.seed}")
    return ", ".join(filter(None, settings))


def about(report: Outcomes) -> list[tuple[str, str]]:
    """Facts about the subject and the run."""
    rows = [("judged", f"{report.name} {report.version}".strip()), ("arrays", report.arrays)]
    rows += [("dtype", report.dtype), ("seed", str(report.seed))]
    rows += [("profile", report.profile), ("level", report.level)]
    rows += [("no separate process", report.process)] if report.process else []
    rows += [("not tested for lack of time", "; ".join(report.left_out))] if report.left_out else []
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return [*rows, ("versions", versions)] if versions else rows


def headline(report: Outcomes) -> str:
    """OK, FAIL for a fault or a defect, INCOMPLETE if too little was judged or the meaning is not settled."""
    return "OK" if report.ok else "FAIL" if report.failures or report.defects else "INCOMPLETE"


def summary(report: Outcomes) -> str:
    """The result of the cases that were judged in a sentence; the coverage says what was not judged."""
    known = [outcome.verdict.value for outcome in report.cases if outcome.known and outcome.verdict.fails]
    numbers = {verdict: number - known.count(verdict) for verdict, number in report.counts().items()}
    _, late = (numbers.pop(verdict.value, 0) for verdict in LEFT)
    total, passed = sum(numbers.values()) + len(known), numbers.get(Verdict.OK.value, 0)
    by_convention = Verdict.CONVENTION.value  # neither a fault nor a pass
    others = [f"{numbers[by_convention]} {by_convention}"] if numbers.get(by_convention) else []
    others += [number_of(len(known), "known failure")] if known else []
    rest = re.sub(r"\b(?!1 )(\d+) differs", r"\1 differ", f" ({', '.join(others)})" if others else "")
    if report.failures:
        failed = len(report.failures)
        told = f"{failed} of {number_of(total, 'case')} {'fails' if failed == 1 else 'fail'}{_reasons(report)}{rest}."
    elif report.judged:
        little = ", but too little was judged" if report.coverage.gaps else ""
        little = ", but the meaning of the function is not settled" if report.unsettled else little
        little = ", but its calls show a defect" if report.defects else little
        told = f"{passed} of {number_of(total, 'case')} {'passes' if passed == 1 else 'pass'}{rest}{little}."
    else:
        told = f"No case was judged{rest}."
    return told + (f" There was no time for {number_of(late, 'case')}." if late else "")


def _reasons(report: Outcomes) -> str:
    """The number of reasons; and of how many faults the reason was not searched, for lack of time, and what to add."""
    least = "at least " * any(cause.least for cause in report.causes)
    told = f", for {least}{number_of(len(report.causes), 'reason')}" if report.causes else ""
    late = [cause for cause in report.causes if cause.lacks_time]
    number = number_of(sum(len(cause.cases) for cause in late), "fault")
    if not late:
        return told
    return f"{told}; no time was left to find the reason of {number}:{late[0].remedy.partition(':')[2]}"


def further_profiles(report: Outcomes) -> list[str]:
    """The profiles after the one that was asked, each with the number of cases that it adds to this one."""
    later = () if report.laws().keys() & MODEL_LAWS.keys() else PROFILES[PROFILES.index(report.profile) + 1 :]
    added = itertools.accumulate(profiles(report.level)[name] for name in later)
    return [f"--profile {name} adds {number}" for name, number in zip(later, added, strict=True)]


MOST_CAUSES = 8  # causes that a screen shows
StyledLine = tuple[int, *tuple[tuple[str, str], ...]]  # how far it is indented; words, and how they look


def terminal(report: Outcomes, console: "Console", *, scripts: bool = False, whole: bool = True) -> None:
    """Print the result in a sentence, the causes by harm, and all else; with ``scripts`` a script for each.

    Only a ``whole`` run, of all cases of its profile, says how many cases the other profiles add.
    """
    from rich.padding import Padding
    from rich.text import Text

    def say(indent: int, *parts: tuple[str, str]) -> None:
        text = Text.assemble(*((clean(words), style) for words, style in parts))
        if not console.is_terminal:  # a pipe gets each line whole
            console.print(Text(" " * indent) + text, soft_wrap=True)
        else:
            console.print(Padding(text, (0, 0, 0, indent)) if indent else text)

    for line in _lines(report, scripts=scripts):
        say(*line)
    shown = [cause.cases[0] for cause in report.causes] or [outcome.case.name for outcome in report.failures]
    for outcome in report.cases if scripts else ():
        if outcome.case.name in shown and outcome.reproduction:
            console.rule(Text(f"{outcome.case.law}, {outcome.case.name}"), style="dim", align="left")
            console.print(Text(clean(outcome.reproduction)), soft_wrap=True)
    say(0, (str(report.coverage), "" if report.ok else "bold"))
    if whole and (further := further_profiles(report)):
        say(0, (f"More cases: {', '.join(further)}.", "dim"))


def _lines(report: Outcomes, *, scripts: bool) -> Iterator[StyledLine]:
    look = "bold green" if report.ok else "bold red"
    name = f"{report.name} {report.version}".rstrip()
    yield 0, (headline(report), look), (f"  {name}", "bold"), (f"   {how(report)}", "dim")
    if report.process:
        yield 0, (f"No separate process: {report.process}.", "dim")
    for line in (*report.called[1:], "") if report.called else ():
        yield 0, (line, "")
    yield 0, (summary(report), look)
    for words in report.defects:
        yield 0, ("defect: ", "bold red"), (words, "bold")
    for words in report.unsettled:
        yield 0, ("unsettled: ", "bold red"), (words, "bold")
    for place, cause in enumerate(report.causes[:MOST_CAUSES], start=1):
        law, words = _law_and_words(cause)
        yield 0, (f"{place}. {cause.harm.value}{f' ({law})' if law else ''}: ", "bold red"), (words, "bold")
        yield 3, (_told(cause, report), "dim")
        if cause.remedy:
            number = cause.tried if cause.remedy.startswith("--") else 0
            yield 3, (cause.remedy, "cyan"), (f" clears {number_of(number, 'case')}" if number else "", "")
        if not scripts and any(o.case.name == cause.cases[0] and o.reproduction for o in report.failures):
            options = f"--seed {report.seed} --reproduce {shlex.quote(cause.cases[0])}"
            yield 3, (f"For a script that shows it, add {options}", "dim")
    if len(report.causes) > MOST_CAUSES:
        yield 0, (f"{len(report.causes) - MOST_CAUSES} more reasons: --markdown FILE has all.", "")
    for outcome in () if report.causes else report.failures[:MOST_CAUSES]:
        yield 0, (f"{outcome.case.law} {outcome.case.name}", "bold"), (f"  {outcome.case.about}", "dim")
        yield 3, (outcome.told(), "")
    if report.failures and not report.causes and not scripts:
        yield 0, (f'For a script that shows a fault, add --seed {report.seed} --reproduce "NAME OF A CASE"', "dim")
    yield from ((0, (line, "dim")) for line in others(report))
    if report.left_out:
        yield 0, (f"Not tested for lack of time: {'; '.join(report.left_out)}. --budget SECONDS gives more.", "dim")


def _law_and_words(cause: Cause) -> tuple[str, str]:
    """The law of a model, or the claim, that a cause breaks, and how; an empty law if its words name none."""
    law, _, words = cause.name.partition(": ")
    return (law, words) if words and law in (*MODEL_LAWS, *kinds.CLAIMS) else ("", cause.name)


def _told(cause: Cause, report: Outcomes) -> str:
    """The number of cases that show it, the plainest of them, and what was tried, or else what that case gave."""
    first = next((o for o in report.cases if o.case.name == cause.cases[0]), None)
    law = f" ({first.case.law})" if first and not first.case.name.startswith(f"{first.case.law}: ") else ""
    number, shown = len(cause.cases), f"{cause.cases[0]!r}{law}"
    told = f"{number_of(number, 'case')}, such as {shown}" if number > 1 else shown
    if cause.tried:
        results, rest = "results" if number > 1 else "result", number - cause.tried
        which = f" in {number_of(cause.tried, 'case')}" if rest > 0 else ""
        other = f" It is not confirmed in the other {rest if rest > 1 else 'case'}."
        got = f"correct attention with this mistake added gives the same {results}"
        return f"{told}. The cause is confirmed{which}: {got}.{other if rest > 0 else ''}"
    least = ". The cases may have several causes." * (cause.least and number > 1)
    facts = first.facts() if first else {}
    if {"expected", "got"} <= facts.keys():
        follows = cause.harm is Harm.NUMBERS and first is not None and first.case.level != FORWARD
        place = f" in {first.finding.leaf}" if follows and first else ""  # of gradients, after a wrong result
        return f"{told}: expected {facts['expected']}, got {facts['got']}{place}{least}"
    if first and first.finding.message not in cause.name:
        return f"{told}: {first.finding.message.removeprefix(f'{_law_and_words(cause)[1]}: ')}{least}"
    return f"{told}{least}"
