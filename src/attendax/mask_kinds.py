"""The kinds of masks: which pairs each allows (``KINDS``), and which tiles (``BOUNDS``).

``BOUNDS`` says, from the first and last query and key of a tile, whether a mask may allow some pair of the tile and
whether it allows every one. These bounds may cause needless work, but never skip a tile with an allowed pair.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendax.checks import fail
from attendax.checks.advice import PER_BATCH


def lifted(x: Any, rank: int) -> Any:
    """An array with axes of 1 in front, up to a rank."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def same_rank(one: Any, other: Any) -> tuple[Any, Any]:
    """The two in the rank of the higher; only (T, S) is lifted, for a (B, T, S) would be read as per head (L3)."""
    rank = max(one.ndim, other.ndim)
    fits = all(a == b or 1 in (a, b) for a, b in zip(one.shape[::-1], other.shape[::-1], strict=False))
    if not fits or any(x.ndim not in (2, rank) for x in (one, other)):
        shapes = f"{tuple(one.shape)} and {tuple(other.shape)}"
        sentence = f"parts of shape {shapes} do not go together: each is (T, S), or they have equal axes."
        fail(ValueError, "masks", sentence)
    return lifted(one, rank), lifted(other, rank)


COMBINATIONS: dict[str, Callable] = {"and": lambda one, other: one & other, "or": lambda one, other: one | other}


def given(*arrays_and_numbers: Any) -> tuple[Any, Any, Any]:
    """Offset, left and right of a window: each an array, a number, or None (a side without a bound)."""
    arrays, numbers = arrays_and_numbers[:3], arrays_and_numbers[3:]
    offset, left, right = (x if x is not None else number for x, number in zip(arrays, numbers, strict=True))
    return offset, left, right


def _window(i: Any, j: Any, xp: Any, *arrays_and_numbers: Any) -> Any:
    return _between(i, j, xp, *given(*arrays_and_numbers))


def _between(i: Any, j: Any, xp: Any, offset: Any, left: Any, right: Any) -> Any:
    rank = max([2, *(x.ndim for x in (offset, left, right) if hasattr(x, "ndim"))])
    i, j, offset, left, right = (lifted(x, rank) if hasattr(x, "ndim") else x for x in (i, j, offset, left, right))
    place = i + offset  # no sum here leaves 32 bits: see ``integers``
    inside = xp.ones((*place.shape[:-1], j.shape[-1]), bool) if left is None and right is None else True
    inside = inside if left is None else inside & (j + left >= place)
    if right is None:
        return inside
    return inside & ((j if isinstance(right, int) and right == 0 else j - right) <= place)


def _padding(i: Any, j: Any, xp: Any, key_lengths: Any, query_lengths: Any) -> Any:
    real = lifted(j, key_lengths.ndim) < key_lengths
    if query_lengths is None:
        return real
    real, of_query = same_rank(real, lifted(i, query_lengths.ndim) < query_lengths)
    return real & of_query


def _segments(i: Any, j: Any, xp: Any, query_ids: Any, key_ids: Any) -> Any:
    of_query, of_key = same_rank(query_ids, key_ids)
    return of_query == of_key


