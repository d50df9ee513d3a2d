"""Measurements as tables: in the terminal and in Markdown, from the same rows."""

from collections import Counter
from statistics import geometric_mean
from typing import Any

import compiling
import cores
import tables
from contestants import OURS, REFERENCES
from harness import Spread, spread
from judge import TOLERANCE
from tables import remarks, table

HEADER = ("contestant", "ms", "quartiles", f"x {OURS}", "GFLOP/s", "of matmul", "first call s", "temporaries MiB")
HEADER += ("page faults", "error")
TITLES = {"forward": "forward", "backward": "forward and backward", "jvp": "jvp", "hvp": "Hessian-vector product"}


def groups(results: dict[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The records by case and measure, in the order in which they were measured."""
    return {(group[0]["case"], group[0]["measure"]): group for group in tables.groups(results["records"])}


def title(case: str, measure: str, results: dict[str, Any]) -> str:
    shape = results["cases"][case]
    heads = f"N {shape['N']}" + (f", G {shape['G']}" if shape["G"] != shape["N"] else "")
    kinds = ["causal"] * shape["causal"] + [shape["variant"]] * bool(shape["variant"])
    sizes = f"B {shape['B']}, {heads}, T {shape['T']}, S {shape['S']}, D {shape['D']}"
    return f"{case}, {TITLES[measure]} ({', '.join([sizes, *kinds])})"


def row(record: dict[str, Any]) -> list[str]:
    """The cells of a contestant; of one that was not timed the reason is given by ``remarks``."""
    if record["status"] != "timed":
        return [record["contestant"], record["status"], *[""] * (len(HEADER) - 2)]
    low, high = (1e3 * x for x in record["quartiles_s"])
    bytes_used = record["temporary_bytes"]
    return [
        record["contestant"],
        f"{1e3 * record['median_s']:.3g}" if record["median_s"] < 1 else f"{1e3 * record['median_s']:.0f}",
        f"{low:.3g} to {high:.3g}" if high < 1e3 else f"{low:.0f} to {high:.0f}",
        f"{record['ratio'][0]:.2f}",
        f"{record['gflops']:.1f}",
        f"{record['share_of_matmul']:.0%}",
        f"{record['first_call_s']:.2f}",
        "" if bytes_used is None else f"{bytes_used / 2**20:.1f}",
        f"{record['page_faults']:.0f}",
        f"{record['error']:.0e}",
    ]


def ratios(results: dict[str, Any], reference: str, measure: str) -> dict[str, float]:
    """A reference's seconds over those of attendax, of each case that both could do; lengths apart."""
    found = {}
    for (case, direction), records in groups(results).items():
        both = {r["contestant"]: r for r in records if r["status"] == "timed"}
        if direction == measure and not case.startswith("length-") and {OURS, reference} <= set(both):
            found[case] = within_rounds(both[reference], both[OURS]).median
    return found


def means(results: dict[str, Any]) -> list[list[str]]:
    """Geometric means of a reference's seconds over those of attendax, of the cases that both could do."""
    rows = []
    for reference in REFERENCES:
        for measure in TITLES:
            found = list(ratios(results, reference, measure).values())
            if found:
                spans = f"{min(found):.2f} to {max(found):.2f}"
                rows.append([reference, TITLES[measure], f"{geometric_mean(found):.2f}", spans, str(len(found))])
    return rows


def within_rounds(one: dict[str, Any], other: dict[str, Any]) -> Spread:
    return spread([a / b for a, b in zip(one["seconds"], other["seconds"], strict=True)])


MEANS_HEADER = ("reference", "measure", "its time over attendax's, geometric mean", "from, to", "cases")


def about_rows(results: dict[str, Any]) -> list[list[str]]:
    about = results["about"]
    commit = "not in a clone" if about["commit"] is None else about["commit"][:12]
    priority = ", with real-time priority" if about["real_time_priority"] else ""
    caches = ", ".join(f"{name} {size / 2**20:.3g} MiB" for name, size in about["cache_bytes"].items())
    rows = [
        ["date", about["date"]],
        ["commit", commit + (" with uncommitted changes" if about["uncommitted_changes"] else "")],
        ["processor", f"{about['processor']}; {about['system']}"],
        ["device", about["device"]],
        *([["native kernel", about["native"].removeprefix("native kernel: ")]] if "native" in about else []),
        ["threads of every contestant", f"{about['threads']}{priority}"],
        ["memory", f"{about['memory_bytes'] / 2**30:.0f} GiB; caches {caches or 'unknown'}"],
        ["dtype", f"{about['dtype']}; more than {TOLERANCE[about['dtype']]:.0e} off is wrong"],
        ["matrix product at best", f"{about['matmul_gflops']:.0f} GFLOP/s, measured in this run"],
        ["memory traffic at best", f"{about['copy_gbytes']:.1f} GB/s, measured in this run"],
        ["versions", ", ".join(f"{name} {version}" for name, version in about["versions"].items())],
        ["took", f"{results['took_s']:.0f} s"],
    ]
    return rows


def markdown(results: dict[str, Any]) -> str:
    """The whole report."""
    parts = ["# attendax bench\n", table(("", ""), about_rows(results))]
    statuses = Counter(record["status"] for record in results["records"])
    counted = ", ".join(f"{number} {status}" for status, number in statuses.items())
    parts.append(f"{len(results['records'])} attempts: {counted or 'none'}.\n")
    if results["left_out"]:
        parts.append("Left out:\n\n" + "".join(f"- {what}\n" for what in results["left_out"]))
    if means(results):
        parts += ["## Against the references\n\nAbove 1, attendax is faster.\n", table(MEANS_HEADER, means(results))]
    parts.append("## Every case\n")
    for (case, measure), records in groups(results).items():
        parts.append(f"### {title(case, measure, results)}\n\n{results['cases'][case]['source']}.\n")
        parts.append(table(HEADER, [row(record) for record in records]))
        parts.append("".join(f"- {remark}\n" for remark in remarks(records)))
    if results.get("encoders"):
        import encoders

        parts.append(encoders.markdown(results["encoders"]))
    parts += [compiling.markdown(results["compile"])] if results.get("compile") else []
    parts += [cores.markdown(results["cores"])] if results.get("cores") else []
    parts += comparison(results["against"]) if results.get("against") else []
    return "\n".join(parts)


AGAINST_HEADER = ("case", "measure", "this tree, ms", "the other, ms", "this / other", "quartiles", "remark")


def against_row(record: dict[str, Any]) -> list[str]:
    """A case of ``--against``: the ratio within rounds, and whatever kept it from being measured."""
    if record["status"] != "timed":
        return [record["case"], record["measure"], "", "", "", "", record["reason"]]
    here, there = (f"{1e3 * record[key]:.3g}" for key in ("this_s", "other_s"))
    median, low, high = record["ratio"]
    thrown = f"{record['rounds_thrown_away']} rounds thrown away" if record["rounds_thrown_away"] else ""
    return [record["case"], record["measure"], here, there, f"{median:.3f}", f"{low:.3f} to {high:.3f}", thrown]


def comparison(against: dict[str, Any]) -> list[str]:
    rows = [against_row(record) for record in against["records"]]
    return [f"## This tree against {against['revision']} ({against['commit'][:12]})\n", table(AGAINST_HEADER, rows)]
