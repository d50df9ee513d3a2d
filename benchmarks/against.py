"""Two commits side by side: each runs in a process of its own, and they take turns.

Both sides are workers, the working tree too, so that both pay the same for being asked over a pipe. A worker is this
file, run with the ``src`` of its commit in front of the path; it gets a case, builds attendax's program for it with the
contestants of this tree, and runs it whenever it is told to.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contestants import OURS, build
from harness import Contestant, Unable, measure
from judge import Judge
from machine import git, in_clone
from shapes import LENGTHS, SHAPES
from workload import Case

HERE = Path(__file__).resolve().parent


class Worker:
    """The other end of the pipes: ``ask`` sends a request and waits for the answer."""

    def __init__(self, source: Path) -> None:
        paths = [str(source), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, str(HERE / "against.py")]
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
    """The worker: ("build", case, measure, dtype), then ("run",), any number of times, until the pipe is closed."""
    inward, outward = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    program = None
    while True:
        try:
            verb, *what = pickle.load(inward)
        except EOFError:
            return
        try:
            if verb == "build":
                name, direction, dtype = what
                program, first_call_s, _, results = build(OURS, Case(name, (SHAPES | LENGTHS)[name], dtype), direction)
                answer: Any = first_call_s, program.temporary_bytes, results
            else:
                assert program is not None
                program.run(program.arrays)
                answer = None
            succeeded = True
        except Exception as error:
            succeeded, answer = False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        pickle.dump((succeeded, answer), outward)
        outward.flush()


def commit_of(revision: str) -> str:
    """The full name of a commit.

    Raises:
        ValueError: outside of a clone, or no such commit.
    """
    if not in_clone():
        raise ValueError("the benchmark does not run from a clone, so there are no commits")
    commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if commit is None:
        raise ValueError("there is no such commit")
    return commit


@contextlib.contextmanager
def source_of(commit: str) -> Iterator[Path]:
    """The ``src`` of a commit in a folder for the time being; the clone is not touched."""
    with tempfile.TemporaryDirectory(prefix="attendax-") as folder:
        archive = Path(folder) / "src.tar"
        if git("-C", str(HERE.parent), "archive", f"--output={archive}", commit, "src") is None:
            raise ValueError("it has no src")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        yield Path(folder) / "src"


@contextlib.contextmanager
def workers(commit: str) -> Iterator[dict[str, Worker]]:
    """This tree and the other commit, ready to be asked."""
    with source_of(commit) as source:
        sides = {"this": Worker(HERE.parent / "src"), "other": Worker(source)}
        try:
            yield sides
        finally:
            for side in sides.values():
                side.stop()


def compare(sides: dict[str, Worker], name: str, direction: str, dtype: str, **options: Any) -> dict[str, Any]:
    """The record of a case: both sides judged, then timed in turns."""
    record: dict[str, Any] = {"case": name, "measure": direction, "status": "timed"}
    judge = Judge(Case(name, (SHAPES | LENGTHS)[name], dtype))
    ready = []
    for side, worker in sides.items():
        try:
            first_call_s, temporary_bytes, results = worker.ask("build", name, direction, dtype)
        except Unable as reason:
            return record | {"status": "failed", "contestant": side, "reason": f"{side}: {reason}"}
        error = judge.error(direction, results)
        if not judge.is_right(error):
            return record | {"status": "wrong", "contestant": side, "reason": f"{side}: wrong by {error:.1e}"}
        record |= {f"{side}_first_call_s": first_call_s, f"{side}_temporary_bytes": temporary_bytes}
        ready.append(Contestant(side, lambda worker=worker: worker.ask("run"), first_call_s, temporary_bytes))
    timings = measure(ready, **options)
    this, other = timings["this"], timings["other"]
    return record | {
        "this_s": this.median,
        "other_s": other.median,
        "this_seconds": this.seconds,
        "other_seconds": other.seconds,
        "ratio": list(this.ratio_to(other)),
        "rounds_thrown_away": this.thrown_away,
        "rounds_disturbed": this.disturbed,
    }


if __name__ == "__main__":
    serve()
