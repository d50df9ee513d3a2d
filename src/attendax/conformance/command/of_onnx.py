"""``attendax export-onnx``: cases of the kit as tests of backends of ONNX."""

import argparse
from collections import Counter

from attendax.exits import FAILED

from . import onnx_tests
from .arguments import add, refusing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("folder", metavar="DIR", help="where a folder for each test goes; new, or empty")
    add(parser, "what is written", ("only", "seed"), seed="of the numbers; 0 unless given")
    parser.set_defaults(seed=0)
    about = "run them, too, by onnx's reference evaluator and by onnxruntime"
    parser.add_argument("--run", dest="runs", action="store_true", help=about)


@refusing
def run(args: argparse.Namespace) -> int:
    """Write, and run where asked for.

    Returns:
        The exit status: 0 well, 1 a test fails.
    """
    names = onnx_tests.export(args.folder, seed=args.seed, only=args.only or ())
    print(f"{len(names)} tests in {args.folder}")
    if not args.runs:
        return 0
    found = {"onnx.reference": onnx_tests.run_reference(args.folder)}
    found["onnxruntime"] = onnx_tests.run_onnxruntime(args.folder)
    for name, results in found.items():
        print(f"{name}: {Counter(results.values())['']} of {len(results)} pass")
        for test, why in results.items():
            if why:
                print(f"  {test}: {why}")
    return FAILED if any(why for results in found.values() for why in results.values()) else 0
