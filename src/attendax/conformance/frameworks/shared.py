"""Functions that all drivers share, whatever their arrays; a reproduction also prints them."""

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


def closing(made, attend, kinds, known):
    """The function where some arrays are constants, as ``made``; ``weights`` among them project what is given."""

    def run(query, key, value, **given):
        constants = {name: made(kind, known[name]) for name, kind in kinds.items()}
        inputs, found = filled(query, key, value, given, constants, kinds)
        return attend(*inputs, **found)

    return run


def by_hand(ruled, attend, backward):
    """The function, its gradients by ``backward(grad_output, query, key, value, ..., grad_lse=...)``."""
    import functools

    @functools.wraps(attend)
    def run(query, key, value, **options):
        more = {name: options.pop(name) for name in ("bias", "sinks") if options.get(name) is not None}
        less = {k: x for k, x in options.items() if k != "return_lse"}

        def call(*arrays):
            return attend(*arrays[:3], **dict(zip(more, arrays[3:], strict=True)), **options)

        def pulled(arrays, *cotangents):
            given = dict(zip((*more, "grad_lse"), (*arrays[3:], *cotangents[1:]), strict=False))
            return tuple(backward(cotangents[0], *arrays[:3], **given, **less))

        return ruled(call, pulled)(query, key, value, *more.values())

    return run


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
    """Tell whether numbers are others; NaN is NaN."""
    return not ((before == now) | ((before != before) & (now != now))).all()


def freed(full, arrays):
    """Leave NaN in freed memory of the sizes of results, scores and gradients, for who returns what it never wrote.

    It has a mark: no arithmetic makes one whose mantissa begins with 1010101. ``full(shape, bits, dtype)`` makes it.
    """
    marks = {"float64": 0x7FFAA << 44, "float32": 0x7FD5 << 16, "bfloat16": 0x7FD5, "float16": 0x7EA8}
    kinds = {"float32", *(str(x.dtype).removeprefix("torch.") for x in arrays.values())} & marks.keys()
    shapes = {x.shape for x in arrays.values()}
    if {"query", "key", "value"} <= arrays.keys():
        rows = arrays["query"].shape[:-1]
        shapes |= {rows, (*rows, arrays["key"].shape[-2]), (*rows, arrays["value"].shape[-1])}
    small = [shape for shape in shapes if np.prod(shape) < 2**20]
    [full(shape, marks[kind], f"int{kind[-2:]}") for shape in small for kind in kinds for _ in range(8)]


def afterwards(arrays, options):
    """The arrays, and the options that are arrays, as they are after a call."""
    return {f"after {k}": x for k, x in (arrays | options).items() if hasattr(x, "shape")}


def result_of(found):
    """The array that a model gives: its logits or last hidden state by name, or the first that has two axes."""
    if hasattr(found, "shape"):
        return found
    names = found if isinstance(found, dict) else getattr(found, "__dict__", {})
    named = (names[name] for name in ("logits", "last_hidden_state") if hasattr(names.get(name), "shape"))
    several = list(names.values()) or list(found)
    return next(named, next((x for x in several if len(getattr(x, "shape", ())) > 1), several[0]))


def of_positions(found):
    """The results of each position, (B, T, C), of what a model gives: its logits or states, or the first of several."""
    found = result_of(found)
    found = found.float() if str(found.dtype) == "torch.bfloat16" else found
    return found.reshape(*found.shape[:2], -1)


def long(x):
    """Integers of torch as ``Embedding`` has them; anything else as it is."""
    return x.long() if str(x.dtype) == "torch.int32" else x


def per_position(apply):
    """A model as a function of ``query`` alone."""

    def attend(query, key, value, **options):
        return of_positions(apply(long(query), **{k: long(x) for k, x in options.items()}))

    return attend


def stepped(step, inputs, state, options):
    """A step of the cache."""
    return step(inputs, state, **options)


def chunked(array, joined, cache, inputs, options, chunks, room, order, run=stepped):
    """out of a model, so many tokens at a time, by ``run`` of a step; ``array`` makes those of the framework."""
    init, step, *reorder = cache
    state, found, start = init(len(inputs), room), [], 0
    for count in chunks:
        part = slice(start, start + count)
        given = {name: long(array(x[:, part])) for name, x in options.items()}
        one, state = run(step, long(array(inputs[:, part])), state, given)
        found.append(of_positions(one))
        if order and not start:
            state = reorder[0](state, array(np.array(order)))
        start += count
    return {"out": joined(found, 1)}
