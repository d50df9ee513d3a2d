"""Sentences of the pages about speed: each function makes a statement from the committed results (``measured.py``)."""

import re
from typing import Any

import cores
import report
import tables
from committed import SINGLE, Results, claim, machine, mean, when
from contestants import OURS, TILES
from statements_of_cost import compile_ratios

TORCH = "torch-sdpa"
RUNS = {  # fields of Results, the words for their rows, and their folders
    "full": ("AMD EPYC, AVX-512", "."),
    "avx2": ("AMD EPYC, AVX2 only", "avx2"),
    "bfloat16": ("AMD EPYC, bfloat16", "bfloat16"),
    "zen4": ("AMD EPYC of Zen 4", "zen4"),
    "xeon": ("Intel Xeon, AVX-512", "xeon"),
}
REMARKS = {"xeon": "the two cores may be two hyperthreads of one core"}  # on the machine
MEASURES = {"backward": "with the gradient", "jvp": "derivative in one direction", "hvp": "Hessian times a vector"}


def speed(results: Results) -> str:
    """The front page: a row for each processor, of calls with nothing to skip, and one number for compiling."""
    full = results.full
    plain = {case for case in by_measure(full)[0] if sees_all(full, case)}
    places = {
        "AMD EPYC with AVX-512": full,
        "AMD EPYC of Zen 4 with AVX-512": results.zen4,
        "AMD EPYC without AVX-512": results.avx2,
        "Intel Xeon with AVX-512": results.xeon,
    }
    rows = []
    for place, run in places.items():
        if run:
            forward, gradient = by_measure(run)
            ratios = [*forward.values(), *gradient.values()]
            found = plain & forward.keys()
            fast = mean(forward[case] for case in sorted(found))
            cache = run["about"]["cache_bytes"]["L1"] // 1024
            rows.append(
                [
                    f"{place}, {cache} KiB of L1 cache",
                    str(len(found)),
                    fast,
                    f"{sum(map(behind, ratios))} of {len(ratios)}",
                ]
            )
    header = (
        "CPU (2 cores, float32 arrays)",
        "calls in the mean",
        "attendax, times as fast as torch (mean)",
        "measured calls in which torch is faster",
    )
    compiled = mean(compile_ratios(results, "forward").values(), 1)
    return (
        f"{tables.table(header, rows)}\nThe mean is the geometric mean over forward calls without mask, bias or "
        "dropout. The last column also counts calls with other options, and gradients. "
        f"jax.nn takes {compiled} times as long as attendax to compile a forward. [All results](docs/benchmarks.md)."
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
    rows = []
    for reference, words in (
        (TORCH, "torch SDPA"),
        ("jax.nn", "jax.nn"),
        (TILES, "attendax without its native kernel"),
    ):
        rows.append([words, *(mean(report.ratios(results.full, reference, measure).values()) for measure in SINGLE)])
    return tables.table(("attendax, times as fast as", "forward", "with the gradient"), rows)


def ahead(run: dict[str, Any], reference: str) -> list[str]:
    """Name each case in which a contestant is faster than attendax: "`bias` (forward 0.83, with the gradient 0.94)"."""
    found: dict[str, list[str]] = {}
    for measure, title in (report.TITLES | MEASURES).items():
        for case, ratio in report.ratios(run, reference, measure).items():
            if behind(ratio):
                found.setdefault(case, []).append(f"{title} {ratio:.2f}")
    return [f"`{case}` ({', '.join(ratios)})" for case, ratios in found.items()]


def who_is_ahead(results: Results) -> str:
    """Name every row in which somebody is faster."""
    names = [name for name in results.full["contestants"] if not name.startswith(OURS)]
    faster = {name: cases for name in names if (cases := ahead(results.full, name))}
    first = "torch is faster than attendax in some shapes" if TORCH in faster else "torch is not faster in any shape"
    if not faster:
        return "On this machine, no other library is faster in any shape."
    header = ("library", "shape", "computation", "ratio")
    rows = []
    for name, cases in faster.items():
        for case, calls in (case.removesuffix(")").split(" (") for case in cases):
            rows += [[name, case, *call.rsplit(" ", 1)] for call in calls.split(", ")]
    told = f"On this machine, {first}. In these calls another library is faster:"
    return f"{told}\n\n{tables.table(header, rows)}"


def with_more_cores(results: Results) -> str:
    """Geometric means of factors and of leads, over the rounds in which the cores were near each other."""
    run = results.cores
    own, torch = ([near(run, contestant, measure) for measure in SINGLE] for contestant in (OURS, TORCH))
    lines = [
        ("attendax on 2 cores, times as fast as on 1", [[cores.factor(r, 2) for r in x.values()] for x in own]),
        ("torch SDPA on 2 cores, times as fast as on 1", [[cores.factor(r, 2) for r in x.values()] for x in torch]),
    ]
    for count, words in ((1, "1 core"), (2, "2 cores")):
        leads = [
            [cores.lead(record, ours[case], count) for case, record in theirs.items() if case in ours]
            for ours, theirs in zip(own, torch, strict=True)
        ]
        lines.append((f"attendax, times as fast as torch, both on {words}", leads))
    rows = [[what, *(cores.number(cores.mean(numbers)) for numbers in both)] for what, both in lines]
    return (
        "The two cores of this table [share a cache](#two-cores-one-cache-or-two). The numbers are geometric means "
        f"over {len(own[0])} shapes (with the gradient: {len(own[1])}). "
        f"Source: `benchmarks/results/cores` ({machine(run)}; {when(run)}).\n\n"
        f"{tables.table(('', 'forward', 'with the gradient'), rows)}"
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


def beside_torch(results: Results) -> str:
    """A row for each run: means of both measures, over all shapes and with nothing to skip; where torch is faster."""
    rows = []
    for field, (words, folder) in RUNS.items():
        if (run := getattr(results, field)) is None:
            rows.append([words, f"no committed run in `benchmarks/results/{folder}`", *"----"])
            continue
        cells = []
        for ratios in by_measure(run):
            unskipped = mean(ratio for case, ratio in ratios.items() if sees_all(run, case))
            cells += [mean(ratios.values()), unskipped]
        rows.append([words, *cells, ", ".join(ahead(run, TORCH)) or "none"])
    header = (
        "run",
        "forward, all shapes",
        "forward, plain shapes",
        "with the gradient, all shapes",
        "with the gradient, plain shapes",
        "shapes in which torch is faster",
    )
    return tables.table(header, rows)


def where_measured(results: Results) -> str:
    """A row for each run: machine, commit, versions, and how many of the rounds that were kept were disturbed."""
    rows, remarks = [], []
    for field, (words, _) in RUNS.items():
        if (run := getattr(results, field)) is None:
            continue
        kept = [r for r in run["records"] if r["status"] == "timed" and r["contestant"] == OURS]
        disturbed = sum(r["rounds_disturbed"] for r in kept) / sum(len(r["seconds"]) for r in kept)
        rows.append([words, version(run, "torch"), version(run, "jax"), when(run), f"{disturbed:.0%}"])
        if field in REMARKS:
            remarks.append(f'In the run "{words}", {REMARKS[field]}.')
    header = ("run", "torch", "jax", "measured code, date", "disturbed rounds")
    return "\n\n".join([*remarks, tables.table(header, rows)])


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
    said = "Each library runs the six-layer encoder of `attendax embed` with the same weights "
    said = f"{said}({when(results.full['encoders'])}):\n\n"
    return said + tables.table(("attendax, times as fast as", "torch", "ONNX Runtime"), rows)


def training(results: Results) -> str:
    """Texts from end to end, and the gradient of a block."""
    found = leads(results)
    texts = found.get("1,000 texts of mixed length, end to end", {}).get("sentence-transformers")
    whole = (
        "To turn 1,000 texts of different lengths into vectors, sentence-transformers takes "
        f"{texts:.2f} times as long as attendax. "
        if texts
        else ""
    )
    steps = {size: found[f"encoder block {size}, training step"] for size in ("32 x 128 x 384", "8 x 128 x 768")}
    ratios = {size: step["torch.nn.TransformerEncoderLayer"] for size, step in steps.items()}
    sizes = {size: "{} sentences of {} tokens (width {})".format(*size.split(" x ")) for size in ratios}
    (first, ratio), *rest = ratios.items()
    said = f"In a training step of an encoder block, attendax is {ratio:.2f} times as fast as torch for {sizes[first]}."
    said += "".join(f" For {sizes[size]}, it is {ratio:.2f} times as fast." for size, ratio in rest)
    why = " Its temporaries are large, see below." if any(map(behind, ratios.values())) else ""
    return f"{whole}{said}{why}"


STATEMENTS = (
    speed,
    means,
    who_is_ahead,
    with_more_cores,
    beside_torch,
    where_measured,
    encoders,
    training,
)
