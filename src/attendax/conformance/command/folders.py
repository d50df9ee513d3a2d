"""``attendax inputs``, ``judge`` and ``vectors``: cases as folders, for what runs where this package is not."""

import argparse
import dataclasses
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attendax.exits import Refusal
from attendax.extras import require
from attendax.legible import wrapped

from ..adapters.implementation import lacking
from ..cases.case import Case
from ..cases.how import How, drawn
from ..judge.asking import asked as cases_of
from ..judge.comparing import largest, scale_of
from ..judge.judging import find
from ..judge.trial import Trial
from ..judge.verdicts import Verdict
from ..protocol import SCHEMA, write_results
from ..report.known_failures import KnownFailures
from ..report.outcomes import number_of, versions
from ..run.budget import Budget
from ..run.run import Run
from ..worker.folders import INDEX, NO_FOLDER, Recorder, read_index
from ..worker.foreign import of_answers
from ..worker.place import here
from .arguments import how_of, refuse_unwritable, refusing, settled
from .options import CASE_OPTIONS, WRITTEN, add
from .output import live, new_folder, show, show_script

RUN_KEYS = (*CASE_OPTIONS, "lacks")  # what an index says of a run
AS_FOLDERS = {"timeout": None, "total_timeout": None, "repeat": 1}  # a result is the same whenever it is read
LACKS_OPTION = {"lacks": (list, "TRAIT", 'traits that the program does not offer, such as "bfloat16"')}


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """The arguments of one of the three commands."""
    if command == "judge":
        parser.add_argument("folder", metavar="DIR", help="folder that `attendax inputs` wrote, with results in it")
        add(parser, "cases", ("expect", "require", "known_failures"))
        add(parser, "output", WRITTEN)
        parser.set_defaults(run=_judge)
        return
    parser.add_argument("folder", metavar="DIR", help="folder that is not there yet")
    add(parser, "cases", CASE_OPTIONS)
    add(parser, "program", LACKS_OPTION)
    also = None if command == "inputs" else _write_right
    parser.set_defaults(budget=0.0, require=None, **AS_FOLDERS, run=refusing(lambda args: _written(args, also)))


def _written(args: argparse.Namespace, also: Callable[[Case, How, Path], bool] | None) -> int:
    """Write all folders beside their place, and move them there; with ``also``, what is right."""
    args.seed = drawn(args.seed)
    how = how_of(args)
    if os.path.exists(args.folder):
        raise Refusal(f"{args.folder} is there already: name a new folder, or remove that one")
    if not os.path.isdir(home := os.path.dirname(os.path.abspath(args.folder))):
        raise Refusal(f"{args.folder}: there is no folder {home}")
    with new_folder(args.folder) as part:
        recorder, beside = Recorder(str(part)), 0
        made = of_answers(recorder, "inputs")
        made = dataclasses.replace(made, recorded=True, lacks={**made.lacks, **lacking(args.lacks)})
        made, cases, left_out = cases_of(made, args.only or (), args.level, how)
        for case in cases:
            recorder.case, recorder.last = case.name, case.judge == "value"
            find(made, case, how)
            if recorder.failed:
                raise recorder.failed
            if also and len(folders := recorder.cases.get(case.name, [])) == 1:
                beside += also(case, how, part / folders[0])
        told: dict[str, Any] = {"schema": SCHEMA, "attendax": versions("numpy").get("attendax"), "left_out": left_out}
        told |= {"asked": {k: getattr(args, k) for k in RUN_KEYS}, "cases": recorder.cases, "folders": recorder.folders}
        (part / INDEX).write_text(json.dumps(told, indent=1), "utf-8")
    print(wrapped(_said(args, recorder, len(cases), beside if also else None)))
    return 0


def _said(args: argparse.Namespace, recorder: Recorder, cases: int, beside: int | None) -> str:
    asked = sum(map(bool, recorder.cases.values()))
    folders, left = number_of(len(recorder.folders), "folder"), cases - asked
    said = f"Wrote {folders} for {number_of(asked, 'case')} into {args.folder}, with seed {args.seed}."
    said += f" {number_of(left, 'case')} {'is' if left == 1 else 'are'} for Python functions only." if left else ""
    if beside is None:
        return f"{said} Write the results into the folders, then run: attendax judge {shlex.quote(args.folder)}"
    beside_them = "right_*.npy (the right results) and allowed_error_*.npy (the largest errors allowed)"
    return f"{said} {number_of(beside, 'folder')} also {'has' if beside == 1 else 'have'} {beside_them}"


def _write_right(case: Case, how: How, folder: Path) -> bool:
    """Write the right results of a case of one call, and bounds of their errors; False if the case has none."""
    if case.judge != "value":
        return False
    trial = Trial(of_answers(lambda told: {}, "nobody"), case, how)
    results = json.loads((folder / "case.json").read_text("utf-8"))["results"]
    wanted = trial.expected()
    shapes = {leaf: results.get(leaf.replace(" ", "_"), {}).get("shape") for leaf in wanted}
    if "weights" in trial.inputs.extra or any(list(x.shape) != shapes[leaf] for leaf, x in wanted.items()):
        return False
    allowed, tree = trial.tolerances(wanted), max((largest(x) for x in wanted.values()), default=0.0)
    for leaf, x in wanted.items():
        error = allowed[leaf].allowed * scale_of(x, allowed[leaf], tree)
        write_results(str(folder), {f"right {leaf}": x, f"allowed_error {leaf}": np.array(error)})
    return True


@refusing
def _judge(args: argparse.Namespace) -> int:
    """The report on the results that lie in a folder."""
    require("rich", "judge", extra="check")
    index = read_index(args.folder)
    refuse_unwritable(args)
    vars(args).update(AS_FOLDERS | {k: x for k, x in index["asked"].items() if k in RUN_KEYS})
    vars(args).update(ignore=None, contract=None)
    made = here(f"folder:{args.folder}", lacks=lacking(args.lacks), **settled(args).settings(None))
    how, known = how_of(args), KnownFailures.read(args.known_failures)
    with live(quiet=args.quiet) as tell:
        report = Run(made, how, Budget(how), known, tell).report(args.only or (), args.level)
    asked_for = [outcome for outcome in report.cases if outcome.verdict is not Verdict.NOT_OFFERED]
    if asked_for and all(outcome.finding.message == NO_FOLDER for outcome in asked_for):
        raise Refusal(
            f"{args.folder}: none of its folders has the numbers of seed {args.seed}: {INDEX} was changed, or attendax "
            f"{index.get('attendax')}, which wrote it, draws others; write it again, and run the program again"
        )
    if args.reproduce:
        faults = {outcome.case.name: outcome for outcome in report.failures}
        if args.reproduce not in faults:
            some = ", ".join(faults) or "none"
            raise Refusal(f"--reproduce {args.reproduce!r} is not a fault; the faults are {some}")
        return show_script(faults[args.reproduce])
    return show(report, args)
