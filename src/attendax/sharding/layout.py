"""A call of whole arrays on a mesh: each device attends with its batches, heads and tokens, inside ``shard_map``."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec as P

from attendax.checks import fail
from attendax.kernels.call import Call, with_traced
from attendax.kernels.derivatives import attend
from attendax.kernels.functions import has_function
from attendax.kernels.numerics import varying
from attendax.kernels.operands import Operands, Positions, Results
from attendax.masks import ArrayLike, Mask

from .in_shard_map import attend_across_devices
from .strategy import Choice, choose

Axes = tuple[str, ...]
Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


class Layout(NamedTuple):
    """Mesh axes that divide the leading axes, the heads, the queries and the keys; () for none."""

    lead: tuple[Axes, ...]
    heads: Axes
    queries: Axes
    keys: Axes

    def divides_heads(self, sizes: Mapping[str, int]) -> bool:
        """Tell whether a device has some of the batches or heads only, of mesh axes of these sizes."""
        return any(sizes[name] > 1 for axes in (*self.lead, self.heads) for name in axes)

    def names(self) -> frozenset[str]:
        """All mesh axes of the layout."""
        return frozenset(name for axes in (*self.lead, *self[1:]) for name in axes)


def layout_of(query: ArrayLike, key: ArrayLike) -> tuple[Layout, jax.sharding.AbstractMesh] | None:
    """The layout from the Explicit mesh axes in the types of query and key, and the mesh; None if nothing is divided.

    Keys lie as queries do; their tokens are divided if their own type says so.
    """
    found = [[()] * (3 - x.ndim) + explicit_axes(x) for x in (query, key)]
    if not any(map(any, found)):
        return None
    (*lead, heads, queries, _), (*_, keys, _) = found
    return Layout(tuple(lead), heads, queries, keys if keys == queries else ()), jax.typeof(query).sharding.mesh


def refuse_divided_tokens(function: str, query: ArrayLike, key: ArrayLike) -> None:
    """Refuse divided tokens where all of a head are needed at once: for weights and their statistics."""
    found = layout_of(query, key)
    divided = () if found is None else found[0].queries or found[0].keys
    if divided:
        sentence = f"it needs all tokens of a head; here they are divided over {', '.join(divided)}."
        advice = "Divide batches or heads, or gather: jax.sharding.reshard(x, jax.P(None))."
        fail(NotImplementedError, function, sentence, advice=advice)


def explicit_axes(x: ArrayLike) -> list[Axes]:
    """The Explicit mesh axes that divide each axis of an array."""
    sharding = jax.typeof(x).sharding
    names = [names_in(entry) for entry in sharding.spec] + [()] * (x.ndim - len(sharding.spec))
    return [tuple(name for name in each if name in sharding.mesh.explicit_axes) for each in names]


def names_in(entry: str | Sequence[str] | None) -> Axes:
    """The mesh axes of an entry of a partition spec: None, a name, or several."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def attend_by_layout(
    call: Call, layout: Layout, mesh: Mesh | None, strategy: str | None = None,
    positions: tuple[Array, ...] | None = None, *, reshard: bool = False,
) -> Results:  # fmt: skip
    """The results of a call of whole arrays, whose functions are not traced yet.

    Args:
        call: made of them.
        layout: how it is divided.
        mesh: on which; None for that of the context.
        strategy: where keys are divided, as in ``attend_from_shards``.
        positions: of all queries and of all keys, (T,) and (S,); None: in order.
        reshard: whether the arrays have to be brought into the layout first, as Explicit axes ask for.
    """
    operands, plan = call
    sizes = dict((mesh or jax.sharding.get_abstract_mesh()).shape)
    _refuse_functions(operands, layout, sizes)
    operands = _enough_key_heads(operands, math.prod(sizes[name] for name in layout.heads))
    strategy = strategy or (choice_for(operands, layout, sizes).strategy if layout.keys else None)
    leaves, tree = jax.tree.flatten((operands, positions))
    of_tokens = None if positions is None else (P(layout.queries or None), P(layout.keys or None))
    specs = jax.tree.leaves((_specs(operands, layout), of_tokens))
    if reshard:
        leaves = [jax.sharding.reshard(x, spec) for x, spec in zip(leaves, specs, strict=True)]

    # The gradient of an array that devices share is a sum over them, in float32 (L8). A sum in bfloat16 would end the
    # process if some mesh axes are left to XLA: its CPU compiler fails to widen it.
    kinds = [x.dtype for x in leaves]
    shared = [_is_shared(x, spec, layout) for x, spec in zip(leaves, specs, strict=True)]
    leaves = [x.astype(jnp.float32) if is_shared else x for x, is_shared in zip(leaves, shared, strict=True)]

    def here(*leaves: Array) -> Results:
        each = zip(leaves, kinds, shared, strict=True)
        leaves = tuple(varying(x, layout.names()).astype(kind) if is_shared else x for x, kind, is_shared in each)
        operands, positions = jax.tree.unflatten(tree, leaves)
        operands = operands._replace(positions=_positions(operands, layout, positions))
        if layout.keys:
            return attend_across_devices(Call(operands, plan), layout.keys, str(strategy))
        return attend(with_traced(operands), plan)

    if any(jax.typeof(x).manual_axis_type.varying for x in leaves):
        here = jax.checkpoint(here)  # inside another shard_map, JAX can save only arguments as residuals
    out: Any = spec_of(*layout.lead, layout.heads, layout.queries, ())
    divided = jax.shard_map(
        here, mesh=None if reshard else mesh, in_specs=tuple(specs), out_specs=out, axis_names=set(layout.names())
    )
    explicit = mesh.explicit_axes if reshard and mesh is not None else ()
    if others := tuple(name for name in explicit if name not in layout.names()):
        # vmap may divide its axis over these; inside, XLA takes care of that.
        divided = jax.sharding.auto_axes(divided, axes=others, out_sharding=Results(out, out, out, out))
    return jax.jit(divided)(*leaves)  # outside jit, JAX would trace it anew for each operation


