"""What a trace of JAX's profiler says of the kernels of a program that runs on a CPU."""

import collections
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

WARM = 3  # calls before the trace
CONTAINERS = ("while", "cond", "conditional", "call")  # the time of what is inside them is counted there
RESULT = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\w+\[[\d,]*\]|\()", re.MULTILINE)


def profile(call: Callable[[], Any], text: str, calls: int) -> dict[str, tuple[str, int, float]]:
    """The kernels of a program of JAX's, by name: the type of the result, executions and milliseconds of one call.

    Args:
        call: runs the program once, and waits.
        text: of the compiled program.
        calls: over how many the times are averaged.
    """
    import jax

    for _ in range(WARM):
        call()
    with tempfile.TemporaryDirectory(prefix="attendax-") as folder:
        with jax.profiler.trace(folder):
            for _ in range(calls):
                call()
        (file,) = Path(folder).rglob("*.xplane.pb")
        seen = jax.profiler.ProfileData.from_serialized_xspace(file.read_bytes())
    spent: collections.Counter[str] = collections.Counter()
    times: collections.Counter[str] = collections.Counter()
    for plane in seen.planes:
        for line in plane.lines:
            for event in line.events:
                if is_kernel(event):
                    spent[event.name] += event.duration_ns / 1e6
                    times[event.name] += 1
    types = {name: "several" if found == "(" else found for name, found in RESULT.findall(text)}
    return {name: (types.get(name, ""), round(times[name] / calls), spent[name] / calls) for name in spent}


def is_kernel(event: Any) -> bool:
    """Whether an event of a trace is the run of a kernel, and neither its end nor a loop around it."""
    if event.name.startswith("end: ") or event.name.partition(".")[0] in CONTAINERS:
        return False
    return any(name == "hlo_op" for name, _ in event.stats)
