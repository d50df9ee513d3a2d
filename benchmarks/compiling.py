"""Seconds until a case can run: to trace, to lower and to compile, beside jax.nn.

Every time is from cold: JAX's caches are cleared, and none is kept on disk. CPU seconds are those of all threads.
attendax traces its kernels while it lowers, so the stages compare by their sum only.
"""

import contextlib
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

import tables
from contestants import OURS, PEERS
from harness import Unable, spread
from shapes import Shape
from workload import Case

CONTESTANTS = (OURS, "jax.nn")
ROUNDS = 3
STAGES = ("trace", "lower", "compile")
LAYERS = 12
MODELS = {f"layers-{LAYERS}": Shape(2, 8, 8, 512, 512, 64, True, f"no model: {LAYERS} layers of attention in a row")}
SECOND = {"short-32": Shape(2, 4, 4, 32, 32, 16, False, "no model: a short text; its Hessian-vector product")}
SMALL = Shape(1, 1, 1, 2, 2, 2, False, "no model: so that no round is the first to need XLA")


@contextlib.contextmanager
def from_cold() -> Iterator[None]:
    """Turn the cache on disk off; everyone has compiled once."""
    kept = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # or what was in use stays so
    try:
        for name in CONTESTANTS:
            compiled(name, Case("small", SMALL), "backward")
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", kept)
        compilation_cache.reset_cache()


def compiled(name: str, case: Case, measure: str) -> dict[str, list[float]]:
    """Wall and CPU seconds of each stage.

    Raises:
        Unable: the contestant cannot do the case.
    """
    function, arguments, _ = PEERS[name].stage(case, "forward" if case.name in MODELS else measure)
    function = gradient_of_layers(function) if case.name in MODELS else function
    jax.clear_caches()
    gc.collect()
    clocks, staged = [now()], jax.jit(function)
    for step in (lambda x: x.trace(*arguments), lambda x: x.lower(), lambda x: x.compile()):
        staged = step(staged)
        clocks.append(now())
    wall, cpu = ([b - a for a, b in itertools.pairwise(clock)] for clock in zip(*clocks, strict=True))
    return {"wall_s": wall, "cpu_s": cpu}


def gradient_of_layers(attend: Callable) -> Callable:
    """The gradient of as many calls as a model has layers; each adds to what the next one asks with."""

    def loss(arrays: Any, *rest: Any) -> Any:
        query, *others = arrays
        for _ in range(LAYERS):
            query = query + attend((query, *others), *rest)
        return (query**2).sum()

    return jax.grad(loss)


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def run(case: Case, measure: str, rounds: int, progress: Callable[[str], Any]) -> list[dict[str, Any]]:
    """A record for each contestant; they take turns, and who is first changes from round to round."""
    records = {name: {"case": case.name, "measure": measure, "contestant": name} for name in CONTESTANTS}
    found: dict[str, list[dict[str, list[float]]]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        for name in CONTESTANTS[number % 2 :] + CONTESTANTS[: number % 2]:
            if "status" in records[name]:
                continue
            progress(name)
            try:
                found[name].append(compiled(name, case, measure))
            except Unable as reason:
                records[name] |= {"status": "unable", "reason": str(reason)}
            except Exception as error:
                records[name] |= {"status": "failed", "reason": f"{type(error).__name__}: {str(error)[:300]}"}
    for name, record in records.items():
        if "status" not in record:
            record |= {"status": "timed", "rounds": found[name], **medians(found[name])}
    return list(records.values())


def medians(rounds: list[dict[str, list[float]]]) -> dict[str, float]:
    """Medians of the sums over the stages, and of each stage by the wall clock."""
    sums = {clock: statistics.median(sum(one[clock]) for one in rounds) for clock in ("wall_s", "cpu_s")}
    return sums | {f"{x}_s": statistics.median(one["wall_s"][k] for one in rounds) for k, x in enumerate(STAGES)}


def ratio(records: list[dict[str, Any]], clock: str) -> float | None:
    """The seconds of jax.nn over those of attendax, the median of the ratios within rounds."""
    ours, other = sorted(records, key=lambda record: CONTESTANTS.index(record["contestant"]))
    if "rounds" not in ours or "rounds" not in other:
        return None
    pairs = zip(other["rounds"], ours["rounds"], strict=True)
    return spread([sum(b[clock]) / sum(a[clock]) for b, a in pairs]).median


HEADER = ("case", "measure", "contestant", "CPU s", "wall s", *STAGES, "x attendax, CPU", "wall")
ABOVE_1 = "above 1: attendax compiles faster"


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """Rows of a table, of one case and measure."""
    found = []
    for record in records:
        if record["status"] != "timed":
            continue
        seconds = [f"{record[name]:.3f}" for name in ("cpu_s", "wall_s", *(f"{stage}_s" for stage in STAGES))]
        ratios = ["" if x is None else f"{x:.2f}" for x in (ratio(records, clock) for clock in ("cpu_s", "wall_s"))]
        ratios = ["", ""] if record["contestant"] == OURS else ratios
        found.append([record["case"], record["measure"], record["contestant"], *seconds, *ratios])
    return found


MEANS_HEADER = ("measure", "clock", "jax.nn over attendax, geometric mean", "median", "from, to", "cases")


def means(records: list[dict[str, Any]]) -> list[list[str]]:
    """Geometric means and medians of the ratios, of the single calls that both can do."""
    found = []
    for measure in dict.fromkeys(record["measure"] for record in records):
        for clock, words in (("cpu_s", "CPU"), ("wall_s", "wall")):
            groups = (group for group in tables.groups(records) if group[0]["measure"] == measure)
            every = (ratio(group, clock) for group in groups if group[0]["case"] not in MODELS)
            ratios = [x for x in every if x is not None]
            if ratios:
                mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
                spans = f"{min(ratios):.2f} to {max(ratios):.2f}"
                middle = f"{statistics.median(ratios):.2f}"
                found.append([measure, words, f"{mean:.2f}", middle, spans, str(len(ratios))])
    return found


def markdown(records: list[dict[str, Any]]) -> str:
    """The means, every case, and who was not timed."""
    every = [row for group in tables.groups(records) for row in rows(group)]
    head = f"## Seconds to compile\n\nMedians; trace, lower and compile by the wall clock; {ABOVE_1}.\n"
    return "\n".join(
        [head, tables.table(MEANS_HEADER, means(records)), tables.table(HEADER, every), tables.listed(records)]
    )
