"""``attendax describe``: how an attention function is called, and what it means by its options."""

import argparse
import contextlib
import sys
from pathlib import Path

from attendax.exits import Refusal
from attendax.legible import wrapped

from ..contract import describe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``attendax describe``."""
    parser.add_argument("target", metavar="FUNCTION", help="module:function")
    parser.add_argument("--save", metavar="FILE", help="file for the contract as TOML")
    about = "file for an adapter, such as adapter.py: Python that `attendax check` can call"
    parser.add_argument("--adapter", metavar="FILE", help=about)
    about = "most CPU seconds [4, for JAX 10]"
    parser.add_argument("--limit", type=float, metavar="SECONDS", help=about)


def run(args: argparse.Namespace) -> int:
    """Print the contract; gives the exit status. Modules are found in the current folder first."""
    from . import running  # a process that answers needs none of it

    return running.run(args, _run)


def _run(args: argparse.Namespace) -> int:
    from .output import write

    if args.limit is not None and not args.limit > 0:
        raise Refusal(f"--limit got {args.limit:g}, expected more than 0 CPU seconds")
    if args.adapter:
        _check_module(args.adapter)
    with contextlib.redirect_stdout(sys.stderr):  # the function may print
        contract = describe(args.target, seconds=args.limit)
    for line in contract.lines():
        print(wrapped(line, indent=" " * 12))
    if args.save:
        write(args.save, contract.toml())
    if args.adapter:
        write(args.adapter, contract.fitted())
    return 0


def _check_module(file: str) -> None:
    path = Path(file)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise Refusal(f"--adapter got {file!r}, expected a file that Python can import, such as adapter.py")
