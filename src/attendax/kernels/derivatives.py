"""The derivatives of attention, forward and reverse mode and their compositions, for every backend (L12).

A backend (see ``backends``) brings two linear functions, each the transpose of the other: ``tangent``, ``cotangent``.
JAX does the rest. Each becomes a primitive, and reverse mode transposes one into the other. The rule of vmap puts its
axis in front of the leading axes and calls the same primitive again, so that masks still skip their tiles.

The derivatives of the two by the operands are also primitives. With f the attention, that of ``tangent`` is
``jvp_of_jvp``, its second derivative along two directions. That of ``cotangent`` is ``hvp``, the Hessian of
``dout · f`` times tangents. The Hessian is symmetric, so ``hvp`` is its own transpose, and reverse over reverse runs
what forward over reverse runs; so does reverse over forward, since ``hvp`` is also the transpose of ``jvp_of_jvp``.
If JAX transposed these step by step, two large terms would cancel: the direct one and the one through out and lse
(L8). With a large vector common to all keys, no digit would be left. Third and higher derivatives are
JAX's own jvp of these functions, tile by tile, in O(T + S). A ``custom_vjp`` would have neither jvp nor second
derivatives.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jax.tree_util import PyTreeDef

from attendax.checks import fail

from . import programs
from .backends import own_hvp
from .numerics import vary_alike
from .online_softmax import max_or_zero
from .operands import VALUE, Cotangents, Marks, Operands, Plan, Results, Tangents, Wanted
from .primitives import OrUnknown, OrZero, Program, moved, moving_argnums, primitive_of, run_as_primitive


def attend(operands: Operands, plan: Plan) -> Results:
    """The results of the backend of the plan, differentiable in every direction."""
    leaves, tree = jax.tree.flatten(operands)
    return Results(*forward_p.bind(*vary_alike(leaves), tree=tree, plan=plan))


def push(tangents: Tangents, operands: Operands, results: Results, plan: Plan) -> tuple[Any, ...]:
    """The tangents of out and lse, from tangents of the differentiable leaves (None: 0); see ``backends``."""
    leaves, tree = jax.tree.flatten(operands)
    nonzero = [t for t in tangents if t is not None]
    active = tuple(t is not None for t in tangents)
    return tuple(tangent_p.bind(*vary_alike([*nonzero, *leaves, *results[:3]]), tree=tree, plan=plan, active=active))


def pull(grads: Cotangents, operands: Operands, results: Results, plan: Plan, wanted: Wanted) -> tuple[Any, ...]:
    """Gradients of the leaves for which ``wanted`` gives a shape; see ``backends``."""
    leaves, tree = jax.tree.flatten(operands)
    arrays = vary_alike([*grads, *leaves, *results[:3]])
    return tuple(cotangent_p.bind(*arrays, tree=tree, plan=plan, wanted=tuple(wanted)))


forward_p = primitive_of("attention", programs.forward, programs.forward_shapes)
tangent_p = primitive_of("attention_tangent", programs.tangent, programs.tangent_shapes)
jvp_of_jvp_p = primitive_of("attention_jvp_of_jvp", programs.jvp_of_jvp, programs.tangent_shapes)
cotangent_p = primitive_of("attention_cotangent", programs.cotangent, programs.cotangent_shapes)
hvp_p = primitive_of("attention_hvp", programs.hvp, programs.cotangent_shapes)


def _zero(x: Array) -> Any:
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def _is_zero(tangent: OrZero) -> bool:
    return type(tangent) is ad.Zero


def _forward_jvp(leaves: Sequence[Array], tangents: Sequence[OrZero], **params: Any) -> tuple[Any, Any]:
    """The tangent of ``row_max`` is 0; that of ``row_sum`` is that of lse times ``row_sum``."""
    out, row_max, row_sum, lse = forward_p.bind(*leaves, **params)
    if jax.config.jax_debug_infs:  # type: ignore[attr-defined]
        row_max = max_or_zero(row_max)  # kept for the backward, it is a result of a jit; row_sum says what is empty
    out = checkpoint_name(out, "attention_out")
    row_max, row_sum, lse = (checkpoint_name(x, "attention_lse") for x in (row_max, row_sum, lse))
    active, nonzero = _moving(leaves, tangents, params["tree"])
    if not nonzero:
        return [out, row_max, row_sum, lse], [_zero(x) for x in (out, row_max, row_sum, lse)]
    dout, dlse = tangent_p.bind(*nonzero, *leaves, out, row_max, row_sum, active=active, **params)
    return [out, row_max, row_sum, lse], [dout, _zero(row_max), row_sum * dlse, dlse]


def _moving(leaves: Sequence[Array], tangents: Sequence[OrZero], tree: PyTreeDef) -> tuple[Marks, list[Any]]:
    """Mark the differentiable leaves that have a tangent, and collect these tangents."""
    size = len(jax.tree.unflatten(tree, leaves).differentiable())
    pairs = list(zip(leaves[:size], tangents[:size], strict=True))
    active = tuple(bool(jnp.issubdtype(x.dtype, jnp.inexact)) and not _is_zero(t) for x, t in pairs)
    return active, [t for (_, t), a in zip(pairs, active, strict=True) if a]


def _linear_jvp(
    primitive: Primitive, count: Callable, jvp_by_the_rest: Callable, primals: Sequence[Array],
    tangents: Sequence[OrZero], **params: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The jvp of a primitive that is linear in its first ``count`` arrays: there it is the primitive itself.

    ``jvp_by_the_rest`` returns the jvp by the other arrays, or None if none of them has a tangent.
    """
    first = count(**params)
    results = primitive.bind(*primals, **params)
    terms = []
    if not all(map(_is_zero, tangents[:first])):
        terms.append(primitive.bind(*map(ad.instantiate_zeros, tangents[:first]), *primals[first:], **params))
    rest = jvp_by_the_rest(first, primals, tangents, **params)
    terms += [] if rest is None else [rest]
    if not terms:
        return results, [_zero(x) for x in results]
    return results, [sum(parts[1:], parts[0]) for parts in zip(*terms, strict=True)]


