"""``python -m tests.fuzz --minutes 30``: attention at random against its definition, by hypothesis.

It prints its seed, by which a run repeats. A failing case is made smaller, printed as one command that repeats it, and
kept in ``.hypothesis``, from which the next run takes it first.
"""

import argparse
import ctypes
import functools
import gc
import importlib
import math
import sys
import time
from collections.abc import Callable

import hypothesis
import jax
from hypothesis.database import DirectoryBasedExampleDatabase

from .case import Case, cases, with_siblings
from .judge import judge

ROUND = 25  # programs that hypothesis draws at once; after each round what has been compiled is forgotten
COMMAND = "python -m tests.fuzz"
ATTENTION = "attendax:attention"


@functools.cache
def broken(law: str) -> type[AssertionError]:
    """An exception for each law: hypothesis makes a case smaller as long as it raises the same."""
    return type(f"Broken {law}", (AssertionError,), {})


def run(attention: Callable, of_program: list[Case], command: str = COMMAND) -> None:
    """Run cases, the others with the program of the first.

    Raises:
        AssertionError: one breaks a law; the message has the command that repeats it.
    """
    program = None
    for case in of_program:
        verdict = judge(attention, case, program)
        if verdict.findings:
            lines = [f"    {finding.law}: {finding.what}" for finding in verdict.findings]
            raise broken(verdict.findings[0].law)("\n".join([f'{command} --case "{case!r}"', *lines]))
        if (program := verdict.program) is None:  # refused
            return


def run_round(attention: Callable, seed: int, *, command: str = COMMAND, count: int = ROUND, end: float = math.inf,
              folder: str = ".hypothesis") -> str:  # fmt: skip
    """So many programs of a seed; how the smallest of those that fail does, or nothing."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        report_multiple_bugs=False,
        database=DirectoryBasedExampleDatabase(folder),
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.reuse, hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )
    @hypothesis.given(cases())
    def holds(case: Case) -> None:
        if time.monotonic() < end:
            run(attention, with_siblings(case), command)

    try:
        holds()
    except AssertionError as error:
        return str(error)
    finally:  # to JAX, to Python and, with glibc, which keeps what is freed, to the system
        jax.clear_caches()
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Run; 1 if something failed."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, help=f"rounds of {ROUND} programs, in place of minutes")
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1000 % 2**31, help="[a new one]")
    parser.add_argument("--case", help="only this case")
    parser.add_argument("--attention", default=ATTENTION, help="another one, as module:function")
    options = parser.parse_args(arguments)
    module, _, function = options.attention.partition(":")
    attention = getattr(importlib.import_module(module), function)
    command = COMMAND if options.attention == ATTENTION else f"{COMMAND} --attention {options.attention}"
    if options.case:
        try:
            run(attention, [eval(options.case, {"Case": Case})], command)
        except AssertionError as error:
            print(f"FAILED\n{error}")
            return 1
        return 0
    print(f"seed {options.seed}, jax {jax.__version__}", flush=True)
    end = math.inf if options.rounds else time.monotonic() + 60 * options.minutes
    number = failures = 0
    while time.monotonic() < end and number != options.rounds:
        if failure := run_round(attention, options.seed + number, command=command, end=end):
            failures += 1
            print(f"FAILED in round {number} of seed {options.seed}\n{failure}", flush=True)
        number += 1
    print(f"{failures} failures in {number} rounds of seed {options.seed}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
