"""What a device holds of a sequence, and what travels with its keys.

A bias and a dense mask hold the rows of the device's own queries and the columns of all keys, in the order in which the
devices hold the keys. They stay where they are; each block of keys is met by its columns.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import Array, lax

from attendax.kernels.numerics import vary_alike
from attendax.kernels.operands import KEY, REST, VALUE, Operands, Plan
from attendax.masks import Mask


class Travellers(NamedTuple):
    """What goes with the keys of a device."""

    key: Array
    value: Array
    positions: Any
    ids: tuple[Array, ...]  # of segments


def travellers(operands: Operands) -> Travellers:
    """Those of a device's own keys."""
    ids: list[Any] = []

    def collect(part: Mask) -> Mask:
        ids.extend(part.arrays[1:] if part.kind == "segments" else ())
        return part

    if operands.mask is not None:
        operands.mask.map(collect)
    return Travellers(operands.key, operands.value, operands.positions.keys, tuple(ids))


def meeting(operands: Operands, guests: Travellers, owner: Any) -> Operands:
    """The operands of the device's own queries and the keys of ``owner``."""
    ids, size = iter(guests.ids), operands.key.shape[-2]

    def part_of(part: Mask) -> Mask:
        if part.kind == "segments":
            return dataclasses.replace(part, arrays=(part.arrays[0], next(ids)))
        if part.kind == "dense":
            return dataclasses.replace(part, arrays=(columns(part.arrays[0], owner, size),))
        return part

    return operands._replace(
        key=guests.key,
        value=guests.value,
        bias=None if operands.bias is None else columns(operands.bias, owner, size),
        mask=None if operands.mask is None else operands.mask.map(part_of),
        positions=operands.positions._replace(keys=guests.positions),
    )


def columns(x: Array, owner: Any, size: int) -> Array:
    """The columns of the keys of ``owner``, each of whom has so many; of an axis of 1, that."""
    return x if x.shape[-1] == 1 else lax.dynamic_slice_in_dim(x, owner * size, size, x.ndim - 1)


def of_block(operands: Operands, tangents: Any, guests: Any, owner: Any) -> list[Any]:
    """Tangents of the leaves of a block, None where there are none; ``guests`` are those of key and value."""
    found = list(tangents)
    found[KEY], found[VALUE] = guests
    if operands.bias is not None and found[REST] is not None:
        found[REST] = columns(found[REST], owner, operands.key.shape[-2])
    return found


def shapes_of_block(operands: Operands, wanted: Any) -> tuple[Any, ...]:
    """The shapes of the gradients of a block."""
    shapes = list(wanted)
    if operands.bias is not None and (shape := shapes[REST]) is not None and shape[-1] > 1:
        shapes[REST] = *shape[:-1], operands.key.shape[-2]
    return tuple(shapes)


def rows_of(operands: Operands, plan: Plan, width: int) -> tuple[int, ...]:
    """The shape of so many numbers for each query; results from before a vmap may have axes of 1 there."""
    return *plan.leading(operands), *operands.query.shape[-3:-1], width


def local(plan: Plan, *, partial: bool) -> Plan:
    """The plan of a block, which knows of no other device."""
    plan = dataclasses.replace(plan, axis=(), manual=(), backend="blockwise", partial=partial, rounded=False)
    return plan.in_parts() if partial else plan


def sent_on(tree: Any, plan: Plan) -> Any:
    """The same from the device before."""
    count = lax.axis_size(plan.axis)
    pairs = [(k, (k + 1) % count) for k in range(count)]
    return jax.tree.map(lambda x: lax.ppermute(x, plan.axis, pairs), tree)


def around(plan: Plan, guests: Any, carry: Any, work: Callable, *, along: Callable = lambda carry: carry) -> Any:
    """``carry = work(carry, guests, owner)`` for the guests of every device, one hop after the other.

    The guests of the next hop are sent while this one works; the last ones are not sent any further. ``along`` is
    applied to the carry after every work but the last: what of it travels, too.
    """
    count, here = lax.axis_size(plan.axis), lax.axis_index(plan.axis)
    carry, guests = vary_alike((carry, guests))

    def hop(k: Any, state: Any) -> Any:
        carry, guests = state
        following = sent_on(guests, plan)
        return vary_alike((along(work(carry, guests, (here - k) % count)), following))

    carry, guests = lax.fori_loop(0, count - 1, hop, (carry, guests)) if count > 1 else (carry, guests)
    return work(carry, guests, (here - (count - 1)) % count)


def rounded(found: Any, operands: Operands, plan: Plan, wanted: Any) -> tuple[Array, ...]:
    """Gradients in the dtypes of their leaves, unless they are to stay wide."""
    leaves = [x for x, shape in zip(operands.differentiable(), wanted, strict=True) if shape is not None]
    return tuple(x.astype(leaf.dtype) if plan.rounded else x for x, leaf in zip(found, leaves, strict=True))
