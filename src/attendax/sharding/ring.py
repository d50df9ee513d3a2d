"""Keys travel round a ring of devices; each takes its queries with the keys that are its guests (Liu et al. 2023).

The results over all keys are a union of the parts (L9). Tangent and cotangent are sums over the keys once maximum and
sum of a row are known; the gradients of keys and values travel with them, and one hop more, home.
"""

import sys
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from attendax.kernels.backends import ACROSS
from attendax.kernels.derivatives import attend, pull, push
from attendax.kernels.not_finite import is_read
from attendax.kernels.numerics import sums_of_products, vary_alike
from attendax.kernels.online_softmax import union
from attendax.kernels.operands import KEY, REST, VALUE, Operands, Plan, Results

from .blocks import (
    around,
    local,
    meeting,
    of_block,
    rounded,
    rows_of,
    sent_on,
    shapes_of_block,
    travellers,
)


def forward(operands: Operands, plan: Plan) -> Results:
    """The results over the keys of all devices."""
    of_part = local(plan, partial=True)
    widths, neutral = (operands.value.shape[-1], 1, 1), (0, -jnp.inf, 0)
    empty = (jnp.full(rows_of(operands, plan, n), x, operands.wide()) for n, x in zip(widths, neutral, strict=True))

    def work(results, guests, owner):
        return union(results, attend(meeting(operands, guests, owner), of_part))

    return around(plan, *vary_alike((travellers(operands), Results(*empty))), work)


def tangent(tangents: Any, operands: Operands, results: Results, plan: Plan) -> tuple[Array, ...]:
    """How out and lse move."""
    of_part = local(plan, partial=True)
    guests = travellers(operands), (tangents[KEY], tangents[VALUE])
    nothing = tuple(jnp.zeros(rows_of(operands, plan, n), operands.wide()) for n in (operands.value.shape[-1], 1))

    def work(summed, guests, owner):
        held, dots = guests
        dots = of_block(operands, tangents, dots, owner)
        found = push(dots, meeting(operands, held, owner), results, of_part)
        return tuple(x + y for x, y in zip(summed, found, strict=True))

    return around(plan, *vary_alike((guests, nothing)), work)


def cotangent(grads: Any, operands: Operands, results: Results, plan: Plan, wanted: Any) -> tuple[Array, ...]:
    """The transpose of ``tangent``."""
    of_part, (dout, dlse) = local(plan, partial=True), grads
    # A block is told delta itself: out is 0, and dlse is -delta.
    delta = jnp.where(is_read(dout, dlse), sums_of_products(dout, results.out) - dlse, 0)
    known, given = results._replace(out=jnp.zeros_like(results.out)), (dout, -delta)
    used = [k for k, shape in enumerate(wanted) if shape is not None]
    size, shapes = operands.key.shape[-2], shapes_of_block(operands, wanted)
    by_columns = {REST} if operands.bias is not None and shapes[REST] is not None and wanted[REST][-1] > 1 else set()

    def work(found, guests, owner):
        parts = pull(given, meeting(operands, guests, owner), known, of_part, shapes)
        pairs = zip(used, found, parts, strict=True)
        return [_put(x, part, owner * size) if k in by_columns else x + part for k, x, part in pairs]

    def along(found):
        return [sent_on(x, plan) if k in (KEY, VALUE) else x for k, x in zip(used, found, strict=True)]

    nothing = [jnp.zeros(wanted[k], operands.wide()) for k in used]
    guests, nothing = _alike(operands, travellers(operands), nothing)
    found = around(plan, guests, nothing, work, along=along)
    return rounded(along(found), operands, plan, wanted)


def _alike(operands: Operands, *trees: Any) -> Any:
    """The trees, said to vary wherever an operand does."""
    return vary_alike((*trees, operands.query))[:-1]


def _put(buffer: Array, part: Array, start: Any) -> Array:
    return lax.dynamic_update_slice_in_dim(buffer, part.astype(buffer.dtype), start, buffer.ndim - 1)


ACROSS["ring"] = sys.modules[__name__]
