"""The commands of ``python -m benchmarks``: their arguments, and the process in which ``bench`` runs."""

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import attendax
from attendax import cli, exits, extras
from attendax.conformance.cases.how import drawn
from attendax.conformance.command import options, running
from attendax.exits import Refusal

BLAS_REST = ("OPENBLAS_THREAD_TIMEOUT", "4")  # spin for 2^4 cycles, not 2^26
ABOUT = {
    "bench": "time of attention beside the other libraries that are installed",
    "matrix": "faults of every attention function whose library is installed",
    "models": "faults of models and layers of each library that is installed",
}
JUDGED = ("only", "level", "profile", "dtype", "seed", "precision", "budget", "repeat", "timeout", "total_timeout")
OF_MODELS = ("only", "level", "seed")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit status: 0 well, 1 attendax has a fault, 2 refused."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="benchmarks", description="What developers of attendax run, in a clone.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, about in ABOUT.items():
        parsed = commands.add_parser(name, help=about, description=about)
        if name == "bench":
            add_arguments(parsed)
            continue
        options.add(parsed, "cases", JUDGED if name == "matrix" else OF_MODELS)
        options.add(parsed, "output", ("quiet",))
        parsed.add_argument("--output", metavar="DIR", help="folder for the files [.]")
        parsed.set_defaults(run=judge)
    args = parser.parse_args(argv)
    args.argv = argv
    exits.raise_instead()
    return cli.status_of(f"benchmarks {args.command}", lambda: args.run(args))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``bench``."""
    parser.set_defaults(run=bench)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true", help="short grid, under two minutes [so]")
    size.add_argument("--full", action="store_true", help="every shape, direction and length; under twenty minutes")
    parser.add_argument("--shapes", nargs="+", metavar="NAME", help="shapes in place of those of the grid")
    parser.add_argument("--measures", nargs="+", metavar="NAME", help="some of forward, backward, jvp, hvp")
    parser.add_argument("--contestants", nargs="+", metavar="NAME", help="contestants [all]")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, metavar="R", help="turns of everyone, if time allows")
    parser.add_argument("--lengths", action="store_true", help="also the cost against the length (part of --full)")
    parser.add_argument("--encoders", action="store_true", help="also encoder blocks and sentences (part of --full)")
    about = "seconds to compile every shape instead, beside jax.nn, in 3 rounds"
    parser.add_argument("--compile", action="store_true", help=about)
    about = "every shape on one core and on more instead, beside torch"
    parser.add_argument("--cores", action="store_true", help=about)
    about = "kernels of attendax's program for this shape instead, on one core and on all"
    parser.add_argument("--profile", metavar="NAME", help=about)
    about = "cost of a sequence on 1, 2, 4 and 8 devices instead; only --output goes with it"
    parser.add_argument("--devices", action="store_true", help=about)
    about = "gpu: the kit and the contestants on a GPU instead, in under eight minutes; only --output goes with it"
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help=about)
    parser.add_argument("--output", metavar="DIR", help="folder for results.json, results.md and the plots")
    parser.add_argument("--against", metavar="REV", help="comparison of attendax with that of a commit instead")


def judge(args: argparse.Namespace) -> int:
    """Judge what is installed, as ``matrix/`` does."""

    def judged(args: argparse.Namespace) -> int:
        args.seed = drawn(args.seed)
        extras.require("rich", args.command, extra="check")
        matrix = importlib.import_module("matrix")
        return matrix.all_installed(args) if args.command == "matrix" else matrix.all_models(args)

    return running.run(args, judged)


def bench(args: argparse.Namespace) -> int:
    """Run ``bench.py``.

    In a process of its own: NumPy's threads are told to sleep when they have nothing to do before NumPy is imported.
    Else they keep the cores from the next contestant: torch after NumPy took twice as long.
    """
    if BLAS_REST[0] not in os.environ:
        return _in_new_process(args.argv)
    try:
        for module in ("rich", "psutil", "matplotlib"):
            extras.require(module, "bench", extra="bench")
    except ImportError as error:
        raise Refusal(str(error)) from error
    module = importlib.import_module("bench")
    try:
        return module.main(args)
    except module.BadRequest as error:
        raise Refusal(str(error)) from error


def _in_new_process(argv: Sequence[str]) -> int:
    """Run the command again with ``BLAS_REST`` in its environment; a signal is for the process to end on."""
    source = str(Path(attendax.__file__).resolve().parents[1])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path} | dict([BLAS_REST])
    with subprocess.Popen([sys.executable, str(Path(__file__).parent), *argv], env=environment) as process:
        while True:
            try:
                return process.wait()
            except exits.Terminated:  # sent to one process; Ctrl-C reaches all
                process.terminate()
            except KeyboardInterrupt:
                continue
