"""The committed results, and their numbers in words."""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parent / "results"
OPTIONAL = ("bfloat16", "avx2", "zen4", "xeon")  # folders, and fields of Results
SINGLE = ("forward", "backward")  # what is measured of every shape


class Results(NamedTuple):
    """The committed files; ``bfloat16``, ``avx2``, ``zen4`` and ``xeon`` are None as long as there is none."""

    full: dict[str, Any]
    cores: dict[str, Any]
    compile: dict[str, Any]
    bfloat16: dict[str, Any] | None
    avx2: dict[str, Any] | None
    zen4: dict[str, Any] | None
    xeon: dict[str, Any] | None
    devices: dict[str, Any]
    linear: dict[str, Any]
    models: dict[str, Any]
    conformance: dict[str, Any]
    matrix: str
    rows: dict[str, Any]
    kit: dict[str, Any]

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        """The runs of `bench` by their folder, which have to be of one commit, one day and one machine."""
        found = {"": self.full, "cores": self.cores, "compile": self.compile, "bfloat16": self.bfloat16}
        return {name: run for name, run in found.items() if run is not None}


def committed(folder: Path = RESULTS) -> Results:
    """Read all of them."""

    def load(name: str) -> Any:
        return json.loads((folder / name).read_text("utf-8"))

    runs = [load(name) for name in ("results.json", "cores/results.json", "compile/results.json")]
    rest = [load(f"{name}/results.json") if (folder / name).exists() else None for name in OPTIONAL]
    others = [load(name) for name in ("devices.json", "linear.json", "models.json", "conformance.json")]
    matrix = (folder / "conformance.md").read_text("utf-8")
    return Results(*runs, *rest, *others, matrix, load("rows.json"), load("kit.json"))


class Untrue(ValueError):
    """Words that the numbers do not bear out any more."""


def claim(holds: bool, words: str) -> str:
    """The words.

    Raises:
        Untrue: they do not hold.
    """
    if not holds:
        raise Untrue(f"does not hold any more: {words!r}")
    return words


def span(numbers: Iterable[float], digits: int = 2) -> str:
    """The least and the largest: "0.83 to 6.50"; one number where they are equal."""
    found = list(numbers)
    low, high = f"{min(found):,.{digits}f}", f"{max(found):,.{digits}f}"
    return low if low == high else f"{low} to {high}"


def mean(numbers: Iterable[float], digits: int = 2) -> str:
    """The geometric mean."""
    return f"{geometric_mean(numbers):.{digits}f}"


def listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def machine(run: dict[str, Any]) -> str:
    """The machine, with the speed of its matrix product, because names of processors say little."""
    about = run["about"]
    processor = about["processor"].partition(",")[0]
    return f"{processor}, {about['threads']} cores, matrix product at {about['matmul_gflops']:.0f} GFLOP/s"


def when(run: dict[str, Any]) -> str:
    about = run["about"]
    changed = " with changes that were committed later" if about["uncommitted_changes"] else ""
    return f"commit {about['commit'][:7]}{changed}, {about['date'][:10]}"
