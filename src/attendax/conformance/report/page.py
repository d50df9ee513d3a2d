"""The page: implementations by laws, and behind each cell its cases. One file, nothing from elsewhere."""

import importlib.resources
from collections.abc import Mapping, Sequence
from html import escape

from ..judge.verdicts import Verdict
from .outcome import KINDS, Outcome, times
from .outcomes import LAWS, Outcomes
from .summary import clean, how, summary

BAD = ("bad", "✕")
VERDICTS = {  # how each looks, its sign, and what it means
    Verdict.OK: ("ok", "✓", "as the law says, within what is allowed"),
    Verdict.CONVENTION: ("other", "~", "another convention, which the adapter declares; no fault"),
    Verdict.BY_DESIGN: ("other", "◦",
        "another contract, which its own documentation or source states; neither a fault nor a pass"),
    Verdict.NOT_OFFERED: ("none", "–", "no such argument, or declared; counted apart, never as a pass"),
    Verdict.WRONG: (*BAD, "other numbers, shapes or dtypes"),
    Verdict.LEAK: (*BAD, "what may not matter changes the result"),
    Verdict.NAN: (*BAD, "not a number where there is one"),
    Verdict.SILENT: (*BAD, "an argument ignored, a mistake accepted, a gradient of zeros"),
    Verdict.OBSCURE: (*BAD, "a legal call fails, or an error that does not say what is wrong"),
    Verdict.CRASH: (*BAD, "the process of the function ended, or gave no answer that can be read"),
    Verdict.TIMEOUT: (*BAD, "no answer in time"),
    Verdict.NOT_JUDGED: ("none", "–", "no time was left; counted apart, never as a pass"),
}  # fmt: skip
SCRIPT = """
const reveal = () => {
  const found = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let x = found; x; x = x.parentElement) if (x.tagName === "DETAILS") x.open = true;
  if (found) found.scrollIntoView();
};
addEventListener("hashchange", reveal);
reveal();
"""


def page(reports: Sequence[Outcomes], left_out: Mapping[str, str] | None = None) -> str:
    """The page as HTML, of a report for each implementation; those that are left out are named with the reason."""
    laws = sorted({law for report in reports for law in report.laws()}, key=list(LAWS).index)
    style = importlib.resources.files(__package__).joinpath("page.css").read_text("utf-8")
    title = f"Attention by the laws: {reports[0].name}" if len(reports) == 1 else "Attention by the laws"
    known = {name: version for report in reports for name, version in report.versions.items()}
    versions = "".join(f"<li>{text(name)} {text(version)}</li>" for name, version in known.items())
    missing = "".join(f"<p><strong>{text(name)}</strong> {text(why)}</p>" for name, why in (left_out or {}).items())
    body = [
        f"<h1>{text(title)}</h1>", _lead(reports), _matrix(reports, laws), _legend(reports, laws),
        versions and f'<ul class="line" aria-label="Versions">{versions}</ul>',
        missing and f"<h2>Left out</h2>{missing}",
        *(_section(k, report) for k, report in enumerate(reports)),
    ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, body))
        + f"\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def text(words: object) -> str:
    """Escaped, without control characters."""
    return escape(clean(str(words)))


def _lead(reports: Sequence[Outcomes]) -> str:
    if len(reports) == 1:
        return f"<p>{text(summary(reports[0]))}</p>"
    cases, fine = max((len(x.cases) for x in reports), default=0), sum(x.ok for x in reports)
    return (
        f"<p>{len(reports)} implementations of attention, {cases} cases each, held against a definition in float64. "
        f"{fine} of them {'is' if fine == 1 else 'are'} without a fault. "
        "A cell leads to its cases, and each fault to a script that shows it.</p>"
    )


def _badge(style: str, words: str) -> str:
    return f'<span class="badge {style}">{words}</span>'


def _verdict(verdict: Verdict) -> str:
    return _badge(VERDICTS[verdict][0], f"{VERDICTS[verdict][1]} {verdict.value}")


def _matrix(reports: Sequence[Outcomes], laws: Sequence[str]) -> str:
    head = "".join(f'<th scope="col" title="{text(LAWS.get(law, ""))}">{law}</th>' for law in laws)
    rows = []
    for k, report in enumerate(reports):
        tallies, counted = report.laws(), [*report.kinds().values(), report.number(Verdict.BY_DESIGN)]
        cells = "".join(f"<td>{number or '–'}</td>" for number in counted)
        cells += "".join(f"<td>{_cell(k, law, tallies.get(law), report)}</td>" for law in laws)
        name = f'<a href="#i{k}">{text(report.name)}</a> <span>{text(report.version)}</span>'
        rows.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    kinds = "".join(f'<th scope="col">{kind}</th>' for kind in (*KINDS, Verdict.BY_DESIGN.value))
    table = f"<thead><tr><th></th>{kinds}{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    region = '<div class="scroll" role="region" aria-label="Implementations by laws" tabindex="0">'
    return f'{region}<table class="matrix">{table}</table></div>'