def _jvp_by_operands(
    second: Primitive, first: int, primals: Sequence[Array], tangents: Sequence[OrZero], **params: Any
) -> Any:
    """The jvp of ``cotangent``, or else of ``tangent``, by the operands: ``second``.

    The results are functions of the operands, so their tangents are computed. In a part of a ring they are inputs,
    because the results cover keys of other devices.
    """
    if params["plan"].partial:
        program = programs.cotangent if second is hvp_p else programs.tangent
        return _by_jax(program, first, primals, tangents, **params)
    marks, nonzero = _moving(primals[first:-3], tangents[first:-3], params["tree"])
    which = {"active": marks, "whole": False} if second is hvp_p else {"moving": marks}
    return second.bind(*nonzero, *primals, **which, **params) if nonzero else None


def _whole_jvp(by_parts: Callable, primals: Sequence[Array], tangents: Sequence[OrZero], **params: Any) -> Any:
    """The jvp of ``cotangent``: if dout and the operands move, at once if the backend can, else by parts."""
    marks, nonzero = _moving(primals[2:-3], tangents[2:-3], params["tree"])
    own = own_hvp(params["plan"], jax.tree.unflatten(params["tree"], primals[2:-3]))
    if not nonzero or not own or all(map(_is_zero, tangents[:2])):
        return by_parts(primals, tangents, **params)
    nonzero += map(ad.instantiate_zeros, tangents[:2])
    return cotangent_p.bind(*primals, **params), hvp_p.bind(*nonzero, *primals, active=marks, whole=True, **params)


def _by_jax(function: Callable, first: int, primals: Sequence[Array], tangents: Sequence[OrZero], **params: Any) -> Any:
    """JAX's own jvp of the function, which reverse mode may transpose."""
    plan = dataclasses.replace(params.pop("plan"), reversible=True)
    if not (argnums := moving_argnums(tangents, first)):
        return None
    program = Program.of(moved, program=Program.of(function, **params), argnums=argnums)
    arrays = *(tangents[k] for k in argnums), *primals
    return program(*arrays, plan=plan) if plan.axis else run_as_primitive(program, plan, *arrays)


