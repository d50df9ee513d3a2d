"""Sentences of the pages about compiling, memory, several devices, and faults that the kit found (``measured.py``)."""

from collections import Counter
from typing import Any

import compiling
import tables
from committed import SINGLE, Results, claim, machine, mean, span, when
from contestants import OURS
from shapes import SHAPES

STRATEGIES = ("ring", "all_gather", "ulysses")
ORDERS = {"contiguous": "in order", "zigzag": "in zigzag order"}
BUGS = {  # of the functions of ``kit.py``; any other has one
    "right in torch": "correct", "every option, with a backward by hand, of numpy": "correct",
    "the plain formula, of jax": "correct", "two mistakes": "with two bugs",
}  # fmt: skip
FIRST_NAMES = ("torch", "flax", "tokamax")  # of libraries that take part in the matrix more than once


def compile_ratios(results: Results, measure: str) -> dict[str, float]:
    """CPU seconds of jax.nn over those of attendax, by single call."""
    groups = (group for group in tables.groups(results.compile["compile"]) if group[0]["measure"] == measure)
    found = {group[0]["case"]: compiling.ratio(group, "cpu_s") for group in groups if group[0]["case"] in SHAPES}
    return {case: ratio for case, ratio in found.items() if ratio is not None}


def compile_seconds(results: Results) -> str:
    """Seconds of single calls by the wall clock."""
    ours = [r for r in results.compile["compile"] if r["contestant"] == OURS and r["case"] in SHAPES]
    forward, gradient = (span((r["wall_s"] for r in ours if r["measure"] == measure), 2) for measure in SINGLE)
    return f"{forward} seconds and a gradient in {gradient}"


def compile_times(results: Results) -> str:
    run = results.compile
    forward, gradient = faster = [compile_ratios(results, measure) for measure in SINGLE]
    claim(min(*forward.values(), *gradient.values()) > 1, "every shape compiles sooner than jax.nn's")
    (layers,) = (group for group in tables.groups(run["compile"]) if group[0]["case"] in compiling.MODELS)
    ratio = compiling.ratio(layers, "cpu_s")
    assert ratio is not None
    over = f"geometric mean of {span(map(len, faster), 0)} shapes"
    rows = [
        *(
            [measure, mean(ratios.values(), 1), f"{over} ({span(ratios.values(), 1)})"]
            for measure, ratios in zip(("forward", "gradient"), faster, strict=True)
        ),
        [f"gradient of {compiling.LAYERS} stacked layers", f"{ratio:.1f}", "one shape, (2, 8, 512, 64), causal"],
    ]
    return (
        "attendax compiles in less time than jax.nn. The table has the CPU time of jax.nn divided by that of attendax "
        f"(`benchmarks/results/compile`; {machine(run).rpartition(', ')[0]}; {when(run)}):\n\n"
        f"{tables.table(('program', 'times as fast', 'for'), rows)}"
    )


def memory(results: Results) -> str:
    """Temporaries of causal calls, from ``linear.py``."""
    found = results.linear["memory"]
    names = ("forward", "gradient", "jvp", "forward over reverse")
    rows = [
        [f"S = {S:,}", *(f"{found[f'causal, {name}']['bytes'][k] / 2**20:.1f}" for name in names)]
        for k, S in enumerate((4096, 16384))
    ]
    return tables.table(("temporaries, MiB", *names), rows)


def on_devices(results: Results) -> str:
    """The memory of a device, and what it receives: a row for each strategy."""
    rows = [
        [f"{strategy}, {kind}", *(of_device(results, strategy, count, kind) for count in (2, 4, 8))]
        for kind in ("temporaries", "received")
        for strategy in STRATEGIES
    ]
    return tables.table(("MB", "n = 2", "n = 4", "n = 8"), rows)


def of_device(results: Results, strategy: str, devices: int, kind: str) -> str:
    """MB forward / with the gradient."""
    records = results.devices["records"]
    found = {r["direction"]: r[kind] for r in records if (r["strategy"], r["devices"]) == (strategy, devices)}
    return f"{found['forward'] / 1e6:.0f} / {found['gradient'] / 1e6:.0f}"


def one_device(results: Results) -> str:
    orders = {(one["order"], one["devices"]): f"{one['balance']:.2f}" for one in results.devices["orders"]}
    rows = [[words, *(orders[order, n] for n in (2, 4, 8))] for order, words in ORDERS.items()]
    alone = of_device(results, "ring", 1, "temporaries")
    return f"One device alone receives nothing, and needs {alone} MB of temporaries.\n\n" + tables.table(
        ("work of the busiest device, divided by the mean of all", "n = 2", "n = 4", "n = 8"), rows
    )


