"""The backends, by the names that ``implementation`` takes: a new one is a row of ``BACKENDS`` (docs/add-a-backend.md).

The platform of a program, and its number of devices, are known only when it is lowered. There the plan is fitted to
them, before anything is compiled.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import jax
from jax import Array
from jax.interpreters import mlir
from jax.interpreters.mlir import LoweringRuleContext

from attendax.checks import fail

from . import cudnn, gpu, native
from .blockwise import algorithm, partition
from .operands import Cotangents, Limits, Operands, Plan, Results, Tangents, Wanted


class Directions(Protocol):
    """Two directions, as a module or a class has them: what a backend must compute."""

    def forward(self, operands: Operands, plan: Plan, /) -> Results:
        """The average, the row maximum, the row sum, and lse or None."""

    def cotangent(
        self, grads: Cotangents, operands: Operands, results: Results, plan: Plan, wanted: Wanted, /
    ) -> tuple[Array, ...]:
        """Gradients of the leaves for which ``wanted`` has a shape; linear in ``grads``."""


class EveryDirection(Directions, Protocol):
    """Also the tangent, from which JAX derives all others, except an ``hvp`` of the backend's own (``own_hvp``)."""

    def tangent(self, tangents: Tangents, operands: Operands, results: Results, plan: Plan, /) -> tuple[Array, ...]:
        """The tangents of out and lse; linear in ``tangents``, and the transpose of ``cotangent``."""


class Backend(NamedTuple):
    """One way to compute attention.

    Attributes:
        functions: its directions.
        limits: of its tiles, or of the fallback's; None if all scores are one tile.
        fallback: the backend for the directions that it lacks (tangents and second derivatives, from the fallback's own
            forward), and for calls that it cannot take in the program's place. Empty if it has all.
        why_not: the reason why it cannot take a call in the program's place; empty if it can.
        refuse: raises for a call that asks for it by name and cannot have it.
        opaque: XLA does not see its products. The products of the others are behind a fusion barrier on a CPU.
        keeps: whether it computes the tangents of a call, and those of the call's gradients, itself.
    """

    functions: Directions
    limits: Callable[[], Limits | None]
    fallback: str = ""
    why_not: Callable[[Operands, Plan], str] = lambda *_: ""
    refuse: Callable[[str, Operands, Plan], object] = lambda *_: None
    opaque: bool = False
    keeps: Callable[[Operands, Plan], bool] = lambda *_: False


BACKENDS = {
    "dense": Backend(algorithm, lambda: None),
    "blockwise": Backend(algorithm, lambda: partition.LIMITS),
    "cudnn": Backend(cudnn, lambda: partition.LIMITS, "blockwise", refuse=cudnn.refuse),
    "triton": Backend(gpu, lambda: partition.LIMITS, "blockwise", gpu.why_not, gpu.refuse, True),
    "native": Backend(native, lambda: partition.LIMITS, "blockwise", native.why_not, native.refuse, True, native.keeps),
}
ACROSS_DEVICES: dict[str, EveryDirection] = {}  # for sequences that lie on several devices (``sharding``)
ACCELERATORS = ("cuda", "rocm", "tpu")  # platforms with a lowering rule of their own; all others are a CPU's


def default() -> str:
    """The backend of a call that names none: the native kernel if it is there, for the calls that it takes."""
    return "native" if native.library().isa else "blockwise"


def settled(operands: Operands, plan: Plan) -> Plan:
    """The plan of a program in its place: with the fallback if the chosen backend cannot take the call there.

    Raises:
        NotImplementedError: it was asked for.
    """
    plan, backend = dataclasses.replace(plan, narrow=operands.query.dtype.itemsize == 2), BACKENDS[_local_backend(plan)]
    reason = backend.why_not(operands, plan)
    if not reason:
        return plan
    if plan.asked and not plan.reversible:
        sentence = f"implementation {_local_backend(plan)!r} does not take this call: {reason}."
        fail(NotImplementedError, "attention", sentence, advice="Leave implementation out: the tiles take every call.")
    return _with_backend(plan, backend.fallback)


def directions(plan: Plan) -> EveryDirection:
    """The functions of a plan's backend. If it does not have the tangent, ``fallback_plan`` has."""
    return ACROSS_DEVICES[plan.backend] if plan.axis else cast(EveryDirection, BACKENDS[plan.backend].functions)


def fallback_plan(plan: Plan, operands: Operands | None = None) -> Plan | None:
    """The plan of the directions that its backend lacks; None if it has all, for these operands if given."""
    backend = BACKENDS[_local_backend(plan)]
    kept = operands is not None and backend.keeps(operands, plan)
    return _with_backend(plan, backend.fallback) if backend.fallback and not kept else None


def own_hvp(plan: Plan, operands: Operands | None = None) -> Callable | None:
    """The tangents of gradients, where the backend of a plan has them itself; None elsewhere, see ``fallback_plan``."""
    return None if operands is not None and fallback_plan(plan, operands) else getattr(directions(plan), "hvp", None)


def _local_backend(plan: Plan) -> str:
    return plan.local if plan.axis else plan.backend


def _with_backend(plan: Plan, backend: str) -> Plan:
    return dataclasses.replace(plan, local=backend) if plan.axis else dataclasses.replace(plan, backend=backend)


def placed(plan: Plan, context: LoweringRuleContext, platform: str = "cpu") -> Plan:
    """The plan for the place that a lowering rule sees in its context, and for the platform that it is for."""
    module = context.module_context
    exported = bool(getattr(getattr(module, "lowering_parameters", None), "for_export", False))
    devices = devices_of(module.axis_context)
    divisible = devices > 1 and _is_divisible(module.axis_context, platform)
    return dataclasses.replace(on(plan, platform), devices=devices, divisible=divisible, exported=exported)


def _is_divisible(axis_context: object, platform: str) -> bool:
    """Tell whether ``custom_partitioning`` may divide: not beside a ``shard_map``, nor under the older partitioner."""
    by_shardy = getattr(jax.config, "jax_use_shardy_partitioner", True)
    alone = platform in ("cpu", "cuda") and not isinstance(axis_context, mlir.SPMDAxisContext)
    return alone and by_shardy and len(_devices(platform)) >= devices_of(axis_context)


def _devices(platform: str) -> list[jax.Device]:
    """The devices of a platform; those of a CPU in a program for CUDA that is lowered where JAX finds no GPU."""
    return jax.devices() if platform == default_platform() else jax.devices("cpu")


def counted(context: LoweringRuleContext, plan: Plan) -> LoweringRuleContext:
    """The context of a lowering rule in which ``custom_partitioning`` finds as many devices as divide the program.

    JAX tells them to primitives of its own only. Any devices will do: their order is the mesh's.
    """
    module = context.module_context
    axes: Any = module.axis_context
    if not plan.divisible or axes.device_assignment:
        return context
    axes = dataclasses.replace(axes, device_assignment=tuple(_devices(plan.platform)[: plan.devices]))
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
