"""The programs of the primitives of ``derivatives``: results, tangents, gradients, and the derivatives of the last two.

Arrays come flat: first those that the function is linear in, then the leaves of ``Operands``, then ``Results``.
``active`` says which differentiable leaves have a tangent. Where there are two directions, it is for the first, and
``moving`` for the second. ``wanted`` has a shape for each leaf whose gradient is wanted, and None for the others.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.tree_util import PyTreeDef

from .backends import BACKENDS, by_others, directions, settled
from .not_finite import replace_nonfinite, spoiled_by
from .numerics import broadcast_in_memory, fusion_barrier
from .online_softmax import log_sum_exp
from .operands import Operands, Plan, Results, Wanted

Tree = TypeVar("Tree")


def _shielded(plan: Plan, function: Callable, *arrays: Array) -> Any:
    """``function(*arrays)`` behind a fusion barrier, on a CPU: it is the CPU's compiler that fuses what it must not.

    What crosses devices has its barriers inside, where it multiplies.
    """
    shielded = plan.platform == "cpu" and not plan.axis and not BACKENDS[plan.backend].opaque
    return fusion_barrier(function, *arrays) if shielded else function(*arrays)


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


def tangent(*arrays: Array, tree: PyTreeDef, plan: Plan, active: tuple[bool, ...]) -> tuple[Any, ...]:
    """The tangents of out and lse. arrays: the tangents of the active leaves; the operands; the results."""
    if not _has_scores(_unpack(arrays, tree)[0], plan):
        return tuple(jnp.zeros(x.shape, x.dtype) for x in tangent_shapes(*arrays, tree=tree, plan=plan))
    plan = _settled(arrays, tree, plan)
    others = by_others(plan)
    own_plan = others or plan  # across devices, the results of all devices are computed anew

    def run(*arrays):
        operands, results, given = _unpack(arrays, tree)
        if others:
            results = directions(own_plan).forward(operands, own_plan)
        return tuple(directions(own_plan).tangent(_spaced(given, active), operands, results, own_plan))

    return _shielded(own_plan, run, *arrays)


def jvp_of_jvp(
    *arrays: Array, tree: PyTreeDef, plan: Plan, active: tuple[bool, ...], moving: tuple[bool, ...]
) -> tuple[Any, ...]:
    """The jvp of ``tangent`` by the operands, and by the results through them: bilinear in the two directions.

    arrays: the tangents of the moving leaves; those of the active ones; the operands; the results.
    """
    if not _has_scores(_unpack(arrays, tree)[0], plan):
        return tuple(jnp.zeros(x.shape, x.dtype) for x in tangent_shapes(*arrays, tree=tree, plan=plan))

    def run(*arrays):
        operands, results, given = _unpack(arrays, tree)
        given, tangents = given[: sum(moving)], _spaced(given[sum(moving) :], active)

        def of_operands(operands, results):
            return directions(plan).tangent(tangents, operands, results, plan)

        result_tangents = directions(plan).tangent(_spaced(given, moving), operands, results, plan)
        fine, results, result_tangents = spoiled_by(result_tangents, results)
        found = _moved(of_operands, operands, results, moving, given, result_tangents)
        return tuple(jnp.where(fine, x, jnp.nan) for x in found)

    return _shielded(plan, run, *arrays)


def cotangent(*arrays: Array, tree: PyTreeDef, plan: Plan, wanted: Wanted) -> tuple[Any, ...]:
    """Gradients.

    arrays: dout, dlse; the operands; the results. wanted: for each differentiable leaf a shape, or None.
    """
    if not _has_scores(_unpack(arrays, tree)[0], plan):
        return tuple(
            jnp.zeros(x.shape, x.dtype) for x in cotangent_shapes(*arrays, tree=tree, plan=plan, wanted=wanted)
        )
    plan = _settled(arrays, tree, plan)

    def run(*arrays):
        operands, results, given = _unpack(arrays, tree)
        return tuple(directions(plan).cotangent(given, operands, results, plan, wanted))

    return _shielded(plan, run, *arrays)


def hvp(*arrays: Array, tree: PyTreeDef, plan: Plan, active: tuple[bool, ...], wanted: Wanted) -> tuple[Any, ...]:
    """The jvp of ``cotangent`` by the operands, and by the results through them.

    arrays: the tangents of the active leaves; dout, dlse; the operands; the results. wanted: as in ``cotangent``.
    """
    if not _has_scores(_unpack(arrays, tree)[0], plan):
        return tuple(
            jnp.zeros(x.shape, x.dtype) for x in cotangent_shapes(*arrays, tree=tree, plan=plan, wanted=wanted)
        )

    def run(*arrays):
        operands, results, (*given, dout, dlse) = _unpack(arrays, tree)
        result_tangents = directions(plan).tangent(_spaced(given, active), operands, results, plan)
        _, results, result_tangents = spoiled_by(result_tangents, results)

        def of_operands(operands, results):
            return directions(plan).cotangent((dout, dlse), operands, results, plan, wanted)

        return tuple(_moved(of_operands, operands, results, active, given, result_tangents))

    return _shielded(plan, run, *arrays)


def _moved(
    function: Callable,
    operands: Operands,
    results: Results,
    moving: tuple[bool, ...],
    given: Sequence[Array],
    result_tangents: tuple[Array, ...],
) -> Any:
    """The jvp of ``function(operands, results)`` along ``given``, the tangents of the moving leaves.

    Tangents that are not finite are 0 here: ``spoiled_by`` has marked their rows. The tangent of lse is given as that
    of row_max, so that the tangents of the weights are ``p (ds - dlse)``, the difference first (L8).
    """

    def of_moving(given, out, row_max):
        return function(_refilled(operands, moving, given), Results(out, row_max, results.row_sum))

    primals = _those_of(operands, moving), results.out, results.row_max
    return jax.jvp(of_moving, *_of_one_shape(primals, ([replace_nonfinite(t) for t in given], *result_tangents)))[1]


def _of_one_shape(primals: Tree, tangents: Tree) -> tuple[Tree, Tree]:
    """Both trees, each pair of arrays in one shape: from vmap the two may have axes of 1 in different places."""
    shapes = jax.tree.map(lambda x, t: jnp.broadcast_shapes(x.shape, t.shape), primals, tangents)
    leaves, tree = jax.tree.flatten((primals, tangents))
    shapes = jax.tree.leaves(shapes, is_leaf=lambda x: isinstance(x, tuple) and all(isinstance(n, int) for n in x))
    return jax.tree.unflatten(
        tree, [broadcast_in_memory(x, shape) for x, shape in zip(leaves, shapes * 2, strict=True)]
    )


def _spaced(given: Sequence[Array], there: tuple[bool, ...]) -> list[Any]:
    """One for each place, None where nothing is there."""
    rest = iter(given)
    return [next(rest) if t else None for t in there]


def _those_of(operands: Operands, moving: tuple[bool, ...]) -> list[Any]:
    return [x for x, m in zip(operands.differentiable(), moving, strict=True) if m]


def _refilled(operands: Operands, moving: tuple[bool, ...], given: Sequence[Array]) -> Operands:
    """The operands with others in place of the moving leaves."""
    pairs = zip(operands.differentiable(), _spaced(given, moving), strict=True)
    return operands.replaced([x if other is None else other for x, other in pairs])


def _settled(arrays: Sequence[Array], tree: PyTreeDef, plan: Plan) -> Plan:
    return settled(_unpack(arrays, tree)[0], plan)


def _has_scores(operands: Operands, plan: Plan) -> bool:
    return 0 not in (*plan.leading(operands), *operands.query.shape[-3:-1], operands.key.shape[-2])


def _unpack(arrays: Sequence[Array], tree: PyTreeDef) -> tuple[Operands, Results, Any]:
    first = len(arrays) - tree.num_leaves - 3
    return jax.tree.unflatten(tree, arrays[first:-3]), Results(*arrays[-3:]), arrays[:first]


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
