"""Functions of NumPy arrays; their gradients where a backward is given."""

import contextlib

import numpy as np

HEADER = "import numpy as np"
stack = np.stack
WIDE = ""


def wide() -> contextlib.AbstractContextManager:
    """Where float64 stays float64: everywhere."""
    return contextlib.nullcontext()


def is_lack(error: Exception) -> bool:
    """No error but NotImplementedError says so."""
    return False


def forward(attend, arrays, options):
    """out (and lse)."""
    given = {k: x for k, x in arrays.items() if k == "bias"} | options
    found = attend(arrays["query"], arrays["key"], arrays["value"], **given)
    names = ("out", "lse") if "return_lse" in options else ("out",)
    return dict(zip(names, found, strict=False)) if isinstance(found, (tuple, list)) else {"out": found}


eager = forward


def gradient(attend, arrays, options, cotangents):
    """Gradients by ``attend.backward(grad_output, query, key, value, ..., grad_lse=...)``, in this order."""
    given = [arrays[k] for k in ("query", "key", "value")]
    extra = {"grad_lse": cotangents["lse"]} if "lse" in cotangents else {}
    extra |= {k: arrays[k] for k in arrays if k == "bias"}
    options = {k: x for k, x in options.items() if k != "return_lse"}
    found = attend.backward(cotangents["out"], *given, **extra, **options)
    return {f"grad {k}": x for k, x in zip(arrays, found, strict=False)}


def unwritten(attend, arrays, options):
    """The arrays after a call."""
    forward(attend, arrays, options)
    return arrays | {k: x for k, x in options.items() if hasattr(x, "shape")}