def beside_shard_map(results: Results) -> str:
    found: dict[str, list[str]] = {}
    for time in results.devices["times"]:
        found.setdefault(time["name"], []).append(f"{time['ratio']:.2f}")
    busy = ", while other processes ran" if any(time["disturbed"] for time in results.devices["times"]) else ""
    rows = [["batches and heads divided, causal, 1,024 tokens", *found["attendax under jit"]]]
    rows += [[f"2,048 tokens divided, {name}", *found[name]] for name in STRATEGIES]
    return (
        "The next table has the time of attendax divided by the time of `jax.nn` (below 1: attendax is faster). "
        "`jax.nn` runs in a `shard_map` that first gathers divided keys and values. "
        f"Two cores simulated eight devices{busy}:\n\n"
        f"{tables.table(('', 'forward', 'with the gradient'), rows)}"
    )


def libraries_at_fault(results: Results) -> str:
    """The number of other libraries in which the kit found causes of faults."""
    names = {report["name"] for report in results.conformance["reports"] if report["causes"]}
    names = {name for name in names if not name.startswith("attendax")}
    return str(len({next((first for first in FIRST_NAMES if name.startswith(first)), name) for name in names}))


def versions_of_matrix(results: Results) -> str:
    versions = results.conformance["versions"]
    return f"Python {versions['python'].rpartition('.')[0]}, jax {versions['jax']}"


def date_of_models(results: Results) -> str:
    return results.models["date"]


def fault_of_models(results: Results) -> str:
    """The rest of the sentence on the page describes this fault."""
    found = [report for report in results.models["reports"] if report["causes"]]
    claim([report["name"] for report in found] == ["transformers Bailing hybrid, linear alone"], "the one fault is of")
    return f"the one fault is of transformers {found[0]['version']}"


def matrix(results: Results) -> str:
    return "".join(f"{line}\n" for line in results.matrix.splitlines() if line.startswith("|"))


def rows_of_matrix(results: Results) -> str:
    """Calls in which the rows of each library keep their bits, and in which not."""
    lines = ["|  | the query has the same bits | the query has other bits |", "| --- | --- | --- |"]
    for name, told in results.rows["libraries"].items():
        kept, changed = (
            ", ".join(key for key, how in told["calls"].items() if how == wanted) for wanted in ("kept", "changed")
        )
        lines.append(f"| {name} {told['version']} | {kept or '-'} | {changed or '-'} |")
    return "\n".join(lines) + "\n"


def date_of_rows(results: Results) -> str:
    return results.rows["date"]


def times_of_check(results: Results) -> str:
    """Seconds of both processes, on the cores and on the clock, by the number of bugs."""
    groups: dict[str, list[dict[str, Any]]] = {"correct": [], "with one bug": [], "with two bugs": []}
    for name, row in results.kit["after"]["rows"].items():
        groups[BUGS.get(name, "with one bug")].append(row)
    table = []
    for bugs, rows in groups.items():
        counts = Counter(row["causes"] for row in rows)
        causes = [f"{causes} in {runs} run{'s' * (runs > 1)}" for causes, runs in sorted(counts.items())]
        table.append(
            [bugs, str(len(rows)), *(span((r[x] for r in rows), 0) for x in ("cores", "clock")), ", ".join(causes)]
        )
    return tables.table(("functions", "runs", "CPU seconds", "seconds on the clock", "causes"), table)


def runs_of_check(results: Results) -> str:
    """Commit of the table, and the load of the machine."""
    part = results.kit["after"]
    claim(max(row["cores"] for row in part["rows"].values()) < 60, "none takes a minute of the cores")
    day, processor = part["date"][:10], part["processor"].partition(",")[0]
    load = span((row["load"] for row in part["rows"].values()), 1)
    return (
        f"Measured on {day}, commit {part['commit'][:7]}, two cores of an {processor} that other programs also used "
        f"(load {load})."
    )


def finds_of_check(results: Results) -> str:
    """CPU seconds until the known-bad functions are found, by the kind of case that finds them."""
    runs = results.kit["finds"]["rows"]
    claim(all(row["case"] or row["told"] for row in runs.values()), "none is missed")
    seconds: dict[str, list[float]] = {"the two simplest cases": [], "other small cases": [], "realistic sizes": []}
    for row in runs.values():
        if case := row["case"]:
            kind = 0 if case in ("plain", "gradient: plain") else 2 if "ladder: " in case else 1
            seconds[list(seconds)[kind]].append(row["cores"])
    table = [[kind, str(len(x)), f"{sum(x) / len(x):.1f}", f"{max(x):.1f}"] for kind, x in seconds.items() if x]
    to_the_end = [name.rpartition(", ")[0] for name, row in runs.items() if not row["case"]]  # a name ends in the seed
    functions = len(set(to_the_end))
    return (
        tables.table(("bug found by", "runs", "CPU seconds, mean", "CPU seconds, largest"), table)
        + f"\n{len(to_the_end)} more runs, of {functions} functions, could not end at the first fault. These functions "
        "end processes, try to find the judge, or have a bug that no single case shows. "
        "All runs, in the table or not, found the bug."
    )


STATEMENTS = (
    times_of_check,
    runs_of_check,
    finds_of_check,
    compile_seconds,
    compile_times,
    memory,
    on_devices,
    one_device,
    beside_shard_map,
    libraries_at_fault,
    versions_of_matrix,
    date_of_models,
    fault_of_models,
    matrix,
    rows_of_matrix,
    date_of_rows,
)
