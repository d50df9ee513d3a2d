"""Mask objects: which query may look at which key, from a few numbers instead of T x S truth values (L3, L4).

A mask is a pytree: offsets, lengths, ids and arrays are leaves and may be traced; the rest is part of its structure.
Combine masks with ``&``, ``|`` and ``~``. Sides, offsets, lengths and ids are integers of any width (see
``attendax.integers``). For scores (B, N, T, S) a side, an offset or a length has one of these shapes:

- a scalar, for the whole batch;
- (B,), one per text: the leading axes of the scores without the head axis;
- (N, 1, 1) or (B, N, 1, 1), one per head: the axes of the scores, with the last two of size 1.

Ids are (B, T) and (B, S), and apply to every head. ``mask_type`` has the type.
"""

from collections.abc import Callable
from typing import Any

import jax

from attendax import checks, integers
from attendax.checks import fail
from attendax.checks.advice import on_kind
from attendax.checks.keywords import knows_arguments
from attendax.integers import ArrayLike as ArrayLike
from attendax.mask_kinds import PerText
from attendax.mask_type import Mask as Mask

__all__ = ["Mask", "blocks", "causal", "dense", "from_function", "padding", "prefix", "segments", "window"]


SIDES = "Write window(3, 0) for the last keys, window(3, 3) for both sides, window(3, None) for no bound."


def __dir__() -> list[str]:
    return __all__


@knows_arguments({})
def causal(offset: int | ArrayLike = 0) -> Mask:
    """Query i may look at key j when ``j <= i + offset`` (L4).

    Without an offset query 0 sees only key 0, even if T and S differ. ``offset = S - T`` aligns the last query with the
    last key, as flash-attention does since 2.1.

    Args:
        offset: an integer, part of the structure of the mask; or an array of integers, which may be traced, so that a
            cache that fills is not compiled anew. A scalar for all, (B,) per text, (N, 1, 1) per head.
    """
    return _within("causal", None, 0, offset)


@knows_arguments({}, missing=SIDES)
def window(left: int | ArrayLike | None, right: int | ArrayLike | None, offset: int | ArrayLike = 0) -> Mask:
    """Query i may look at keys ``i + offset - left`` to ``i + offset + right``; None = no bound on that side.

    ``window(3, 0)`` allows 4 keys, as flash-attention's ``window_size=(3, 0)`` does. Mistral's sliding window of W keys
    includes the query's own key: ``window(W - 1, 0)``.

    If the sides are arrays, local and global layers, or texts with different windows, share one compiled program.
    In an array, "no bound" is any number of at least T + S, such as 2³⁰ (``attendax.integers.SIDE``). A larger number
    counts as 2³⁰. If ``|offset|`` > 2²⁹, only None means unbounded.

    Args:
        left, right: the number of keys back and ahead. Integers, part of the structure of the mask; or arrays of
            integers, which may be traced: a scalar for all, (B,) per text, (N, 1, 1) per head, (B, N, 1, 1) for both.
        offset: as in ``causal``.

    Raises:
        TypeError: a side is neither an integer nor an array of integers.
        ValueError: a side is known to be negative.

    Example:
        >>> import numpy as np
        >>> local = np.array([1, 2**30]).reshape(2, 1, 1)  # head 0 sees its own key and the one before, head 1 all
        >>> window(local, 0).to_dense(3, 3)[0].astype(int)
        array([[1, 0, 0],
               [1, 1, 0],
               [0, 1, 1]])
    """
    left, right = integers.side("window", "left", left), integers.side("window", "right", right)
    return _within("window", left, right, offset)


def padding(key_lengths: int | ArrayLike, query_lengths: int | ArrayLike | None = None) -> Mask:
    """The first ``key_lengths`` keys are real, the rest is padding; likewise for ``query_lengths`` queries.

    Args:
        key_lengths: integers from 0 to S: a scalar for all, (B,) per text, (N, 1, 1) per head.
        query_lengths: the same for queries; a query beyond its length may look at no key.
    """
    of_keys = integers.lengths("padding", "key_lengths", key_lengths)
    of_queries = None if query_lengths is None else integers.lengths("padding", "query_lengths", query_lengths)
    return Mask("padding", (of_keys, of_queries))


@knows_arguments({}, missing="If texts look at themselves, write segments(ids, ids).")
def segments(query_ids: ArrayLike, key_ids: ArrayLike) -> Mask:
    """Packed sequences: a query may look at the keys of its own segment.

    Args:
        query_ids, key_ids: integers (B, T) and (B, S), per text; or (T,) and (S,), for all texts.

    Raises:
        TypeError: ids are not arrays of integers.
    """
    return Mask("segments", integers.ids("segments", query_ids, key_ids))


def prefix(lengths: int | ArrayLike, offset: int | ArrayLike = 0) -> Mask:
    """Causal, except that every query may look at the first ``lengths`` keys (prefix language model).

    Args:
        lengths: as in ``padding``.
        offset: as in ``causal``.
    """
    return _within("prefix", None, 0, offset) | Mask("prefix", (integers.lengths("prefix", "lengths", lengths),))


