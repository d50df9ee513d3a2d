"""The product of tokens and a weight, for layers: fast in both directions, and behind a fusion barrier (L17).

On one CPU the library computes the first two of the sums below, where it is there: then the bits of a token do not
depend on the tokens beside it (L15), for it adds up each number in one order (``csrc/linear.h``). Everywhere else XLA
does, which chooses a product's kernel, and so its order, by the number of rows (docs/same-bits.md has a table).

The product and its two gradients are the same three sums, and each of them has the other two as gradients::

    OVER_ROWS     y[.., n] = Σ_m x[.., m] W[m, n]
    OVER_COLUMNS  x[.., m] = Σ_n y[.., n] W[m, n]
    OVER_TOKENS   W[m, n]  = Σ_.. x[.., m] y[.., n]

They are a primitive, because the gradient that JAX derives for a weight, yᵀ x with its axes swapped, takes XLA's CPU
compiler 1.5 times as long as xᵀ y; and because its lowering learns for which place a program is.
"""

import enum
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax._src import checkify  # an Error without any has no public name
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.mlir import LoweringRuleContext

from attendax.kernels.backends import ACCELERATORS, devices_of
from attendax.kernels.native.library import library
from attendax.kernels.numerics import finite_straight_through, fusion_barrier, is_compiled, vary_alike
from attendax.kernels.primitives import OrUnknown, OrZero
from attendax.kernels.rules import product
from attendax.kernels.watching import checked_by, without_jet


class Sum(enum.Enum):
    """The axis of a sum of products: an axis of the weight (M, N), or the tokens."""

    OVER_ROWS = 0
    OVER_COLUMNS = 1
    OVER_TOKENS = None


GRADIENTS = {  # by the first array, and by the second: the sum, and whether the gradient of the result comes first
    Sum.OVER_ROWS: ((Sum.OVER_COLUMNS, True), (Sum.OVER_TOKENS, False)),
    Sum.OVER_COLUMNS: ((Sum.OVER_ROWS, True), (Sum.OVER_TOKENS, True)),
    Sum.OVER_TOKENS: ((Sum.OVER_COLUMNS, False), (Sum.OVER_ROWS, False)),
}
OF_LIBRARY = ("float32", "float64")


def project(x: Array, W: Array, *, only_finite: bool = False) -> Array:
    """``x W`` of full precision.

    Args:
        x: tokens (..., M).
        W: a weight (M, N), of the same dtype.
        only_finite: whether what is not finite counts as 0 in the derivative: for tokens that nothing may depend on.
    """
    if not is_compiled() and not library_takes(*map(jax.typeof, (x, W))):
        return _computed(x, W, only_finite=only_finite)
    if _on_explicit_axes(x, W):
        return fusion_barrier(partial(_computed, only_finite=only_finite), x, W)
    return _sum(x, W, Sum.OVER_ROWS, only_finite=only_finite)


def library_takes(x: ShapedArray, W: ShapedArray) -> bool:
    """Tell whether the library is there, and takes a product of tokens (..., M) and a weight that are on one CPU."""
    sizes = (*x.shape, *W.shape)
    known = all(isinstance(size, int) for size in sizes)  # none is symbolic
    return bool(library().isa) and known and 0 not in sizes and x.dtype == W.dtype and str(x.dtype) in OF_LIBRARY


def _on_explicit_axes(*arrays: Array) -> bool:
    """Tell whether the type of an array divides it over a mesh: JAX derives the type of a product and its batch."""
    return any(axis is not None for one in arrays for axis in jax.typeof(one).sharding.spec)


def _sum(
    one: Array, other: Array, over: Sum, *, filters: tuple[bool, bool] = (False, False), only_finite: bool = False
) -> Array:
    """The primitive. ``filters``: in which of the arrays what is not finite counts as 0."""
    one, other = vary_alike((one, other))
    return _sum_p.bind(one, other, over=over, filters=filters, only_finite=only_finite)


def _computed(
    one: Array, other: Array, *, over: Sum = Sum.OVER_ROWS, filters: tuple[bool, bool] = (False, False),
    only_finite: bool = False, flat: bool = False,
) -> Array:  # fmt: skip
    """The sum without a barrier. ``flat``: the axes of the tokens may become one, which saves a copy of ``one``."""
    one, other = (finite_straight_through(x) if chosen else x for x, chosen in zip((one, other), filters, strict=True))
    if only_finite:
        return product(one, other, False)
    lead = one.shape[:-1]
    if flat:
        one, other = (lax.collapse(x, 0, x.ndim - 1) if x.ndim > 2 else x for x in (one, other))
    tokens = tuple(range(one.ndim - 1))
    axes = (tokens, tokens) if over is Sum.OVER_TOKENS else ((one.ndim - 1,), (over.value,))
    result = lax.dot_general(one, other, dimension_numbers=(axes, ((), ())), precision=lax.Precision.HIGHEST)
    return result if over is Sum.OVER_TOKENS else result.reshape(*lead, result.shape[-1])


def _type_of_sum(one: ShapedArray, other: ShapedArray, *, over: Sum, **_: Any) -> ShapedArray:
    if over is Sum.OVER_TOKENS:
        shape = one.shape[-1], other.shape[-1]
    else:
        shape = *one.shape[:-1], other.shape[1 - over.value]
    nowhere = one.sharding.update(spec=jax.P(*[None] * len(shape)))
    return one.update(shape=shape, weak_type=False, sharding=nowhere)


