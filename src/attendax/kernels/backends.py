"""The backends, by the names that ``implementation`` takes: a new one is a row of ``BACKENDS``.

A backend is three functions, and how large the tiles are that they work in::

    forward(operands, plan)                                  -> Results
    tangent(tangents, operands, results, plan)               -> (dout, dlse)
    cotangent((dout, dlse), operands, results, plan, wanted) -> a gradient for each leaf wanted

``tangent`` is linear in ``tangents`` and ``cotangent`` in ``(dout, dlse)``, and each is the transpose of the other.

The platform of a program, and its number of devices, are known only when it is lowered. There the plan is fitted to
them, before anything is compiled.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.interpreters import mlir
from jax.interpreters.mlir import LoweringRuleContext

from attendax.checks import IMPLEMENTATIONS

from . import cudnn
from .blockwise import algorithm, partition
from .operands import Limits, Plan


class Backend(NamedTuple):
    """One way to compute attention."""

    functions: Any  # a module with the three
    limits: Callable[[], Limits]
    higher_order: str = ""  # the backend of second and higher derivatives, if it is another


BACKENDS = {
    "dense": Backend(algorithm, lambda: partition.ONE_TILE),
    "blockwise": Backend(algorithm, lambda: partition.LIMITS),
    "cudnn": Backend(cudnn, lambda: partition.LIMITS, "blockwise"),
}
ACROSS_DEVICES: dict[str, Any] = {}  # modules with the three, for sequences that lie on several devices (``sharding``)
DEFAULT = "blockwise"
NOT_HERE = {name: "not part of this version" for name in IMPLEMENTATIONS if name not in BACKENDS}
ACCELERATORS = ("cuda", "rocm", "tpu")  # platforms with a lowering rule of their own; all others are a CPU's


def placed(plan: Plan, context: LoweringRuleContext, platform: str = "cpu") -> Plan:
    """The plan for the place that a lowering rule sees in its context, and for the platform that it is for."""
    return dataclasses.replace(on(plan, platform), devices=devices_of(context.module_context.axis_context))


def on(plan: Plan, platform: str) -> Plan:
    """The plan on a platform: in tiles of the size that goes with it, unless it wants all scores in one."""
    if platform == "cpu" or plan.limits == partition.ONE_TILE:
        return dataclasses.replace(plan, platform=platform)
    return dataclasses.replace(plan, platform=platform, limits=partition.LIMITS_ON[platform])


def default_platform() -> str:
    """The name that lowering rules have for JAX's default device."""
    version = jax.devices()[0].client.platform_version
    return {"gpu": "rocm" if "rocm" in version else "cuda"}.get(jax.default_backend(), jax.default_backend())


def devices_of(axis_context: object) -> int:
    """Over how many devices XLA divides a program: those of all mesh axes but the manual ones, of ``shard_map``."""
    if isinstance(axis_context, mlir.SPMDAxisContext):
        sizes = dict(axis_context.mesh.shape)
        return math.prod(size for name, size in sizes.items() if name not in axis_context.manual_axes)
    return int(getattr(axis_context, "num_devices", None) or 1)
