"""The command line of the random driver."""

import argparse
import collections
import ctypes
import gc
import importlib
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from .case import Case, random, siblings
from .judge import Verdict, judge
from .shrink import shrunk

CLEAR_EVERY = 50  # cases: then what has been compiled is forgotten


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


def rss() -> int:
    """The resident memory of this process, in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20


def forget() -> None:
    """Give back what has been compiled: to JAX, to Python and, with glibc, which keeps what is freed, to the system."""
    jax.clear_caches()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Driver:
    """Runs cases, tells of failures, counts."""

    def __init__(self, attention: Callable, command: str, shrink_seconds: float = 60.0):
        self.attention, self.command, self.shrink_seconds = attention, command, shrink_seconds
        self.counts: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[str] = collections.Counter()
        self.failed: list[Case] = []
        self.worst = 0.0
        self.ran = self.cleared = 0

    def run_with_siblings(self, case: Case, rng: Any, name: str) -> None:
        """Run a case, and its program on other numbers."""
        verdict = self.run(case, name)
        others = siblings(case, rng) if verdict.program is not None else []
        while others and not verdict.findings:
            verdict = self.run(others.pop(), name, verdict.program)
        if self.ran - self.cleared >= CLEAR_EVERY:
            self.cleared = self.ran
            forget()

    def run(self, case: Case, name: str = "", program: Any = None) -> Verdict:
        """Run one case."""
        self.ran += 1
        self.counts.update(features(case))
        verdict = judge(self.attention, case, program)
        if verdict.refused:
            self.refused[verdict.refused] += 1
        if verdict.findings:
            self.tell(case, verdict, name)
        else:
            self.worst = max(self.worst, verdict.error)
        return verdict

    def tell(self, case: Case, verdict: Verdict, name: str) -> None:
        """Print how a case fails, and the smallest that fails likewise."""
        self.failed.append(case)
        print(f'\nFAILED {name}\n  {self.command} --case "{case!r}"', flush=True)
        for finding in verdict.findings:
            print(f"    {finding.law}: {finding.what}")
        law = verdict.findings[0].law

        def fails(smaller):
            return any(finding.law == law for finding in judge(self.attention, smaller).findings)

        small = shrunk(case, fails, self.shrink_seconds)
        if small != case:
            print(f'  smaller:\n  {self.command} --case "{small!r}"')
            for finding in judge(self.attention, small).findings:
                print(f"    {finding.law}: {finding.what}", flush=True)

    def summary(self) -> str:
        """The counts."""
        lines = [f"{count:7} {name}" for name, count in sorted(self.counts.items())]
        lines += [f"{count:7} refused: {sentence}" for sentence, count in self.refused.most_common()]
        ends = f"{self.ran} cases, {len(self.failed)} failures; largest error that passed {self.worst:.2f} units"
        return "\n".join([*lines, ends])


def main(arguments: list[str] | None = None) -> int:
    """Run; 1 where something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Attention at random against its definition."
    )
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--cases", type=int, default=None, help="at most so many")
    parser.add_argument("--seed", type=int, default=None, help="fresh unless given")
    parser.add_argument("--only", type=int, default=None, help="only this case of the seed")
    parser.add_argument("--case", default=None, help="only this case")
    parser.add_argument("--attention", default="attendax:attention", help="another one, as module:function")
    parser.add_argument("--stop-at-first", action="store_true")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds to spend on making a failing case smaller")
    options = parser.parse_args(arguments)
    module, _, function = options.attention.partition(":")
    attention = getattr(importlib.import_module(module), function)
    seed = options.seed if options.seed is not None else int(time.time_ns() // 1000 % 2**31)
    given = "" if options.attention == "attendax:attention" else f" --attention {options.attention}"
    driver = Driver(attention, f"python -m tests.fuzz{given}", options.shrink)
    if options.case:
        driver.run(eval(options.case, {"Case": Case}), "as given")
        print(driver.summary())
        return bool(driver.failed)
    print(f"seed {seed}, jax {jax.__version__}", flush=True)
    told = time.monotonic()
    end, number = told + 60 * options.minutes, options.only or 0
    while time.monotonic() < end and number != options.cases:
        rng = np.random.default_rng([seed, number])
        driver.run_with_siblings(random(rng), rng, f"--seed {seed} --only {number}")
        number += 1
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(f"{driver.ran} cases, {len(driver.failed)} failures, {rss()} MiB", file=sys.stderr, flush=True)
        if options.only is not None or (driver.failed and options.stop_at_first):
            break
    print(f"\n{driver.summary()}\nseed {seed}, {rss()} MiB resident")
    return bool(driver.failed)


if __name__ == "__main__":
    sys.exit(main())
