"""Row invariance of every library that is installed: in which calls the bits of a row stay, and in which they do not.

    cd benchmarks
    python -m matrix.rows [NAME ...]

Writes ``results/rows.json``, with names only those of them anew; ``measured.py`` makes the table of docs/matrix.md.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from attendax import writing
from attendax.conformance.cases.invariance import BROKEN, CLAIM
from attendax.conformance.judge.verdicts import Verdict
from attendax.conformance.report import Report

from .adapters import ADAPTERS
from .installed import missing, report_of
from .tables import in_lines, today

FILE = Path(__file__).resolve().parents[1] / "results" / "rows.json"
HOW = ("--claims", CLAIM, "--only", "row invariance", "--seed", "1", "--profile", "numbers", "--budget", "0")
KEPT, CHANGED = "kept", "changed"


def of_report(report: Report) -> dict[str, Any]:
    """The facts that are told of a library: for each kind of call that it offers, whether the bits of a row stay."""
    found: dict[str, str] = {}
    for outcome in report.cases:
        if "row invariance: " not in outcome.case.name:
            continue
        key = next(key for key in BROKEN if f"row invariance: {key}," in outcome.case.name)
        if outcome.verdict is Verdict.LEAK:
            found[key] = CHANGED
        elif outcome.verdict is Verdict.OK:
            found.setdefault(key, KEPT)
    calls = {key: found[key] for key in BROKEN if key in found}
    return {"version": re.sub(r"\+.*", "", report.version), "calls": calls}


def main(names: list[str]) -> None:
    """Judge them, each in a process of its own; what is found is written at once."""
    libraries = json.loads(FILE.read_text("utf-8"))["libraries"] if names and FILE.exists() else {}
    for name in names or [name for name, adapter in ADAPTERS.items() if not missing(adapter)]:
        report = report_of(name, HOW, lambda line: None)
        if isinstance(report, str):
            print(f"{name}: {report}", file=sys.stderr)
            continue
        libraries[name] = of_report(report)
        print(f"{name}: {report.counts()}, {[cause.name for cause in report.causes]}", flush=True)
        order = {name: libraries[name] for name in ADAPTERS if name in libraries}
        writing.write(FILE, in_lines({"date": today(), "libraries": order}, 3) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
