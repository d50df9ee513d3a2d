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

from .arrays import Arrays
from .calls import own
from .exercises import MODULES, TEXTS, Exercise, path, texts
from .grading import SECONDS, Grade, Stopped, examined, failure, limited


def skeleton(module: str, arrays: str = "numpy") -> str:
    """The text of one file: signatures, formulas, shapes, examples by hand; nothing of the solution."""
    said = texts("libraries")[arrays]
    return re.sub(r"\{\{(\w+)\}\}", lambda found: said[found[1]], (TEXTS / f"{module}.txt").read_text("utf-8"))


def write(folder: Path, arrays: str = "numpy") -> tuple[list[str], list[str]]:
    """Write the files that are not there; those that are stay as they are.

    Returns:
        The names of those written, and of those that were there.

    Raises:
        Refusal: the folder cannot be written to.
    """
    there = [module for module in MODULES if (folder / f"{module}.py").exists()]
    new = [module for module in MODULES if module not in there]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for module in new:
            writing.write(folder / f"{module}.py", skeleton(module, arrays))
    except OSError as error:
        raise Refusal(f"cannot write to {folder}: {error.strerror}") from None
    return [f"{module}.py" for module in new], [f"{module}.py" for module in there]


def has_exercises(folder: Path) -> bool:
    """Whether a file of the path lies there."""
    return any((folder / f"{module}.py").is_file() for module in MODULES)


def library(folder: Path) -> str:
    """The library that the files of the folder import: JAX or PyTorch, else NumPy."""
    files = [folder / f"{module}.py" for module in MODULES]
    read = "\n".join(file.read_text("utf-8", "replace") for file in files if file.is_file())
    found = re.findall(r"^(?:import|from) (jax|torch)\b", read, re.MULTILINE)
    return max(found, default="numpy")


def graded(
    folder: Path, arrays: str, *, names: Sequence[str] = (), hint: int = 1, seconds: float = SECONDS
) -> Iterator[Grade]:
    """The grades of a folder, one after the other: of all exercises, or of those named.

    They are made in a process of its own, so that a loop that never ends, or a crash, ends nothing but itself; it is
    started again for the exercises that are left.
    """
    left = [each.name for each in path() if not names or {each.name, each.symbol} & set(names)]
    while left:
        here, there = multiprocessing.get_context("spawn").Pipe()
        given = there, str(folder.resolve()), arrays, left, hint, seconds
        process = multiprocessing.get_context("spawn").Process(target=_grade, args=given, daemon=True)
        process.start()
        there.close()
        try:
            yield from _received(here, process, left, 4 * seconds + 2)  # it stops itself, while it imports and runs
        finally:
            process.kill()
            process.join()


def _received(pipe: Any, process: Any, left: list[str], limit: float) -> Iterator[Grade]:
    """The grades that a process sends, until it fails to; the list keeps the names of those that are left."""
    wait = limit + 120  # it has to start
    while left:
        grade, reason = None, f"It did not end within {limit:g} seconds and was stopped."
        if pipe.poll(wait):
            try:
                grade = pipe.recv()
            except EOFError:
                process.join()
                reason = f"It ended the process (status {process.exitcode})."
        yield grade or Grade(left[0], "wrong", reason)
        del left[0]
        if grade is None:
            return
        wait = limit


def _grade(pipe: Any, folder: str, arrays: str, names: list[str], hint: int, seconds: float) -> None:
    """In the other process: send a grade for each name. What the files print goes to standard error."""
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
    except Stopped as stopped:
        return Grade(exercise.name, "unread", f"It did not end within {seconds:g} seconds{stopped}.")
    except Exception as error:
        return Grade(exercise.name, "unread", failure(error))
    found = examined(exercise, candidate, kind, hint, seconds)
    if found.state != "wrong":
        return found
    wrong.append(found)
    called = own(candidate)
    for earlier in wrong[:-1]:
        calls = earlier.name.partition(".")[0] in called and set(found.mistakes) <= set(earlier.mistakes)
        if calls or (found.mistakes and found.reason == earlier.reason):
            return Grade(found.name, "wrong", f"as {earlier.name} is: mend that first")
    return found
