"""``python -m benchmarks bench``: what is measured, in which order, for how long; and where the results go."""

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import against
import attention
import compiling
import cores
import kernels
import machine
import report
import tables
from attendax import writing
from contestants import OURS
from harness import Clock, Unable, keep_freed_memory
from planning import BadRequest, Grid, Plan, alone, check_names, known, planned
from screen import terminal
from workload import MEASURES, Case

WRONG, INTERRUPTED = 1, 130  # exit statuses, as the command line has them
LENGTH_CONTESTANTS = (OURS, "jax.nn", "memory-efficient", "torch-sdpa")


def main(options: argparse.Namespace) -> int:
    """Run what was asked for.

    Raises:
        BadRequest: it cannot be met; nothing was measured.
    """
    keep_freed_memory()
    if options.device == "gpu":
        return on_gpu(options)
    if options.devices:
        return on_devices(options)
    if options.profile:
        return profile(options)
    plan = planned(options)
    folder = output_folder(options.output)
    results = empty(options, plan)
    with terminal() as screen:
        stopped = measure(plan, options, results, screen, folder)
        screen.summary(results)
    if folder:
        write(results, folder)
    if stopped:
        return INTERRUPTED
    ours = [r for r in results["records"] if r["contestant"].startswith(OURS)]
    ours += results["against"]["records"] if "against" in results else []
    others = *results.get("compile", ()), *results.get("cores", {}).get("records", ())
    ours += [record for record in others if record["contestant"] == OURS]
    return WRONG if any(r["status"] in ("wrong", "failed") for r in ours) else 0


def on_gpu(options: argparse.Namespace) -> int:
    """The run on a GPU (``gpu.py``), which has cases of its own."""
    import gpu

    alone("--device gpu", "runs cases of its own", options, goes_with=("output",))
    try:
        return gpu.main(options.output)
    except (ValueError, OSError) as error:
        raise BadRequest(f"--device gpu: {error}") from error


def on_devices(options: argparse.Namespace) -> int:
    """The cost of a sequence on several devices (``devices.py``)."""
    import devices

    alone("--devices", "measures a sequence on several devices", options, goes_with=("output",))
    return devices.main(options.output)


def profile(options: argparse.Namespace) -> int:
    """The kernels of one shape, on the screen."""
    name, dtype = options.profile, options.dtype
    alone("--profile", "takes one shape apart", options, goes_with=("profile", "measures", "dtype"))
    check_names("--profile", [name], known())
    check_names("--measures", options.measures, MEASURES)
    try:
        own = cores.available()
    except ValueError as error:
        raise BadRequest(f"--profile: {error}") from error
    with terminal() as screen:
        for direction in options.measures or ["forward", "backward"]:
            screen.doing(f"{name} {direction}")
            try:
                found = kernels.compare(Case(name, known()[name], dtype), direction, own)
            except Unable as reason:
                screen.out.print(f"{name}, {direction}: {reason}", markup=False)
                return WRONG
            header = [column.format(cores=len(own)) for column in kernels.HEADER]
            screen.print_table(f"{name}, {report.TITLES[direction]}", header, kernels.rows(found), [])
    return 0


def output_folder(path: str | None) -> Path | None:
    """The folder of the results, made now: after twenty minutes is too late to find that it cannot be."""
    if path is None:
        return None
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BadRequest(f"--output {path}: {error.strerror}") from error
    return folder


