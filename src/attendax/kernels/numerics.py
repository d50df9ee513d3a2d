"""Matrix products and tests for finite numbers, written so that XLA's CPU compiler computes them right (L17).

XLA's CPU compiler (jaxlib 0.10.2 to 0.12) fuses products with their neighbours into one kernel, and some of these
kernels are wrong. Scripts in ``docs/xla-faults.md`` show each fault, and the tests run them. When every supported
jaxlib is correct, delete the workaround. Two faults shape this module:

- If an operand of a product is one number or one row broadcast (ones, as the cotangent of ``loss = out.sum()``; a
  scalar; a key shared by a batch), and the result is reduced in the same kernel, the result is garbage. So all operands
  come from memory: products are behind a ``fusion_barrier``, and arrays broadcast inside it go through ``in_memory``.
- A maximum drops NaN from 4,096 numbers on. So no test of finiteness rests on a maximum, but on a sum.
"""

import functools
import math
from collections.abc import Callable, Sequence, Set
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import jet
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

Tree = TypeVar("Tree")


def fusion_barrier(function: Callable[..., Tree], *arrays: Any) -> Tree:  # pytrees of arrays
    """``function(*arrays)``, its inputs and results in memory, and none of its operations fused with one outside.

    It is also a function of the compiled program, marked as one that may not be inlined. So the compiler does not fuse
    anything across its border, nor take in a constant. Its derivatives are such functions in turn. Outside jit no two
    operations are fused, and the function is simply called.

    For jaxlib 0.10.2 and 0.12.0.1, which both misread a constant that is broadcast on the right of a product.
    """
    if not is_compiled():
        return function(*arrays)

    def inside(*arrays: Any) -> Any:  # pytrees of arrays
        with set_xla_metadata(inlineable="true"):  # what the function calls in turn
            return function(*arrays)

    with set_xla_metadata(inlineable="false"):
        return jax.jit(inside)(*vary_alike(arrays))


def is_compiled() -> bool:
    """Tell whether what is computed here becomes part of a program: inside jit, or a loop."""
    return isinstance(lax.optimization_barrier(jnp.bool_(True)), jax.core.Tracer)


