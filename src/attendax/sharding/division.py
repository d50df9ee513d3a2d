"""The mesh axes that divide a call: from the types of its arrays (Explicit axes), or from ``sharding.on_mesh``.

``attendax.attention`` calls ``attend_by_types``, and ``sharding.attention_on_mesh`` calls ``attend_by_division``. Both
end in ``layout.attend_by_layout``, a ``shard_map`` over whole arrays. If keys are divided, that calls
``in_shard_map.attend_across_devices`` on each device, as ``sharding.attention`` does. A ``Division`` is what a user
says of all calls; a ``Layout`` is for the axes of one call.
"""

import math
from typing import Any, NamedTuple

import jax
from jax import Array

from attendax.checks import fail
from attendax.kernels.call import Call, with_traced
from attendax.kernels.derivatives import attend
from attendax.kernels.functions import has_function
from attendax.kernels.operands import Results
from attendax.masks import ArrayLike

from .layout import Axes, Layout, Mesh, attend_by_layout, layout_of, spec_of


class Division(NamedTuple):
    """The mesh axes that divide calls whose arrays' types name none; see ``sharding.on_mesh``."""

    mesh: Mesh | None  # None for that of the context
    batch: Axes
    heads: Axes
    queries: Axes
    keys: Axes
    strategy: str | None = None
    function: str = "attention"  # the name that errors give

    def layout(self, rank: int) -> Layout:
        """The layout of a call whose queries have this rank."""
        lead = (self.batch, *((),) * (rank - 4)) if rank > 3 else ()
        return Layout(lead, self.heads if rank > 2 else (), self.queries, self.keys)


DIVISION = jax.make_user_context(None)  # jit traces anew where it changes


def attend_by_types(call: Call, query: ArrayLike, key: ArrayLike) -> Results:
    """The results of a call whose functions are not traced yet, divided as the types of query and key say.

    So it is where mesh axes are Explicit; what is divided over Auto axes, XLA decides, unless there is a ``Division``.
    """
    found = layout_of(query, key)
    if found is None and DIVISION.value is not None:
        return attend_by_division(call, DIVISION.value, query.ndim)
    if found is None:
        return attend(with_traced(call.operands), call.plan)
    layout, mesh = found
    if jax.sharding.get_abstract_mesh().empty:  # no jax.set_mesh around the call: that of the types
        with jax.sharding.use_abstract_mesh(mesh):
            return attend_by_types(call, query, key)
    apart = has_function(call.operands.score_mod) and layout.divides_heads(mesh.shape)
    if apart and not (layout.queries or layout.keys):
        return _attend_over_auto_axes(call, layout)  # a function may read arrays of all batches and heads
    return attend_by_layout(call, layout, mesh, reshard=True)


def attend_by_division(
    call: Call, division: Division, rank: int, positions: tuple[Array, ...] | None = None
) -> Results:
    """The results of a call whose functions are not traced yet, of queries of a rank, divided as a user says."""
    layout, here = division.layout(rank), jax.sharding.get_abstract_mesh()
    mesh = _mesh_of(division, layout, here)
    query, key = call.operands.query, call.operands.key
    sizes = {"queries": (query.shape[-2], layout.queries), "keys": (key.shape[-2], layout.keys)}
    sizes |= {"heads": (query.shape[-3], layout.heads), "batches": (query.shape[0], sum(layout.lead[:1], ()))}
    for what, (size, axes) in sizes.items():
        count = math.prod((mesh or here).shape[axis] for axis in axes)
        if size % count:
            padded = what in ("queries", "keys")
            advice = "Pad them, and leave the padding out by masks.padding(lengths)." if padded else ""
            sentence = f"{size} {what} are not a multiple of {count} devices of {axes}."
            fail(ValueError, division.function, sentence, advice=advice)
    types = bool(here.explicit_axes)
    return attend_by_layout(call, layout, here if types else mesh, division.strategy, positions, reshard=types)


def _mesh_of(division: Division, layout: Layout, here: jax.sharding.AbstractMesh) -> Mesh | None:
    """The mesh of a division; None for that of the context, if they are equal except for the types of axes."""
    mesh = division.mesh
    if mesh is None or here.empty or here == mesh.abstract_mesh:
        return mesh
    if dict(mesh.shape) != dict(here.shape):
        sentence = f"mesh has axes {dict(mesh.shape)}, but the mesh around this call has {dict(here.shape)}."
        fail(ValueError, division.function, sentence, advice="Give it the mesh of set_mesh or shard_map.")
    for axis in here.manual_axes:
        if axis in layout.names():
            sentence = f"a shard_map around this call divides over axis {axis!r} already."
            advice = f"Leave it out, or call sharding.attention(..., axis_name={axis!r}) for tokens divided over it."
            fail(ValueError, division.function, sentence, advice=advice)
    return None


def _attend_over_auto_axes(call: Call, layout: Layout) -> Results:
    """Over Auto axes: XLA divides batches and heads."""
    leaves, tree = jax.tree.flatten(call.operands)

    def everywhere(*leaves: Array) -> Results:
        return attend(with_traced(jax.tree.unflatten(tree, leaves)), call.plan)

    rows: Any = spec_of(*layout.lead, layout.heads, (), ())
    out = Results(rows, rows, rows, rows)
    return jax.sharding.auto_axes(everywhere, axes=tuple(layout.names()), out_sharding=out)(*leaves)
