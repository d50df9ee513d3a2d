"""Which tiles a mask leaves out, and how loops run over the rest."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from attendax.masks import Mask

from .tiles import Grid, is_one

SKIPPED, MASKED, OPEN = 0, 1, 2


def once_more(function: Callable[..., Any], *arrays: Any) -> Any:
    """``function(*arrays)``, of which reverse mode keeps nothing: it is computed again there, tile by tile (L16)."""
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return function(*arrays)  # a checkpoint would trace, and compile each of its loops
    return jax.checkpoint(function, prevent_cse=False)(*arrays)


def repeat(count: int, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    """``carry = body(index, carry)``, ``count`` times; without a loop where that is once."""
    if is_one(count):
        return body(0, carry)
    return lax.fori_loop(0, count if isinstance(count, int) else jnp.asarray(count, jnp.int32), body, carry)


def kinds_of_tiles(mask: Mask | None, grid: Grid, *, rows_count_once: bool = False) -> Any:
    """For each tile SKIPPED, MASKED or OPEN: (chunks or 1, row_blocks, column_blocks).

    A NumPy array, known before anything runs, where the mask has no arrays. A tile with keys, or with
    ``rows_count_once`` queries, that the tile before has too is never OPEN.
    """
    xp: Any = jnp if mask is not None and jax.tree.leaves((mask, grid.places)) else np
    i0 = np.minimum(np.arange(grid.row_blocks) * grid.rows, grid.T - grid.rows)[:, None]
    j0 = np.minimum(np.arange(grid.column_blocks) * grid.columns, grid.S - grid.columns)[None]
    once = (j0 % grid.columns == 0) & ((i0 % grid.rows == 0) | (not rows_count_once))
    if mask is None:
        return np.where(once, OPEN, MASKED)[None]
    least_and_largest = functools.partial(_least_and_largest, grid=grid, i0=i0[:, 0], j0=j0[0])
    i = _ends(i0, grid.rows, grid.places.queries)
    j = _ends(j0, grid.columns, grid.places.keys)
    some, every = mask.map(least_and_largest).bounds(i, j, xp)
    kinds = [_of_chunks(*pair, grid, xp) for pair in ((some, xp.any), (every, xp.all))]
    return xp.where(kinds[0], xp.where(kinds[1] & once[None], OPEN, MASKED), SKIPPED)


def _ends(firsts: np.ndarray, size: int, place: Any) -> tuple[Any, Any]:
    """The least and the largest position of each block, in the shape of ``firsts``; see ``Positions``."""
    if place is None or not jnp.ndim(place):
        firsts = firsts if place is None else firsts.astype(place.dtype) + place
        return firsts, firsts + size - 1
    blocks = place[firsts.reshape(-1, 1) + np.arange(size)]
    return blocks.min(-1).reshape(firsts.shape), blocks.max(-1).reshape(firsts.shape)


def _least_and_largest(part: Mask, *, grid: Grid, i0: np.ndarray, j0: np.ndarray) -> Mask:
    """Ids and truth values as a pair of the least and the largest in each tile."""

    def reduced(x, reduce):
        for axis, starts, size in ((x.ndim - 2, i0, grid.rows), (x.ndim - 1, j0, grid.columns)):
            if x.shape[axis] > 1:
                blocks = lax.map(
                    lambda start, x=x, a=axis, s=size: reduce(lax.dynamic_slice_in_dim(x, start, s, a), axis=a),
                    jnp.asarray(starts),
                )
                x = jnp.moveaxis(blocks, 0, axis)
        return x

    if part.kind not in ("segments", "dense"):
        return part
    least, largest = (jnp.all, jnp.any) if part.kind == "dense" else (jnp.min, jnp.max)
    return dataclasses.replace(part, arrays=tuple((reduced(x, least), reduced(x, largest)) for x in part.arrays))


def _of_chunks(x: Any, reduce: Callable, grid: Grid, xp: Any) -> Any:
    """Truth values of tiles, (row_blocks, column_blocks) or (..., N or 1, row_blocks, column_blocks), by chunk."""
    if x.ndim == 2:
        return x[None]
    *leading, heads, groups = grid.counts
    for axis, (count, piece) in enumerate(zip((*leading, heads * groups), grid.heads, strict=True)):
        if x.shape[axis] == 1:
            x = xp.broadcast_to(x, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
        else:
            x = reduce(x.reshape(*x.shape[:axis], count, piece, *x.shape[axis + 1 :]), axis=axis + 1)
    return xp.broadcast_to(x, (*x.shape[:-2], grid.row_blocks, grid.column_blocks)).reshape(
        grid.chunks, grid.row_blocks, grid.column_blocks
    )


def in_one_loop(kinds: np.ndarray, chunks: int, body: Callable, carry: Any, *, every_outer: bool = False) -> Any:
    """``carry = body(chunk, outer, inner, is_open, is_first, carry)`` for each tile of a known mask, without a branch.

    What is SKIPPED is not in the loop, all others are one program. ``is_first``: the first tile of an outer block.
    With ``every_outer`` each outer block has one, SKIPPED or not.
    """
    used = kinds[0] != SKIPPED
    if every_outer:
        used[~used.any(axis=1), 0] = True
    outer, inner = np.nonzero(used)
    first = np.diff(outer, prepend=-1) > 0
    count, is_open = len(outer), bool((kinds[0][used] == OPEN).all())

    def step(index, carry):
        if is_one(count * chunks):
            return body(0, int(outer[0]), int(inner[0]), is_open, True, carry)
        place = index % count
        at = (jnp.asarray(x)[place] for x in (outer.astype(np.int32), inner.astype(np.int32), first))
        row, column, is_first = at
        return body(index // count, row, column, is_open, is_first, carry)

    return repeat(chunks * count, step, carry) if count else carry


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Which tiles a loop over the inner axis of ``kinds`` (chunks or 1, outer, inner) visits."""

    kinds: Any

    def visit(self, chunk: Any, outer: Any, work: Callable, add: Callable, carry: Any, nothing: Callable) -> Any:
        """For every inner block that is not SKIPPED: ``carry = add(inner, carry, work(inner, is_open))``.

        A tile that is skipped costs a comparison, and adds what ``nothing()`` returns in place of ``work``.
        """
        known = isinstance(self.kinds, np.ndarray)
        first, count = self._extent() if known else (np.zeros(self.kinds.shape[1], int), self.kinds.shape[2])
        if count == 0:
            return carry
        last = self.kinds.shape[2] - 1
        ragged = known and bool((first + count - 1 > last).any())
        values = set(np.unique(self.kinds)) if known else {SKIPPED, MASKED, OPEN}
        kinds, firsts = jnp.asarray(self.kinds), jnp.asarray(first)
        whole = kinds.shape[0] == 1
        visited = sorted(self._visited(first, count) if known else values)

        def step(t, carry):
            inner = t if not first.any() else jnp.minimum(firsts[outer] + t, last)
            kind = kinds[0 if whole else chunk, outer, inner] if len(visited) > 1 else visited[0]
            if ragged:
                kind = jnp.where(firsts[outer] + t > last, SKIPPED, kind)
            return add(inner, carry, self._branch(kind, visited, functools.partial(work, inner), nothing))

        return repeat(count, step, carry)

    @staticmethod
    def _branch(kind: Any, visited: list[int], work: Callable, nothing: Callable) -> Any:
        if len(visited) == 1:
            return work(visited[0] == OPEN)
        choices = {SKIPPED: nothing, MASKED: lambda: work(False), OPEN: lambda: work(True)}
        index = sum(jnp.int32(kind > low) for low in visited[:-1])
        return lax.switch(index, [choices[value] for value in visited])

    def _extent(self) -> tuple[np.ndarray, int]:
        """For each outer block the first inner one that is not skipped, and how many at most there are from it on."""
        used = (self.kinds != SKIPPED).any(axis=0)
        first = np.where(used.any(axis=1), used.argmax(axis=1), 0)
        end = np.where(used.any(axis=1), used.shape[1] - used[:, ::-1].argmax(axis=1), 0)
        return first, int((end - first).max(initial=0))

    def _visited(self, first: np.ndarray, count: int) -> set[int]:
        last = self.kinds.shape[2] - 1
        inner = first[:, None] + np.arange(count)
        values = np.take_along_axis(self.kinds, np.minimum(inner, last)[None], axis=2)
        return set(np.where(inner[None] > last, SKIPPED, values).ravel().tolist())