def _refuse_unknown(arrays: Sequence[OrUnknown]) -> None:
    if any(map(ad.is_undefined_primal, arrays)):
        sentence = "linear_transpose works by value, or by the tangent of a derivative; the rest is not linear."
        fail(NotImplementedError, "attention", sentence)


def _tangent_transpose(grads: Sequence[OrZero], *arrays: OrUnknown, active: Marks, **params: Any) -> list[Any]:
    size = sum(active)
    _refuse_unknown(arrays[size:])
    grads = [*map(ad.instantiate_zeros, grads)]
    results = cotangent_p.bind(*grads, *arrays[size:], wanted=_shapes_of(arrays[:size], active), **params)
    return [*results, *(None for _ in arrays[size:])]


def _cotangent_transpose(grads: Sequence[OrZero], *arrays: OrUnknown, wanted: Wanted, **params: Any) -> list[Any]:
    _refuse_unknown(arrays[2:])
    active = tuple(shape is not None for shape in wanted)
    tangents = tangent_p.bind(*map(ad.instantiate_zeros, grads), *arrays[2:], active=active, **params)
    results = (t if ad.is_undefined_primal(x) else None for t, x in zip(tangents, arrays, strict=False))
    return [*results, *(None for _ in arrays[2:])]


def _forward_transpose(grads: Sequence[OrZero], *leaves: OrUnknown, tree: PyTreeDef, plan: Plan) -> list[Any]:
    """The transpose by the value alone: the average is linear in it; maximum and sum do not depend on it."""
    _refuse_unknown(leaves[:VALUE] + leaves[VALUE + 1 :])
    value = leaves[VALUE].aval
    leaves = *leaves[:VALUE], jnp.zeros(value.shape, value.dtype), *leaves[VALUE + 1 :]
    results = forward_p.bind(*leaves, tree=tree, plan=plan)[:3]
    dout = ad.instantiate_zeros(grads[0])
    cotangents = dout, jnp.zeros_like(results[1])
    count = len(jax.tree.unflatten(tree, leaves).differentiable())
    wanted = tuple(value.shape if k == VALUE else None for k in range(count))
    arrays = vary_alike([*cotangents, *leaves, *results])
    (gradient,) = cotangent_p.bind(*arrays, tree=tree, plan=plan, wanted=wanted)
    return [gradient if k == VALUE else None for k in range(len(leaves))]


def _jvp_of_jvp_transpose(
    grads: Sequence[OrZero], *arrays: OrUnknown, active: Marks, moving: Marks, **params: Any
) -> list[Any]:
    """The transpose by the tangents of the moving leaves, or of the active ones: it is symmetric in the two."""
    size, both = sum(moving), sum(moving) + sum(active)
    first, other, rest = arrays[:size], arrays[size:both], arrays[both:]
    is_first = any(map(ad.is_undefined_primal, first))
    if not is_first:
        first, other, active, moving = other, first, moving, active
    grads = [*map(ad.instantiate_zeros, grads)]
    results = hvp_p.bind(*other, *grads, *rest, active=active, wanted=_shapes_of(first, moving), whole=False, **params)
    nothing = [None for _ in other]
    return [*(results + nothing if is_first else nothing + results), *(None for _ in rest)]


def _hvp_transpose(
    grads: Sequence[OrZero], *arrays: OrUnknown, active: Marks, wanted: Wanted, whole: bool, **params: Any
) -> list[Any]:
    """The transpose by the tangents is ``hvp`` itself, of dout and dlse ``tangent``; by these it is ``jvp_of_jvp``."""
    size, first = sum(active), sum(active) + 2 * whole
    moving = tuple(shape is not None for shape in wanted)
    grads = [*map(ad.instantiate_zeros, grads)]
    tangents, of_results, rest = arrays[:size], arrays[first : first + 2], arrays[first + 2 :]
    if any(map(ad.is_undefined_primal, of_results)):
        results = jvp_of_jvp_p.bind(*grads, *tangents, *rest, active=active, moving=moving, **params)
        return [*(None for _ in tangents), *results, *(None for _ in rest)]
    swapped = _shapes_of(tangents, active)
    results = hvp_p.bind(*grads, *of_results, *rest, active=moving, wanted=swapped, whole=False, **params)
    results += tangent_p.bind(*grads, *rest, active=moving, **params) if whole else []
    return [*results, *(None for _ in (*of_results, *rest))]


