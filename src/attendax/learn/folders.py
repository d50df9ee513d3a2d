"""A learner's folder: write its skeletons, and grade its functions in a separate process."""

import importlib
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attendax import writing
from attendax.exits import Refusal

from .arrays import Arrays, called_by
from .exercises import MODULES, TEXTS, Exercise, path, texts
from .grading import SECONDS, Grade, Timeout, failure, grade_exercise, limit_time


def skeleton(module: str, arrays: str = "numpy") -> str:
    """The text of one file: signatures, formulas, shapes, examples by hand, without the solution."""
    names = texts("libraries")[arrays]
    return re.sub(r"\{\{(\w+)\}\}", lambda match: names[match[1]], (TEXTS / f"{module}.txt").read_text("utf-8"))


def files(folder: Path) -> list[Path]:
    """The paths of the course files in a folder, whether they exist or not."""
    return [folder / f"{module}.py" for module in MODULES]


def write(folder: Path, arrays: str = "numpy") -> list[Path]:
    """Write the files that do not exist; existing ones stay as they are.

    Returns:
        The new files.

    Raises:
        Refusal: the folder cannot be written to.
    """
    new = [file for file in files(folder) if not file.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in new:
            writing.write(file, skeleton(file.stem, arrays))
    except OSError as error:
        raise Refusal(f"cannot write to {folder}: {error.strerror}") from None
    return new


def library(folder: Path) -> str:
    """The library that the files of the folder import: JAX or PyTorch, else NumPy; "" if there are no files."""
    sources = [file.read_text("utf-8", "replace") for file in files(folder) if file.is_file()]
    imports = re.findall(r"^(?:import|from) (jax|torch)\b", "\n".join(sources), re.M)
    return max(imports, default="numpy" if sources else "")


def grade_folder(
    folder: Path, arrays: str, *, names: Sequence[str] = (), hint: int = 0, seconds: float = SECONDS
) -> Iterator[Grade]:
    """The grades of a folder, one after the other, of all exercises or of those in ``names``.

    A separate process computes them, so that an endless loop or a crash ends only that process. A new process then
    continues with the remaining exercises.
    """
    remaining = [each.name for each in path() if not names or {each.name, each.symbol} & set(names)]
    spawn = multiprocessing.get_context("spawn")
    limit = 4 * seconds + 2  # more than the process allows itself to import and run
    while remaining:
        here, there = spawn.Pipe()
        arguments = there, str(folder.resolve()), arrays, remaining, hint, seconds
        process = spawn.Process(target=_send_grades, args=arguments, daemon=True)
        process.start()
        there.close()
        reason, wait = f"Timeout: it did not end within {limit:g} seconds", limit + 120  # with the start of the process
        try:
            while remaining and here.poll(wait):
                yield here.recv()
                remaining.pop(0)
                wait = limit
        except EOFError:
            process.join()
            reason = f"It ended the process (status {process.exitcode})."
        finally:
            process.kill()
            process.join()
        if remaining:
            yield Grade(remaining.pop(0), "wrong", reason)


def _send_grades(pipe: Any, folder: str, arrays: str, names: list[str], hint: int, seconds: float) -> None:
    """Send a grade for each name from the other process. Standard error gets what the files print."""
    os.dup2(2, 1)
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    kind, wrong = Arrays(arrays), list[Grade]()
    for exercise in path():
        if exercise.name in names:
            pipe.send(_grade(exercise, kind, hint, seconds, wrong))


def _grade(exercise: Exercise, kind: Arrays, hint: int, seconds: float, wrong: list[Grade]) -> Grade:
    """The grade of an exercise of a file; a wrong one is appended to ``wrong``."""
    try:
        with limit_time(seconds), kind.wide():
            candidate = getattr(importlib.import_module(exercise.text["file"]), exercise.symbol)
    except (Exception, Timeout) as error:
        return Grade(f"{exercise.text['file']}.py", "unread", failure(error))
    grade = grade_exercise(exercise, candidate, kind, hint, seconds)
    if grade.state != "wrong":
        return grade
    called, causes = called_by(candidate), set(grade.mistakes)
    names = [each.name for each in wrong if each.name.partition(".")[0] in called and causes <= set(each.mistakes)]
    if names:
        which = "which are wrong; fix them first" if names[1:] else "which is wrong; fix it first"
        return Grade(grade.name, "wrong", f"it calls {' and '.join(names)}, {which}")
    wrong.append(grade)
    return grade
