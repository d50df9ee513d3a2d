"""``python -m tests.fuzz --minutes 30``: attention at random against its definition, by hypothesis.

It prints its seed, by which a run repeats. A failing case is made smaller, printed as one command that repeats it, and
kept in ``.hypothesis``, from which the next run takes it first.
"""

import argparse
import collections
import ctypes
import dataclasses
import functools
import gc
import importlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import jax
import numpy as np
from hypothesis.database import DirectoryBasedExampleDatabase

from .case import Case, cases, kinds, siblings
from .judge import Verdict, judge

ROUND = 25  # cases that hypothesis draws at once; after each round what has been compiled is forgotten


def features(case: Case) -> Iterator[str]:
    """What the counts at the end name: fields of a case, kinds in its trees, sizes of scores by power of ten."""
    for name, value in dataclasses.asdict(case).items():
        if name in ("mask", "modifier"):
            yield from (f"{name} {kind}" for kind in {*kinds(value)} or {"none"})
        elif name in ("maps", "wanted", "known", "poison"):
            yield from (f"{name} {x}" for x in dict.fromkeys(value) or ("nothing",))
        elif name == "size" and value:
            yield f"size of scores 1e{math.floor(math.log10(value))}"
        elif name not in ("seed", "shared"):
            yield f"{name} {value}"
    yield from (f"shared {x}" for x in {x for names in case.shared for x in names})
    yield f"rank {2 if case.one_head else 3 + len(case.lead) - len(case.maps)}"
    yield from [f"poison {' '.join(case.poison[:2])}"] * bool(case.poison)
    yield from ["heads in all one"] * (math.prod((*case.lead, case.N)) == 1)
    yield from ["scores in a head more than 2^16"] * (case.T * case.S > 2**16)


def forget() -> None:
    """Give back what has been compiled: to JAX, to Python and, with glibc, which keeps what is freed, to the system."""
    jax.clear_caches()
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


@functools.cache
def broken(law: str) -> type[AssertionError]:
    """An exception for each law: hypothesis makes a case smaller as long as it raises the same."""
    return type(f"Broken {law}", (AssertionError,), {})


class Driver:
    """Runs cases and counts them; a case that fails raises."""

    def __init__(self, attention: Callable, command: str):
        self.attention, self.command = attention, command
        self.counts: collections.Counter[str] = collections.Counter()
        self.worst, self.ran = 0.0, 0

    def run_with_siblings(self, case: Case) -> None:
        """Run a case, and its program on other numbers."""
        program = self.run(case).program
        for other in siblings(case, np.random.default_rng(case.seed)) if program is not None else ():
            self.run(other, program)

    def run(self, case: Case, program: Any = None) -> Verdict:
        """Run one case.

        Raises:
            AssertionError: it breaks a law; the message has the command that repeats it.
        """
        self.ran += 1
        self.counts.update(features(case))
        verdict = judge(self.attention, case, program)
        self.counts.update([f"refused: {verdict.refused}"] * bool(verdict.refused))
        if verdict.findings:
            lines = [f"    {finding.law}: {finding.what}" for finding in verdict.findings]
            raise broken(verdict.findings[0].law)("\n".join([f'{self.command} --case "{case!r}"', *lines]))
        self.worst = max(self.worst, verdict.error)
        return verdict

    def round(self, seed: int, count: int = ROUND, end: float = math.inf, folder: str = ".hypothesis") -> str:
        """So many cases of a seed; how the smallest of those that fail does, or nothing."""

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
                self.run_with_siblings(case)

        try:
            holds()
        except AssertionError as error:
            return str(error)
        finally:
            forget()
        return ""

    def summary(self) -> str:
        lines = [f"{count:7} {name}" for name, count in sorted(self.counts.items())]
        return "\n".join([*lines, f"{self.ran} cases, largest error that passed {self.worst:.2f} units"])


def main(arguments: list[str] | None = None) -> int:
    """Run; 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, help=f"rounds of {ROUND} cases, in place of minutes")
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1000 % 2**31, help="[a new one]")
    parser.add_argument("--case", help="only this case")
    parser.add_argument("--attention", default="attendax:attention", help="another one, as module:function")
    options = parser.parse_args(arguments)
    module, _, function = options.attention.partition(":")
    command = "python -m tests.fuzz"
    if options.attention != parser.get_default("attention"):
        command += f" --attention {options.attention}"
    driver = Driver(getattr(importlib.import_module(module), function), command)
    if options.case:
        try:
            driver.run(eval(options.case, {"Case": Case}))
        except AssertionError as error:
            print(f"FAILED\n{error}")
            return 1
        print(driver.summary())
        return 0
    print(f"seed {options.seed}, jax {jax.__version__}", flush=True)
    end = math.inf if options.rounds else time.monotonic() + 60 * options.minutes
    number = failures = 0
    while time.monotonic() < end and number != options.rounds:
        if failure := driver.round(options.seed + number, end=end):
            failures += 1
            print(f"FAILED in round {number} of seed {options.seed}\n{failure}", flush=True)
        number += 1
    print(f"\n{driver.summary()}\n{failures} failures in {number} rounds of seed {options.seed}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
