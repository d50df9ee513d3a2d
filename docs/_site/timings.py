"""`{timings} file.json`: results of `python -m benchmarks bench` as tables, with the machine and the noise."""

import json
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

OURS = "attendax"
MEASURES = {"forward": "Forward", "backward": "With the gradient"}


class Timings(SphinxDirective):
    """The time of attendax by shape, and the times of others divided by it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Read the file, which the page depends on."""
        file, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(file)
        results = json.loads(Path(path).read_text("utf-8"))
        tables = "".join(f"<p><strong>{title}</strong></p>{table(results, m)}" for m, title in MEASURES.items())
        return [nodes.raw("", machine(results) + tables + noise(results), format="html")]


def machine(results: dict[str, Any]) -> str:
    """Where and when, in a sentence."""
    about = results["about"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"<p>{escape(about['processor'])}, {escape(about['dtype'])}, {about['date'][:10]}, commit "
        f"<code>{about['commit'][:7]}</code>; {escape(versions)}.</p>"
    )


def table(results: dict[str, Any], measure: str) -> str:
    """A row for each shape: our time, and for each other contestant the ratio of its time to ours."""
    records = {(r["case"], r["contestant"]): r for r in results["records"] if r["measure"] == measure}
    others = [name for name in results["contestants"] if any(c == name != OURS for _, c in records)]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("shape", "ms", *others))
    rows = []
    for case, sizes in results["cases"].items():
        if (ours := records.get((case, OURS))) is None or ours["status"] != "timed":
            continue
        cells = [f'<th scope="row" title="{escape(sizes["source"])}">{escape(case)}</th>']
        cells += [f"<td>{1e3 * ours['median_s']:.3g}</td>", *(cell(records.get((case, name))) for name in others)]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table class="matrix counts">{body}</table></div>'


def cell(record: dict[str, Any] | None) -> str:
    """The ratio, above 1 where attendax is faster; or why there is none."""
    if record is None:
        return '<td class="none">–</td>'
    if record["status"] != "timed":
        return f'<td class="none" title="{escape(record.get("reason", ""))}">{escape(record["status"])}</td>'
    middle, low, high = record["ratio"]
    kind = "some" if middle < 1 else "fine"
    return f'<td class="{kind}" title="half of the rounds: {low:.2f} to {high:.2f}">{middle:.2f}</td>'


def noise(results: dict[str, Any]) -> str:
    """How far the rounds of a ratio lie apart."""
    timed = [r["ratio"] for r in results["records"] if r["status"] == "timed" and r["contestant"] != OURS]
    spread = np.array([(high - low) / middle for middle, low, high in timed])
    return (
        f"<p>A ratio differs from round to round: the middle half of its rounds spans {np.median(spread):.0%} of the "
        f"ratio in the median case, and more than {np.quantile(spread, 0.9):.0%} in one case of ten. "
        "So a smaller difference between two ratios means nothing.</p>"
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("timings", Timings)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
