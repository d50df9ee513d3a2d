"""The type of a mask: which pairs it allows, what it knows of whole tiles, how it prints. ``masks`` makes masks.

Its arrays may be given in fewer axes than the scores have (``masks`` says how); ``of_rank`` puts them in those axes.
``mask_kinds`` has which pairs each kind allows, and which tiles.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendax import checks, integers
from attendax.checks import fail, python_code
from attendax.checks.advice import on_axes, on_part
from attendax.mask_kinds import BOUNDS, COMBINATIONS, KINDS, PerText, given, lifted, same_rank, shape_of_answer
from attendax.pictures import Pictures

BY_HEAD = ("window", "padding", "prefix")  # kinds whose arrays may be given for each head


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class Mask:
    """A mask: its kind, its arrays (of ``&``, ``|``, ``~``: masks), its settings. Functions of ``masks`` make it."""

    kind: str = dataclasses.field(metadata={"static": True})
    arrays: tuple[Any, ...] = ()
    settings: tuple[Any, ...] = dataclasses.field(default=(), metadata={"static": True})

    __array_ufunc__ = None  # so that NumPy leaves ``array & mask`` to the mask

    def __repr__(self) -> str:
        """A line of Python that makes it: ``causal() & padding([3, 8])``."""
        if self.kind == "not":
            return f"~{_in_brackets(self.arrays[0], 'and', 'or')}"
        if self.kind == "and":
            return " & ".join(_in_brackets(part, "or") for part in self.arrays)
        if self.kind == "or" and (of_prefix := _prefix_of(self)):
            return python_code.call("prefix", *of_prefix)
        if self.kind == "or":
            return " | ".join(map(repr, self.arrays))
        if self.kind == "window":
            offset, left, right = given(*self.arrays, *self.settings)
            name, sides = ("causal", ()) if _is_causal(left, right) else ("window", (left, right))
            return python_code.call(name, *sides, *_but_zero(offset))
        if self.kind == "function":
            (f,) = self.settings
            per_text = isinstance(f, PerText)
            shown = python_code.call("from_function", f.f if per_text else f, *self.arrays)
            return f"{shown[:-1]}, per='batch')" if per_text else shown
        return python_code.call(self.kind, *(x for x in self.arrays if x is not None), *self.settings)

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

    def to_dense(self, T: int, S: int, *, rank: int = 0) -> Any:
        """The truth values: boolean, (T, S) or (..., 1 or N, T, S), or as ``dense`` and ``from_function`` give it.

        A NumPy array where all arrays of the mask are NumPy's, a JAX array otherwise. ``rank`` is that of the scores;
        it matters where a mask has its own numbers for each head, (N, 1, 1).

        Raises:
            ValueError: the mask is for other lengths than T and S.
        """
        self.check(T, S)
        xp: Any = jnp if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(self)) else np
        mask = self._askable(T, S)._in_axes_of_scores(rank)
        full = xp.asarray(mask.allowed(xp.arange(T)[:, None], xp.arange(S)[None], xp))
        return xp.broadcast_to(full, (*full.shape[:-2], T, S))

    def show(self, T: int, S: int) -> Pictures:
        """A picture of who may look at whom: drawn in a notebook, text in a terminal; one for each of a batch.

        Raises:
            ValueError: as ``to_dense``, or more than 16,384 squares.

        Example:
            >>> from attendax.masks import causal, window
            >>> (causal() & window(1, None)).show(3, 4)
            mask
            ■ · · ·
            ■ ■ · ·
            · ■ ■ ·
        """
        return Pictures(mask=self.to_dense(T, S))

    def shape(self, T: int, S: int, *, rank: int = 0) -> tuple[int, ...]:
        """The shape of ``to_dense``; only the first pair is computed.

        Raises:
            ValueError: the mask is for other lengths than T and S.
        """
        self.check(T, S)
        first = np.zeros((1, 1), np.int32)
        mask = self._askable(T, S).map(lambda part: _answered(part, T, S)).map(_stand_in)
        one = mask._in_axes_of_scores(rank).map(_first_pair).allowed(first, first, np)
        return *one.shape[:-2], T, S

    def _askable(self, T: int, S: int) -> "Mask":
        """The mask for T x S pairs; without any pair, its functions are not called."""
        some = np.ones((1, 1), bool)
        return self if T and S else self.map(lambda part: Mask("dense", (some,)) if part.kind == "function" else part)

    def parts(self) -> list["Mask"]:
        """The parts that are not made of other masks, from left to right."""
        made = self.kind in (*COMBINATIONS, "not")
        return [x for part in self.arrays for x in part.parts()] if made else [self]

    def map(self, f: Callable[["Mask"], "Mask"]) -> "Mask":
        """Apply ``f`` to the parts that are not made of other masks."""
        if self.kind in ("and", "or", "not"):
            return dataclasses.replace(self, arrays=tuple(part.map(f) for part in self.arrays))
        return f(self)

    def of_rank(self, rank: int = 0) -> "Mask":
        """The mask with its arrays in the shape of scores, (..., N, T, S), an axis 1 where they do not vary.

        The arrays of a function stay as they are. With ``rank``, axes of 1 are put in front.
        """
        return self.map(lambda part: _padded(_in_axes(part, rank), rank))

    def _in_axes_of_scores(self, rank: int) -> "Mask":
        """The mask with its arrays in the axes of scores; what was given for each head in the rank of the others."""
        placed = self.map(lambda part: _in_axes(part, rank))
        arrays = jax.tree.leaves([part for part in placed.parts() if part.kind != "function"])
        rank = max([rank, *(x.ndim for x in arrays)])
        return placed.map(lambda part: _padded(part, rank) if _is_by_head(part) else part)

    def allowed(self, i: Any, j: Any, xp: Any) -> Any:
        """Tell whether query i may look at key j, for positions i (T, 1) and j (1, S), of a mask ``of_rank``.

        For some of the positions, its arrays are cut to the same. ``xp`` is numpy or jax.numpy.
        """
        if self.kind == "not":
            return ~self.arrays[0].allowed(i, j, xp)
        if self.kind in COMBINATIONS:
            return COMBINATIONS[self.kind](*same_rank(*(part.allowed(i, j, xp) for part in self.arrays)))
        return KINDS[self.kind](i, j, xp, *self.arrays, *self.settings)

    def bounds(self, i: Any, j: Any, xp: Any) -> tuple[Any, Any]:
        """Tell whether a tile may hold an allowed pair, and whether all its pairs are allowed.

        i: first and last query of each tile, (nq, 1) each; j: first and last key, (1, nk) each. Arrays have the rank of
        the scores; ids and truth values are given as their least and largest for each tile, a pair of
        (..., nq or 1, nk or 1).
        """
        if self.kind == "not":
            some, every = self.arrays[0].bounds(i, j, xp)
            return ~every, ~some
        if self.kind in COMBINATIONS:
            one, other = (part.bounds(i, j, xp) for part in self.arrays)
            pairs = (same_rank(a, b) for a, b in zip(one, other, strict=True))
            some, every = (COMBINATIONS[self.kind](*pair) for pair in pairs)
            return some, every
        return BOUNDS[self.kind](i, j, xp, *self.arrays, *self.settings)

    def check(self, T: int, S: int) -> None:
        """Hold lengths and shapes against T and S.

        Raises:
            ValueError: they do not fit.
        """
        if max((size for size in (T, S) if isinstance(size, int)), default=0) >= integers.LENGTH:
            fail(ValueError, "masks", f"T={T} and S={S} must be below {integers.LENGTH}.")
        for part in self.arrays:
            if isinstance(part, Mask):
                part.check(T, S)
        if self.kind == "segments":
            for name, ids, axis, size in zip(("query_ids", "key_ids"), self.arrays, "TS", (T, S), strict=True):
                if ids.shape[-1] != size:
                    fail(ValueError, "segments", f"{name} has length {ids.shape[-1]}, expected {axis}={size}.")
        if self.kind == "padding":
            for name, lengths, size in zip(("key_lengths", "query_lengths"), self.arrays, (S, T), strict=True):
                if lengths is not None:
                    checks.lengths("padding", name, lengths, size, rank=None)
        if self.kind == "prefix":
            checks.lengths("prefix", "lengths", self.arrays[0], S, rank=None)
        if self.kind == "blocks":
            shape, (block_q, block_kv) = self.arrays[0].shape, self.settings
            counts = -(-T // block_q), -(-S // block_kv)
            if any(got not in (1, count) for got, count in zip(shape[-2:], counts, strict=True)):
                sentence = f"array has shape {shape} but must end in {counts}, each of them or 1: the blocks of"
                fail(ValueError, "blocks", f"{sentence} {block_q} by {block_kv} of T={T} and S={S}.")
        if self.kind == "dense":
            shape = self.arrays[0].shape
            if len(shape) < 2 or any(got not in (1, size) for got, size in zip(shape[-2:], (T, S), strict=True)):
                sentence = f"array has shape {shape} but must end in ({T}, {S}), each of them or 1."
                by_key = len(shape) == 2 and shape[1] == S
                said = on_axes("mask", shape, (shape[0], 1, T, S), array="array") if by_key else ""
                fail(ValueError, "dense", sentence, advice=said)


def _combine(kind: str, one: Mask, other: Any) -> Mask:
    if not isinstance(other, Mask):
        sign = {"and": "&", "or": "|"}[kind]
        fail(TypeError, "masks", f"{sign} joins two masks, got {type(other).__name__}.", advice=on_part(sign, other))
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
    offset, left, right = given(*one.arrays, *one.settings)
    return (*other.arrays, *_but_zero(offset)) if _is_causal(left, right) else None


def _is_causal(left: Any, right: Any) -> bool:
    return left is None and isinstance(right, int) and right == 0


def _but_zero(offset: Any) -> list[Any]:
    return [] if isinstance(offset, int) and offset == 0 else [offset]


def _in_axes(part: Mask, rank: int) -> Mask:
    """The arrays of one kind in the axes of scores: lengths (..., N or 1, 1, 1), ids (..., 1, T, 1) and (..., 1, 1, S).

    ``rank`` is that of the scores, where it is known. Then leading axes (..., 1, 1) are told from those of scores.
    """

    def of_scores(number, array):
        if part.kind == "segments":
            array = array if array.ndim == 1 else array[..., None, :]  # (T,): of all texts
            return array[..., None] if number == 0 else array[..., None, :]
        if part.kind not in BY_HEAD or (array.ndim >= 3 and array.shape[-2:] == (1, 1) and array.ndim + 3 != rank):
            return array
        return array.reshape(*array.shape, 1, 1, 1) if array.ndim else array.reshape(1, 1)

    if part.kind == "function":
        return part
    arrays = (None if array is None else of_scores(number, array) for number, array in enumerate(part.arrays))
    return dataclasses.replace(part, arrays=tuple(arrays))


def _padded(part: Mask, rank: int) -> Mask:
    """The part with axes of 1 in front of its arrays."""
    if part.kind == "function":
        return part
    arrays = (x if x is None else lifted(x, rank) for x in part.arrays)
    return dataclasses.replace(part, arrays=tuple(arrays))


def _is_by_head(part: Mask) -> bool:
    """Tell whether a part in the axes of scores has an array for each head, of which there may be one: (1, 1, 1)."""
    arrays = [x for x in part.arrays if x is not None] if part.kind in BY_HEAD else []
    return any(x.ndim == 3 or (x.ndim > 3 and x.shape[-3] != 1) for x in arrays)


def _answered(part: Mask, T: int, S: int) -> Mask:
    """A function as a dense mask of the shape of its answer."""
    if part.kind != "function":
        return part
    shape = shape_of_answer(T, S, part.arrays, *part.settings)
    return Mask("dense", (np.broadcast_to(np.zeros((), bool), (*shape[:-2], 1, 1)),))


def _stand_in(part: Mask) -> Mask:
    """The part with zeros for its arrays: one that lies on several devices is not cut for its shape."""

    def zeros(x: Any) -> Any:
        known = x is not None and all(isinstance(size, int) for size in x.shape)  # not a batch of any size (jax.export)
        return np.broadcast_to(np.zeros((), x.dtype), x.shape) if known else x

    return dataclasses.replace(part, arrays=tuple(map(zeros, part.arrays)))


def _first_pair(part: Mask) -> Mask:
    return dataclasses.replace(part, arrays=tuple(x if x is None else x[..., :1, :1] for x in part.arrays))
