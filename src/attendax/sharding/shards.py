"""A device's shard of the keys, and the operands of its own queries with the shard of another device.

A bias and a dense mask have the rows of the device's own queries and the columns of all keys, in the order in which the
devices hold the keys. They are never sent: the columns that belong to a shard of keys are cut out of them.
"""

import dataclasses
from typing import NamedTuple

from jax import Array, lax

from attendax.kernels.operands import Index, Operands, Plan
from attendax.mask_type import Mask


class KeyShard(NamedTuple):
    """The keys that a device holds, with values, positions and ids: what a ring passes on."""

    key: Array  # (..., G, S / n, D)
    value: Array  # (..., G, S / n, V)
    positions: Array | None  # (S / n,), or () where they are counted on from a number
    ids: tuple[Array, ...]  # of segments, each (..., 1, 1, S / n)


def local_shard(operands: Operands) -> KeyShard:
    """The shard of this device."""
    parts = [] if operands.mask is None else operands.mask.parts()
    ids = tuple(part.arrays[1] for part in parts if part.kind == "segments")
    return KeyShard(operands.key, operands.value, operands.positions.keys, ids)


def with_shard(operands: Operands, shard: KeyShard, source: Index) -> Operands:
    """The operands of the device's own queries and the shard of the device ``source``."""
    ids, size = iter(shard.ids), operands.key.shape[-2]

    def part_of(part: Mask) -> Mask:
        if part.kind == "segments":
            return dataclasses.replace(part, arrays=(part.arrays[0], next(ids)))
        if part.kind == "dense":
            return dataclasses.replace(part, arrays=(columns(part.arrays[0], source, size),))
        return part

    return operands._replace(
        key=shard.key,
        value=shard.value,
        bias=None if operands.bias is None else columns(operands.bias, source, size),
        mask=None if operands.mask is None else operands.mask.map(part_of),
        positions=operands.positions._replace(keys=shard.positions),
    )


def columns(x: Array, source: Index, size: int) -> Array:
    """The columns of x that belong to the keys of ``source``; x itself where one column serves all keys."""
    return x if x.shape[-1] == 1 else lax.dynamic_slice_in_dim(x, source * size, size, x.ndim - 1)


def local_plan(plan: Plan, *, partial: bool) -> Plan:
    """The plan of a call on one device and one shard; ``partial`` where other shards add to its results."""
    return dataclasses.replace(plan, axis=(), backend=plan.local, partial=partial, rounded=False)
