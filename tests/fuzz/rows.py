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

from . import data
from .case import Case
from .data import Arrays

ALL = slice(None)
NAMES = {"out": "cotangent_out", "lse": "cotangent_lse", "query": "query", "key": "key", "value": "value"}


class Part(NamedTuple):
    """Slices of a call: the first leading axis, groups, queries, keys."""

    lead: slice = ALL
    groups: slice = ALL
    queries: slice = ALL
    keys: slice = ALL

    def heads(self, case: Case) -> slice:
        start, stop, _ = self.groups.indices(case.G)
        return slice(start * (case.N // case.G), stop * (case.N // case.G))


def cut(case: Case, part: Part, arrays: Arrays) -> Arrays:
    """The arrays of a part of a call."""
    slices = {0: part.lead, "G": part.groups, "N": part.heads(case), "T": part.queries, "S": part.keys}
    found = arrays | {name: arrays[name][tuple(slices.get(axis, ALL) for axis in own)]
                      for name, own in data.axes(case).items() if name in arrays}  # fmt: skip
    start, stop, _ = part.queries.indices(case.T)
    moved: dict[str, Callable] = {
        "lengths": lambda x: np.minimum(x, np.int32(len(range(*part.keys.indices(case.S))))),
        "query lengths": lambda x: np.clip(x - np.int32(start), 0, np.int32(stop - start)),
        "offset": lambda x: x + np.int32(start),
    }
    for name, holds in data.held(case).items():
        found |= {name: moved[holds](found[name])} if name in found and holds in moved else {}
    return found


def run(attention: Callable, case: Case, arrays: Arrays, part: Part) -> Arrays:
    """out, lse, and the gradients of query, key and value, of a part, step by step."""
    low = cut(case, part, data.in_dtypes(case, arrays))
    options = data.options(case, low, part.queries.indices(case.T)[0])
    options |= {"return_lse": True, "implementation": case.implementation or "native"}
    *operands, dout, dlse = (jnp.asarray(low[name]) for name in ("query", "key", "value", *list(NAMES.values())[:2]))
    found, pull_back = jax.vjp(lambda *x: attention(*x, **options), *operands)
    results = (*found, *pull_back((dout.astype(found[0].dtype), dlse.astype(found[1].dtype))))
    return dict(zip(NAMES, map(np.asarray, results), strict=True))


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
        seen = np.flatnonzero(pairs[..., part.heads(case), a:b, :].any(tuple(range(pairs.ndim - 1))))
        yield part._replace(keys=slice(0, int(seen.max(initial=0)) + 1)) if rng.random() < 0.5 else part


def differences(attention: Callable, case: Case, arrays: Arrays, got: Any) -> Iterator[str]:
    """Parts of the first call with other bits than the whole; and the whole, if it differs from ``got``."""
    first = (0,) * len(case.maps)
    arrays = data.of_call(case, arrays, first)
    try:
        whole = run(attention, case, arrays, Part())
    except NotImplementedError:
        return
    for part in parts(case, arrays):
        right = cut(case, part, {NAMES[name]: x for name, x in whole.items()})
        for name, x in run(attention, case, arrays, part).items():
            if (part.lead != ALL or name not in ("key", "value")) and not same(x, y := right[NAMES[name]]):
                yield f"{name} of {part}: {(x != y).sum()} of {x.size} numbers differ"
    for name, x in whole.items() if case.direction == "forward" else ():
        if name in got and not same(got[name][first], x):
            yield f"{name}: other bits alone, step by step, than in the program of the case"


def same(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether arrays are the same except for the bits of their NaNs."""
    return np.array_equal(x.astype(np.float64), y.astype(np.float64), equal_nan=True)