def looks(own: Outcomes) -> tuple[str, str]:
    """The colour of a law, and how many cases are fine, of how many; from half of the cases on, a fault is worse."""
    fine, failed = own.number(Verdict.OK), own.failed
    if failed:
        return "worse" if 2 * failed >= own.offered else "bad", f"✕ {fine}/{fine + failed}"
    return ("ok", f"✓ {fine}") if fine else ("other", "~") if own.offered else ("none", "–")


def _cell(k: int, law: str, own: Outcomes | None, report: Outcomes) -> str:
    if own is None:
        return '<span class="none">–</span>'
    differing = own.number(Verdict.CONVENTION)
    note = f"<small>~ {differing}</small>" if differing else ""
    words = f"{law}, {LAWS.get(law, '')}: {own.failed} faults in {own.offered} cases offered"
    style, result = looks(own)
    link = f'<a class="{style}" href="#i{k}-{law}" title="{text(words)}">'
    within = {outcome.case.name for outcome in own.cases}
    causes = sum(not within.isdisjoint(cause.cases) for cause in report.causes)
    return f"{link}{f'✕ {causes}' if causes else result}{note}</a>"


def _legend(reports: Sequence[Outcomes], laws: Sequence[str]) -> str:
    used = {outcome.verdict for report in reports for outcome in report.cases}
    items = "".join(f"<li>{_verdict(v)} <span>{text(VERDICTS[v][2])}</span></li>" for v in Verdict if v in used)
    cells = (
        "Columns of words: causes of that kind, and cases that differ by design. Columns of laws: ✓ 14, nothing is "
        "wrong in 14 cases; ✕ 2, so many causes have faults under that law; "
        "~ 2, so many more differ by a declared convention; – nothing is offered."
    )
    names = "".join(f"<li><strong>{law}</strong> {text(LAWS.get(law, ''))}</li>" for law in laws)
    legend = f'<p class="soft small">{cells}</p><ul class="legend">{items}</ul>'
    return f'{legend}<ul class="line" aria-label="Laws">{names}</ul>'


def _section(k: int, report: Outcomes) -> str:
    """An implementation: its causes, and its laws, each to be opened."""
    up = '<a class="up" href="#">to the matrix</a>'
    head = f'<h2 id="i{k}">{text(report.name)} <span class="soft">{text(report.version)}</span>{up}</h2>'
    told = f'{text(summary(report))} {text(report.coverage)}<br><span class="soft">{text(how(report))}</span>'
    causes = "".join(
        _case(_badge("bad", f"✕ {cause.harm.value}"), cause.name, "", "", cause.facts(), cause.script)
        for cause in report.causes
    )
    laws = "".join(_law(k, law, own) for law, own in report.laws().items())
    return f'<section>{head}<p class="small">{told}</p>{causes}{laws}</section>'


def _law(k: int, law: str, own: Outcomes) -> str:
    worst, measured = own.worst, ""
    if worst and worst.multiple is not None:
        over = ' class="over"' if worst.multiple > 1 else ""
        measured = f"worst error <b{over}>{times(worst.multiple).replace(' x', '×')}</b> allowed"
    faults = "".join(
        _case(_verdict(o.verdict), o.case.name, o.case.about, o.finding.message, o.facts(), o.reproduction)
        for o in own.cases
        if o.verdict.fails
    )
    order = (Verdict.BY_DESIGN, Verdict.CONVENTION, Verdict.OK, Verdict.NOT_OFFERED, Verdict.NOT_JUDGED)
    rest = "".join(_row(o) for verdict in order for o in own.cases if o.verdict is verdict)
    table = f'<table class="rest">{rest}</table>' if rest else ""
    return (
        f'<details class="law" id="i{k}-{law}"><summary><span class="number">{law}</span>'
        f'<span class="title">{text(LAWS.get(law, ""))}</span>'
        f'<span class="result">{_badge(*looks(own))}</span>'
        f'<span class="worst">{measured}</span></summary><div class="cases">{faults}{table}</div></details>'
    )


def _case(kind: str, name: str, asked: str, message: str, facts: Mapping[str, str], script: str) -> str:
    """A cause or a fault: its facts, and a script that shows it."""
    rows = "".join(f"<div><dt>{text(fact)}</dt><dd>{text(what)}</dd></div>" for fact, what in facts.items())
    shown = f"<pre>{text(script)}</pre>" if script else ""
    return (
        f'<details class="case"><summary>{kind} <span class="name">{text(name)}</span> '
        f'<span class="soft small">{text(asked)}</span></summary>'
        f'<div class="body"><p class="message">{text(message)}</p><dl class="facts">{rows}</dl>{shown}</div></details>'
    )


def _row(outcome: Outcome) -> str:
    facts = outcome.facts()
    measured = ", ".join(f"{k} {facts[k]}" for k in ("error", "allowed", "dense formula") if k in facts)
    told = outcome.finding.message.removeprefix("NotImplementedError: ") or measured
    return (
        f"<tr><td>{_verdict(outcome.verdict)}</td><td>{text(outcome.case.name)}</td>"
        f'<td class="soft about">{text(outcome.case.about)}</td><td>{text(told)}</td></tr>'
    )
