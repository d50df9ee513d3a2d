"""Sentences of the pages about compiling, memory, several devices, and faults that the kit found (``measured.py``)."""

import compiling
import tables
from committed import SINGLE, Results, claim, machine, mean, span, when
from contestants import OURS
from shapes import SHAPES

STRATEGIES = ("ring", "all_gather", "ulysses")
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
    return (
        f"In `benchmarks/results/compile` (CPU seconds; {machine(run)}; {when(run)}) a forward compiles "
        f"{span(forward.values(), 1)} times as fast as jax.nn's (geometric mean {mean(forward.values(), 1)}), a "
        f"gradient {span(gradient.values(), 1)} ({mean(gradient.values(), 1)}): {span(map(len, faster), 0)} shapes. "
        f"The gradient of {compiling.LAYERS} layers in a row, (2, 8, 512, 64) causal, {ratio:.1f} times as fast."
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
    contiguous, zigzag = (", ".join(orders[order, n] for n in (2, 4, 8)) for order in ("contiguous", "zigzag"))
    return (
        f"One device alone needs {of_device(results, 'ring', 1, 'temporaries')} MB. Time in lock step over ideal on 2, "
        f"4 and 8 devices, counted in tiles, not measured: {contiguous} in order, {zigzag} in zigzag order."
    )


def beside_shard_map(results: Results) -> str:
    found: dict[str, list[str]] = {}
    for time in results.devices["times"]:
        found.setdefault(time["name"], []).append(f"{time['ratio']:.2f}")
    busy = ", while other processes ran" if any(time["disturbed"] for time in results.devices["times"]) else ""
    forward, gradient = found["attendax under jit"]
    tokens = ", ".join(f"{name} {' and '.join(found[name])}" for name in STRATEGIES)
    return (
        f"Beside a `shard_map` of one's own around `jax.nn`, on eight devices that two cores play{busy}: {forward} of "
        f"its time forward and {gradient} with the gradient for divided batches and heads, causal, at 1,024 tokens. "
        f"Divided tokens, 2,048 of them: {tokens}. On a real link this says nothing."
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
    """The page goes on to tell of this fault."""
    found = [report for report in results.models["reports"] if report["causes"]]
    claim([report["name"] for report in found] == ["transformers Bailing hybrid, linear alone"], "the one fault is of")
    return f"the one fault is of transformers {found[0]['version']}"


def matrix(results: Results) -> str:
    return "".join(f"{line}\n" for line in results.matrix.splitlines() if line.startswith("|"))


def rows_of_matrix(results: Results) -> str:
    """The libraries that keep the bits of a row, and in which calls."""
    lines = ["|  | the bits of a row stay | and change |", "| --- | --- | --- |"]
    for name, told in results.rows["libraries"].items():
        kept, changed = (
            ", ".join(key for key, how in told["calls"].items() if how == wanted) for wanted in ("kept", "changed")
        )
        lines.append(f"| {name} {told['version']} | {kept or '-'} | {changed or '-'} |")
    return "\n".join(lines) + "\n"


def date_of_rows(results: Results) -> str:
    return results.rows["date"]


STATEMENTS = (
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
