"""Time that `attendax check` takes: CPU seconds of both processes, of functions that are right and that are wrong.

`python benchmarks/kit.py` prints the table of docs/conformance.md; `--source DIR` runs another source, such as an older
one. The command `python benchmarks/kit.py --first 3` runs all candidates of the corpus (tests/kit/cheats) with three
seeds, each until its first fault. It prints which case finds the fault and after how long.
"""

import argparse
import collections
import functools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from attendax import writing

HERE = Path(__file__).resolve().parent
TESTS, SOURCE = HERE.parent / "tests" / "kit", HERE.parent / "src"
CHECKED = HERE / "checked"
LEAST = 0.002  # CPU seconds of a case, of which less says nothing
WRONG = (  # with the next two lines ten of the corpora
    "zeros in heads 128 wide or wider", "long causal rows see one key ahead", "options are read up to 320 keys",
    "lengths of keys are ignored", "softmax in float16", "wrong in each twentieth call",
)  # fmt: skip
KERNELS = ("gradients of the last head of a group", "causal left out for one query")
RIGHT = (("numpy", "every option, with a backward by hand"), ("jax", "the plain formula"))
FATAL = ("deaths", "judges", "forgeries")  # groups of candidates that end processes, or look for the judge's
FINE = ("ok", "not offered", "differs by convention", "not judged")


class Taken(NamedTuple):
    """The cost of a run, and its findings."""

    cores: float
    clock: float
    status: int | None
    report: dict


def checked(arguments: list[str], folder: Path, source: Path, limit: float, cores: float = math.inf) -> Taken:
    """Run the command in a folder; without a report where it took longer than a limit, on the clock or of the cores."""
    found = folder / "report.json"
    found.unlink(missing_ok=True)
    search = os.pathsep.join(map(str, (source, TESTS)))
    environment = os.environ | {"PYTHONPATH": search, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "attendax", "check", *arguments, "--json", str(found)]
    start = time.monotonic()
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        ended, taken = 0, 0.0
        while not ended and time.monotonic() - start < limit and taken < cores:
            time.sleep(0.05)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
            taken = used.ru_utime + used.ru_stime if ended else _seconds_of(process.pid)
        if not ended:
            for each in (process.pid, *_children(process.pid)):
                os.kill(each, signal.SIGKILL)
            os.wait4(process.pid, 0)
    clock = time.monotonic() - start
    report = json.loads(found.read_text()) if ended and found.exists() else {}
    return Taken(taken, clock, os.waitstatus_to_exitcode(status) if ended else None, report)


def _seconds_of(pid: int) -> float:
    """CPU seconds of a process, of those that it waited for, and of its children."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    own = sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(_seconds_of, _children(pid)))


def _children(pid: int) -> list[int]:
    try:
        return [int(x) for file in Path(f"/proc/{pid}/task").glob("*/children") for x in file.read_text().split()]
    except OSError:
        return []


def functions(folder: Path) -> dict[str, list[str]]:
    """The functions that are timed: a name, and the arguments of the command."""
    sys.path[:0] = [str(TESTS), str(TESTS / "mistakes"), str(SOURCE)]
    from cheats import CHEATS
    from honest import HONEST
    from mistakes_in_block_kernels import MISTAKES

    found: dict[str, list[str]] = {}
    for file in sorted(CHECKED.glob("*.py")):
        (folder / file.name).write_text(file.read_text())
        found[file.stem.replace("_", " ")] = [f"{file.stem}:attention"]
    cheats = {cheat.name: cheat for cheat in CHEATS}
    for name in WRONG:
        found[name] = cheats[name].write(folder)
    for mistake in MISTAKES:
        if mistake.name in KERNELS:
            found[f"kernel: {mistake.name}"] = kernel(mistake, folder)
    for arrays, name in RIGHT:
        place = folder / arrays
        place.mkdir()
        (one,) = (honest for honest in HONEST if (honest.arrays, honest.name) == (arrays, name))
        module = f"right_in_{arrays}"
        arguments = [x.replace("honest:", f"{module}:") for x in one.write(place)]
        (folder / f"{module}.py").write_text((place / "honest.py").read_text())
        found[f"{name}, of {arrays}"] = arguments
    return found


def table(args: argparse.Namespace) -> None:
    """A line for each function."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print("function | CPU seconds | seconds | cases | faults | causes | status | load", flush=True)
        for words, arguments in functions(folder).items():
            if args.only and not any(some in words for some in args.only):
                continue
            load = round(os.getloadavg()[0], 1)
            given = [*arguments, "--seed", str(args.seed), *args.more]
            taken = checked(given, folder, Path(args.source), args.limit, args.cores)
            report = taken.report
            faults = sum(number for verdict, number in report.get("counts", {}).items() if verdict not in FINE)
            row = {
                "cores": round(taken.cores, 1), "clock": round(taken.clock, 1), "cases": len(report.get("cases", ())),
                "faults": faults, "causes": len(report.get("causes", ())), "status": taken.status, "load": load,
            }  # fmt: skip
            print(words, *row.values(), sep=" | ", flush=True)
            record(args, Path(args.source), {words: row})


