"""``attendax.explain``: the backend of a call, and why; its tiles, FLOPs and memory (L16)."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendax.checks import is_traced
from attendax.dispatch import attention
from attendax.kernels import cudnn, gpu, native
from attendax.kernels.backends import default_platform, on
from attendax.kernels.blockwise.partition import EMPTY, FULL, PARTIAL, grid_of, kinds_of_tiles
from attendax.kernels.blockwise.tiles import Grid
from attendax.kernels.call import Call, checked_call, is_symbolic
from attendax.kernels.native import counting
from attendax.kernels.operands import Operands, Plan, public
from attendax.masks import ArrayLike, Mask
from attendax.scores import ScoreModifier
from attendax.sharding.layout import Layout, choice_for, layout_of
from attendax.sharding.strategy import Choice

BY_DEFAULT = "the default if 'native' cannot run the call; memory O(T + S)"
ON_A_GPU = "the default on this platform; memory O(T + S)"
UNMEASURED = "the default on this platform, in tiles of sizes not yet measured on such a device; memory O(T + S)"
SYMBOLIC = "T or S is symbolic (jax.export), so all T x S scores are one tile"
NAMES = ("head", "heads"), ("query", "queries"), ("key", "keys")
BY_NAME = {"cudnn": cudnn, "triton": gpu}  # never chosen
DENSE = "requested; it builds all T x S scores"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A report of how a call of ``attention`` runs. Print it.

    Attributes:
        implementation: "native", "blockwise", "dense", "cudnn" or "triton".
        reason: the reason for this choice.
        tile: query heads, queries and keys of a tile; None for "dense", "cudnn" and "triton".
        tiles: numbers of tiles that are "open" (all pairs allowed), "masked" and "skipped"; None if they depend on
            traced arrays, or without tiles.
        flops: FLOPs of both products of the forward, without skipped tiles; an upper bound if ``tiles`` is None. For
            "cudnn" and "triton" those of all T x S pairs.
        flops_skipped: FLOPs of all T x S pairs, less ``flops``.
        temporary_bytes: temporaries of the compiled forward on one device, by XLA's own analysis. The gradient needs
            more.
        impossible: each other implementation, with the reason why it was not chosen; some can be chosen by name.
        devices: if arrays lie on Explicit mesh axes, the number of devices that "batch", "heads", "queries" and "keys"
            are divided over; else None. Tiles and FLOPs are those of the whole call.
        across: if keys are divided, the strategy, its reason, and what a device receives; else None.
        thread_bytes: upper bound of the scratch memory of each thread in "native", beside XLA's; None for the others.
    """

    implementation: str
    reason: str
    tile: tuple[int, int, int] | None
    tiles: dict[str, int] | None
    flops: int
    flops_skipped: int
    temporary_bytes: int
    impossible: dict[str, str]
    devices: dict[str, int] | None = None
    across: Choice | None = None
    thread_bytes: int | None = None

    def __str__(self) -> str:
        lines = [f"attention by {self.implementation!r}: {self.reason}"]
        if self.tile:
            sizes = (f"{n} {one if n == 1 else more}" for n, (one, more) in zip(self.tile, NAMES, strict=True))
            lines.append(f"  tile         {' x '.join(sizes)}")
            shown = "known when it runs, from the values of the mask"
            if self.tiles:
                shown = ", ".join(f"{count} {kind}" for kind, count in self.tiles.items())
            lines.append(f"  tiles        {shown}")
        bound = "" if self.tiles or not self.tile else "at most "
        total = self.flops + self.flops_skipped
        if not isinstance(self.flops, int):
            lines.append(f"  FLOPs        {self.flops}")
            return "\n".join(lines + [f"  not {name!r}: {reason}" for name, reason in self.impossible.items()])
        of_all = f"{self.flops:,} of {total:,} ({self.flops / total:.1%})" if self.flops_skipped else f"{self.flops:,}"
        skipped = "; the others are skipped" if self.flops_skipped else "" if bound else ", none skipped"
        lines.append(f"  FLOPs        {bound}{of_all}{skipped}")
        lines.append(f"  temporaries  {self.temporary_bytes:,} bytes")
        if self.thread_bytes is not None:
            lines.append(f"  scratch      less than {self.thread_bytes / 2**20:g} MiB for each thread")
        if self.devices:
            shown = ", ".join(f"{name} by {count}" for name, count in self.devices.items() if count > 1)
            lines.append(f"  devices      {shown or 'nothing is divided'}")
        lines += [] if self.across is None else [f"  {line}" for line in str(self.across).splitlines()]
        lines += [f"  not {name!r}: {reason}" for name, reason in self.impossible.items()]
        return "\n".join(lines)


