"""The run on a GPU: our kernels, kit, speed, tiles of other sizes, the CPU's cores; in one process, in eight minutes.

First 60 calls of the kernels of Triton, with their bits; if one is wrong nothing is timed. Then their candidates.
``python -m benchmarks.gpu``; ``--tiny`` tries it at tiny sizes on whatever device JAX has. Whatever fails is a line in
the result, and the rest goes on. Findings are written after every step. When the time is up, a step that still runs
is named and the process ends: no compilation can keep it.
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

import gpu_report
import gpu_steps
from attendax import writing

LIMIT_S = 470.0
FAILED, HARD_STOP, OUTPUT = 1, 3, "gpu-results"


class Settings(NamedTuple):
    """The amount that is run: shares of the time in seconds, sizes, rounds."""

    kernels_s: float = 130.0
    kit_s: float = 60.0
    speed_s: float = 150.0
    tiles_s: float = 45.0
    cores_s: float = 60.0
    limit_s: float = LIMIT_S
    rounds: int = 7
    budget_s: float = 2.0  # of the rounds of a case
    peak_size: int = 8192
    tiny: bool = False
    only: tuple[str, ...] = ()  # laws, and parts of the names of cases of the kit


FULL = Settings()
TINY = Settings(60.0, 60.0, 240.0, 60.0, 150.0, rounds=2, budget_s=0.5, peak_size=256, tiny=True, only=("L5",))


class Run:
    """Findings so far, the file for them, and the time that is left."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder, self.start, self.where = settings, folder, time.monotonic(), "the start"
        self.lock = threading.Lock()
        self.found: dict[str, Any] = {
            "about": {},
            "checks": [],
            "candidates": [],
            "kit": [],
            "speed": [],
            "tiles": [],
            "cores": {},
            "left_out": [],
            "took_s": 0.0,
        }

    def left(self, until: float) -> float:
        return until - (time.monotonic() - self.start)

    def at(self, where: str) -> None:
        self.where, self.found["took_s"] = where, time.monotonic() - self.start
        print(f"{self.found['took_s']:6.0f} s  {where}", file=sys.stderr, flush=True)

    def attempt(self, where: str, step: Callable[[], Any]) -> None:
        """A step; whatever goes wrong in it is a line."""
        self.at(where)
        try:
            step()
        except Exception as error:
            self.leave_out(f"{where}: {gpu_steps.reason_of(error)}")
        self.write()

    def leave_out(self, what: str) -> None:
        print(f"          {what}", file=sys.stderr, flush=True)
        self.found["left_out"].append(what)

    def write(self) -> None:
        with self.lock:
            text = json.dumps(self.found, indent=1) + "\n"
            writing.write(self.folder / "gpu.json", text)

    def report(self) -> None:
        """The table and the plot, from what is in the JSON."""
        self.write()
        writing.write(self.folder / "gpu.md", gpu_report.markdown(self.found))
        for name, figure in gpu_report.figures(self.found).items():
            with writing.whole(self.folder / f"{name}.png") as file:
                figure.savefig(file, format="png")


def main(output: str | None = None, settings: Settings = FULL) -> int:
    """Run everything.

    Raises:
        ValueError: there is no GPU, and the sizes are not tiny.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch also needs memory
    backend = jax.default_backend()
    if backend != "gpu" and not settings.tiny:
        advice = "python -m benchmarks.gpu --tiny tries the run here, at tiny sizes"
        raise ValueError(f"JAX finds no GPU (its default is {backend!r}); {advice}")
    folder = Path(output or OUTPUT)
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(settings, folder)
    watch = threading.Timer(settings.limit_s, hard_stop, [run])
    watch.daemon = True
    watch.start()
    try:
        run.attempt("the device", lambda: gpu_steps.about(run))
        run.attempt("the kernels", lambda: gpu_steps.kernels(run))
        if are_wrong(run.found):
            run.leave_out("everything else: the kernels are not right, so nothing is timed")
            return FAILED
        run.attempt("candidates of tiles", lambda: gpu_steps.candidates(run, settings.kernels_s))
        kit_end = settings.kernels_s + settings.kit_s
        run.attempt("the kit", lambda: gpu_steps.kit(run, kit_end))
        speed_end = kit_end + settings.speed_s
        run.attempt("speed", lambda: gpu_steps.speed(run, speed_end))
        run.attempt("tiles", lambda: gpu_steps.tiles(run, speed_end + settings.tiles_s))
        run.attempt("the cores of the CPU", lambda: gpu_steps.cores(run))
    finally:
        watch.cancel()
        run.attempt("the report", run.report)
        print((folder / "gpu.md").read_text(encoding="utf-8") if (folder / "gpu.md").exists() else "no report")
    return FAILED if is_wrong(run.found) else 0


def hard_stop(run: Run) -> None:
    """The time is up: write what there is, and end."""
    run.leave_out(f"the time was up in: {run.where}")
    try:
        run.report()
    finally:
        os._exit(HARD_STOP)


def are_wrong(found: dict[str, Any]) -> bool:
    """Tell whether a call of the kernels gave a wrong number or other bits."""
    return any(record["status"] == "wrong" for record in found.get("checks", ()))


def is_wrong(found: dict[str, Any]) -> bool:
    """Tell whether attendax gave a wrong result anywhere."""
    return (
        are_wrong(found)
        or any(one["faults"] for one in found["kit"])
        or any(r["status"] == "wrong" and r["contestant"].startswith("attendax") for r in found["speed"])
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", metavar="DIR", help=f"where the results go; {OUTPUT} unless given")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, on whatever device JAX has")
    asked = parser.parse_args()
    try:
        sys.exit(main(asked.output, TINY if asked.tiny else FULL))
    except ValueError as error:
        sys.exit(f"benchmarks.gpu: {error}")
