"""``attendax bench``: what is measured, in which order, for how long; and where the results go."""

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import against
import attention
import compiling
import machine
import report
from contestants import OURS, PEERS, SAME_ON_CPU, SLOW_TO_COMPILE
from screen import terminal
from shapes import EVERY_DIRECTION, LENGTHS, SHAPES, SHORT, Shape
from workload import MEASURES, Case

WRONG, INTERRUPTED = 1, 130  # exit statuses, as the command line has them
LENGTH_CONTESTANTS = (OURS, "jax.nn", "memory-efficient", "torch-sdpa")


class BadRequest(ValueError):
    """Options that cannot be met; one line."""


class Grid(NamedTuple):
    """How much is measured: rounds, seconds for the rounds of a case, and when no new case is begun."""

    rounds: int
    budget_s: float
    limit_s: float | None


SHORT_GRID, FULL_GRID = Grid(7, 2.0, 80.0), Grid(11, 3.5, 900.0)


class Plan(NamedTuple):
    grid: Grid
    todo: list[tuple[str, str]]  # case, measure
    names: list[str]  # contestants that are installed
    left_out: list[str]
    against: tuple[str, str] | None = None  # as it was named, and the commit that it is
    compiles: bool = False  # what is measured is not how the cases run but how they compile


def main(options: argparse.Namespace) -> int:
    """Run what was asked for.

    Raises:
        BadRequest: it cannot be met; nothing was measured.
    """
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
    ours += [r for r in results.get("compile", ()) if r["contestant"] == OURS]
    return WRONG if any(r["status"] in ("wrong", "failed") for r in ours) else 0


def planned(options: argparse.Namespace) -> Plan:
    """The cases, the measures and the contestants; every name is known."""
    known = SHAPES | LENGTHS
    check_names("--shapes", options.shapes, known)
    check_names("--measures", options.measures, MEASURES)
    check_names("--contestants", options.contestants, PEERS)
    if options.rounds is not None and options.rounds < 1:
        raise BadRequest(f"--rounds {options.rounds}: at least 1")
    grid = FULL_GRID if options.full else SHORT_GRID
    if options.shapes or options.lengths or options.encoders:
        grid = grid._replace(limit_s=FULL_GRID.limit_s if options.full else None)
    if options.rounds:
        grid = grid._replace(rounds=options.rounds)
    shapes = options.shapes or (list(SHAPES) if options.full else list(SHORT))
    measures = options.measures or ["forward", "backward"]
    todo = []
    for shape in shapes:
        every = options.full and not options.measures and shape in EVERY_DIRECTION
        todo += [(shape, measure) for measure in (MEASURES if every else measures)]
    if (options.full and not options.shapes) or options.lengths:
        todo += [(shape, "forward") for shape in LENGTHS if shape not in shapes]
    if options.compile:
        return planned_to_compile(options, grid)
    todo.sort(key=lambda one: one[0].startswith("long-"))  # what takes longest comes last, where the time may be up
    if options.against:
        if options.contestants or options.encoders:
            raise BadRequest("--against compares attendax with itself: no --contestants, no --encoders")
        try:
            commit = against.commit_of(options.against)
        except ValueError as error:
            raise BadRequest(f"--against {options.against}: {error}") from error
        return Plan(grid, todo, [OURS], [], (options.against, commit))
    names, left_out = contestants(options)
    return Plan(grid, todo, names, left_out)


def planned_to_compile(options: argparse.Namespace, grid: Grid) -> Plan:
    """Every shape unless some are named, forward and with the gradient."""
    if options.contestants or options.encoders or options.lengths or options.against:
        said = "no --contestants, --encoders, --lengths, --against"
        raise BadRequest(f"--compile compares {' with '.join(compiling.CONTESTANTS)}: {said}")
    grid = Grid(options.rounds or compiling.ROUNDS, grid.budget_s, None)
    measures = options.measures or ["forward", "backward"]
    todo = [(shape, measure) for shape in options.shapes or SHAPES for measure in measures]
    return Plan(grid, todo, list(compiling.CONTESTANTS), [], compiles=True)


def check_names(option: str, given: list[str] | None, known: Any) -> None:
    for name in given or ():
        if name not in known:
            raise BadRequest(f"{option} {name}: unknown; there are {', '.join(known)}")


