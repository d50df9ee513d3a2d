"""What the signatures share: heads behind tokens, masks joined, biases of any width."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from attendax import checks, masks
from attendax.checks import FLOATING, fail
from attendax.masks import Mask


def heads_first(function: str, query: Any, key: Any, value: Any) -> tuple[Array, Array, Array]:
    """(..., T, N, D) as (..., N, T, D); what does not fit is refused in the axes of the caller.

    Raises:
        TypeError: an array is not floating, or dtypes differ.
        ValueError: a rank or a size disagrees, or N is not a multiple of G.
    """
    arrays = {"query": query, "key": key, "value": value}
    sizes = checks.check(function, arrays, signature="attention, tokens first")
    N, G = sizes["N"], sizes["G"]
    if N != G and (G == 0 or N % G):
        fail(ValueError, function, f"query has N={N} heads, which is not a multiple of the G={G} of key.")
    query, key, value = (jnp.swapaxes(jnp.asarray(x), -3, -2) for x in (query, key, value))
    return query, key, value


def joined(function: str, mask: Any, *others: Any) -> Any:
    """A mask, and those of ``others`` that are not None, joined by ``&``; None where there is none.

    Raises:
        TypeError: an array that is not boolean.
    """
    others = tuple(other for other in others if other is not None)
    if mask is None or not others:
        found, others = (mask, ()) if mask is not None else (others[0] if others else None, others[1:])
    elif isinstance(mask, Mask):
        found = mask
    else:
        if str(getattr(mask, "dtype", None)) != "bool":
            kind = getattr(mask, "dtype", type(mask).__name__)
            fail(TypeError, function, f"mask must be boolean (True = this query may look at this key), got {kind}.")
        found = masks.dense(mask)
    for other in others:
        found = found & other
    return found


def wide_bias(bias: Any, dtype: Any) -> Any:
    """A floating bias in at least ``dtype``: these libraries take narrower ones, and every number of those is kept."""
    if str(getattr(bias, "dtype", None)) not in FLOATING:
        return bias  # None, or for the border to refuse
    return jnp.asarray(bias, jnp.promote_types(bias.dtype, dtype))
