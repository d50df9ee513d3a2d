"""``attendax check``: judge a function, every library that is installed, or each file of a folder of candidates.

Of candidates each is judged by itself; a line of JSON each is written as it is done.
"""

import argparse
import ast
import concurrent.futures
import contextlib
import functools
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from attendax import extras
from attendax.exits import FAILED, REFUSED, Refusal
from attendax.legible import wrapped

from ..adapters import ADAPTERS
from ..adapters.implementation import Implementation, version_of
from ..cases import CASES, Case, asks_for_the_ladder, choose, named
from ..cases.how import How, drawn
from ..cases.pool import EXAMPLES, POOL
from ..checking import judged
from ..contract.understanding import understood
from ..judge.asking import alone, as_found
from ..judge.verdicts import Finding, Verdict
from ..report import Report
from ..report.outcomes import Outcome
from ..run.run import judge
from ..worker.calling import subject_of
from ..worker.child import FOUND_THERE, end_group
from ..worker.errors import Unusable
from . import arguments
from .arguments import CALLED, NUMBERS, how_of, one_line
from .output import live, show, show_script, write_files

SINGLE = "a single report goes to --json, --markdown or --html FILE"
NOBODY = "name a function as module:function, or an adapter, before the options; or --exec, --onnx, --all-installed"
NAME = "attention"  # of the function, where a file has several
PASSED_ON = (
    *CALLED, *NUMBERS, "expect", "ignore", "repeat", "device", "require", "thorough", "timeout", "total_timeout",
)  # fmt: skip


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
    if args.list_adapters:
        return _list_adapters()
    if args.list_cases:
        return _list_cases(args)
    args.target = arguments.target(args)
    if args.candidates is not None:
        if args.target is not None:
            raise Refusal(f"--candidates judges each file of a folder: leave the function {args.target} out")
        return _judge_all(args)
    args.seed = drawn(args.seed)
    extras.require("rich", "check", extra="check")
    if args.all_installed or args.all_models:
        arguments.refuse_with_all(args)
        return int(matrix().all_installed(args) if args.all_installed else matrix().all_models(args))
    if args.output:
        raise Refusal(f"--output is of --all-installed and --all-models; {SINGLE}")
    if args.target is None:
        raise Refusal(NOBODY)
    arguments.refuse_unwritable(args)
    if args.reproduce:
        return _reproduce(args)
    how, make = how_of(args), functools.partial(arguments.implementation, args)
    asked = args.only or (), args.level, args.known_failures
    try:
        with contextlib.redirect_stdout(sys.stderr), live(quiet=args.quiet) as tell:  # the function may print
            report = judged(make, how, *asked, tell, begun=args.called, name=args.target, **arguments.described(args))
    except (Unusable, Refusal) as error:
        if isinstance(error, Unusable) or error.__cause__ is not None:  # it is the function that raised
            finding = Finding(Verdict.TIMEOUT if "no answer in" in str(error) else Verdict.CRASH, one_line(error))
            outcomes, arrays = (Outcome(CASES[0], finding, 0.0, ""),), args.arrays or ""  # the plainest call is a crash
            found = Report(args.target, "", arrays, outcomes, how.dtype, how.seed, args.level, profile=how.profile)
            write_files(found, args)  # somebody may wait for a report
        raise
    return show(report, args)


def listed(line: str) -> None:
    """A line of a list: wrapped in a terminal; whole for other programs."""
    print(wrapped(line, indent=" " * 5) if sys.stdout.isatty() else line)


def matrix() -> ModuleType:
    """``benchmarks/matrix``, under a name of its own: a module of the user may be called as one in that folder is."""
    name = "attendax_matrix"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, extras.benchmarks() / "matrix" / "__init__.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def _list_adapters() -> int:
    width = max(map(len, ADAPTERS))
    for name, adapter in ADAPTERS.items():
        found = importlib.util.find_spec(adapter.function.partition(":")[0].partition(".")[0])
        version = version_of(adapter.package) if found else "not installed"
        listed(f"{name:<{width}}  {adapter.arrays:<6} {adapter.function}  {version}".rstrip())
    return 0


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
        found = understood(path) if (path := arguments.described(args).get("path", "")) else None
        made = arguments.implementation(args, how, **(found.settings() if found else {}))
        after.callback(subject_of(made).close)
        taken, case = _as_printed(made, args.reproduce, how)
        outcome = judge(taken, case, how._replace(claims=(case.claim,)))  # who names a case asks it
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


