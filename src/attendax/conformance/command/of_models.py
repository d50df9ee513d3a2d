"""``attendax check --model`` and ``--layer``: whole models, judged without a reference."""

import argparse
import contextlib
import sys
from typing import Any

from attendax.exits import Refusal
from attendax.extras import require

from ..cases.how import TIMEOUT
from ..models.checking import check_model, choose, laws_of
from ..models.describing import MODEL_SETTINGS, described
from . import running
from .arguments import refuse_unwritable
from .options import WRITTEN, Formatter, add
from .output import live, show, show_script

CAUSAL_FLAG = {
    "causal": (
        argparse.BooleanOptionalAction,
        "",
        "mask of the model: a position sees only positions before it, or all",
    )
}
EPILOG = """\
The model takes tokens (B, T) or vectors (B, T, M) and gives a result for each position; keywords mask, lengths,
segment_ids and positions are passed only where its signature has them. help(attendax.conformance.check_model) has the
rest. Exit status: 0 nothing is wrong, 1 something is, 2 refused."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.formatter_class = Formatter
    parser.epilog = EPILOG
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", metavar="module:name", help="function, or module of a known library")
    which.add_argument("--layer", metavar="module:name", help="layer: function or module of vectors")
    add(parser, "model", CAUSAL_FLAG | MODEL_SETTINGS)
    only, level = "laws, and parts of case names [all]", "forward, gradient or everything [everything]"
    add(
        parser, "cases", ("only", "level", "profile", "seed", "timeout", "in_process"), only=only, level=level,
        profile="numbers, or robust, which adds NaN in padding [numbers]",
    )  # fmt: skip
    parser.set_defaults(profile="numbers")
    add(parser, "output", (*WRITTEN, "list_cases"))


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say, as ``running.run``."""
    return running.run(args, _run)


def _run(args: argparse.Namespace) -> int:
    require("rich", "check", extra="check")
    refuse_unwritable(args)
    said: dict[str, Any] = {name: x for name in CAUSAL_FLAG | MODEL_SETTINGS if (x := getattr(args, name)) is not None}
    said |= {"cache": [x.strip() for x in args.cache.split(",")]} if args.cache else {}
    said |= {"inputs": "vectors"} if args.layer is not None and args.inputs is None else {}
    only = args.only or ([args.reproduce] if args.reproduce else ())
    with contextlib.redirect_stdout(sys.stderr), live(quiet=args.quiet) as tell:  # the model may print
        model = described(args.model or args.layer, in_process=args.in_process, **said)
        laws = choose(laws_of(model), only, args.level, args.profile)
        if not args.list_cases:
            timeout = TIMEOUT if args.timeout is None else args.timeout
            asked = {name: getattr(args, name) for name in ("level", "profile", "seed")}
            report = check_model(model, only=only, progress=tell.asks, timeout=timeout, **asked)
    if args.list_cases:
        model.subject.close()
        for case, _ in laws:
            running.listed(f"{case.law:<10} {case.name:<40} {case.level:<10} {case.about}")
        return 0
    if not args.reproduce:
        return show(report, args)
    if len(report.failures) > 1:
        names = ", ".join(repr(outcome.case.name) for outcome in report.failures[:5])
        raise Refusal(f"--reproduce {args.reproduce!r} is part of {len(report.failures)} cases: {names}")
    return show_script(report.failures[0]) if report.failures else 0
