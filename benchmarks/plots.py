"""The pictures of a run: speed beside the peers, roofline, cost against length; colours by Okabe and Ito."""

from typing import Any

from contestants import OURS
from report import groups, within_rounds

COLOURS = {
    "attendax": "#0072B2",
    "attendax-dense": "#56B4E9",
    "attendax-tiles": "#56B4E9",
    "jax.nn": "#D55E00",
    "flax": "#E69F00",
    "keras": "#F0E442",
    "memory-efficient": "#009E73",
    "torch-sdpa": "#CC79A7",
    "torch-flex": "#882255",
    "numpy": "#666666",
}
MARKERS = dict(zip(COLOURS, "osDv^<>PXd", strict=True))
OTHER = "#000000"
IN_ROOFLINE = (OURS, "jax.nn", "jax.nn-cudnn", "torch-sdpa", "torch-flex")  # more would hide each other
SIZE, DOTS_PER_INCH = 10.0, 150
GRID = {"color": "#dddddd", "linewidth": 0.6}


def figures(results: dict[str, Any]) -> dict[str, Any]:
    """The pictures that the results are enough for, by name."""
    timed = [r for r in results["records"] if r["status"] == "timed"]
    lengths = [r for r in timed if r["case"].startswith("length-") and r["measure"] == "forward"]
    shapes = [r for r in timed if not r["case"].startswith("length-") and r["contestant"] in IN_ROOFLINE]
    drawn = {}
    if any(r["contestant"] == OURS and r["measure"] in ("forward", "backward") for r in shapes):
        drawn["speed"] = speed(results)
    if shapes:
        drawn["roofline"] = roofline(results, shapes)
    if lengths:
        drawn["lengths"] = cost_against_length(results, lengths)
    return drawn


