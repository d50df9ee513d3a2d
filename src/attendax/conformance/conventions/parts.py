"""Large inputs in parts, each a call of its own: one key head with its query heads, and a block of queries.

``spec`` is given parts that fit in memory, and ``formula`` parts that a cache holds.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..cases.case import Inputs, Leaves, allowed_pairs

MASK_OPTIONS = ("mask", "is_causal", "offset", "window", "key_lengths", "query_segment_ids", "key_segment_ids")
PART_PAIRS = 2**19  # of queries and keys in a part: 4 MiB in float64; the definition holds a dozen such arrays at once

Function = Callable[[Inputs], Leaves]
Places = dict[str, tuple[slice, ...]]


def in_parts(function: Function, most: int = PART_PAIRS) -> Function:
    """The function, which gets large inputs one part after the other."""

    @functools.wraps(function)
    def run(inputs: Inputs) -> Leaves:
        return function(inputs) if pairs(inputs) <= most or not can_be_cut(inputs) else joined(function, inputs, most)

    return run


def joined(function: Function, inputs: Inputs, most: int, *, trimmed: bool = False) -> Leaves:
    """Results of a function for each part, put together; where it is ``trimmed``, of the keys that a part sees alone.

    Gradients of keys and values are summed over the blocks of queries, and those of a bias and of sinks over all parts
    that read the same numbers.
    """
    query, value = inputs.arrays["query"], inputs.arrays["value"]
    shapes = {"out": (*query.shape[:-1], value.shape[-1]), "lse": query.shape[:-1]}
    shapes |= {f"grad {name}": x.shape for name, x in inputs.arrays.items()}
    shapes |= {"grad bias": of_scores(inputs.arrays["bias"]).shape} if "bias" in inputs.arrays else {}
    whole: Leaves = {}
    for some, places in _blocks(inputs, most, trimmed=trimmed):
        for leaf, x in function(some).items():
            if leaf not in whole:
                whole[leaf] = np.zeros(shapes[leaf])
            whole[leaf][places.get(leaf.removeprefix("grad "), places["query"])] += x
    return {leaf: x.reshape(inputs.arrays["bias"].shape) if leaf == "grad bias" else x for leaf, x in whole.items()}


def pairs(inputs: Inputs) -> int:
    """The number of pairs of a query and a key."""
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    return int(np.prod(query.shape[:-1])) * key.shape[-2]


def can_be_cut(inputs: Inputs) -> bool:
    """Tell whether parts are calls of their own."""
    return inputs.arrays["query"].ndim == 4


def of_scores(x: Any) -> np.ndarray:
    """A bias or a mask with an axis for each of the scores'."""
    x = np.asarray(x)
    if x.ndim > 4:
        raise NotImplementedError("no rank beyond 4")
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def _blocks(inputs: Inputs, most: int, *, trimmed: bool) -> Iterator[tuple[Inputs, Places]]:
    """Each part, and where its arrays are in the whole."""
    (B, N, T, _), (_, G, S, _) = (inputs.arrays[name].shape for name in ("query", "key"))
    rows, seen = max(1, most // max(N // G * S, 1)), allowed_pairs(inputs)
    allowed = None if seen.all() else seen
    for b, g, start in np.ndindex(B, G, -(-T // rows)):
        at = b, g, slice(start * rows, (start + 1) * rows)
        mask = part(inputs, allowed, *at)[0].options.get("mask") if trimmed and allowed is not None else None
        span = slice(None)
        if mask is not None and mask.shape[-1] == S:  # from the first key that is seen to the last
            keys = np.flatnonzero(mask.any(axis=(0, 1, 2)))
            span = slice(int(keys[0]), int(keys[-1]) + 1) if len(keys) else slice(0, 0)
        yield part(inputs, allowed, *at, span)


def part(
    inputs: Inputs, allowed: np.ndarray | None, b: int, g: int, rows: slice = slice(None), keys: slice = slice(None)
) -> tuple[Inputs, Places]:
    """A key head of an example, rows of its query heads, and some keys; what they may look at is a mask, None all."""
    group = inputs.arrays["query"].shape[1] // inputs.arrays["key"].shape[1]
    queries = slice(b, b + 1), slice(g * group, (g + 1) * group), rows

    def at(x: np.ndarray) -> tuple[slice, ...]:
        return tuple(slice(None) if n == 1 else own for n, own in zip(x.shape, (*queries, keys), strict=True))

    places: Places = {"sinks": queries[1:2], **dict.fromkeys(("key", "value"), (queries[0], slice(g, g + 1), keys))}
    places |= dict.fromkeys(("query", "cotangent", "lse_cotangent"), queries)
    whole, options = inputs.arrays, {k: x for k, x in inputs.options.items() if k not in MASK_OPTIONS}
    if "bias" in whole:
        whole = whole | {"bias": of_scores(whole["bias"])}
        places["bias"] = at(whole["bias"])
    if allowed is not None:
        mask = of_scores(allowed)
        options["mask"] = mask[at(mask)]
    arrays, extra = ({k: x[places[k]] if k in places else x for k, x in y.items()} for y in (whole, inputs.extra))
    return Inputs(arrays, options, extra), places


LARGE_PAIRS = 2**17  # pairs of queries and keys, from which on a case is computed by the formula
REPEATED = 2**20  # or so many numbers of keys and values, were they repeated for each query head
BLOCK_PAIRS = 2**17  # pairs whose scores are made at a time: 1 MiB, which a cache holds
LARGEST_NUMBER = 1e100  # beyond it, or where a number is not finite, ``spec`` alone knows
COTANGENTS = ("cotangent", "lse_cotangent")


def by_formula_where_large(formula: Function) -> Callable[[Function], Function]:
    """A stand-in for a function of ``spec``: the formula in small parts, of large inputs of ordinary numbers."""

    def quicker(by_spec: Function) -> Function:
        @functools.wraps(by_spec)
        def run(inputs: Inputs) -> Leaves:
            if not is_for(inputs):
                return by_spec(inputs)
            with np.errstate(all="ignore"):
                return joined(formula, inputs, BLOCK_PAIRS, trimmed=True)

        return run

    return quicker


def is_for(inputs: Inputs) -> bool:
    """Tell whether a call is large, and all of its numbers are ordinary; a bias may be -inf."""
    if not can_be_cut(inputs) or not (pairs(inputs) > LARGE_PAIRS or _repeated(inputs) > REPEATED) or not pairs(inputs):
        return False
    given: Mapping[str, Any] = inputs.arrays | {k: x for k, x in inputs.extra.items() if k in COTANGENTS}
    return all(_is_ordinary(x, bound=name == "bias") for name, x in given.items())


def _repeated(inputs: Inputs) -> int:
    (B, N, _, D), value = inputs.arrays["query"].shape, inputs.arrays["value"]
    return B * N * value.shape[2] * (D + value.shape[3]) if value.shape[1] < N else 0


def _is_ordinary(x: np.ndarray, *, bound: bool) -> bool:
    x = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    lowest, largest = float(x.min(initial=0)), float(x.max(initial=0))  # NaN, where one is
    return largest < LARGEST_NUMBER and (lowest > -LARGEST_NUMBER or (bound and lowest == -np.inf))
