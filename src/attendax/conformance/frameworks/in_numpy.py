"""Functions of NumPy arrays; their gradients where a backward is given."""

import contextlib
from functools import partial

import numpy as np

from .shared import after_more_calls, afterwards, called, changed, chunked, filled, freed

HEADER = "from functools import partial\n\nimport numpy as np"
asarray = np.asarray
WIDE = ""
wide = placed = contextlib.nullcontext  # it keeps float64, and its arrays are where they are
# Of running a model: what is done to it, and the functions for its results and its gradient.
WAYS: dict[str, tuple[str, str | None, str | None]] = {}


def on(device):
    """NumPy's arrays are where they are."""
    return ""


def is_lack(error: Exception) -> bool:
    """No error but NotImplementedError says so."""
    return False


@contextlib.contextmanager
def watched(arrays):
    """Gives a function: the names of the arrays that were written to since."""
    before = {name: x.copy() for name, x in arrays.items() if isinstance(x, np.ndarray)}
    yield lambda: [name for name, x in before.items() if changed(x, arrays[name])]


poison = partial(freed, np.full)


def dtypes(attend, arrays, options):
    """The names of the dtypes in which a call computes its parts: nothing tells."""
    return set()


def forward(attend, arrays, options):
    """out (and lse)."""
    poison(arrays)
    return called(attend, arrays, options)


eager = forward


def gradient(attend, arrays, options, cotangents, how=None):
    """Gradients by ``attend.backward(grad_output, query, ..., grad_lse=...)``, in this order; also those of a loss."""
    given = [arrays.get(k) for k in ("query", "key", "value")]
    extra = {"grad_lse": cotangents["lse"]} if "lse" in cotangents else {}
    extra |= {k: arrays[k] for k in arrays if k in ("bias", "sinks")}
    options = {k: x for k, x in options.items() if k != "return_lse"}
    poison(arrays)
    found = attend.backward(cotangents["out"], *given, **extra, **options)
    return {f"grad {k}": x for k, x in zip(arrays, found, strict=False)}


gradient_of_a_loss = gradient


def closing_over(attend, kinds, known):
    """The function where some arrays have no gradient; ``weights`` among them project what is given."""

    def projected(query, key, value, given):
        inputs, found = filled(query, key, value, given, known, kinds)
        return [x.astype(value.dtype) for x in inputs] if "weights" in known else inputs, found

    def closed(query, key, value, **given):
        inputs, given = projected(query, key, value, given)
        return attend(*inputs, **given)

    def backward(grad_output, query, key, value, **given):
        inputs, given = projected(query, key, value, given)
        names = ("query", "key", "value", *(k for k in ("bias", "sinks") if k in given))
        found = dict(zip(names, attend.backward(grad_output, *inputs, **given), strict=False))
        if "weights" in known:
            found |= {k: (found[k] @ known["weights"].T).astype(found[k].dtype) for k in ("query", "key", "value")}
        found["query"] = sum((found[k] for k, kind in kinds.items() if kind == "the query"), found["query"])
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


def held(attend, arrays, options):
    """out (and lse), and the same arrays after more calls."""
    return after_more_calls(lambda arrays: forward(attend, arrays, options), arrays, np.asarray)


def gradient_held(attend, arrays, options, cotangents):
    """Gradients, and the same arrays after more calls."""
    return after_more_calls(lambda x: gradient(attend, x, options, cotangents), arrays, np.asarray)


def custom_rule(attend, arrays, options):
    """Tell whether a backward is given."""
    return {"rule": np.array(hasattr(attend, "backward"))}


def unwritten(attend, arrays, options):
    """The arrays after a call."""
    forward(attend, arrays, options)
    return afterwards(arrays, options)


in_steps = partial(chunked, np.array, np.concatenate)
