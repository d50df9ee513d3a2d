"""Large inputs in parts, each a call of its own: one key head with its query heads, and a block of queries."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..cases.case import Inputs, Leaves, allowed_pairs

PAIRS = 2**19  # of queries and keys in a part: 4 MiB in float64; the definition holds a dozen such arrays at once
MASKS = ("mask", "is_causal", "offset", "window", "key_lengths", "query_segment_ids", "key_segment_ids")

Function = Callable[[Inputs], Leaves]
Places = dict[str, tuple[slice, ...]]


def in_parts(function: Function, most: int = PAIRS) -> Function:
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
        yield part(inputs, allowed, *at, slice(None) if mask is None or mask.shape[-1] < S else _span(mask))


def _span(mask: np.ndarray) -> slice:
    """Keys from the first that is seen to the last."""
    keys = np.flatnonzero(mask.any(axis=(0, 1, 2)))
    return slice(int(keys[0]), int(keys[-1]) + 1) if len(keys) else slice(0, 0)


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
    whole, options = inputs.arrays, {k: x for k, x in inputs.options.items() if k not in MASKS}
    if "bias" in whole:
        whole = whole | {"bias": of_scores(whole["bias"])}
        places["bias"] = at(whole["bias"])
    if allowed is not None:
        mask = of_scores(allowed)
        options["mask"] = mask[at(mask)]
    arrays, extra = ({k: x[places[k]] if k in places else x for k, x in y.items()} for y in (whole, inputs.extra))
    return Inputs(arrays, options, extra), places
