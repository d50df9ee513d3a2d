"""The kernels of a program of XLA's CPU compiler, and how long each runs on one core and on several.

A kernel that takes as long on several cores as on one runs on one core: it is what keeps a program from scaling.
"""

from collections.abc import Sequence
from typing import Any

from contestants import OURS
from harness import Unable
from workers import Worker
from workload import Case

CALLS = 10
HEADER = ("kernel", "result", "times", "ms on 1 core", "ms on {cores}", "factor", "share of 1 core")


def compare(case: Case, measure: str, cores: Sequence[int], calls: int = CALLS) -> list[dict[str, Any]]:
    """The kernels of attendax's program, those first that take longest on one core.

    Raises:
        Unable: attendax cannot do the case, or its process ended.
    """
    found = {}
    for count in (1, len(cores)):
        worker = Worker(cores=cores[:count])
        try:
            worker.ask("build", OURS, case.name, measure, case.dtype)
            found[count] = worker.ask("profile", OURS, calls)
        finally:
            worker.stop()
    one, many = found[1], found[len(cores)]
    if one.keys() != many.keys():
        raise Unable("XLA compiles other kernels for one core than for several")
    names = "kernel", "result", "times", "one_ms", "many_ms"
    every = [dict(zip(names, (name, *one[name], many[name][-1]), strict=True)) for name in one]
    return sorted(every, key=lambda kernel: -kernel["one_ms"])


def rows(kernels: list[dict[str, Any]], most: int = 20) -> list[list[str]]:
    """A row for each of the longest kernels, one for all the rest, one for the sum."""
    sums = [
        {"kernel": name, "result": "", **summed(part)}
        for name, part in (("the rest", kernels[most:]), ("all", kernels))
        if part
    ]
    total = sums[-1]["one_ms"]
    return [
        [
            kernel["kernel"],
            kernel["result"],
            str(kernel["times"]),
            f"{kernel['one_ms']:.3f}",
            f"{kernel['many_ms']:.3f}",
            f"{kernel['one_ms'] / kernel['many_ms']:.2f}",
            f"{kernel['one_ms'] / total:.0%}",
        ]
        for kernel in (*kernels[:most], *sums)
    ]


def summed(kernels: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: sum(kernel[key] for kernel in kernels) for key in ("times", "one_ms", "many_ms")}
