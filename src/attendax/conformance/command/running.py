"""``attendax check``: judge a function."""

import argparse
import contextlib
import functools
import io
import os
import sys
from collections.abc import Callable

from attendax import extras
from attendax.exits import Refusal
from attendax.legible import wrapped

from ..adapters.implementation import Implementation
from ..cases import CASES, Case, asks_for_the_ladder, choose, named
from ..cases.how import How, drawn
from ..cases.pool import EXAMPLES, POOL
from ..checking import by_description, judged
from ..judge.asking import alone, as_found
from ..judge.verdicts import Finding, Verdict
from ..report import Report
from ..report.outcomes import Outcome
from ..run.run import confirmed, judge
from ..worker.calling import subject_of
from ..worker.child import FOUND_THERE
from ..worker.errors import Unusable
from . import arguments
from .arguments import how_of, one_line
from .output import live, show, show_script, write_files

NOBODY = "name a function as module:function before the options; or --exec, --onnx"


def run(args: argparse.Namespace, judge: "Callable[[argparse.Namespace], int] | None" = None) -> int:
    """Do what the arguments say, or what ``judge`` does; gives the exit status: 0 nothing is wrong, 1 something is."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    here = os.getcwd()
    sys.path[:] = [folder for folder in sys.path if folder not in ("", here)]
    if getattr(args, "in_process", True):
        sys.path.insert(0, here)
    else:  # the function may write modules there, and this process shall not import them
        FOUND_THERE[:] = [here]
    try:
        return arguments.refusing(judge or _run)(args)
    finally:
        FOUND_THERE.clear()


def _run(args: argparse.Namespace) -> int:
    if args.list_cases:
        return _list_cases(args)
    args.target = arguments.target(args)
    args.seed = drawn(args.seed)
    extras.require("rich", "check", extra="check")
    if args.target is None:
        raise Refusal(NOBODY)
    arguments.refuse_unwritable(args)
    if args.reproduce:
        return _reproduce(args)
    how, settled = how_of(args), arguments.settled(args)
    make = functools.partial(arguments.implementation, args)
    by = functools.partial(by_description, make, args.target, settled, in_process=args.in_process)
    asked = args.only or (), args.level, args.known_failures
    try:
        with contextlib.redirect_stdout(sys.stderr), live(quiet=args.quiet) as tell:  # the function may print
            report = judged(by, how, *asked, tell, begun=args.called, name=args.target, settled=settled)
    except (Unusable, Refusal) as error:
        if isinstance(error, Unusable) or error.__cause__ is not None:  # it is the function that raised
            finding = Finding(Verdict.TIMEOUT if "no answer in" in str(error) else Verdict.CRASH, one_line(error))
            outcomes, arrays = (Outcome(CASES[0], finding, 0.0, ""),), settled.arrays  # the plainest call is a crash
            found = Report(args.target, "", arrays, outcomes, how.dtype, how.seed, args.level, profile=how.profile)
            write_files(found, args)  # somebody may wait for a report
        raise
    return show(report, args)


def listed(line: str) -> None:
    """A line of a list: wrapped in a terminal; whole for other programs."""
    print(wrapped(line, indent=" " * 5) if sys.stdout.isatty() else line)


def _list_cases(args: argparse.Namespace) -> int:
    for case in choose(args.only or (), args.level, args.profile or "law", claims=args.claims or ()):
        if case not in EXAMPLES:
            listed(f"{case.law:<4} {case.name:<48} {case.profile:<7} {case.level:<10} {case.about}")
    if asks_for_the_ladder(args.only):
        listed(f"L11  ladder: drawn for each run, within --budget, from {POOL}")
    return 0


def _reproduce(args: argparse.Namespace) -> int:
    how = how_of(args)
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as after:
        make, settled = functools.partial(arguments.implementation, args, how), arguments.settled(args)
        made, _ = by_description(make, args.target, settled, in_process=args.in_process)
        after.callback(subject_of(made).close)
        taken, case = _as_printed(made, args.reproduce, how)
        how = how._replace(claims=(case.claim,))  # who names a case asks it
        _, outcome = confirmed(taken, judge(taken, case, how), how)
    return show_script(outcome)


def _as_printed(made: Implementation, name: str, how: How) -> tuple[Implementation, Case]:
    """The case that a report prints by a name, as the function takes it; or the only one of which it is a part."""
    exact = named(name)
    every = [exact] if exact else list(CASES)
    made = as_found(made, every, how)
    if case := next((case for case in alone(made, every, how) if case.name == name), None):
        return made, case
    cases = [exact] if exact else choose([name])
    if len(cases) > 1:
        names = ", ".join(repr(case.name) for case in cases[:5])
        raise Refusal(f"--reproduce {name!r} is part of {len(cases)} cases: {names}{', ...' * (len(cases) > 5)}")
    return made, alone(made, cases, how)[0]
