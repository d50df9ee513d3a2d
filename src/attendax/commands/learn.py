"""``attendax learn`` and ``attendax grade``: the course with its skeletons, and the grades of a folder."""

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

INDENT = "  "


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """The arguments of ``attendax learn`` or ``attendax grade``."""
    library = parser.add_mutually_exclusive_group()
    for name, title in (("numpy", "NumPy"), ("jax", "JAX"), ("torch", "PyTorch")):
        library.add_argument(f"--{name}", dest="arrays", action="store_const", const=name, help=f"exercises in {title}")
    if command == "learn":
        parser.add_argument("folder", nargs="?", metavar="DIR", help="folder for the exercises [none: list them]")
        parser.add_argument("--solutions", action="store_true", help="solutions in attendax.spec, with derivations")
        parser.set_defaults(run=_learn)
        return
    parser.add_argument("folder", metavar="DIR", help="folder with your functions")
    parser.add_argument("names", nargs="*", default=[], metavar="NAME", help="functions to grade [all]")
    about = "number of hints, 0 to 3; the third is the derivation [0]"
    parser.add_argument("--hint", type=int, default=0, metavar="N", help=about)
    about = f"time limit of a function [{SECONDS:g}]"
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=about)
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
        print(f"wrote {file}" if file in written else f"kept {file}, which exists")
    begin = f"Begin with softmax in {folder / 'attention_core.py'}, then run:"
    print(f"\n{begin if written else 'To grade them, run:'} attendax grade {args.folder}")
    return 0


def _list(folder: Path) -> int:
    begun = folders.library(folder)
    states = [grade.state for grade in _graded(folder)] if begun else [""] * len(path())
    for file, exercises in itertools.groupby(zip(path(), states, strict=True), lambda each: each[0].text["file"]):
        print(f"{file}.py")
        for exercise, state in exercises:
            print(wrapped(f"  {state and f'{state:<8}'}{exercise.name}: {exercise.text['teaches']}", "      "))
    if begun:
        print(f"\n{_counted(states)}\nTo see what is wrong and why, run: attendax grade .")
    else:
        begin = "To begin: attendax learn DIR writes the files into a folder, attendax grade DIR grades them."
        print("\n" + wrapped(begin))
    return 0


def _solutions() -> int:
    """Print the place of each function in the specification, with its derivation."""
    for exercise in path():
        owner: Any = getattr(spec, exercise.symbol)
        function = inspect.unwrap(getattr(owner, exercise.name.partition(".")[2], owner))
        place = f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
        print(f"{exercise.name}\n  {place}\n")
        print("\n".join(f"  {line}".rstrip() for line in exercise.derivation.splitlines()), end="\n\n")
    return 0


def _graded(folder: Path, arrays: str | None = None, **options: Any) -> Iterable[Grade]:
    arrays = arrays or folders.library(folder)
    if importlib.util.find_spec(arrays) is None:
        raise Refusal(f"the files use {arrays}, which is not installed; run: {pip_install(arrays)}")
    return folders.grade_folder(folder, arrays, **options)


def _grade(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    if not folders.library(folder):
        raise Refusal(f"{args.folder} has no exercises; to write them there, run: attendax learn {args.folder}")
    known = {name for exercise in path() for name in (exercise.name, exercise.symbol)}
    if unknown := next((name for name in args.names if name not in known), None):
        raise Refusal(f"there is no exercise {unknown}{did_you_mean(unknown, known)}")
    if args.hint not in (0, 1, 2, 3):
        raise Refusal(f"--hint got {args.hint}, expected 0, 1, 2 or 3")
    if not args.seconds > 0:
        raise Refusal(f"--seconds got {args.seconds:g}, expected a number above 0")
    grades = list[Grade]()
    for grade in _graded(folder, args.arrays, names=args.names, hint=args.hint, seconds=args.seconds):
        if grade.state in ("wrong", "unread") and grade not in grades:  # once for a file that cannot be imported
            _print(grade)
        grades.append(grade)
    states = [grade.state for grade in grades]
    if solved := [grade.name for grade in grades if grade.right]:
        print(wrapped(f"right: {', '.join(solved)}", INDENT))
    if unwritten := [grade for grade in grades if grade.state == "not yet"]:
        _print_unwritten(folder, unwritten)
    print(f"\n{_counted(states)}")
    if missing := [file.name for file in folders.files(folder) if not file.is_file()]:
        print(f"Missing files: {', '.join(missing)}. To write them, run: attendax learn {args.folder}")
    if {"wrong", "not yet"} & set(states) and args.hint < 3:
        print(f"For {'one more' if args.hint else 'a'} hint, add --hint {args.hint + 1}")
    return 0 if set(states) == {"right"} else FAILED


def _print_unwritten(folder: Path, grades: list[Grade]) -> None:
    """The next exercise to write, with its hints, and the number of them; and written ones that need others."""
    file = next(exercise.text["file"] for exercise in path() if exercise.name == grades[0].name)
    print(wrapped(f"not yet written: {len(grades)}; the next is {grades[0].name} in {folder / file}.py", INDENT))
    for line in grades[0].hint.splitlines():
        print(wrapped(INDENT + line, INDENT))
    for grade in grades:
        if grade.reason:
            print(wrapped(f"not yet: {grade.name}: {grade.reason}", INDENT))


def _print(grade: Grade) -> None:
    """A grade, with its reason beside the name if no example follows."""
    _, *lines = str(grade).splitlines()
    beside = f": {lines.pop(0)}" if grade.reason and not grade.example else ""
    print(wrapped(f"{grade.state}: {grade.name}{beside}", INDENT), flush=True)
    for line in lines:
        print(INDENT + line if line.startswith(" ") else wrapped(INDENT + line, INDENT), flush=True)


def _counted(states: list[str]) -> str:
    rest = ", ".join(f"{states.count(state)} {state}" for state in ("wrong", "not yet", "unread") if state in states)
    return f"{states.count('right')} of {len(states)} right" + (f"; {rest}." if rest else ": all of it. Well done.")
