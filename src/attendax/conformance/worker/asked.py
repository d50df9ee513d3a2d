"""The content of ``case.json``: a call for a candidate that is no Python function, for its results or its gradients.

Masks of every kind are one array there, the scale is a number, and the shape of each result is said.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..cases.allowed import allowed_pairs
from ..cases.case import ARRAYS, Inputs, Leaves

BEYOND = {"bias": "bias", "sinks": "sinks", "softcap": "softcap", "dropout_rate": "dropout", "return_lse": "lse"}
# Keywords that are all in "allowed".
HIDING = ("mask", "is_causal", "window", "key_lengths", "query_segment_ids", "key_segment_ids", "offset")
Told = dict[str, Any]


def asked(direction: str, arrays: Leaves, options: Mapping[str, Any], cotangent: Leaves) -> Told:
    """The content of ``case.json``: arrays that lie without gaps, and the shape of each result."""
    arrays = arrays | {k: options[k] for k in ARRAYS[3:] if options.get(k) is not None}
    options = {k: x for k, x in options.items() if k not in arrays}
    query, key, value = (arrays[name] for name in ARRAYS[:3])
    dtype, rows = str(query.dtype), query.shape[:-1]
    lse = "float64" if dtype == "float64" else "float32"
    if direction == "forward":
        results = {"out": (dtype, (*rows, value.shape[-1]))}
        results |= {"lse": (lse, rows)} if options.get("return_lse") else {}
    else:
        results = {f"grad_{name}": (str(x.dtype), x.shape) for name, x in arrays.items()}
    given = {k for k, x in (options | arrays).items() if x is not None}
    given |= {"return_lse"} if "lse" in cotangent else set()
    sizes = dict(zip("BNTD", query.shape, strict=True)) | {"G": key.shape[1], "S": key.shape[2], "V": value.shape[3]}
    return {
        "direction": direction,
        "dtype": dtype,
        "sizes": {axis: sizes[axis] for axis in "BNGTSDV"},
        "scale": query.shape[-1] ** -0.5 if options.get("scale") is None else float(options["scale"]),
        "allowed": _allowed(arrays, options),
        "asks_for": [word for option, word in BEYOND.items() if option in given],
        "options": {k: _whole(x) for k, x in options.items()},
        "arrays": {k: _whole(x) for k, x in arrays.items()},
        "cotangent": {k: _whole(x) for k, x in cotangent.items()},
        "results": {k: {"file": f"{k}.npy", "dtype": kind, "shape": shape} for k, (kind, shape) in results.items()},
    }


def _allowed(arrays: Leaves, options: Mapping[str, Any]) -> np.ndarray | None:
    """Pairs of a query and a key that it may look at, (B or 1, N or 1, T, S); None where each may look at all."""
    allowed = allowed_pairs(Inputs(arrays, dict(options), {}))
    if allowed.all():
        return None
    shape = (*allowed.shape[:-2], arrays["query"].shape[-2], arrays["key"].shape[-2])
    return np.array(np.broadcast_to(allowed, shape)[(None,) * (4 - allowed.ndim)])


def _whole(x: Any) -> Any:
    """An array without gaps; a word or a number as it is."""
    return np.ascontiguousarray(x).reshape(x.shape) if isinstance(x, np.ndarray) else x
