"""Masks as nested tuples: their arrays, the value from ``attendax.masks``, and their truth by the law (L3, L4)."""

from typing import Any

import numpy as np

from attendax import masks

from .case import Case


def _ids(rng: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Ids of packed sequences: in order, or in any."""
    ids = rng.integers(0, 3, shape)
    return (np.sort(ids, axis=-1) if rng.random() < 0.7 else ids).astype(np.int32)


def draw(mask: Any, case: Case, rng: Any, outer: tuple[int, ...]) -> list[np.ndarray]:
    """The arrays of a mask, ``outer`` the axes of the maps that it is mapped over."""
    kind, *settings = mask
    if kind in ("and", "or", "not"):
        return [array for part in settings for array in draw(part, case, rng, outer)]
    *lead, _, T, S = case.scores
    lead = (*outer, *lead)
    per_call = lead if kind == "padding" or settings[0] is True else (*outer, *(1 for _ in case.scores[:-3]))
    if kind == "padding":
        lengths = [rng.integers(0, S + 1, lead)]
        return [np.asarray(x, np.int32) for x in lengths + [rng.integers(0, T + 1, lead)] * settings[0]]
    if kind == "traced causal":
        return [np.asarray(rng.integers(-2, S + 2, lead if settings[0] else outer), np.int32)]
    if kind == "prefix":
        return [np.asarray(rng.integers(0, S + 1, per_call), np.int32)]
    if kind == "segments":
        return [_ids(rng, (*per_call, T)), _ids(rng, (*per_call, S))]
    if kind in ("dense", "array"):
        return [rng.random((*outer, *_dense_shape(settings[0], case))) < rng.choice((0.15, 0.6, 0.9))]
    if kind == "function" and settings[0]:
        return [rng.integers(-1, S, (*outer, T)).astype(np.int32)]
    return []


def _dense_shape(full: tuple[bool, ...], case: Case) -> tuple[int, ...]:
    *lead, N, T, S = case.scores
    shape = (T, S) if len(full) == 2 or case.one_head else (*lead, N, T, S)
    flags = full[-2:] if len(shape) == 2 else (full[0],) * len(lead) + full[1:]
    return tuple(size if flag else 1 for size, flag in zip(shape, flags, strict=True))


def build(mask: Any, arrays: list[Any]) -> Any:
    """The mask as ``attention`` takes it; uses up ``arrays``."""
    kind, *settings = mask
    if kind in ("and", "or"):
        one, other = (build(part, arrays) for part in settings)
        return one & other if kind == "and" else one | other
    if kind == "not":
        return ~build(settings[0], arrays)
    if kind in ("causal", "window"):
        return getattr(masks, kind)(*settings)
    if kind == "array":
        return arrays.pop(0)
    if kind == "function":
        return _from_function(arrays.pop(0)) if settings[0] else masks.from_function(lambda i, j: (i * j) % 3 != 1)
    if kind == "padding" and not settings[0]:
        return masks.padding(arrays.pop(0))
    names = {"traced causal": "causal"}
    count = 2 if kind in ("segments", "padding") else 1
    return getattr(masks, names.get(kind, kind))(*(arrays.pop(0) for _ in range(count)))


def _from_function(farthest: Any) -> Any:
    return masks.from_function(lambda i, j, farthest: j <= farthest[i], farthest)


def truth(mask: Any, arrays: list[np.ndarray], shape: tuple[int, ...]) -> Any:
    """The pairs of scores (..., N, T, S) that are allowed: boolean, broadcastable to them; uses up ``arrays``."""
    kind, *settings = mask
    i, j = np.arange(shape[-2])[:, None], np.arange(shape[-1])
    if kind in ("and", "or"):
        one, other = (truth(part, arrays, shape) for part in settings)
        return one & other if kind == "and" else one | other
    if kind == "not":
        return ~truth(settings[0], arrays, shape)
    if kind == "causal":
        return j <= i + settings[0]
    if kind == "window":
        left, right = (10**9 if bound is None else bound for bound in settings)
        return (i - left <= j) & (j <= i + right)
    if kind in ("dense", "array"):
        return arrays.pop(0)
    if kind == "function":
        return j <= arrays.pop(0)[:, None] if settings[0] else (i * j) % 3 != 1
    if kind == "segments":
        query_ids, key_ids = arrays.pop(0), arrays.pop(0)
        return (query_ids[..., :, None] == key_ids[..., None, :])[..., None, :, :]
    number = arrays.pop(0)[..., None, None, None]
    if kind == "traced causal":
        return j <= i + number
    if kind == "prefix":
        return (j <= i) | (j < number)
    return (j < number) & (i < arrays.pop(0)[..., None, None, None]) if settings[0] else j < number
