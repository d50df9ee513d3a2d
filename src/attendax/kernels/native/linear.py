"""Tokens times a weight by the library: the bits of a token do not depend on the tokens beside it (L15).

XLA's products choose their kernel, and so their order of adding, by the number of rows (docs/same-bits.md has a table).
The library adds up each number of the result in one order: ``csrc/linear.h``.
"""

import jax
import numpy as np
from jax import Array
from jax.core import ShapedArray

from .library import library

DTYPES = ("float32", "float64")


def takes(x: ShapedArray, W: ShapedArray) -> bool:
    """Tell whether the library is there, and takes a product of tokens (..., M) and a weight that are on one CPU."""
    sizes = (*x.shape, *W.shape)
    known = all(isinstance(size, int) for size in sizes)  # none is symbolic
    return bool(library().isa) and known and 0 not in sizes and x.dtype == W.dtype and str(x.dtype) in DTYPES


def product(x: Array, W: Array, *, turned: bool = False) -> Array:
    """``x W``, or, turned, ``x Wᵀ``, of tokens x (..., M)."""
    tokens = x.reshape(-1, x.shape[-1])
    columns = W.shape[0 if turned else 1]
    call = jax.ffi.ffi_call("attendax_project", jax.ShapeDtypeStruct((tokens.shape[0], columns), x.dtype))
    found = call(tokens, W, ints=np.array([turned], np.int64), floats=np.zeros(1))
    return found.reshape(*x.shape[:-1], columns)
