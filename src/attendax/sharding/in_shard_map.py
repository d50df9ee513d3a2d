"""Attention inside ``shard_map``, where every device holds some of the queries and some of the keys."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax import checks
from attendax.checks import fail
from attendax.kernels.call import Call, in_rank_of_scores, with_traced
from attendax.kernels.derivatives import attend
from attendax.kernels.operands import Positions, Results
from attendax.masks import ArrayLike, Mask
from attendax.scores import ScoreModifier

from . import all_gather as all_gather  # registers itself
from . import ring as ring
from .strategy import STRATEGIES, choose
from .ulysses import heads_of_tokens, with_all_tokens

FUNCTION = "sharding.attention"
PositionsLike = ArrayLike | tuple[ArrayLike, ArrayLike]  # of tokens, or of queries and of keys


def attend_from_shards(
    query: Any,  # (..., N, T / n, D)
    key: Any,  # (..., G, S / n, D)
    value: Any,  # (..., G, S / n, V)
    axis: tuple[str, ...],
    positions: PositionsLike | None,
    strategy: str | None,
    *,
    mask: Any = None,  # a Mask, or (..., N, T / n, S)
    bias: Any = None,  # (..., N, T / n, S)
    score_mod: ScoreModifier | None = None,
    return_lse: bool = False,
    **options: Any,
) -> Results:
    """The results of this device's queries over the keys of all devices of the axis."""
    count = lax.axis_size(axis)
    checks.one_of(FUNCTION, "strategy", strategy, (None, *STRATEGIES))
    query_, key_, value_, mask_, bias_ = _of_all((query, key, value, mask, bias), count)
    given = options | {"return_lse": return_lse}
    checked = checks.attention(FUNCTION, query_, key_, value_, mask_, bias_, score_mod, **given)
    operands, plan = in_rank_of_scores(checked, query, key, value, mask, bias, score_mod, None)
    operands = operands._replace(positions=_positions(positions, query, key, axis))
    strategy = strategy or choose(operands, count).strategy
    return attend_across_devices(Call(operands, plan), axis, strategy)


def attend_across_devices(call: Call, axis: tuple[str, ...], strategy: str) -> Results:
    """The results of this device's queries over all keys, by the given strategy; functions are not traced yet.

    Every device calls it, with its own shard.
    """
    operands, plan = call
    if lax.axis_size(axis) == 1:
        return attend(with_traced(operands), plan)
    if plan.backend in ("cudnn", "triton"):
        there = ", ".join(axis)
        sentence = f"implementation {plan.backend!r} needs all tokens of a head; here they are divided over {there}."
        fail(NotImplementedError, "attention", sentence, advice="Leave implementation out.")
    if strategy == "ulysses":
        results = attend(with_traced(with_all_tokens(operands, axis)), plan)
        return Results(*(heads_of_tokens(x, axis) for x in results))
    local = "native" if plan.backend == "native" else "blockwise"
    plan = dataclasses.replace(plan, backend=strategy, local=local, axis=axis)
    return attend(with_traced(operands), plan)


def _positions(positions: PositionsLike | None, query: Array, key: Array, axis: tuple[str, ...]) -> Positions:
    """Positions of queries and of keys: as given (one vector or a pair), else contiguous by device."""
    sizes = query.shape[-2], key.shape[-2]
    if positions is None:
        return Positions(None, *(lax.axis_index(axis) * size for size in sizes))
    advice = "Positions are those of the tokens that a device holds: in_specs=P(axis_name)."
    return Positions(None, *checked_positions(FUNCTION, positions, sizes, "this device holds", advice))


def checked_positions(
    function: str, positions: PositionsLike, sizes: tuple[int, int], held: str, advice: str = ""
) -> tuple[Array, ...]:
    """The positions of queries and of keys, from one vector for both or a pair; ``sizes`` is how many there are."""
    given = positions if isinstance(positions, tuple) else (positions, positions)
    names = ("of queries", "of keys") if isinstance(positions, tuple) else ("", "")
    if len(given) != 2:
        fail(ValueError, function, f"positions must be one vector, or two of queries and keys, got {len(given)}.")
    for name, x, size in zip(names, given, sizes, strict=True):
        if not jnp.issubdtype(getattr(x, "dtype", np.dtype(float)), jnp.integer):
            kind = getattr(x, "dtype", type(x).__name__)
            fail(TypeError, function, f"positions {name} must be integers, got {kind}.".replace("  ", " "))
        if tuple(x.shape) != (size,):
            sentence = f"positions {name} have shape {tuple(x.shape)} but {held} {size} tokens."
            fail(ValueError, function, sentence.replace("  ", " "), advice=advice)
    return tuple(jnp.asarray(x) for x in given)


def _of_all(arrays: Any, count: int) -> tuple[Any, ...]:  # query, key, value, mask and bias of this device
    """Stand-ins for query, key, value, mask and bias of all devices together: shapes and dtypes, for the checks."""
    query, key, value, mask, bias = arrays
    tokens = (_repeated(x, -2, count) for x in (query, key, value))

    def of_part(part: Mask) -> Mask:
        if part.kind == "segments":
            return dataclasses.replace(part, arrays=tuple(_repeated(x, -1, count) for x in part.arrays))
        rows = (_rows(x, query, count) for x in part.arrays) if part.kind == "dense" else part.arrays
        return dataclasses.replace(part, arrays=tuple(rows))

    mask = mask.map(of_part) if isinstance(mask, Mask) else _rows(mask, query, count)
    return *tokens, mask, _rows(bias, query, count)


def _rows(x: Any, query: Array, count: int) -> Any:  # (..., N, T / n, S), or whatever a user gave
    """A mask or bias of all devices, where this device holds the rows of its own queries."""
    full = len(getattr(x, "shape", ())) >= 2 and x.shape[-2] == query.shape[-2] > 1
    return _repeated(x, -2, count) if full else x


def _repeated(x: Any, axis: int, count: int) -> Any:  # an array, or whatever a user gave
    if len(getattr(x, "shape", ())) < -axis or not hasattr(x, "dtype"):
        return x  # the checks refuse it
    shape = list(x.shape)
    shape[axis] *= count
    return np.broadcast_to(np.zeros((), x.dtype), shape)
