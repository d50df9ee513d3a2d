"""Ulysses (Jacobs et al. 2023): all-to-all from some tokens of all heads to all tokens of some heads, and back.

In between is an ordinary call with fewer heads. ``Positions.heads`` is the number of its first head among all.
"""

import dataclasses
import math

import jax.numpy as jnp
from jax import Array, lax

from attendax.checks import fail
from attendax.kernels.operands import Operands, Positions
from attendax.mask_type import Mask


def with_all_tokens(operands: Operands, axis: tuple[str, ...]) -> Operands:
    """The operands of all tokens and this device's share of the heads; key heads too few to share are repeated."""
    count, (N, T) = lax.axis_size(axis), operands.query.shape[-3:-1]
    if N % count:
        sentence = f"strategy 'ulysses' divides heads, and {N} heads are not a multiple of {count} devices."
        fail(ValueError, "sharding.attention", sentence, advice="'ring' and 'all_gather' divide any number of heads.")
    first = lax.axis_index(axis) * (N // count)
    G = max(1, operands.key.shape[-3])
    repeats = math.lcm(G, count) // G

    def own_heads(x: Array) -> Array:
        return x if x.shape[-3] == 1 < N else lax.dynamic_slice_in_dim(x, first, N // count, x.ndim - 3)

    def gathered(x: Array, place: int) -> Array:
        return lax.all_gather(x, axis, axis=x.ndim + place, tiled=True)

    def of_pairs(x: Array) -> Array:
        if x.shape[-2] != T:
            return own_heads(x)
        return gathered(x, -2) if x.shape[-3] == 1 < N else tokens_of_heads(x, axis)

    def of_mask(part: Mask) -> Mask:
        if part.kind == "segments":
            queries, keys = part.arrays
            return dataclasses.replace(part, arrays=(gathered(queries, -2), gathered(keys, -1)))
        if part.kind == "function":
            return part
        cut = of_pairs if part.kind == "dense" else own_heads
        return dataclasses.replace(part, arrays=tuple(None if x is None else cut(x) for x in part.arrays))

    def of_place(place: Array | None) -> Array | None:
        # A scalar is a start offset. All tokens are here now, so positions start at 0.
        return gathered(place, -1) if place is not None and jnp.ndim(place) else None

    heads, queries, keys = operands.positions
    repeated = (jnp.repeat(x, repeats, axis=-3) if repeats > 1 else x for x in (operands.key, operands.value))
    query, key, value = (tokens_of_heads(x, axis) for x in (operands.query, *repeated))
    return operands._replace(
        query=query,
        key=key,
        value=value,
        bias=None if operands.bias is None else of_pairs(operands.bias),
        mask=None if operands.mask is None else operands.mask.map(of_mask),
        dropout_keys=None if operands.dropout_keys is None else tuple(map(own_heads, operands.dropout_keys)),
        positions=Positions(first + (0 if heads is None else heads), of_place(queries), of_place(keys)),
    )


def tokens_of_heads(x: Array, axis: tuple[str, ...]) -> Array:
    """Exchange some tokens of all heads (..., N, T / n, .) for all tokens of some: (..., N / n, T, .)."""
    return lax.all_to_all(x, axis, split_axis=x.ndim - 3, concat_axis=x.ndim - 2, tiled=True)


def heads_of_tokens(x: Array, axis: tuple[str, ...]) -> Array:
    """Exchange all tokens of some heads for some tokens of all."""
    return lax.all_to_all(x, axis, split_axis=x.ndim - 2, concat_axis=x.ndim - 3, tiled=True)
