"""Judging of every model and layer of ``models.py`` whose library is installed, each in a process of its own."""

import argparse
import importlib.util
import sys
import time

from attendax.conformance.command.output import write
from attendax.conformance.judge.verdicts import Verdict
from attendax.conformance.report import Report
from attendax.conformance.report.markdown import cause_markdown, escaped, table
from attendax.conformance.report.outcomes import MODEL_LAWS, Outcomes
from attendax.exits import FAILED, Refusal

from .adapters.adapter import version_of
from .installed import OWN, ROOT, made_folder, portable, reported, teller
from .models import MODELS, PATHS
from .tables import all_versions, reports_json, today

LEGEND = (
    "A number is how many questions of a law were judged, all without a fault; 2 of 5: three have one; a dash: nothing "
    "of the kind is offered."
)

TIMEOUT = "600"  # seconds for a question, of which the first compiles


def all_models(args: argparse.Namespace) -> int:
    """Judge, write models.json and models.md, and print the table.

    Returns:
        1 if a model of attendax has a fault or could not be judged, else 0.
    """
    folder = made_folder(args.output)
    left_out = {
        name: f"the package {made.package} is not installed"
        for name, made in MODELS.items()
        if importlib.util.find_spec(made.package) is None
    }
    reports, failed = [], []
    chosen = [name for name in MODELS if name not in left_out]
    for number, name in enumerate(chosen, start=1):
        start = time.monotonic()
        report = in_own_process(name, args, number, len(chosen))
        ours = MODELS[name].package == OWN
        if isinstance(report, str):
            left_out[name], said = report, report
            failed += [name] * ours
        else:
            reports.append(report._replace(version=version_of(MODELS[name].package)))
            failed += [name] * (ours and not report.ok)
            said = f"{len(report.failures)} faults of {len(report.causes)} causes"
        if not args.quiet:
            print(f"{name}: {said}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if not reports:
        raise Refusal("no model could be judged")
    reports = [portable(report) for report in reports]
    write(str(folder / "models.json"), reports_json(reports, left_out))
    text = models_markdown(reports, left_out)
    write(str(folder / "models.md"), text)
    print(text.split("\n## ")[0])
    return FAILED if failed else 0


def in_own_process(name: str, args: argparse.Namespace, number: int, count: int) -> Report | str:
    """The report of a model, or why there is none."""
    made = MODELS[name]
    path = next(path for path, known in PATHS.items() if known == name)
    argv = ["--model", f"benchmarks.matrix.models:{path}", "--seed", str(args.seed), "--level", args.level]
    argv += ["--timeout", TIMEOUT]
    for word, value in made.said.items():
        no = "no-" if value is False else ""
        argv += [f"--{no}{word}", *([] if isinstance(value, bool) else [str(value)])]
    argv += ["--only", *args.only] if args.only else []
    report = reported(argv, teller(f"{number}/{count} {name}", args.quiet), ROOT)
    return report if isinstance(report, str) else report._replace(name=name)


def models_markdown(reports: list[Report], left_out: dict[str, str]) -> str:
    """Models by laws, then the causes of each, and who was left out with the reason."""
    rows = [[f"{report.name} {report.version}".strip(), *map(cell, by_law(report))] for report in reports]
    parts = ["# attendax check --all-models\n", table(("", *MODEL_LAWS), rows), LEGEND + "\n"]
    parts.append(f"{today()}, seed {reports[0].seed}. {all_versions(reports)}.\n")
    for report in reports:
        if report.causes:
            parts.append(f"## {escaped(report.name)}\n")
            parts += [cause_markdown(cause, report) for cause in report.causes]
    if left_out:
        parts += ["## Left out\n", "".join(f"- {escaped(name)}: {escaped(why)}\n" for name, why in left_out.items())]
    return "\n".join(parts)


def by_law(report: Outcomes) -> list[tuple[int, int]]:
    """Numbers of questions that were judged, and that failed, for each law of models."""
    offered = [outcome for outcome in report.cases if outcome.verdict is not Verdict.NOT_OFFERED]
    mine = ([outcome.verdict.fails for outcome in offered if outcome.case.law == law] for law in MODEL_LAWS)
    return [(len(fails), sum(fails)) for fails in mine]


def cell(counts: tuple[int, int]) -> str:
    """The counts as the table shows them."""
    judged, failed = counts
    if not judged:
        return "-"
    return f"{judged - failed} of {judged}" if failed else str(judged)
