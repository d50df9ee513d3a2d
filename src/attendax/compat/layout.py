"""The parts that the three signatures share: arrays with heads after tokens, joined masks, biases of any dtype."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from attendax import checks, masks
from attendax.checks import FLOATING
from attendax.mask_type import Mask


def heads_first(function: str, query: Any, key: Any, value: Any) -> tuple[Array, Array, Array]:
    """(..., T, N, D) as (..., N, T, D); what does not fit is refused in the axes of the caller.

    Raises:
        TypeError: an array is not floating, or dtypes differ.
        ValueError: a rank or a size disagrees, or N is not a multiple of G.
    """
    arrays = {"query": query, "key": key, "value": value}
    checks.check(function, arrays, signature="attention, tokens first")
    checks.groups(function, arrays, tokens_first=True)
    query, key, value = (jnp.swapaxes(jnp.asarray(x), -3, -2) for x in (query, key, value))
    return query, key, value


def scores_shape(query: Any, key: Any) -> tuple[int, ...]:
    """(..., N, T, S), of query and key with their heads first."""
    return *query.shape[:-1], key.shape[-2]


def joined(function: str, scores: tuple[int, ...], mask: Any, *others: Any) -> Any:
    """A mask, and those of ``others`` that are not None, joined by ``&``; None if all are None.

    Raises:
        TypeError: an array that is not boolean.
        ValueError: one that does not fit the scores, of this shape.
    """
    others = tuple(other for other in others if other is not None)
    if mask is None or not others:
        found, others = (mask, ()) if mask is not None else (others[0] if others else None, others[1:])
    elif isinstance(mask, Mask):
        found = mask
    else:
        checks.mask(function, mask, scores, broadcast=False)
        found = masks.dense(mask)
    for other in others:
        found = found & other
    return found


def wide_bias(bias: Any, dtype: Any) -> Any:
    """A floating bias in at least ``dtype``: these libraries take narrower ones, and every number of those is kept."""
    if str(getattr(bias, "dtype", None)) not in FLOATING:
        return bias  # None, or what the check of arguments refuses
    return jnp.asarray(bias, jnp.promote_types(bias.dtype, dtype))
