"""Arguments of the command line in the terms of ``check``."""

import argparse
import ast
import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attendax import writing
from attendax.exits import Refusal

from ..adapters.implementation import Implementation
from ..cases.how import How
from ..contract.understanding import Settled
from ..conventions.table import TABLE
from ..worker.place import implement
from .options import REPORTS

EXAMPLE = ", such as torch.nn.functional:scaled_dot_product_attention"
OUR_PREFIXES = ("check: ", "check_model: ")  # errors that say what the user has to change begin so


def target(args: argparse.Namespace) -> str | None:
    """The path of the function that is judged."""
    paths = {"FUNCTION": args.target, "--exec": f"exec:{args.exec}", "--onnx": f"onnx:{args.onnx}"}
    named = [name for name, x in zip(paths, (args.target, args.exec, args.onnx), strict=True) if x is not None]
    if len(named) > 1:
        raise Refusal(f"name one of {' and '.join(named)}")
    return paths[named[0]] if named else None


def how_of(args: argparse.Namespace) -> How:
    """The settings of a run, checked."""
    sizes = {}
    for pair in filter(None, (args.sizes or "").split(",")):
        axis, _, size = pair.partition("=")
        if not size.strip().isdigit():
            raise Refusal(f"--sizes got {pair!r}, expected axis=size, such as B=2,N=8,T=1024,D=64")
        sizes[axis.strip().upper()] = int(size)
    given = {name: x for name, x in vars(args).items() if name in How._fields and x is not None}
    given |= {name: tuple(given.get(name, ())) for name in ("require", "claims")}
    return How(**{"profile": "numbers"} | given | {"sizes": sizes}).checked()


def settled(args: argparse.Namespace) -> Settled:
    """The statements about the meaning of the function."""
    pairs = [pair.partition("=") for pair in args.expect or ()]
    if wrong := ["".join(pair) for pair in pairs if pair[2] == ""]:
        raise Refusal(f"--expect got {wrong[0]!r}, expected axis=value, with an axis of {', '.join(TABLE)}")
    return Settled.by({axis: value for axis, _, value in pairs}, args.ignore or (), args.contract or "")


def _said(path: str, error: BaseException) -> str:
    """An error in the user's module; where that is not there, a guess of the path that was meant."""
    module, _, name = path.partition(":")
    if "/" in module or module.endswith(".py"):  # a file: Python takes a leading "." for a relative import
        return _of_file(Path(module.removesuffix(".py")), name)
    if not isinstance(error, ImportError):
        return f"{type(error).__name__}: {one_line(error)}"
    missing = getattr(error, "name", None) or str(error).partition("'")[2].partition("'")[0]
    if missing != module and not module.startswith(f"{missing}."):  # it is there, and lacks another one
        return one_line(error)
    return f"{one_line(error)}; {module.replace('.', '/')}.py is not in this folder"


def _of_file(file: Path, name: str) -> str:
    """The module that a file is, where the path of a file is given in its place."""
    there = "" if file.with_suffix(".py").is_file() else f"there is no file {file.with_suffix('.py')}; "
    if file.is_absolute() or ".." in file.parts:
        return f"{there}a module is named in its folder: cd {file.parent}, then {file.name}:{name}"
    return f"{there}a module is named without .py: {'.'.join(file.parts)}:{name}"


def _functions(target: str) -> str:
    """A function of the file of the current folder that is named in its place, and how it is named."""
    module = target.removesuffix(".py").strip("./")
    try:
        tree = ast.parse(Path(f"{module}.py").read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    names = [x.name for x in tree.body if isinstance(x, ast.FunctionDef) and not x.name.startswith("_")]
    found = [*difflib.get_close_matches("attention", names, n=1, cutoff=0), *names]
    return f"; name a function of it: {module.replace('/', '.')}:{found[0]}" if found else ""


def implementation(args: argparse.Namespace, how: How, **more: Any) -> Implementation:
    """Make the function that the arguments name, or refuse them; it has to be there by the end of the run."""
    if ":" not in args.target:
        raise Refusal(f"{args.target!r} is not module:function{_functions(args.target) or EXAMPLE}")
    try:
        return implement(args.target, how=how, in_process=args.in_process, device=args.device, **more)
    except (Exception, SystemExit) as error:  # a refusal, as it is before any case
        if str(error).startswith("check: "):
            raise
        raise Refusal(f"{args.target}: {_said(args.target, error)}") from error


def files(args: argparse.Namespace) -> dict[str, str]:
    """Files of the reports that are asked for, by kind."""
    return {kind: getattr(args, kind) for kind in REPORTS if getattr(args, kind) is not None}


def refuse_unwritable(args: argparse.Namespace) -> None:
    """Say now, not after two minutes, that a file cannot be written."""
    written = files(args)
    if sum(file == "-" for file in written.values()) > 1:
        raise Refusal("only one report fits standard output: give the others a file")
    for kind, file in written.items():
        if file != "-":
            writing.check(f"--{kind}", file)


def refusing(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Turn errors that the user can mend into refusals: those of the kit, and imports that failed."""

    def refused(args: argparse.Namespace) -> int:
        try:
            return run(args)
        except Exception as error:
            if not isinstance(error, ImportError) and not str(error).startswith(OUR_PREFIXES):
                raise
            raise Refusal(one_line(error)) from error

    return refused


def one_line(error: BaseException) -> str:
    """The text of an error on one line, without the name of the function that raised it."""
    words = " ".join(str(error).split())
    for name in OUR_PREFIXES:
        words = words.removeprefix(name)
    return words or type(error).__name__