def _jvp(
    primals: Sequence[Array], tangents: Sequence[OrZero], *, over: Sum, filters: tuple[bool, bool], only_finite: bool
) -> tuple[Array, Any]:
    one, other = primals
    result = _sum(one, other, over, filters=filters, only_finite=only_finite)
    known = [only_finite or chosen for chosen in filters]
    terms = []
    if type(tangents[0]) is not ad.Zero:
        terms.append(_sum(tangents[0], other, over, filters=(False, known[1])))
    if type(tangents[1]) is not ad.Zero:
        terms.append(_sum(one, tangents[1], over, filters=(known[0], False)))
    return result, sum(terms[1:], terms[0]) if terms else ad.Zero(jax.typeof(result).to_tangent_aval())


def _transpose(grad: OrZero, *arrays: OrUnknown, over: Sum, filters: tuple[bool, bool], only_finite: bool) -> list[Any]:
    unknown = int(ad.is_undefined_primal(arrays[1]))
    known, chosen = arrays[1 - unknown], only_finite or filters[1 - unknown]
    if type(grad) is ad.Zero:
        return [None, None]
    over, grad_first = GRADIENTS[over][unknown]
    if grad_first:
        found = _sum(grad, known, over, filters=(False, chosen))
    else:
        found = _sum(known, grad, over, filters=(chosen, False))
    return [None, found] if unknown else [found, None]


def _batch(arrays: Sequence[Array], axes: Sequence[int | None], **params: Any) -> tuple[Array, int]:
    """Tokens get one more axis. With a weight for each entry, or a result that is one, it is a product of many."""
    if params["over"] is not Sum.OVER_TOKENS and axes[1] is None and not _on_explicit_axes(*arrays):
        return _sum_p.bind(jnp.moveaxis(arrays[0], axes[0] or 0, 0), arrays[1], **params), 0
    return fusion_barrier(jax.vmap(partial(_computed, **params), tuple(axes)), *arrays), 0


def _behind_barrier(one: Array, other: Array, **params: Any) -> Array:
    return fusion_barrier(partial(_computed, **params), one, other)


def _by_library(x: Array, W: Array, *, over: Sum, filters: tuple[bool, bool], **_: Any) -> Array:
    """``x W``, or, over columns, ``x Wᵀ``, of tokens x (..., M)."""
    x, W = (finite_straight_through(each) if chosen else each for each, chosen in zip((x, W), filters, strict=True))
    turned = over is Sum.OVER_COLUMNS
    tokens, columns = x.reshape(-1, x.shape[-1]), W.shape[0 if turned else 1]
    call = jax.ffi.ffi_call("attendax_project", jax.ShapeDtypeStruct((tokens.shape[0], columns), x.dtype))
    found = call(tokens, W, ints=np.array([turned], np.int64), floats=np.zeros(1))
    return found.reshape(*x.shape[:-1], columns)


def _lowering_on_a_cpu(
    context: LoweringRuleContext,
    *arrays: Any,  # values of MLIR
    over: Sum,
    **params: Any,
) -> Any:
    """Lower to the library where it takes the product, on one device and not for export, else to XLA."""
    module = context.module_context
    exported = getattr(getattr(module, "lowering_parameters", None), "for_export", False)
    alone = over is not Sum.OVER_TOKENS and devices_of(module.axis_context) == 1 and not exported
    types = [x for x in context.avals_in if isinstance(x, ShapedArray)]
    function = _by_library if alone and library_takes(*types) else _behind_barrier
    return _lowering(context, *arrays, function=function, over=over, **params)


def _lowering(
    context: LoweringRuleContext,
    *arrays: Any,  # values of MLIR
    function: Callable[..., Array],
    **params: Any,
) -> Any:
    """The rule of a function. The types need not say over which axes of a ``shard_map`` a value varies."""
    flat = devices_of(context.module_context.axis_context) == 1  # else to make one axis of two could move them
    types = [ShapedArray(x.shape, x.dtype) for x in context.avals_in if isinstance(x, ShapedArray)]
    lowered = mlir.lower_fun(partial(function, flat=flat, **params | {"only_finite": False}), multiple_results=False)
    return lowered(context.replace(avals_in=types), *arrays)


@cache
def _compiled(**params: Any) -> Callable[..., Array]:
    return jax.jit(partial(_sum_p.bind, **params))


def _eager(*arrays: Array, **params: Any) -> Array:
    """Outside jit: a program of its own, so that the library is called as it is inside."""
    by_itself = jax.config.jax_disable_jit  # type: ignore[attr-defined]
    return (partial(_computed, **params) if by_itself else _compiled(**params))(*arrays)


def _primitive() -> Primitive:
    primitive = Primitive("projection")
    primitive.def_impl(_eager)
    primitive.def_abstract_eval(_type_of_sum)
    mlir.register_lowering(primitive, partial(_lowering, function=_behind_barrier))
    mlir.register_lowering(primitive, _lowering_on_a_cpu, platform="cpu")
    for accelerator in ACCELERATORS:  # it is the CPU's compiler that fuses what it must not
        mlir.register_lowering(primitive, partial(_lowering, function=_computed), platform=accelerator)
    ad.primitive_jvps[primitive] = _jvp
    ad.primitive_transposes[primitive] = _transpose
    batching.primitive_batchers[primitive] = _batch
    checked_by(primitive, lambda *_: checkify.init_error)
    without_jet(primitive, "a layer")
    return primitive


_sum_p = _primitive()
