"""Arrays of NumPy, JAX and PyTorch: inputs for a learner's functions, and NumPy arrays of their results.

JAX compiles each step of a function for each shape, which takes a hundredth of a second or more, and a function of the
course has tens of steps. NumPy computes the steps that it also has here; the result is a JAX array with the shape and
dtype that JAX derives. JAX compiles the other steps.

The library of a function is the one whose names its code refers to, directly or through the functions that it calls.
"""

import contextlib
import dis
import functools
import importlib
import inspect
import itertools
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CellType, CodeType, SimpleNamespace
from typing import Any

import numpy as np
from scipy.special import erfinv

from attendax import spec

KINDS = ("numpy", "jax", "torch")
HERE = (str(Path(__file__).parent), "<frozen", *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))

# Names in JAX, each with its name in NumPy if that differs.
NUMPY = """
    add sub:subtract mul:multiply div:divide neg:negative pow square sqrt exp log tanh sin cos abs copy
    max:maximum min:minimum eq:equal ne:not_equal lt:less le:less_equal gt:greater ge:greater_equal
    is_finite:isfinite and:bitwise_and or:bitwise_or not:bitwise_not shift_right_logical:right_shift
    reduce_sum:sum reduce_max:max reduce_min:min reduce_prod:prod reduce_and:all reduce_or:any convert_element_type:copy
"""


class UnexpectedResult(TypeError):
    """A learner's function returned something else than the expected arrays; the message continues "It returns"."""

    def __init__(self, value: Any, expected: str, role: str = "") -> None:
        kind = "one array" if hasattr(value, "shape") else f"one {type(value).__name__}"
        if isinstance(value, tuple | list):
            kind = f"a {type(value).__name__} of {len(value)}"
        missing = f"None{role}: is a `return` missing?"
        super().__init__(missing if value is None else f"{kind}{role}; expected {expected}")


class Arrays:
    """The arrays of one library, in float64.

    Raises:
        ValueError: the library is not one of ``KINDS``.
        ModuleNotFoundError: the library is not installed.
    """

    def __init__(self, kind: str) -> None:
        if kind not in KINDS:
            raise ValueError(f"grade: arrays got {kind!r}, expected one of {', '.join(KINDS)}")
        library = importlib.import_module(f"{kind}.numpy" if kind == "jax" else kind)
        self.kind, self._array = kind, library.tensor if kind == "torch" else library.array

    def wide(self) -> Any:
        """A context in which JAX has float64 and leaves most steps to NumPy."""
        return by_numpy(importlib.import_module("jax")) if self.kind == "jax" else contextlib.nullcontext()

    def convert(self, value: Any) -> Any:
        """An input as an array of this library; a copy, because the learner's function may write into it."""
        if isinstance(value, list):
            return [self._block(each) for each in value] if self.kind != "numpy" else value
        return self._array(value) if isinstance(value, np.ndarray) else value

    def _block(self, block: spec.TransformerEncoderBlock) -> Any:
        """A block of the specification that takes arrays of this library."""

        def forward(x: Any, mask: Any = None) -> Any:
            return self.convert(block.forward(self.to_numpy(x), None if mask is None else self.to_numpy(mask)))

        return SimpleNamespace(forward=forward)

    def to_numpy(self, value: Any, role: str = "") -> np.ndarray:
        """A result as a NumPy array; errors contain its role, such as " as output".

        Raises:
            UnexpectedResult: the value is not an array of numbers.
        """
        if value is None or isinstance(value, tuple | list | dict):
            raise UnexpectedResult(value, "one array", role)
        array = np.asarray(value.detach() if hasattr(value, "detach") else value)
        if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
            raise UnexpectedResult(value, "an array of numbers", role)
        return array


def _numpy_step(name: str) -> Callable[..., Any]:
    return lambda *arrays, axes=None, **_: getattr(np, name)(*arrays, **({} if axes is None else {"axis": tuple(axes)}))


def _product(a: Any, b: Any, dimension_numbers: Any, **_: Any) -> Any:
    (summed_a, summed_b), (batch_a, batch_b) = dimension_numbers
    axes_a, axes_b = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip((*summed_a, *batch_a), (*summed_b, *batch_b), strict=True):
        axes_b[j] = i
    rest = [i for i in axes_a if i not in (*summed_a, *batch_a)] + [j for j in axes_b if j >= a.ndim]
    return np.einsum(a, axes_a, b, axes_b, [*batch_a, *rest])


