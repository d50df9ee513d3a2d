"""A mask as the kernels take it: for each query the keys [first, last) that it may see, an id that they must share.

A mask of segments is also an interval, if the keys of each segment stand together. So a packed batch skips tiles, and
looks at ids only where an interval ends. Any other mask has a bit for each pair.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attendax.mask_kinds import given, lifted
from attendax.mask_type import Mask

from ..functions import has_function
from ..native.program import all_of
from ..operands import Plan

KINDS = ("window", "padding", "prefix", "segments")


class Seen(NamedTuple):
    """Arrays of int32, with the leading axes of the mask."""

    keys: Array  # (..., N, T, 4): first, last, and in between the keys [open, shut) that all are seen
    query_ids: Array  # (..., T)
    key_ids: Array  # (..., S)
    bits: Array | None  # (..., N, T, S / 32), the first key of a word in its lowest bit; None if intervals are all


def why_not(mask: Mask | None, plan: Plan) -> str:
    """The reason why a mask has no such form; nothing where it has."""
    return "a mask from a function, mapped by vmap" if plan.batch and has_function(mask) else ""


def _parts(mask: Mask | None) -> tuple[list[Mask], list[Mask]]:
    """The parts of a mask that are intervals, one of segments at most; and the others. All of them must hold."""
    intervals: list[Mask] = []
    others: list[Mask] = []
    for part in all_of(mask):
        once = part.kind != "segments" or all(x.kind != "segments" for x in intervals)
        (intervals if part.kind in KINDS and once else others).append(part)
    return intervals, others


def seen_by(mask: Mask | None, T: int, S: int, rank: int) -> Seen:
    """The keys that each query may see by a mask, whose arrays have the rank of the scores."""
    i = jnp.arange(T, dtype=jnp.int32)
    first, last, together = (x.reshape(1, T) for x in (jnp.zeros_like(i), jnp.full_like(i, S), jnp.ones_like(i, bool)))
    query_ids, key_ids = jnp.zeros(T, jnp.int32), jnp.zeros(S, jnp.int32)
    intervals, others = _parts(mask)
    for part in intervals:
        if part.kind == "segments":
            ids = part.arrays[0][..., 0, :, 0], part.arrays[1][..., 0, 0, :]
            *found, query_ids, key_ids = _segments(*_alike(*ids))
            begin, end, together = (x[..., None, :] for x in found)
        else:
            begin, end = _window(part, i, S) if part.kind == "window" else _lengths(part, i, S)
        first, last = jnp.maximum(*_alike(first, begin)), jnp.minimum(*_alike(last, end))
    bits = None
    if others:
        allowed = _allowed(others, T, S, rank)
        bits = _packed(allowed)
        begin, behind = (jnp.argmax(x, -1).astype(jnp.int32) for x in (allowed, allowed[..., ::-1]))
        end = jnp.where(allowed.any(-1), S - behind, 0)
        first, last = jnp.maximum(*_alike(first, begin)), jnp.minimum(*_alike(last, end))
    first, last, together = jnp.broadcast_arrays(*_alike(first, last, together))
    keys = jnp.stack([first, last, jnp.where(together, first, 0), jnp.where(together, last, 0)], -1)
    return Seen(jnp.where((first < last)[..., None], keys, 0), query_ids, key_ids, bits)


def _allowed(parts: list[Mask], T: int, S: int, rank: int) -> Array:
    """The pairs that all of these parts allow, (..., N or 1, T or 1, S). XLA computes them where they are packed."""
    found: Any = True
    for part in parts:
        each = part.allowed(jnp.arange(T)[:, None], jnp.arange(S)[None], jnp)
        found = found & lifted(each, rank)
    return jnp.broadcast_to(found, (*found.shape[:-1], S))


def _packed(allowed: Array) -> Array:
    """Truth values as words of 32 bits."""
    words = -(-allowed.shape[-1] // 32)
    allowed = jnp.pad(allowed, [(0, 0)] * (allowed.ndim - 1) + [(0, 32 * words - allowed.shape[-1])])
    bits = allowed.reshape(*allowed.shape[:-1], words, 32).astype(jnp.uint32)
    bits <<= jax.lax.broadcasted_iota(jnp.uint32, bits.shape, bits.ndim - 1)
    return jax.lax.bitcast_convert_type(bits.sum(-1, dtype=jnp.uint32), jnp.int32)


def _alike(*arrays: Array) -> list[Array]:
    """The arrays in the highest rank among them."""
    rank = max(x.ndim for x in arrays)
    return [lifted(x, rank) for x in arrays]


def _window(part: Mask, i: Array, S: int) -> tuple[Any, Any]:
    """The keys [first, last) of a window. No sum here leaves 32 bits: see ``integers``."""
    offset, left, right = (x[..., 0] if hasattr(x, "ndim") else x for x in given(*part.arrays, *part.settings))
    place, *sides = _alike(i, *(jnp.asarray(0 if x is None else x, jnp.int32) for x in (offset, left, right)))
    place, begin, end = place + sides[0], jnp.zeros_like(place), jnp.full_like(place, S)
    if left is not None:
        begin = jnp.where(sides[1] >= place, 0, jnp.where(S - 1 + sides[1] < place, S, place - sides[1]))
    if right is not None:
        end = jnp.where(S - 1 - sides[2] <= place, S, jnp.where(-sides[2] > place, 0, place + sides[2] + 1))
    return begin, end


def _lengths(part: Mask, i: Array, S: int) -> tuple[Any, Any]:
    """The keys [0, length), and none for queries behind theirs."""
    of_keys, of_queries = (None if x is None else x[..., 0] for x in (*part.arrays, None)[:2])
    end = jnp.full_like(i, S) if of_keys is None else jnp.clip(of_keys, 0, S).astype(jnp.int32)
    if of_queries is not None:
        i, end, of_queries = _alike(i, end, of_queries)
        end = jnp.where(i < of_queries, end, 0)
    return jnp.zeros_like(i), end


def _segments(query_ids: Array, key_ids: Array) -> tuple[Array, ...]:
    """The keys [first, last) of each query's segment, whether no other is in between, and all ids anew."""
    dtype = jnp.promote_types(query_ids.dtype, key_ids.dtype)
    lead = jnp.broadcast_shapes(query_ids.shape[:-1], key_ids.shape[:-1])

    def of_text(query_ids: Array, key_ids: Array) -> tuple[Array, ...]:
        order = jnp.argsort(key_ids).astype(jnp.int32)
        ordered = key_ids[order]
        sides = "left", "right"
        below, up_to = (jnp.searchsorted(ordered, query_ids, side=x, method="sort").astype(jnp.int32) for x in sides)
        first, last = order[jnp.minimum(below, len(order) - 1)], order[jnp.maximum(up_to, 1) - 1] + 1
        there = below < up_to
        of_keys = jnp.searchsorted(ordered, key_ids, method="sort").astype(jnp.int32)
        together = last - first == up_to - below
        return jnp.where(there, first, 0), jnp.where(there, last, 0), together, jnp.where(there, below, -2), of_keys

    for _ in lead:
        of_text = jax.vmap(of_text)
    both = (jnp.broadcast_to(x, (*lead, x.shape[-1])).astype(dtype) for x in (query_ids, key_ids))
    return of_text(*both)
