"""A learner's folder: its skeletons are written here, and its functions graded in a process of its own."""

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attendax import writing
from attendax.exits import Refusal

from .exercises import MODULES, TEXTS, path
from .grading import SECONDS, Grade

HEADS = {
    "numpy": ("NumPy", "import numpy as np", "np.ndarray"),
    "jax": ("JAX", "import jax\nimport jax.numpy as jnp", "jax.Array"),
    "torch": ("PyTorch", "import torch", "torch.Tensor"),
}


def skeleton(module: str, arrays: str = "numpy") -> str:
    """The text of one file: signatures, formulas, shapes, examples by hand; nothing of the solution."""
    name, imports, array = HEADS[arrays]
    text = (TEXTS / f"{module}.txt").read_text("utf-8").replace("{{library}}", name)
    return text.replace("{{imports}}", imports).replace("{{array}}", array)


def write(folder: Path, arrays: str = "numpy") -> tuple[list[str], list[str]]:
    """Write the files that are not there; those that are stay as they are.

    Returns:
        The names of those written, and of those that were there.

    Raises:
        Refusal: the folder cannot be written to.
    """
    names = [f"{module}.py" for module in MODULES]
    there = [name for name in names if (folder / name).exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for module in MODULES:
            if f"{module}.py" not in there:
                writing.write(folder / f"{module}.py", skeleton(module, arrays))
    except OSError as error:
        raise Refusal(f"cannot write to {folder}: {error.strerror}") from None
    return [name for name in names if name not in there], there


def has_exercises(folder: Path) -> bool:
    """Whether a file of the path lies there."""
    return any((folder / f"{module}.py").is_file() for module in MODULES)


def library(folder: Path) -> str:
    """The library that the files of the folder import: JAX or PyTorch, else NumPy."""
    files = [folder / f"{module}.py" for module in MODULES]
    read = "\n".join(file.read_text("utf-8", "replace") for file in files if file.is_file())
    return next(
        (name for name in ("torch", "jax") if re.search(rf"^(import|from) {name}\b", read, re.MULTILINE)), "numpy"
    )


def graded(
    folder: Path, arrays: str, *, names: Sequence[str] = (), hint: int = 1, seconds: float = SECONDS
) -> Iterator[Grade]:
    """The grades of a folder, one after the other: of all exercises, or of those named."""
    with _Child(folder, arrays, seconds) as child:
        for exercise in path():
            if not names or exercise.name in names or exercise.symbol in names:
                yield child.grade(exercise.name, hint)


class _Child:
    """The process, started when it is needed, and again after it was killed."""

    def __init__(self, folder: Path, arrays: str, seconds: float) -> None:
        run = [sys.executable, "-B", "-m", "attendax.learn.child"]
        self._command = [*run, str(folder.resolve()), arrays, str(seconds)]
        self._seconds = seconds
        self._process: Any = None

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def grade(self, name: str, hint: int) -> Grade:
        """Ask for one grade."""
        if self._process is None:
            package = str(Path(__file__).resolve().parents[2])
            search = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
            given = {"PYTHONPATH": search, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # each step runs once
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
            self._process = subprocess.Popen(self._command, env=os.environ | given, **pipes)
            if self._line(120.0) != "ready\n":
                raise Refusal("the process that runs the exercises did not start")
        print(json.dumps({"name": name, "hint": hint}), file=self._process.stdin, flush=True)
        limit = 4 * self._seconds + 2  # it stops itself: while it imports, and, later in JAX, while it runs
        line = self._line(limit)
        if line:
            fields = json.loads(line)
            return Grade(**fields | {"mistakes": tuple(fields["mistakes"])})
        ended = f"It ended the process (status {self._process.wait()})." if line == "" else ""
        self.__exit__()
        return Grade(name, "wrong", ended or f"It did not end within {limit:g} seconds and was stopped.")

    def _line(self, seconds: float) -> str | None:
        """Its next line; empty where it has ended, None where nothing came in time."""
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline() if ready else None
