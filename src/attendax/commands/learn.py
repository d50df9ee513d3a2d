"""``attendax learn`` and ``attendax grade``: the path and its skeletons, and what is right and wrong in a folder."""

import argparse
import importlib.util
import inspect
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attendax import spec
from attendax.exits import FAILED, Refusal
from attendax.extras import pip_install
from attendax.learn import Grade, folders
from attendax.learn.exercises import path
from attendax.learn.grading import SECONDS
from attendax.legible import did_you_mean, wrapped

INDENT = " " * 9


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """The arguments of ``attendax learn`` or ``attendax grade``."""
    library = parser.add_mutually_exclusive_group()
    for name, title in (("numpy", "NumPy"), ("jax", "JAX"), ("torch", "PyTorch")):
        library.add_argument(f"--{name}", dest="arrays", action="store_const", const=name, help=f"exercises in {title}")
    if command == "learn":
        parser.add_argument(
            "folder", nargs="?", metavar="DIR", help="folder for the skeletons [none: the path is listed]"
        )
        parser.add_argument(
            "--solutions", action="store_true", help="solutions: each in attendax.spec, with its derivation"
        )
        parser.set_defaults(run=_learn)
        return
    parser.add_argument("folder", metavar="DIR", help="folder with your functions")
    parser.add_argument("names", nargs="*", metavar="NAME", help="functions that are graded [all]")
    parser.add_argument(
        "--hint", type=int, default=1, metavar="N", help="depth of the hints: 1, 2, or 3 with the derivation [1]"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help=f"limit for a function [{SECONDS:g}]"
    )
    parser.set_defaults(run=_grade)


def _learn(args: argparse.Namespace) -> int:
    if args.solutions:
        return _solutions()
    if args.folder is None:
        return _list(Path())
    folder = Path(args.folder)
    library = folders.library(folder)
    if library and args.arrays not in (None, library):
        raise Refusal(f"{args.folder} holds exercises in {library}; for --{args.arrays} name another folder")
    written = folders.write(folder, args.arrays or library or "numpy")
    for file in folders.files(folder):
        print(f"wrote {file}" if file in written else f"kept {file}, which was there")
    begin = f"Write the first, softmax in {folder / 'attention_core.py'}, then:"
    print(f"\n{begin if written else 'What is right and wrong:'} attendax grade {args.folder}")
    return 0


def _list(folder: Path) -> int:
    """The exercises in order, and how far the folder at hand has come."""
    begun = folders.library(folder)
    states = [grade.state for grade in _graded(folder)] if begun else [""] * len(path())
    for file, exercises in itertools.groupby(zip(path(), states, strict=True), lambda each: each[0].text["file"]):
        print(f"{file}.py")
        for exercise, state in exercises:
            print(wrapped(f"  {state and f'{state:<8}'}{exercise.name}: {exercise.text['teaches']}", "      "))
    begin = "To begin: attendax learn DIR writes a folder, attendax grade DIR says what is wrong in it."
    print("\n" + (f"{_counted(states)}\nWhat is wrong, and why: attendax grade ." if begun else wrapped(begin)))
    return 0


def _solutions() -> int:
    """The place of each function in the specification, and of its derivation."""
    for exercise in path():
        owner: Any = getattr(spec, exercise.symbol)
        found = inspect.unwrap(getattr(owner, exercise.name.partition(".")[2], owner))
        place = f"{inspect.getsourcefile(found)}:{inspect.getsourcelines(found)[1]}"
        print(f"{exercise.name}\n  {place}\n")
        print("\n".join(f"  {line}".rstrip() for line in exercise.derivation.splitlines()), end="\n\n")
    return 0


def _graded(folder: Path, arrays: str | None = None, **options: Any) -> Iterable[Grade]:
    arrays = arrays or folders.library(folder)
    if importlib.util.find_spec(arrays) is None:
        raise Refusal(f"the folder is in {arrays}, which is not installed; run: {pip_install(arrays)}")
    return folders.graded(folder, arrays, **options)


def _grade(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    if not folders.library(folder):
        raise Refusal(f"{args.folder} has no file of the exercises; to begin: attendax learn {args.folder}")
    known = {name for exercise in path() for name in (exercise.name, exercise.symbol)}
    if unknown := next((name for name in args.names if name not in known), None):
        raise Refusal(f"there is no exercise {unknown}{did_you_mean(unknown, known)}")
    if args.hint not in (1, 2, 3):
        raise Refusal(f"--hint got {args.hint}, expected 1, 2 or 3")
    if not args.seconds > 0:
        raise Refusal(f"--seconds {args.seconds:g}: more than 0")
    grades = list[Grade]()
    for grade in _graded(folder, args.arrays, names=args.names, hint=args.hint, seconds=args.seconds):
        if grade not in grades:  # one line for a file that is not read, not one for each of its functions
            _print(grade)
        grades.append(grade)
    states = [grade.state for grade in grades]
    print(f"\n{_counted(states)}")
    if set(states) == {"not yet"}:
        first = next(exercise for exercise in path() if exercise.name == grades[0].name)
        print(f"Begin with {first.name} in {folder / first.text['file']}.py; --hint 2 helps.")
    if missing := [file.name for file in folders.files(folder) if not file.is_file()]:
        print(f"Not there: {', '.join(missing)}. What is not there is written by: attendax learn {args.folder}")
    if "wrong" in states and args.hint < 3:
        print(f"More help: --hint {args.hint + 1}")
    return 0 if set(states) == {"right"} else FAILED


def _print(grade: Grade) -> None:
    """A grade; its reason stands behind the name where no example follows."""
    _, *lines = str(grade).splitlines()
    beside = f": {lines.pop(0)}" if grade.reason and not grade.example else ""
    print(wrapped(f"{grade.state:<8} {grade.name}{beside}", INDENT), flush=True)
    for line in lines:
        print(INDENT + line if line.startswith(" ") else wrapped(INDENT + line, INDENT), flush=True)


def _counted(states: list[str]) -> str:
    rest = ", ".join(f"{states.count(state)} {state}" for state in ("wrong", "not yet", "unread") if state in states)
    return f"{states.count('right')} of {len(states)} right" + (f"; {rest}." if rest else ": all of it. Well done.")
