"""L15 on the native path: a part of a call gives the bits that the whole call gives.

A part is one entry of the batch, some groups of heads, some queries that follow each other, and the keys up to the last
that they see. It compares out, lse and the gradient of the query; of an entry of the batch also the gradients of key
and value. Dropout goes by position, so a part of a call with dropout is its beginning.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attendax import masks, scores

from . import data
from .case import Case

Arrays = dict[str, np.ndarray]
ALL = slice(None)


class Part(NamedTuple):
    """Slices of a call: the first leading axis, groups, queries, keys."""

    lead: slice = ALL
    groups: slice = ALL
    queries: slice = ALL
    keys: slice = ALL


class Cut:
    """Cuts a part out of the arrays and options of a call."""

    def __init__(self, case: Case, part: Part):
        self.case, self.part = case, part
        start, stop, _ = part.groups.indices(case.G)
        self.heads = slice(start * (case.N // case.G), stop * (case.N // case.G))
        self.start, stop, _ = part.queries.indices(case.T)
        self.queries, self.keys = stop - self.start, len(range(*part.keys.indices(case.S)))

    def lead(self, x: Any, rest: int) -> Any:
        """An array with ``rest`` axes behind the leading ones, the first of which is cut."""
        axis = x.ndim - rest - (len(self.case.lead) - len(self.case.maps))
        has_axis = 0 <= axis < x.ndim - rest and x.shape[axis] > 1
        return x[(ALL,) * axis + (self.part.lead,)] if has_axis else x

    def rows(self, name: str, x: Any) -> Any:
        """Query, key, value or a cotangent."""
        rest = 1 if name == "cotangent_lse" else 2
        x = self.lead(x, rest if self.case.one_head else rest + 1)
        heads, rows = (
            (self.part.groups, self.part.keys) if name in ("key", "value") else (self.heads, self.part.queries)
        )
        return x[(..., *(() if self.case.one_head else (heads,)), rows, *(ALL,) * (rest - 1))]

    def pairs(self, x: Any) -> Any:
        """A bias or a dense mask: an axis of 1, or one that is missing, is not cut."""
        x = self.lead(x, 3) if x.ndim > 3 else x
        slices = (self.heads, self.part.queries, self.part.keys)[max(0, 3 - x.ndim) :]
        sizes = x.shape[x.ndim - len(slices) :]
        return x[(..., *(ALL if n == 1 else s for n, s in zip(sizes, slices, strict=True)))]

    def mask(self, tree: Any, arrays: list[Any]) -> Any:
        """The mask of a part; uses up ``arrays``."""
        kind, *settings = tree
        if kind in ("and", "or"):
            one, other = (self.mask(each, arrays) for each in settings)
            return one & other if kind == "and" else one | other
        if kind == "not":
            return ~self.mask(settings[0], arrays)
        if kind == "causal":
            return masks.causal(settings[0] + self.start)
        if kind == "window":
            return masks.window(*settings, self.start)
        x = arrays.pop(0)
        if kind in ("dense", "array"):
            return masks.dense(self.pairs(x))
        if kind == "segments":
            ids = [self.lead(each, 1) for each in (x, arrays.pop(0))]
            return masks.segments(ids[0][..., self.part.queries], ids[1][..., self.part.keys])
        x = self.lead(x, 0)
        if kind == "traced causal":
            return masks.causal(x + np.int32(self.start))
        x = np.minimum(x, np.int32(self.keys))
        if kind == "padding" and settings[0]:
            lengths = self.lead(arrays.pop(0), 0) - np.int32(self.start)
            return masks.padding(x, np.clip(lengths, 0, np.int32(self.queries)))
        return masks.padding(x) if kind == "padding" else masks.prefix(x, self.start)

    def modifier(self, tree: Any, arrays: list[Any]) -> Any:
        """The modifier of a part; uses up ``arrays``."""
        kind, *settings = tree
        if kind == "compose":
            return scores.compose(*(self.modifier(each, arrays) for each in settings))
        if kind == "softcap":
            return scores.softcap(*settings)
        make = {"alibi": scores.alibi, "relative": scores.relative_bias}[kind]
        return make(arrays.pop(0)[self.heads], settings[-1] + self.start)

    def options(self, arrays: Arrays) -> dict[str, Any]:
        found = data.options(self.case, arrays)
        if "mask" in found:
            found["mask"] = self.mask(self.case.mask, data.named(arrays, "mask"))
        if "bias" in found:
            found["bias"] = self.pairs(arrays["bias"])
        if "score_mod" in found:
            found["score_mod"] = self.modifier(self.case.modifier, data.named(arrays, "mod"))
        return found | {"return_lse": True, "implementation": self.case.implementation or "native"}


def run(attention: Callable, case: Case, arrays: Arrays, part: Part) -> list[np.ndarray]:
    """out, lse, and the gradients of query, key and value, of a part, step by step."""
    low, cut = data.in_dtypes(case, arrays), Cut(case, part)
    names = ("query", "key", "value", "cotangent_out", "cotangent_lse")
    *operands, dout, dlse = (jnp.asarray(cut.rows(name, low[name])) for name in names)
    options = cut.options(low)
    found, pull_back = jax.vjp(lambda *x: attention(*x, **options), *operands)
    return [np.asarray(x) for x in (*found, *pull_back((dout.astype(found[0].dtype), dlse.astype(found[1].dtype))))]


def parts(case: Case, arrays: Arrays) -> Iterator[Part]:
    """Some parts of a call."""
    rng, pairs = data.generator(case, "rows"), data.allowed(case, arrays)
    first, lead = bool(case.dropout), case.lead[len(case.maps) :]
    if lead and lead[0] > 1:
        b = 0 if first else int(rng.integers(lead[0]))
        yield Part(lead=slice(b, b + 1))
    for _ in range(2 if case.T else 0):
        a = 0 if first else int(rng.integers(case.T))
        b = a + 1 if rng.random() < 0.5 else int(rng.integers(a, case.T)) + 1
        g = 0 if first else int(rng.integers(case.G))
        groups = slice(g, g + 1) if rng.random() < 0.3 and not case.one_head and not (first and lead) else ALL
        part = Part(groups=groups, queries=slice(a, b))
        seen = np.flatnonzero(pairs[..., Cut(case, part).heads, a:b, :].any(tuple(range(pairs.ndim - 1))))
        yield part._replace(keys=slice(0, int(seen.max(initial=0)) + 1)) if rng.random() < 0.5 else part


def differences(attention: Callable, case: Case, arrays: Arrays, got: Any) -> Iterator[str]:
    """Parts of the first call with other bits than the whole; and the whole, if it differs from ``got``."""
    first = (0,) * len(case.maps)
    arrays = data.of_call(case, arrays, first)
    try:
        whole = run(attention, case, arrays, Part())
    except NotImplementedError:
        return
    names = ("out", "lse", "query", "key", "value")
    for part in parts(case, arrays):
        for name, x, y in zip(names, run(attention, case, arrays, part), whole, strict=True):
            right = Cut(case, part).rows({"out": "query", "lse": "cotangent_lse"}.get(name, name), y)
            if (part.lead != ALL or name in names[:3]) and not same(x, right):
                yield f"{name} of {part}: {(x != right).sum()} of {x.size} numbers differ"
    if case.direction == "forward":
        for name, x in zip(names[: len(got)], whole, strict=False):
            if not same(got[name][first], x):
                yield f"{name}: other bits alone, step by step, than in the program of the case"


def same(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether arrays are the same except for the bits of their NaNs."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return bool(((x == y) | (np.isnan(x) & np.isnan(y))).all())
