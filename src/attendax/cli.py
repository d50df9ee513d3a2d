"""The command ``attendax``: ``learn``, ``grade``, ``check``, ``describe``, ``diff``, ``embed``, ``bench`` ..."""

import argparse
import importlib.metadata
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from attendax import exits
from attendax.commands import embed
from attendax.exits import FAILED as FAILED
from attendax.exits import PIPE_CLOSED, REFUSED, Refusal
from attendax.legible import did_you_mean, one_line
from attendax.successors import successor

FOLDERS = {
    "inputs": "write the cases of check as folders, for a program that runs anywhere",
    "judge": "judge the results that lie in those folders",
    "vectors": "write the cases with what is right, and how far off each number may be",
}
LEARNING = {
    "learn": "learn attention by writing it: the exercises, and skeletons of them in a folder",
    "grade": "say what is right and wrong in such a folder, with reasons and hints",
}


def main(argv: Sequence[str] | None = None, called: float | None = None) -> int:
    """Run the command line.

    Args:
        argv: its arguments; those of this process unless given.
        called: when the command was called, of ``time.monotonic``; now unless given.

    Returns:
        The exit status: 0 well, 1 the check failed, 2 refused (said why on standard error).
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
    try:
        if sys.stdout is None:
            raise Refusal("standard output is closed")
        if args.command in ("check", "describe", "diff"):
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of its processes: on small arrays threads only wait
        if args.command in ("describe", "diff"):
            _from_here()
        own = {"check", "describe", "diff", "bench", *LEARNING, *FOLDERS}
        if args.command in own:  # folders and processes of theirs have to go first
            exits.raise_instead()
        status = args.run(args)
        sys.stdout.flush()
    except Refusal as refusal:
        said = one_line(str(refusal)).removeprefix(f"{args.command}: ")
        print(f"attendax {args.command}: {said}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:
        return _reader_gone()
    except OSError as error:  # a full disk behind standard output; files that are read have their own errors
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"attendax {args.command}: cannot write the output: {error.strerror}", file=sys.stderr)
        return REFUSED
    except exits.Terminated as signal:
        return signal.status
    except KeyboardInterrupt:
        return exits.STATUS
    return status


def _reader_gone() -> int:
    """The status where the reader, such as head, has seen enough; else the interpreter flushes again and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED


def _from_here() -> None:
    """Modules of the folder of the command are found first, as ``python -m attendax`` finds them."""
    here = os.getcwd()
    sys.path[:] = [here, *(folder for folder in sys.path if folder not in ("", here))]


class _Parser(argparse.ArgumentParser):
    """Its errors name the nearest word, and show the usage of the command that they are of."""

    commands: "Mapping[str, _Parser]" = {}

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = did_you_mean(value, action.choices or ())
            raise argparse.ArgumentError(action, f"{error.message}{near}") from None

    def refuse(self, words: list[str]) -> NoReturn:
        """Words that nothing takes."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        near = did_you_mean(option, self._option_string_actions) if option else ""
        self.error(f"unrecognized arguments: {' '.join(words)}{near}")


class _Versions(argparse.Action):
    """Prints the versions of attendax and jax, and a line about the native library."""

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
        parser.error("the following arguments are required: COMMAND")
    return args


def _parser(argv: Sequence[str]) -> _Parser:
    parser = _Parser(prog="attendax", description="Attention that keeps its word.")
    about = "versions, and whether the native library is there"
    parser.add_argument("--version", action=_Versions, nargs=0, help=about)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    shown = commands.add_parser("demo", help="scaled dot-product attention on small numbers, without and with a mask")
    if "demo" in argv[:1]:
        from attendax.commands import demo

        shown.set_defaults(run=demo.run)

    for name, about in LEARNING.items():
        parsed = commands.add_parser(name, help=about, description=about)
        if name in argv[:1]:
            from attendax.commands import learn

            learn.add_arguments(parsed, name)

    about = "judge an attention function, law by law, gradients included"
    check = commands.add_parser("check", help=about, description=about)
    if "check" in argv[:1]:  # the kit is imported for nothing else
        from attendax.conformance import command

        chosen = command.command_for(argv)
        chosen.add_arguments(check)
        check.set_defaults(run=chosen.run)

    about = "say how an attention function is called, and which conventions it follows"
    described = commands.add_parser("describe", help=about, description=about)
    if "describe" in argv[:1]:
        from attendax.conformance.command import describing as of_one

        of_one.add_arguments(described)
        described.set_defaults(run=of_one.run)

    about = "say by which conventions two attention functions differ, and print an adapter"
    against = commands.add_parser("diff", help=about, description=about)
    if "diff" in argv[:1]:
        from attendax.conformance.command import comparing as of_two

        of_two.add_arguments(against)
        against.set_defaults(run=of_two.run)

    for name, about in FOLDERS.items():
        parsed = commands.add_parser(name, help=about, description=about)
        if name in argv[:1]:
            from attendax.conformance.command import folders

            folders.add_arguments(parsed, name)

    embed.add_command(commands)

    about = "time attention beside the other libraries that are installed"
    timed = commands.add_parser("bench", help=about, description=about)
    if "bench" in argv[:1]:
        from attendax.commands import bench

        bench.add_arguments(timed)
    parser.commands = commands.choices
    return parser


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
