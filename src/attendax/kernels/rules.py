"""Functions whose derivative is a rule of their own, and stays so in every program (L12).

``jax.custom_jvp`` is not enough: if reverse mode goes through a loop, jax 0.10.2 keeps the body of such a function and
drops its rule. A second derivative is then that of the body. JAX drops no rule of a primitive.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import Array, lax
from jax.core import ShapedArray
from jax.experimental import jet
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .numerics import finite_straight_through, times, vary_alike

OrZero = Any  # an array, or ad.Zero where the tangent is 0
OrUnknown = Any  # an array, or ad.UndefinedPrimal where a transpose is by it
Axes = tuple[int | None, ...]  # of each array, from one vmap
Rule = Callable[..., tuple[Array, ...]]  # from arrays and their tangents (None: 0) to the tangents of the results


def with_rule(name: str, function: Callable[..., tuple[Array, ...]], rule: Rule) -> Callable[..., list[Array]]:
    """``function(*arrays, **settings)``, whose tangents are ``rule(arrays, tangents, **settings)``."""
    primitive = Primitive(name)
    primitive.multiple_results = True

    def run(*arrays: Array, axes: tuple[Axes, ...], **settings: Any) -> tuple[Array, ...]:
        return _mapped(partial(function, **settings), axes)(*arrays)

    def shapes(*types: ShapedArray, **params: Any) -> Sequence[ShapedArray]:
        return jax.make_jaxpr(partial(run, **params))(*types).out_avals

    def push(primals: Sequence[Array], tangents: Sequence[OrZero], *, axes: tuple[Axes, ...], **settings: Any) -> Any:
        there = [type(t) is not ad.Zero for t in tangents]

        def tangent(*given: Array) -> tuple[Array, ...]:
            arrays, rest = given[: len(there)], iter(given[len(there) :])
            return rule(arrays, [next(rest) if t else None for t in there], **settings)

        of_both = [(*each, *(axis for axis, t in zip(each, there, strict=True) if t)) for each in axes]
        moving = [t for t, is_there in zip(tangents, there, strict=True) if is_there]
        return primitive.bind(*primals, axes=axes, **settings), _mapped(tangent, of_both)(*primals, *moving)

    def batch(arrays: Sequence[Array], mapped: Axes, *, axes: tuple[Axes, ...], **settings: Any) -> Any:
        results = primitive.bind(*arrays, axes=(*axes, tuple(mapped)), **settings)
        return results, [0] * len(results)

    def transpose(grads: Sequence[OrZero], *arrays: OrUnknown, **params: Any) -> list[Array | None]:
        """Transpose it in the arrays in which the function itself is linear."""
        unknown = [ad.is_undefined_primal(x) for x in arrays]

        def linear(*given: Array) -> tuple[Array, ...]:
            rest = iter(given)
            return run(*(next(rest) if u else x for x, u in zip(arrays, unknown, strict=True)), **params)

        types = [x.aval for x, u in zip(arrays, unknown, strict=True) if u]
        found = iter(jax.linear_transpose(linear, *types)(tuple(map(ad.instantiate_zeros, grads))))
        return [next(found) if u else None for u in unknown]

    primitive.def_impl(lambda *arrays, **params: list(jax.jit(partial(run, **params))(*arrays)))
    primitive.def_abstract_eval(shapes)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    ad.primitive_jvps[primitive] = push
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    jet.jet_rules[primitive] = lambda primals, series, **params: jet.jet(partial(run, **params), primals, series)
    return lambda *arrays, **settings: primitive.bind(*vary_alike(arrays), axes=(), **settings)


def _mapped(function: Callable, axes: Sequence[Axes]) -> Callable:
    """The function under so many vmaps, the first of them innermost."""
    for each in axes:
        function = jax.vmap(function, each)
    return function


def product(
    left: Array,
    right: Array,
    transpose_right: bool,
    flat: bool = True,
    precision: lax.Precision = lax.Precision.HIGHEST,
) -> Array:
    """``times``; in its derivative what is not finite counts as 0: there only 0 or NaN meet it."""
    return _product(left, right, transpose_right=transpose_right, flat=flat, precision=precision)[0]


def _tangent_of_product(arrays: Sequence[Array], tangents: Sequence[Array | None], **settings: Any) -> tuple[Array]:
    (left, right), (dleft, dright) = arrays, tangents
    terms = [] if dleft is None else [times(dleft, finite_straight_through(right), **settings)]
    terms += [] if dright is None else [times(finite_straight_through(left), dright, **settings)]
    return (sum(terms[1:], terms[0]),)


_product = with_rule("finite_product", lambda *arrays, **settings: (times(*arrays, **settings),), _tangent_of_product)
