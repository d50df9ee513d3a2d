"""``attendax bench``: its arguments, and the process that it runs in; ``benchmarks/bench.py`` does the work."""

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from attendax import exits, extras
from attendax.exits import Refusal

BLAS_REST = ("OPENBLAS_THREAD_TIMEOUT", "4")  # spin for 2^4 cycles, not 2^26


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attendax bench``."""
    parser.set_defaults(run=run)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true", help="the short grid, under two minutes; so unless given")
    size.add_argument("--full", action="store_true", help="every shape, direction and length; under twenty minutes")
    parser.add_argument("--shapes", nargs="+", metavar="NAME", help="these instead of those of the grid")
    parser.add_argument("--measures", nargs="+", metavar="NAME", help="of forward, backward, jvp, hvp")
    parser.add_argument("--contestants", nargs="+", metavar="NAME", help="these only")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, metavar="R", help="how often everyone has a turn, where time allows")
    parser.add_argument("--lengths", action="store_true", help="also the cost against the length (part of --full)")
    parser.add_argument("--encoders", action="store_true", help="also encoder blocks and sentences (part of --full)")
    about = "seconds to compile every shape instead, beside jax.nn; rounds: 3 unless given"
    parser.add_argument("--compile", action="store_true", help=about)
    about = "every shape on one core and on more instead, beside torch"
    parser.add_argument("--cores", action="store_true", help=about)
    about = "the kernels of attendax's program for this shape instead, on one core and on all"
    parser.add_argument("--profile", metavar="NAME", help=about)
    about = "what a sequence on 1, 2, 4 and 8 devices costs instead; only --output goes with it"
    parser.add_argument("--devices", action="store_true", help=about)
    about = "gpu: the kit and the contestants on a GPU instead, in under eight minutes; only --output goes with it"
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help=about)
    parser.add_argument("--output", metavar="DIR", help="write results.json, results.md and the plots there")
    parser.add_argument("--against", metavar="REV", help="compare attendax with that of a commit instead")


def run(args: argparse.Namespace) -> int:
    """Run ``benchmarks/bench.py``: beside ``src`` in a clone, inside the package in an installation.

    In a process of its own: NumPy's threads are told to sleep when they have nothing to do before NumPy is imported.
    Else they keep the cores from the next contestant: torch after NumPy took twice as long.
    """
    if BLAS_REST[0] not in os.environ:
        return _in_new_process(args.argv)
    try:
        folder = extras.benchmarks()
        for module in ("rich", "psutil", "matplotlib"):
            extras.require(module, "bench", extra="bench")
    except ImportError as error:
        raise Refusal(str(error)) from error
    sys.path.insert(0, str(folder))
    bench = importlib.import_module("bench")
    try:
        return bench.main(args)
    except bench.BadRequest as error:
        raise Refusal(str(error)) from error


def _in_new_process(argv: Sequence[str]) -> int:
    """Run the command again with ``BLAS_REST`` in its environment; a signal is for the process to end on."""
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path} | dict([BLAS_REST])
    with subprocess.Popen([sys.executable, "-m", "attendax", *argv], env=environment) as process:
        while True:
            try:
                return process.wait()
            except exits.Terminated:  # sent to one process; Ctrl-C reaches all
                process.terminate()
            except KeyboardInterrupt:
                continue
