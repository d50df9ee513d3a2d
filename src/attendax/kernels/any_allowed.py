"""Which queries may look at some key, and which keys some query may look at, without the T x S pairs."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from attendax.masks import Mask

from .blockwise.schedule import repeat, visits_of
from .blockwise.tile_scores import allowed_pairs
from .blockwise.tiles import Grid

ROWS = 128


def any_allowed(mask: Any, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Whether a query may look at any key, and a key be looked at by any query, in any head.

    Args:
        mask: boolean, (T, S) or of the full rank of the scores, or a value from ``attendax.masks``.
        shape: of the scores (..., N, T, S), none of them 0.

    Returns:
        Booleans (..., T) and (..., S).
    """
    *leading, T, S = shape
    rank = len(shape)
    mask = (mask if isinstance(mask, Mask) else Mask("dense", (mask,))).of_rank(rank)
    axes = *leading, 1
    grid = Grid(axes, axes, T, S, min(ROWS, T), S)

    visits = visits_of(None, grid)

    def block(index, found):
        tile = visits.tile(index)
        pairs: Any = allowed_pairs(tile, mask)
        pairs = jnp.broadcast_to(pairs, (*leading[:-1], *pairs.shape[-3:])).any(axis=-3, keepdims=True)
        pairs = jnp.broadcast_to(pairs, (*pairs.shape[:-2], *grid.shape[-2:]))
        queries, keys = found
        return tile.put("queries", queries, pairs.any(axis=-1, keepdims=True)), keys | pairs.any(axis=-2, keepdims=True)

    none = jnp.zeros((*leading[:-1], 1, T, 1), bool), jnp.zeros((*leading[:-1], 1, 1, S), bool)
    queries, keys = repeat(visits.count, block, none)
    return queries.reshape(*leading[:-1], T), keys.reshape(*leading[:-1], S)
