"""Sentences of the pages about speed: each function makes a statement from the committed results (``measured.py``)."""

import re
from collections.abc import Iterator
from statistics import median
from typing import Any

import cores
import report
import tables
from committed import SINGLE, Results, claim, listed, machine, mean, span, when
from contestants import OURS, TILES
from statements_of_cost import compile_ratios

TORCH = "torch-sdpa"
ELSEWHERE = {  # by its folder: where else AVX-512 was tried, and a remark on the cores there
    "zen4": ("On an AMD EPYC of Zen 4, which has AVX-512 in halves of 256 bits", ""),
    "xeon": ("On another maker's AVX-512", ", and the two cores may be two threads of one"),
}
TRAINED = "encoder block 32 x 128 x 384, training step"


def speed(results: Results) -> str:
    """The front page: one number for speed, of calls in which there is nothing to skip, and one for compiling."""
    full = results.full
    forward, gradient = by_measure(full)
    plain_calls = {case: ratio for case, ratio in forward.items() if sees_all(full, case)}
    rows = [*forward.values(), *gradient.values()]
    compiled = mean(compile_ratios(results, "forward").values(), 1)
    faster, slower, elsewhere = "", "", ""

    def of_these(found: dict[str, float]) -> str:
        return mean(ratio for case, ratio in found.items() if case in plain_calls)

    if results.avx2:
        narrow = by_measure(results.avx2)
        faster = f"; {of_these(narrow[0])} without AVX-512"
        there = [ratio for found in narrow for ratio in found.values()]
        ahead = any(map(behind, [*rows, *there]))
        slower = f" ({sum(map(behind, there)) or 'none'} without AVX-512)" if ahead else " of either"
    for folder, where in (("zen4", "Zen 4"), ("xeon", "a Xeon")):
        if run := getattr(results, folder):
            found = by_measure(run)
            there = [ratio for of_one in found for ratio in of_one.values()]
            faster += f", {of_these(found[0])} on {where}" * (plain_calls.keys() <= found[0].keys())
            elsewhere += f", {sum(map(behind, there)) or 'none'} of {len(there)} on {where}"
    return (
        f"On CPUs `attention` is {mean(plain_calls.values())} times as fast as torch's SDPA with nothing to "
        f"skip (geometric mean, {len(plain_calls)} shapes{faster}). torch is faster in "
        f"{sum(map(behind, rows)) or 'none'} of the [{len(rows)} rows](docs/benchmarks.md){slower}{elsewhere}. It "
        f"compiles {compiled} times as fast as jax.nn "
        f"(float32, {machine(full)}; {when(full)})."
    )


def version(run: dict[str, Any], package: str) -> str:
    """The version of a package in a run, without the part that is local to its build."""
    return run["about"]["versions"][package].partition("+")[0]


def sees_all(run: dict[str, Any], case: str) -> bool:
    """Tell whether each query of a case may look at each key, and nothing is added or dropped."""
    shape = run["cases"][case]
    return not shape["causal"] and not shape["variant"]


def behind(ratio: float) -> bool:
    return round(ratio, 2) < 1


def means(results: Results) -> str:
    said = []
    for reference, words in ((TORCH, "torch"), ("jax.nn", "jax.nn"), (TILES, "its own tiles")):
        found = (mean(report.ratios(results.full, reference, measure).values()) for measure in SINGLE)
        said.append(f"beside {words} {' / '.join(found)}")
    return f"Geometric means, forward / with the gradient: {', '.join(said)} ({machine(results.full)})."


def ahead(run: dict[str, Any], reference: str) -> list[str]:
    """Name each case in which a contestant is faster than attendax: "ragged (0.83 forward, 0.94 with the gradient)"."""
    found: dict[str, list[str]] = {}
    for measure, title in (report.TITLES | {"backward": "with the gradient"}).items():
        for case, ratio in report.ratios(run, reference, measure).items():
            if behind(ratio):
                found.setdefault(case, []).append(f"{ratio:.2f} {title}")
    return [f"{case} ({', '.join(ratios)})" for case, ratios in found.items()]


def who_is_ahead(results: Results) -> str:
    """Name every row in which somebody is faster."""
    names = [name for name in results.full["contestants"] if not name.startswith(OURS) and name != TORCH]
    found = [f"{name} in {listed(cases)}" for name in names if (cases := ahead(results.full, name))]
    torch = ahead(results.full, TORCH)
    first = f"attendax is slower than torch in {listed(torch)}" if torch else "attendax is nowhere slower than torch"
    return f"{first}. {'Also ahead: ' + '; '.join(found) if found else 'No other library is ahead anywhere'}."


