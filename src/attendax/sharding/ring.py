"""A ring of devices: each passes its keys on to the next, and attends to those that it receives (Liu et al. 2023).

``pass_on`` is where keys go from device to device. The results over all keys are the union of the parts (L9). Once
maximum and sum of a row are known, tangent and cotangent are sums over the keys. The gradients of keys and values are
passed on beside them, and once more at the end: then they are back where the keys came from.
"""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from attendax.kernels.backends import ACROSS_DEVICES
from attendax.kernels.derivatives import attend, pull, push
from attendax.kernels.not_finite import is_read
from attendax.kernels.numerics import sums_of_products, vary_alike
from attendax.kernels.online_softmax import merge_results
from attendax.kernels.operands import KEY, REST, VALUE, Cotangents, Index, Operands, Plan, Results, Tangents, Wanted

from .shards import columns, local_plan, local_shard, with_shard

Held = TypeVar("Held")  # pytrees of arrays: what goes round,
Carry = TypeVar("Carry")  # and what a device adds up


def forward(operands: Operands, plan: Plan) -> Results:
    """The results over the keys of all devices."""
    of_part = local_plan(plan, partial=True)
    widths, neutral = (operands.value.shape[-1], 1, 1), (0, -jnp.inf, 0)
    rows, dtype = plan.rows(operands), operands.compute_dtype()
    empty = (jnp.full((*rows, n), x, dtype) for n, x in zip(widths, neutral, strict=True))

    def step(results, shard, source):
        return merge_results(results, attend(with_shard(operands, shard, source), of_part))

    return once_round(plan, *vary_alike((local_shard(operands), Results(*empty))), step)


def tangent(tangents: Tangents, operands: Operands, results: Results, plan: Plan) -> tuple[Array, ...]:
    """The tangents of out and lse."""
    of_part = local_plan(plan, partial=True)
    held = local_shard(operands), (tangents[KEY], tangents[VALUE])
    widths = operands.value.shape[-1], 1
    nothing = tuple(jnp.zeros((*plan.rows(operands), n), operands.compute_dtype()) for n in widths)

    def step(summed, received, source):
        shard, shard_tangents = received
        moving = _tangents_of_shard(operands, tangents, shard_tangents, source)
        found = push(moving, with_shard(operands, shard, source), results, of_part)
        return tuple(x + y for x, y in zip(summed, found, strict=True))

    return once_round(plan, *vary_alike((held, nothing)), step)


def cotangent(grads: Cotangents, operands: Operands, results: Results, plan: Plan, wanted: Wanted) -> tuple[Array, ...]:
    """The transpose of ``tangent``."""
    of_part, (dout, dlse) = local_plan(plan, partial=True), grads
    # Each shard gets delta directly: with out = 0 and dlse = -delta its own delta is this one.
    delta = jnp.where(is_read(dout, dlse), sums_of_products(dout, results.out) - dlse, 0)
    known, given = results._replace(out=jnp.zeros_like(results.out)), (dout, -delta)
    used = [k for k, shape in enumerate(wanted) if shape is not None]
    size, shapes, by_columns = operands.key.shape[-2], list(wanted), set()
    if operands.bias is not None and (shape := wanted[REST]) is not None and shape[-1] > 1:
        shapes[REST], by_columns = (*shape[:-1], size), {REST}

    def step(found, shard, source):
        parts = pull(given, with_shard(operands, shard, source), known, of_part, shapes)
        pairs = zip(used, found, parts, strict=True)
        return [_put(x, part, source * size) if k in by_columns else x + part for k, x, part in pairs]

    def pass_gradients(found):
        return [pass_on(x, plan) if k in (KEY, VALUE) else x for k, x in zip(used, found, strict=True)]

    nothing = [jnp.zeros(wanted[k], operands.compute_dtype()) for k in used]
    shard, nothing, _ = vary_alike((local_shard(operands), nothing, operands.query))
    found = once_round(plan, shard, nothing, step, pass_carry=pass_gradients)
    return tuple(pass_gradients(found))


def once_round(
    plan: Plan, held: Held, carry: Carry, step: Callable[[Carry, Held, Index], Carry], *,
    pass_carry: Callable[[Carry], Carry] = lambda carry: carry,
) -> Carry:  # fmt: skip
    """``carry = step(carry, received, source)`` for what each device holds, its own first.

    The next keys are sent while a step computes; after the last step nothing is sent. ``pass_carry`` is applied to the
    carry after every step but the last.
    """
    count, here = lax.axis_size(plan.axis), lax.axis_index(plan.axis)
    carry, held = vary_alike((carry, held))

    def hop(k: Index, state: tuple[Carry, Held]) -> tuple[Carry, Held]:
        carry, received = state
        following = pass_on(received, plan)
        return vary_alike((pass_carry(step(carry, received, (here - k) % count)), following))

    carry, received = lax.fori_loop(0, count - 1, hop, (carry, held)) if count > 1 else (carry, held)
    return step(carry, received, (here - (count - 1)) % count)


def pass_on(tree: Carry, plan: Plan) -> Carry:
    """Send to the next device of the ring; what comes back is from the one before."""
    count = lax.axis_size(plan.axis)
    pairs = [(k, (k + 1) % count) for k in range(count)]
    return jax.tree.map(lambda x: lax.ppermute(x, plan.axis, pairs), tree)


def _tangents_of_shard(operands: Operands, tangents: Tangents, of_keys: Tangents, source: Index) -> list[Any]:
    """The tangents of the leaves for a shard, None where a leaf has none; ``of_keys`` are those of key and value."""
    found = list(tangents)
    found[KEY], found[VALUE] = of_keys
    if operands.bias is not None and (of_bias := found[REST]) is not None:
        found[REST] = columns(of_bias, source, operands.key.shape[-2])
    return found


def _put(buffer: Array, part: Array, start: Index) -> Array:
    return lax.dynamic_update_slice_in_dim(buffer, part.astype(buffer.dtype), start, buffer.ndim - 1)


ACROSS_DEVICES["ring"] = sys.modules[__name__]
