"""``attendax check``: judge a function, or every library that is installed."""

import argparse
import contextlib
import importlib.util
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attendax import writing
from attendax.exits import FAILED, REFUSED, Refusal
from attendax.legible import did_you_mean, wrapped

from .output import console, progress, write

REPORTS = ("json", "junit", "markdown", "html")

if TYPE_CHECKING:
    from .implementation import Implementation
    from .report import Report

SAID = """\
The function takes (query, key, value, *, mask, bias, is_causal, scale, ...) on arrays (B, N, T, D); what its signature
does not name is not offered. Exit status: 0 nothing is wrong, 1 something is, 2 refused. With --all-installed: 1 if
attendax's own implementations are not all without fault, whatever the others are; else 0."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = SAID
    parser.add_argument("target", nargs="?", metavar="FUNCTION", help="module:function, or the name of an adapter")
    how = parser.add_argument_group("how the function is called")
    how.add_argument("--adapter", metavar="NAME", help="one that ships, or module:function of your own")
    how.add_argument("--arrays", choices=("jax", "torch", "numpy"), help="found by trying unless given")
    how.add_argument("--layout", metavar="BTNH", help="of the axes: BNTD, BTND, NTD, TND, TD (H for D), or packed")
    how.add_argument("--rename", nargs="+", action="extend", metavar="mask=attn_mask", help="keywords of other names")
    how.add_argument("--mask-true", choices=("attend", "drop"), help="what True in a mask means; attend unless given")
    how.add_argument("--causal", choices=("start", "end"), help="where is_causal is aligned; start unless given")
    how.add_argument("--empty-rows", choices=("zero", "mean", "nan"), help="of a query without keys; zero unless given")
    how.add_argument("--lse-base", type=float, metavar="2", help="of its log-sum-exp; e unless given")
    how.add_argument(
        "--lacks", nargs="+", action="extend", metavar="TRAIT", help='what it does not offer, such as "grouped heads"'
    )
    how.add_argument("--backward", metavar="module:function", help="its gradients by hand")
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
    what.add_argument(
        "--profile", metavar="PROFILE", help="numbers, robust (NaN under masks, extremes, empty sets) or law; numbers"
    )
    what.add_argument("--dtype", default="float32", metavar="DTYPE", help="float32, float64, bfloat16 or float16")
    what.add_argument("--seed", type=int, default=0, metavar="N", help="of the numbers")
    what.add_argument("--sizes", metavar="B=2,N=8,D=64", help="of axes B, N, G, T, S, D, V: every case that fits them")
    what.add_argument("--precision", default="highest", metavar="P", help="of float32 products: highest, tf32 or bf16")
    what.add_argument("--device", metavar="cuda:0", help="where the arrays are made")
    what.add_argument("--known-failures", metavar="FILE", help='lines "skip CASE" and "xfail CASE  # why"')
    out = parser.add_argument_group("what is written")
    for kind in REPORTS:
        out.add_argument(f"--{kind}", metavar="FILE", help=f"the report as {kind}; - is standard output")
    out.add_argument("--quiet", action="store_true", help="no progress on standard error")
    out.add_argument(
        "--reproduce", nargs="?", const="", metavar="CASE", help="the script of one case alone; else one for each cause"
    )
    out.add_argument("--list-cases", action="store_true", help="print the cases that would run, and stop")
    out.add_argument("--list-adapters", action="store_true", help="print the adapters that ship, and stop")
    out.add_argument("--all-installed", action="store_true", help="every adapter whose library is installed")
    out.add_argument(
        "--output", metavar="DIR", help="of --all-installed: conformance.json, .md and .html; . unless given"
    )


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say.

    Returns:
        The exit status: 0 nothing is wrong, 1 something is, 2 refused, said why on standard error.

    Raises:
        KeyboardInterrupt, BrokenPipeError: for the caller to end on.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return _run(args)
    except (Refusal, ValueError, TypeError, ImportError, AttributeError) as error:
        if not isinstance(error, Refusal) and not _users(error):
            raise
        print(f"attendax check: {_one_line(error)}", file=sys.stderr)
        return REFUSED


def _users(error: Exception) -> bool:
    """Whether an error is about what the user gave: it names ``check``, or is an import of theirs that failed."""
    return isinstance(error, ImportError) or str(error).startswith("check: ")


def _one_line(error: BaseException) -> str:
    words = " ".join(str(error).split()).removeprefix("check: ")
    return words or type(error).__name__


def _run(args: argparse.Namespace) -> int:
    if args.list_adapters:
        return _list_adapters()
    if args.list_cases:
        return _list_cases(args)
    _require_rich()
    if args.all_installed:
        from .installed import all_installed

        _refuse_with_all(args)
        return all_installed(args)
    if args.output:
        raise Refusal("--output is of --all-installed; a single report goes to --json, --markdown or --html FILE")
    if args.target is None:
        raise Refusal("name a function as module:function, or an adapter, before the options; or --all-installed")
    _writable(args)
    if args.reproduce:
        return _reproduce(args)
    from .checking import check, choose

    only = args.only or ()
    choose(only, args.level, _profile(args))  # before anything is imported for longer
    with contextlib.redirect_stdout(sys.stderr), progress(quiet=args.quiet) as tell:  # the function may print
        made = implementation(args)
        asked = asked_of(args) | {"known_failures": args.known_failures}
        report = check(made, only=only, level=args.level, progress=tell, **asked)
    return _show(report, args)


def asked_of(args: argparse.Namespace) -> dict[str, Any]:
    """How it is judged, as ``check`` takes it."""
    sizes = {}
    for pair in filter(None, (args.sizes or "").split(",")):
        axis, _, size = pair.partition("=")
        if not size.strip().isdigit():
            raise Refusal(f"--sizes got {pair!r}, expected axis=size, such as B=2,N=8,T=1024,D=64")
        sizes[axis.strip().upper()] = int(size)
    given = {"dtype": args.dtype, "seed": args.seed, "precision": args.precision}
    return given | {"profile": _profile(args), "sizes": sizes}


def _profile(args: argparse.Namespace) -> str:
    return args.profile or "numbers"


def _require_rich() -> None:
    from attendax.extras import require

    require("rich", "check", extra="check")


def _refuse_with_all(args: argparse.Namespace) -> None:
    """Options of a single function."""
    single = (
        "target",
        "adapter",
        "arrays",
        "layout",
        "rename",
        "mask_true",
        "causal",
        "empty_rows",
        "lse_base",
        "lacks",
        "backward",
        "device",
        "sizes",
        "known_failures",
    )
    for name in (*single, "reproduce", *REPORTS):
        if getattr(args, name) is not None:
            shown = f"the function {args.target}" if name == "target" else f"--{name.replace('_', '-')}"
            raise Refusal(f"--all-installed runs every adapter as it ships: leave {shown} out")


def _list(line: str) -> None:
    """A line of a list: wrapped in a terminal; whole for other programs."""
    print(wrapped(line, indent=" " * 5) if sys.stdout.isatty() else line)


def _list_adapters() -> int:
    from .adapters import ADAPTERS
    from .adapters.adapter import version_of

    width = max(map(len, ADAPTERS))
    for name, adapter in ADAPTERS.items():
        found = importlib.util.find_spec(adapter.function.partition(":")[0].partition(".")[0])
        version = version_of(adapter.package) if found else "not installed"
        _list(f"{name:<{width}}  {adapter.arrays:<6} {adapter.function}  {version}".rstrip())
    return 0


def _list_cases(args: argparse.Namespace) -> int:
    from .checking import choose

    for case in choose(args.only or (), args.level, args.profile or "law"):
        _list(f"{case.law:<4} {case.name:<48} {case.profile:<7} {case.level:<10} {case.about}")
    return 0


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """The keywords of ``check`` that were given."""
    names = ("adapter", "arrays", "layout", "mask_true", "causal", "empty_rows", "lse_base", "device")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.backward is not None:
        given["backward"] = _resolved(args.backward)
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


def _resolved(path: str) -> Any:
    from .implementation import resolve

    return _import(lambda: resolve(path), path)


def _import(load: Callable[[], Any], path: str) -> Any:
    """What ``load`` gives; an error in the user's module becomes a refusal, as it is before any case."""
    try:
        return load()
    except ImportError as error:
        from .adapters import ADAPTERS

        near = did_you_mean(path, {adapter.function for adapter in ADAPTERS.values()} - {path})
        raise Refusal(f"{path}: {_one_line(error)}{near}") from error
    except (Exception, SystemExit) as error:
        if str(error).startswith("check: "):
            raise
        raise Refusal(f"{path}: {type(error).__name__}: {_one_line(error)}") from error


