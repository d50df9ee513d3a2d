"""``attendax describe``: how an attention function is called, and what it means by its options."""

import argparse
import contextlib
import sys

from attendax.exits import Refusal
from attendax.legible import wrapped

from ..against.writing import NoAdapter
from . import Contract, describe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``attendax describe``."""
    parser.add_argument("target", metavar="FUNCTION", help="module:function")
    parser.add_argument("--save", metavar="FILE", help="file for the contract as TOML")
    parser.add_argument("--adapter", action="store_true", help="Python that calls it as `attendax check` does")
    about = "most CPU seconds [4, of JAX 10]"
    parser.add_argument("--limit", type=float, metavar="SECONDS", help=about)


def run(args: argparse.Namespace) -> int:
    """Print the contract; gives the exit status. Modules are found in the current folder first."""
    from ..command import running  # a process that answers needs none of it

    return running.run(args, _run)


def _run(args: argparse.Namespace) -> int:
    if args.limit is not None and not args.limit > 0:
        raise Refusal(f"--limit got {args.limit:g}, expected more than 0 CPU seconds")
    with contextlib.redirect_stdout(sys.stderr):  # the function may print
        contract = describe(args.target, seconds=args.limit)
    for line in contract.lines():
        print(wrapped(line, indent=" " * 12))
    if args.save:
        _write(args.save, contract.toml())
    if args.adapter:
        print(f"\n{_adapter(contract)}".rstrip())
    return 0


def _adapter(contract: Contract) -> str:
    try:
        return contract.adapter()
    except NoAdapter as error:
        why = str(error).replace("B", "the function", 1)
        raise Refusal(f"no adapter makes {contract.path} one of the protocol: {why}") from error


def _write(file: str, text: str) -> None:
    try:
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise Refusal(f"cannot write {file}: {error.strerror}; name a file in a folder that is there") from error
