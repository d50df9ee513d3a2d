"""`{matrix} file.json`: a report of `python -m benchmarks matrix` as tables of counts and of causes."""

import json
from collections import Counter, defaultdict
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attendax.conformance.report.outcomes import LAWS, MODEL_LAWS

NO_FAULT = ("ok", "differs by convention", "by design", "not offered")


class Matrix(SphinxDirective):
    """`:show: counts` is the first table, `:show: causes` the second and what filters it."""

    required_arguments = 1
    option_spec = {"show": lambda value: directives.choice(value, ("counts", "causes"))}

    def run(self) -> list[nodes.Node]:
        """Read the file, which the page depends on."""
        file, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(file)
        reports = json.loads(Path(path).read_text("utf-8"))["reports"]
        shown = counts(reports) if self.options["show"] == "counts" else filters(reports) + causes(reports)
        return [nodes.raw("", shown, format="html")]


def law_number(law: str) -> int:
    """L2 before L10, and the laws of models in their order."""
    return list(LAWS).index(law)


def laws_of(reports: list[dict[str, Any]]) -> list[str]:
    """The laws that some case cites, in their order."""
    cited = dict.fromkeys(case["law"] for report in reports for case in report["cases"])
    return sorted(cited, key=law_number)


def counts(reports: list[dict[str, Any]]) -> str:
    """A row for each implementation, a column for each law: how many of the cases that it offers have no fault."""
    laws = laws_of(reports)
    head = "".join(f'<th scope="col">{_linked(law)}</th>' for law in laws)
    rows = "".join(
        f'<tr><th scope="row">{escape(report["name"])} {escape(str(report["version"] or ""))}</th>'
        + "".join(_count([case["verdict"] for case in report["cases"] if case["law"] == law]) for law in laws)
        + "</tr>"
        for report in reports
    )
    table = f"<thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody>"
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="Counts">'
        f'<table class="matrix counts">{table}</table></div>'
        '<p class="matrix-detail" role="status"></p>'
    )


def _linked(law: str) -> str:
    page = "check-a-model.html#the-laws" if law in MODEL_LAWS else f"laws/{law}.html"
    return f'<a href="{page}">{law}</a>'


def _count(verdicts: list[str]) -> str:
    verdicts = [verdict for verdict in verdicts if verdict != "not offered"]
    faults = sum(verdict not in NO_FAULT for verdict in verdicts)
    kind = "none" if not verdicts else "some" if faults else "fine"
    shown = {"none": "–", "some": f"{len(verdicts) - faults} of {len(verdicts)}", "fine": str(len(verdicts))}[kind]
    found = Counter(verdict for verdict in verdicts if verdict != "ok")
    title = escape(", ".join(f"{number} {verdict}" for verdict, number in found.items()))
    if not title:
        return f'<td class="{kind}">{shown}</td>'
    return f'<td class="{kind}"><button type="button" data-detail="{title}" title="{title}">{shown}</button></td>'


class Cause(NamedTuple):
    """Why some cases of an implementation fail, and what is told about it beside: name and text."""

    kind: str
    words: str
    cases: list[str]
    told: dict[str, str] = {}


def found_in(report: dict[str, Any]) -> list[Cause]:
    """Faults of a report, the causes with most cases first."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for case in [] if "causes" in report else report["cases"]:
        if case["verdict"] not in NO_FAULT:
            groups[case["verdict"], case["about"]].append(case["name"])
    found = [Cause(*words, names) for words, names in groups.items()]
    for cause in report.get("causes", ()):
        told = {name: cause[name] for name in ("where", "remedy", "report", "script") if cause.get(name)}
        found.append(Cause(cause["harm"], cause["name"], list(cause["cases"]), told))
    return sorted(found, key=lambda cause: -len(cause.cases))


def causes(reports: list[dict[str, Any]]) -> str:
    """A row for each cause of each implementation."""
    rows = []
    for report in reports:
        law_of = {case["name"]: case["law"] for case in report["cases"]}
        for cause in found_in(report):
            cited = dict.fromkeys(law_of[name] for name in cause.cases if name in law_of)
            laws = sorted(cited, key=law_number)
            cells = [escape(report["name"]), escape(cause.kind), " ".join(laws), escape(cause.words) + _told(cause)]
            listed = "".join(f"<li>{escape(name)}</li>" for name in cause.cases)
            cells.append(f"<details><summary>{len(cause.cases)}</summary><ul>{listed}</ul></details>")
            keys = f'data-library="{cells[0]}" data-kind="{cells[1]}" data-law="{cells[2]}"'
            rows.append(f"<tr {keys}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f'<th scope="col">{name}</th>' for name in ("library", "kind", "laws", "what", "cases"))
    return (
        f'<div class="wide"><table class="matrix causes"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _told(cause: Cause) -> str:
    """Each text, folded away under its name."""
    texts = (
        f"<details><summary>{name}</summary><pre>{escape(text)}</pre></details>" for name, text in cause.told.items()
    )
    return "".join(texts)


def filters(reports: list[dict[str, Any]]) -> str:
    """Three lists to choose from, a field to type in, and how many rows are left."""
    choices = {
        "library": [report["name"] for report in reports if found_in(report)],
        "kind": sorted({cause.kind for report in reports for cause in found_in(report)}),
        "law": laws_of(reports),
    }
    lists = "".join(
        f'<label>{name} <select data-filter="{name}"><option value="">all</option>'
        + "".join(f"<option>{escape(value)}</option>" for value in values)
        + "</select></label>"
        for name, values in choices.items()
    )
    text = '<label>text <input type="search" data-filter="text"></label>'
    return f'<form class="matrix-filters">{lists}{text}<output></output></form>'


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("matrix", Matrix)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