def _shapes_of(arrays: Sequence[OrUnknown], marks: Marks) -> tuple[Any, ...]:
    """The shape of each array, known or not, at the places that are marked, and None at the others."""
    shapes = iter([x.aval.shape if ad.is_undefined_primal(x) else x.shape for x in arrays])
    return tuple(next(shapes) if mark else None for mark in marks)


def _batch(
    primitive: Primitive, arrays: Sequence[Array], axes: Sequence[int | None], *, tree: PyTreeDef, plan: Plan,
    **params: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Put the axis from vmap in front. An array without it gets an axis of size 1.

    Arrays of a user's functions are repeated, because the function may read them in any way.
    """
    size = next(x.shape[a] for x, a in zip(arrays, axes, strict=True) if a is not None)
    numbers = jax.tree.unflatten(tree, range(tree.num_leaves))
    first = len(arrays) - tree.num_leaves - (0 if primitive is forward_p else 3)
    repeat = _of_user_functions(first, tree, **params)
    positions = {first + k for k in jax.tree.leaves(numbers.positions)}
    if any(axes[k] is not None for k in positions):
        sentence = "vmap over positions is not supported; all entries of a batch share their positions."
        raise NotImplementedError(f"attention: {sentence}")

    def in_front(x, axis, is_repeated):
        if axis is not None:
            return jnp.moveaxis(x, axis, 0)
        return jnp.broadcast_to(x[None], (size, *x.shape)) if is_repeated else x[None]

    each = enumerate(zip(arrays, axes, [*repeat, False, False, False], strict=False))
    moved = [one[0] if k in positions else in_front(*one) for k, one in each]
    if "wanted" in params:
        params["wanted"] = tuple(None if shape is None else (size, *shape) for shape in params["wanted"])
    plan = dataclasses.replace(plan, batch=(size, *plan.batch))
    results = primitive.bind(*moved, tree=tree, plan=plan, **params)
    return results, [0] * len(results)


def _of_user_functions(first: int, tree: PyTreeDef, active: Marks = (), moving: Marks = (), **_: Any) -> list[bool]:
    """Mark the arrays, up to the leaves, of a user's functions: of modifiers, their tangents, and of masks."""
    operands = jax.tree.unflatten(tree, range(tree.num_leaves))
    parts = [] if operands.mask is None else operands.mask.parts()
    own = {*jax.tree.leaves(operands.score_mod)}.union(*(jax.tree.leaves(x) for x in parts if x.kind == "function"))
    of_tangents = [k in own for marks in (moving, active) for k, mark in enumerate(marks) if mark]
    return of_tangents + [False] * (first - len(of_tangents)) + [k in own for k in range(tree.num_leaves)]


ad.primitive_jvps[forward_p] = _forward_jvp
for _each, _count, _jvp_by_the_rest in (
    (tangent_p, lambda active, **_: sum(active), partial(_jvp_by_operands, jvp_of_jvp_p)),
    (cotangent_p, lambda **_: 2, partial(_jvp_by_operands, hvp_p)),
    (jvp_of_jvp_p, lambda moving, **_: sum(moving), partial(_by_jax, programs.jvp_of_jvp)),
    (hvp_p, lambda active, whole, **_: sum(active) + 2 * whole, partial(_by_jax, programs.hvp)),
):
    ad.primitive_jvps[_each] = partial(_linear_jvp, _each, _count, _jvp_by_the_rest)
ad.primitive_jvps[cotangent_p] = partial(_whole_jvp, ad.primitive_jvps[cotangent_p])
ad.primitive_transposes[forward_p] = _forward_transpose
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[jvp_of_jvp_p] = _jvp_of_jvp_transpose
ad.primitive_transposes[cotangent_p] = _cotangent_transpose
ad.primitive_transposes[hvp_p] = _hvp_transpose
for _each in (forward_p, tangent_p, jvp_of_jvp_p, cotangent_p, hvp_p):
    batching.primitive_batchers[_each] = partial(_batch, _each)
