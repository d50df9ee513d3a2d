"""Judging of every implementation that is installed, each in a process of its own, which a crash ends alone."""

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attendax
from attendax.conformance.command.output import LINES_VARIABLE, console, write
from attendax.conformance.report import Report
from attendax.exits import FAILED, Refusal

from .adapters import ADAPTERS, PATHS
from .adapters.adapter import Adapter
from .adapters.known import DOCUMENTED, KNOWN, applied
from .tables import matrix_markdown, matrix_terminal, report_from, reports_json

OWN, ROOT = "attendax", str(Path(__file__).resolve().parents[2])
PASSED_ON = ("level", "dtype", "seed", "precision", "budget", "timeout", "total_timeout", "repeat")
FOLDER = re.compile(r"^import sys\nsys\.path\.insert\(0, .*\)\n", re.MULTILINE)  # of a module that is not installed
ON_A_GPU = ("cudnn", "triton")


def all_installed(args: argparse.Namespace) -> int:
    """Judge, write conformance.json and conformance.md, and print the matrix.

    Returns:
        1 if an implementation of attendax has a fault or could not be judged, else 0.
    """
    folder = made_folder(args.output)
    left_out = {name: why for name, adapter in ADAPTERS.items() if (why := missing(adapter))}
    names = [name for name in ADAPTERS if name not in left_out]
    reports, failed = [], []
    for number, name in enumerate(names, start=1):
        start = time.monotonic()
        report = in_own_process(name, args, teller(f"{number}/{len(names)} {name}", args.quiet))
        if isinstance(report, str):
            left_out[name], said = report, report
            failed += [name] * name.startswith(OWN)
        else:
            reports.append(report)
            failed += [name] * (name.startswith(OWN) and not report.ok)
            said = f"{len(report.failures)} faults of {len(report.causes)} causes"
        if not args.quiet:
            print(f"{name}: {said}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    if not reports:
        raise Refusal("no implementation could be judged")
    save(folder, reports, left_out)
    matrix_terminal(reports, console(), left_out)
    return FAILED if failed else 0


def made_folder(output: str | None) -> Path:
    """Make the folder that the files go to."""
    folder = Path(output or ".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(f"--output {output}: {error.strerror}") from error
    return folder


def missing(adapter: Adapter) -> str:
    """The reason why an adapter cannot be used here; nothing where it can."""
    module = adapter.function.partition(":")[0].partition(".")[0]
    if importlib.util.find_spec(module) is None:
        return f"the package {module} is not installed"
    if adapter.options.get("implementation") in ON_A_GPU and not has_gpu():
        return "needs a GPU, and JAX finds none"
    return ""


def has_gpu() -> bool:
    """Tell whether JAX finds a GPU, asked in a process of its own: this one shall not take its memory."""
    if not _gpu:
        asked = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        _gpu.append(found.stdout.strip() == "gpu")
    return _gpu[0]


_gpu: list[bool] = []


def teller(what: str, quiet: bool) -> Callable[[str], None]:
    """Show the lines of a process: over each other in a terminal, else not at all."""
    if quiet or not sys.stderr.isatty():
        return lambda line: None
    return lambda line: print(
        f"\r\033[K{what}: {line.removeprefix('attendax check: ')[:60]}\r", end="", file=sys.stderr, flush=True
    )


def in_own_process(name: str, args: argparse.Namespace, tell: Callable[[str], None]) -> Report | str:
    """The report of an adapter, or why there is none."""
    given = {option: getattr(args, option) for option in PASSED_ON} | {"profile": args.profile or "law"}
    argv = [f"--{option.replace('_', '-')}={x}" for option, x in given.items() if x is not None]
    return report_of(name, ["--thorough", *argv, *(["--only", *args.only] if args.only else [])], tell)


def report_of(name: str, options: Sequence[str], tell: Callable[[str], None]) -> Report | str:
    """The report of ``attendax check`` on an adapter, with the facts of its library, or why there is none."""
    path = next(path for path, known in PATHS.items() if known == name)
    report = reported([f"benchmarks.matrix.adapters:{path}", *options], tell, ROOT)
    return report if isinstance(report, str) else applied(report, DOCUMENTED.get(name, ()), KNOWN.get(name, ()))


def reported(argv: list[str], tell: Callable[[str], None], *more: str) -> Report | str:
    """The report of ``attendax check`` with these arguments, or why there is none; ``more``: of the search path."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "report.json")
        argv = [sys.executable, "-m", "attendax", "check", *argv, "--json", file]
        root = str(Path(attendax.__file__).resolve().parents[1])
        path = os.pathsep.join([root, *more, *filter(None, [os.environ.get("PYTHONPATH")])])
        streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        last = case = ""
        with subprocess.Popen(
            argv, env=os.environ | {"PYTHONPATH": path, LINES_VARIABLE: "1"}, text=True, errors="replace", **streams
        ) as process:
            try:
                for line in process.stderr or ():
                    last = line.strip() or last
                    case = last if re.match(r"attendax check: \d+/\d+ ", last) else case
                    tell(last)
            except KeyboardInterrupt:  # a signal that may have been for this process alone
                process.kill()
                raise
        if os.path.exists(file):
            with open(file, encoding="utf-8") as found:
                return report_from(json.load(found))
        return anonymous(_why(process.returncode, last, case))


def _why(status: int, last: str, case: str) -> str:
    if status == 2 and last.startswith("attendax check: "):
        return last.removeprefix("attendax check: ")
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    where = re.sub(r"^attendax check: \d+/\d+ ", ", in ", case)
    return f"its process ended with {how}{where}" + (f": {last}" if last and last != case else "")


def anonymous(words: str) -> str:
    """The words without the paths and addresses of this machine."""
    words = FOLDER.sub("", words)
    words = re.sub(r"(?:[A-Za-z]:)?[/\\][^\s'\"`,;:()]*[/\\]site-packages[/\\]", "", words)
    for place in (sys.prefix, str(Path.cwd()), str(Path.home()), tempfile.gettempdir()):
        if len(place) > 1:
            words = words.replace(place, "...")
    return re.sub(r"\b0x[0-9a-f]{6,}\b", "0x...", words)


def save(folder: Path, reports: list[Report], left_out: dict[str, str]) -> None:
    """Two files that say the same, versions and findings: no paths, no seconds."""
    reports = [portable(report) for report in reports]
    contents = {"json": reports_json(reports, left_out), "md": matrix_markdown(reports, left_out)}
    for suffix, content in contents.items():
        write(str(folder / f"conformance.{suffix}"), content)


def portable(report: Report) -> Report:
    """The report without seconds, and without all that is of this machine."""
    cases = tuple(
        outcome._replace(
            finding=outcome.finding._replace(message=anonymous(outcome.finding.message)),
            reproduction=anonymous(outcome.reproduction),
            seconds=0.0,
        )
        for outcome in report.cases
    )
    return report._replace(cases=cases)