def plain(run: dict[str, Any], contestant: str, measure: str, tokens: int) -> Iterator[dict[str, Any]]:
    """A contestant's records of calls without any variant, from so many queries and keys on, each with its shape."""
    for record in run["records"]:
        shape = run["cases"][record["case"]]
        right = (record["contestant"], record["measure"], record["status"]) == (contestant, measure, "timed")
        if right and not shape["variant"] and min(shape["T"], shape["S"]) >= tokens:
            yield shape | record


def beside_a_product(results: Results) -> str:
    full, product = results.full, results.full["about"]["matmul_gflops"]
    torch = [record["gflops"] for measure in SINGLE for record in plain(full, TORCH, measure, 512)]
    forward, gradient = (list(plain(full, OURS, measure, 2048)) for measure in SINGLE)
    whole, causal = (span(r["share_of_matmul"] for r in forward if r["causal"] == which) for which in (False, True))
    return (
        f"The best product of XLA in this run reached {product:.0f} GFLOP/s, and torch's attention "
        f"{span(torch, 0)} in calls of 512 tokens and more, {median(torch):.0f} in the median. From 2,048 tokens on "
        f"attendax reaches {whole} of that product forward (causal {causal}), "
        f"{span(r['share_of_matmul'] for r in gradient)} with the gradient (`share_of_matmul` in the file)."
    )


def with_more_cores(results: Results) -> str:
    """Geometric means of factors and of leads, over the rounds in which the cores were near each other."""
    run = results.cores
    own, torch = ([near(run, contestant, measure) for measure in SINGLE] for contestant in (OURS, TORCH))
    lines = [
        ("attendax, times as fast on 2 cores as on 1", [[cores.factor(r, 2) for r in x.values()] for x in own]),
        ("torch SDPA, the same", [[cores.factor(r, 2) for r in x.values()] for x in torch]),
    ]
    for count, words in ((1, "1 core"), (2, "2 cores")):
        leads = [
            [cores.lead(record, ours[case], count) for case, record in theirs.items() if case in ours]
            for ours, theirs in zip(own, torch, strict=True)
        ]
        lines.append((f"attendax, times as fast as torch on {words}", leads))
    rows = [[what, *(cores.number(cores.mean(numbers)) for numbers in both)] for what, both in lines]
    priority = "the process had real-time priority, " if run["about"].get("real_time_priority") else ""
    return (
        f"With a second core (`python -m benchmarks bench --cores`, `benchmarks/results/cores`; {machine(run)}; "
        f"{when(run)}), geometric means of {len(own[0])} shapes forward and {len(own[1])} with the gradient, for torch "
        f"of those that it can do. They are other shapes than those of the means above, {priority}and the cores were "
        f"near each other:\n\n{tables.table(('', 'forward', 'with the gradient'), rows)}"
    )


def near(run: dict[str, Any], contestant: str, measure: str) -> dict[str, dict[str, Any]]:
    """The record of each case of rounds in which the cores were near; of all, where a run did not measure how near."""
    found = {}
    for record in run["cores"]["records"]:
        if (record["contestant"], record["measure"], record["status"]) == (contestant, measure, "timed"):
            kept = cores.split(record, apart=False) if "round_trips_ns" in record else record
            found |= {record["case"]: kept} if kept else {}
    return found


def by_measure(run: dict[str, Any]) -> list[dict[str, float]]:
    """torch's seconds over those of attendax by case: forward, then with the gradient."""
    return [report.ratios(run, TORCH, measure) for measure in SINGLE]


def beside_torch(run: dict[str, Any], folder: str) -> str:
    """The place of the numbers, the span and the mean of both measures."""
    forward, gradient = (found.values() for found in by_measure(run))
    return (
        f"(`benchmarks/results/{folder}`; {machine(run)}; {when(run)}) attendax is {span(forward)} times "
        f"as fast as torch (geometric mean {mean(forward)}), with the gradient {span(gradient)} ({mean(gradient)})"
    )


