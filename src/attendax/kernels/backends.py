"""Which backends there are, by the names that ``implementation`` takes.

A backend is three functions, and how large the tiles are that they work in::

    forward(operands, plan)                                  -> Results
    tangent(tangents, operands, results, plan)               -> (dout, dlse)
    cotangent((dout, dlse), operands, results, plan, wanted) -> a gradient for each leaf wanted

``tangent`` is linear in ``tangents`` and ``cotangent`` in ``(dout, dlse)``, and each is the transpose of the other.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from attendax.checks import IMPLEMENTATIONS

from . import cudnn
from .blockwise import algorithm, partition
from .operands import Limits


class Backend(NamedTuple):
    """One way to compute attention."""

    functions: Any  # a module with the three
    limits: Callable[[], Limits]
    beyond: str = ""  # the backend of second derivatives, where it is another


BACKENDS = {
    "dense": Backend(algorithm, lambda: partition.ONE_TILE),
    "blockwise": Backend(algorithm, lambda: partition.LIMITS),
    "cudnn": Backend(cudnn, lambda: partition.LIMITS, "blockwise"),
}
ACROSS: dict[str, Any] = {}  # modules with the three, for a sequence that lies on several devices: see ``across``
DEFAULT = "blockwise"
NOT_HERE = {name: "not part of this version" for name in IMPLEMENTATIONS if name not in BACKENDS}
