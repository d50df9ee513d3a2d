"""Two folders of results of the same cases, as ``attendax inputs`` writes the cases: which results differ."""

import json
import os
from typing import NamedTuple

import numpy as np

from attendax.exits import Refusal

from ..cases.case import Leaves
from ..protocol import read_results
from ..worker.folders import INDEX, RESULTS, read_index, read_safetensors
from .asking import NARROW, TOLERANCE, distance

MOST = 2**31  # bytes of a result
SHOWN = 3  # cases that are told, the smallest first


class Folders(NamedTuple):
    """What two folders of results have in common, and what not."""

    cases: int
    apart: float
    lines: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether no result differs."""
        return not self.lines and self.cases > 0

    def text(self) -> str:
        """The lines that are printed."""
        alike = f"Equal to {self.apart:.1g} in {self.cases} cases."
        return "\n".join([*self.lines, alike]) if self.cases or self.lines else "No case has results in both."


def compare(a: str, b: str) -> Folders:
    """The results of two folders, case by case.

    Raises:
        Refusal: one is no such folder, the two have other cases, or a file cannot be read.
    """
    try:
        one, other = (read_index(home)["folders"] for home in (a, b))
    except ValueError as error:
        raise Refusal(str(error).removeprefix("check: ")) from error
    if one != other:
        raise Refusal(
            f"{a} and {b} hold other cases or numbers: write the cases once, and copy that folder with its {INDEX}"
        )
    found: list[tuple[int, str, str]] = []
    equal, apart, alone = 0, 0.0, {a: 0, b: 0}
    for name in one:
        mine, theirs = (_results(os.path.join(home, name)) for home in (a, b))
        if not mine or not theirs:
            alone[a if mine else b] += bool(mine or theirs)
            continue
        with open(os.path.join(a, name, "case.json"), encoding="utf-8") as file:
            case = json.load(file)
        far = {k: distance((theirs[k],), (x,)) for k, x in mine.items() if k in theirs}
        worst = max(far, key=lambda k: far[k], default="")
        if worst and far[worst] <= (TOLERANCE if case["dtype"] in ("float32", "float64") else NARROW):
            equal, apart = equal + 1, max(apart, far[worst])
        else:
            found.append((int(np.prod([*case["sizes"].values()])), name, _told(case, worst, mine, theirs)))
    lines = [f"{name}: {said}" for _, name, said in sorted(found)[:SHOWN]]
    more = [f"{len(found)} of {len(found) + equal} cases differ, the smallest of them:"] if found else []
    only = [f"Not compared: {count} cases with results in {home} alone." for home, count in alone.items() if count]
    return Folders(equal, apart, (*more, *lines, *(only if found else [])))


def _results(folder: str) -> Leaves:
    """What lies in the folder of a case; nothing where there is none, or an error."""
    if not os.path.isdir(folder):
        return {}
    try:
        found = read_results(folder, MOST)
        file = os.path.join(folder, RESULTS)
        safe = read_safetensors(file, MOST) if os.path.exists(file) else {}
    except ValueError as error:
        raise Refusal(f"{folder}: {error}") from error
    return {**found, **safe} if isinstance(found, dict) else {}


def _told(case: dict[str, object], leaf: str, mine: Leaves, theirs: Leaves) -> str:
    """The sizes of a case, what is asked, and the number that is furthest apart."""
    sizes, options = case["sizes"], [k for k, x in dict(case["options"]).items() if x is not None]  # type: ignore[call-overload]
    asked = ", ".join([*(f"{k}={x}" for k, x in sizes.items()), *options])  # type: ignore[attr-defined]
    if not leaf:
        return f"{asked}: A has {', '.join(mine)}; B has {', '.join(theirs)}"
    x, y = mine[leaf].astype(np.float64), theirs[leaf].astype(np.float64)
    if x.shape != y.shape:
        return f"{asked}: {leaf} is {x.shape} in A, {y.shape} in B"
    with np.errstate(all="ignore"):
        at = np.unravel_index(int(np.argmax(np.nan_to_num(np.abs(x - y), nan=np.inf))), x.shape)
    return f"{asked}: {leaf}{[int(k) for k in at]} is {x[at]:.7g} in A, {y[at]:.7g} in B"
