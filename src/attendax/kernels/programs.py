"""The programs of the primitives of ``derivatives``: results, tangents, gradients, and the derivatives of the last two.

Arrays come flat: first the vectors, in which the function is linear, then the leaves of ``Operands``, then ``Results``.
``active`` says which differentiable leaves have a tangent. With two directions, it is for the first, and
``moving`` for the second. ``wanted`` has a shape for each leaf whose gradient is wanted, and None for the others.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import ShapedArray
from jax.tree_util import PyTreeDef

from .backends import BACKENDS, directions, fallback_plan, own_hvp, settled
from .blockwise.algorithm import at_once
from .not_finite import spoiled_by
from .numerics import broadcast_alike, fusion_barrier, replace_nonfinite
from .online_softmax import log_sum_exp
from .operands import Marks, Operands, Plan, Results, Wanted

Arrays = Sequence[Array]
Known = Any  # the ``Results`` of a body, or None if it does not need them


def _shield(plan: Plan, function: Callable, *arrays: Array) -> Any:
    """``function(*arrays)`` behind a fusion barrier, on a CPU: it is the CPU's compiler that fuses what it must not.

    A call across devices has its barriers inside, at its products. XLA must not know the numbers of any array: it moves
    constants across a border, and would reduce a constant mask while it compiles, for up to a minute.
    """
    if not plan.axis and BACKENDS[plan.backend].opaque:
        return function(*arrays)

    def run(*arrays: Array) -> Any:
        return function(*map(lax.optimization_barrier, arrays))

    return fusion_barrier(run, *arrays) if plan.platform == "cpu" and not plan.axis else run(*arrays)


def forward_shapes(*leaves: Array, tree: PyTreeDef, plan: Plan, **_: Any) -> list[Any]:
    """The shapes of the results."""
    operands = jax.tree.unflatten(tree, leaves)
    return _shapes(operands, plan, (operands.value.shape[-1], 1, 1, 1))


def tangent_shapes(*arrays: Array, tree: PyTreeDef, plan: Plan, **_: Any) -> list[Any]:
    """The shapes of the tangents of out and lse."""
    operands = _unpack(arrays, tree)[0]
    return _shapes(operands, plan, (operands.value.shape[-1], 1))


def _shapes(operands: Operands, plan: Plan, widths: tuple[int, ...]) -> list[Any]:
    like, rows = _type_of(operands.query), plan.rows(operands)
    return [like.update(shape=(*rows, width), dtype=operands.compute_dtype(), weak_type=False) for width in widths]


def cotangent_shapes(*arrays: Array, tree: PyTreeDef, plan: Plan, wanted: Wanted, **_: Any) -> list[Any]:
    """The shapes of the gradients that are wanted."""
    operands = _unpack(arrays, tree)[0]
    leaves = operands.differentiable()
    pairs = zip(wanted, leaves, strict=True)
    dtype = {} if plan.rounded else {"dtype": operands.compute_dtype()}
    return [_type_of(leaf).update(shape=shape, weak_type=False, **dtype) for shape, leaf in pairs if shape is not None]


def _type_of(x: Array | ShapedArray) -> Any:
    return x if isinstance(x, ShapedArray) else jax.typeof(x)


def forward(*leaves: Array, tree: PyTreeDef, plan: Plan) -> tuple[Any, ...]:
    """The results; if there are no scores, out 0 and lse -inf (L5)."""
    operands = jax.tree.unflatten(tree, leaves)
    if 0 in (*plan.rows(operands), operands.key.shape[-2]):
        shapes = forward_shapes(*leaves, tree=tree, plan=plan)
        return tuple(jnp.full(x.shape, y, x.dtype) for x, y in zip(shapes, (0, -jnp.inf, 0, -jnp.inf), strict=True))
    plan = settled(operands, plan)

    def run(*leaves):
        return directions(plan).forward(jax.tree.unflatten(tree, leaves), plan)

    out, row_max, row_sum, lse = _shield(plan, run, *leaves)
    return out, row_max, row_sum, log_sum_exp(row_max, row_sum) if lse is None else lse


def _linear(shapes: Callable[..., list[jax.ShapeDtypeStruct]], *, every: bool = True, short: bool = False) -> Callable:
    """Decorate the body of a program: it runs behind a fusion barrier, and gives zeros if there are no scores.

    The body takes the operands, the results, the other arrays and a plan. With ``every``, the plan is that of a backend
    with every direction, and the results are its own, or None if it does not need them. Across devices, the results of
    all devices are computed again. With ``short``, a backend that has this body for short texts runs it.
    """

    def decorate(body: Callable) -> Callable:
        def program(*arrays: Array, tree: PyTreeDef, plan: Plan, **params: Any) -> tuple[Any, ...]:
            operands, types = _unpack(arrays, tree)[0], shapes(*arrays, tree=tree, plan=plan, **params)
            if 0 in (*plan.rows(operands), operands.key.shape[-2]):
                return tuple(jnp.zeros(x.shape, x.dtype) for x in types)
            plan = settled(operands, plan)
            fallback = fallback_plan(plan, operands if short else None) if every else None
            own = fallback or plan
            none = every and at_once(operands, own)
            recompute = none or fallback is not None
            # No forward runs for results that nothing reads.
            read: Any = (*arrays[:-3], None, None, None) if recompute else arrays

            def run(*arrays):
                operands, results, vectors = _unpack(arrays, tree)
                if recompute:
                    results = None if none else directions(own).forward(operands, own)
                values = body(operands, results, vectors, own, **params)
                return tuple(x.astype(t.dtype) for x, t in zip(values, types, strict=True))

            return _shield(own, run, *read)

        return program

    return decorate


@_linear(tangent_shapes, short=True)
def tangent(operands: Operands, results: Known, vectors: Arrays, plan: Plan, *, active: Marks) -> Any:
    """The tangents of out and lse. vectors: the tangents of the active leaves."""
    return directions(plan).tangent(_at_marks(vectors, active), operands, results, plan)


@_linear(tangent_shapes)
def jvp_of_jvp(operands: Operands, results: Known, vectors: Arrays, plan: Plan, *, active: Marks, moving: Marks) -> Any:
    """The jvp of ``tangent`` by the operands, and by the results through them: bilinear in the two directions.

    vectors: the tangents of the moving leaves, then of the active ones.
    """
    vectors, tangents = vectors[: sum(moving)], _at_marks(vectors[sum(moving) :], active)

    def of_operands(operands, results):
        return directions(plan).tangent(tangents, operands, results, plan)

    result_tangents = directions(plan).tangent(_at_marks(vectors, moving), operands, results, plan)
    fine, results, result_tangents = spoiled_by(result_tangents, results)
    vectors = [replace_nonfinite(t) for t in vectors]
    values = _jvp_along(of_operands, operands, results, moving, vectors, result_tangents)
    return (jnp.where(fine, x, jnp.nan) for x in values)


@_linear(cotangent_shapes, every=False)
def cotangent(operands: Operands, results: Results, vectors: Arrays, plan: Plan, *, wanted: Wanted) -> Any:
    """Gradients. vectors: dout, dlse. wanted: for each differentiable leaf a shape, or None."""
    return directions(plan).cotangent((vectors[0], vectors[1]), operands, results, plan, wanted)


@_linear(cotangent_shapes, short=True)
def hvp(
    operands: Operands, results: Known, vectors: Arrays, plan: Plan, *, active: Marks, wanted: Wanted, whole: bool
) -> Any:
    """The jvp of ``cotangent`` by the operands, and by the results through them; ``whole``: also by dout and dlse.

    vectors: tangents of the active leaves, with ``whole`` of dout and dlse; dout, dlse. wanted: as in ``cotangent``.
    """
    vectors, moved, grads = vectors[: sum(active)], vectors[sum(active) : -2], vectors[-2:]
    if own := own_hvp(plan):
        return own(_at_marks(vectors, active), grads, moved, operands, plan, wanted)

    def pullback(grads, operands, results):
        return directions(plan).cotangent(grads, operands, results, plan, wanted)

    result_tangents: Arrays = ()
    first = pullback(moved, operands, results) if whole else ()
    if results is not None:
        result_tangents = directions(plan).tangent(_at_marks(vectors, active), operands, results, plan)
        _, results, result_tangents = spoiled_by(result_tangents, results)
        vectors = [replace_nonfinite(t) for t in vectors]
    second = _jvp_along(partial(pullback, grads), operands, results, active, vectors, result_tangents)
    return map(jnp.add, first, second) if whole else second


def _jvp_along(
    function: Callable, operands: Operands, results: Known, moving: Marks, vectors: Arrays, result_tangents: Arrays
) -> Any:
    """The jvp of ``function(operands, results)`` along ``vectors``, the tangents of the moving leaves.

    The tangent of lse is passed as that of row_max, so that the tangents of the weights are ``p (ds - dlse)``, the
    difference first (L8).
    """

    def of_moving(vectors, rows):
        pairs = zip(operands.differentiable(), _at_marks(vectors, moving), strict=True)
        moved = operands.replaced([x if vector is None else vector for x, vector in pairs])
        return function(moved, results and Results(rows[0], rows[1], results.row_sum))

    leaves = [x for x, mark in zip(operands.differentiable(), moving, strict=True) if mark]
    primals = leaves, list(results[:2] if results else ())
    tangents = list(vectors), list(result_tangents if results else ())
    return jax.jvp(of_moving, *broadcast_alike(primals, tangents))[1]


def _at_marks(vectors: Arrays, marks: Marks) -> list[Any]:
    """The vectors at the places that are marked, None at the others."""
    rest = iter(vectors)
    return [next(rest) if mark else None for mark in marks]


def _unpack(arrays: Arrays, tree: PyTreeDef) -> tuple[Operands, Any, Any]:
    first = len(arrays) - tree.num_leaves - 3
    return jax.tree.unflatten(tree, arrays[first:-3]), Results(*arrays[-3:]), arrays[:first]