def in_bfloat16(results: Results) -> str:
    run = results.bfloat16
    if run is None:
        return "There is no committed run in bfloat16 (`python -m benchmarks bench --dtype bfloat16`)."
    found = [f"{name} in {listed(cases)}" for name in (TORCH, "jax.nn") if (cases := ahead(run, name))]
    return (
        f"In bfloat16 {beside_torch(run, 'bfloat16')}. "
        f"{'Ahead: ' + '; '.join(found) if found else 'Neither torch nor jax.nn is ahead anywhere'}."
    )


def with_avx2(results: Results) -> str:
    run = results.avx2
    if run is None:
        return "There is no committed run without AVX-512."
    plain = ((found[case] for case in found if sees_all(run, case)) for found in by_measure(run))
    return (
        f"With no instruction beyond AVX2, in either library {beside_torch(run, 'avx2')}; where there is nothing to "
        f"skip the means are {' and '.join(map(mean, plain))}. "
        f"{'Ahead: torch in ' + listed(torch) if (torch := ahead(run, TORCH)) else 'torch is nowhere ahead'}."
    )


def on_other_processors(results: Results) -> str:
    """AVX-512 elsewhere, with the versions of that machine, and how many rounds shared their cores with other work."""
    return "\n\n".join(_there(getattr(results, folder), folder) for folder in ELSEWHERE)


def _there(run: dict[str, Any] | None, folder: str) -> str:
    where, cores_there = ELSEWHERE[folder]
    if run is None:
        return f"There is no committed run in `benchmarks/results/{folder}`."
    kept = [record for record in run["records"] if record["status"] == "timed" and record["contestant"] == OURS]
    disturbed = sum(record["rounds_disturbed"] for record in kept) / sum(len(record["seconds"]) for record in kept)
    torch = ahead(run, TORCH)
    return (
        f"{where} {beside_torch(run, folder)}, with torch {version(run, 'torch')} and jax "
        f"{version(run, 'jax')}. {'Ahead: torch in ' + listed(torch) if torch else 'torch is nowhere ahead'}. Other "
        f"work took cores in {disturbed:.0%} of the rounds that were kept{cores_there}."
    )


def leads(results: Results) -> dict[str, dict[str, float]]:
    """Seconds of each other contestant over those of attendax, by case of the encoders."""
    cases = results.full.get("encoders", {"cases": {}})["cases"]
    claim(bool(cases), "the full run has the encoders")
    return {
        name: {r["contestant"]: r["ratio"][0] for r in records if r["status"] == "timed" and r["contestant"] != OURS}
        for name, records in cases.items()
    }


def encoders(results: Results) -> str:
    """A line for each size of the six-layer encoder."""
    rows = []
    for name, ratios in leads(results).items():
        if size := re.fullmatch(r"encoder (\d+) x (\d+)", name):
            sentences = "one sentence" if size[1] == "1" else f"{size[1]} sentences"
            numbers = [cores.number(ratios.get(other)) or "-" for other in ("torch", "onnxruntime")]
            rows.append([f"{sentences} of {size[2]} tokens", *numbers])
    said = f"The six-layer encoder of `embed`, on the same weights ({when(results.full['encoders'])}):\n\n"
    return said + tables.table(("times as fast as", "torch", "ONNX Runtime"), rows)


def training(results: Results) -> str:
    """Texts from end to end, and the gradient of a block."""
    found = leads(results)
    texts = found.get("1,000 texts of mixed length, end to end", {}).get("sentence-transformers")
    whole = (
        f"1,000 texts of mixed length, end to end: {texts:.2f} times as fast as sentence-transformers. "
        if texts
        else ""
    )
    steps = {size: found[f"encoder block {size}, training step"] for size in ("32 x 128 x 384", "8 x 128 x 768")}
    ratios = {size: step["torch.nn.TransformerEncoderLayer"] for size, step in steps.items()}
    said = listed([f"{ratio:.2f} ({size})" for size, ratio in ratios.items()])
    why = " Its temporaries are large, see below." if any(map(behind, ratios.values())) else ""
    return (
        f"{whole}A training step of an encoder block is {said} times as fast as torch's (sentences x tokens x "
        f"width).{why}"
    )


def training_faults(results: Results) -> str:
    (ours,) = (record for record in results.full["encoders"]["cases"][TRAINED] if record["contestant"] == OURS)
    return f"{ours['page_faults']:,.0f}"


STATEMENTS = (
    speed,
    means,
    who_is_ahead,
    beside_a_product,
    with_more_cores,
    in_bfloat16,
    with_avx2,
    on_other_processors,
    encoders,
    training,
    training_faults,
)
