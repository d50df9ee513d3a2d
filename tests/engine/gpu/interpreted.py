"""Triton's interpreter without torch and on NumPy's arrays; and the launches of a program in it.

``TRITON_INTERPRET=1`` must be set before triton is imported. The interpreter has no products of bfloat16, and cuts
float32 to bfloat16 where a GPU rounds: both are mended here. Its products are NumPy's, in which the bits of a row
depend on its place; ``in_order`` adds them one after the other.
"""

import contextlib
import importlib.util
import os
import sys
import warnings

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"
import triton.language as tl
from triton.runtime import interpreter

from attendax.kernels.gpu import compiled
from gpu_calls import DTYPES

POINTERS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int32": "i32", "int8": "i8"}
_ordered = [False]


@contextlib.contextmanager
def in_order():
    """Products whose terms are added one after the other."""
    _ordered[0] = True
    try:
        yield
    finally:
        _ordered[0] = False


def _wide(x):
    return (x.data.astype(np.uint32) << 16).view(np.float32) if x.dtype == tl.bfloat16 else x.data


def _dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    one, other = (_wide(x).astype(np.float32) for x in (a, b))
    found = d.data
    in_parts = a.dtype == b.dtype == tl.float32 and "TF32" in str(input_precision)
    parts = _in_tf32(one, other) if in_parts else [(one, other)]
    for pair in parts[-1:] if str(input_precision).endswith("TF32") else parts:
        found = _added(found, *pair)
    return interpreter.TensorHandle(found, d.dtype.scalar)


def _added(found, one, other):
    if not _ordered[0]:
        return np.matmul(one, other) + found
    found = found.copy()
    for k in range(one.shape[1]):
        found += one[:, k, None] * other[k]
    return found


def _in_tf32(*arrays):
    """The three products of tf32x3, the small ones first: each array is a number of 11 bits and one of its rest."""
    (one, of_one), (other, of_other) = ((x, _finite(tf32(y - x))) for y in arrays for x in [tf32(y)])
    return [(of_one, _finite(other)), (_finite(one), of_other), (one, other)]


def tf32(x):
    """Numbers rounded to 11 bits."""
    bits = (x.view(np.uint32) + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), bits.view(np.float32), x)


def _finite(x):
    return np.where(np.isfinite(x), x, 0)


_convert = interpreter._convert_float


def _rounded(x, one, other, mode):
    if one != tl.float32 or other != tl.bfloat16:
        return _convert(x, one, other, mode)
    with np.errstate(invalid="ignore"):
        return np.asarray(x, np.float32).astype(DTYPES["bfloat16"]).view(np.uint16)


class Pointer:
    """An array as the interpreter takes it."""

    def __init__(self, address, dtype):
        self.address, self.dtype = address, POINTERS[dtype]

    def data_ptr(self):
        return self.address


interpreter.InterpreterBuilder.create_dot = _dot
interpreter._convert_float = _rounded
interpreter.GridExecutor._init_args_hst = lambda self, args, kwargs: (args, kwargs)  # they are here already
interpreter.GridExecutor._restore_args_dev = lambda *_: None


def kernels_of(changed=None, folder=None):
    """The kernels, or with the text of one of their files changed, whose copy is written into a folder."""
    names = [f"attendax.kernels.gpu.{name}" for name in ("pairs", "rows", "bias", "kernels")]
    here = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    for name in names:  # each imports those before it
        file = name.rpartition(".")[2] + ".py"
        path = compiled.HERE / file
        if changed and file in changed:
            path = folder / file
            path.write_text(changed[file], "utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    for name in names:
        del sys.modules[name]
    sys.modules |= here
    return module


def launch(kernels, launch, addresses):
    """Run a launch over arrays at these addresses."""
    pointers = [Pointer(at, launch.type_of(name)) for name, at in zip(launch.arrays, addresses, strict=True)]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows of NaN
        getattr(kernels, launch.kernel)[(launch.blocks,)](*pointers, *launch.numbers, *launch.constants.values())


def run(kernels, program, arrays):
    """The results of a program over arrays; they begin as NaN, so that what is not written is seen."""
    results = {}
    for name, (shape, dtype) in (program.results | program.inner).items():
        results[name] = np.full(shape, np.nan if "float" in dtype else 77, DTYPES[dtype])
    have = {name: np.ascontiguousarray(x) for name, x in (arrays | results).items()}
    for each in program.launches:
        assert all(have[name].dtype == DTYPES[each.type_of(name)] for name in each.arrays)
        launch(kernels, each, [have[name].ctypes.data for name in each.arrays])
    return {name: have[name] for name in program.results}
