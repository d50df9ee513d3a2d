"""``attendax check --candidates DIR``: each file a candidate, judged by itself; a line of JSON each, as it is done."""

import argparse
import ast
import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from attendax.exits import FAILED, REFUSED, Refusal

from ..worker.child import end_group
from .arguments import CALLED, NUMBERS

NAME = "attention"  # of the function, where a file has several
PASSED_ON = (*CALLED, *NUMBERS, "repeat", "device", "require", "thorough", "timeout", "total_timeout")


def judge_all(args: argparse.Namespace) -> int:
    """Judge every candidate of the folder; gives the exit status, 0 if all of them are right."""
    folder = Path(args.candidates)
    files = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    if not files:
        raise Refusal(f"--candidates {args.candidates}: there is no file *.py in this folder")
    if args.workers is not None and args.workers < 1:
        raise Refusal(f"--workers got {args.workers}, expected 1 or more")
    running: set[subprocess.Popen[str]] = set()
    found: list[dict[str, Any]] = []
    workers = args.workers or max(1, (os.cpu_count() or 2) // 2)
    lines: Any = contextlib.nullcontext(sys.stdout)
    if args.json not in (None, "-"):
        try:
            lines = open(args.json, "w", encoding="utf-8")  # noqa: SIM115  closed below
        except OSError as error:
            raise Refusal(f"--json {args.json}: {error.strerror}") from error
    with lines as lines, concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(_judged, path, args, running) for path in files]
        try:
            for done in concurrent.futures.as_completed(waiting):
                found.append(done.result())
                print(json.dumps(found[-1]), file=lines, flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(running):
                end_group(process)
            raise
    right = [line for line in found if line["ok"]]
    wrong = ", ".join(sorted(line["file"] for line in found if not line["ok"]))
    print(f"{len(right)} of {len(found)} are right{f'; not {wrong}' if wrong else ''}.", file=sys.stderr)
    return 0 if len(right) == len(found) else FAILED


def _judged(path: Path, args: argparse.Namespace, running: set[subprocess.Popen[str]]) -> dict[str, Any]:
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
        told = _told(json.loads(out)) | ({"ok": False} if process.returncode else {})
    except (ValueError, KeyError, TypeError):
        return line | last
    return line | told | (last if process.returncode == REFUSED else {})


def function_of(text: str) -> str:
    """The name of the function of a candidate, from its text: nothing of it is run."""
    names = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [x.id for x in node.targets if isinstance(x, ast.Name) and x.id == NAME]
    public = [name for name in dict.fromkeys(names) if not name.startswith("_")]
    if NAME in public or len(public) == 1:
        return NAME if NAME in public else public[0]
    told = f"functions {', '.join(public)}" if public else "no public function"
    raise ValueError(f"it has {told}: name one {NAME}, or give --function NAME")


def _passed_on(args: argparse.Namespace) -> list[str]:
    given: list[str] = []
    for name in PASSED_ON:
        x = getattr(args, name)
        words = [] if x is True else map(str, x) if isinstance(x, list) else [str(x)]
        given += [f"--{name.replace('_', '-')}", *words] if x is not None and x is not False else []
    return given


def _told(report: dict[str, Any]) -> dict[str, Any]:
    """The part of a report that a line has: all but scripts and cases that are right."""
    right = ("ok", "differs by convention", "by design", "not offered")
    faults = [case for case in report["cases"] if case["verdict"] not in right]
    told = {name: report[name] for name in ("ok", "arrays", "seed", "profile", "counts", "process")}
    told["coverage"] = report["coverage"]["said"]
    told["causes"] = [{k: cause[k] for k in ("name", "harm", "cases")} for cause in report["causes"]]
    kept = ("name", "verdict", "message", "red", "seed")
    return told | {"faults": [{k: case[k] for k in kept if k in case} for case in faults]}
