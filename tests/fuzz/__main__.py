"""``python -m tests.fuzz --minutes 30``: attention at random against its definition, by hypothesis.

It prints its seed, by which a run repeats. A failing case is made smaller, printed as one command that repeats it, and
kept in ``.hypothesis``, from which the next run takes it first.
"""

import argparse
import collections
import ctypes
import functools
import gc
import importlib
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import jax
import numpy as np
from hypothesis.database import DirectoryBasedExampleDatabase

from .case import Case, cases, siblings
from .judge import Verdict, judge

ROUND = 25  # cases that hypothesis draws at once; after each round what has been compiled is forgotten
PLAIN_AXES = ("direction", "jit", "loss", "lse", "values", "scale", "dropout", "implementation", "remat", "lead", "G",
              "T", "S", "D", "V", "common", "bias_values", "inside", "layers", "wide", "x64", "dtype")  # fmt: skip
SETS = ("maps", "wanted", "known")


def features(case: Case) -> Iterator[str]:
    """Features that the counts at the end name: all axes of a case but its seed, sizes of scores by power of ten."""
    yield from (f"{name} {getattr(case, name)}" for name in PLAIN_AXES)
    yield from (f"{name} {x}" for name in SETS for x in dict.fromkeys(getattr(case, name)) or ("nothing",))
    yield from (f"shared {x}" for x in {x for names in case.shared for x in names})
    yield from (f"mask {kind}" for kind in {*kinds(case.mask)} or {"none"})
    yield from (f"modifier {kind}" for kind in {*kinds(case.modifier)} or {"none"})
    yield f"bias {'none' if case.bias is None else f'of {sum(case.bias)} full axes'}"
    yield f"heads of a key head {case.N // case.G}"
    yield f"rank {2 if case.one_head else 3 + len(case.lead) - len(case.maps)}"
    yield f"heads in all {'one' if math.prod((*case.lead, case.N)) == 1 else 'many or none'}"
    yield f"size of scores {'as drawn' if case.size is None else f'1e{math.floor(math.log10(case.size))}'}"
    yield f"poison {' '.join(case.poison[:2]) or 'none'}"
    yield from (f"poisoned {name}" for name in case.poison[2:])
    yield f"scores in a head {'more than' if case.T * case.S > 2**16 else 'at most'} 2^16"


def kinds(tree: Any) -> Iterator[str]:
    """The kinds in nested tuples."""
    if isinstance(tree, tuple) and tree and isinstance(tree[0], str):
        yield tree[0]
        for part in tree[1:]:
            yield from kinds(part)


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
        self.refused: collections.Counter[str] = collections.Counter()
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
        if verdict.refused:
            self.refused[verdict.refused] += 1
        if verdict.findings:
            told = [f"    {finding.law}: {finding.what}" for finding in verdict.findings]
            raise broken(verdict.findings[0].law)("\n".join([f'{self.command} --case "{case!r}"', *told]))
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
        """The counts."""
        lines = [f"{count:7} {name}" for name, count in sorted(self.counts.items())]
        lines += [f"{count:7} refused: {sentence}" for sentence, count in self.refused.most_common()]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        ends = f"{self.ran} cases, largest error that passed {self.worst:.2f} units, {memory} MiB at most"
        return "\n".join([*lines, ends])


def main(arguments: list[str] | None = None) -> int:
    """Run; 1 if something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Attention at random against its definition."
    )
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=None, help=f"of {ROUND} cases; no limit of time")
    parser.add_argument("--seed", type=int, default=None, help="fresh unless given")
    parser.add_argument("--case", default=None, help="only this case")
    parser.add_argument("--attention", default="attendax:attention", help="another one, as module:function")
    options = parser.parse_args(arguments)
    module, _, function = options.attention.partition(":")
    given = "" if options.attention == "attendax:attention" else f" --attention {options.attention}"
    driver = Driver(getattr(importlib.import_module(module), function), f"python -m tests.fuzz{given}")
    if options.case:
        try:
            driver.run(eval(options.case, {"Case": Case}))
        except AssertionError as error:
            print(f"FAILED\n{error}")
            return 1
        print(driver.summary())
        return 0
    seed = options.seed if options.seed is not None else int(time.time_ns() // 1000 % 2**31)
    print(f"seed {seed}, jax {jax.__version__}", flush=True)
    end = math.inf if options.rounds else time.monotonic() + 60 * options.minutes
    number = failures = 0
    while time.monotonic() < end and number != options.rounds:
        if told := driver.round(seed + number, end=end):
            failures += 1
            print(f"FAILED in round {number} of seed {seed}\n{told}", flush=True)
        number += 1
    print(f"\n{driver.summary()}\n{failures} failures in {number} rounds of seed {seed}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