def record(args: argparse.Namespace, source: Path, rows: dict[str, dict]) -> dict[str, dict]:
    """Add rows to a part of the committed results, which names the commit that was measured; gives all of its rows."""
    from machine import processor

    if not args.record:
        return rows
    results = json.loads(args.output.read_text()) if args.output.exists() else {}
    commit = subprocess.check_output(["git", "-C", str(source), "rev-parse", "HEAD"], text=True).strip()
    part = results.get(args.record, {})
    if part.get("commit") != commit:
        part = results[args.record] = {"commit": commit, "rows": {}}
    part |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "processor": processor()}
    part["rows"] |= rows
    writing.write(args.output, json.dumps(results, indent=1) + "\n")
    return part["rows"]


def candidates() -> dict[str, tuple[str, Callable[[Path], list[str]], tuple[str, ...]]]:
    """Candidates of the corpora that are to be found: how each is judged, what writes it, and what is to be said of it.

    Those that end processes, look for the judge, or are told by the whole of a run are judged by the command, the
    others until the first fault.
    """
    sys.path[:0] = [str(TESTS), str(TESTS / "mistakes"), str(SOURCE)]
    import cheats
    from mistakes_in_block_kernels import MISTAKES

    fatal = {cheat.name for group in FATAL for cheat in getattr(cheats, group).CHEATS}
    found = {}
    for cheat in cheats.CHEATS:
        whole = cheat.name in fatal or "--only" in cheat.arguments or set(cheat.found) & {"hardly judged", "mask"}
        found[cheat.name] = ("whole" if whole else "first", cheat.write, cheat.found)
    for mistake in MISTAKES:
        if not mistake.missed:
            found[f"kernel: {mistake.name}"] = ("first", functools.partial(kernel, mistake), ())
    return found


def kernel(mistake, folder: Path) -> list[str]:
    """A block kernel with a mistake."""
    import right_kernel

    module = "kernel_" + "".join(c if c.isalnum() else "_" for c in mistake.name)
    source = Path(right_kernel.__file__).read_text()
    (folder / f"{module}.py").write_text(source.replace(mistake.old, mistake.new))
    return [f"{module}:attend", "--backward", f"{module}:backward", "--arrays", "numpy"]


def first(args: argparse.Namespace) -> None:
    """A line for each candidate and seed; then, for each case, how many it finds first. Rows that are recorded stay."""
    every, rows = candidates(), record(args, SOURCE, {})
    for seed in range(args.seed, args.seed + args.first):
        for name, (kind, write, said) in every.items():
            if f"{name}, {seed}" in rows or (args.only and not any(some in name for some in args.only)):
                continue
            load = round(os.getloadavg()[0], 1)
            with tempfile.TemporaryDirectory() as folder:
                arguments = write(Path(folder))
                row = _first_in(arguments, folder, seed, args) if kind == "first" else {"case": ""}
                if not row["case"]:
                    row |= _whole_in(arguments, folder, seed, said, args)
            print(name, seed, row | {"seconds": ""}, sep=" | ", flush=True)
            rows |= record(args, SOURCE, {f"{name}, {seed}": row | {"load": load}})
    counted = collections.Counter(row["case"].partition(", B=")[0] for row in rows.values() if row["case"])
    print(*(f"{number:4} {case}" for case, number in counted.most_common()), sep="\n")
    if args.all:
        cases = finds_of(rows)
        print("the order:", *order_of(cases), sep="\n")
        short = {name: {k: x for k, x in row.items() if k not in ("finds", "seconds")} for name, row in rows.items()}
        record(args, SOURCE, short)
        args.record = args.record and "cases"
        record(args, SOURCE, cases)
    print("lost:", *(name for name, row in rows.items() if not row["case"] and not row["told"]), sep="\n")


def finds_of(rows: dict[str, dict]) -> dict[str, dict]:
    """Small cases of the list: the seconds of each, and the candidates that it finds and the plainest cases do not."""
    from attendax.conformance.cases.how import PLAINEST

    cases: dict[str, dict[str, float]] = {}  # candidate and seconds, by case
    for name, row in rows.items():
        for case in row.get("finds", ()) if row["case"] not in PLAINEST else ():
            if not case.removeprefix("gradient: ").startswith("ladder: "):
                cases.setdefault(case, {})[name] = row["seconds"][case]
    return {case: {"seconds": statistics.median(x.values()), "finds": list(x)} for case, x in cases.items()}


