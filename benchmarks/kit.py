"""Time that `attendax check` takes: CPU seconds of both processes, of functions that are right and that are wrong.

`python benchmarks/kit.py` prints the table of docs/conformance.md; `--source DIR` runs another source, such as an older
one. `python benchmarks/kit.py --first 3` runs all candidates of the corpus (tests/kit/cheats) with three seeds, each
until its first fault, and prints which case finds it and after how long.
"""

import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
TESTS, SOURCE = HERE.parent / "tests" / "kit", HERE.parent / "src"
CHECKED = HERE / "checked"
WRONG = (  # ten of the corpora
    "zeros in heads 128 wide or wider", "long causal rows see one key ahead", "options are read up to 320 keys",
    "lengths of keys are ignored", "softmax in float16", "products at 10 bits", "wrong in each twentieth call",
    "gradients are wrong in heads 128 wide",
)  # fmt: skip
RIGHT = (("numpy", "every option, with a backward by hand"), ("jax", "the plain formula"))
FATAL = ("deaths", "judges")  # groups of candidates that end processes, or look for the judge's


class Taken(NamedTuple):
    """The cost of a run, and its findings."""

    cores: float
    clock: float
    status: int | None
    report: dict


def checked(arguments: list[str], folder: Path, source: Path, limit: float) -> Taken:
    """Run the command in a folder; without a report where it took longer than the limit."""
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
        ended = 0
        while not ended and time.monotonic() - start < limit:
            time.sleep(0.02)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if not ended:
            os.killpg(process.pid, signal.SIGKILL)
            _, status, used = os.wait4(process.pid, 0)
    clock = time.monotonic() - start
    report = json.loads(found.read_text()) if ended and found.exists() else {}
    return Taken(used.ru_utime + used.ru_stime, clock, os.waitstatus_to_exitcode(status) if ended else None, report)


def functions(folder: Path) -> dict[str, list[str]]:
    """The functions that are timed: a name, and the arguments of the command."""
    sys.path[:0] = [str(TESTS), str(SOURCE)]
    from cheats import CHEATS
    from honest import HONEST

    found: dict[str, list[str]] = {}
    for file in sorted(CHECKED.glob("*.py")):
        (folder / file.name).write_text(file.read_text())
        found[file.stem.replace("_", " ")] = [f"{file.stem}:attention"]
    cheats = {cheat.name: cheat for cheat in CHEATS}
    for name in WRONG:
        found[name] = cheats[name].write(folder)
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
        print("function | CPU seconds | seconds | cases | faults | causes | status", flush=True)
        for words, arguments in functions(folder).items():
            if args.only and not any(some in words for some in args.only):
                continue
            given = [*arguments, "--seed", str(args.seed), *args.more]
            taken = checked(given, folder, Path(args.source), args.limit)
            more = "" if taken.status is not None else "> "
            counts = collections.Counter(taken.report.get("counts", {}))
            fine = ("ok", "not offered", "differs by convention", "by design", "not judged")
            faults = sum(number for verdict, number in counts.items() if verdict not in fine)
            cases, causes = len(taken.report.get("cases", ())), len(taken.report.get("causes", ()))
            cells = f"{more}{taken.cores:.1f}", f"{more}{taken.clock:.1f}", cases, faults, causes, taken.status
            print(" | ".join(map(str, (words, *cells))), flush=True)


def first(args: argparse.Namespace) -> None:
    """A line for each candidate and seed; then, for each case, how many it finds first."""
    sys.path[:0] = [str(TESTS), str(SOURCE)]
    import cheats

    fatal = {cheat.name for group in FATAL for cheat in getattr(cheats, group).CHEATS}
    finds: collections.Counter[str] = collections.Counter()
    lost = []
    for cheat in cheats.CHEATS:
        if cheat.name in fatal or (args.only and not any(some in cheat.name for some in args.only)):
            continue
        for seed in range(args.seed, args.seed + args.first):
            with tempfile.TemporaryDirectory() as folder:
                line = _first_in(cheat.write(Path(folder)), folder, seed, args)
            told = json.loads(line) if line.startswith("{") else {"case": "", "said": line[-200:]}
            finds[told["case"].partition(", B=")[0]] += 1
            lost += [] if told["case"] else [(cheat.name, seed, told)]
            print(f"{cheat.name} | {seed} | {told}", flush=True)
    print(*(f"{number:4} {case}" for case, number in finds.most_common()), sep="\n")
    print(f"lost: {lost}")


def _first_in(arguments: list[str], folder: str, seed: int, args: argparse.Namespace) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SOURCE, TESTS)))}
    command = [sys.executable, str(HERE / "kit.py"), "--until-first", *arguments, "--seed", str(seed), *args.more]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return (ran.stdout.strip().splitlines() or [ran.stderr[-300:]])[-1]


def until_first(argv: list[str]) -> None:
    """Judge a function until its first fault, and print what that is."""
    from attendax.conformance.cases.how import How
    from attendax.conformance.command.arguments import add_arguments, asked_of, implementation
    from attendax.conformance.report.known_failures import KnownFailures
    from attendax.conformance.run.clock import Clock
    from attendax.conformance.run.run import ASKING, Run, Telling
    from attendax.conformance.worker.place import end

    class UntilFirst(Run):
        """A run that asks nothing after a fault."""

        def _judge(self, case, how, share=ASKING):
            if self.faults:
                return self._not_judged(case)
            found = super()._judge(case, how, share)
            self.asked = getattr(self, "asked", 0) + 1
            if found.verdict.fails:
                self.faults = 1
                told = {"case": case.name, "asked": self.asked, "clock": round(time.monotonic() - self.clock.begun, 2)}
                print(json.dumps(told | {"cores": round(self.clock.cores(), 2), "verdict": found.verdict}), flush=True)
            return found

        def _causes(self, found):
            return "", (), []

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(argv)
    sys.path.insert(0, os.getcwd())
    how = How(**asked_of(args)).checked()
    clock, made = Clock(how), implementation(args)
    try:
        report = UntilFirst(made, how, clock, KnownFailures(), Telling()).report(args.only or (), args.level)
        if not report.failures:
            told = {"case": "", "clock": round(time.monotonic() - clock.begun, 1), "cores": round(clock.cores(), 1)}
            print(json.dumps(told | {"counts": report.counts(), "ok": report.ok}), flush=True)
    finally:
        end(made)


def main() -> None:
    """Do what the arguments say."""
    if "--until-first" in sys.argv:
        until_first([x for x in sys.argv[1:] if x != "--until-first"])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default=str(SOURCE), help="the folder that has the package attendax")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a run on the clock")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="parts of names")
    parser.add_argument("--first", type=int, default=0, metavar="SEEDS", help="until the first fault, of so many seeds")
    args, args.more = parser.parse_known_args()
    (first if args.first else table)(args)


if __name__ == "__main__":
    main()
