"""The command ``attendax``: ``demo``, ``learn``, ``grade``, ``check``, ``diff``, ``embed``, ``search``, ``bench``."""

import argparse
import importlib
import importlib.metadata
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from attendax import exits, extras
from attendax.commands import embed
from attendax.exits import FAILED as FAILED
from attendax.exits import PIPE_CLOSED, REFUSED, Refusal
from attendax.legible import columns, did_you_mean, one_line, wrapped

FOLDERS = {
    "inputs": "write the cases of check as folders, for a program that runs anywhere",
    "judge": "judge the results that lie in those folders",
    "vectors": "write the cases with what is right, and how far off each number may be",
}
LEARNING = {
    "learn": "learn attention by writing it: the exercises, and skeletons of them in a folder",
    "grade": "say what is right and wrong in such a folder, with reasons and hints",
}
BLAS_REST = ("OPENBLAS_THREAD_TIMEOUT", "4")  # spin for 2^4 cycles, not 2^26


def main(argv: Sequence[str] | None = None, called: float | None = None) -> int:
    """Run the command line.

    Args:
        argv: its arguments; those of this process unless given.
        called: when the command was called, of ``time.monotonic``; now unless given.

    Returns:
        The exit status: 0 well, 1 the check failed, 2 refused (said why on standard error).
    """
    argv = sys.argv[1:] if argv is None else argv
    args = _parsed(argv)
    args.argv, args.called = argv, time.monotonic() if called is None else called
    try:
        if sys.stdout is None:
            raise Refusal("standard output is closed")
        if args.command == "diff":
            _from_here()
        own = {"check", "diff", "bench", *LEARNING, *FOLDERS}
        if args.command in own:  # folders and processes of theirs have to go first
            exits.raise_instead()
        status = args.run(args)
        sys.stdout.flush()
    except Refusal as refusal:
        said = one_line(str(refusal)).removeprefix(f"{args.command}: ")
        print(f"attendax {args.command}: {said}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter flushes again and complains
        return PIPE_CLOSED
    except OSError as error:  # a full disk behind standard output; files that are read have their own errors
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"attendax {args.command}: cannot write the output: {error.strerror}", file=sys.stderr)
        return REFUSED
    except exits.Terminated as signal:
        return signal.status
    except KeyboardInterrupt:
        return exits.STATUS
    return status


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

    demo = commands.add_parser("demo", help="scaled dot-product attention on small numbers, without and with a mask")
    demo.set_defaults(run=_demo)

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

    about = "say by which conventions two attention functions differ, and print an adapter"
    against = commands.add_parser("diff", help=about, description=about)
    if "diff" in argv[:1]:
        from attendax.conformance.against import command as of_two

        of_two.add_arguments(against)
        against.set_defaults(run=of_two.run)

    for name, about in FOLDERS.items():
        parsed = commands.add_parser(name, help=about, description=about)
        if name in argv[:1]:
            from attendax.conformance.command import folders

            folders.add_arguments(parsed, name)

    about = "write the cases of the kit as tests of backends of ONNX"
    export = commands.add_parser("export-onnx", help=about, description=about)
    if "export-onnx" in argv[:1]:
        from attendax.conformance.command import onnx_tests

        onnx_tests.add_arguments(export)
        export.set_defaults(run=onnx_tests.run)

    embed.add_commands(commands)

    about = "time attention beside the other libraries that are installed"
    bench = commands.add_parser("bench", help=about, description=about)
    bench.set_defaults(run=_bench)
    size = bench.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true", help="the short grid, under two minutes; so unless given")
    size.add_argument("--full", action="store_true", help="every shape, direction and length; under twenty minutes")
    bench.add_argument("--shapes", nargs="+", metavar="NAME", help="these instead of those of the grid")
    bench.add_argument("--measures", nargs="+", metavar="NAME", help="of forward, backward, jvp, hvp")
    bench.add_argument("--contestants", nargs="+", metavar="NAME", help="these only")
    bench.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    bench.add_argument("--rounds", type=int, metavar="R", help="how often everyone has a turn, where time allows")
    bench.add_argument("--lengths", action="store_true", help="also the cost against the length (part of --full)")
    bench.add_argument("--encoders", action="store_true", help="also encoder blocks and sentences (part of --full)")
    about = "seconds to compile every shape instead, beside jax.nn; rounds: 3 unless given"
    bench.add_argument("--compile", action="store_true", help=about)
    about = "every shape on one core and on more instead, beside torch"
    bench.add_argument("--cores", action="store_true", help=about)
    about = "the kernels of attendax's program for this shape instead, on one core and on all"
    bench.add_argument("--profile", metavar="NAME", help=about)
    about = "what a sequence on 1, 2, 4 and 8 devices costs instead; only --output goes with it"
    bench.add_argument("--devices", action="store_true", help=about)
    about = "gpu: the kit and the contestants on a GPU instead, in under eight minutes; only --output goes with it"
    bench.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help=about)
    bench.add_argument("--output", metavar="DIR", help="write results.json, results.md and the plots there")
    bench.add_argument("--against", metavar="REV", help="compare attendax with that of a commit instead")
    parser.commands = commands.choices
    return parser


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _demo(args: argparse.Namespace) -> int:
    """Print the demo: attention weights of two small sequences, the same under a causal mask, and ``attention``."""
    from attendax import spec

    rng = np.random.RandomState(42)  # the generator behind np.random.seed(42), without touching the global one
    Q, K, V = (rng.standard_normal((2, 4, 8)) * 0.1 for _ in range(3))
    output, weights = spec.scaled_dot_product_attention(Q, K, V)
    causal_mask = np.broadcast_to(spec.create_causal_mask(4), (2, 4, 4))
    _, causal_weights = spec.scaled_dot_product_attention(Q, K, V, mask=causal_mask)
    # NumPy's own defaults, said again: what is printed does not depend on what the user has set.
    width = columns()
    layout = np.printoptions(threshold=1000, edgeitems=3, linewidth=min(75, width), formatter=None, legacy=False)
    digits = np.printoptions(precision=8, suppress=False, sign="-", floatmode="maxprec", formatter=None)
    with layout, digits:
        rule = "-" * min(60, width)
        print("Batch size: 2\nSequence length: 4")
        print("Key/Query dimension (d_k): 8\nValue dimension (d_v): 8")
        print(f"Q shape: {Q.shape}\nK shape: {K.shape}\nV shape: {V.shape}")
        print(f"\n{rule}\nExample 1: Attention without mask")
        print(f"\nOutput shape: {output.shape}\nAttention weights shape: {weights.shape}")
        print(f"\nAttention weights (first batch):\n{weights[0]}\nRow sums: {weights[0].sum(axis=1)}")
        print(f"\n{wrapped('Output (first batch, first sequence position):')}\n{output[0, 0]}")
        print(f"\n{rule}\nExample 2: Attention with causal mask")
        print(wrapped("(Each position can only attend to itself and previous positions)"))
        print(f"\nCausal mask (first batch):\n{causal_mask[0].astype(int)}")
        print(f"\n{wrapped('Attention weights with causal mask (first batch):')}\n{causal_weights[0]}")
        print(f"\n{wrapped('Note: Upper triangle is 0 (masked positions)')}")
        print(f"\n{rule}")
        return 0 if _show_attention(Q, K, V) else FAILED