def folded(x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` summed over the axes along which ``shape`` is 1."""
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] > 1)
    return x.sum(repeated, keepdims=True) if repeated else x


def vary_alike(arrays: Tree) -> Tree:
    """Inside ``shard_map``: the arrays, each said to vary over every mesh axis over which one of them does."""
    axes = [jax.typeof(x).manual_axis_type.varying for x in jax.tree.leaves(arrays)]
    every = frozenset[Any]().union(*axes)
    return jax.tree.map(lambda x: varying(x, every), arrays) if every else arrays


def varying(x: Array, names: Set[str]) -> Any:
    """Inside ``shard_map``: the array, marked as varying over these mesh axes as well."""
    missing = names - jax.typeof(x).manual_axis_type.varying
    return lax.pcast(x, tuple(missing), to="varying") if missing else x


def in_memory(x: Array) -> Array:
    """``x``, written out before it is used.

    A rounding to its own precision is not taken into the kernel of a product, and behind a barrier it is not left out.
    For jaxlib 0.10.2; in 0.12.0.1 the barrier is enough.
    """
    precision = jnp.finfo(x.dtype)
    return lax.reduce_precision(lax.optimization_barrier(x), precision.nexp, precision.nmant)


def broadcast_alike(one: Tree, other: Tree) -> tuple[Tree, Tree]:
    """Two trees of arrays, each pair of arrays in one shape: from vmap the two may have axes of 1 in other places.

    One that is repeated is in memory, so that it may be the operand of a product.
    """

    def in_full(x, y):
        shape = jnp.broadcast_shapes(x.shape, y.shape)
        return x if x.shape == shape else in_memory(jnp.broadcast_to(x, shape))

    return jax.tree.map(in_full, one, other), jax.tree.map(in_full, other, one)


def times(
    left: Array, right: Array, transpose_right: bool = False, flat: bool = True,
    precision: lax.Precision = lax.Precision.HIGHEST, *, transpose_left: bool = False,
) -> Array:  # fmt: skip
    """The matrix product, of full precision unless another is given.

    Where ``flat``, the leading axes become one before anything is transposed: with an axis of 1 among them, the
    compiler copies what is transposed, and a copy costs it as much time as ten other operations. But axes that lie on
    several devices cannot become one without a move.
    """
    lead = left.shape[:-2]
    if flat := flat and len(lead) > 1 and lead == right.shape[:-2]:
        left, right = (lax.collapse(x, 0, len(lead)) for x in (left, right))
    left = left.swapaxes(-1, -2) if transpose_left else left
    right = right.swapaxes(-1, -2) if transpose_right else right
    result = jnp.matmul(left, right, precision=precision)
    return result.reshape(*lead, *result.shape[1:]) if flat else result


def _row_primitive(name: str, function: Callable, transpose: Callable) -> Primitive:
    """The primitive of a linear function from rows (..., n) to rows (..., width), with a transpose of its own."""
    primitive = Primitive(name)
    primitive.def_impl(jax.jit(function, static_argnames="width"))
    primitive.def_abstract_eval(lambda x, width: x.update(shape=(*x.shape[:-1], width), weak_type=False))
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    jet.deflinear(primitive)
    ad.deflinear2(primitive, lambda grad, x, width: [transpose(grad, x.aval.shape[-1])])

    def batch(arrays: Sequence[Array], axes: Sequence[int], width: int) -> tuple[Any, int]:
        return primitive.bind(jnp.moveaxis(arrays[0], axes[0], 0), width=width), 0

    batching.primitive_batchers[primitive] = batch
    return primitive


def row_sums(x: Array, axis: int = -1) -> Array:
    """The sum along an axis, which stays, in an order that depends on its length alone (L15); XLA's depends on more."""
    if not isinstance(math.prod(x.shape), int) or not x.shape[axis]:  # symbolic, in jax.export; or nothing to add
        return jnp.sum(x, axis=axis, keepdims=True)
    return _sums_p.bind(x.swapaxes(axis, -1), width=1).swapaxes(axis, -1)


def repeated(x: Array, count: int) -> Array:
    """A column (..., 1) ``count`` times; its transpose is ``row_sums``."""
    return _repeated_p.bind(x, width=count)


def finite_straight_through(x: Array) -> Array:
    """``x`` with 0 in place of what is not finite, and so are its tangents; the transpose is the identity."""
    return _finite_p.bind(x, width=x.shape[-1])


ROWS, NUMBERS, LENGTH = 8, 2**13, 2**12  # at least, at least and at most: there XLA adds up each row in one order


def _sums(x: Array, width: int = 1) -> Array:
    """The sums of rows: of long ones of their pieces first; few ones have copies of zeros beside them.

    Every device has as many, if XLA divides the rows.
    """
    *lead, size = x.shape
    if (pieces := -(-size // LENGTH)) > 1:
        whole = jnp.pad(x, [(0, 0)] * len(lead) + [(0, pieces * LENGTH - size)])
        return _sums(_sums(whole.reshape(*lead, pieces, LENGTH))[..., 0])
    rows = jax.device_count() * max(ROWS, -(-NUMBERS // size))
    padded = jnp.pad(x[None], [(0, -(-rows // max(math.prod(lead), 1)) - 1)] + [(0, 0)] * x.ndim)
    return jnp.sum(padded, axis=-1, keepdims=True)[0]


def replace_nonfinite(x: Array, width: int = 0) -> Array:
    """The array with 0 for each number that is not finite."""
    return jnp.where(jnp.subtract(x, x) == 0, x, 0)  # ``isfinite`` takes longer


_sums_p = _row_primitive("row_sums", _sums, repeated)
_repeated_p = _row_primitive(
    "repeated", lambda x, width: jnp.broadcast_to(x, (*x.shape[:-1], width)), lambda grad, _: row_sums(grad)
)
_finite_p = _row_primitive("finite", replace_nonfinite, lambda grad, _: grad)


def sums_of_products(one: Array, other: Array) -> Array:
    """``Σ_d one_id other_id`` of each row of two arrays (..., T, d), (..., T, 1).

    As a product of rows: where an axis is 1, XLA's CPU compiler takes up to 26 times as long for ``sum(one * other)``.
    """
    return jnp.einsum("...d,...d->...", one, other, precision=lax.Precision.HIGHEST)[..., None]


LOW, MOST = -16, 120  # exponents; see ``in_range``


def in_range(rows: Array, scale: Array) -> tuple[Array, Array]:
    """Two factors (..., 1) of rows (..., d), one before their products and one after; together they are ``scale``.

    The second is 1, except for a row whose numbers times the scale would leave the range of normal numbers. There it is
    a power of two: that product is exact, and the bits of the row are those of a wider range (L7, L8, L15).
    """
    precision = jnp.finfo(rows.dtype)
    largest = jnp.max(jnp.abs(lax.stop_gradient(rows)), axis=-1, keepdims=True)
    at = _exponent(largest) + _exponent(lax.stop_gradient(scale)) + 2  # of a power that is larger
    raised = jnp.clip(LOW - at, 0, MOST) + jnp.clip(int(precision.maxexp) - 2 - at, -MOST, 0)
    return scale * _power_of_two(raised, rows.dtype), _power_of_two(-raised, rows.dtype)


def _exponent(x: Array) -> Array:
    """The exponent e with 2ᵉ <= |x| < 2ᵉ⁺¹; of 0 one below the least."""
    precision = jnp.finfo(x.dtype)
    bits = lax.bitcast_convert_type(jnp.abs(x), f"int{precision.bits}")
    return lax.shift_right_logical(bits, jnp.array(precision.nmant, bits.dtype)) + int(precision.minexp) - 1


def _power_of_two(exponent: Array, dtype: np.dtype) -> Array:
    precision = jnp.finfo(dtype)
    bits = exponent.astype(f"int{precision.bits}") - (int(precision.minexp) - 1)
    return lax.bitcast_convert_type(lax.shift_left(bits, jnp.array(precision.nmant, bits.dtype)), dtype)


# Tests of numbers. Each is a sum: a sum keeps NaN, and the compiler makes one kernel of it and of the products that are
# added up. Of a reduction of truth values it makes three, and each takes as long to compile as the softmax of a tile.


def mark_of_rows(*arrays: Array) -> Array:
    """NaN for each row that is not finite in one of the arrays (..., S, .), 0 for the others: (..., S, 1)."""
    arrays = tuple(map(lax.stop_gradient, arrays))
    return functools.reduce(jnp.add, (jnp.sum(jnp.subtract(x, x), axis=-1, keepdims=True) for x in arrays))


def rows_finite(*arrays: Array) -> Array:
    """Tell which rows hold finite numbers only, in all arrays (..., T, .): (..., T, 1)."""
    return mark_of_rows(*arrays) == 0