def _judge_all(args: argparse.Namespace) -> int:
    """Judge every candidate of the folder; gives the exit status, 0 if all of them are right."""
    folder = Path(args.candidates)
    files = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    if not files:
        raise Refusal(f"--candidates {args.candidates}: there is no file *.py in this folder")
    if args.contract is not None:
        raise Refusal("--contract pins one function: leave it out with --candidates")
    if args.workers is not None and args.workers < 1:
        raise Refusal(f"--workers got {args.workers}, expected 1 or more")
    running: set[subprocess.Popen[str]] = set()
    found: list[dict[str, Any]] = []
    workers = args.workers or max(1, (os.cpu_count() or 2) // 2)
    try:
        lines: Any = contextlib.nullcontext(sys.stdout)
        if args.json not in (None, "-"):
            lines = open(args.json, "w", encoding="utf-8")  # noqa: SIM115  closed below
    except OSError as error:
        raise Refusal(f"--json {args.json}: {error.strerror}") from error
    with lines as file, concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(_of_candidate, path, args, running) for path in files]
        try:
            for done in concurrent.futures.as_completed(waiting):
                found.append(done.result())
                print(json.dumps(found[-1]), file=file, flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(running):
                end_group(process)
            raise
    right = [line for line in found if line["ok"]]
    wrong = ", ".join(sorted(line["file"] for line in found if not line["ok"]))
    print(f"{len(right)} of {len(found)} are right{f'; not {wrong}' if wrong else ''}.", file=sys.stderr)
    return 0 if len(right) == len(found) else FAILED


def _of_candidate(path: Path, args: argparse.Namespace, running: set[subprocess.Popen[str]]) -> dict[str, Any]:
    """One candidate, in a folder and a process of its own: what it writes there, or ends, is gone with it."""
    line: dict[str, Any] = {"file": path.name, "function": "", "ok": False, "status": REFUSED}
    try:
        line["function"] = args.function or function_of(path.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return line | {"said": f"{type(error).__name__}: {error}"}
    module = f"candidate_{re.sub(r'[^0-9a-zA-Z_]', '_', path.stem)}"  # no name of a module that the judge imports
    root = str(Path(__file__).resolve().parents[3])
    search = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    argv = [sys.executable, "-P", "-m", "attendax", "check", f"{module}:{line['function']}", "--quiet", "--json", "-"]
    with tempfile.TemporaryDirectory(prefix="attendax-", ignore_cleanup_errors=True) as folder:
        shutil.copy(path, os.path.join(folder, f"{module}.py"))
        process = subprocess.Popen(
            [*argv, *_passed_on(args)], cwd=folder, env=os.environ | {"PYTHONPATH": search}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        running.add(process)
        try:
            out, said = process.communicate()
        finally:
            running.discard(process)
            end_group(process)  # its worker, which has a session of its own, follows by itself
    line["status"] = process.returncode
    last = {"said": (said.strip().splitlines() or [f"ended with {process.returncode}"])[-1]}
    try:
        told = _of_report(json.loads(out)) | ({"ok": False} if process.returncode else {})
    except (ValueError, KeyError, TypeError):
        return line | last
    return line | told | (last if process.returncode == REFUSED else {})


def function_of(text: str) -> str:
    """The name of the function of a candidate, from its text: nothing of it is run."""
    body = ast.parse(text).body
    made = [x.id for node in body if isinstance(node, ast.Assign) for x in node.targets if isinstance(x, ast.Name)]
    names = [node.name for node in body if isinstance(node, ast.FunctionDef)] + [NAME] * (NAME in made)
    public = [name for name in dict.fromkeys(names) if not name.startswith("_")]
    if NAME in public or len(public) == 1:
        return NAME if NAME in public else public[0]
    told = f"functions {', '.join(public)}" if public else "no public function"
    raise ValueError(f"it has {told}: name one {NAME}, or give --function NAME")


def _passed_on(args: argparse.Namespace) -> list[str]:
    given: list[str] = []
    for name in PASSED_ON:
        x = getattr(args, name)
        if x is not None and x is not False:
            words = [] if x is True else map(str, x) if isinstance(x, list) else [str(x)]
            given += [f"--{name.replace('_', '-')}", *words]
    return given


def _of_report(report: dict[str, Any]) -> dict[str, Any]:
    """The part of a report that a line has: all but scripts and cases that are right."""
    right = ("ok", "differs by convention", "by design", "not offered")
    faults = [case for case in report["cases"] if case["verdict"] not in right]
    kept = ("name", "verdict", "message", "red", "seed")
    return {name: report[name] for name in ("ok", "arrays", "seed", "profile", "counts", "process")} | {
        "coverage": report["coverage"]["said"],
        "causes": [{k: cause[k] for k in ("name", "harm", "cases")} for cause in report["causes"]],
        "faults": [{k: case[k] for k in kept if k in case} for case in faults],
    }