@public
def explain(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    score_mod: ScoreModifier | None = None,
    scale: float | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    return_lse: bool = False,
    implementation: str | None = None,
) -> Explanation:
    """Explain how ``attention`` would run these arguments. The call is compiled, for its memory, but not run.

    Args:
        query, key, value, mask, bias, score_mod, scale, dropout_rate, dropout_rng, return_lse, implementation: as in
            ``attention``; every array may be a ``jax.ShapeDtypeStruct``, also one with a sharding.

    Returns:
        ``Explanation``.

    Raises:
        TypeError, ValueError, NotImplementedError: as ``attention``.

    Example:
        >>> from attendax import masks
        >>> x = jax.ShapeDtypeStruct((1, 4, 4096, 64), jnp.float32)
        >>> explanation = explain(x, x, x, mask=masks.causal())
        >>> explanation.implementation in ("native", "blockwise"), explanation.flops_skipped > 0
        (True, True)
    """
    if isinstance(mask, Mask) and _is_known(mask):
        mask.check(query.shape[-2], key.shape[-2])
    leaves, tree = jax.tree.flatten((query, key, value, mask, bias, score_mod, dropout_rng))
    places = [k for k, x in enumerate(leaves) if hasattr(x, "shape") and hasattr(x, "dtype")]
    shapes = [_shape_of(leaves[k]) for k in places]
    plans = []
    shares: list[Any] = []

    def fill(arrays):
        by_place = dict(zip(places, arrays, strict=True))
        return jax.tree.unflatten(tree, [by_place.get(k, x) for k, x in enumerate(leaves)])

    def settle(arrays):
        *first, rng = fill(arrays)
        options: Any = scale, dropout_rate, rng, implementation, return_lse
        call = checked_call("attention", *first, *options)
        plans.append(call.plan)
        shares.append(_share(call.operands, layout_of(*first[:2])))
        return call.operands

    def attend(arrays):
        query, key, value, mask, bias, score_mod, rng = fill(arrays)
        options = {"scale": scale, "dropout_rate": dropout_rate, "dropout_rng": rng, "return_lse": return_lse}
        options |= {"mask": mask, "bias": bias, "score_mod": score_mod, "implementation": implementation}
        return attention(query, key, value, **options)

    operands = jax.eval_shape(settle, shapes)
    if is_symbolic(*operands[:2]):
        pairs = math.prod(operands.query.shape[:-1]) * operands.key.shape[-2]
        flops: Any = 2 * (operands.query.shape[-1] + operands.value.shape[-1]) * pairs
        others = dict.fromkeys(("native", "blockwise"), "its tiles have sizes that are known")
        return Explanation("dense", (implementation and "requested") or SYMBOLIC, None, None, flops, 0, 0, others)
    compiled = jax.jit(attend).lower(shapes).compile()
    memory: Any = compiled.memory_analysis()
    plan = on(plans[0], default_platform())
    runs = "native" if native.TARGETS[0] in (compiled.as_text() or "") else implementation or "blockwise"
    others = {name: of.verdict(operands, plans[0]) for name, of in BY_NAME.items() if name != runs}
    others |= {} if runs == "native" else {"native": native.verdict(operands, plan, implementation)}
    explanation = _explanation(runs, implementation, mask, Call(operands, plan))
    devices, across = shares[0]
    rest: dict[str, Any] = {"impossible": others, "devices": devices, "across": across}
    return dataclasses.replace(explanation, temporary_bytes=memory.temp_size_in_bytes, **rest)


