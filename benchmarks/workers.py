"""A process of its own that builds contestants' programs, and runs them whenever it is told to.

A worker is this file, run with the ``src`` of some commit in front of the path, and bound to some cores of the machine.
"""

import collections
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contestants import build
from harness import Unable, keep_freed_memory, rest
from shapes import LENGTHS, SHAPES
from workload import Case

HERE = Path(__file__).resolve().parent
WARM = 3  # calls before the trace
CONTAINERS = ("while", "cond", "conditional", "call")  # the time of what is inside them is counted there
RESULT = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\w+\[[\d,]*\]|\()", re.MULTILINE)


BOUND = """
import os, runpy, sys
os.sched_setaffinity(0, map(int, sys.argv[2:]))  # before any library counts the cores
runpy.run_path(sys.argv[1], run_name="__main__")
"""


class Worker:
    """The other end of the pipes: ``ask`` sends a request and waits for the answer.

    Args:
        source: the ``src`` to import attendax from; the one in use where it is None.
        cores: the numbers of the cores that the process may use; all that this one may where it is None.
    """

    def __init__(self, source: Path | None = None, cores: Sequence[int] | None = None) -> None:
        paths = [*filter(None, [source and str(source)]), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, *([] if cores is None else ["-c", BOUND]), __file__, *map(str, cores or ())]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, *request: Any) -> Any:
        """Raises ``Unable`` with what went wrong on the other side."""
        try:
            pickle.dump(request, self.process.stdin)
            self.process.stdin.flush()
            succeeded, answer = pickle.load(self.process.stdout)
        except (OSError, EOFError) as error:
            raise Unable(f"its process ended with status {self.process.wait()}") from error
        if not succeeded:
            raise Unable(answer)
        return answer

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def serve() -> None:
    """Answer requests until the pipe is closed."""
    keep_freed_memory()
    inward, outward = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a library is not an answer
    programs: dict[str, Any] = {}
    while True:
        try:
            verb, *what = pickle.load(inward)
        except EOFError:
            return
        try:
            succeeded, answer = True, ANSWERS[verb](programs, *what)
        except Exception as error:
            succeeded, answer = False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        pickle.dump((succeeded, answer), outward)
        outward.flush()


def answer_build(programs: dict[str, Any], contestant: str, case: str, direction: str, dtype: str) -> Any:
    """A contestant's program for a case, in place of its last one; seconds, bytes and results of its first call."""
    programs.pop(contestant, None)
    built = build(contestant, Case(case, (SHAPES | LENGTHS)[case], dtype), direction)
    programs[contestant], first_call_s, _, results = built
    return first_call_s, programs[contestant].temporary_bytes, results


def answer_run(programs: dict[str, Any], contestant: str) -> None:
    """A call of the program that was built last."""
    programs[contestant].run(programs[contestant].arrays)


def answer_profile(programs: dict[str, Any], contestant: str, calls: int) -> Any:
    """The kernels of a call of it; see ``kernels_of``."""
    return kernels_of(lambda: answer_run(programs, contestant), programs[contestant].text(), calls)


def kernels_of(call: Callable[[], Any], text: str, calls: int) -> dict[str, tuple[str, int, float]]:
    """The kernels of a program that runs on a CPU, by a trace of JAX's profiler.

    By name: the type of the result, executions and milliseconds of one call.

    Args:
        call: runs the program once, and waits.
        text: of the compiled program.
        calls: over how many the times are averaged.
    """
    import jax

    for _ in range(WARM):
        call()
    with tempfile.TemporaryDirectory(prefix="attendax-") as folder:
        with jax.profiler.trace(folder):
            for _ in range(calls):
                call()
        (file,) = Path(folder).rglob("*.xplane.pb")
        seen = jax.profiler.ProfileData.from_serialized_xspace(file.read_bytes())
    spent: collections.Counter[str] = collections.Counter()
    times: collections.Counter[str] = collections.Counter()
    for plane in seen.planes:
        for line in plane.lines:
            for event in line.events:
                if is_kernel(event):
                    spent[event.name] += event.duration_ns / 1e6
                    times[event.name] += 1
    types = {name: "several" if found == "(" else found for name, found in RESULT.findall(text)}
    return {name: (types.get(name, ""), round(times[name] / calls), spent[name] / calls) for name in spent}


def is_kernel(event: Any) -> bool:
    """Tell whether an event of a trace is the run of a kernel, and neither its end nor a loop around it."""
    if event.name.startswith("end: ") or event.name.partition(".")[0] in CONTAINERS:
        return False
    return any(name == "hlo_op" for name, _ in event.stats)


def answer_rest(programs: dict[str, Any]) -> None:
    rest()


ANSWERS = {"build": answer_build, "run": answer_run, "profile": answer_profile, "rest": answer_rest}

if __name__ == "__main__":
    serve()