def _blocks(i: Any, j: Any, xp: Any, array: Any, block_q: int, block_kv: int) -> Any:
    if 0 in array.shape[-2:]:  # no queries, or no keys
        return xp.zeros((*array.shape[:-2], i.shape[0], j.shape[1]), bool)
    rows = xp.take(array, i[:, 0] // block_q, axis=-2, mode="clip")  # an axis of 1 serves all
    return xp.take(rows, j[0] // block_kv, axis=-1, mode="clip")


@dataclasses.dataclass(frozen=True)
class PerText:
    """A function of one text, for all of them: its arrays have the axis of texts in front, its result (B, 1, T, S)."""

    f: Callable[..., Any]

    def __call__(self, i: Any, j: Any, *arrays: Any) -> Any:
        """The function for each entry of its arrays."""
        leaves, tree = jax.tree.flatten(arrays)
        if isinstance(i, np.ndarray) and all(isinstance(x, np.ndarray) for x in leaves):  # a function of NumPy, maybe
            texts = (jax.tree.unflatten(tree, [x[b] for x in leaves]) for b in range(len(leaves[0])))
            return np.stack([self.f(i, j, *of_text) for of_text in texts])[:, None]
        return jax.vmap(self.f, (None, None, *(0 for _ in arrays)))(i, j, *arrays)[:, None]


def _function(i: Any, j: Any, xp: Any, *arrays_and_f: Any) -> Any:
    *arrays, f = arrays_and_f
    result = f(i, j, *arrays)
    if not _is_answer(result, i, j):
        refuse_answer(result, i, j, arrays, f)
    return result


def _is_answer(result: Any, i: Any, j: Any) -> bool:
    shape, full = tuple(getattr(result, "shape", ())), (i.shape[0], j.shape[1])
    fits = len(shape) >= 2 and all(got in (1, size) for got, size in zip(shape[-2:], full, strict=True))
    return str(getattr(result, "dtype", None)) == "bool" and fits


def refuse_answer(result: Any, i: Any, j: Any, arrays: Any, f: Any) -> None:
    """Refuse what a function has returned for positions i (T, 1) and j (1, S)."""
    kind = getattr(result, "dtype", type(result).__name__)
    got = f"{kind} {tuple(result.shape)}" if hasattr(result, "shape") else kind
    full = i.shape[0], j.shape[1]
    sentence = f"f must return booleans that broadcast to (T, S) = {full}, got {got}."
    many = not isinstance(f, PerText) and any(getattr(x, "ndim", 0) > 1 for x in jax.tree.leaves(arrays))
    fail(TypeError, "from_function", sentence, advice=PER_BATCH if many else "")


def shape_of_answer(T: int, S: int, arrays: Any, f: Any) -> tuple[int, ...]:
    """The leading axes, T and S of what a function returns; only the first pair is computed.

    Raises:
        TypeError: it returns something else, in the sizes of the call.
    """
    one = np.zeros((1, 1), np.int32)
    result = f(one, one, *arrays)
    if _is_answer(result, one, one):
        return *result.shape[:-2], T, S
    pair: list[Any] = [jax.ShapeDtypeStruct(shape, jnp.arange(1).dtype) for shape in ((T, 1), (1, S))]
    try:
        result = jax.eval_shape(f, *pair, *arrays)
    except Exception:
        pair = [one, one]
    refuse_answer(result, pair[0], pair[1], arrays, f)
    return ()


KINDS: dict[str, Callable] = {
    "window": _window,
    "padding": _padding,
    "prefix": lambda i, j, xp, lengths: _padding(i, j, xp, lengths, None),
    "segments": _segments,
    "dense": lambda i, j, xp, array: array,
    "blocks": _blocks,
    "function": _function,
}


def _window_bounds(i: Any, j: Any, xp: Any, *arrays_and_numbers: Any) -> tuple[Any, Any]:
    (i_first, i_last), (j_first, j_last), (offset, left, right) = i, j, given(*arrays_and_numbers)
    some = _between(i_first, j_last, xp, offset, left, None), _between(i_last, j_first, xp, offset, None, right)
    every = _between(i_last, j_first, xp, offset, left, None), _between(i_first, j_last, xp, offset, None, right)
    (one, other), (first, last) = same_rank(*some), same_rank(*every)
    return one & other, first & last


def _padding_bounds(i: Any, j: Any, xp: Any, key_lengths: Any, query_lengths: Any = None) -> tuple[Any, Any]:
    first, last = (_padding(*ends, xp, key_lengths, query_lengths) for ends in zip(i, j, strict=True))
    return first, last


def _segments_bounds(i: Any, j: Any, xp: Any, query_ids: Any, key_ids: Any) -> tuple[Any, Any]:
    (q_least, q_most), (k_least, k_most) = query_ids, key_ids
    some = (q_least <= k_most) & (k_least <= q_most)
    return some, (q_least == q_most) & (k_least == k_most) & (q_least == k_least)


def _blocks_bounds(i: Any, j: Any, xp: Any, array: Any, block_q: int, block_kv: int) -> tuple[Any, Any]:
    """Bounds by sums over all blocks before a row and a column: those between are a difference."""
    sums = xp.cumsum(xp.cumsum(array.astype(np.int32), -2), -1)
    sums = xp.pad(sums, [(0, 0)] * (array.ndim - 2) + [(1, 0), (1, 0)])
    (top, bottom), (left, right) = (
        (xp.clip(first // size, 0, most - 1), xp.clip(last // size, 0, most - 1) + 1)
        for (first, last), size, most in zip((i, j), (block_q, block_kv), array.shape[-2:], strict=True)
    )

    def before(row: Any, column: Any) -> Any:
        return xp.take(xp.take(sums, row[:, 0], axis=-2), column[0], axis=-1)

    found = before(bottom, right) - before(top, right) - before(bottom, left) + before(top, left)
    area = ((bottom - top) * (right - left)).reshape((1,) * (array.ndim - 2) + found.shape[-2:])
    return found > 0, found == area


def _function_bounds(i: Any, j: Any, xp: Any, *arrays_and_f: Any) -> tuple[Any, Any]:
    open_to_all = xp.ones((len(i[0]), j[0].shape[1]), bool)
    return open_to_all, ~open_to_all


BOUNDS: dict[str, Callable] = {
    "window": _window_bounds,
    "padding": _padding_bounds,
    "prefix": _padding_bounds,
    "segments": _segments_bounds,
    "dense": lambda i, j, xp, least_and_largest: (least_and_largest[1], least_and_largest[0]),
    "blocks": _blocks_bounds,
    "answered": lambda i, j, xp, least_and_largest: (least_and_largest[1], least_and_largest[0]),  # a function, asked
    "function": _function_bounds,
}