def order_of(cases: dict[str, dict]) -> list[str]:
    """Cases in the order of what they find for their seconds, beside those before them."""
    found, order = set[str](), list[str]()

    def worth(case: str) -> float:
        return len(set(cases[case]["finds"]) - found) / max(cases[case]["seconds"], LEAST)

    while worth(best := max(cases, key=worth)):
        order.append(best)
        found.update(cases[best]["finds"])
    return order


def _first_in(arguments: list[str], folder: str, seed: int, args: argparse.Namespace) -> dict:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SOURCE, TESTS))), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(HERE / "kit.py"), "--until-first", *(["--all"] if args.all else []), *arguments]
    command += ["--seed", str(seed), *args.more]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    line = (ran.stdout.strip().splitlines() or [""])[-1]
    return json.loads(line) if line.startswith("{") else {"case": "", "said": (line + ran.stderr)[-300:]}


def _whole_in(arguments: list[str], folder: str, seed: int, said: tuple[str, ...], args: argparse.Namespace) -> dict:
    """Judge by the command, and see whether it says one of some words."""
    taken = checked([*arguments, "--seed", str(seed), *args.more], Path(folder), SOURCE, args.limit)
    screen = (Path(folder) / "said.txt").read_text(errors="replace").lower()
    verdicts = {case["verdict"].lower() for case in taken.report.get("cases", ())}
    told = [words for words in said if words.lower() in verdicts or words.lower() in screen]
    ended = "ended by a signal" in said and taken.status == 128 + signal.SIGTERM
    told = bool(told and taken.status) or ended or (not said and taken.status == 1)
    return {"case": "", "status": taken.status, "told": told, "cores": round(taken.cores, 2)}


def until_first(argv: list[str]) -> None:
    """Judge a function until its first fault, and print what that is.

    With ``--all`` small cases of the list are also run after it: which of them find it, and seconds of each.
    """
    from attendax.conformance.cases.how import DEAR_PAIRS, PLAINEST
    from attendax.conformance.command.arguments import how_of, implementation
    from attendax.conformance.command.options import add_arguments
    from attendax.conformance.report.known_failures import KnownFailures
    from attendax.conformance.run.budget import Budget
    from attendax.conformance.run.run import Run, Telling
    from attendax.conformance.worker.calling import subject_of

    class Enough(Exception):
        """The end of a run, of which all is known that was asked for."""

    class UntilFirst(Run):
        """A run that asks nothing after a fault, or small cases alone."""

        def _judge(self, case, how, phase="cases"):
            if told and (not every or told["case"] in PLAINEST or "ladder: " in case.name or case.pairs >= DEAR_PAIRS):
                raise Enough
            before = self.budget.cores()
            found = super()._judge(case, how, phase)
            cores = self.budget.cores()
            seconds[case.name] = round(cores - before, 4)
            if found.verdict.fails:
                finds.append(case.name)
                clock = round(time.monotonic() - self.budget.begun, 2)
                first = {"case": case.name, "asked": len(seconds), "clock": clock, "cores": round(cores, 2)}
                told.update(told or first | {"verdict": found.verdict})
            return found

        def _look(self, found):
            return

    every, told, seconds, finds = "--all" in argv, {}, {}, []
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([x for x in argv if x != "--all"])
    sys.path.insert(0, os.getcwd())
    how = how_of(args)
    budget, made = Budget(how), implementation(args, how)
    try:
        report = UntilFirst(made, how, budget, KnownFailures(), Telling()).report(args.only or (), args.level)
        ended = {"clock": round(time.monotonic() - budget.begun, 1), "cores": round(budget.cores(), 1)}
        told = told or {"case": ""} | ended | {"counts": report.counts(), "ok": report.ok}
    except Enough:
        pass
    finally:
        subject_of(made).close()
    print(json.dumps(told | ({"finds": finds, "seconds": seconds} if every else {})))


def main() -> None:
    """Do what the arguments say."""
    if "--until-first" in sys.argv:
        until_first([x for x in sys.argv[1:] if x != "--until-first"])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default=str(SOURCE), help="the folder that has the package attendax")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a run on the clock")
    parser.add_argument("--cores", type=float, default=math.inf, help="CPU seconds of a run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="parts of names")
    parser.add_argument("--record", help="also write the rows, under this name; what is there stays", metavar="NAME")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "kit.json", help="where")
    parser.add_argument("--all", action="store_true", help="with --first: all small cases that find it")
    parser.add_argument("--first", type=int, default=0, metavar="SEEDS", help="until the first fault, of so many seeds")
    args, args.more = parser.parse_known_args()
    (first if args.first else table)(args)


if __name__ == "__main__":
    main()
