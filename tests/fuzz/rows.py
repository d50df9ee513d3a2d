"""L15 on the native path: a part of a call gives the bits that the whole call gives.

A part is one entry of the batch, some groups of heads, some queries that follow each other, and the keys up to the last
that they see. It compares out, lse and the gradient of the query; of an entry of the batch, beside others,
also the gradients of keys and values. Dropout goes by position, so a part of a call with dropout is its beginning.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attendax import masks, scores

from . import data
from .case import Case
from .program import arrays_in

Arrays = dict[str, np.ndarray]
ALL = slice(None)


class Part(NamedTuple):
    """Slices of a call: the first leading axis, groups, queries, keys."""

    lead: slice = ALL
    groups: slice = ALL
    queries: slice = ALL
    keys: slice = ALL

    def heads(self, case: Case) -> slice:
        """The query heads of the groups."""
        start, stop, _ = self.groups.indices(case.G)
        return slice(start * (case.N // case.G), stop * (case.N // case.G))

    def start(self, case: Case) -> int:
        """The first query."""
        return self.queries.indices(case.T)[0]


def cut(x: Any, *slices: slice) -> Any:
    """The last axes of an array, each cut unless it is 1 or missing."""
    slices = slices[max(0, len(slices) - x.ndim) :]
    pairs = zip(x.shape[x.ndim - len(slices) :], slices, strict=True)
    return x[(..., *(slice(None) if n == 1 else s for n, s in pairs))]


def cut_lead(case: Case, x: Any, lead: slice, rest: int) -> Any:
    """An array with ``rest`` axes behind the leading ones, the first of which is cut."""
    count = len(case.lead) - len(case.maps)
    if not count or x.ndim < count + rest or x.shape[x.ndim - rest - count] == 1:
        return x
    return x[(slice(None),) * (x.ndim - rest - count) + (lead,)]


def cut_rows(case: Case, name: str, x: Any, part: Part) -> Any:
    """Query, key, value or a cotangent."""
    rest = 1 if name == "cotangent_lse" else 2
    x = cut_lead(case, x, part.lead, rest if case.one_head else rest + 1)
    of_keys = name in ("key", "value")
    heads, rows = (part.groups, part.keys) if of_keys else (part.heads(case), part.queries)
    own = (rows,) if rest == 1 else (rows, ALL)
    return x[(..., *own)] if case.one_head else x[(..., heads, *own)]


def cut_mask(case: Case, mask: Any, arrays: list[Any], part: Part) -> Any:
    """The mask of a part; uses up ``arrays``."""
    kind, *settings = mask
    t, start = part.queries, part.start(case)
    if kind in ("and", "or"):
        one, other = (cut_mask(case, each, arrays, part) for each in settings)
        return one & other if kind == "and" else one | other
    if kind == "not":
        return ~cut_mask(case, settings[0], arrays, part)
    if kind == "causal":
        return masks.causal(settings[0] + start)
    if kind == "window":
        return masks.window(*settings, start)
    x = arrays.pop(0)
    if kind in ("dense", "array"):
        x = cut_lead(case, x, part.lead, 3) if x.ndim > 3 else x
        return masks.dense(cut(x, part.heads(case), t, part.keys))
    if kind == "segments":
        ids = [cut_lead(case, each, part.lead, 1) for each in (x, arrays.pop(0))]
        return masks.segments(ids[0][..., t], ids[1][..., part.keys])
    x = cut_lead(case, x, part.lead, 0)
    if kind == "traced causal":
        return masks.causal(x + np.int32(start))
    x = np.minimum(x, np.int32(len(range(*part.keys.indices(case.S)))))
    if kind == "padding" and settings[0]:
        lengths = cut_lead(case, arrays.pop(0), part.lead, 0) - np.int32(start)
        return masks.padding(x, np.clip(lengths, 0, np.int32(len(range(*t.indices(case.T))))))
    return masks.padding(x) if kind == "padding" else masks.prefix(x, start)


def cut_modifier(case: Case, modifier: Any, arrays: list[Any], part: Part) -> Any:
    """The modifier of a part; uses up ``arrays``."""
    kind, *settings = modifier
    if kind == "compose":
        return scores.compose(*(cut_modifier(case, each, arrays, part) for each in settings))
    if kind == "softcap":
        return scores.softcap(*settings)
    make = {"alibi": scores.alibi, "relative": scores.relative_bias}[kind]
    return make(arrays.pop(0)[part.heads(case)], settings[-1] + part.start(case))


def cut_options(case: Case, arrays: Arrays, part: Part) -> dict[str, Any]:
    """The options of a part."""
    options: dict[str, Any] = {"scale": case.scale}
    if case.mask is not None:
        given = [arrays[name] for name in sorted(arrays) if name.startswith("mask")]
        options["mask"] = cut_mask(case, case.mask, given, part)
    if case.bias is not None:
        bias = cut(arrays["bias"], part.heads(case), part.queries, part.keys)
        options["bias"] = cut_lead(case, bias, part.lead, 3) if bias.ndim > 3 else bias
    if case.modifier is not None:
        given = [arrays[name] for name in sorted(arrays) if name.startswith("mod")]
        options["score_mod"] = cut_modifier(case, case.modifier, given, part)
    return options | ({"dropout_rate": case.dropout, "dropout_rng": arrays["rng"]} if case.dropout else {})


def run(attention: Callable, case: Case, arrays: Arrays, part: Part) -> list[np.ndarray]:
    """out, lse, and the gradients of query, key and value, of a part, step by step."""
    low = arrays_in(case, arrays)
    names = ("query", "key", "value", "cotangent_out", "cotangent_lse")
    *given, dout, dlse = (jnp.asarray(cut_rows(case, name, low[name], part)) for name in names)
    options = cut_options(case, low, part)
    options |= {"return_lse": True, "implementation": case.implementation or "native"}
    found, pull_back = jax.vjp(lambda *x: attention(*x, **options), *given)
    return [np.asarray(x) for x in (*found, *pull_back((dout.astype(found[0].dtype), dlse.astype(found[1].dtype))))]


def parts(case: Case, arrays: Arrays) -> Iterator[Part]:
    """Some parts of a call."""
    rng = data.generator(case, "rows")
    pairs = data.allowed(case, arrays)
    first = bool(case.dropout)
    count = len(case.lead) - len(case.maps)
    size = case.lead[len(case.maps)] if count else 1
    if size > 1:
        b = 0 if first else int(rng.integers(size))
        yield Part(lead=slice(b, b + 1))
    for _ in range(2 if case.T else 0):
        a = 0 if first else int(rng.integers(case.T))
        b = a + 1 if rng.random() < 0.5 else int(rng.integers(a, case.T)) + 1
        g = 0 if first else int(rng.integers(case.G))
        groups = slice(g, g + 1) if rng.random() < 0.3 and not case.one_head and not (first and count) else ALL
        part = Part(groups=groups, queries=slice(a, b))
        seen = np.flatnonzero(pairs[..., part.heads(case), a:b, :].any(tuple(range(pairs.ndim - 1))))
        yield part._replace(keys=slice(0, int(seen.max(initial=0)) + 1)) if rng.random() < 0.5 else part


def differences(attention: Callable, case: Case, arrays: Arrays) -> tuple[list[str], list[np.ndarray] | None]:
    """Name parts of the first call with other bits than the whole; give the results of the whole, None if refused."""
    arrays = {name: x[data.place(case, name, (0,) * len(case.maps))] for name, x in arrays.items()}
    try:
        whole = run(attention, case, arrays, Part())
    except NotImplementedError:
        return [], None
    told = []
    for part in parts(case, arrays):
        got = run(attention, case, arrays, part)
        names = ("out", "lse", "query", *(("key", "value") if part.lead != ALL else ()))
        for name, x, y in zip(names, got, whole, strict=False):
            wanted = cut_rows(case, {"out": "query", "lse": "cotangent_lse"}.get(name, name), y, part)
            if x.tobytes() != np.ascontiguousarray(wanted).tobytes() and not _only_nan(x, wanted):
                told.append(f"{name} of {part}: {(x != wanted).sum()} of {x.size} numbers differ")
    return told, whole


def _only_nan(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether arrays are the same but for the bits of their NaNs."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return bool(((x == y) | (np.isnan(x) & np.isnan(y))).all())
