"""The steps of a learner's JAX functions, computed by NumPy.

JAX compiles each step of a function for each shape, which takes a hundredth of a second or more, and a function of the
path has tens of them. A step that NumPy has, too, is NumPy's here; its result is an array of JAX, in the shape and the
dtype that JAX says. Any other step is compiled.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.special import erfinv

# Names of JAX, with those of NumPy where they are others.
ELEMENTWISE = """
    add sub:subtract mul:multiply div:divide neg:negative pow square sqrt exp log tanh sin cos abs copy
    max:maximum min:minimum eq:equal ne:not_equal lt:less le:less_equal gt:greater ge:greater_equal
    is_finite:isfinite and:bitwise_and or:bitwise_or not:bitwise_not shift_right_logical:right_shift
"""
REDUCTIONS = "reduce_sum:sum reduce_max:max reduce_min:min reduce_prod:prod reduce_and:all reduce_or:any"


def _table(text: str, wrap: Callable[[Any], Any]) -> dict[str, Any]:
    pairs = (pair.partition(":") for pair in text.split())
    return {name: wrap(getattr(np, other or name)) for name, _, other in pairs}


def _product(a: Any, b: Any, dimension_numbers: Any, **_: Any) -> Any:
    (of_a, of_b), (first_a, first_b) = dimension_numbers
    axes_a, axes_b = list(range(a.ndim)), list(range(a.ndim, a.ndim + b.ndim))
    for i, j in zip((*of_a, *first_a), (*of_b, *first_b), strict=True):
        axes_b[j] = i
    rest = [i for i in axes_a if i not in (*of_a, *first_a)] + [j for j in axes_b if j >= a.ndim]
    return np.einsum(a, axes_a, b, axes_b, [*first_a, *rest])


def _spread(x: Any, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    sizes = dict(zip(broadcast_dimensions, x.shape, strict=True))
    return np.broadcast_to(x.reshape([sizes.get(axis, 1) for axis in range(len(shape))]), shape)


def _drawn(key: Any, bit_width: int, shape: Any) -> Any:
    return np.random.default_rng(key).integers(2**bit_width, size=shape, dtype=f"u{bit_width // 8}")


STEPS: dict[str, Callable[..., Any]] = {
    **_table(ELEMENTWISE, lambda function: lambda *arrays, **_: function(*arrays)),
    **_table(REDUCTIONS, lambda function: lambda x, axes, **_: function(x, axis=tuple(axes))),
    "dot_general": _product,
    "broadcast_in_dim": _spread,
    "random_bits": _drawn,
    "iota": lambda dtype, shape, dimension, **_: np.indices(shape, dtype)[dimension],
    "slice": lambda x, start_indices, limit_indices, strides: x[
        tuple(map(slice, start_indices, limit_indices, strides or [1] * x.ndim))
    ],
    "reshape": lambda x, new_sizes, **_: x.reshape(new_sizes),
    "transpose": lambda x, permutation: x.transpose(permutation),
    "squeeze": lambda x, dimensions: np.squeeze(x, dimensions),
    "concatenate": lambda *arrays, dimension: np.concatenate(arrays, dimension),
    "select_n": lambda which, no, yes: np.where(which, yes, no),
    "convert_element_type": lambda x, **_: x,
    "bitcast_convert_type": lambda x, new_dtype: x.view(new_dtype),
    "integer_pow": lambda x, y: x**y,
    "rsqrt": lambda x, **_: 1 / np.sqrt(x),
    "erf_inv": erfinv,
}


@contextlib.contextmanager
def by_numpy(jax: Any) -> Iterator[None]:
    """Let JAX have float64, and NumPy compute its steps, in the block."""
    known = vars(importlib.import_module("jax.extend.core.primitives")).values()
    compiled = {step: step.impl for step in known if getattr(step, "name", "") in STEPS}
    for step, before in compiled.items():
        step.impl = functools.partial(_computed, jax, step, before)
    try:
        with jax.enable_x64(True), jax.disable_jit(), np.errstate(all="ignore"):
            yield
    finally:
        for step, before in compiled.items():
            step.impl = before


def _computed(jax: Any, step: Any, compiled: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    expected = step.abstract_eval(*map(jax.typeof, arrays), **options)[0]
    if not (expected.weak_type and expected.ndim):  # NumPy has no such arrays, whose dtype gives way
        with contextlib.suppress(ValueError, TypeError, IndexError):
            given = (jax.random.key_data(x) if step.name == "random_bits" else x for x in arrays)
            found = np.asarray(STEPS[step.name](*map(np.asarray, given), **options)).astype(expected.dtype)
            if found.shape == expected.shape:
                return jax.numpy.asarray(found.item()) if expected.weak_type else jax.device_put(found)
    return compiled(*arrays, **options)
