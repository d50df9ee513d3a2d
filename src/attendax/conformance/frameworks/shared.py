"""Functions that all drivers share, whatever their arrays; a reproduction prints them, too."""

import numpy as np


def called(attend, arrays, options):
    """One call: the arrays and the options by their names; the results by theirs."""
    arrays = dict(arrays)
    inputs = [arrays.pop(name, None) for name in ("query", "key", "value")]
    found = attend(*inputs, **arrays, **options)
    names = ("out", "lse") if "return_lse" in options else ("out",)
    return dict(zip(names, found, strict=False)) if isinstance(found, (tuple, list)) else {"out": found}


def filled(query, key, value, given, known, kinds):
    """Query, key and value, and what else is given, with what is known; ``weights`` in it project what is given."""
    found = {"query": query, "key": key, "value": value, **given, **known}
    found |= {name: query for name, kind in kinds.items() if kind == "the query"}
    weights = found.pop("weights", None)
    inputs = [found.pop(name) for name in ("query", "key", "value")]
    return inputs if weights is None else [x @ weights for x in inputs], found


def same_as_query(kinds):
    """The names in whose place the query is given, too."""
    return [name for name, kind in kinds.items() if kind == "the query"]


def loss_of(results, how):
    """A loss as one writes it."""
    out = results["out"]
    if how == "a row":
        return out[..., 0, :].sum()
    return out.mean() if how == "mean" else out.sum()


def after_more_calls(run, arrays, to_array, prefix=""):
    """The result of a call, and that result again after more calls with other numbers."""
    first = run(arrays)
    then = {f"{prefix}{k}": np.array(to_array(x)) for k, x in first.items()}
    for _ in range(3):
        run({k: -x if k in ("query", "value") else x for k, x in arrays.items()})
    return then | {f"held {k.removeprefix('grad ')}": to_array(x) for k, x in first.items()}


def memory(x):
    """The numbers of a view with what lies between, in a row, and the steps of its axes; or the whole, and None."""
    steps = [step // x.itemsize for step in x.strides]
    if not x.size or x.flags.c_contiguous or min(x.strides) < 0 or any(step % x.itemsize for step in x.strides):
        return np.ascontiguousarray(x), None
    whole = 1 + sum((n - 1) * step for n, step in zip(x.shape, steps, strict=True))
    return np.lib.stride_tricks.as_strided(x, (whole,), (x.itemsize,)), steps


def changed(before, now):
    """Whether numbers are others; NaN is NaN."""
    return not ((before == now) | ((before != before) & (now != now))).all()


def freed(arrays):
    """The shapes of results, scores and gradients that are small: what a function may find in memory that it gets."""
    shapes = {x.shape for x in arrays.values()}
    if {"query", "key", "value"} <= arrays.keys():
        rows = arrays["query"].shape[:-1]
        shapes |= {rows, (*rows, arrays["key"].shape[-2]), (*rows, arrays["value"].shape[-1])}
    return [shape for shape in shapes if np.prod(shape) < 2**20]


def with_arrays_of(arrays, options):
    """The arrays, and the options that are arrays."""
    return arrays | {k: x for k, x in options.items() if hasattr(x, "shape")}
