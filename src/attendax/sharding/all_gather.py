"""All-gather: every device gathers all keys, anew in each direction; their gradients are reduced and scattered."""

import sys

import jax.numpy as jnp
from jax import Array, lax

from attendax.kernels.backends import ACROSS_DEVICES
from attendax.kernels.derivatives import attend, pull, push
from attendax.kernels.numerics import vary_alike
from attendax.kernels.operands import KEY, VALUE, Cotangents, Operands, Plan, Results, Tangents, Wanted

from .shards import KeyShard, local_plan, local_shard, with_shard


def forward(operands: Operands, plan: Plan) -> Results:
    """The results over the keys of all devices."""
    return attend(_with_all_keys(operands, plan), local_plan(plan, partial=False))


def tangent(tangents: Tangents, operands: Operands, results: Results, plan: Plan) -> tuple[Array, ...]:
    """The tangents of out and lse."""
    dots = list(tangents)
    for k in (KEY, VALUE):
        if (dot := dots[k]) is not None:
            dots[k] = _gather(dot, -2, plan)
    return push(dots, _with_all_keys(operands, plan), results, local_plan(plan, partial=False))


def cotangent(grads: Cotangents, operands: Operands, results: Results, plan: Plan, wanted: Wanted) -> tuple[Array, ...]:
    """The transpose of ``tangent``."""
    count, shapes = lax.axis_size(plan.axis), list(wanted)
    for k in (KEY, VALUE):
        if (shape := shapes[k]) is not None:
            shapes[k] = *shape[:-2], shape[-2] * count, shape[-1]
    found = pull(grads, _with_all_keys(operands, plan), results, local_plan(plan, partial=False), shapes)
    used = [k for k, shape in enumerate(wanted) if shape is not None]
    summed = [_scatter(x, plan) if k in (KEY, VALUE) else x for k, x in zip(used, found, strict=True)]
    return tuple(vary_alike((summed, operands.query))[0])


def _with_all_keys(operands: Operands, plan: Plan) -> Operands:
    key, value, positions, ids = local_shard(operands)
    if positions is not None:
        # A scalar is a start offset. All keys are here now, so positions start at 0.
        positions = _gather(positions, 0, plan) if jnp.ndim(positions) else None
    key, value = (_gather(x, -2, plan) for x in (key, value))
    keys = KeyShard(key, value, positions, tuple(_gather(x, -1, plan) for x in ids))
    return with_shard(operands._replace(key=keys.key), keys, 0)


def _gather(x: Array, axis: int, plan: Plan) -> Array:
    return lax.all_gather(x, plan.axis, axis=axis % x.ndim, tiled=True)


def _scatter(x: Array, plan: Plan) -> Array:
    return lax.psum_scatter(x, plan.axis, scatter_dimension=x.ndim - 2, tiled=True)


ACROSS_DEVICES["all_gather"] = sys.modules[__name__]
