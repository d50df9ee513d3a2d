"""Attention by a C++ kernel on a CPU, called by XLA: forward and reverse mode (``csrc/``; docs/how-it-is-fast.md).

Scores are computed block by block, as in the tiles of XLA, but in one pass, in registers, with threads that each take a
block. The order in which a row is added up depends only on what the row sees (L15).

The kernel also has tangents, and tangents of gradients, of short texts. Those of longer texts, and all other second
derivatives, run in tiles. Both start from the operands, because row maxima of one path with scores of the other would
lose digits (L8).
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax.checks import fail

from ..numerics import folded
from ..operands import REST, Cotangents, Operands, Plan, Results, Tangents, Wanted
from . import divided, program
from .divided import HEADS, KEYS, PAIRS, CustomCall, Shape
from .library import TARGETS as TARGETS
from .library import Library as Library
from .library import library as library
from .library import status as status
from .program import modifier_shape, program_of

LONG = 1e8  # multiply-adds of both products: about half a millisecond
SHORT = 96  # tokens: kTileKeys in problem.h
BY_DEFAULT = "the default on a CPU; memory O(T + S)"


def why_not(operands: Operands, plan: Plan) -> str:
    """The reason why the kernel cannot take a call of this program; empty if it can."""
    if plan.platform != "cpu":
        return f"it is for CPUs; this program is for {plan.platform}"
    if plan.devices > 1 and not plan.divisible:
        return "a program that XLA divides inside a shard_map, or without Shardy"
    if plan.exported:
        return "an exported program, which may run without the library"
    return library().why_not or program.why_not(operands, plan)


def refuse(function: str, operands: Operands, plan: Plan) -> None:
    """Refuse a call that chooses the kernel by name if the kernel cannot take it.

    Raises:
        NotImplementedError: the kernel cannot take the call.
    """
    if reason := why_not(operands, plan):
        sentence = f"implementation 'native' does not take this call: {reason}."
        fail(NotImplementedError, function, sentence, advice="Leave implementation out: the tiles take every call.")


def verdict(operands: Operands, plan: Plan, chosen: str | None) -> str:
    """The line of ``explain`` about the kernel, for a call that runs elsewhere."""
    if reason := why_not(operands, plan):
        return reason
    if chosen:
        return f"eligible; {chosen!r} is requested"
    if 0 in (*operands.query.shape, operands.key.shape[-2]):
        return "there are no scores"
    return why_not(operands, dataclasses.replace(plan, devices=2, divisible=False))  # known only when it is lowered


def forward(operands: Operands, plan: Plan) -> Results:
    """out, row maximum, row sum and lse."""
    operands = _with_position(operands, plan)
    arguments = program_of(operands, plan)
    types = _of_rows(operands, plan, operands.value.shape[-1], 1, 1, 1)
    return Results(*_call_library("attendax_forward", operands, arguments, types, [], [], plan))


def cotangent(grads: Cotangents, operands: Operands, results: Results, plan: Plan, wanted: Wanted) -> tuple[Array, ...]:
    """Gradients of the leaves for which ``wanted`` has a shape."""
    operands = _with_position(operands, plan)
    arguments, dtype = program_of(operands, plan), operands.compute_dtype()
    *lead, N, _ = plan.rows(operands)
    types = _of_gradients(operands, plan)
    of_modifiers = list(wanted[REST:])
    of_bias = of_modifiers.pop(0) if operands.bias is not None else None
    types += [] if of_bias is None else [Shape(PAIRS, of_bias, dtype)]
    by_modifier = [_shape_of_modifier(part, of_modifiers) for part in arguments.modifiers]
    moving = itertools.compress(arguments.modifiers, by_modifier)
    shapes = [modifier_shape(part, tuple(lead), N) for part in moving]
    types += [Shape(HEADS, shape, dtype) for shape in shapes]
    ints = [int(shape is not None) for shape in (of_bias, *by_modifier)]
    inputs = [x.astype(dtype) for x in (*results[:3], *grads)]
    gradients = _call_library("attendax_backward", operands, arguments, types, inputs, ints, plan)
    if shapes:
        first, last = gradients[: -len(shapes)], gradients[-len(shapes) :]
        gradients = [*first, *_of_every_head(last, operands, plan)]
    each = zip(gradients, [*wanted[:REST], *filter(None, [of_bias, *by_modifier])], strict=True)
    return tuple(_sum_to_shape(x, shape, len(plan.batch)) for x, shape in each if shape)


def keeps(operands: Operands, plan: Plan) -> bool:
    """Tell whether the kernel computes tangents, also of gradients: of short texts, by query, key and value."""
    alone = plan.devices == 1 and not plan.axis and not plan.partial
    plain = operands.bias is None and operands.score_mod is None
    return alone and plain and max(operands.query.shape[-2], operands.key.shape[-2]) <= SHORT


def tangent(tangents: Tangents, operands: Operands, _: None, plan: Plan) -> tuple[Array, ...]:
    """The tangents of out and lse, of a call for which ``keeps`` is true."""
    types = _of_rows(operands, plan, operands.value.shape[-1], 1)
    return tuple(_call_with_tangents("attendax_tangent", tangents, [], operands, types, plan))


def hvp(
    tangents: Tangents, grads: Cotangents, moved: Sequence[Array], operands: Operands, plan: Plan, wanted: Wanted
) -> tuple[Array, ...]:
    """The tangents of the gradients for which ``wanted`` has a shape, of a call for which ``keeps`` is true.

    moved: the tangents of ``grads``, or nothing.
    """
    given = [x.astype(operands.compute_dtype()) for x in (*grads, *moved)]
    types = _of_gradients(operands, plan)
    gradients = _call_with_tangents("attendax_hvp", tangents, given, operands, types, plan)
    return tuple(_sum_to_shape(x, shape, len(plan.batch)) for x, shape in zip(gradients, wanted, strict=True) if shape)


def _of_rows(operands: Operands, plan: Plan, *widths: int) -> list[Shape]:
    return [Shape(PAIRS, (*plan.rows(operands), width), operands.compute_dtype()) for width in widths]


def _of_gradients(operands: Operands, plan: Plan) -> list[Shape]:
    lead, kinds = plan.leading(operands), zip((PAIRS, KEYS, KEYS), operands[:3], strict=True)
    return [Shape(kind, (*lead, *x.shape[-3:]), operands.compute_dtype()) for kind, x in kinds]


def _call_with_tangents(
    target: str, tangents: Tangents, grads: list[Array], operands: Operands, types: list[Shape], plan: Plan
) -> Sequence[Array]:
    inputs = [x for x in tangents if x is not None]
    there = [*(int(x is not None) for x in tangents), int(len(grads) > 2)]
    return _call_library(target, operands, program_of(operands, plan), types, [*inputs, *grads], there, plan)


def _with_position(operands: Operands, plan: Plan) -> Operands:
    """The operands; if XLA divides the program, with the position of the first query, which differs by device."""
    if plan.devices == 1 or operands.positions.queries is not None:
        return operands
    return operands._replace(positions=operands.positions._replace(queries=jnp.zeros((), jnp.int32)))


def _call_library(
    target: str,
    operands: Operands,
    arguments: program.HandlerArguments,
    results: list[Shape],
    more: list[Array],  # after the arrays of the program
    ints: list[int],  # after its integers
    plan: Plan,
) -> Sequence[Array]:
    numbers = {"ints": np.array([*arguments.ints, *ints], np.int64), "floats": np.array(arguments.floats)}
    arrays = *operands[:3], *arguments.arrays, *more

    def run(*arrays: Array, types: Sequence[jax.ShapeDtypeStruct]) -> Sequence[Array]:
        return jax.ffi.ffi_call(target, types)(*_on_another_thread(arrays, types[0].shape), **numbers)

    if plan.devices == 1:
        return run(*arrays, types=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results])
    start = 4 + (operands.bias is not None) + len(operands.dropout_keys or ())  # after the scale: see ``program_of``
    settings = b"".join([target.encode(), *(x.tobytes() for x in numbers.values())])
    kinds = PAIRS, KEYS, KEYS, *(PAIRS for _ in arrays[3:])
    return divided.run(CustomCall(run, kinds, tuple(results), start, settings), arrays)


def _on_another_thread(arrays: Sequence[Array], rows: tuple[int, ...]) -> Sequence[Array]:
    """Add a zero to the scale of a long call, so that XLA runs it on another thread than the caller's.

    XLA runs a program of less than a thousand operations on the thread that calls it, and does not count the call of
    the library. Meanwhile that thread could neither handle Ctrl-C nor prepare another call. XLA computes this zero by
    more than a thousand operations.
    """
    query, key, value, scale, *more = arrays
    if math.prod(rows[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1]) < LONG or query.size < 1024:
        return arrays
    some = query.reshape(-1)[:1024]
    bits = lax.bitcast_convert_type(some, f"int{8 * some.dtype.itemsize}")
    zero = jnp.sum(jnp.maximum(jnp.minimum(bits, 0), 0), dtype=bits.dtype)
    return [query, key, value, scale + zero.astype(scale.dtype), *more]


def _of_every_head(gradients: Sequence[Array], operands: Operands, plan: Plan) -> list[Array]:
    """Gradients (..., N, .) of the arrays of modifiers, with 0 for the heads of other devices."""
    first = operands.positions.heads
    parts = [] if operands.score_mod is None else operands.score_mod.parts()
    if first is None:
        return list(gradients)
    count = next(part.arrays[0].shape[len(plan.batch)] for part in parts if part.arrays)
    nothing = (jnp.zeros((*x.shape[:-2], count, x.shape[-1]), x.dtype) for x in gradients)
    return [lax.dynamic_update_slice_in_dim(y, x, first, x.ndim - 2) for x, y in zip(gradients, nothing, strict=True)]


def _shape_of_modifier(part: object, shapes: list) -> tuple[int, ...] | None:
    """The wanted shape for the array of a modifier; its offset, an integer, has no gradient."""
    arrays = getattr(part, "arrays", ())
    mine = [shapes.pop(0) for _ in arrays]
    return mine[0] if mine else None


def _sum_to_shape(x: Array, shape: tuple[int, ...], batch: int) -> Array:
    """``x`` summed over the axes of size 1 in ``shape``, and, after those from vmap, over axes that ``shape`` lacks."""
    if len(shape) < x.ndim:  # (batch..., lead..., N, 1 or 2R + 1) for slopes (batch..., N) or a table
        own = 2 if len(shape) - batch == 2 else 1
        x = x if own == 2 else x[..., 0]
        x = x.sum(tuple(range(batch, x.ndim - own)))
    return jnp.reshape(folded(x, shape), shape)