def _explanation(runs: str, chosen: str | None, mask: Mask | ArrayLike | None, call: Call) -> Explanation:
    """The tiles and FLOPs of a call that the backend ``runs``; the values of the user's mask may be known."""
    operands, plan = call
    query, key, value = operands[:3]
    wide = 2 * (query.shape[-1] + value.shape[-1])  # FLOPs of a pair
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    if runs in BY_NAME or runs == "dense" or pairs == 0:
        reason = "there are no scores" if pairs == 0 else BY_NAME[runs].ASKED_FOR if runs in BY_NAME else DENSE
        return Explanation(runs, reason, None, None, wide * pairs, 0, 0, {})
    in_tiles = {"cpu": BY_DEFAULT, "cuda": ON_A_GPU}.get(plan.platform, UNMEASURED)
    default = native.BY_DEFAULT if runs == "native" else in_tiles
    tile, tiles, computed = (_native_work if runs == "native" else _work)(mask, operands, plan)
    scratch = counting.scratch_bytes(operands) if runs == "native" else None
    skipped = wide * max(0, pairs - computed)
    reason = "requested" if chosen else default
    return Explanation(runs, reason, tile, tiles, wide * computed, skipped, 0, {}, thread_bytes=scratch)


def _shape_of(x: ArrayLike | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array, with its sharding if its type says so."""
    known = isinstance(x, jax.ShapeDtypeStruct) or (isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer))
    lies = getattr(x if known else jax.typeof(x), "sharding", None)
    explicit = getattr(getattr(lies, "mesh", None), "explicit_axes", None)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=lies if explicit else None)


def _share(
    operands: Operands, found: tuple[Layout, jax.sharding.AbstractMesh] | None
) -> tuple[dict[str, int] | None, Choice | None]:
    """The division of a call: over how many devices, and by which strategy."""
    if found is None:
        return None, None
    layout, mesh = found
    sizes = dict(mesh.shape)
    batch = sum(layout.lead, ())
    axes = {"batch": batch, "heads": layout.heads, "queries": layout.queries, "keys": layout.keys}
    counts = {name: math.prod(sizes[axis] for axis in each) for name, each in axes.items()}
    return counts, choice_for(operands, layout, sizes) if layout.keys else None


def _native_work(
    mask: Mask | ArrayLike | None, operands: Operands, plan: Plan
) -> tuple[tuple[int, int, int], dict[str, int] | None, int]:
    """Tiles and pairs as ``_work`` gives them, of the kernel of a CPU."""
    tile, rank = counting.tile_of(operands), operands.query.ndim
    if mask is not None and not _is_known(mask):
        return tile, None, math.prod(operands.query.shape[:-1]) * operands.key.shape[-2]
    known = None if mask is None else jax.tree.map(np.asarray, _in_rank(mask, rank))
    return tile, *counting.tiles_of(operands, known)


def _work(
    mask: Mask | ArrayLike | None, operands: Operands, plan: Plan
) -> tuple[tuple[int, int, int], dict[str, int] | None, int]:
    """The largest tile, how many tiles of each kind there are, and how many pairs are computed."""
    grid = grid_of(operands, plan)
    tiles = _tiles(mask, grid)
    count = tiles["open"] + tiles["masked"] if tiles else grid.chunks * grid.row_blocks * grid.column_blocks
    return (math.prod(grid.heads), grid.rows, grid.columns), tiles, count * math.prod(grid.shape)


def _tiles(mask: Mask | ArrayLike | None, grid: Grid) -> dict[str, int] | None:
    if mask is not None and not _is_known(mask):
        return None
    kinds = np.asarray(kinds_of_tiles(None if mask is None else _in_rank(mask, len(grid.shape)), grid, ask=True))
    repeated = grid.chunks // kinds.shape[0]
    names = {"open": FULL, "masked": PARTIAL, "skipped": EMPTY}
    return {name: int((kinds == kind).sum()) * repeated for name, kind in names.items()}


def _in_rank(mask: Mask | ArrayLike, rank: int) -> Mask:
    return (mask if isinstance(mask, Mask) else Mask("dense", (jnp.asarray(mask),))).of_rank(rank)


def _is_known(mask: Mask | ArrayLike) -> bool:
    return all(isinstance(x, np.ndarray | jax.Array) and not is_traced(x) for x in jax.tree.leaves(mask))
