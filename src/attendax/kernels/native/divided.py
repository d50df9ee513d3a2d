"""The kernel in a program that XLA divides: every device calls it for its own batches, heads and queries.

XLA does not look into a custom call: it would gather all arrays, and every device would do all the work. So
``custom_partitioning`` tells XLA which axes may be divided (``_rule``), and what one device does in the division that
XLA chooses (``_partition``). Keys and widths are never divided: XLA gathers them. The positions of a device's rows
begin where its part begins. Devices exchange only sums: of the gradients of keys whose queries or query heads are on
several devices, and of a bias or a modifier that several devices share.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

# (..., N, T, .), (..., G, S, .), (..., N, .) and (..., .), axes full or 1; an array without an axis to divide
PAIRS, KEYS, HEADS, TEXTS, WHOLE = "pairs", "keys", "heads", "texts", "whole"


class Shape(NamedTuple):
    """The shape and dtype of a result, and the kind of its axes."""

    kind: str
    shape: tuple[int, ...]
    dtype: Any


class CustomCall(NamedTuple):
    """A custom call."""

    run: Callable[..., Sequence[Array]]  # (*arrays, types=(jax.ShapeDtypeStruct, ...)); the same on any part
    kinds: tuple[str, ...]  # of the arrays; the second is a key
    results: tuple[Shape, ...]  # the first is of the kind PAIRS, and all of its axes are full
    start: int | None  # the number of the array that has the position of the first query; None: queries stay together
    settings: bytes  # that ``run`` has: part of the program's text, which is the key of a cache of compiled programs


class Axes(NamedTuple):
    """The axes of a call: leading axes, heads and queries, each with its size or the mesh axes that divide it."""

    lead: tuple[Any, ...]
    heads: Any
    groups: Any
    queries: Any

    def of(self, kind: str) -> tuple[Any, ...]:
        """The axes of an array of a kind, except the last one or two."""
        own = {PAIRS: (self.heads, self.queries), KEYS: (self.groups,), HEADS: (self.heads,)}
        return () if kind == WHOLE else (*self.lead, *own.get(kind, ()))


def run(call: CustomCall, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The results of a call, on one device or on several."""
    settings = np.frombuffer(call.settings, np.uint8)
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in call.results]

    @custom_partitioning
    def everywhere(_: Array, *arrays: Array) -> tuple[Array, ...]:
        return tuple(call.run(*arrays, types=types))

    *lead, heads, queries, _ = call.results[0].shape
    sizes = Axes(tuple(lead), heads, arrays[1].shape[-3], queries)
    shapes = [x.shape for x in arrays]
    partition = functools.partial(_partition, call, sizes, shapes)
    everywhere.def_partition(partition, decode_shardings=False, sharding_rule=_rule(call, sizes, shapes))
    return tuple(everywhere(settings, *arrays))