def dense(array: ArrayLike) -> Mask:
    """A boolean array (T, S), or of the full rank of the scores, each axis full or 1 (L3)."""
    _check_boolean("dense", array)
    return Mask("dense", (array,))


def blocks(array: ArrayLike, block_q: int, block_kv: int) -> Mask:
    """Let blocks of queries look at blocks of keys, as block-sparse and top-k attention choose them.

    Query i may look at key j when ``array[..., i // block_q, j // block_kv]``. Tiles in blocks that are False are
    skipped. Join a rule of pairs by ``&``: ``blocks(array, 128, 128) & causal()``.

    Args:
        array: boolean (⌈T / block_q⌉, ⌈S / block_kv⌉), optionally with the leading axes and heads of the scores in
            front, (B, N, ., .), each axis full or 1. It may be traced.
        block_q, block_kv: the number of queries and of keys in a block.

    Raises:
        TypeError: the array is not boolean, or a size is not an integer.
        ValueError: the rank is below 2, or a size is below 1.

    Example:
        >>> import numpy as np
        >>> blocks(np.eye(2, dtype=bool), 2, 2).to_dense(3, 4).astype(int)
        array([[1, 1, 0, 0],
               [1, 1, 0, 0],
               [0, 0, 1, 1]])
    """
    _check_boolean("blocks", array)
    if len(array.shape) < 2:
        fail(ValueError, "blocks", f"array has rank {len(array.shape)} but needs at least 2.")
    sizes = (checks.integer("blocks", *size) for size in (("block_q", block_q), ("block_kv", block_kv)))
    return Mask("blocks", (array,), tuple(min(size, integers.LENGTH) for size in sizes))  # beyond, one block is all


def from_function(f: Callable[..., Any], *arrays: Any, per: str | None = None) -> Mask:
    """Any function ``f(i, j, *arrays) -> bool`` of the positions i (T, 1) and j (1, S), element by element.

    ``f`` gets the positions of one tile at a time, so it looks up data by position: ``ids[i]``. Before the main loop,
    ``f`` is evaluated once per tile. Tiles that it masks entirely are skipped.

    Args:
        f: made of JAX operations; for the functions of ``spec`` also of NumPy operations.
        arrays: arrays, numbers or pytrees of them, passed to f; they may be traced. If the queries begin at another
            position than key 0, pass that offset as one of them.
        per: None; or "batch": the first axis of every array belongs to the texts, and f gets the arrays of one text,
            for scores (B, N, T, S). So ``ids[i] == ids[j]`` works for one text, ids (T,), and for many, ids (B, T).

    Raises:
        TypeError: f is not callable, or an argument is not an array. When used: f does not return booleans (T, S).
        ValueError: with "batch", an array lacks the first axis, or has another number of texts.

    Example:
        >>> every_second = from_function(lambda i, j, offset: (i + offset - j) % 2 == 0, 3)
        >>> every_second.to_dense(2, 4).astype(int)
        array([[0, 1, 0, 1],
               [1, 0, 1, 0]])
        >>> import numpy as np
        >>> ids = np.array([[0, 0, 1], [0, 1, 1]])  # of two texts
        >>> from_function(lambda i, j, ids: ids[i] == ids[j], ids, per="batch").to_dense(3, 3).shape
        (2, 1, 3, 3)
    """
    if not callable(f):
        fail(TypeError, "from_function", f"f must be a function of positions (i, j), got {type(f).__name__}.")
    checks.one_of("from_function", "per", per, (None, "batch"))
    arrays = checks.function_arrays(arrays)
    if per is None:
        return Mask("function", arrays, (f,))
    shapes = [tuple(x.shape) for x in jax.tree.leaves(arrays)]
    if not shapes or () in shapes or len({shape[0] for shape in shapes}) > 1:
        got = ", ".join(map(str, shapes)) or "none"
        sentence = f"per='batch' needs arrays whose first axis is that of the texts, got {got}."
        fail(ValueError, "from_function", sentence, advice="f may close over arrays that all texts share.")
    return Mask("function", arrays, (PerText(f),))


def _within(function: str, left: Any, right: Any, offset: Any) -> Mask:
    """A window: of offset, left and right the arrays, None where it is a number, and the numbers."""
    found = integers.offset(function, offset), left, right
    numbers = tuple(x if isinstance(x, int) else None for x in found)
    return Mask("window", tuple(None if isinstance(x, int) else x for x in found), numbers)


def _check_boolean(function: str, array: Any) -> None:
    if str(getattr(array, "dtype", None)) != "bool":
        sentence = f"array must be boolean, got {getattr(array, 'dtype', type(array).__name__)}."
        advice = on_kind("array", array, "bool") or ("Write array.astype(bool)." if hasattr(array, "dtype") else "")
        fail(TypeError, function, sentence, advice=advice)
