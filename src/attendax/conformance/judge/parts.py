"""Large inputs in parts, each a call of its own: one key head with its query heads, and a block of queries."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..cases.case import Inputs, Leaves

PAIRS = 2**19  # of queries and keys in a part: 4 MiB in float64; the definition holds a dozen such arrays at once
MASKS = ("mask", "is_causal", "offset", "window", "key_lengths", "query_segment_ids", "key_segment_ids")

Allowed = Callable[..., np.ndarray]
Index = tuple[slice, ...]


def in_parts(function: Callable[..., Leaves], allowed: Allowed, most: int = PAIRS) -> Callable[..., Leaves]:
    """The same function, which gets large inputs one part after the other; the results are put together.

    Gradients of keys and values are summed over the blocks of queries.
    """

    @functools.wraps(function)
    def run(inputs: Inputs, **conventions: Any) -> Leaves:
        if pairs(inputs) <= most or not can_be_cut(inputs):
            return function(inputs, **conventions)
        query, value = inputs.arrays["query"], inputs.arrays["value"]
        shapes = {"out": (*query.shape[:-1], value.shape[-1]), "lse": query.shape[:-1]}
        shapes |= {f"grad {name}": x.shape for name, x in inputs.arrays.items()}
        whole: Leaves = {}
        for part, queries, keys in blocks(inputs, allowed(inputs, **conventions), most):
            for leaf, x in function(part).items():
                place = keys if leaf in ("grad key", "grad value") else queries
                whole.setdefault(leaf, np.zeros(shapes[leaf]))[place] += x
        return whole

    return run


def pairs(inputs: Inputs) -> int:
    """How many pairs of a query and a key there are."""
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    return int(np.prod(query.shape[:-1])) * key.shape[-2]


def can_be_cut(inputs: Inputs) -> bool:
    """Whether parts are calls of their own: a bias and sinks may be shared by all of them."""
    return inputs.arrays["query"].ndim == 4 and inputs.arrays.keys() == {"query", "key", "value"}


def blocks(inputs: Inputs, allowed: np.ndarray, most: int) -> Iterator[tuple[Inputs, Index, Index]]:
    """Each part, and where its queries and its keys are in the whole."""
    (B, _, T, _), (_, G, S, _) = (inputs.arrays[name].shape for name in ("query", "key"))
    rows = max(1, most // (inputs.arrays["query"].shape[1] // G * S))
    for b, g, start in np.ndindex(B, G, -(-T // rows)):
        yield part(inputs, allowed, b, g, slice(start * rows, (start + 1) * rows))


def part(inputs: Inputs, allowed: np.ndarray, b: int, g: int, rows: slice = slice(None)) -> tuple[Inputs, Index, Index]:
    """A key head of an example, and rows of its query heads; what they may look at as a mask."""
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    group = query.shape[1] // key.shape[1]
    keys = slice(b, b + 1), slice(g, g + 1)
    queries = slice(b, b + 1), slice(g * group, (g + 1) * group), rows
    places = {"key": keys, "value": keys} | dict.fromkeys(("query", "cotangent", "lse_cotangent"), queries)
    arrays, extra = (
        {k: x[places[k]] if k in places else x for k, x in y.items()} for y in (inputs.arrays, inputs.extra)
    )
    options = {k: x for k, x in inputs.options.items() if k not in MASKS}
    mask = np.broadcast_to(allowed, (*query.shape[:-1], key.shape[-2]))[queries]
    return Inputs(arrays, options | {"mask": mask}, extra), queries, keys
