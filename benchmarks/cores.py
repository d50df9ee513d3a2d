"""How much faster a case becomes with more cores: a process for each number of cores, and all of them take turns."""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tables
from contestants import OURS, PEERS
from harness import Clock, Contestant, Unable, measure, spread
from judge import Judge
from shapes import LENGTHS, SHAPES
from workers import Worker
from workload import Case

COUNTS = (1, 2, 4, 8, 16)
CONTESTANTS = (OURS, "torch-sdpa")
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def available() -> list[int]:
    """The numbers of the cores that this process may use; of those that share an execution unit the first come first.

    Raises:
        ValueError: this system does not say, or there is only one.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ValueError("this system does not bind a process to cores")
    own = sorted(os.sched_getaffinity(0))
    if len(own) == 1:
        raise ValueError("this process has one core only")
    return sorted(own, key=lambda core: (rank_among(core, siblings(core)), core))


def rank_among(core: int, others: Sequence[int]) -> int:
    return sorted({core, *others}).index(core)


def siblings(core: int) -> list[int]:
    """The cores that share an execution unit with this one, as Linux says it: "0,8" or "0-1"."""
    try:
        text = Path(SIBLINGS.format(core)).read_text(encoding="ascii").strip()
    except OSError:
        return [core]
    ranges = (part.split("-") for part in text.split(","))
    return [number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)]


def installed() -> list[str]:
    return [name for name in CONTESTANTS if PEERS[name].is_installed()]


@contextlib.contextmanager
def workers(cores: Sequence[int]) -> Iterator[dict[int, Worker]]:
    """One for each number of cores, on the first so many."""
    sides = {count: Worker(cores=cores[:count]) for count in COUNTS if count <= len(cores)}
    try:
        yield sides
    finally:
        for side in sides.values():
            side.stop()


def run(
    sides: dict[int, Worker], name: str, direction: str, dtype: str, progress: Callable[[str], Any], **options: Any
) -> list[dict[str, Any]]:
    """A record for each contestant, all timed in the same rounds, on every number of cores."""
    case = Case(name, (SHAPES | LENGTHS)[name], dtype)
    judge = Judge(case)
    records, ready = [], []
    for contestant in installed():
        record: dict[str, Any] = {"case": name, "measure": direction, "contestant": contestant, "status": "timed"}
        records.append(record)
        built = []
        for count, worker in sides.items():
            progress(f"{contestant} on {count}")
            try:
                first_call_s, _, results = worker.ask("build", contestant, name, direction, dtype)
            except Unable as reason:
                record |= {"status": "failed", "reason": f"on {count}: {reason}"}
                break
            if not case.rate and not judge.is_right(error := judge.error(direction, results)):
                record |= {"status": "wrong", "reason": f"on {count}: wrong by {error:.1e}"}
                break
            call = lambda worker=worker, contestant=contestant: worker.ask("run", contestant)  # noqa: E731
            built.append(Contestant(f"{contestant} {count}", call, first_call_s))
        ready += built if record["status"] == "timed" else []
    progress("taking turns")
    timings = measure(ready, clock=Clock(list(sides.values())), **options)
    for record in records:
        if record["status"] == "timed":
            own = {count: timings[f"{record['contestant']} {count}"] for count in sides}
            record["seconds"] = {str(count): timing.seconds for count, timing in own.items()}
            record |= {"rounds_thrown_away": own[1].thrown_away, "rounds_disturbed": own[1].disturbed}
    return records


def factor(record: dict[str, Any], count: int) -> float:
    """How many times as fast on so many cores as on one: the median of the ratios within rounds."""
    return spread([a / b for a, b in zip(record["seconds"]["1"], record["seconds"][str(count)], strict=True)]).median


def lead(record: dict[str, Any], ours: dict[str, Any] | None, count: int) -> float | None:
    """The seconds of a contestant over those of attendax, within rounds."""
    if ours is None or record is ours:
        return None
    pairs = zip(record["seconds"][str(count)], ours["seconds"][str(count)], strict=True)
    return spread([a / b for a, b in pairs]).median


def header(counts: Sequence[int]) -> tuple[str, ...]:
    more = [count for count in counts if count > 1]
    times = [f"ms on {count}" for count in counts], [f"1 -> {count}" for count in more]
    return "case", "measure", "contestant", *times[0], *times[1], *[f"x attendax on {count}" for count in counts]


def rows(records: list[dict[str, Any]], counts: Sequence[int]) -> list[list[str]]:
    """Of one case and measure."""
    timed = [record for record in records if record["status"] == "timed"]
    ours = next((record for record in timed if record["contestant"] == OURS), None)
    found = []
    for record in timed:
        medians = [f"{1e3 * spread(record['seconds'][str(count)]).median:.3g}" for count in counts]
        factors = [f"{factor(record, count):.2f}" for count in counts if count > 1]
        leads = ["" if (x := lead(record, ours, count)) is None else f"{x:.2f}" for count in counts]
        found.append([record["case"], record["measure"], record["contestant"], *medians, *factors, *leads])
    return found


def means(records: list[dict[str, Any]], counts: Sequence[int]) -> list[list[str]]:
    """Geometric means over the cases: of the factors of each contestant, and of its seconds over those of attendax."""
    found = []
    for contestant in dict.fromkeys(record["contestant"] for record in records):
        for direction in dict.fromkeys(record["measure"] for record in records):
            both = []
            for group in tables.groups(records):
                timed = {r["contestant"]: r for r in group if r["status"] == "timed" and r["measure"] == direction}
                if {OURS, contestant} <= set(timed):
                    both.append((timed[contestant], timed[OURS]))
            if both:
                cases = "1 case" if len(both) == 1 else f"{len(both)} cases"
                factors = [f"{mean(factor(one, n) for one, _ in both):.2f}" for n in counts if n > 1]
                leads = [f"{mean(lead(*pair, n) or 1.0 for pair in both):.2f}" for n in counts]
                found.append([cases, direction, contestant, *[""] * len(counts), *factors, *leads])
    return found


def mean(numbers: Any) -> float:
    logs = [math.log(number) for number in numbers]
    return math.exp(math.fsum(logs) / len(logs))


def markdown(found: dict[str, Any]) -> str:
    """The means, every case, and who was not timed."""
    records, counts = found["records"], found["counts"]
    every = [row for group in tables.groups(records) for row in rows(group, counts)]
    head = "## Cores\n\nMedians of all rounds; factors and ratios are medians within rounds. Means are geometric.\n"
    return "\n".join([head, tables.table(header(counts), means(records, counts) + every), tables.listed(records)])
