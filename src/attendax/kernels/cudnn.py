"""cuDNN's attention, by way of ``jax.nn.dot_product_attention``: forward and gradient, on an NVIDIA GPU.

It runs only if asked for by name, and only for calls where cuDNN's result keeps the laws; ``why_not`` says which. The
tangent, and every second derivative, runs in tiles. Two kinds of input are changed before cuDNN sees them:

- A text without any key is given one, and its results are then set to 0 (L5).
- Numbers that are not finite, or so large that a score or a gradient could overflow, become 0. The queries that see one
  are computed in tiles, in a branch that runs only if there is such a number (L6, L7).

The cotangent asks jax.nn for its forward again, because its public functions give no row sums of full precision. XLA
may find both in one program and do the work once.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.interpreters.mlir import LoweringRuleContext

from attendax.checks import fail
from attendax.masks import Mask

from .blockwise import algorithm
from .native.program import all_of
from .operands import Cotangents, Operands, Plan, Results, Wanted

JAX_NN_IMPLEMENTATION = "cudnn"  # the implementation of jax.nn; tests on a CPU put "xla" in its place
DTYPES = ("float16", "bfloat16")
OF_WIDTH, OF_LENGTHS = 8, 2  # D, and T and S, are multiples; jax.nn refuses the gradient of odd lengths
WIDEST, WIDEST_FROM_9_0 = 128, 256  # D, by compute capability
LARGEST_SCORE = 2.0**30  # below it no rounding of a score can overflow an exponential
LARGEST = 2.0**50  # value, and gradient of out: no sum of products of two overflows float32
ASKED_FOR = "requested; forward and gradient by cuDNN, every other direction in tiles"
BY_NAME = "runs only if you name it, because its query gradient differs from run to run (L15)"


class Visible(NamedTuple):
    """A mask as cuDNN takes it."""

    causal: bool = False
    left: int | None = None  # how many keys back a query sees, where that is bounded
    lengths: Array | None = None  # of the keys, (..., 1, 1, 1)


def why_not(operands: Operands, plan: Plan, capability: tuple[int, ...] | None) -> str:
    """The reason why cuDNN cannot take a call by the law; nothing where it can. Only shapes and structure count.

    Args:
        operands: of the call; the arrays may be ``jax.ShapeDtypeStruct``.
        plan: of the call.
        capability: compute capability of the GPU, such as (9, 0); None without one.
    """
    query, value = operands.query, operands.value
    (T, D), S = query.shape[-2:], operands.key.shape[-2]
    most = WIDEST_FROM_9_0 if capability and capability >= (9, 0) else WIDEST
    seen = visible(operands.mask)
    ends = isinstance(seen, Visible) and seen.left is not None and T - seen.left > S
    reasons = (
        (operands.bias is not None, "a bias"),
        (operands.score_mod is not None, "a score modifier"),
        (operands.dropout_keys is not None, "dropout: its own generator would draw otherwise (L10)"),
        (plan.needs_lse, "lse, which is requested or which a sink needs: that of jax.nn is rounded (L9)"),
        (str(query.dtype) not in DTYPES, f"{query.dtype}: it takes {' and '.join(DTYPES)}"),
        (value.shape[-1] != D, f"V = {value.shape[-1]} is not D = {D}"),
        (D % OF_WIDTH != 0, f"D = {D} is not a multiple of {OF_WIDTH}"),
        (T % OF_LENGTHS != 0 or S % OF_LENGTHS != 0, f"T = {T} and S = {S} are not multiples of {OF_LENGTHS}"),
        (most < D, f"D = {D} is more than {most} (from compute capability 9.0 on: {WIDEST_FROM_9_0})"),
        (not 0 < plan.scale <= 1, f"scale {plan.scale:g} is outside of (0, 1], where its order of rounding is safe"),
        (isinstance(seen, str), seen),
        (ends, f"T = {T} queries reach beyond S = {S} keys, and a window leaves them none (L5)"),
    )
    return next((str(reason) for holds, reason in reasons if holds), "")


def visible(mask: Mask | None) -> Visible | str:
    """The mask as cuDNN takes it, or why it cannot."""
    found, right = Visible(), None
    for part in all_of(mask):
        if part.kind == "window":
            offset, left, ahead = part.settings
            if any(x is not None for x in part.arrays[1:]):
                return "a window whose sides are arrays"
            if offset != 0:
                return "an offset: its masks begin at the first query and key"
            found = found._replace(left=_least(found.left, left))
            right = _least(right, ahead)
        elif part.kind == "padding" and part.arrays[1] is None and found.lengths is None:
            found = found._replace(lengths=part.arrays[0])
        else:
            return f"the mask: a part of it is of the kind {part.kind!r}; it takes causal, left windows, key lengths"
    if right != 0 and (right is not None or found.left is not None):
        return "a window that looks ahead"
    if found.left is not None and found.lengths is not None:
        return "a window and key lengths: a query beyond the end of its text would see no key (L5)"
    return found._replace(causal=right == 0)


def _least(one: int | None, other: int | None) -> int | None:
    return min((x for x in (one, other) if x is not None), default=None)


def capability() -> tuple[int, ...] | None:
    """The compute capability of the first NVIDIA GPU that JAX finds; None where it finds none."""
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError:
        return None
    return tuple(int(x) for x in str(device.compute_capability).split("."))


def refuse(function: str, operands: Operands, plan: Plan) -> None:
    """Refuse a call that asks for cuDNN and cannot have it.

    Raises:
        NotImplementedError: the call is not eligible, or there is no NVIDIA GPU.
    """
    advice = "Leave implementation out: the tiles take every call, on every device."
    found = capability()
    if reason := why_not(operands, plan, found):
        fail(NotImplementedError, function, f"implementation 'cudnn' does not take this call: {reason}.", advice=advice)
    if found is None:
        there = ", ".join(sorted({device.platform for device in jax.devices()}))
        sentence = f"implementation 'cudnn' needs an NVIDIA GPU, and JAX finds none (it finds: {there})."
        fail(NotImplementedError, function, sentence, advice=advice)


def verdict(operands: Operands, plan: Plan) -> str:
    """The line of ``explain`` about cuDNN, for a call that did not ask for it."""
    found = capability()
    if reason := why_not(operands, plan, found):
        return f"not eligible: {reason}"
    return BY_NAME + ("" if found else "; JAX finds no NVIDIA GPU here")


def on_one_device(context: LoweringRuleContext) -> Any:
    """The context of a lowering rule, so that jax.nn's own lowering knows that it is for one device.

    Raises:
        NotImplementedError: the program is for another platform, or XLA divides it over several devices.
    """
    module = context.module_context
    if JAX_NN_IMPLEMENTATION == "cudnn" and tuple(module.platforms) != ("cuda",):
        there = ", ".join(module.platforms)
        fail(NotImplementedError, "attention", f"implementation 'cudnn' is for CUDA; this program is for {there}.")
    axes: Any = module.axis_context
    if not hasattr(axes, "device_assignment"):  # inside shard_map
        return context
    if axes.num_devices > 1:
        sentence = f"implementation 'cudnn' is for one device; this program is divided over {axes.num_devices}."
        fail(NotImplementedError, "attention", sentence, advice="Call attention inside jax.shard_map.")
    axes = dataclasses.replace(axes, device_assignment=axes.device_assignment or (jax.devices()[0],))
    return context.replace(module_context=module.replace(axis_context=axes))


def forward(operands: Operands, plan: Plan) -> Results:
    """out, with placeholders 0 and 1 for the row maximum and sum; calls that need lse are refused in ``why_not``."""
    safe, bad_rows = _quarantined(operands, plan)
    out = _attend(safe, plan)(*safe[:3]).astype(operands.compute_dtype())
    none = jnp.zeros((*out.shape[:-1], 1), out.dtype)

    def in_tiles() -> Array:
        return jnp.where(bad_rows, algorithm.forward(operands, plan).out, out)

    return Results(lax.cond(jnp.any(bad_rows), in_tiles, lambda: out), none, none + 1)


def cotangent(grads: Cotangents, operands: Operands, results: Results, plan: Plan, wanted: Wanted) -> tuple[Array, ...]:
    """Gradients of query, key and value, as far as they are wanted."""
    dout = grads[0]
    safe, bad_rows = _quarantined(operands, plan)
    bad_rows |= _large(dout, LARGEST) | ~_are(jnp.isfinite(results.out)) | _may_overflow(dout, safe)
    given = jnp.where(bad_rows, 0, dout).astype(operands.query.dtype)
    _, pull = jax.vjp(_attend(safe, plan), *safe[:3])
    pairs = zip(pull(given), wanted, strict=True)
    found = [x.astype(operands.compute_dtype()).reshape(shape) for x, shape in pairs if shape]
    bad_rows &= _are(dout != 0, jnp.any)

    def in_tiles() -> list[Array]:
        rest = jnp.where(bad_rows, dout, 0), jnp.zeros_like(grads[1])
        own = algorithm.forward(operands, plan)
        return [x + y for x, y in zip(found, algorithm.cotangent(rest, operands, own, plan, wanted), strict=True)]

    return tuple(lax.cond(jnp.any(bad_rows), in_tiles, lambda: found))


def _attend(operands: Operands, plan: Plan) -> Any:
    """The function from query, key and value (..., heads, length, D) to out."""
    dot_product_attention: Any = jax.nn.dot_product_attention
    seen: Any = visible(operands.mask)
    *lead, _, _, _ = operands.query.shape
    lengths = None
    if seen.lengths is not None:
        lengths = jnp.broadcast_to(seen.lengths[..., 0, 0, 0], lead).reshape(-1).astype(jnp.int32)

    def attend(query: Array, key: Array, value: Array) -> Array:
        swapped = (x.reshape(-1, *x.shape[-3:]).swapaxes(1, 2) for x in (query, key, value))
        out, _ = dot_product_attention(
            *swapped,
            scale=plan.scale,
            is_causal=seen.causal,
            key_value_seq_lengths=None if lengths is None else jnp.maximum(lengths, 1),
            local_window_size=None if seen.left is None else (seen.left, 0),
            implementation=JAX_NN_IMPLEMENTATION,
            return_residual=True,  # as its own forward for the gradient does: the two calls are one to the compiler
        )
        if lengths is not None:
            out = jnp.where((lengths > 0)[:, None, None, None], out, 0)
        return out.swapaxes(1, 2).reshape(query.shape)

    return attend


def _quarantined(operands: Operands, plan: Plan) -> tuple[Operands, Array]:
    """The operands with 0 for what is not finite or too large, in full leading axes; and the rows that attend to it."""
    lead = plan.leading(operands)
    arrays = [jnp.broadcast_to(x, (*lead, *x.shape[-3:])) for x in operands[:3]]
    largest = min(LARGEST, math.sqrt(LARGEST_SCORE / (arrays[0].shape[-1] * plan.scale)))
    limits = largest, largest, LARGEST
    queries, keys, values = (_large(x, limit) for x, limit in zip(arrays, limits, strict=True))
    whole = operands._replace(query=arrays[0], key=arrays[1], value=arrays[2])

    bad_rows = queries | _that_see(keys | values, whole)
    query, key, value = (jnp.where(_small(x, limit), x, 0) for x, limit in zip(arrays, limits, strict=True))
    return whole._replace(query=query, key=key, value=value), bad_rows


def _that_see(keys: Array, operands: Operands) -> Array:
    """The rows (..., N, T, 1) that may attend to one of these keys. The keys a row sees are one range [first, last)."""
    (N, T), (G, S) = operands.query.shape[-3:-1], keys.shape[-3:-1]
    seen: Any = visible(operands.mask)
    counts = jnp.pad(jnp.cumsum(keys, axis=-2, dtype=jnp.int32), [(0, 0)] * (keys.ndim - 2) + [(1, 0), (0, 0)])
    rows = jnp.arange(T, dtype=jnp.int32).reshape(*[1] * (keys.ndim - 2), T, 1)
    first, last = jnp.zeros_like(rows), jnp.full_like(rows, S)
    if seen.causal:
        last = jnp.minimum(last, rows + 1)
    if seen.left is not None:
        first = jnp.clip(rows - seen.left, 0, S)
    if seen.lengths is not None:
        last = jnp.minimum(last, seen.lengths)
    ends = (jnp.broadcast_to(x, (*keys.shape[:-2], T, 1)) for x in (jnp.maximum(first, last), first))
    found = [jnp.take_along_axis(counts, x, axis=-2) for x in ends]
    return jnp.repeat(found[0] > found[1], N // G, axis=-3)


def _may_overflow(dout: Array, operands: Operands) -> Array:
    """The rows in which the gradient of a score may be too large for the dtype of the operands.

    It is at most ``2 |dout_i| |v_j|``, and cuDNN rounds it to that dtype.
    """
    lengths = [jnp.sqrt(jnp.sum(x.astype(dout.dtype) ** 2, -1, keepdims=True)) for x in (dout, operands.value)]
    longest = jnp.max(lengths[1], axis=-2, keepdims=True)
    longest = jnp.repeat(longest, dout.shape[-3] // longest.shape[-3], axis=-3)
    limit = float(jnp.finfo(operands.query.dtype).max) / 2
    return ~(2 * lengths[0] * longest < limit)


def _small(x: Array, limit: float) -> Array:
    """Mark where a number is finite and below the limit."""
    return jnp.abs(x.astype(jnp.float32)) < limit


def _large(x: Array, limit: float) -> Array:
    """Mark the rows that hold a number that is not finite or not below the limit."""
    return ~_are(_small(x, limit))


def _are(x: Array, reduce: Callable[..., Array] = jnp.all) -> Array:
    return reduce(x, axis=-1, keepdims=True)
