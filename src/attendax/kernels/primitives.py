"""JAX primitives of this package: how one is made, and one that computes any program (L12, L17).

JAX does not look into a primitive. Inside ``shard_map`` its loops need not say over which mesh axes a value varies, and
its lowering learns over how many devices XLA divides it (``backends.placed``).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array, lax
from jax.experimental import checkify
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import cudnn
from .backends import ACCELERATORS, counted, default_platform, on, placed
from .numerics import vary_alike
from .operands import Plan
from .rules import OrUnknown as OrUnknown
from .rules import OrZero as OrZero
from .watching import checked_by, is_watched, watched, without_jet

CACHED_PROGRAMS = 256  # one for each set of parameters


def primitive_of(name: str, function: Callable, shapes: Callable) -> Primitive:
    """A primitive that is lowered as ``function``; outside jit the last ``CACHED_PROGRAMS`` programs stay compiled.

    One of its parameters is a plan. Outside jit its scale is an array: a new number needs no new program.
    """
    primitive = _lowered(name, function, shapes)
    scaled = _lowered(
        name,
        lambda scale, *arrays, plan, **params: function(*arrays, plan=plan.with_scale(scale), **params),
        lambda scale, *arrays, **params: shapes(*arrays, **params),
    )

    @functools.lru_cache(CACHED_PROGRAMS)
    def compiled(names, values, has_scale):
        chosen = scaled if has_scale else primitive
        return jax.jit(functools.partial(chosen.bind, **dict(zip(names, values, strict=True))))

    def run(*arrays, plan, **params):
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return list(function(*arrays, plan=on(plan, default_platform()), **params))
        if has_scale := plan.backend != "cudnn":  # which is told its scale before it is compiled
            place = jax.config.jax_enable_x64, jax.config.jax_default_device  # type: ignore[attr-defined]
            arrays, plan = (_on_device(plan.scale, *place), *arrays), plan.for_any_scale()
        return list(compiled(("plan", *params), (plan, *params.values()), has_scale)(*arrays))

    def eager(*arrays, **params):
        run_with = functools.partial(run, **params)
        return watched(name, run_with, arrays) if is_watched() else run_with(*arrays)

    checked_by(primitive, functools.partial(_errors_inside, function))
    without_jet(primitive)
    primitive.def_impl(eager)
    return primitive


@functools.lru_cache(CACHED_PROGRAMS)
def _on_device(number: float, *_: object) -> jax.Array:
    """A number as an array; to put it there anew takes a third of the time of a small call."""
    return jax.device_put(number)


def _lowered(name: str, function: Callable, shapes: Callable) -> Primitive:
    primitive = Primitive(name)
    primitive.multiple_results = True
    lowered = mlir.lower_fun(function, multiple_results=True)

    def lower(context, *arrays, platform="cpu", **params):
        """Unless something crosses devices, the types need not say over which axes of ``shard_map`` values vary."""
        if params["plan"].backend == "cudnn":
            context = cudnn.on_one_device(context)
        plan = params["plan"] = placed(params["plan"], context, platform)
        if not plan.axis:
            avals = [jax.core.ShapedArray(x.shape, x.dtype, x.weak_type) for x in context.avals_in]
            context = context.replace(avals_in=avals)
        context = counted(context, plan)
        return lowered(context, *arrays, **params)

    primitive.def_abstract_eval(shapes)
    mlir.register_lowering(primitive, lower)
    for accelerator in ACCELERATORS:
        mlir.register_lowering(primitive, functools.partial(lower, platform=accelerator), platform=accelerator)
    return primitive


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of arrays and a plan, with settings: what can be compared is compiled once."""

    function: Callable
    settings: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, function: Callable, **settings: Any) -> "Program":
        """The program of a function and its settings."""
        return cls(function, tuple(sorted(settings.items())))

    def __call__(self, *arrays: Array, plan: Plan) -> tuple[Any, ...]:
        """The results."""
        return tuple(self.function(*arrays, plan=plan, **dict(self.settings)))


def moved(*arrays: Array, plan: Plan, program: Callable, argnums: tuple[int, ...]) -> tuple[Any, ...]:
    """The jvp of a program: takes the tangents of the arrays ``argnums``, then the arrays."""
    tangents, arrays = arrays[: len(argnums)], arrays[len(argnums) :]

    def of_moving(*moving):
        filled = dict(zip(argnums, moving, strict=True))
        return program(*(filled.get(k, x) for k, x in enumerate(arrays)), plan=plan)

    return jax.jvp(of_moving, tuple(arrays[k] for k in argnums), tuple(tangents))[1]


