"""Offsets, lengths and ids as integers of 32 bits that mean what the given ones mean: none wraps around (L4).

JAX has 32 bits by default, and silently cuts longer integers. So known integers are checked in NumPy, before JAX sees
them. Traced ones are limited to a range beyond which nothing changes.

Limits: a sequence has fewer than 2²⁹ tokens. A window reaches at most 2³⁰ keys. An offset counts up to 3 · 2²⁹; beyond
that, no query and key meet, with a window or without. Then ``i + offset``, ``j + left`` and ``j - right`` all fit into
32 bits.
"""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from attendax.checks import bounds, fail, integer, is_traced
from attendax.checks.advice import on_integers, on_kind

ArrayLike = jax.Array | np.ndarray[Any, Any]  # what public functions take for an array; see ``operands.takes_arrays``
LENGTH, SIDE, OFFSET = 2**29, 2**30, 3 * 2**29
INT32 = np.iinfo(np.int32)
NARROW = ("int8", "int16", "int32", "uint8", "uint16")  # all their values are ones of int32


def offset(function: str, value: Any) -> Any:
    """An offset: an int, or an array of integers as int32; beyond ±``OFFSET`` all are alike."""
    value = _as_array(value)
    if isinstance(value, np.generic) or not hasattr(value, "shape"):
        return max(-OFFSET, min(OFFSET, integer(function, "offset", value, minimum=None)))
    return _limited(array(function, "offset", value), -OFFSET, OFFSET)


def side(function: str, name: str, value: Any) -> Any:
    """The reach of a window: None, an int, or an array of integers as int32; beyond ``SIDE`` all are alike.

    Raises:
        ValueError: a known one is negative.
    """
    if value is None:
        return None
    value = _as_array(value)
    if isinstance(value, np.generic) or not hasattr(value, "shape"):
        return integer(function, name, value, minimum=0, maximum=SIDE, advice=on_kind(name, value))
    value = array(function, name, value)
    known = not is_traced(value) and not isinstance(value, jax.ShapeDtypeStruct)
    if known and 0 not in value.shape and (least := np.asarray(value).min()) < 0:
        fail(ValueError, function, f"{name} must be at least 0, got {least}.")
    return _limited(value, -SIDE, SIDE)


def exact_offset(function: str, value: Any) -> Any:
    """An offset that counts beyond any limit, because a distance is multiplied: an int, or an array of integers.

    Raises:
        ValueError: a known one does not fit into 32 bits.
    """
    if isinstance(value, np.generic) or not hasattr(value, "shape"):
        return integer(function, "offset", value, minimum=INT32.min, maximum=INT32.max)
    value = array(function, "offset", value)
    return _fitting(function, "offset", value, INT32.min) if isinstance(value, np.ndarray) else value


def lengths(function: str, name: str, value: Any) -> Any:
    """Lengths as an array of int32; one number is one length for all."""
    value = _as_array(value)
    if isinstance(value, np.generic | int):
        return np.array(integer(function, name, value, minimum=0, maximum=INT32.max), np.int32)
    if str(getattr(value, "dtype", "")) == "bool":
        sentence = f"{name} must be an array of integers, got bool."
        fail(TypeError, function, sentence, advice=f"If the real tokens come first, write {name}.sum(-1).")
    value = array(function, name, value)
    if is_traced(value) or isinstance(value, jax.ShapeDtypeStruct):
        return _limited(value, INT32.min, INT32.max)
    return _fitting(function, name, value, 0)


def _as_array(value: Any) -> Any:
    """A size that only the calls of an exported program know (jax.export) as an array, anything else as it is."""
    return jnp.asarray(value) if jax.export.is_symbolic_dim(value) else value


def ids(function: str, query_ids: Any, key_ids: Any) -> tuple[Any, Any]:
    """Ids of queries and keys as arrays of one signed dtype, equal where the given ones are.

    Raises:
        ValueError: ids in NumPy that no integer of the other array, JAX's, can equal.
    """
    query_ids, key_ids = array(function, "query_ids", query_ids, 1), array(function, "key_ids", key_ids, 1)
    pair = [_narrow(query_ids), _narrow(key_ids)]
    if all(isinstance(x, np.ndarray) for x in pair) and any(x.dtype != np.int32 for x in pair):
        return _renumbered(*pair)
    for k, (name, other) in enumerate((("query_ids", pair[1]), ("key_ids", pair[0]))):
        if isinstance(pair[k], np.ndarray) and pair[k].dtype != np.int32:
            pair[k] = _in_dtype_of(function, name, pair[k], other)
    wide: Any = np.int64 if any(x.dtype.itemsize == 8 for x in pair) else np.int32
    mixed = len({np.iinfo(x.dtype).max > np.iinfo(wide).max for x in pair}) == 2
    one, other = (_mapped(lambda x: _signed(x, wide, mixed), x) for x in pair)
    return one, other


