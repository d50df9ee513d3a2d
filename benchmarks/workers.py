"""A process of its own that builds contestants' programs, and runs them whenever it is told to.

A worker is this file, run with the ``src`` of some commit in front of the path, and bound to some cores of the machine.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import traces
from contestants import build
from harness import Unable, keep_freed_memory, rest
from shapes import LENGTHS, SHAPES
from workload import Case

HERE = Path(__file__).resolve().parent


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
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
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
    """The kernels of a call of it; see ``traces.profile``."""
    return traces.profile(lambda: answer_run(programs, contestant), programs[contestant].text(), calls)


def answer_rest(programs: dict[str, Any]) -> None:
    rest()


ANSWERS = {"build": answer_build, "run": answer_run, "profile": answer_profile, "rest": answer_rest}

if __name__ == "__main__":
    serve()