def _rule(call: CustomCall, sizes: Axes, shapes: Sequence[tuple[int, ...]]) -> Any:
    """The axes that may be divided, as a text like einsum's: axes of the same name are divided equally."""
    grouped = 1 < sizes.groups < sizes.heads
    heads = "(g r)" if grouped else "h"
    groups = "g" if grouped else "h" if sizes.groups == sizes.heads else ""
    names = Axes(tuple(f"b{k}" for k in range(len(sizes.lead))), heads, groups, "" if call.start is None else "t")
    count = iter(range(10**6))

    def text(shape: tuple[int, ...], kind: str) -> str:
        if not shape:
            return ""
        known = zip(shape, sizes.of(kind), names.of(kind), strict=False)
        entries = [name if name and size == full > 1 else f"o{next(count)}" for size, full, name in known]
        return " ".join([*entries, *(f"o{next(count)}" for _ in shape[len(entries) :])])

    inputs = ["o_settings", *map(text, shapes, call.kinds)]
    results = [text(x.shape, x.kind) for x in call.results]
    factors = {"r": sizes.heads // sizes.groups} if grouped else {}
    rule = f"{', '.join(inputs)} -> {', '.join(results)}"
    return lambda *_: (rule, factors)


def _partition(
    call: CustomCall,
    sizes: Axes,
    shapes: Sequence[tuple[int, ...]],
    _: Mesh,
    inputs: Any,  # of each array its shape, with a sharding
    wanted: Any,  # the same of each result
) -> tuple[Any, ...]:
    """The mesh, the function of one device, and the shardings of results and arrays, for custom_partitioning."""
    mesh, axes = _division(wanted[0].sharding, sizes)
    axes = axes if call.start is not None else axes._replace(queries=())

    def spec(shape: tuple[int, ...], kind: str) -> P:
        each = zip(shape, sizes.of(kind), axes.of(kind), strict=False)
        return P(*(names if size == full else None for size, full, names in each), *[None] * (len(shape) > 0))

    of_results = [spec(x.shape, x.kind) for x in call.results]
    of_arrays = [P(None), *map(spec, shapes, call.kinds)]
    every = {name for names in axes.of(PAIRS) for name in names}
    placed = functools.partial(NamedSharding, mesh)
    pairs = list(zip(call.results, of_results, strict=True))
    types = [jax.ShapeDtypeStruct(placed(p).shard_shape(x.shape), x.dtype) for x, p in pairs]
    own_queries = sizes.queries // math.prod(mesh.shape[name] for name in axes.queries)

    def on_one_device(_: Array, *arrays: Array) -> tuple[Array, ...]:
        if call.start is not None and axes.queries:
            first = arrays[call.start] + lax.axis_index(axes.queries).astype(np.int32) * own_queries
            arrays = *arrays[: call.start], first, *arrays[call.start + 1 :]
        results = call.run(*arrays, types=types)
        each = ((x, tuple(sorted(every - _names(p)))) for x, p in zip(results, of_results, strict=True))
        return tuple(lax.psum(x, names) if names else x for x, names in each)

    return mesh, on_one_device, tuple(map(placed, of_results)), tuple(map(placed, of_arrays))


def _names(spec: P) -> set[str]:
    entries = [(entry,) if isinstance(entry, str) else entry or () for entry in spec]
    return {name for entry in entries for name in entry}


def _division(sharding: Sharding, sizes: Axes) -> tuple[Mesh, Axes]:
    """A mesh, and the mesh axes that divide each axis, for the sharding that XLA wants of the results."""
    rank = len(sizes.lead) + 3
    mesh, (*lead, heads, queries, _) = _mesh_of(sharding, rank)
    groups, shared = _of_heads(heads, mesh, sizes)

    def dividing(names: tuple[str, ...], size: int) -> tuple[str, ...]:
        return names if size % math.prod(mesh.shape[name] for name in names) == 0 else ()

    each = tuple(map(dividing, lead, sizes.lead))
    return mesh, Axes(each, groups + shared, groups, dividing(queries, sizes.queries))


def _of_heads(names: tuple[str, ...], mesh: Mesh, sizes: Axes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The mesh axes that divide the key heads, and those that divide the query heads of one key head."""
    count = [math.prod(mesh.shape[name] for name in names[:k]) for k in range(len(names) + 1)]
    dividing_count = max(k for k, parts in enumerate(count) if sizes.groups % parts == 0)
    if dividing_count < len(names) and count[dividing_count] == sizes.groups and sizes.heads % count[-1] == 0:
        return names[:dividing_count], names[dividing_count:]
    return names[:dividing_count], ()


def _mesh_of(sharding: Sharding, rank: int) -> tuple[Mesh, list[tuple[str, ...]]]:
    """A mesh of axes of prime size, in XLA's order of devices, and which of them divide each axis of an array.

    An axis that no mesh describes is not divided.
    """
    size = len(sharding.device_set)
    blocks = sharding.devices_indices_map((size,) * rank)
    devices = list(blocks)
    starts = np.array([[part.indices(size)[0] for part in blocks[device]] for device in devices])
    lengths = [len(range(*part.indices(size))) for part in blocks[devices[0]]]
    places = starts // lengths  # (devices, rank): the number of the part that a device has
    sizes: list[int] = []
    moved: list[tuple[int, int]] = []  # the axis of the array, and by how many parts a step leads on
    stride = 1
    while stride < size:
        for prime in _primes(size // stride):
            steps = places[: stride * prime : stride] - places[0]
            along = np.flatnonzero(steps[1])
            if len(along) < 2 and np.array_equal(steps, np.outer(np.arange(prime), steps[1])):
                break
        sizes.insert(0, prime)
        moved.insert(0, (along[0], steps[1][along[0]]) if len(along) else (-1, 0))
        stride *= prime
    names = [f"axis{k}" for k in range(len(sizes))]
    mesh = Mesh(np.array(devices).reshape(sizes), names)
    entries = [_ordered(names, moved, axis) for axis in range(rank)]
    described = NamedSharding(mesh, P(*entries)).devices_indices_map((size,) * rank)
    return mesh, entries if all(described[x] == blocks[x] for x in devices) else [()] * rank


def _ordered(names: list[str], moved: list[tuple[int, int]], axis: int) -> tuple[str, ...]:
    """The mesh axes along which the number of the part of an axis grows, the largest step first."""
    steps = [(step, name) for name, (along, step) in zip(names, moved, strict=True) if along == axis]
    return tuple(name for _, name in sorted(steps, reverse=True))


def _primes(count: int) -> list[int]:
    """The prime factors of a number, the largest first."""
    return [p for p in range(count, 1, -1) if count % p == 0 and all(p % k for k in range(2, p))]
