"""Options of the commands of the kit, and their help; nothing of the kit is imported for it."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

REPORTS = {"json": "JSON", "markdown": "Markdown"}
LEVELS_HELP = "forward, gradient (and forward), backward (gradients alone) or everything [everything]"
PROFILES_HELP = "numbers, robust (NaN, extremes, empty sets) or law [numbers]"
BUDGET_HELP = "CPU seconds of the run; 0: no limit, and no realistic sizes [30, for JAX 60]"
GROUPS: dict[str, dict[str, tuple[Any, str, str]]] = {  # of all commands: the type or the choices, a value, and help
    "cases": {
        "only": (list, "L6", "laws, parts of case names, and keywords [all]"),
        "profile": (str, "PROFILE", PROFILES_HELP),
        "level": (str, "LEVEL", LEVELS_HELP),
        "dtype": (str, "DTYPE", "float32, float64, bfloat16 or float16 [float32]"),
        "seed": (int, "N", "random seed [a new one, printed in the report]"),
        "sizes": (str, "B=2,N=8,D=64", "sizes of axes B, N, G, T, S, D, V [each case's own]"),
        "precision": (str, "P", "precision of float32 products: highest, tf32 or bf16 [highest]"),
        "budget": (float, "SECONDS", BUDGET_HELP),
        "claims": (list, "CLAIM", "claims that are also tested: row-invariance"),
    },
    "more cases": {
        "repeat": (int, "K", "runs of each case, every second one with other numbers [3 if that is cheap]"),
        "device": (str, "cuda:0", "device of the arrays [the framework's]"),
        "require": (list, "KIND", "kinds that must be judged: gradients, masks, lse, bfloat16, ..."),
        "known_failures": (str, "FILE", 'file with lines "skip CASE" and "xfail CASE  # why"'),
    },
    "conventions": {
        "contract": (str, "FILE", "contract, as `attendax describe --save` writes it"),
        "expect": (list, "AXIS=VALUE", "conventions of a program or a model, or unusual ones that you mean: scale=1"),
        "ignore": (list, "NAME", "parameters without a known meaning, to accept"),
    },
    "time and process": {
        "thorough": (bool, "", "no limit of the run; --budget limits realistic sizes"),
        "timeout": (float, "SECONDS", "limit of one case [60, or a third of the budget]"),
        "total_timeout": (float, "SECONDS", "limit of the run; cases that are left are not judged"),
        "in_process": (bool, "", "calls in this process, as for a debugger [in another]"),
    },
    "targets other than a Python function": {
        "exec": (str, '"./prog {case}"', "program that reads the folder of a case and writes its results there"),
        "onnx": (str, "FILE", "ONNX model, run by onnxruntime"),
    },
    "output": {
        **{kind: (str, "FILE", f"file for the {name} report; - is standard output") for kind, name in REPORTS.items()},
        "quiet": (bool, "", "no progress on standard error"),
        "reproduce": (str, "CASE", "script of this case alone [one for each cause]"),
        "list_cases": (bool, "", "list of the cases that would run, and no run"),
    },
}
COMMON = (  # those that `attendax check --help` shows; --help-all shows all
    "only", "profile", "level", "dtype", "seed", "sizes", "budget", "require", "known_failures", "contract", "expect",
    "ignore", "thorough", "in_process", "exec", "onnx", *REPORTS, "quiet", "reproduce",
)  # fmt: skip
ACTIONS: dict[Any, dict[str, Any]] = {  # of a name, or a type
    "reproduce": {"nargs": "?", "const": ""},
    bool: {"action": "store_true"},
    argparse.BooleanOptionalAction: {"action": argparse.BooleanOptionalAction},
    list: {"nargs": "+", "action": "extend"},
}
DEFAULTS = {"level": "everything", "dtype": "float32", "precision": "highest"}
CASE_OPTIONS = tuple(GROUPS["cases"])
WRITTEN = (*REPORTS, "quiet", "reproduce")
MODELS = ("--model", "--layer")
EPILOG = """\
Keywords that the function does not have are not tested.
Exit status: 0 nothing is wrong, 1 something is, 2 refused.
Whole models and layers: attendax check --model m:apply, or --layer m:layer;
attendax check --model m:apply --help has their options."""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help whose second column leaves room for the text."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        """``L6 ...`` in place of ``L6 [L6 ...]``."""
        whole = super()._format_args(action, default_metavar)
        return f"{action.metavar} ..." if action.nargs == "+" else whole


def of_models(argv: Sequence[str]) -> bool:
    """Tell whether ``attendax check`` is given a whole model or a layer."""
    return any(word.partition("=")[0] in MODELS for word in argv)


def add_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] = ()) -> None:
    """The arguments of ``attendax check``; its help shows the common ones unless ``argv`` has ``--help-all``."""
    every = "--help-all" in argv
    parser.formatter_class, parser.epilog, parser.usage = Formatter, EPILOG, "attendax check FUNCTION [options]"
    parser.add_argument("--help-all", action="help", help="help with all options")
    parser.add_argument("target", nargs="?", metavar="FUNCTION", help="module:function")
    for title, options in GROUPS.items():
        hidden = {} if every else {name: argparse.SUPPRESS for name in options if name not in COMMON}
        add(parser, title, options, **hidden)


def add(parser: argparse.ArgumentParser, title: str, names: Iterable[str], **otherwise: str) -> None:
    """Add a group of options, by names or as a table; ``otherwise``: the help of those that mean less to a command."""
    group, every = parser.add_argument_group(title), {k: x for options in GROUPS.values() for k, x in options.items()}
    every |= names if isinstance(names, dict) else {}
    for name in names:
        kind, metavar, about = every[name]
        given: dict[str, Any] = {"help": otherwise.get(name, about)}
        given |= {"default": DEFAULTS[name]} if name in DEFAULTS else {}
        given |= {"metavar": metavar} if metavar else {}
        given |= ACTIONS.get(name) or ACTIONS.get(kind) or {"choices" if isinstance(kind, tuple) else "type": kind}
        group.add_argument(f"--{name.replace('_', '-')}", **given)
