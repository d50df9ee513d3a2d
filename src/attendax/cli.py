"""The command ``attendax``: its commands, each in a module that is imported when it runs."""

import argparse
import importlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from attendax import exits
from attendax.exits import FAILED as FAILED
from attendax.exits import PIPE_CLOSED, REFUSED, Refusal
from attendax.legible import did_you_mean, one_line
from attendax.successors import successor

GROUPS = {  # purpose: the commands, each with a line about it
    "Test an attention function": {
        "check": "faults of a function, each with its law and a script that shows it",
        "describe": "how a function is called, and which conventions it follows",
    },
    "Compare": {"diff": "conventions by which two functions differ, and an adapter"},
    "Learn": {
        "learn": "exercises: attention and its gradients, for you to write",
        "grade": "mistakes in your solutions, with reasons and hints",
    },
    "See it work": {
        "embed": "similarities of sentences, by a real encoder",
        "demo": "attention on small numbers, without and with a mask",
    },
}
FOLDERS = {
    "inputs": "cases of check as folders, for a program that runs anywhere",
    "judge": "report on the results in those folders",
    "vectors": "cases with the right results, and allowed errors",
}
LEARNING = tuple(GROUPS["Learn"])
CLEANING = ("check", "describe", "diff", *LEARNING, *FOLDERS)  # folders and processes of theirs have to go first
MODULES = {  # of the commands
    "check": "conformance.command.of_models",
    "describe": "conformance.command.describing",
    "diff": "conformance.command.comparing",
    **{name: "conformance.command.folders" for name in FOLDERS},
    **{name: "commands.learn" for name in LEARNING},
    **{name: f"commands.{name}" for name in ("embed", "demo")},
}
ABOUT = {name: about for commands in (*GROUPS.values(), FOLDERS) for name, about in commands.items()}


def main(argv: Sequence[str] | None = None, called: float | None = None) -> int:
    """Run the command line.

    Args:
        argv: its arguments [those of this process].
        called: the time of the call by ``time.monotonic`` [now].

    Returns:
        The exit status: 0 success, 1 failed check, 2 refused, with the reason on standard error.
    """
    argv = sys.argv[1:] if argv is None else argv
    if line := successor(argv):
        print(f"attendax {line}", file=sys.stderr)
        return REFUSED
    try:
        args = _parsed(argv)
    except BrokenPipeError:  # of --version and --help
        return _reader_gone()
    args.argv, args.called = argv, time.monotonic() if called is None else called
    if args.command in ("check", "describe", "diff"):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of its processes: on small arrays threads only wait
    if args.command in ("describe", "diff"):
        _from_here()
    if args.command in CLEANING:
        exits.raise_instead()
    return status_of(f"attendax {args.command}", lambda: args.run(args))


def status_of(name: str, run: Callable[[], int]) -> int:
    """The exit status of a command: a refusal is one line on standard error, which begins with ``name``."""
    try:
        if sys.stdout is None:
            raise Refusal("standard output is closed")
        status = run()
        sys.stdout.flush()
    except Refusal as refusal:
        reason = one_line(str(refusal)).removeprefix(f"{name.split()[-1]}: ")
        print(f"{name}: {reason}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:  # a full disk behind standard output; files that are read have their own errors
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"{name}: cannot write the output: {error.strerror}", file=sys.stderr)
        return REFUSED
    except exits.Terminated as signal:
        return signal.status
    except KeyboardInterrupt:
        return exits.STATUS
    return status


def _reader_gone() -> int:
    """The status if the reader, such as head, has closed the pipe. Else the interpreter would flush and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED


def _from_here() -> None:
    """Put the current folder first on the path of modules, as ``python -m attendax`` does."""
    here = os.getcwd()
    sys.path[:] = [here, *(folder for folder in sys.path if folder not in ("", here))]


class _Parser(argparse.ArgumentParser):
    """A parser whose errors suggest the nearest word and show the usage of the right command."""

    commands: "Mapping[str, _Parser]" = {}

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = did_you_mean(value, action.choices or ())
            raise argparse.ArgumentError(action, f"{error.message}{near}") from None

    def refuse(self, words: list[str]) -> NoReturn:
        """Raise the error about unknown words."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        near = did_you_mean(option, self._option_string_actions) if option else ""
        self.error(f"unrecognized arguments: {' '.join(words)}{near}")


class _Versions(argparse.Action):
    """Print the versions of attendax and jax, and a line about the native library."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any) -> None:
        from attendax.kernels import native

        for package in ("attendax", "jax"):
            print(package, _version(package))
        print(native.status())
        parser.exit()


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = _parser(argv)
    args, unknown = parser.parse_known_args(argv)
    before = args.command is None or argv[0] != args.command
    if args.command == "grade":  # argparse takes names at one place only; these stand behind an option
        args.names += [word for word in unknown if not word.startswith("-")]
        unknown = [word for word in unknown if word.startswith("-")]
    if unknown:
        (parser if before else parser.commands[args.command]).refuse(unknown)
    if args.command is None:
        parser.error(f"no command; expected one of {', '.join(ABOUT)}; attendax --help explains them")
    return args


def _parser(argv: Sequence[str]) -> _Parser:
    parser = _Parser(prog="attendax", usage="attendax COMMAND ...", description=_listed())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    about = "versions, and the state of the native library"
    parser.add_argument("--version", action=_Versions, nargs=0, help=about)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog="attendax")
    called = next((word for word in argv if not word.startswith("-")), "")
    for name, about in ABOUT.items():
        parsed = commands.add_parser(name, description=about)
        if name == called:
            _add_arguments(parsed, name, argv)
    parser.commands = commands.choices
    return parser


def _listed() -> str:
    lines = []
    for title, commands in GROUPS.items():
        lines += [title, *(f"  {name:<10}{about}" for name, about in commands.items())]
    folders = f"Cases as folders, for a program on another machine: {', '.join(FOLDERS)}."
    return "\n".join([*lines, "", folders, "The options of a command: attendax COMMAND --help"])


def _add_arguments(parser: argparse.ArgumentParser, command: str, argv: Sequence[str]) -> None:
    """The arguments of the command that runs: only its own module is imported."""
    if command == "check":
        from attendax.conformance.command import options

        if not options.of_models(argv):
            options.add_arguments(parser, argv)
            parser.set_defaults(run=lambda args: _module("conformance.command.running").run(args))
            return
    module = _module(MODULES[command])
    if command in (*LEARNING, *FOLDERS):
        module.add_arguments(parser, command)
    else:
        module.add_arguments(parser)
    if hasattr(module, "run"):
        parser.set_defaults(run=module.run)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"attendax.{name}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