def _transposed(*arrays: Array, plan: Plan, program: Callable, types: tuple[tuple | None, ...], results: int) -> tuple:
    """The transpose of a program by the arrays that have ``types``: takes cotangents, then the other arrays."""
    grads, rest = arrays[:results], arrays[results:]

    def linear(*given):
        filled, others = iter(given), iter(rest)
        return program(*(next(others) if t is None else next(filled) for t in types), plan=plan)

    return jax.linear_transpose(linear, *(jax.ShapeDtypeStruct(*t) for t in types if t is not None))(tuple(grads))


def _mapped(*arrays: Array, plan: Plan, program: Callable, axes: tuple[int | None, ...]) -> tuple[Any, ...]:
    """A program for every entry of an axis, which the arrays have where ``axes`` says so."""
    return jax.vmap(functools.partial(program, plan=plan), axes)(*arrays)


def run_as_primitive(program: Callable, plan: Plan, *arrays: Array) -> tuple[Any, ...]:
    """``program(*arrays, plan=plan)``, differentiable in every direction: what comes of it is a program again."""
    return tuple(_program_p.bind(*vary_alike(arrays), program=program, plan=plan))


def _errors_inside(
    function: Callable,
    errors: Any,  # kinds of errors, as ``checkify`` takes them
    arrays: Sequence[Array],
    params: dict[str, Any],  # of the primitive
) -> checkify.Error:
    """The errors of these kinds that ``checkify`` finds in a second run, which nothing is differentiated through.

    It is traced once: the numbers of errors are those of one trace.
    """
    plan = on(params["plan"], default_platform())
    checked = checkify.checkify(functools.partial(function, **params | {"plan": plan}), errors)
    types = [jax.typeof(x) if plan.axis else jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    traced, (shapes, _) = jax.make_jaxpr(checked, return_shape=True)(*types)
    leaves, tree = jax.tree.flatten(shapes)

    def program(*arrays, plan):
        return jax.core.eval_jaxpr(traced.jaxpr, traced.consts, *arrays)[: len(leaves)]

    found = run_as_primitive(program, plan, *map(lax.stop_gradient, arrays)) if leaves else ()
    return jax.tree.unflatten(tree, found)


def _shapes(*arrays: Array, program: Callable, plan: Plan) -> list[Any]:
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    found = jax.eval_shape(functools.partial(program, plan=plan), *types)
    like = arrays[0] if isinstance(arrays[0], jax.core.ShapedArray) else jax.typeof(arrays[0])
    nowhere = like.sharding.update(spec=jax.P())
    pairs = [(x, nowhere.update(spec=jax.P(*[None] * x.ndim))) for x in found]
    return [like.update(shape=x.shape, dtype=x.dtype, weak_type=False, sharding=place) for x, place in pairs]


_program_p = primitive_of("attention_program", lambda *arrays, program, plan: program(*arrays, plan=plan), _shapes)


def _jvp(primals: Sequence[Array], tangents: Sequence[OrZero], *, program: Callable, plan: Plan) -> tuple[Any, Any]:
    results = _program_p.bind(*primals, program=program, plan=plan)
    argnums = moving_argnums(tangents)
    if not argnums:
        return results, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in results]
    given = [tangents[k] for k in argnums]
    return results, list(run_as_primitive(Program.of(moved, program=program, argnums=argnums), plan, *given, *primals))


def moving_argnums(tangents: Sequence[OrZero], first: int = 0) -> tuple[int, ...]:
    """The numbers of the arrays, from ``first`` on, whose tangent is not zero."""
    pairs = enumerate(tangents)
    return tuple(k for k, t in pairs if k >= first and type(t) is not ad.Zero and t.dtype != jax.dtypes.float0)


def _transpose(grads: Sequence[OrZero], *arrays: OrUnknown, program: Callable, plan: Plan) -> list[Any]:
    unknown = [ad.is_undefined_primal(x) for x in arrays]
    types = tuple((x.aval.shape, x.aval.dtype) if u else None for x, u in zip(arrays, unknown, strict=True))
    rest = [x for x, u in zip(arrays, unknown, strict=True) if not u]
    turned = Program.of(_transposed, program=program, types=types, results=len(grads))
    found = iter(run_as_primitive(turned, plan, *map(ad.instantiate_zeros, grads), *rest))
    return [next(found) if u else None for u in unknown]


def _batch(arrays: Sequence[Array], axes: Sequence[int | None], *, program: Callable, plan: Plan) -> tuple[Any, Any]:
    results = run_as_primitive(Program.of(_mapped, program=program, axes=tuple(axes)), plan, *arrays)
    return list(results), [0] * len(results)


ad.primitive_jvps[_program_p] = _jvp
ad.primitive_transposes[_program_p] = _transpose
batching.primitive_batchers[_program_p] = _batch
