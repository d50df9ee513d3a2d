"""The programs of the primitives of ``derivatives``: results, tangents, gradients, and the derivatives of the last two.

Arrays come flat: first those that the function is linear in, then the leaves of ``Operands``, then ``Results``.
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
from .operands import Operands, Plan, Results, There, Wanted

Arrays = Sequence[Array]
Known = Any  # the ``Results`` of a body, or None where it needs none


def _shielded(plan: Plan, function: Callable, *arrays: Array) -> Any:
    """``function(*arrays)`` behind a fusion barrier, on a CPU: it is the CPU's compiler that fuses what it must not.

    A call across devices has its barriers inside, where it multiplies. XLA does not know the numbers of any array: it
    moves constants across a border, and would reduce a mask that is one while it compiles, for up to a minute.
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
    rows = *plan.leading(operands), *operands.query.shape[-3:-1]
    like = _type_of(operands.query)
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
    """The results; without any score, out 0 and lse -inf (L5)."""
    operands = jax.tree.unflatten(tree, leaves)
    if not _has_scores(operands, plan):
        shapes = forward_shapes(*leaves, tree=tree, plan=plan)
        return tuple(jnp.full(x.shape, y, x.dtype) for x, y in zip(shapes, (0, -jnp.inf, 0, -jnp.inf), strict=True))
    plan = settled(operands, plan)

    def run(*leaves):
        return directions(plan).forward(jax.tree.unflatten(tree, leaves), plan)

    out, row_max, row_sum, lse = _shielded(plan, run, *leaves)
    return out, row_max, row_sum, log_sum_exp(row_max, row_sum) if lse is None else lse


def _linear(shapes: Callable[..., list[jax.ShapeDtypeStruct]], *, every: bool = True, short: bool = False) -> Callable:
    """Decorate the body of a program: it runs behind a fusion barrier, and without any score all is 0.

    The body takes the operands, the results, the other arrays and a plan. With ``every``, the plan is that of a backend
    with every direction, and the results are its own, or None where it needs none. Across devices, those of all devices
    are computed anew. With ``short``, a backend that has this body for short texts keeps them.
    """

    def decorate(body: Callable) -> Callable:
        def program(*arrays: Array, tree: PyTreeDef, plan: Plan, **params: Any) -> tuple[Any, ...]:
            operands, types = _unpack(arrays, tree)[0], shapes(*arrays, tree=tree, plan=plan, **params)
            if not _has_scores(operands, plan):
                return tuple(jnp.zeros(x.shape, x.dtype) for x in types)
            plan = settled(operands, plan)
            others = fallback_plan(plan, operands if short else None) if every else None
            own = others or plan
            none = every and at_once(operands, own)
            anew = none or others is not None
            read: Any = (*arrays[:-3], None, None, None) if anew else arrays  # no forward runs for what is not read

            def run(*arrays):
                operands, results, given = _unpack(arrays, tree)
                if anew:
                    results = None if none else directions(own).forward(operands, own)
                found = body(operands, results, given, own, **params)
                return tuple(x.astype(t.dtype) for x, t in zip(found, types, strict=True))

            return _shielded(own, run, *read)

        return program

    return decorate


@_linear(tangent_shapes, short=True)
def tangent(operands: Operands, results: Known, given: Arrays, plan: Plan, *, active: There) -> Any:
    """The tangents of out and lse. given: the tangents of the active leaves."""
    return directions(plan).tangent(_spaced(given, active), operands, results, plan)


@_linear(tangent_shapes)
def jvp_of_jvp(operands: Operands, results: Known, given: Arrays, plan: Plan, *, active: There, moving: There) -> Any:
    """The jvp of ``tangent`` by the operands, and by the results through them: bilinear in the two directions.

    given: the tangents of the moving leaves; those of the active ones.
    """
    given, tangents = given[: sum(moving)], _spaced(given[sum(moving) :], active)

    def of_operands(operands, results):
        return directions(plan).tangent(tangents, operands, results, plan)

    result_tangents = directions(plan).tangent(_spaced(given, moving), operands, results, plan)
    fine, results, result_tangents = spoiled_by(result_tangents, results)
    given = [replace_nonfinite(t) for t in given]
    found = _moved(of_operands, operands, results, moving, given, result_tangents)
    return (jnp.where(fine, x, jnp.nan) for x in found)


@_linear(cotangent_shapes, every=False)
def cotangent(operands: Operands, results: Results, given: Arrays, plan: Plan, *, wanted: Wanted) -> Any:
    """Gradients. given: dout, dlse. wanted: for each differentiable leaf a shape, or None."""
    return directions(plan).cotangent((given[0], given[1]), operands, results, plan, wanted)


@_linear(cotangent_shapes, short=True)
def hvp(
    operands: Operands, results: Known, given: Arrays, plan: Plan, *, active: There, wanted: Wanted, whole: bool
) -> Any:
    """The jvp of ``cotangent`` by the operands, and by the results through them; ``whole``: also by dout and dlse.

    given: the tangents of the active leaves, with ``whole`` of dout and dlse; dout, dlse. wanted: as in ``cotangent``.
    """
    given, moved, grads = given[: sum(active)], given[sum(active) : -2], given[-2:]
    if own := own_hvp(plan):
        return own(_spaced(given, active), grads, moved, operands, plan, wanted)

    def pulled(grads, operands, results):
        return directions(plan).cotangent(grads, operands, results, plan, wanted)

    result_tangents: Arrays = ()
    first = pulled(moved, operands, results) if whole else ()
    if results is not None:
        result_tangents = directions(plan).tangent(_spaced(given, active), operands, results, plan)
        _, results, result_tangents = spoiled_by(result_tangents, results)
        given = [replace_nonfinite(t) for t in given]
    second = _moved(partial(pulled, grads), operands, results, active, given, result_tangents)
    return map(jnp.add, first, second) if whole else second


def _moved(
    function: Callable, operands: Operands, results: Known, moving: There, given: Arrays, result_tangents: Arrays
) -> Any:
    """The jvp of ``function(operands, results)`` along ``given``, the tangents of the moving leaves.

    The tangent of lse is given as that of row_max, so that the tangents of the weights are ``p (ds - dlse)``, the
    difference first (L8).
    """

    def of_moving(given, rows):
        return function(_refilled(operands, moving, given), results and Results(rows[0], rows[1], results.row_sum))

    moved = [x for x, there in zip(operands.differentiable(), moving, strict=True) if there]
    primals = moved, list(results[:2] if results else ())
    tangents = list(given), list(result_tangents if results else ())
    return jax.jvp(of_moving, *broadcast_alike(primals, tangents))[1]


def _spaced(given: Arrays, there: There) -> list[Any]:
    """One for each place, None where nothing is there."""
    rest = iter(given)
    return [next(rest) if t else None for t in there]


def _refilled(operands: Operands, moving: There, given: Arrays) -> Operands:
    """The operands with others in place of the moving leaves."""
    pairs = zip(operands.differentiable(), _spaced(given, moving), strict=True)
    return operands.replaced([x if other is None else other for x, other in pairs])


def _has_scores(operands: Operands, plan: Plan) -> bool:
    return 0 not in (*plan.leading(operands), *operands.query.shape[-3:-1], operands.key.shape[-2])


def _unpack(arrays: Arrays, tree: PyTreeDef) -> tuple[Operands, Any, Any]:
    first = len(arrays) - tree.num_leaves - 3
    return jax.tree.unflatten(tree, arrays[first:-3]), Results(*arrays[-3:]), arrays[:first]
