"""The run on a GPU as a table and a picture."""

from statistics import median
from typing import Any

import cores
from tables import table

TITLES = {"forward": "forward", "backward": "forward and backward"}
HEADER = ("case", "contestant", "ms", "TFLOP/s", "of peak", "backward alone, ms", "TFLOP/s", "temporaries MiB")
HEADER += ("compile s", "error")


def markdown(found: dict[str, Any]) -> str:
    about = found["about"]
    parts = ["# The run on a GPU\n", table(("", ""), about_rows(found))]
    if about.get("platform", "gpu") != "gpu":
        parts.append("**Not a GPU**: this run only shows that the program works.\n")
    if found["left_out"]:
        parts.append("Left out, or failed:\n\n" + "".join(f"- {what}\n" for what in found["left_out"]))
    if found.get("checks"):
        right = sum(record["status"] == "right" for record in found["checks"])
        parts.append(f"## The kernels of Triton\n\n{right} of {len(found['checks'])} calls are right, bits and all.\n")
        parts += [
            f"- {r['call']}, {r['dtype']}, widths {r['widths']}: {fault}\n"
            for r in found["checks"] for fault in r["faults"]
        ]  # fmt: skip
    if found.get("candidates"):
        parts.append("Milliseconds of a causal call of 8,192 tokens in other tiles:\n")
        parts.append(table(("kernel", "width", "queries, keys, warps, stages", "ms"), candidates(found["candidates"])))
    parts.append("## The kit, bfloat16\n\nProducts of float32 at full precision (no TF32).\n")
    rows = [[k["backend"], f"{k['judged']} of {k['of']}", counts(k), str(len(k["faults"]))] for k in found["kit"]]
    parts.append(table(("backend", "cases", "verdicts", "faults"), rows))
    parts += [f"- {k['backend']}: {fault}\n" for k in found["kit"] for fault in k["faults"]]
    for measure, title in TITLES.items():
        timed = [r for r in found["speed"] if r["measure"] == measure and r["status"] == "timed"]
        parts.append(f"## Speed, {title}\n\nMasked pairs are not work; the peak is that of a bfloat16 product.\n")
        parts.append("Compile times are of all contestants of a case side by side.\n")
        parts.append(table(HEADER, [row(r, found["speed"]) for r in timed]))
        others = [r for r in found["speed"] if r["measure"] == measure and r["status"] != "timed"]
        parts.append("".join(f"- {r['case']}, {r['contestant']}: {r['status']}: {r['reason']}\n" for r in others))
    if found.get("tiles"):
        parts.append("## Tiles of other sizes\n\nMilliseconds. Products of narrow arrays take operands of 11 bits.\n")
        parts.append(table(("case", "rows and columns", "MiB", "products", *TITLES.values()), tiles(found["tiles"])))
    if found["cores"].get("records"):
        parts.append(cores.markdown(found["cores"]))
    return "\n".join(parts)


def candidates(records: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each candidate, with the time of its forward, or of forward and gradient."""
    return [
        [f"{r['kernel']}, {TITLES[r['measure']]}", str(r["width"]),
         ", ".join(map(str, r["tiles"])) + (" (default)" if r["default"] else ""),
         f"{1e3 * median(r['seconds']):.3g}" if r["status"] == "timed" else f"{r['status']}: {r['reason']}"]
        for r in records
    ]  # fmt: skip


def tiles(records: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each size, with the median of each measure."""
    return [
        [r["case"], str(r["rows"]), str(r["mebibytes"]), r["products"] + (" (default)" if r["default"] else "")]
        + [f"{1e3 * median(r[measure]['seconds']):.3g}" for measure in TITLES]
        for r in records
    ]


def about_rows(found: dict[str, Any]) -> list[list[str]]:
    about = found["about"]
    keys = ("date", "commit", "uncommitted_changes", "device", "platform", "compute_capability", "processor", "threads")
    keys += ("put_together",)
    rows = [[key.replace("_", " "), str(about[key])] for key in keys if key in about]
    if "peak_tflops" in about:
        rows.append(["bfloat16 product at best", f"{about['peak_tflops']:.3g} TFLOP/s, measured in this run"])
    if "versions" in about:
        rows.append(["versions", ", ".join(f"{name} {version}" for name, version in about["versions"].items())])
    return [*rows, ["took", f"{found['took_s']:.0f} s"]]


def counts(kit: dict[str, Any]) -> str:
    return ", ".join(f"{number} {verdict}" for verdict, number in kit["counts"].items())


def row(record: dict[str, Any], records: list[dict[str, Any]]) -> list[str]:
    """The cells of a contestant. Its backward alone is the difference to its forward."""
    alone = alone_tflops = ""
    if record["measure"] == "backward":
        same = (r for r in records if r["status"] == "timed" and r["measure"] == "forward")
        forward = [r for r in same if (r["case"], r["contestant"]) == (record["case"], record["contestant"])]
        if forward and (seconds := record["median_s"] - forward[0]["median_s"]) > 0:
            work = 10 * record["shape"]["D"] * record["pairs"]
            alone, alone_tflops = f"{1e3 * seconds:.3g}", f"{work / seconds / 1e12:.3g}"
    share, used = record["share_of_peak"], record["temporary_bytes"]
    return [
        record["case"],
        record["contestant"],
        f"{1e3 * record['median_s']:.3g}",
        f"{record['tflops']:.3g}",
        "" if share is None else f"{share:.0%}",
        alone,
        alone_tflops,
        "" if used is None else f"{used / 2**20:.1f}",
        f"{record['compile_s']:.1f}",
        f"{record['error']:.0e}",
    ]


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """TFLOP/s of every contestant in every case, beside the peak; nothing where nothing was timed."""
    timed = [r for r in found["speed"] if r["status"] == "timed"]
    if not timed:
        return {}
    from matplotlib.figure import Figure

    names, cases = (list(dict.fromkeys(r[key] for r in timed)) for key in ("contestant", "case"))
    figure = Figure((10, 1.5 + 0.35 * len(cases)), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(TITLES), squeeze=False, sharey=True)[0]
    for panel, (measure, title) in zip(panels, TITLES.items(), strict=True):
        for k, name in enumerate(names):
            own = [r for r in timed if (r["contestant"], r["measure"]) == (name, measure)]
            places = [cases.index(r["case"]) for r in own]
            panel.plot([r["tflops"] for r in own], places, "osD^v*"[k % 6], label=name)
        if peak := found["about"].get("peak_tflops"):
            panel.axvline(peak, color="black", linewidth=1)
        panel.set_xscale("log")
        panel.set_xlabel("TFLOP/s (line: the bfloat16 product)")
        panel.set_title(title)
        panel.grid(True, color="#dddddd")
    panels[0].set_yticks(range(len(cases)), cases)
    panels[0].invert_yaxis()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(f"{found['about'].get('device', 'unknown device')}, bfloat16")
    return {"gpu": figure}
