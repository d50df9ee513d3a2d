"""What is asked for at the command line: its arguments, and what they say in the terms of ``check``."""

import argparse
import textwrap
from collections.abc import Callable
from typing import Any

from attendax import writing
from attendax.exits import Refusal
from attendax.legible import did_you_mean

from ..adapters import ADAPTERS
from ..adapters.implementation import CAUSAL, PROTOCOL_TRAITS, Implementation
from ..cases import profiles
from ..cases.how import DTYPES, How
from ..worker.foreign import path_of
from ..worker.place import implement

REPORTS = ("json", "junit", "markdown", "html")
SAID = """\
The function takes (query, key, value, *, mask, bias, is_causal, scale, ...) on arrays (B, N, T, D); what its signature
does not name is not offered. Exit status: 0 nothing is wrong, 1 something is, 2 refused. With --all-installed: 1 if
attendax's own implementations are not all without fault, whatever the others are; else 0.
Whole models and layers: --model m:apply, --layer m:layer; --model m:apply --help has their options."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    traits = textwrap.fill(f"What --lacks takes: {', '.join(PROTOCOL_TRAITS)}.", 120)
    parser.epilog = f"{SAID}\n{traits}"
    parser.add_argument("target", nargs="?", metavar="FUNCTION", help="module:function, or the name of an adapter")
    add_foreign(parser)
    how = parser.add_argument_group("how the function is called")
    how.add_argument("--adapter", metavar="NAME", help="one that ships, or module:function of your own")
    about = "found by trying unless given, those last that the function does not import"
    how.add_argument("--arrays", choices=("jax", "torch", "numpy"), help=about)
    how.add_argument("--layout", metavar="BTNH", help="of the axes: BNTD, BTND, NTD, TND, TD (H for D), or packed")
    how.add_argument("--rename", nargs="+", action="extend", metavar="mask=attn_mask", help="keywords of other names")
    how.add_argument("--mask-true", choices=("attend", "drop"), help="what True in a mask means; attend unless given")
    about = (
        "where is_causal is aligned: start unless given; end; or decode: the start, but a single query sees all keys"
    )
    how.add_argument("--causal", choices=CAUSAL, help=about)
    how.add_argument("--empty-rows", choices=("zero", "mean", "nan"), help="of a query without keys; zero unless given")
    how.add_argument("--lse-base", type=float, metavar="2", help="of its log-sum-exp; e unless given")
    about = 'what it does not offer, such as "grouped heads"; all traits are listed below'
    how.add_argument("--lacks", nargs="+", action="extend", metavar="TRAIT", help=about)
    how.add_argument("--backward", metavar="module:function", help="its gradients by hand")
    add_numbers(parser)
    what = parser.add_argument_group("what else is asked")
    about = "how often each case is judged, every second time with other numbers; 3 where that is cheap"
    what.add_argument("--repeat", type=int, metavar="K", help=about)
    what.add_argument("--device", metavar="cuda:0", help="where the arrays are made")
    add_demands(what)
    where = parser.add_argument_group("where and how long")
    about = "seconds for one case; 60 unless given"
    where.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help=about)
    about = "seconds for all; what is left then is not judged"
    where.add_argument("--total-timeout", type=float, metavar="SECONDS", help=about)
    about = "call the function in this process, for a debugger; else in one that does not know what is right"
    where.add_argument("--in-process", action="store_true", help=about)
    many = parser.add_argument_group("many candidates")
    about = "each file *.py of the folder, by itself; --json FILE gets a line for each, as it is done"
    many.add_argument("--candidates", metavar="DIR", help=about)
    about = "of each file; attention unless given, or the only public one"
    many.add_argument("--function", metavar="NAME", help=about)
    many.add_argument("--workers", type=int, metavar="K", help="how many at a time; half as many as there are cores")
    out = add_reports(parser)
    out.add_argument("--quiet", action="store_true", help="no progress on standard error")
    out.add_argument(
        "--reproduce", nargs="?", const="", metavar="CASE", help="the script of one case alone; else one for each cause"
    )
    out.add_argument("--list-cases", action="store_true", help="print the cases that would run, and stop")
    out.add_argument("--list-adapters", action="store_true", help="print the adapters that ship, and stop")
    out.add_argument("--all-installed", action="store_true", help="every adapter whose library is installed")
    about = "models and layers of each library that is installed"
    out.add_argument("--all-models", action="store_true", help=about)
    about = "of --all-installed, conformance.json, .md and .html; of --all-models, models.json and .md; . unless given"
    out.add_argument("--output", metavar="DIR", help=about)


def add_demands(what: Any) -> None:
    """The arguments that say when a report is not ok, whatever was found."""
    what.add_argument(
        "--require", nargs="+", action="extend", metavar="KIND",
        help="what must have been judged, or the status is 1: gradients, masks, lse, bfloat16, ...",
    )  # fmt: skip
    what.add_argument("--known-failures", metavar="FILE", help='lines "skip CASE" and "xfail CASE  # why"')


def add_reports(parser: argparse.ArgumentParser) -> Any:
    """The arguments that name the reports; gives their group."""
    out = parser.add_argument_group("what is written")
    for kind in REPORTS:
        out.add_argument(f"--{kind}", metavar="FILE", help=f"the report as {kind}; - is standard output")
    return out


def add_numbers(parser: argparse.ArgumentParser, *, budget: float = 60.0) -> None:
    """The arguments that choose the cases and their numbers."""
    what = parser.add_argument_group("what is judged")
    what.add_argument(
        "--only", nargs="+", action="extend", metavar="L6", help="laws, parts of the names of cases, and keywords"
    )
    what.add_argument(
        "--level",
        default="everything",
        metavar="LEVEL",
        help="forward, gradient (and forward), backward (gradients alone) or everything; the last unless given",
    )
    adds = profiles()
    about = f"numbers ({adds['numbers']} cases), robust ({adds['robust']} more: NaN under masks, extremes, empty sets)"
    what.add_argument("--profile", metavar="PROFILE", help=f"{about} or law ({adds['law']} more); numbers unless given")
    what.add_argument("--dtype", default="float32", metavar="DTYPE", help="float32, float64, bfloat16 or float16")
    what.add_argument("--seed", type=int, metavar="N", help="of the numbers; drawn unless given")
    what.add_argument("--sizes", metavar="B=2,N=8,D=64", help="of axes B, N, G, T, S, D, V: every case that fits them")
    what.add_argument("--precision", default="highest", metavar="P", help="of float32 products: highest, tf32 or bf16")
    about = f"seconds for cases at sizes as people run them; {budget:g} unless given, 0 for none"
    what.add_argument("--budget", type=float, default=budget, metavar="SECONDS", help=about)
    about = "what it claims, and is asked beside all else: row-invariance"
    what.add_argument("--claims", nargs="+", action="extend", metavar="CLAIM", help=about)


def add_foreign(parser: argparse.ArgumentParser) -> None:
    """The arguments that name what is judged where it is no function of Python."""
    other = parser.add_argument_group("what is no function of Python")
    about = "a program that reads the folder of a case and writes its results there"
    other.add_argument("--exec", metavar='"./prog {case}"', help=about)
    other.add_argument("--lib", metavar="FILE", help="a library with C functions, as attendax.h has them")
    other.add_argument("--onnx", metavar="FILE", help="a model of ONNX, run by onnxruntime")
    about = "which functions of the library, and the order of their arguments, as JSON"
    other.add_argument("--signature", metavar="FILE", help=about)


def target(args: argparse.Namespace) -> str | None:
    """What is judged, as a path.

    Raises:
        Refusal: several are named.
    """
    given = {"FUNCTION": args.target, "--exec": args.exec, "--lib": args.lib, "--onnx": args.onnx}
    named = [name for name, x in given.items() if x is not None]
    if len(named) > 1:
        raise Refusal(f"name one of {' and '.join(named)}")
    if args.signature is not None and args.lib is None:
        raise Refusal("--signature says what is in a library: name that by --lib FILE")
    if named in ([], ["FUNCTION"]):
        return args.target
    return path_of(program=args.exec, library=args.lib, signature=args.signature, onnx=args.onnx)


def asked_of(args: argparse.Namespace) -> dict[str, Any]:
    """How it is judged, as ``check`` takes it."""
    sizes = {}
    for pair in filter(None, (args.sizes or "").split(",")):
        axis, _, size = pair.partition("=")
        if not size.strip().isdigit():
            raise Refusal(f"--sizes got {pair!r}, expected axis=size, such as B=2,N=8,T=1024,D=64")
        sizes[axis.strip().upper()] = int(size)
    given = {"dtype": args.dtype, "seed": args.seed, "precision": args.precision, "budget": args.budget}
    given |= {"timeout": args.timeout, "total_timeout": args.total_timeout, "repeat": args.repeat}
    return given | {
        "profile": profile(args),
        "sizes": sizes,
        "require": tuple(args.require or ()),
        "claims": tuple(args.claims or ()),
    }


def profile(args: argparse.Namespace) -> str:
    """How much is asked of one function."""
    return args.profile or "numbers"


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The keywords of ``check`` that were given."""
    names = ("adapter", "arrays", "layout", "mask_true", "causal", "empty_rows", "lse_base", "device")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.backward is not None:
        given["backward"] = args.backward
    if args.rename:
        pairs = [pair.partition("=") for pair in args.rename]
        if wrong := [pair for pair, found in zip(args.rename, pairs, strict=True) if not all(found)]:
            raise Refusal(f"--rename got {wrong[0]!r}, expected ours=theirs, such as mask=attn_mask")
        given["names"] = {ours: theirs for ours, _, theirs in pairs}
    if args.lacks:
        given["lacks"] = dict.fromkeys(args.lacks, "said to be lacking")
    if "lse_base" in given and not given["lse_base"] > 1:
        raise Refusal(f"--lse-base got {given['lse_base']:g}, expected a number above 1")
    return given


