"""``attendax diff A B``: its arguments, and what it prints."""

import argparse
import contextlib
import sys

from attendax.exits import FAILED
from attendax.legible import wrapped

from ..against import diff
from ..against.report import NUM_HEADS
from . import running

EPILOG = """\
A and B are module:function, "exec:./prog {case}" or onnx:FILE.
Functions are called as f(query, key, value, ...); diff finds their layouts and keywords.
With --layers they are called as f(params, x), with the names of attendax.conformance.against.layers.shapes().
Exit status: 0 the two are equal, 1 they differ, 2 refused."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("a", metavar="A", help="module:function")
    parser.add_argument("b", metavar="B", help="module:function")
    parser.add_argument("--layers", action="store_true", help="comparison of layers, functions of (params, x)")
    parser.add_argument("--heads", type=int, default=NUM_HEADS, metavar="N", help=f"heads of the layers [{NUM_HEADS}]")


def run(args: argparse.Namespace) -> int:
    """Print what differs; gives the exit status. Modules are found in the current folder first."""
    return running.run(args, _run)


def _run(args: argparse.Namespace) -> int:
    with contextlib.redirect_stdout(sys.stderr):  # the functions may print
        found = diff(args.a, args.b, layers=args.layers, heads=args.heads)
    for line in found.text().split("\n"):
        told = line[:1].isdigit() or line.startswith(("   T=", "   N=", "   B=", "Not ", "Each "))
        print(wrapped(line, indent="   ") if told else line)
    return 0 if found.equal else FAILED
