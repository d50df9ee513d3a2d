"""The backends, by the names that ``implementation`` takes: a new one is a row of ``BACKENDS``.

A backend is a module with the functions of ``Directions``, and how large the tiles are that they work in. ``tangent``
is linear in ``tangents`` and ``cotangent`` in ``grads``, and each is the transpose of the other.

The platform of a program, and its number of devices, are known only when it is lowered. There the plan is fitted to
them, before anything is compiled.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
from jax import Array
from jax.interpreters import mlir
from jax.interpreters.mlir import LoweringRuleContext

from . import cudnn, native
from .blockwise import algorithm, partition
from .operands import Cotangents, Limits, Operands, Plan, Results, Wanted


class Directions(Protocol):
    """The functions of a backend. One that names others for tangents (``Backend.others``) has no ``tangent``."""

    @property
    def forward(self) -> Callable[[Operands, Plan], Results]: ...  # noqa: D102

    @property
    def cotangent(self) -> Callable[[Cotangents, Operands, Results, Plan, Wanted], tuple[Array, ...]]: ...  # noqa: D102


class Backend(NamedTuple):
    """One way to compute attention."""

    functions: Directions
    limits: Callable[[], Limits | None]
    others: str = ""  # the backend of the directions that it lacks, from its own forward: tangents, second derivatives


BACKENDS = {
    "dense": Backend(algorithm, lambda: None),
    "blockwise": Backend(algorithm, lambda: partition.LIMITS),
    "cudnn": Backend(cudnn, lambda: partition.LIMITS, "blockwise"),
    "native": Backend(native, lambda: partition.LIMITS, "blockwise"),
}
ACROSS_DEVICES: dict[str, Any] = {}  # modules with the three, for sequences that lie on several devices (``sharding``)
ACCELERATORS = ("cuda", "rocm", "tpu")  # platforms with a lowering rule of their own; all others are a CPU's


def default() -> str:
    """The backend of a call that names none: where a kernel of our own is there, that, for the calls that it takes."""
    return "native" if native.library().isa else "blockwise"


def settled(operands: Operands, plan: Plan) -> Plan:
    """The plan of a program for its place: in tiles where the kernel of a CPU is the default and cannot take the call.

    Raises:
        NotImplementedError: it was asked for.
    """
    plan = dataclasses.replace(plan, narrow=operands.query.dtype.itemsize == 2)
    if _own(plan) != "native" or not native.why_not(operands, plan):
        return plan
    if plan.asked and not plan.reversible:
        native.refuse("attention", operands, plan)
    return _by(plan, "blockwise")


def by_others(plan: Plan) -> Plan | None:
    """The plan of the directions that its backend lacks; None where it has all."""
    others = BACKENDS[_own(plan)].others
    return _by(plan, others) if others else None


def _own(plan: Plan) -> str:
    """The backend that computes on one device."""
    return plan.local if plan.axis else plan.backend


def _by(plan: Plan, backend: str) -> Plan:
    """The plan with another backend on each device."""
    return dataclasses.replace(plan, local=backend) if plan.axis else dataclasses.replace(plan, backend=backend)


def placed(plan: Plan, context: LoweringRuleContext, platform: str = "cpu") -> Plan:
    """The plan for the place that a lowering rule sees in its context, and for the platform that it is for."""
    module = context.module_context
    exported = bool(getattr(getattr(module, "lowering_parameters", None), "for_export", False))
    devices = devices_of(module.axis_context)
    divisible = devices > 1 and _is_divisible(module.axis_context, platform)
    return dataclasses.replace(on(plan, platform), devices=devices, divisible=divisible, exported=exported)


def _is_divisible(axis_context: object, platform: str) -> bool:
    """Whether JAX's ``custom_partitioning`` may divide: not beside a ``shard_map``, nor under the older partitioner."""
    by_shardy = getattr(jax.config, "jax_use_shardy_partitioner", True)
    alone = platform == "cpu" and not isinstance(axis_context, mlir.SPMDAxisContext)
    return alone and by_shardy and len(jax.devices("cpu")) >= devices_of(axis_context)


def counted(context: LoweringRuleContext, plan: Plan) -> LoweringRuleContext:
    """The context of a lowering rule in which ``custom_partitioning`` finds as many devices as divide the program.

    JAX tells them to primitives of its own only. Which devices they are does not matter: their order is the mesh's.
    """
    module = context.module_context
    axes: Any = module.axis_context
    if not plan.divisible or axes.device_assignment:
        return context
    axes = dataclasses.replace(axes, device_assignment=tuple(jax.devices("cpu")[: plan.devices]))
    return context.replace(module_context=module.replace(axis_context=axes))


def on(plan: Plan, platform: str) -> Plan:
    """The plan on a platform: in tiles of the size that goes with it, unless it wants all scores in one."""
    if platform == "cpu" or plan.limits is None:
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