def _import(load: Callable[[], Any], path: str) -> Any:
    """What ``load`` gives; an error in the user's module becomes a refusal, as it is before any case."""
    try:
        return load()
    except ImportError as error:
        near = did_you_mean(path, {adapter.function for adapter in ADAPTERS.values()} - {path})
        raise Refusal(f"{path}: {one_line(error)}{near}") from error
    except (Exception, SystemExit) as error:
        if str(error).startswith("check: "):
            raise
        raise Refusal(f"{path}: {type(error).__name__}: {one_line(error)}") from error


def implementation(args: argparse.Namespace) -> Implementation:
    """What the arguments name; all that can be refused is refused here."""
    if ":" not in args.target and args.target not in ADAPTERS:
        near = did_you_mean(args.target, [*ADAPTERS, *(adapter.function for adapter in ADAPTERS.values())])
        said = f"{args.target!r} is neither module:function nor an adapter that ships"
        raise Refusal(said + (near or f": {', '.join(ADAPTERS)}"))
    if args.dtype not in DTYPES:
        known = ", ".join(DTYPES) + did_you_mean(args.dtype, DTYPES)
        raise Refusal(f"--dtype got {args.dtype!r}, expected one of {known}")
    if args.seed < 0:
        raise Refusal(f"--seed got {args.seed}, expected 0 or more")
    given = settings(args)
    how = How(**asked_of(args)).checked()
    return _import(lambda: implement(args.target, how=how, in_process=args.in_process, **given), args.target)