def _signed(x: Any, wide: Any, mixed: bool) -> Any:
    """Ids in a signed dtype. Two unsigned arrays wrap around alike; of a ``mixed`` pair, ids of one sign never meet."""
    most = np.iinfo(wide).max
    if mixed and np.iinfo(x.dtype).max > most:
        return jnp.where(x > np.array(most, x.dtype), -1, x.astype(wide))
    return jnp.where(x < 0, -2, x.astype(wide)) if mixed else x.astype(wide)


def array(function: str, name: str, value: Any, rank: int = 0) -> Any:
    """``value``, an array of integers of at least this rank, in the byte order of this machine."""
    dtype = getattr(value, "dtype", None)
    advice = on_integers(name, value)
    if dtype is None or advice or not np.issubdtype(dtype, np.integer):
        got = type(value).__name__ if dtype is None else dtype
        fail(TypeError, function, f"{name} must be an array of integers, got {got}.", advice=advice)
    if len(value.shape) < rank:
        fail(ValueError, function, f"{name} has rank {len(value.shape)} but needs at least {rank}.")
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def _fitting(function: str, name: str, value: Any, least: int) -> Any:
    """A known array in int32; ValueError for what does not fit."""
    if str(value.dtype) not in NARROW and value.size:
        known = np.asarray(value)  # a JAX array would be traced by its own operations inside jit
        if known.min() < INT32.min or known.max() > INT32.max:
            fail(ValueError, function, f"{name} must lie in [{least}, {INT32.max}], got {bounds(known)}.")
    return value.astype(np.int32)


def _limited(value: Any, low: int, high: int) -> Any:
    """Integers in int32, those beyond the ends as the ends."""
    info = np.iinfo(value.dtype)
    ends = (np.array(end, value.dtype) for end in (max(low, info.min), min(high, info.max)))
    if isinstance(value, np.ndarray):
        return np.asarray(np.clip(value, *ends)).astype(np.int32)
    return _mapped(lambda x: jnp.clip(x, *ends).astype(np.int32), value)


def _mapped(f: Any, value: Any) -> Any:
    """``f(value)``, or its shape and dtype if ``value`` has no more."""
    return jax.eval_shape(f, value) if isinstance(value, jax.ShapeDtypeStruct) else f(value)


def _narrow(value: Any) -> Any:
    """Ids in int32 where all their values, if they are known in NumPy, or their dtype allow it; else as they are."""
    fits = str(value.dtype) in NARROW
    if isinstance(value, np.ndarray) and not fits:
        fits = not value.size or (int(value.min()) >= INT32.min and int(value.max()) <= INT32.max)
    return _mapped(lambda x: x.astype(np.int32), value) if fits else value


def _renumbered(one: Any, other: Any) -> tuple[Any, Any]:
    """Known ids by their rank among all of both."""
    common = np.result_type(one, other)
    common = common if common.kind in "iu" else np.dtype(object)  # of int64 and uint64: no float can tell them apart
    _, ranks = np.unique(np.concatenate([x.ravel().astype(common) for x in (one, other)]), return_inverse=True)
    ranks = ranks.astype(np.int32)
    return ranks[: one.size].reshape(one.shape), ranks[one.size :].reshape(other.shape)


def _in_dtype_of(function: str, name: str, value: Any, other: Any) -> Any:
    """Known ids in the dtype of the other array; ValueError where it has no such numbers."""
    info = np.iinfo(other.dtype)
    if int(value.min()) < info.min or int(value.max()) > info.max:
        advice = "Pass both as NumPy arrays, or ids of 32 bits."
        fail(ValueError, function, f"{name} are {bounds(value)}, but the other ids are {other.dtype}.", advice=advice)
    return value.astype(other.dtype)
