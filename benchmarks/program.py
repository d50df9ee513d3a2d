"""A case, ready to run in a contestant's own framework; and what no contestant is asked to do."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from harness import Contestant, Unable
from workload import Case

MOST_BYTES = 6 * 2**30  # by XLA's count, which leaves out what its libraries take: up to twice as much more
GIB = 2**30


class Program(NamedTuple):
    """A case, ready to run. ``run(arrays)`` takes query, key, value (and bias) as JAX, torch, NumPy want them."""

    run: Callable[[Any], Any]
    arrays: Any  # in the contestant's own layout
    to_numpy: Callable[[Any], list[np.ndarray]]  # results: out, gradients or tangents, in the layout of the case
    own_layout: Callable[[tuple[np.ndarray, ...]], Any]
    temporary_bytes: int | None = None
    note: str = ""
    text: Callable[[], str] | None = None  # what XLA made of it

    def contestant(self, name: str, first_call_s: float) -> Contestant:
        return Contestant(name, lambda: self.run(self.arrays), first_call_s, self.temporary_bytes)


def fits(temporary_bytes: float, source: str) -> None:
    """Refuse what would not fit into memory, by XLA's analysis or by a formula."""
    if temporary_bytes > MOST_BYTES:
        raise Unable(f"would need {temporary_bytes / GIB:.0f} GiB ({source}); the limit is {MOST_BYTES // GIB} GiB")


def refuse(case: Case, reasons: dict[str, str]) -> None:
    """Say why not, for a variant (or "grouped" heads) that is named in ``reasons``."""
    kinds = [case.shape.variant] + ["grouped"] * (case.shape.N != case.shape.G)
    for kind in kinds:
        if kind in reasons and (kind != "dropout" or case.rate):
            raise Unable(reasons[kind])