def refuse_with_all(args: argparse.Namespace) -> None:
    """Options of a single function."""
    single = (
        "target", "adapter", "arrays", "layout", "rename", "mask_true", "causal", "empty_rows", "lse_base", "lacks",
        "backward", "device", "sizes", "known_failures", "require", "claims",
    )  # fmt: skip
    for name in (*single, "reproduce", *REPORTS):
        if getattr(args, name) is not None:
            shown = f"the function {args.target}" if name == "target" else f"--{name.replace('_', '-')}"
            which = "--all-models runs every model" if args.all_models else "--all-installed runs every adapter"
            raise Refusal(f"{which} as it ships: leave {shown} out")


def files(args: argparse.Namespace) -> dict[str, str]:
    """Where each kind of report goes, of those that are asked for."""
    return {kind: getattr(args, kind) for kind in REPORTS if getattr(args, kind) is not None}


def refuse_unwritable(args: argparse.Namespace) -> None:
    """Say now, not after two minutes, that a file cannot be written."""
    written = files(args)
    if sum(file == "-" for file in written.values()) > 1:
        raise Refusal("only one report fits standard output: give the others a file")
    for kind, file in written.items():
        if file != "-":
            writing.check(f"--{kind}", file)


def one_line(error: BaseException) -> str:
    """What an error says, without the name of the function that raised it."""
    words = " ".join(str(error).split()).removeprefix("check: ").removeprefix("check_model: ")
    return words or type(error).__name__
