"""``attendax inputs``, ``judge`` and ``vectors``: cases as folders, for what runs where this package is not."""

import argparse
import dataclasses
import json
import os
import secrets
import shlex
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np

from attendax.exits import FAILED, Refusal
from attendax.extras import require
from attendax.legible import wrapped

from ..adapters.implementation import CAUSAL, EMPTY_ROWS
from ..cases.case import Case, Leaves
from ..cases.how import How, drawn
from ..checking import check
from ..judge.asking import asked as cases_of
from ..judge.comparing import largest, scale_of
from ..judge.judging import find
from ..judge.trial import Trial
from ..judge.verdicts import Verdict
from ..protocol import SCHEMA, write_results
from ..report.outcomes import versions
from ..worker.candidate import implement
from ..worker.folders import INDEX, UNKNOWN, Recorder, read_index
from ..worker.foreign import of_answers, path_of
from .arguments import add_demands, add_numbers, add_reports, asked_of, one_line, refuse_unwritable
from .output import progress
from .running import show

ASKED = (  # what an index says of a run
    "seed", "profile", "dtype", "level", "only", "sizes", "precision", "budget", "claims", "lacks",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """The arguments of one of the three commands."""
    if command == "judge":
        parser.add_argument("folder", metavar="DIR", help="what `attendax inputs` wrote, with results in it")
        how = parser.add_argument_group("what is judged")
        how.add_argument("--causal", choices=CAUSAL, help="where is_causal is aligned; start unless given")
        how.add_argument("--empty-rows", choices=EMPTY_ROWS, help="of a query without keys; zero unless given")
        add_demands(how)
        out = add_reports(parser)
        out.add_argument("--quiet", action="store_true", help="no progress on standard error")
        about = "the script of one case; of each cause unless one is named"
        out.add_argument("--reproduce", nargs="?", const="", metavar="CASE", help=about)
        parser.set_defaults(run=_in_words(_judge))
        return
    parser.add_argument("folder", metavar="DIR", help="a folder that is not there yet")
    add_numbers(parser, budget=0.0)
    about = 'what the program does not offer, such as "bfloat16": it is asked for nothing that takes it'
    parser.add_argument("--lacks", nargs="+", action="extend", metavar="TRAIT", help=about)
    about = "one file inputs.safetensors beside the .npy files of each case"
    parser.add_argument("--safetensors", action="store_true", help=about)
    parser.set_defaults(timeout=60.0, total_timeout=None, repeat=1, require=None)
    parser.set_defaults(run=_in_words(_inputs if command == "inputs" else _vectors))


def _in_words(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The same, where what the user has to change is refused in one line."""

    def refusing(args: argparse.Namespace) -> int:
        try:
            return run(args)
        except (ValueError, ImportError) as error:
            if not isinstance(error, ImportError) and not str(error).startswith("check: "):
                raise
            raise Refusal(one_line(error)) from error

    return refusing


def _inputs(args: argparse.Namespace) -> int:
    return _written(args, None)


def _vectors(args: argparse.Namespace) -> int:
    return _written(args, _write_right)


def _written(args: argparse.Namespace, also: Callable[[Case, How, str], bool] | None) -> int:
    """Write all folders beside their place, and move them there; with ``also``, what is right."""
    args.seed = drawn(args.seed)
    how = How(**asked_of(args)).checked()
    place = os.path.abspath(args.folder)
    if os.path.exists(place):
        raise Refusal(f"{args.folder} is there already: name a new folder, or remove that one")
    if not os.path.isdir(os.path.dirname(place)):
        raise Refusal(f"{args.folder}: there is no folder {os.path.dirname(place)}")
    part = f"{place}.{secrets.token_hex(4)}.part"
    os.mkdir(part)
    try:
        recorder = Recorder(part, safetensors=args.safetensors)
        made = of_answers(recorder, "inputs")
        made = dataclasses.replace(made, recorded=True, lacks={**made.lacks, **_lacks(args)})
        made, cases, left_out = cases_of(made, args.only or (), args.level, how)
        beside = 0
        for case in cases:
            recorder.case, recorder.last = case.name, case.judge == "value"
            find(made, case, how)
            if recorder.failed:
                raise recorder.failed
            if also and len(folders := recorder.cases.get(case.name, [])) == 1:
                beside += also(case, how, os.path.join(part, folders[0]))
        asked = {k: getattr(args, k) for k in ASKED}
        told = {"schema": SCHEMA, "attendax": versions("numpy")["attendax"], "asked": asked, "left_out": left_out}
        told |= {"cases": recorder.cases, "folders": recorder.folders}
        with open(os.path.join(part, INDEX), "w", encoding="utf-8") as file:
            json.dump(told, file, indent=1)
        os.rename(part, place)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    print(wrapped(_said(args, recorder, len(cases), beside if also else None)))
    return 0


def _lacks(args: argparse.Namespace) -> dict[str, str]:
    return dict.fromkeys(args.lacks or (), "said to be lacking")


def _said(args: argparse.Namespace, recorder: Recorder, cases: int, beside: int | None) -> str:
    asked = sum(map(bool, recorder.cases.values()))
    said = f"{args.folder}: folders {len(recorder.folders)}, of cases {asked}, seed {args.seed}"
    said += f"; asked of functions of Python alone: {cases - asked}" if cases > asked else ""
    if beside is None:
        return f"{said}. Write the results into the folders, then: attendax judge {shlex.quote(args.folder)}"
    return f"{said}. In {beside} of them lie right_*.npy, and allowed_error_*.npy: how far off each number may be"


def _write_right(case: Case, how: How, folder: str) -> bool:
    """What is right in a case of one call, and how far off each result may be; whether there is such a thing."""
    if case.judge != "value":
        return False
    trial = Trial(of_answers(_nobody, "nobody"), case, how)
    with open(os.path.join(folder, "case.json"), encoding="utf-8") as file:
        results = json.load(file)["results"]
    wanted = trial.expected()
    shapes = {leaf: results.get(leaf.replace(" ", "_"), {}).get("shape") for leaf in wanted}
    if "weights" in trial.inputs.extra or any(list(x.shape) != shapes[leaf] for leaf, x in wanted.items()):
        return False
    allowed, tree = trial.tolerances(wanted), max((largest(x) for x in wanted.values()), default=0.0)
    for leaf, x in wanted.items():
        error = allowed[leaf].allowed * scale_of(x, allowed[leaf], tree)
        write_results(folder, {f"right {leaf}": x, f"allowed_error {leaf}": np.array(error)})
    return True


def _nobody(told: dict[str, Any]) -> Leaves:
    raise NotImplementedError


def _judge(args: argparse.Namespace) -> int:
    """The report on the results that lie in a folder."""
    require("rich", "judge", extra="check")
    index = read_index(args.folder)
    refuse_unwritable(args)
    args.timeout, args.total_timeout, args.repeat = 60.0, None, 1
    vars(args).update({k: x for k, x in index["asked"].items() if k in ASKED})
    given = {k: x for k, x in (("causal", args.causal), ("empty_rows", args.empty_rows)) if x is not None}
    made = implement(path_of(folder=args.folder), lacks=_lacks(args), **given)
    asked = asked_of(args) | {"known_failures": args.known_failures}
    with progress(quiet=args.quiet) as tell:
        report = check(made, only=args.only or (), level=args.level, progress=tell, **asked)
    asked_for = [outcome for outcome in report.cases if outcome.verdict is not Verdict.NOT_OFFERED]
    if asked_for and all(outcome.finding.message == UNKNOWN for outcome in asked_for):
        raise Refusal(
            f"{args.folder}: none of its folders has the numbers of seed {args.seed}: {INDEX} was changed, or attendax "
            f"{index.get('attendax')}, which wrote it, draws others; write it again, and run the program again"
        )
    if args.reproduce:
        scripts = {outcome.case.name: outcome.reproduction for outcome in report.failures}
        if args.reproduce not in scripts:
            raise Refusal(f"--reproduce {args.reproduce!r} is no fault: those are {', '.join(scripts) or 'none'}")
        print(scripts[args.reproduce], end="")
        return FAILED
    return show(report, args)