def contestants(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Those who take part, and of the others why not."""
    import jax

    names, left_out = [], []
    for name, peer in PEERS.items():
        if options.contestants and name not in options.contestants:
            continue
        if peer.gpu_only and jax.default_backend() == "cpu":
            reason = "for a GPU only"
        elif not peer.is_installed():
            reason = f"{peer.package} is not installed"
        elif not options.contestants and name in SAME_ON_CPU and jax.default_backend() == "cpu":
            reason = f"on a CPU the same as {OURS}; --contestants {OURS} {name} takes it in"
        elif not options.contestants and not options.full and name in SLOW_TO_COMPILE:
            reason = "takes too long to compile for the short grid; --full or --contestants takes it in"
        else:
            names.append(name)
            continue
        left_out.append(f"{name}: {reason}")
    if not names:
        raise BadRequest(f"--contestants: none of them can take part: {'; '.join(left_out)}")
    return names, left_out


def output_folder(path: str | None) -> Path | None:
    """The folder of the results, made now: after twenty minutes is too late to find that it cannot be."""
    if path is None:
        return None
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
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
        if options.against:
            against_commit(plan, options.dtype, results, screen)
            return False
        if plan.compiles:
            compile_times(plan, options.dtype, results, screen, folder)
            return False
        cases(plan, options.dtype, results, screen, start, folder)
        if options.encoders or (options.full and not options.shapes):
            encoder_level(plan.grid, results, screen)
    except KeyboardInterrupt:
        results["left_out"].append("interrupted: what is missing was not measured")
        return True
    finally:
        results["took_s"] = time.perf_counter() - start
    return False


def against_commit(plan: Plan, dtype: str, results: dict[str, Any], screen: Any) -> None:
    """Every case on this tree and on the other commit."""
    assert plan.against is not None
    revision, commit = plan.against
    results["against"] = found = {"revision": revision, "commit": commit, "records": []}
    with against.workers(commit) as sides:
        for number, (name, direction) in enumerate(plan.todo):
            screen.at(number, len(plan.todo), f"{name} {direction}")
            options = {"rounds": plan.grid.rounds, "budget_s": plan.grid.budget_s}
            found["records"].append(against.compare(sides, name, direction, dtype, **options))
            row = report.against_row(found["records"][-1])
            screen.print_table(f"this tree / {revision}", report.AGAINST_HEADER, [row], [])


def compile_times(plan: Plan, dtype: str, results: dict[str, Any], screen: Any, folder: Path | None) -> None:
    """Seconds to trace, lower and compile every case."""
    known: dict[str, Shape] = SHAPES | LENGTHS
    results["compile"] = []
    with compiling.from_cold():
        for number, (name, direction) in enumerate(plan.todo):
            screen.at(number, len(plan.todo), f"{name} {direction}")
            found = compiling.run(Case(name, known[name], dtype), direction, plan.grid.rounds, screen.doing)
            results["compile"] += found
            if folder:
                write_json(results, folder)
            screen.print_table("", compiling.HEADER, compiling.rows(found), compiling.remarks(found))
    screen.print_table(compiling.ABOVE_1, compiling.MEANS_HEADER, compiling.means(results["compile"]), [])


def cases(plan: Plan, dtype: str, results: dict[str, Any], screen: Any, start: float, folder: Path | None) -> None:
    """Every case; each is written as soon as it is measured, so that a run that is killed loses only the last."""
    known: dict[str, Shape] = SHAPES | LENGTHS
    judges = None
    for number, (name, direction) in enumerate(plan.todo):
        if plan.grid.limit_s is not None and time.perf_counter() - start > plan.grid.limit_s:
            results["left_out"].append(f"{name}, {direction}: the time of the grid was up")
            continue
        if judges is None or judges.case.name != name:
            judges = attention.Judges(Case(name, known[name], dtype))
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
        )
        results["records"] += found
        if folder:
            write_json(results, folder)
        screen.show(name, direction, found, results)


def described(case: Case) -> dict[str, Any]:
    flops = {measure: case.flops(measure) for measure in MEASURES}
    counted = {"pairs": case.pairs, "compulsory_bytes": case.compulsory_bytes, "flops": flops}
    return case.shape._asdict() | counted


def encoder_level(grid: Grid, results: dict[str, Any], screen: Any) -> None:
    try:
        import encoders
    except ModuleNotFoundError as error:
        results["left_out"].append(f"encoders: {error}")
        return
    screen.doing("encoders")
    results["encoders"] = encoders.run(grid.rounds, screen.doing)
    screen.out.print(encoders.markdown(results["encoders"]), markup=False)


def write_json(results: dict[str, Any], folder: Path) -> None:
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def write(results: dict[str, Any], folder: Path) -> None:
    """``results.json``, ``results.md``, and the plots that the results are enough for, as PNG and SVG."""
    import plots

    write_json(results, folder)
    (folder / "results.md").write_text(report.markdown(results), encoding="utf-8")
    for name, figure in plots.figures(results).items():
        for kind in ("png", "svg"):
            figure.savefig(folder / f"{name}.{kind}")
