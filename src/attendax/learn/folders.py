"""A learner's folder: its skeletons are written here, and its functions graded in a process of its own."""

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

from .arrays import Arrays, own
from .exercises import MODULES, TEXTS, Exercise, path, texts
from .grading import SECONDS, Grade, Stopped, examined, failure, limited


def skeleton(module: str, arrays: str = "numpy") -> str:
    """The text of one file: signatures, formulas, shapes, examples by hand; nothing of the solution."""
    said = texts("libraries")[arrays]
    return re.sub(r"\{\{(\w+)\}\}", lambda found: said[found[1]], (TEXTS / f"{module}.txt").read_text("utf-8"))


def files(folder: Path) -> list[Path]:
    """The files of the path in a folder, whether they are there or not."""
    return [folder / f"{module}.py" for module in MODULES]


def write(folder: Path, arrays: str = "numpy") -> list[Path]:
    """Write the files that are not there; those that are stay as they are.

    Returns:
        Those written.

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
    """The library that the files of the folder import: JAX or PyTorch, else NumPy; "" where no file of the path is."""
    read = [file.read_text("utf-8", "replace") for file in files(folder) if file.is_file()]
    return max(re.findall(r"^(?:import|from) (jax|torch)\b", "\n".join(read), re.M), default="numpy" if read else "")


def graded(
    folder: Path, arrays: str, *, names: Sequence[str] = (), hint: int = 1, seconds: float = SECONDS
) -> Iterator[Grade]:
    """The grades of a folder, one after the other: of all exercises, or of those named.

    They are made in a process of its own, so that a loop that never ends, or a crash, ends nothing but itself; it is
    started again for the exercises that are left.
    """
    left = [each.name for each in path() if not names or {each.name, each.symbol} & set(names)]
    spawn, limit = multiprocessing.get_context("spawn"), 4 * seconds + 2  # it stops itself, while it imports and runs
    while left:
        here, there = spawn.Pipe()
        given = there, str(folder.resolve()), arrays, left, hint, seconds
        process = spawn.Process(target=_grade, args=given, daemon=True)
        process.start()
        there.close()
        ended, wait = f"Stopped: it did not end within {limit:g} seconds", limit + 120  # it has to start
        try:
            while left and here.poll(wait):
                yield here.recv()
                left.pop(0)
                wait = limit
        except EOFError:
            process.join()
            ended = f"It ended the process (status {process.exitcode})."
        finally:
            process.kill()
            process.join()
        if left:
            yield Grade(left.pop(0), "wrong", ended)


def _grade(pipe: Any, folder: str, arrays: str, names: list[str], hint: int, seconds: float) -> None:
    """Send a grade for each name, in the other process. Output of the files goes to standard error."""
    os.dup2(2, 1)
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    kind, wrong = Arrays(arrays), list[Grade]()
    for exercise in path():
        if exercise.name in names:
            pipe.send(_graded(exercise, kind, hint, seconds, wrong))


def _graded(exercise: Exercise, kind: Arrays, hint: int, seconds: float, wrong: list[Grade]) -> Grade:
    """The grade of an exercise whose file is imported, once; a wrong one joins those that are."""
    try:
        with limited(seconds), kind.wide():
            candidate = getattr(importlib.import_module(exercise.text["file"]), exercise.symbol)
    except (Exception, Stopped) as error:
        return Grade(f"{exercise.text['file']}.py", "unread", failure(error))
    found = examined(exercise, candidate, kind, hint, seconds)
    if found.state != "wrong":
        return found
    called, why = own(candidate), set(found.mistakes)
    names = [each.name for each in wrong if each.name.partition(".")[0] in called and why <= set(each.mistakes)]
    if names:
        which = "which are wrong; mend them first" if names[1:] else "which is wrong; mend that first"
        return Grade(found.name, "wrong", f"it calls {' and '.join(names)}, {which}")
    wrong.append(found)
    return found
