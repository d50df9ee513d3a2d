"""The request to ``python -m benchmarks bench``: which cases, in which directions, by whom, for how long."""

import argparse
from typing import Any, NamedTuple

import against
import compiling
import cores
from attendax.kernels.backends import default
from attendax.legible import did_you_mean
from contestants import OURS, PEERS, SLOW_TO_COMPILE, TILES
from shapes import EVERY_DIRECTION, LENGTHS, SHAPES, SHORT, Shape
from workload import MEASURES


class BadRequest(ValueError):
    """Options that cannot be met; one line."""


class Grid(NamedTuple):
    """The amount that is measured: rounds, seconds for the rounds of a case, and when no new case is begun."""

    rounds: int
    budget_s: float
    limit_s: float | None


GOES_WITH_SHAPES = ("shapes", "measures", "dtype", "rounds", "output", "full", "short")
SHORT_GRID, FULL_GRID = Grid(7, 2.0, 80.0), Grid(11, 3.5, 900.0)


class Plan(NamedTuple):
    grid: Grid
    todo: list[tuple[str, str]]  # case, measure
    names: list[str]  # contestants that are installed
    left_out: list[str]
    against: tuple[str, str] | None = None  # as it was named, and the commit that it is
    kind: str = "cases"  # or "against", "compile", "cores": what else is measured of the cases


def known() -> dict[str, Shape]:
    """Names of all shapes that have one."""
    return SHAPES | LENGTHS


def planned(options: argparse.Namespace) -> Plan:
    """The cases, the measures and the contestants; every name is known."""
    check_names("--shapes", options.shapes, known())
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
    if options.cores:
        return planned_on_cores(options, grid)
    todo.sort(key=lambda one: one[0].startswith("long-"))  # what takes longest comes last, where the time may be up
    if options.against:
        alone("--against", "compares attendax with itself", options, (*GOES_WITH_SHAPES, "lengths"))
        try:
            commit = against.commit_of(options.against)
        except ValueError as error:
            raise BadRequest(f"--against {options.against}: {error}") from error
        return Plan(grid, todo, [OURS], [], (options.against, commit), "against")
    names, left_out = contestants(options)
    return Plan(grid, todo, names, left_out)


def planned_to_compile(options: argparse.Namespace, grid: Grid) -> Plan:
    """List every shape unless some are named, forward and with the gradient; then a model, and a second derivative."""
    alone("--compile", f"compares {' with '.join(compiling.CONTESTANTS)}", options, GOES_WITH_SHAPES)
    grid = Grid(options.rounds or compiling.ROUNDS, grid.budget_s, None)
    measures = options.measures or ["forward", "backward"]
    todo = [(shape, measure) for shape in options.shapes or SHAPES for measure in measures]
    if "backward" in measures and not options.shapes:
        todo += [(model, "backward") for model in compiling.MODELS]
        todo += [(short, "hvp") for short in compiling.SECOND]
    return Plan(grid, todo, list(compiling.CONTESTANTS), [], kind="compile")


def planned_on_cores(options: argparse.Namespace, grid: Grid) -> Plan:
    """List every shape unless some are named, forward and with the gradient."""
    alone("--cores", f"compares {' with '.join(cores.CONTESTANTS)}", options, GOES_WITH_SHAPES)
    try:
        cores.available()
    except ValueError as error:
        raise BadRequest(f"--cores: {error}") from error
    measures = options.measures or ["forward", "backward"]
    todo = [(shape, measure) for shape in options.shapes or SHAPES for measure in measures]
    return Plan(grid._replace(limit_s=None), todo, cores.installed(), [], kind="cores")


EVERY_OPTION = ("full", "short", "shapes", "measures", "contestants", "dtype", "rounds", "lengths", "encoders")
EVERY_OPTION += ("compile", "cores", "profile", "against", "device", "devices", "output")


def alone(option: str, does: str, options: argparse.Namespace, goes_with: tuple[str, ...]) -> None:
    """Refuse the options that do not go with one that does something else than to time the contestants."""
    ignored = {"dtype": "float32", "device": "cpu"}
    for name in EVERY_OPTION:
        given = getattr(options, name)
        if name not in goes_with and f"--{name}" != option.split()[0] and given and given != ignored.get(name):
            also = ", ".join(f"--{other}" for other in goes_with if f"--{other}" != option)
            raise BadRequest(f"{option} {does}: no --{name}; what goes with it is {also}")


def check_names(option: str, given: list[str] | None, known: Any) -> None:
    for name in given or ():
        if name not in known:
            raise BadRequest(f"{option} {name}: unknown; there are {', '.join(known)}{did_you_mean(name, known)}")


def contestants(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Contestants who take part, and of the others why not."""
    import jax

    names, left_out = [], []
    for name, peer in PEERS.items():
        if options.contestants and name not in options.contestants:
            continue
        if peer.gpu_only and jax.default_backend() == "cpu":
            reason = "for a GPU only"
        elif not peer.is_installed():
            reason = f"{peer.package} is not installed"
        elif not options.contestants and name == TILES and jax.default_backend() == "cpu" and default() == "blockwise":
            reason = f"the same as {OURS}, for there is no native kernel; --contestants {OURS} {name} takes it in"
        elif not options.contestants and not options.full and name in SLOW_TO_COMPILE:
            reason = "takes too long to compile for the short grid; --full or --contestants takes it in"
        else:
            names.append(name)
            continue
        left_out.append(f"{name}: {reason}")
    if not names:
        raise BadRequest(f"--contestants: none of them can take part: {'; '.join(left_out)}")
    return names, left_out
