"""``attendax describe``: how an attention function is called, and what it means by its options."""

import argparse
import contextlib
import sys
from pathlib import Path

from attendax.exits import Refusal
from attendax.legible import wrapped

from ..against.writing import NoAdapter
from . import Contract, describe
from .contract import arrays_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``attendax describe``."""
    parser.add_argument("target", metavar="FUNCTION", help="module:function")
    parser.add_argument("--save", metavar="FILE", help="file for the contract as TOML")
    about = "file for an adapter, such as adapter.py: Python that `attendax check` can call"
    parser.add_argument("--adapter", metavar="FILE", help=about)
    about = "most CPU seconds [4, of JAX 10]"
    parser.add_argument("--limit", type=float, metavar="SECONDS", help=about)


def run(args: argparse.Namespace) -> int:
    """Print the contract; gives the exit status. Modules are found in the current folder first."""
    from ..command import running  # a process that answers needs none of it

    return running.run(args, _run)


def _run(args: argparse.Namespace) -> int:
    if args.limit is not None and not args.limit > 0:
        raise Refusal(f"--limit got {args.limit:g}, expected more than 0 CPU seconds")
    module = _module(args.adapter) if args.adapter else ""
    with contextlib.redirect_stdout(sys.stderr):  # the function may print
        contract = describe(args.target, seconds=args.limit)
    for line in contract.lines():
        print(wrapped(line, indent=" " * 12))
    if args.save:
        _write(args.save, contract.toml())
    if args.adapter:
        _write(args.adapter, _adapter(contract, module))
        print(f"\nJudge it by: {contract.command(module)}")
    return 0


def advice(path: str) -> str:
    """The commands that judge a function as it is called, if `attendax check` calls it otherwise; or nothing."""
    try:
        contract = describe(path)
        if contract.called_as_protocol():
            return ""
        contract.adapter()
    except (Refusal, NoAdapter):
        return ""
    return (
        f"It is called otherwise: {arrays_of(contract.form)}. Judge it as it is called: "
        f"attendax describe {path} --adapter adapter.py, then {contract.command()}"
    )


def _module(file: str) -> str:
    path = Path(file)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise Refusal(f"--adapter got {file!r}, expected a file that Python can import, such as adapter.py")
    return path.stem


def _adapter(contract: Contract, module: str) -> str:
    try:
        return contract.adapter(module)
    except NoAdapter as error:
        why = str(error).replace("B", "the function", 1)
        raise Refusal(f"no adapter makes {contract.path} one of the protocol: {why}") from error


def _write(file: str, text: str) -> None:
    try:
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise Refusal(f"cannot write {file}: {error.strerror}; name a file in a folder that is there") from error
