"""Two commits side by side: each runs in a process of its own, and they take turns.

Both sides are workers, the working tree too, so that both pay the same for being asked over a pipe.
"""

import contextlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attendax.kernels import native
from contestants import OURS
from harness import Contestant, Unable, measure
from judge import Judge
from machine import git, in_clone
from shapes import LENGTHS, SHAPES
from workers import Worker
from workload import Case

HERE = Path(__file__).resolve().parent


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
    """The ``src`` of a commit in a folder for the time being; the clone is not touched.

    Its native library is built where this tree has one: else its tiles would be compared with the kernel of this tree.
    """
    with tempfile.TemporaryDirectory(prefix="attendax-") as folder:
        archive = Path(folder) / "src.tar"
        if git("-C", str(HERE.parent), "archive", f"--output={archive}", commit, "src") is None:
            raise ValueError("it has no src")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        build = Path(folder) / "src/attendax/kernels/native/build.py"
        if native.library().isa and build.is_file():
            done = subprocess.run([sys.executable, build], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise ValueError(f"its native library is {done.stderr.strip()}")
        yield Path(folder) / "src"


@contextlib.contextmanager
def workers(commit: str) -> Iterator[dict[str, Worker]]:
    """Start this tree and the other commit, ready to be asked."""
    with source_of(commit) as source:
        sides = {"this": Worker(HERE.parent / "src"), "other": Worker(source)}
        try:
            yield sides
        finally:
            for side in sides.values():
                side.stop()


def compare(sides: dict[str, Worker], name: str, direction: str, dtype: str, **options: Any) -> dict[str, Any]:
    """The record of a case, by the options of ``measure``: both sides judged, then timed in turns."""
    record: dict[str, Any] = {"case": name, "measure": direction, "status": "timed"}
    judge = Judge(Case(name, (SHAPES | LENGTHS)[name], dtype))
    ready = []
    for side, worker in sides.items():
        try:
            first_call_s, temporary_bytes, results = worker.ask("build", OURS, name, direction, dtype)
        except Unable as reason:
            return record | {"status": "failed", "contestant": side, "reason": f"{side}: {reason}"}
        error = judge.error(direction, results)
        if not judge.is_right(error):
            return record | {"status": "wrong", "contestant": side, "reason": f"{side}: wrong by {error:.1e}"}
        record |= {f"{side}_first_call_s": first_call_s, f"{side}_temporary_bytes": temporary_bytes}
        ready.append(Contestant(side, lambda worker=worker: worker.ask("run", OURS), first_call_s, temporary_bytes))
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