def new_figure(results: dict[str, Any], title: str, *, columns: int, height: float, **options: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure((SIZE, height), dpi=DOTS_PER_INCH, layout="constrained")
    panels = figure.subplots(1, columns, squeeze=False, **options)[0]
    about = results["about"]
    commit = "no commit" if about["commit"] is None else f"commit {about['commit'][:7]}"
    commit += "+" if about["uncommitted_changes"] else ""
    where = about["processor"] if about["device"] == "cpu" else about["device"]
    under = f"{where}, {about['threads']} threads, {about['dtype']}, {commit}, {about['date'][:10]}"
    figure.suptitle(f"{title}\n{under}", fontsize=11)
    for panel in panels:
        panel.grid(True, which="major", **GRID)
        panel.set_axisbelow(True)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    return figure, panels


def style(name: str, *, size: float = 7.0) -> dict[str, Any]:
    colour = COLOURS.get(name, OTHER)
    edge = {"markeredgecolor": "#333333", "markeredgewidth": 0.5}
    return {"color": colour, "marker": MARKERS.get(name, "*"), "markersize": size, "label": name} | edge


def legend(figure: Any, panels: Any) -> None:
    """One legend for all panels, below them, in the order of the contestants."""
    found = {}
    for panel in panels:
        handles, names = panel.get_legend_handles_labels()
        found |= {name: found.get(name, handle) for handle, name in zip(handles, names, strict=True)}
    order = sorted(found, key=lambda name: list(COLOURS).index(name) if name in COLOURS else len(COLOURS))
    figure.legend([found[n] for n in order], order, loc="outside lower center", ncols=6, frameon=False, fontsize=9)


def speed(results: dict[str, Any]) -> Any:
    """Seconds of each contestant in times of attendax's: right of 1 it is slower."""
    measures = ("forward", "backward")
    cases = list(dict.fromkeys(c for c, m in groups(results) if not c.startswith("length-") and m in measures))
    title = "Time beside attendax (1 = as fast; to the right: slower)"
    figure, panels = new_figure(results, title, columns=2, height=1.9 + 0.3 * len(cases), sharey=True, sharex=True)
    for panel, measure, name in zip(panels, measures, ("forward", "forward + backward"), strict=True):
        for (case, direction), records in groups(results).items():
            timed = {r["contestant"]: r for r in records if r["status"] == "timed"}
            if direction != measure or case not in cases or OURS not in timed:
                continue
            for contestant, record in timed.items():
                ratio, front = within_rounds(record, timed[OURS]).median, 3 + (contestant == OURS)
                panel.plot(ratio, cases.index(case), linestyle="none", zorder=front, **style(contestant))
        panel.axvline(1.0, color=COLOURS[OURS], linewidth=1.2)
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("time / time of attendax", fontsize=9)
    panels[0].set_yticks(range(len(cases)), cases, fontsize=9)
    panels[0].set_ylim(len(cases) - 0.5, -0.5)
    legend(figure, panels)
    return figure


def roofline(results: dict[str, Any], records: list[dict[str, Any]]) -> Any:
    """The share of what the machine can do, against the FLOPs for each byte that must be moved."""
    measures = ("forward", "backward")
    about = results["about"]
    title = "Roofline: the products of attention against the machine's best"
    figure, panels = new_figure(results, title, columns=2, height=4.8, sharey=True, sharex=True)
    for panel, measure, name in zip(panels, measures, ("forward", "forward + backward"), strict=True):
        chosen = [r for r in records if r["measure"] == measure]
        intensities = [intensity(results["cases"][r["case"]]) for r in chosen] or [1.0]
        low, high = min(intensities) / 2, max(intensities) * 2
        knee = about["matmul_gflops"] / about["copy_gbytes"]
        ends = [low, *([knee] if low < knee < high else []), high]
        panel.plot(ends, [min(about["matmul_gflops"], about["copy_gbytes"] * x) for x in ends], color="black")
        for contestant in dict.fromkeys(r["contestant"] for r in chosen):
            own = [r for r in chosen if r["contestant"] == contestant]
            places = [intensity(results["cases"][r["case"]]) for r in own]
            looks = style(contestant, size=6.0 + 1.5 * (contestant == OURS))
            panel.plot(places, [r["gflops"] for r in own], linestyle="none", zorder=3 + (contestant == OURS), **looks)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("FLOPs for each byte of query, key, value and result (forward)", fontsize=9)
        top = f"matrix product: {about['matmul_gflops']:.0f} GFLOP/s"
        panel.text(high, about["matmul_gflops"] * 1.05, top, fontsize=8, ha="right", va="bottom")
    panels[0].set_ylabel("GFLOP/s", fontsize=9)
    legend(figure, panels)
    return figure


def intensity(case: dict[str, Any]) -> float:
    return case["flops"]["forward"] / case["compulsory_bytes"]


def cost_against_length(results: dict[str, Any], records: list[dict[str, Any]]) -> Any:
    """Seconds and temporaries of the forward, both axes logarithmic."""
    figure, panels = new_figure(results, "Cost against length, forward, 2 heads of 64", columns=2, height=4.6)
    for contestant in dict.fromkeys(r["contestant"] for r in records):
        own = [r for r in records if r["contestant"] == contestant]
        lengths = [results["cases"][r["case"]]["T"] for r in own]
        panels[0].plot(lengths, [1e3 * r["median_s"] for r in own], linewidth=1.5, **style(contestant, size=6.0))
        known = [(T, r["temporary_bytes"] / 2**20) for T, r in zip(lengths, own, strict=True) if r["temporary_bytes"]]
        if known:
            panels[1].plot(*zip(*known, strict=True), linewidth=1.5, **style(contestant, size=6.0))
    for panel, label in zip(panels, ("time, ms", "temporaries, MiB (XLA's analysis; torch does not say)"), strict=True):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("queries and keys", fontsize=9)
        panel.set_ylabel(label, fontsize=9)
        panel.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        panel.tick_params(labelsize=8)
    legend(figure, panels)
    return figure
