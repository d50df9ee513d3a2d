"""Functions of NumPy arrays; their gradients where a backward is given."""

import contextlib

import numpy as np

HEADER = "import numpy as np"
stack, concat, ints = np.stack, np.concatenate, np.int32
WIDE = ""


def wide() -> contextlib.AbstractContextManager:
    """Where float64 stays float64: everywhere."""
    return contextlib.nullcontext()


def on(device):
    """NumPy's arrays are where they are."""
    return ""


def placed(device):
    """The same."""
    return contextlib.nullcontext()


def is_lack(error: Exception) -> bool:
    """No error but NotImplementedError says so."""
    return False


def poison(arrays):
    """Leave NaN in freed memory of the sizes of results, scores and gradients, for who returns what it never wrote."""
    shapes = {x.shape for x in arrays.values()}
    if {"query", "key", "value"} <= arrays.keys():
        rows = arrays["query"].shape[:-1]
        shapes |= {rows, (*rows, arrays["key"].shape[-2]), (*rows, arrays["value"].shape[-1])}
    kinds = {np.dtype("float32"), *(x.dtype for x in arrays.values())}
    [np.full(shape, np.nan, kind) for shape in shapes for kind in kinds for _ in range(8) if np.prod(shape) < 2**20]


def forward(attend, arrays, options):
    """out (and lse)."""
    poison(arrays)
    given = {k: x for k, x in arrays.items() if k in ("bias", "sinks")} | options
    found = attend(*(arrays.get(k) for k in ("query", "key", "value")), **given)
    names = ("out", "lse") if "return_lse" in options else ("out",)
    return dict(zip(names, found, strict=False)) if isinstance(found, (tuple, list)) else {"out": found}


eager = forward


def gradient(attend, arrays, options, cotangents):
    """Gradients by ``attend.backward(grad_output, query, key, value, ..., grad_lse=...)``, in this order."""
    given = [arrays.get(k) for k in ("query", "key", "value")]
    extra = {"grad_lse": cotangents["lse"]} if "lse" in cotangents else {}
    extra |= {k: arrays[k] for k in arrays if k in ("bias", "sinks")}
    options = {k: x for k, x in options.items() if k != "return_lse"}
    poison(arrays)
    found = attend.backward(cotangents["out"], *given, **extra, **options)
    return {f"grad {k}": x for k, x in zip(arrays, found, strict=False)}


def gradient_of_a_loss(attend, arrays, options, cotangents, how):
    """The same: the cotangents are those of the loss."""
    return gradient(attend, arrays, options, cotangents)


def closing_over(attend, kinds, known):
    """The function where some arrays have no gradient; ``weights`` among them project what is given."""

    def filled(query, key, value, given):
        found = {"query": query, "key": key, "value": value, **given, **known}
        weights = found.pop("weights", None)
        inputs = [found.pop(name) for name in ("query", "key", "value")]
        return inputs if weights is None else [(x @ weights).astype(x.dtype) for x in inputs], found

    def closed(query, key, value, **given):
        inputs, given = filled(query, key, value, given)
        return attend(*inputs, **given)

    def backward(grad_output, query, key, value, **given):
        inputs, given = filled(query, key, value, given)
        names = ("query", "key", "value", *(k for k in ("bias", "sinks") if k in given))
        found = dict(zip(names, attend.backward(grad_output, *inputs, **given), strict=False))
        if "weights" in known:
            found |= {k: (found[k] @ known["weights"].T).astype(found[k].dtype) for k in ("query", "key", "value")}
        return [x for k, x in found.items() if k not in known]

    closed.backward = backward  # type: ignore[attr-defined]
    return closed


def changed_in_place(attend, arrays, options, changed):
    """out (and lse) of a second call, after other numbers were written into the arrays that the first was given."""
    given = {k: x.copy() if hasattr(x, "shape") else x for k, x in (arrays | options).items()}
    arrays = {k: given.pop(k) for k in ("query", "key", "value")}
    forward(attend, arrays, given)
    for name, x in changed.items():
        (arrays if name in arrays else given)[name][...] = x
    return forward(attend, arrays, given)


def after_more_calls(run, arrays):
    """The result of a call, and that result again after more calls with other numbers."""
    first = run(arrays)
    then = {k: np.array(x) for k, x in first.items()}
    for _ in range(3):
        run({k: -x if k in ("query", "value") else x for k, x in arrays.items()})
    return then | {f"held {k.removeprefix('grad ')}": x for k, x in first.items()}


def held(attend, arrays, options):
    """out (and lse), and the same arrays after more calls."""
    return after_more_calls(lambda arrays: forward(attend, arrays, options), arrays)


def gradient_held(attend, arrays, options, cotangents):
    """Gradients, and the same arrays after more calls."""
    return after_more_calls(lambda arrays: gradient(attend, arrays, options, cotangents), arrays)


def custom_rule(attend, arrays, options):
    """Whether a backward is given."""
    return {"rule": np.array(hasattr(attend, "backward"))}


def unwritten(attend, arrays, options):
    """The arrays after a call."""
    forward(attend, arrays, options)
    return arrays | {k: x for k, x in options.items() if hasattr(x, "shape")}
