"""Calls of a sequence on several devices, and what is right for them: the specification on the whole sequence."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from attendax import attention, masks, sharding

B, N, G, D, V = 2, 8, 2, 5, 3
TOKENS, ROWS = P(None, None, "seq"), P(None, None, "seq", None)
RNG = np.array([3, 4], np.uint32)


def mesh_of(devices):
    return jax.make_mesh((devices,), ("seq",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


def arrays_of(rng, T, heads=N, groups=G, dtype=np.float64):
    sizes = ((heads, D), (groups, D), (groups, V))
    return [rng.normal(size=(B, n, T, width)).astype(dtype) for n, width in sizes]


def turned(x, devices, order, *axes):
    """An array with its axes of tokens in the order of the devices."""
    for axis in axes:
        x = np.asarray(sharding.zigzag(x, devices, axis)) if order == "zigzag" and x.shape[axis] > 1 else x
    return x


def placed(options, devices, order):
    """The options as a pytree of arrays in the order of the devices, its partition, and how to put it together."""

    def of_part(part):
        if part.kind == "segments":
            return masks.segments(*(turned(x, devices, order, -1) for x in part.arrays))
        return masks.dense(turned(part.arrays[0], devices, order, -1, -2)) if part.kind == "dense" else part

    def partition(part):
        rows = {"segments": P(None, "seq"), "dense": ROWS}.get(part.kind, P())
        return masks.Mask(part.kind, jax.tree.map(lambda _: rows, part.arrays), part.settings)

    given = {k: options[k] for k in ("mask", "bias", "score_mod") if k in options}
    rest = {k: x for k, x in options.items() if k not in given}
    specs = {}
    if "mask" in given:
        given["mask"] = given["mask"].map(of_part)
        specs["mask"] = given["mask"].map(partition)
    if "bias" in given:
        given["bias"], specs["bias"] = turned(given["bias"], devices, order, -1, -2), ROWS
    if "score_mod" in given:
        specs["score_mod"] = jax.tree.map(lambda _: P(), given["score_mod"])
    return given, specs, rest


def attend_by(devices, strategy, order, specs, rest, T, *, check_vma=True):
    """``attention`` of whole arrays in the order of the devices, by ``shard_map``."""

    def here(query, key, value, positions, given):
        where = {} if order == "in order" else {"positions": positions}
        where |= {"axis_name": "seq", "strategy": strategy, "return_lse": True}
        return sharding.attention(query, key, value, **where, **given, **rest)

    in_specs = TOKENS, TOKENS, TOKENS, P("seq"), specs
    outs = TOKENS, TOKENS
    run = jax.shard_map(here, mesh=mesh_of(devices), in_specs=in_specs, out_specs=outs, check_vma=check_vma)
    positions = sharding.positions(T, devices, "zigzag" if order == "zigzag" else "contiguous")
    return lambda query, key, value, given: run(query, key, value, positions, given)


def results_and_gradients(attend):
    """A program: out, lse, the gradients of query, key, value, of a bias, and of the arrays of a modifier."""

    def run(query, key, value, given, dout, dlse):
        moving = {name: given[name] for name in ("bias", "score_mod") if name in given}
        results, pull = jax.vjp(lambda *x: attend(*x[:3], given | x[3]), query, key, value, moving)
        return *results, *jax.tree.leaves(pull((dout, jnp.where(jnp.isfinite(results[1]), dlse, 0))))

    return run


def program(options):
    """The same of one call of ``attention`` with these options."""
    run = results_and_gradients(lambda *x: attention(*x[:3], return_lse=True, **x[3]))
    return lambda query, key, value, dout, dlse: run(query, key, value, options, dout, dlse)


def every_direction(attend):
    """A program: jvp, forward over reverse and reverse over reverse along directions, of query, key, value, bias."""

    def run(leaves, directions, given, w, u):
        def results(query, key, value, *bias):
            return attend(query, key, value, given | {"bias": bias[0]} if bias else given)

        def loss(*leaves):
            out, lse = results(*leaves)
            return (out * out * w).sum() + jnp.where(jnp.isfinite(lse), lse * lse * u, 0).sum()

        def slope(*leaves):
            return sum((g * d).sum() for g, d in zip(gradient(*leaves), directions, strict=True))

        every = tuple(range(len(leaves)))
        gradient = jax.grad(loss, every)
        pushed = jax.jvp(results, leaves, directions)[1]
        return pushed, jax.jvp(gradient, leaves, directions)[1], jax.grad(slope, every)(*leaves)

    return run


def in_order(found, devices, order):
    """Results and gradients in the original order."""
    if order != "zigzag":
        return list(map(np.asarray, found))
    (out, lse, *grads), rest = found[:5], found[5:]
    back = [sharding.restore(x, devices, axis) for x, axis in ((out, -2), (lse, -1), *((g, -2) for g in grads))]
    for x in rest:  # of a bias, or of an array of a modifier
        back.append(sharding.restore(sharding.restore(x, devices, -1), devices, -2) if np.ndim(x) == 4 else x)
    return list(map(np.asarray, back))
