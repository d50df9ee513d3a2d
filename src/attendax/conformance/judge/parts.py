"""Large inputs in parts, each a call of its own: one key head with its query heads, and a block of queries."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..cases.case import Inputs, Leaves

PAIRS = 2**19  # of queries and keys in a part: 4 MiB in float64; the definition holds a dozen such arrays at once
MASKS = ("mask", "is_causal", "offset", "window", "key_lengths", "query_segment_ids", "key_segment_ids")

Allowed = Callable[..., np.ndarray]
Places = dict[str, tuple[slice, ...]]


def in_parts(function: Callable[..., Leaves], allowed: Allowed, most: int = PAIRS) -> Callable[..., Leaves]:
    """The same function, which gets large inputs one part after the other; the results are put together.

    Gradients of keys and values are summed over the blocks of queries, and those of a bias and of sinks over all parts
    that read the same numbers.
    """

    @functools.wraps(function)
    def run(inputs: Inputs, **conventions: Any) -> Leaves:
        if pairs(inputs) <= most or not can_be_cut(inputs):
            return function(inputs, **conventions)
        query, value = inputs.arrays["query"], inputs.arrays["value"]
        shapes = {"out": (*query.shape[:-1], value.shape[-1]), "lse": query.shape[:-1]}
        shapes |= {f"grad {name}": x.shape for name, x in inputs.arrays.items()}
        shapes |= {"grad bias": bias_of(inputs).shape} if "bias" in inputs.arrays else {}
        whole: Leaves = {}
        for part, places in blocks(inputs, allowed(inputs, **conventions), most):
            for leaf, x in function(part).items():
                place = places.get(leaf.removeprefix("grad "), places["query"])
                whole.setdefault(leaf, np.zeros(shapes[leaf]))[place] += x
        return {leaf: x.reshape(inputs.arrays["bias"].shape) if leaf == "grad bias" else x for leaf, x in whole.items()}

    return run


def pairs(inputs: Inputs) -> int:
    """How many pairs of a query and a key there are."""
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    return int(np.prod(query.shape[:-1])) * key.shape[-2]


def can_be_cut(inputs: Inputs) -> bool:
    """Whether parts are calls of their own."""
    return inputs.arrays["query"].ndim == 4


def bias_of(inputs: Inputs) -> np.ndarray:
    """The bias with an axis for each of the scores'."""
    bias = inputs.arrays["bias"]
    return bias.reshape((1,) * (4 - bias.ndim) + bias.shape)


def blocks(inputs: Inputs, allowed: np.ndarray, most: int) -> Iterator[tuple[Inputs, Places]]:
    """Each part, and where its arrays are in the whole."""
    (B, _, T, _), (_, G, S, _) = (inputs.arrays[name].shape for name in ("query", "key"))
    rows = max(1, most // (inputs.arrays["query"].shape[1] // G * S))
    for b, g, start in np.ndindex(B, G, -(-T // rows)):
        yield part(inputs, allowed, b, g, slice(start * rows, (start + 1) * rows))


def part(inputs: Inputs, allowed: np.ndarray, b: int, g: int, rows: slice = slice(None)) -> tuple[Inputs, Places]:
    """A key head of an example, and rows of its query heads; what they may look at as a mask."""
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    group = query.shape[1] // key.shape[1]
    keys = slice(b, b + 1), slice(g, g + 1)
    queries = slice(b, b + 1), slice(g * group, (g + 1) * group), rows
    places: Places = {"key": keys, "value": keys, "sinks": queries[1:2]}
    places |= dict.fromkeys(("query", "cotangent", "lse_cotangent"), queries)
    whole = inputs.arrays
    if "bias" in whole:
        whole = whole | {"bias": bias_of(inputs)}
        full = zip(whole["bias"].shape, (*queries, slice(None)), strict=True)
        places["bias"] = tuple(slice(None) if size == 1 else at for size, at in full)
    arrays, extra = ({k: x[places[k]] if k in places else x for k, x in y.items()} for y in (whole, inputs.extra))
    options = {k: x for k, x in inputs.options.items() if k not in MASKS}
    mask = np.broadcast_to(allowed, (*query.shape[:-1], key.shape[-2]))[queries]
    return Inputs(arrays, options | {"mask": mask}, extra), places
