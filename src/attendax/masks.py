"""Masks as values: which query may look at which key, from a few numbers instead of T x S truth values (L3, L4).

A mask is a pytree: offsets, lengths, ids and arrays are leaves and may be traced; the rest is part of its structure.
Combine masks with ``&``, ``|`` and ``~``. Offsets, lengths and ids have the leading axes of the scores without the head
axis, (B,), (B, T), (B, S) for scores (B, N, T, S), and apply to every head; a scalar applies to the whole batch. They
are integers of any width: see ``attendax.integers``.

Each kind says two things: which pairs it allows (``KINDS``), and, from the first and last query and key of a tile,
whether it may allow some pair of the tile and whether it allows every one (``BOUNDS``). These bounds may cause needless
work, but never skip a tile with an allowed pair.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendax import checks, integers
from attendax.checks import fail, written
from attendax.checks.advice import on_axes, on_kind, on_window
from attendax.integers import ArrayLike as ArrayLike
from attendax.pictures import Pictures

__all__ = ["Mask", "causal", "dense", "from_function", "padding", "prefix", "segments", "window"]


def __dir__() -> list[str]:
    return __all__


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class Mask:
    """A mask: its kind, its arrays (of ``&``, ``|``, ``~``: masks), its settings. The functions below make them."""

    kind: str = dataclasses.field(metadata={"static": True})
    arrays: tuple[Any, ...] = ()
    settings: tuple[Any, ...] = dataclasses.field(default=(), metadata={"static": True})

    __array_ufunc__ = None  # so that NumPy leaves ``array & mask`` to the mask

    def __repr__(self) -> str:
        """As one would write it: ``causal() & padding([3, 8])``."""
        if self.kind == "not":
            return f"~{_in_brackets(self.arrays[0], 'and', 'or')}"
        if self.kind == "and":
            return " & ".join(_in_brackets(part, "or") for part in self.arrays)
        if self.kind == "or" and (of_prefix := _prefix_of(self)):
            return written.call("prefix", *of_prefix)
        if self.kind == "or":
            return " | ".join(map(repr, self.arrays))
        if self.kind == "window":
            offset, left, right = _window_of(self)
            name, sides = ("causal", ()) if (left, right) == (None, 0) else ("window", (left, right))
            return written.call(name, *sides, *_but_zero(offset))
        if self.kind == "function":
            return written.call("from_function", *self.settings, *self.arrays)
        return written.call(self.kind, *(x for x in self.arrays if x is not None), *self.settings)

    def __and__(self, other: "Mask") -> "Mask":
        return _combine("and", self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return _combine("or", self, other)

    def __rand__(self, other: Any) -> "Mask":
        return _combine("and", self, other)

    def __ror__(self, other: Any) -> "Mask":
        return _combine("or", self, other)

    def __bool__(self) -> bool:
        fail(TypeError, "mask", "a mask has no truth value.", advice="Combine masks with & (and), | (or) and ~ (not).")

    def __invert__(self) -> "Mask":
        return Mask("not", (self,))

    def to_dense(self, T: int, S: int) -> Any:
        """The truth values: boolean, (T, S) or (..., 1, T, S), or as ``dense`` and ``from_function`` give it.

        A NumPy array where all arrays of the mask are NumPy's, a JAX array otherwise.

        Raises:
            ValueError: the mask is for other lengths than T and S.
        """
        self.check(T, S)
        xp: Any = jnp if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(self)) else np
        full = xp.asarray(self._askable(T, S).of_rank().allowed(xp.arange(T)[:, None], xp.arange(S)[None], xp))
        return xp.broadcast_to(full, (*full.shape[:-2], T, S))

    def show(self, T: int, S: int) -> Pictures:
        """A picture of who may look at whom: drawn in a notebook, text in a terminal; one for each of a batch.

        Raises:
            ValueError: as ``to_dense``, or more than 16,384 squares.

        Example:
            >>> (causal() & window(1, None)).show(3, 4)
            mask
            ■ · · ·
            ■ ■ · ·
            · ■ ■ ·
        """
        return Pictures(mask=self.to_dense(T, S))

    def shape(self, T: int, S: int) -> tuple[int, ...]:
        """The shape of ``to_dense``; only the first pair is computed.

        Raises:
            ValueError: the mask is for other lengths than T and S.
        """
        self.check(T, S)
        first = np.zeros((1, 1), np.int32)
        one = self._askable(T, S).map(_stand_in).of_rank().map(_first_pair).allowed(first, first, np)
        return *one.shape[:-2], T, S

    def _askable(self, T: int, S: int) -> "Mask":
        """The mask for T x S pairs; without any pair, its functions are not called."""
        some = np.ones((1, 1), bool)
        return self if T and S else self.map(lambda part: Mask("dense", (some,)) if part.kind == "function" else part)

    def map(self, f: Callable[["Mask"], "Mask"]) -> "Mask":
        """Apply ``f`` to the parts that are not made of other masks."""
        if self.kind in ("and", "or", "not"):
            return dataclasses.replace(self, arrays=tuple(part.map(f) for part in self.arrays))
        return f(self)

    def of_rank(self, rank: int = 0) -> "Mask":
        """The mask with its arrays in the shape of scores, (..., N, T, S), an axis 1 where they do not vary.

        The arrays of a function stay as they are. With ``rank``, axes of 1 are put in front.
        """
        return self.map(lambda part: _of_rank(part, rank))

    def allowed(self, i: Any, j: Any, xp: Any) -> Any:
        """Whether query i may look at key j, for positions i (T, 1) and j (1, S), of a mask ``of_rank``.

        For some of the positions, its arrays are cut to the same. ``xp`` is numpy or jax.numpy.
        """
        if self.kind == "not":
            return ~self.arrays[0].allowed(i, j, xp)
        if self.kind in COMBINATIONS:
            return COMBINATIONS[self.kind](*_same_rank(*(part.allowed(i, j, xp) for part in self.arrays)))
        return KINDS[self.kind](i, j, xp, *self.arrays, *self.settings)

    def bounds(self, i: Any, j: Any, xp: Any) -> tuple[Any, Any]:
        """Whether a tile may hold an allowed pair, and whether all its pairs are allowed.

        i: first and last query of each tile, (nq, 1) each; j: first and last key, (1, nk) each. Arrays have the rank of
        the scores; ids and truth values are given as their least and largest for each tile, a pair of
        (..., nq or 1, nk or 1).
        """
        if self.kind == "not":
            some, every = self.arrays[0].bounds(i, j, xp)
            return ~every, ~some
        if self.kind in COMBINATIONS:
            one, other = (part.bounds(i, j, xp) for part in self.arrays)
            pairs = (_same_rank(a, b) for a, b in zip(one, other, strict=True))
            some, every = (COMBINATIONS[self.kind](*pair) for pair in pairs)
            return some, every
        return BOUNDS[self.kind](i, j, xp, *self.arrays, *self.settings)

    def check(self, T: int, S: int) -> None:
        """Hold lengths and shapes against T and S.

        Raises:
            ValueError: they do not fit.
        """
        if max(T, S) >= integers.LENGTH:
            fail(ValueError, "masks", f"T={T} and S={S} must be below {integers.LENGTH}.")
        for part in self.arrays:
            if isinstance(part, Mask):
                part.check(T, S)
        if self.kind == "segments":
            for name, ids, size in zip(("query_ids", "key_ids"), self.arrays, (T, S), strict=True):
                if ids.shape[-1] != size:
                    fail(ValueError, "segments", f"{name} has length {ids.shape[-1]} but must have {size}.")
        if self.kind == "padding":
            for name, lengths, size in zip(("key_lengths", "query_lengths"), self.arrays, (S, T), strict=True):
                if lengths is not None:
                    checks.lengths("padding", name, lengths, size, rank=None)
        if self.kind == "prefix":
            checks.lengths("prefix", "lengths", self.arrays[0], S, rank=None)
        if self.kind == "dense":
            shape = self.arrays[0].shape
            if len(shape) < 2 or any(got not in (1, size) for got, size in zip(shape[-2:], (T, S), strict=True)):
                sentence = f"array has shape {shape} but must end in ({T}, {S}), each of them or 1."
                by_key = len(shape) == 2 and shape[1] == S
                said = on_axes("mask", shape, (shape[0], 1, T, S), array="array") if by_key else ""
                fail(ValueError, "dense", sentence, advice=said)


def causal(offset: int | ArrayLike = 0) -> Mask:
    """Query i may look at key j when ``j <= i + offset`` (L4).

    Without an offset query 0 sees key 0 alone, also where T and S differ. Aligned to the end of the keys, as
    flash-attention 2.1 and later have it, is ``offset = S - T``.

    Args:
        offset: an integer, part of the structure of the mask; or an array of integers, the leading axes of the scores
            without the head axis (a scalar for all), which may be traced: a cache that fills needs no new compilation.
    """
    return _within("causal", None, 0, offset)


def window(left: int | None, right: int | None, offset: int | ArrayLike = 0) -> Mask:
    """Query i may look at keys ``i + offset - left`` to ``i + offset + right``; None = no bound on that side.

    ``window(3, 0)`` sees 4 keys, as flash-attention's ``window_size=(3, 0)`` does. A sliding window of W keys that
    counts the query's own, as Mistral has it, is ``window(W - 1, 0)``.

    Args:
        left, right: how many keys back and ahead, integers that are not traced.
        offset: as in ``causal``.
    """
    said = on_window(left, right, offset)
    left, right = (
        None if side is None else checks.integer("window", name, side, minimum=0, maximum=integers.SIDE, advice=said)
        for name, side in (("left", left), ("right", right))
    )
    return _within("window", left, right, offset)


def padding(key_lengths: int | ArrayLike, query_lengths: int | ArrayLike | None = None) -> Mask:
    """The first ``key_lengths`` keys are real, the rest is padding; likewise for ``query_lengths`` queries.

    Args:
        key_lengths: integers, the leading axes of the scores without the head axis (a scalar for all), each from 0 to
            S.
        query_lengths: the same for queries; a query beyond its length may look at nothing.
    """
    of_keys = integers.lengths("padding", "key_lengths", key_lengths)
    of_queries = None if query_lengths is None else integers.lengths("padding", "query_lengths", query_lengths)
    return Mask("padding", (of_keys, of_queries))


def segments(query_ids: ArrayLike, key_ids: ArrayLike) -> Mask:
    """Packed sequences: a query may look at the keys of its own segment. Integer ids (..., T) and (..., S)."""
    return Mask("segments", integers.ids("segments", query_ids, key_ids))


def prefix(lengths: int | ArrayLike, offset: int | ArrayLike = 0) -> Mask:
    """Causal, but the first ``lengths`` keys are open to every query (prefix language model).

    Args:
        lengths: as in ``padding``.
        offset: as in ``causal``.
    """
    return _within("prefix", None, 0, offset) | Mask("prefix", (integers.lengths("prefix", "lengths", lengths),))


def dense(array: ArrayLike) -> Mask:
    """A boolean array (T, S), or of the full rank of the scores, each axis full or 1 (L3)."""
    if str(getattr(array, "dtype", None)) != "bool":
        sentence = f"array must be boolean, got {getattr(array, 'dtype', type(array).__name__)}."
        fail(TypeError, "dense", sentence, advice=on_kind("array", array, "bool"))
    return Mask("dense", (array,))


def from_function(f: Callable[..., Any], *arrays: Any) -> Mask:
    """Any function ``f(i, j, *arrays) -> bool`` of the positions i (T, 1) and j (1, S), element by element.

    The positions of one tile at a time are asked for, so what varies with the position is looked up: ``ids[i]``.

    Args:
        f: of JAX operations, or of NumPy's for the functions of ``spec``.
        arrays: arrays, numbers or pytrees of them, passed on to f; they may be traced. Where the queries begin among
            the keys is one of them.

    Example:
        >>> every_second = from_function(lambda i, j, offset: (i + offset - j) % 2 == 0, 3)
        >>> every_second.to_dense(2, 4).astype(int)
        array([[0, 1, 0, 1],
               [1, 0, 1, 0]])
    """
    if not callable(f):
        fail(TypeError, "from_function", f"f must be callable, got {type(f).__name__}.")
    return Mask("function", checks.function_arrays(arrays), (f,))


def _combine(kind: str, one: Mask, other: Any) -> Mask:
    if not isinstance(other, Mask):
        advice = "An array becomes a mask by masks.dense(array)." if hasattr(other, "dtype") else ""
        array = on_kind("array", other, "bool")
        advice = f"{array} An array becomes a mask by masks.dense(array)." if array else advice
        advice = "A mask is made by a call: masks.causal()." if callable(other) else advice
        fail(TypeError, f"mask {kind} mask", f"got {type(other).__name__}.", advice=advice)
    return Mask(kind, (one, other))


def _in_brackets(part: Any, *kinds: str) -> str:
    """A part of a mask, in brackets where it is of one of these kinds and would be read otherwise."""
    bare = getattr(part, "kind", None) not in kinds or _prefix_of(part) is not None
    return repr(part) if bare else f"({part!r})"


def _prefix_of(mask: Any) -> tuple[Any, ...] | None:
    """The arguments of the ``prefix`` that made this mask; None for any other mask."""
    one, other = mask.arrays if mask.kind == "or" else (mask, mask)
    if getattr(other, "kind", None) != "prefix" or getattr(one, "kind", None) != "window":
        return None
    offset, left, right = _window_of(one)
    return (*other.arrays, *_but_zero(offset)) if (left, right) == (None, 0) else None


def _window_of(mask: Any) -> tuple[Any, ...]:
    """Offset, left and right of a mask from ``window`` or ``causal``."""
    return *mask.arrays, *mask.settings


def _but_zero(offset: Any) -> list[Any]:
    return [] if isinstance(offset, int) and offset == 0 else [offset]


def _within(function: str, left: int | None, right: int | None, offset: Any) -> Mask:
    offset = integers.offset(function, offset)
    known = isinstance(offset, int)
    return Mask("window", () if known else (offset,), (offset, left, right) if known else (left, right))


def _of_rank(part: Mask, rank: int) -> Mask:
    """The arrays of one kind in the shape of scores: lengths (..., 1, 1, 1), ids (..., 1, T, 1) and (..., 1, 1, S)."""

    def of_scores(number, array):
        if part.kind in ("window", "padding", "prefix"):
            array = array.reshape(*array.shape, 1, 1, 1) if array.ndim else array.reshape(1, 1)
        if part.kind == "segments":
            array = array[..., None, :, None] if number == 0 else array[..., None, None, :]
        return array.reshape((1,) * (rank - array.ndim) + array.shape)

    if part.kind == "function":
        return part
    arrays = (None if array is None else of_scores(number, array) for number, array in enumerate(part.arrays))
    return dataclasses.replace(part, arrays=tuple(arrays))


def _stand_in(part: Mask) -> Mask:
    """With zeros for its arrays: what lies on several devices is not cut for its shape."""

    def zeros(x: Any) -> Any:
        known = x is not None and all(isinstance(size, int) for size in x.shape)  # not a batch of any size (jax.export)
        return np.broadcast_to(np.zeros((), x.dtype), x.shape) if known else x

    return part if part.kind == "function" else dataclasses.replace(part, arrays=tuple(map(zeros, part.arrays)))


def _first_pair(part: Mask) -> Mask:
    arrays = part.arrays if part.kind == "function" else (x if x is None else x[..., :1, :1] for x in part.arrays)
    return dataclasses.replace(part, arrays=tuple(arrays))


def _like(position: Any, array: Any) -> Any:
    """A position, (T, 1) or (1, S), in the rank of the array."""
    return position.reshape((1,) * (array.ndim - 2) + position.shape)


def _same_rank(one: Any, other: Any) -> tuple[Any, Any]:
    """The two in the rank of the higher; only (T, S) is lifted, for a (B, T, S) would be read as per head (L3)."""
    rank = max(one.ndim, other.ndim)
    fits = all(a == b or 1 in (a, b) for a, b in zip(one.shape[::-1], other.shape[::-1], strict=False))
    if not fits or any(x.ndim not in (2, rank) for x in (one, other)):
        shapes = f"{tuple(one.shape)} and {tuple(other.shape)}"
        fail(
            ValueError, "masks", f"parts of shape {shapes} do not go together: each is (T, S), or they have equal axes."
        )
    return one.reshape((1,) * (rank - one.ndim) + one.shape), other.reshape((1,) * (rank - other.ndim) + other.shape)


COMBINATIONS: dict[str, Callable] = {"and": lambda one, other: one & other, "or": lambda one, other: one | other}


def _window(i: Any, j: Any, xp: Any, offset: Any, left: int | None, right: int | None) -> Any:
    if not isinstance(offset, int):
        i, j = _like(i, offset), _like(j, offset)
    place = i + offset  # no sum here leaves 32 bits: see ``integers``
    inside = xp.ones((*place.shape[:-1], j.shape[-1]), bool) if left is None and right is None else True
    inside = inside if left is None else inside & (j + left >= place)
    return inside if right is None else inside & ((j - right if right else j) <= place)


def _padding(i: Any, j: Any, xp: Any, key_lengths: Any, query_lengths: Any) -> Any:
    real = _like(j, key_lengths) < key_lengths
    if query_lengths is None:
        return real
    real, of_query = _same_rank(real, _like(i, query_lengths) < query_lengths)
    return real & of_query


def _segments(i: Any, j: Any, xp: Any, query_ids: Any, key_ids: Any) -> Any:
    of_query, of_key = _same_rank(query_ids, key_ids)
    return of_query == of_key


def _function(i: Any, j: Any, xp: Any, *arrays_and_f: Any) -> Any:
    *arrays, f = arrays_and_f
    result = f(i, j, *arrays)
    shape, full = tuple(getattr(result, "shape", ())), (i.shape[0], j.shape[1])
    fits = len(shape) >= 2 and all(got in (1, size) for got, size in zip(shape[-2:], full, strict=True))
    if str(getattr(result, "dtype", None)) != "bool" or not fits:
        got = f"{getattr(result, 'dtype', type(result).__name__)} {shape}"
        fail(TypeError, "from_function", f"f must return booleans that broadcast to {full}, got {got}.")
    return result


KINDS: dict[str, Callable] = {
    "window": _window,
    "padding": _padding,
    "prefix": lambda i, j, xp, lengths: _padding(i, j, xp, lengths, None),
    "segments": _segments,
    "dense": lambda i, j, xp, array: array,
    "function": _function,
}


def _window_bounds(i: Any, j: Any, xp: Any, offset: Any, left: int | None, right: int | None) -> tuple[Any, Any]:
    (i_first, i_last), (j_first, j_last) = i, j
    some = _window(i_first, j_last, xp, offset, left, None) & _window(i_last, j_first, xp, offset, None, right)
    every = _window(i_last, j_first, xp, offset, left, None) & _window(i_first, j_last, xp, offset, None, right)
    return some, every


def _padding_bounds(i: Any, j: Any, xp: Any, key_lengths: Any, query_lengths: Any = None) -> tuple[Any, Any]:
    first, last = (_padding(*ends, xp, key_lengths, query_lengths) for ends in zip(i, j, strict=True))
    return first, last


def _segments_bounds(i: Any, j: Any, xp: Any, query_ids: Any, key_ids: Any) -> tuple[Any, Any]:
    (q_least, q_most), (k_least, k_most) = query_ids, key_ids
    some = (q_least <= k_most) & (k_least <= q_most)
    return some, (q_least == q_most) & (k_least == k_most) & (q_least == k_least)


def _function_bounds(i: Any, j: Any, xp: Any, *arrays_and_f: Any) -> tuple[Any, Any]:
    open_to_all = xp.ones((len(i[0]), j[0].shape[1]), bool)
    return open_to_all, ~open_to_all


BOUNDS: dict[str, Callable] = {
    "window": _window_bounds,
    "padding": _padding_bounds,
    "prefix": _padding_bounds,
    "segments": _segments_bounds,
    "dense": lambda i, j, xp, least_and_largest: (least_and_largest[1], least_and_largest[0]),
    "function": _function_bounds,
}