def _show_attention(Q: np.ndarray, K: np.ndarray, V: np.ndarray) -> bool:
    """Print ``attention`` of these numbers, as one head, with a mask as a value; tell if the specification agrees."""
    import jax.numpy as jnp

    from attendax import attention, masks, spec

    query, key, value = (x[:, None].astype(np.float32) for x in (Q, K, V))
    mask = masks.causal() & masks.padding(np.array([4, 2]))
    out, lse = map(np.asarray, attention(*map(jnp.asarray, (query, key, value)), mask=mask, return_lse=True))
    same = np.abs(out - spec.attention(query, key, value, mask=mask)).max() < 1e-6
    print(wrapped("Example 3: attention, with a mask as a value"))
    print(wrapped("(B texts, N heads, T queries and S keys of width D, values of width V)"))
    calls = "mask = causal() & padding([4, 2])", "out, lse = attention(query, key, value, mask=mask, return_lse=True)"
    print("\n" + "\n".join(wrapped(call, indent="    ") for call in calls) + "\n")
    shapes = ("query", "B, N, T, D", query), ("key", "B, N, S, D", key), ("value", "B, N, S, V", value)
    for name, axes, array in (*shapes, ("out", "B, N, T, V", out), ("lse", "B, N, T", lse)):
        print(f"{name:<5} {f'({axes})':<12} = {array.shape}")
    print(f"\n{wrapped('mask, text 2 of 2 tokens: keys 3 and 4 are padding')}")
    print(mask.to_dense(4, 4)[1, 0].astype(int))
    with np.printoptions(precision=4, floatmode="fixed"):
        print(f"\nout, text 2, query 4:\n{out[1, 0, 3]}\nlse, text 2:\n{lse[1, 0]}")
    print("\n" + wrapped(f"The specification in NumPy {'agrees' if same else 'DIFFERS'}: spec.attention, to 1e-06."))
    return bool(same)


def _bench(args: argparse.Namespace) -> int:
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
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path} | dict([BLAS_REST])
    with subprocess.Popen([sys.executable, "-m", "attendax", *argv], env=environment) as process:
        while True:
            try:
                return process.wait()
            except exits.Terminated:  # sent to one process; Ctrl-C reaches all
                process.terminate()
            except KeyboardInterrupt:
                continue