def _broadcast(x: Any, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    return np.broadcast_to(np.expand_dims(x, [i for i in range(len(shape)) if i not in broadcast_dimensions]), shape)


def _random_bits(key: Any, bit_width: int, shape: Any) -> Any:
    return np.random.default_rng(key).integers(2**bit_width, size=shape, dtype=f"u{bit_width // 8}")


STEPS: dict[str, Callable[..., Any]] = {
    **{name: _numpy_step(other or name) for name, _, other in (pair.partition(":") for pair in NUMPY.split())},
    "dot_general": _product,
    "broadcast_in_dim": _broadcast,
    "random_bits": _random_bits,
    "iota": lambda dtype, shape, dimension, **_: np.indices(shape, dtype)[dimension],
    "slice": lambda x, start_indices, limit_indices, strides: x[
        tuple(map(slice, start_indices, limit_indices, strides or [1] * x.ndim))
    ],
    "reshape": lambda x, new_sizes, **_: x.reshape(new_sizes),
    "transpose": lambda x, permutation: x.transpose(permutation),
    "squeeze": lambda x, dimensions: np.squeeze(x, dimensions),
    "concatenate": lambda *arrays, dimension: np.concatenate(arrays, dimension),
    "select_n": lambda which, no, yes: np.where(which, yes, no),
    "bitcast_convert_type": lambda x, new_dtype: x.view(new_dtype),
    "integer_pow": lambda x, y: x**y,
    "rsqrt": lambda x, **_: 1 / np.sqrt(x),
    "erf_inv": erfinv,
}


@contextlib.contextmanager
def by_numpy(jax: Any) -> Iterator[None]:
    """Enable float64 in JAX and let NumPy compute its steps, inside the block."""
    with contextlib.ExitStack() as after, jax.enable_x64(True), jax.disable_jit(), np.errstate(all="ignore"):
        for step in vars(importlib.import_module("jax.extend.core.primitives")).values():
            if getattr(step, "name", "") in STEPS:
                after.callback(setattr, step, "impl", step.impl)
                step.impl = functools.partial(_compute, jax, step, step.impl)
        yield


def _compute(jax: Any, step: Any, compiled: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    expected = step.abstract_eval(*map(jax.typeof, arrays), **options)[0]
    if not (expected.weak_type and expected.ndim):  # NumPy has no arrays of weak type
        with contextlib.suppress(ValueError, TypeError, IndexError):
            inputs = (jax.random.key_data(x) if step.name == "random_bits" else x for x in arrays)
            result = np.asarray(STEPS[step.name](*map(np.asarray, inputs), **options)).astype(expected.dtype)
            if result.shape == expected.shape:
                return jax.numpy.asarray(result.item()) if expected.weak_type else jax.device_put(result)
    return compiled(*arrays, **options)


def foreign(file: str) -> bool:
    """Tell whether a file belongs to a library, not to the learner."""
    return file.startswith(HERE) or "site-packages" in file


def references(candidate: Any) -> list[Any]:
    """The values that the code of a function or class refers to, directly or through the learner's functions."""
    values, queue = {}, [candidate]
    while queue:
        each = inspect.unwrap(queue.pop())
        if id(each) in values:
            continue
        values[id(each)] = each
        if inspect.isclass(each) and _root(each) not in (*KINDS, "attendax"):
            queue += vars(each).values()
        if _by_learner(each):
            queue += [each.__globals__[name] for name in _globals(each.__code__) if name in each.__globals__]
            queue += [cell.cell_contents for cell in each.__closure__ or () if cell != CellType()]
    return list(values.values())


def library(candidate: Any) -> str:
    """The library whose names the code of a function refers to; if none, the library that its module imports."""
    values = references(candidate)
    roots = {_root(each) for each in values}
    if not roots & set(KINDS):
        names = itertools.chain(*(each.__globals__.values() for each in values if _by_learner(each)))
        roots = {_root(each) for each in names if getattr(each, "__name__", "") in ("jax.numpy", "torch")}
    return next((kind for kind in ("torch", "jax") if kind in roots), "numpy")


def called_by(candidate: Any) -> set[str]:
    """The names of the learner's functions and classes that a function or class calls."""
    return {getattr(each, "__name__", "") for each in references(candidate) if _root(each) not in KINDS}


def _by_learner(value: Any) -> bool:
    return inspect.isfunction(value) and _root(value) != "attendax" and not foreign(value.__code__.co_filename)


def _root(value: Any) -> str:
    module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None) or type(value).__module__
    return str(module).partition(".")[0]


def _globals(code: CodeType) -> Iterator[str]:
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL")
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)