def _positions(operands: Operands, layout: Layout, positions: tuple[Array, ...] | None) -> Positions:
    N, T, S = *operands.query.shape[-3:-1], operands.key.shape[-2]
    first = [lax.axis_index(axes) * size if axes else None for axes, size in zip(layout[1:], (N, T, S), strict=True)]
    return Positions(*first) if positions is None else Positions(first[0], *positions)


def _enough_key_heads(operands: Operands, count: int) -> Operands:
    """Key heads repeated until the devices of the heads can share them."""
    G = max(1, operands.key.shape[-3])
    repeats = math.lcm(G, count) // G
    if repeats == 1:
        return operands
    return operands._replace(key=jnp.repeat(operands.key, repeats, -3), value=jnp.repeat(operands.value, repeats, -3))


def choice_for(operands: Operands, layout: Layout, sizes: dict[str, int]) -> Choice:
    """The strategy for keys that are divided, of mesh axes of these sizes."""
    operands = _enough_key_heads(operands, math.prod(sizes[name] for name in layout.heads))
    return choose(_share(operands, layout, sizes), math.prod(sizes[name] for name in layout.keys))


def _share(operands: Operands, layout: Layout, sizes: dict[str, int]) -> Operands:
    """The operands of one device, as shapes."""

    def part(x: Array, spec: P) -> jax.ShapeDtypeStruct:
        pairs = zip(x.shape, spec, strict=True)
        shape = (size // math.prod(sizes[name] for name in names_in(entry)) for size, entry in pairs)
        return jax.ShapeDtypeStruct(tuple(shape), x.dtype)

    leaves, tree = jax.tree.flatten(operands)
    each = zip(leaves, jax.tree.leaves(_specs(operands, layout)), strict=True)
    return jax.tree.unflatten(tree, [part(x, spec) if len(spec) else x for x, spec in each])


def _is_shared(x: Array, spec: P, layout: Layout) -> bool:
    """Tell whether devices share an array in half precision."""
    narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    return narrow and bool(layout.names() - {name for entry in spec for name in names_in(entry)})


def _specs(operands: Operands, layout: Layout) -> Any:
    """A partition spec for each leaf of the operands."""
    bias, score_mod, mask, dropout_keys = operands[3:7]
    tokens: Any = spec_of(*layout.lead, layout.heads, layout.keys, ())

    def pairs(x: Array, keys: Axes = (), queries: Axes = layout.queries) -> P:
        axes = (*layout.lead, layout.heads, queries, keys)
        return spec_of(*(() if size == 1 else axis for size, axis in zip(x.shape, axes, strict=True)))

    def of_part(part: Mask) -> Mask:
        if part.kind == "function":
            return dataclasses.replace(part, arrays=jax.tree.map(lambda _: P(), part.arrays))
        if part.kind == "blocks":  # of all queries and keys: their positions are looked up
            return dataclasses.replace(part, arrays=(pairs(part.arrays[0], queries=()),))
        keys = layout.keys if part.kind == "segments" else ()
        return dataclasses.replace(part, arrays=tuple(None if x is None else pairs(x, keys) for x in part.arrays))

    if score_mod is not None:
        leaves, tree = jax.tree.flatten(score_mod)
        roles = zip(score_mod.roles(), leaves, strict=True)
        score_mod = jax.tree.unflatten(tree, [pairs(x) if role == "pairs" else P() for role, x in roles])
    own: Any = spec_of(*layout.lead, layout.heads, layout.queries, ())
    of_bias: Any = None if bias is None else pairs(bias)
    of_dropout: Any = None if dropout_keys is None else tuple(map(pairs, dropout_keys))
    return Operands(own, tokens, tokens, of_bias, score_mod, None if mask is None else mask.map(of_part), of_dropout)


def spec_of(*axes: Axes) -> P:
    """The partition spec of axes, each divided by so many mesh axes."""
    return P(*(names[0] if len(names) == 1 else names or None for names in axes))


def _refuse_functions(operands: Operands, layout: Layout, sizes: dict[str, int]) -> None:
    """Refuse functions that read arrays of all batches and heads where a device has only some of these."""
    if not layout.divides_heads(sizes):
        return
    one = np.zeros((1, 1), np.int32)
    for part in [] if operands.mask is None else operands.mask.parts():
        if part.kind == "function" and jax.eval_shape(lambda x: x.allowed(one, one, jnp), part).ndim > 2:
            facts = "a mask's function differs between batches or heads that are divided."
            advice = "Write it out by mask.to_dense(T, S), or divide only the tokens."
            fail(NotImplementedError, "attention", facts, advice=advice)
    if has_function(operands.score_mod):
        facts = "the score_mod function may read all batches and heads, but these are divided, and so are the tokens."
        advice = "Divide only the tokens, or batches and heads without them."
        fail(NotImplementedError, "attention", facts, advice=advice)
