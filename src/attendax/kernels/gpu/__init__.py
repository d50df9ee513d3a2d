"""Attention by kernels of Triton on an NVIDIA GPU: forward and gradient, by ``implementation="triton"``.

The kernels (``kernels.py``) were compiled when the package ``attendax-gpu`` was made (``build.py``): Triton is not
needed to run them. By a custom call XLA runs ``csrc/launcher.cc``, which launches them in order (``launches.py``).
Tangents, and all second derivatives, run in tiles, from their own forward.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attendax.checks import fail

from ..blockwise import algorithm
from ..native import divided
from ..native.divided import HEADS, KEYS, PAIRS, TEXTS, WHOLE, CustomCall, Shape
from ..numerics import folded
from ..operands import REST, Cotangents, Operands, Plan, Results, Wanted
from . import compiled, launches, modifiers, seen

PLATFORM = "cuda"  # tests on a CPU put theirs in its place, and a driver that they bring
NAME = "implementation 'triton'"
ASKED_FOR = "requested; forward and gradient by Triton kernels, every other direction in tiles"
BY_NAME = "runs only if you name it, because it has not been timed on a GPU"
CANNOT_DIVIDE = "a program that XLA divides inside a shard_map, or without Shardy"
ADVICE = "Leave implementation out: the tiles take every call, on every device."
KINDS = {"key": KEYS, "value": KEYS, "dkey": KEYS, "dvalue": KEYS, "alibi": HEADS, "table": HEADS, "words": HEADS}
KINDS |= {"query_ids": TEXTS, "key_ids": TEXTS, "places": TEXTS, "factors": WHOLE, "options": WHOLE}  # others: PAIRS
LEAST_POWER = -20  # a product that leaves float32, times 2 to this power, is a score above 1e32


def of_call(operands: Operands, plan: Plan) -> str:
    """The reason why the kernels cannot take a call; nothing where they can. Only shapes and structure count."""
    query, _, value = operands[:3]
    D, V, dtypes = query.shape[-1], value.shape[-1], {str(x.dtype) for x in operands[:3]}
    most = max(launches.WIDTHS)
    reasons = (
        (not dtypes <= {*launches.DTYPES}, f"{query.dtype}: it takes {', '.join(launches.DTYPES)}"),
        (len(dtypes) > 1, "query, key and value of different dtypes"),
        (max(D, V) > most, f"D = {D} and V = {V}: it takes up to {most}"),
        (any(x is not None for x in operands.positions), "tokens whose positions do not begin at 0"),
    )
    others = seen.why_not(operands.mask, plan) or modifiers.why_not(operands)
    return next((reason for holds, reason in reasons if holds), others)


def why_not(operands: Operands, plan: Plan) -> str:
    """The reason why the kernels cannot run in a program where it is; nothing where they can."""
    reasons = (
        (plan.reversible, "a derivative of a derivative"),
        (plan.platform != PLATFORM, f"it is for CUDA; this program is for {plan.platform}"),
        (plan.devices > 1 and not plan.divisible, CANNOT_DIVIDE),
        (plan.exported, "an exported program, which may run without the kernels"),
    )
    return next((reason for holds, reason in reasons if holds), seen.why_not(operands.mask, plan))


def refuse(function: str, operands: Operands, plan: Plan) -> None:
    """Refuse a call that asks for the kernels and cannot have them.

    Raises:
        NotImplementedError: they cannot take the call, or are not here.
    """
    if reason := of_call(operands, plan):
        fail(NotImplementedError, function, f"{NAME} does not take this call: {reason}.", advice=ADVICE)
    if reason := compiled.why_not():
        advice = 'pip install "attendax[gpu]"' if reason == compiled.NOT_INSTALLED else ADVICE
        package = compiled.package()
        found = package.why_not or f"the package attendax-gpu has {len(package.kernels)} kernels"
        reasons = "; ".join(dict.fromkeys((reason, found)))
        fail(NotImplementedError, function, f"{NAME} cannot run here: {reasons}.", advice=advice)


def verdict(operands: Operands, plan: Plan) -> str:
    """The line of ``explain`` about the kernels, for a call that did not ask for them."""
    if reason := of_call(operands, plan):
        return f"not eligible: {reason}"
    reason = compiled.why_not()
    return BY_NAME + (f"; it cannot run here: {reason}" if reason else "")


def forward(operands: Operands, plan: Plan) -> Results:
    """out, row maximum, row sum and lse."""
    arrays, sizes, _ = _arrays(operands, plan)
    found = _run(launches.Sizes.forward, sizes, arrays, plan)
    rows, dtype = plan.rows(operands), operands.compute_dtype()
    out = found["out"][..., : operands.value.shape[-1]].reshape(*rows, -1).astype(dtype)
    return Results(out, *(found[name].reshape(*rows, 1) for name in ("row_max", "row_sum", "lse")))


def cotangent(grads: Cotangents, operands: Operands, results: Results, plan: Plan, wanted: Wanted) -> tuple[Array, ...]:
    """Gradients of the leaves that are wanted; those of slopes and tables in tiles, from their own forward."""
    arrays, sizes, factor = _arrays(operands, plan)
    rows, lead = (sizes.B, sizes.N, sizes.T), plan.leading(operands)

    def full(x: Array) -> Array:
        return jnp.broadcast_to(x, (*lead, *x.shape[-3:]))

    narrow = {"dout": grads[0], "out": results.out}
    wide = {"dlse": grads[1], "row_max": results.row_max, "row_sum": results.row_sum}
    arrays |= {name: _padded(full(x).astype(sizes.dtype).reshape(*rows, -1), sizes.W) for name, x in narrow.items()}
    arrays |= {name: full(x).reshape(*rows, 1) for name, x in wide.items()}
    of_keys, of_bias, others = any(wanted[1:REST]), None, list(wanted[REST:])
    of = others.pop(0) if operands.bias is not None else None
    if of is not None:
        of_bias = math.prod(of[:-3]) > 1, *(n > 1 for n in of[-3:])
    grads_of = _run(lambda sizes: sizes.gradients(of_keys, of_bias), sizes, arrays, plan)
    found = []
    for name, shape, x in zip(("dquery", "dkey", "dvalue"), wanted, operands[:3], strict=False):
        if shape is None:
            continue
        grad = grads_of[name][..., : x.shape[-1]].astype(operands.compute_dtype()).reshape(*lead, *x.shape[-3:])
        found.append(folded(grad if name != "dquery" or factor is None else grad * factor, shape))
    if of is not None and of_bias is not None:
        grad = grads_of["dbias"]
        found.append(folded(grad.reshape(*(lead if of_bias[0] else (1,) * len(lead)), *grad.shape[1:]), of))
    if any(others):
        wanted = (*(None for _ in wanted[: -len(others)]), *others)
        tiles = None if algorithm.at_once(operands, plan) else algorithm.forward(operands, plan)
        found += algorithm.cotangent(grads, operands, tiles, plan, wanted)
    return tuple(found)


def _arrays(operands: Operands, plan: Plan) -> tuple[dict[str, Array], launches.Sizes, Array | None]:
    """The arrays of a call as the kernels take them, their sizes, and the factor on the queries, if there is one."""
    lead, ((N, T, D), (G, S, V)) = plan.leading(operands), (x.shape[-3:] for x in (operands.query, operands.value))
    W = min(width for width in launches.WIDTHS if width >= max(D, V))
    texts = (jnp.broadcast_to(x, (*lead, *x.shape[-3:])).reshape(-1, *x.shape[-3:]) for x in operands[:3])
    query, key, value = (_padded(x, W) for x in texts)
    factor, scale = _factors(plan.scale, query.dtype)
    if factor is not None:
        query = (query.astype(jnp.float32) * factor).astype(query.dtype)
    keys, *ids, bits = seen.seen_by(operands.mask, T, S, operands.query.ndim)
    keys, ids = modifiers.flat(keys, 3, lead), _of_texts(ids, lead)
    names = "query", "key", "value", "factors", "seen", "query_ids", "key_ids"
    arrays = dict(zip(names, (query, key, value, jnp.reshape(scale, 1), keys, *ids), strict=True))
    modified = bits is not None or not modifiers.is_plain(operands)
    if modified:
        arrays |= modifiers.arrays_of(operands, plan, scale, bits)
    differ = len(keys) > 1, keys.shape[1] > 1, len(ids[0]) > 1, modified
    sizes = launches.Sizes(len(query), N, G, T, S, W, str(query.dtype), compiled.target(), *differ)
    return arrays, sizes, factor


def _of_texts(ids: Sequence[Array], lead: tuple[int, ...]) -> list[Array]:
    """The ids of queries and keys, with the leading axes of a call as one, of size 1 if all texts are alike."""
    texts = jnp.broadcast_shapes(*(x.shape[:-1] for x in ids))
    return [modifiers.flat(jnp.broadcast_to(x, (*texts, x.shape[-1])), 1, lead) for x in ids]


def _padded(x: Array, width: int) -> Array:
    """An array with zeros behind its last axis, up to a width; in products they count for nothing."""
    return x if x.shape[-1] == width else jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


def _factors(scale: float | Array, dtype: jnp.dtype) -> tuple[Array | None, Array]:
    """The factor on the queries, if there is one, and the scale of their products with keys, which is above 0.

    The factor has the sign of the scale and, if the scale is small, a power of two: then no product is beyond float32
    whose score is below 1e32. Products of float16 never are.
    """
    known = isinstance(scale, float)
    if known and scale >= 2.0**LEAST_POWER:
        return None, jnp.float32(scale)
    xp: Any = np if known else jnp
    sign, size = xp.sign(scale), xp.where(scale == 0, 1.0, xp.abs(scale))
    if dtype == jnp.float16:
        return jnp.float32(sign), jnp.float32(size)
    fraction, power = xp.frexp(size)
    factor = sign * xp.ldexp(1.0, xp.minimum(power - LEAST_POWER, 0))
    return jnp.float32(factor), jnp.float32(xp.ldexp(fraction, xp.maximum(power, LEAST_POWER)))


def _run(
    program_of: Callable[[launches.Sizes], launches.LaunchSequence],
    sizes: launches.Sizes,
    arrays: dict[str, Array],
    plan: Plan,
) -> dict[str, Array]:
    """The results of a program: on several devices each has its texts and heads, and they sum what they share."""
    program = program_of(sizes)
    given = [arrays[name] for name in program.given]

    def run(*given: Array, types: Sequence[jax.ShapeDtypeStruct]) -> Sequence[Array]:
        (B, N), G = given[0].shape[:2], given[1].shape[1]
        found = _called(program_of(sizes._replace(B=B, N=N, G=G)), given)
        return [x.astype(result.dtype) for x, result in zip(found, types, strict=True)]

    kinds = {name: KINDS.get(name, PAIRS) for name in (*program.given, *program.results)}
    results = {name: Shape(kinds[name], *x) for name, x in program.results.items()}
    if plan.devices == 1:
        found = run(*given, types=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results.values()])
    else:  # sums are of float32
        shapes = tuple(x._replace(dtype="float32") if x.kind == KEYS else x for x in results.values())
        settings = repr(program).encode()
        of_given = tuple(kinds[name] for name in program.given)
        found = divided.run(CustomCall(run, of_given, shapes, None, settings), given)
    return dict(zip(program.results, found, strict=True))


def _called(program: launches.LaunchSequence, given: Sequence[Array]) -> Sequence[Array]:
    """The results of a program, by one custom call."""
    types = [jax.ShapeDtypeStruct(*x) for x in (program.results | program.inner).values()]
    found = jax.ffi.ffi_call(compiled.TARGET, types)(*given, plan=compiled.plan_of(program))
    return found[: len(program.results)]