def implementation(args: argparse.Namespace) -> "Implementation":
    """What the arguments name; all that can be refused is refused here."""
    from .adapters import ADAPTERS
    from .checking import implement
    from .how import DTYPES, How

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
    return _import(lambda: implement(args.target, how=how, **given), args.target)


def _reproduce(args: argparse.Namespace) -> int:
    """Print the script of one case, and nothing else."""
    from .cases import CASES
    from .checking import choose, judge
    from .how import How

    exact = [case for case in CASES if case.name == args.reproduce]
    cases = exact or choose([args.reproduce])
    if len(cases) > 1:
        names = ", ".join(repr(case.name) for case in cases[:5])
        raise Refusal(
            f"--reproduce {args.reproduce!r} is part of {len(cases)} cases: {names}{', ...' * (len(cases) > 5)}"
        )
    with contextlib.redirect_stdout(sys.stderr):
        how = How(**asked_of(args))
        outcome = judge(implementation(args), cases[0].sized(how.sizes) or cases[0], how)
    if outcome.verdict.fails:
        print(outcome.reproduction, end="")
        return FAILED
    print(f"attendax check: {outcome.case.law}, {outcome.case.name}: {outcome.told()}", file=sys.stderr)
    return 0


def _files(args: argparse.Namespace) -> dict[str, str]:
    return {kind: getattr(args, kind) for kind in REPORTS if getattr(args, kind) is not None}


def _writable(args: argparse.Namespace) -> None:
    """Say now, not after two minutes, that a file cannot be written."""
    files = _files(args)
    if sum(file == "-" for file in files.values()) > 1:
        raise Refusal("only one report fits standard output: give the others a file")
    for kind, file in files.items():
        if file != "-":
            writing.check(f"--{kind}", file)


def _show(report: "Report", args: argparse.Namespace) -> int:
    """The files, and the tables unless a report takes standard output."""
    from .screen import terminal

    contents = {"json": report.to_json, "markdown": report.to_markdown, "html": report.to_html}
    contents["junit"] = report.to_junit
    files = _files(args)
    for kind, file in files.items():
        if file == "-":
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(encoding="utf-8")
            print(contents[kind]())
        else:
            write(file, contents[kind]())
    if "-" not in files.values():
        terminal(report, console(), scripts=args.reproduce is not None)
    return 0 if report.ok else FAILED
