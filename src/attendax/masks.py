"""Masks as values: who may look at whom, said in a few numbers instead of T x S truth values (L3, L4).

A mask is a pytree: lengths, ids and arrays are leaves and may be traced; the rest is part of its structure. Combine
masks with ``&``, ``|`` and ``~``. Lengths and ids have the leading axes of the scores without the head axis, (B,),
(B, T), (B, S) for scores (B, N, T, S), and apply to every head.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendax import checks
from attendax.checks import fail


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """A mask: its kind, its arrays (of ``&``, ``|``, ``~``: masks), its settings. The functions below make them."""

    kind: str = dataclasses.field(metadata={"static": True})
    arrays: tuple[Any, ...] = ()
    settings: tuple[Any, ...] = dataclasses.field(default=(), metadata={"static": True})

    def __and__(self, other: "Mask") -> "Mask":
        return _combine("and", self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return _combine("or", self, other)

    def __invert__(self) -> "Mask":
        return Mask("not", (self,))

    def to_dense(self, T: int, S: int) -> Any:
        """The truth values: boolean, (T, S) or (..., 1, T, S), or as ``dense`` and ``from_function`` give it.

        A NumPy array where all arrays of the mask are NumPy's, a JAX array otherwise.

        Raises:
            ValueError: the mask is for other lengths than T and S.
        """
        self._check(T, S)
        xp: Any = jnp if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(self)) else np
        full = xp.asarray(self.allowed(xp.arange(T)[:, None], xp.arange(S)[None], xp))
        return xp.broadcast_to(full, (*full.shape[:-2], T, S))

    def allowed(self, i: Any, j: Any, xp: Any) -> Any:
        """Whether query i may look at key j, for positions i (T, 1) and j (1, S); ``xp`` is numpy or jax.numpy."""
        return KINDS[self.kind](i, j, xp, *self.arrays, *self.settings)

    def _check(self, T: int, S: int) -> None:
        """Hold lengths and shapes against T and S."""
        for part in self.arrays:
            if isinstance(part, Mask):
                part._check(T, S)
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
                fail(ValueError, "dense", f"array has shape {shape} but must end in ({T}, {S}), each of them or 1.")


def causal(offset: int = 0) -> Mask:
    """Query i may look at key j when ``j <= i + offset`` (L4). A block at the end of the keys: ``offset = S - T``."""
    return Mask("causal", (), (_whole("causal", "offset", offset),))


def window(left: int | None, right: int | None) -> Mask:
    """Query i may look at keys ``i - left`` to ``i + right``; None = no bound on that side."""
    bounds = (("left", left), ("right", right))
    settings = (
        None if size is None else checks.integer("window", name, size, minimum=0, maximum=2**30)
        for name, size in bounds
    )
    return Mask("window", (), tuple(settings))


def padding(key_lengths: Any, query_lengths: Any = None) -> Mask:
    """The first ``key_lengths`` keys are real, the rest is padding; likewise for ``query_lengths`` queries.

    Args:
        key_lengths: integers, the leading axes of the scores without the head axis, each from 0 to S.
        query_lengths: the same for queries; a query beyond its length may look at nothing.
    """
    return Mask(
        "padding", (_ids("padding", "key_lengths", key_lengths), _ids("padding", "query_lengths", query_lengths))
    )


def segments(query_ids: Any, key_ids: Any) -> Mask:
    """Packed sequences: a query may look at the keys of its own segment. Integer ids (..., T) and (..., S)."""
    return Mask("segments", (_ids("segments", "query_ids", query_ids, 1), _ids("segments", "key_ids", key_ids, 1)))


def prefix(lengths: Any) -> Mask:
    """Causal, but the first ``lengths`` keys are open to every query (prefix language model)."""
    return Mask("prefix", (_ids("prefix", "lengths", lengths),))


def dense(array: Any) -> Mask:
    """A boolean array (T, S), or of the full rank of the scores, each axis full or 1 (L3)."""
    if str(getattr(array, "dtype", None)) != "bool":
        fail(TypeError, "dense", f"array must be boolean, got {getattr(array, 'dtype', type(array).__name__)}.")
    return Mask("dense", (array,))


def from_function(f: Callable, *arrays: Any) -> Mask:
    """Any function ``f(i, j, *arrays) -> bool`` of the positions i (T, 1) and j (1, S), element by element."""
    if not callable(f):
        fail(TypeError, "from_function", f"f must be callable, got {type(f).__name__}.")
    return Mask("function", arrays, (f,))


def _combine(kind: str, one: Mask, other: Any) -> Mask:
    if not isinstance(other, Mask):
        fail(
            TypeError,
            f"mask {kind} mask",
            f"got {type(other).__name__}; an array becomes a mask by masks.dense(array).",
        )
    return Mask(kind, (one, other))


def _whole(function: str, name: str, value: Any) -> int:
    return checks.integer(function, name, value, minimum=-(2**30), maximum=2**30)


def _ids(function: str, name: str, value: Any, rank: int = 0) -> Any:
    if value is None and name == "query_lengths":
        return None
    if not str(getattr(value, "dtype", type(value).__name__)).startswith(("int", "uint")):
        got = getattr(value, "dtype", type(value).__name__)
        fail(TypeError, function, f"{name} must be an array of integers, got {got}.")
    value = np.asarray(value) if isinstance(value, int) else value
    if len(value.shape) < rank:
        fail(ValueError, function, f"{name} has rank {len(value.shape)} but needs at least {rank}.")
    return value


def _before(position: Any, lengths: Any) -> Any:
    """Whether a position (T, 1) or (1, S) lies before the end, for lengths (...): (..., 1, T, 1) or (..., 1, 1, S)."""
    lengths = lengths[..., None, None, None]
    return position.reshape((1,) * (lengths.ndim - 2) + position.shape) < lengths


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


def _and(i: Any, j: Any, xp: Any, one: Mask, other: Mask) -> Any:
    one, other = _same_rank(one.allowed(i, j, xp), other.allowed(i, j, xp))
    return one & other


def _or(i: Any, j: Any, xp: Any, one: Mask, other: Mask) -> Any:
    one, other = _same_rank(one.allowed(i, j, xp), other.allowed(i, j, xp))
    return one | other


def _padding(i: Any, j: Any, xp: Any, key_lengths: Any, query_lengths: Any) -> Any:
    real = _before(j, key_lengths)
    if query_lengths is None:
        return real
    real, of_query = _same_rank(real, _before(i, query_lengths))
    return real & of_query


def _prefix(i: Any, j: Any, xp: Any, lengths: Any) -> Any:
    past, open_to_all = _same_rank(j <= i, _before(j, lengths))
    return past | open_to_all


def _window(i: Any, j: Any, xp: Any, left: int | None, right: int | None) -> Any:
    inside = xp.ones((i.shape[0], j.shape[1]), bool)
    inside = inside if left is None else inside & (j >= i - left)
    return inside if right is None else inside & (j <= i + right)


def _segments(i: Any, j: Any, xp: Any, query_ids: Any, key_ids: Any) -> Any:
    of_query, of_key = xp.take(query_ids, i[:, 0], axis=-1), xp.take(key_ids, j[0], axis=-1)
    of_query, of_key = _same_rank(of_query[..., None, :, None], of_key[..., None, None, :])
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


def _dense(i: Any, j: Any, xp: Any, array: Any) -> Any:
    rows = array if array.shape[-2] == 1 else xp.take(array, i[:, 0], axis=-2)
    return rows if array.shape[-1] == 1 else xp.take(rows, j[0], axis=-1)


KINDS: dict[str, Callable] = {
    "causal": lambda i, j, xp, offset: j <= i + offset,
    "window": _window,
    "padding": _padding,
    "segments": _segments,
    "prefix": _prefix,
    "dense": _dense,
    "function": _function,
    "and": _and,
    "or": _or,
    "not": lambda i, j, xp, one: ~one.allowed(i, j, xp),
}