def empty(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """The results before anything was measured."""
    grid = plan.grid._asdict() | {"name": "full" if options.full else "short"}
    sections = {"cases": {}, "records": [], "left_out": list(plan.left_out), "took_s": 0.0}
    return {"about": machine.about(options.dtype), "grid": grid, "contestants": plan.names} | sections


def measure(plan: Plan, options: argparse.Namespace, results: dict[str, Any], screen: Any, folder: Path | None) -> bool:
    """Everything on the plan, into ``results``; True when it was interrupted, which keeps what was measured."""
    start = time.perf_counter()
    try:
        if plan.kind != "cases":
            other = {"against": against_commit, "compile": compile_times, "cores": on_cores}[plan.kind]
            other(plan, options.dtype, results, screen, folder)
            return False
        with cores.near() as clock:
            cases(plan, options.dtype, results, screen, start, folder, clock)
            if options.encoders or (options.full and not options.shapes):
                encoder_level(plan.grid, results, screen, clock)
    except KeyboardInterrupt:
        results["left_out"].append("interrupted: what is missing was not measured")
        return True
    finally:
        results["took_s"] = time.perf_counter() - start
    return False


def against_commit(plan: Plan, dtype: str, results: dict[str, Any], screen: Any, folder: Path | None) -> None:
    """Measure every case on this tree and on the other commit."""
    assert plan.against is not None
    revision, commit = plan.against
    results["against"] = found = {"revision": revision, "commit": commit, "records": []}
    with against.workers(commit) as sides, cores.near(list(sides.values())) as clock:
        for number, (name, direction) in enumerate(plan.todo):
            screen.at(number, len(plan.todo), f"{name} {direction}")
            options = {"rounds": plan.grid.rounds, "budget_s": plan.grid.budget_s, "clock": clock}
            found["records"].append(against.compare(sides, name, direction, dtype, **options))
            if folder:
                write_json(results, folder)
            row = report.against_row(found["records"][-1])
            screen.print_table(f"this tree / {revision}", report.AGAINST_HEADER, [row], [])


def compile_times(plan: Plan, dtype: str, results: dict[str, Any], screen: Any, folder: Path | None) -> None:
    """Seconds to trace, lower and compile every case."""
    results["compile"] = []
    with compiling.from_cold():
        for number, (name, direction) in enumerate(plan.todo):
            screen.at(number, len(plan.todo), f"{name} {direction}")
            case = Case(name, (known() | compiling.MODELS | compiling.SECOND)[name], dtype)
            found = compiling.run(case, direction, plan.grid.rounds, screen.doing)
            results["compile"] += found
            if folder:
                write_json(results, folder)
            screen.print_table("", compiling.HEADER, compiling.rows(found), tables.not_timed(found))
    screen.print_table(compiling.ABOVE_1, compiling.MEANS_HEADER, compiling.means(results["compile"]), [])


def on_cores(plan: Plan, dtype: str, results: dict[str, Any], screen: Any, folder: Path | None) -> None:
    """Measure every case on one core and on more."""
    with cores.workers(cores.available()) as (sides, clock):
        counts, records = list(sides), []
        results["cores"] = {"counts": counts, "records": records}
        for number, (name, direction) in enumerate(plan.todo):
            screen.at(number, len(plan.todo), f"{name} {direction}")
            options = {"rounds": plan.grid.rounds, "budget_s": plan.grid.budget_s}
            found = cores.run(sides, name, direction, dtype, screen.doing, clock, **options)
            records += found
            if folder:
                write_json(results, folder)
            screen.print_table("", cores.header(counts), cores.rows(found, counts), tables.not_timed(found))
    screen.print_table("geometric means", cores.header(counts), cores.means(records, counts), [])


def cases(
    plan: Plan, dtype: str, results: dict[str, Any], screen: Any, start: float, folder: Path | None, clock: Clock
) -> None:
    """Measure every case; write each as soon as it is measured, so that a run that is killed loses only the last."""
    judges = None
    for number, (name, direction) in enumerate(plan.todo):
        if plan.grid.limit_s is not None and time.perf_counter() - start > plan.grid.limit_s:
            results["left_out"].append(f"{name}, {direction}: the time of the grid was up")
            continue
        if judges is None or judges.case.name != name:
            judges = attention.Judges(Case(name, known()[name], dtype))
            gc.collect()
        results["cases"].setdefault(name, described(judges.case))
        names = [n for n in plan.names if not name.startswith("length-") or n in LENGTH_CONTESTANTS]
        screen.at(number, len(plan.todo), f"{name} {direction}")
        found = attention.run(
            judges,
            direction,
            names,
            rounds=plan.grid.rounds,
            budget_s=plan.grid.budget_s,
            matmul_gflops=results["about"]["matmul_gflops"],
            progress=screen.doing,
            clock=clock,
        )
        results["records"] += found
        if folder:
            write_json(results, folder)
        screen.show(name, direction, found, results)


def described(case: Case) -> dict[str, Any]:
    flops = {measure: case.flops(measure) for measure in MEASURES}
    counted = {"pairs": case.pairs, "compulsory_bytes": case.compulsory_bytes, "flops": flops}
    return case.shape._asdict() | counted


def encoder_level(grid: Grid, results: dict[str, Any], screen: Any, clock: Clock) -> None:
    try:
        import encoders
    except ModuleNotFoundError as error:
        results["left_out"].append(f"encoders: {error}")
        return
    screen.doing("encoders")
    results["encoders"] = {"about": results["about"]} | encoders.run(grid.rounds, screen.doing, clock=clock)
    screen.out.print(encoders.markdown(results["encoders"]), markup=False)


def write_json(results: dict[str, Any], folder: Path) -> None:
    writing.write(folder / "results.json", json.dumps(results, indent=1) + "\n")


def write(results: dict[str, Any], folder: Path) -> None:
    """``results.json``, ``results.md``, and the plots that the results are enough for, as PNG and SVG."""
    import plots

    write_json(results, folder)
    writing.write(folder / "results.md", report.markdown(results))
    for name, figure in plots.figures(results).items():
        for kind in ("png", "svg"):
            with writing.whole(folder / f"{name}.{kind}") as file:
                figure.savefig(file, format=kind)
