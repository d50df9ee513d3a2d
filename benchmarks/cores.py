"""Speed of a case with more cores: a process for each number of cores, and all of them take turns."""

import contextlib
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tables
from contestants import OURS, PEERS
from harness import Clock, Contestant, Unable, measure, spread
from judge import Judge
from round_trip import FAR, far, round_trip
from shapes import LENGTHS, SHAPES
from workers import Worker
from workload import Case

COUNTS = (1, 2, 4, 8, 16)
CONTESTANTS = (OURS, "torch-sdpa")
HEAD = """## Cores

Medians of the rounds in which the first two cores were near each other, of all where they never were; factors and
ratios are medians within rounds.
Means are geometric. Near: a number went from one core to the other and back in less than {:.0f} ns of Python. "far" are
the other rounds: a host can move the cores of a virtual machine to different caches.
"""
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


@contextlib.contextmanager
def near(workers: Sequence[Worker] = ()) -> Iterator[Clock]:
    """A clock that also counts a round as disturbed if its first two cores were far apart."""
    with contextlib.ExitStack() as stack:
        between = None
        with contextlib.suppress(ValueError):
            between = stack.enter_context(round_trip(available()))
        yield Clock(workers, between, only_near=True)


def installed() -> list[str]:
    return [name for name in CONTESTANTS if PEERS[name].is_installed()]


@contextlib.contextmanager
def workers(cores: Sequence[int]) -> Iterator[tuple[dict[int, Worker], Clock]]:
    """One for each number of cores, on the first so many, and their clock."""
    sides = {count: Worker(cores=cores[:count]) for count in COUNTS if count <= len(cores)}
    try:
        with round_trip(cores) as between:
            yield sides, Clock(list(sides.values()), between)
    finally:
        for side in sides.values():
            side.stop()


def run(
    sides: dict[int, Worker],
    name: str,
    direction: str,
    dtype: str,
    progress: Callable[[str], Any],
    clock: Clock,
    **options: Any,
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
    timings = measure(ready, clock=clock, **options)
    for record in records:
        if record["status"] == "timed":
            own = {count: timings[f"{record['contestant']} {count}"] for count in sides}
            record["seconds"] = {str(count): timing.seconds for count, timing in own.items()}
            record |= {"rounds_thrown_away": own[1].thrown_away, "rounds_disturbed": own[1].disturbed}
            record["round_trips_ns"] = own[1].round_trips
    return records


def split(record: dict[str, Any], *, apart: bool) -> dict[str, Any] | None:
    """The record with the rounds alone in which the first two cores were far apart, or were not; None without any."""
    chosen = [x == apart for x in far(record["round_trips_ns"])]
    seconds = {count: list(itertools.compress(own, chosen)) for count, own in record["seconds"].items()}
    return record | {"seconds": seconds} if any(chosen) else None


def nearest(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the rounds in which the first two cores were near each other, or all where they never were."""
    return split(record, apart=False) or record


def factor(record: dict[str, Any] | None, count: int) -> float | None:
    """The speed on so many cores, in times of that on one: the median of the ratios within rounds."""
    if record is None:
        return None
    return spread([a / b for a, b in zip(record["seconds"]["1"], record["seconds"][str(count)], strict=True)]).median


def lead(record: dict[str, Any] | None, ours: dict[str, Any] | None, count: int) -> float | None:
    """The seconds of a contestant over those of attendax, within rounds."""
    if ours is None or record is None:
        return None
    pairs = zip(record["seconds"][str(count)], ours["seconds"][str(count)], strict=True)
    return spread([a / b for a, b in pairs]).median


def header(counts: Sequence[int]) -> tuple[str, ...]:
    more = [count for count in counts if count > 1]
    times = [f"ms on {count}" for count in counts], [f"1 -> {count}" for count in more]
    leads = [f"x attendax on {count}" for count in counts]
    return (
        "case",
        "measure",
        "contestant",
        *times[0],
        *times[1],
        *leads,
        *[f"far: {name}" for name in times[1]],
        "rounds",
    )


def rows(records: list[dict[str, Any]], counts: Sequence[int]) -> list[list[str]]:
    """Rows of one case and measure: where the cores were near each other, and the factors where they were far apart."""
    timed = [record for record in records if record["status"] == "timed"]
    near = {record["contestant"]: nearest(record) for record in timed}
    found = []
    for record in timed:
        own, apart, ours = near[record["contestant"]], split(record, apart=True), near.get(OURS)
        medians = [f"{1e3 * spread(own['seconds'][str(count)]).median:.3g}" for count in counts]
        leads = [lead(own, ours, count) if record["contestant"] != OURS else None for count in counts]
        factors = [[factor(one, count) for count in counts if count > 1] for one in (own, apart)]
        rounds = f"{far(record['round_trips_ns']).count(False)} of {len(record['round_trips_ns'])}"
        numbers = [*factors[0], *leads, *factors[1]]
        found.append([record["case"], record["measure"], record["contestant"], *medians, *map(number, numbers), rounds])
    return found


def number(x: float | None) -> str:
    return "" if x is None else f"{x:.2f}"


def means(records: list[dict[str, Any]], counts: Sequence[int]) -> list[list[str]]:
    """Geometric means over the cases: of the factors of each contestant, and of its seconds over those of attendax."""
    found, more = [], [count for count in counts if count > 1]
    timed = [record for record in records if record["status"] == "timed"]
    for contestant in dict.fromkeys(record["contestant"] for record in records):
        for direction in dict.fromkeys(record["measure"] for record in records):
            ours = {r["case"]: r for r in timed if (r["measure"], r["contestant"]) == (direction, OURS)}
            own = [r for r in timed if (r["measure"], r["contestant"]) == (direction, contestant) and r["case"] in ours]
            near, apart = [nearest(r) for r in own], [split(r, apart=True) for r in own]
            if own:
                cases = "1 case" if len(own) == 1 else f"{len(own)} cases"
                pairs = [(r, nearest(ours[r["case"]])) for r in near]
                numbers = [mean(factor(r, n) for r in near) for n in more]
                numbers += [mean(lead(*pair, n) for pair in pairs) for n in counts]
                numbers += [mean(factor(r, n) for r in apart) for n in more]
                found.append([cases, direction, contestant, *[""] * len(counts), *map(number, numbers), ""])
    return found


def mean(numbers: Any) -> float | None:
    logs = [math.log(x) for x in numbers if x is not None]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def markdown(found: dict[str, Any]) -> str:
    """The means, every case, and who was not timed."""
    records, counts = found["records"], found["counts"]
    every = [row for group in tables.groups(records) for row in rows(group, counts)]
    head = HEAD.format(FAR)
    table = tables.table(header(counts), means(records, counts) + every)
    return "\n".join([head, table, tables.listed(records)])
