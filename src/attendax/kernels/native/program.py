"""A call in the form in which the library takes it: arrays in the rank of the scores, and two lists of numbers.

``csrc/ffi.cc`` reads both in the order in which they are written here.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attendax.mask_kinds import given
from attendax.mask_type import Mask
from attendax.scores import ScoreModifier

from ..functions import has_function
from ..operands import Operands, Plan

DTYPES = ("float32", "bfloat16", "float16", "float64")
MOST_LEAD, MOST_OPS, MOST_DEPTH, MOST_MODIFIERS = 12, 24, 6, 6  # problem.h
WIDEST = 4096  # D and V: scratch memory of a thread grows with them
CONJUNCTION, DISJUNCTION, NEGATION, WINDOW, KEY_LENGTHS, QUERY_LENGTHS, SEGMENTS, DENSE, BLOCKS = range(9)
SOFTCAP, ALIBI, RELATIVE_BIAS = range(3)
JOINED = {"and": CONJUNCTION, "or": DISJUNCTION}
MODIFIERS = {"softcap": SOFTCAP, "alibi": ALIBI, "relative_bias": RELATIVE_BIAS}


class Op(NamedTuple):
    """A step of the program of a mask; its arrays have the rank of the scores."""

    kind: int
    window: tuple[int | Array | None, ...] = (None, None, None)  # offset, left and right; or the sizes of a block
    arrays: tuple[Array, ...] = ()  # of the other kinds

    def numbers(self) -> list[int]:
        """The step as integers: of each number of a window whether there is none, it, or an array (0, 1, 2)."""
        window = ((0, 0) if x is None else (1, x) if isinstance(x, int) else (2, 0) for x in self.window)
        return [self.kind, *(number for pair in window for number in pair), len(self.arrays)]

    def given(self) -> list[Array]:
        """Its arrays, in their order."""
        window = [x.astype(jnp.int32) for x in self.window if x is not None and not isinstance(x, int)]
        return [*window, *self.arrays]


class HandlerArguments(NamedTuple):
    """Arguments of the handlers beside query, key and value."""

    arrays: list[Array]
    ints: list[int]
    floats: list[float]
    modifiers: list[ScoreModifier]


def why_not(operands: Operands, plan: Plan) -> str:
    """The reason why the library cannot take a call; nothing where it can. Only shapes, dtypes and structure count."""
    query, key, value, _, score_mod, mask = operands[:6]
    positions = operands.positions
    modifiers = [] if score_mod is None else score_mod.parts()
    caps = sum(part.kind == "softcap" for part in modifiers)
    offsets = [x for part in modifiers for x in part.arrays[1:]]
    placed = [x for x in positions if x is not None]
    reasons = (
        (any(map(has_function, (mask, score_mod))), "a function of your own"),
        (str(query.dtype) not in DTYPES, f"{query.dtype}: it takes {', '.join(DTYPES)}"),
        (query.dtype != key.dtype or query.dtype != value.dtype, "query, key and value of different dtypes"),
        (operands.compute_dtype() != np.result_type(query.dtype, np.float32), "a float64 bias with narrower queries"),
        (any(x.ndim for x in placed), "positions that are not consecutive"),
        (plan.reversible, "a derivative of a derivative"),
        (query.ndim - 3 > MOST_LEAD, f"more than {MOST_LEAD} leading axes"),
        (max(key.shape[-1], value.shape[-1]) > WIDEST, f"a width above {WIDEST}"),
        (caps > 1 or len(modifiers) > MOST_MODIFIERS, f"several softcaps, or more than {MOST_MODIFIERS} modifiers"),
        (any(not np.can_cast(x.dtype, np.int32) for x in offsets), "an offset of more than 32 bits"),
        (mask is not None and (_steps(mask) > MOST_OPS or _depth(mask) > MOST_DEPTH), "a mask with too many parts"),
    )
    return next((reason for holds, reason in reasons if holds), "")


def program_of(operands: Operands, plan: Plan) -> HandlerArguments:
    """The arrays and numbers of a call that the library takes."""
    dtype = operands.compute_dtype()
    rate = plan.rate
    positions = operands.positions
    intervals, rest = _conjuncts(operands.mask)
    ops = [*_ops(rest)] if rest is not None else []
    modifiers = [] if operands.score_mod is None else operands.score_mod.parts()
    drops = 0 if not rate else 2 if rate == 1 else 1
    ints = [len(intervals), len(ops), len(modifiers), operands.bias is not None, drops]
    ints += [min(round(rate * 2**32), 2**32 - 1), positions.queries is not None, positions.keys is not None]
    arrays: list[Array] = [jnp.asarray(plan.scale, dtype)]
    arrays += [] if operands.bias is None else [operands.bias]
    arrays += list(operands.dropout_keys or ())
    arrays += [x.astype(jnp.int32) for x in (positions.queries, positions.keys) if x is not None]
    for op in (*intervals, *ops):
        ints += op.numbers()
        arrays += op.given()
    floats = [1 / (1 - rate) if rate < 1 else 1.0]
    for part in modifiers:
        kind, caps = MODIFIERS[part.kind], part.kind == "softcap"
        traced = len(part.arrays) > 1
        ints += [kind, 0 if caps or traced else part.settings[0], int(traced)]
        floats.append(float(part.settings[0]) if caps else 0.0)
        if not caps:
            array = _in_rank(part.arrays[0], kind, operands.query.ndim, len(plan.batch))
            if positions.heads is not None:  # of all heads, of which some are here
                array = lax.dynamic_slice_in_dim(array, positions.heads, operands.query.shape[-3], array.ndim - 3)
            arrays.append(array)
            arrays += [x.astype(jnp.int32) for x in part.arrays[1:]]
    return HandlerArguments(arrays, [int(x) for x in ints], floats, modifiers)


def modifier_shape(part: ScoreModifier, lead: tuple[int, ...], heads: int) -> tuple[int, ...]:
    """The shape of the gradient of slopes or a table, as the library gives it: one for each entry of the batch."""
    return *lead, heads, 1 if part.kind == "alibi" else part.arrays[0].shape[-1]


def _in_rank(array: Array, kind: int, rank: int, batch: int) -> Array:
    """Slopes (batch..., N) or a table (batch..., N, 2R + 1) as (..., N, 1, .)."""
    own = array.shape[batch:]
    lead = *array.shape[:batch], *(1 for _ in range(rank - 3 - batch))
    return array.reshape(*lead, own[0], 1, own[1] if kind == RELATIVE_BIAS else 1)


def _conjuncts(mask: Mask | None) -> tuple[list[Op], Mask | None]:
    """The intervals that must all hold, and the rest of the mask, if there is any."""
    intervals, rest = [], None
    for part in all_of(mask):
        if part.kind in ("window", "padding", "prefix"):
            intervals += _of_leaf(part)
        else:
            rest = part if rest is None else Mask("and", (rest, part))
    return intervals, rest


def all_of(mask: Mask | None) -> list[Mask]:
    """The parts of a mask that must all allow a pair."""
    if mask is None:
        return []
    return [x for part in mask.arrays for x in all_of(part)] if mask.kind == "and" else [mask]


def _ops(mask: Mask) -> Iterator[Op]:
    """The program of a mask in postfix order."""
    if mask.kind == "not":
        yield from _ops(mask.arrays[0])
        yield Op(NEGATION)
    elif mask.kind in JOINED:
        for k, part in enumerate(mask.arrays):
            yield from _ops(part)
            if k:
                yield Op(JOINED[mask.kind])
    else:
        for k, op in enumerate(_of_leaf(mask)):
            yield op
            if k:
                yield Op(CONJUNCTION)


def _of_leaf(part: Mask) -> list[Op]:
    """The steps, all of which must hold, of a mask that is not made of others."""
    if part.kind == "window":
        return [Op(WINDOW, given(*part.arrays, *part.settings))]
    if part.kind in ("padding", "prefix"):
        pairs = zip((KEY_LENGTHS, QUERY_LENGTHS), part.arrays, strict=False)
        return [Op(kind, arrays=(x.astype(jnp.int32),)) for kind, x in pairs if x is not None]
    if part.kind == "segments":
        if part.arrays[0].dtype == np.int32:
            return [Op(SEGMENTS, arrays=part.arrays)]
        words = [lax.bitcast_convert_type(x.astype(jnp.int64), jnp.int32) for x in part.arrays]
        return [Op(SEGMENTS, arrays=tuple(x[..., k] for x in words)) for k in (0, 1)]  # each word for itself
    if part.kind == "blocks":
        (array,), (block_q, block_kv) = part.arrays, part.settings
        if block_q == 1:  # then its rows look like queries, which may be divided over devices (``divided``)
            array = jnp.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, 1), (0, 0)])
        return [Op(BLOCKS, (0, block_q, block_kv), (array,))]
    return [Op(DENSE, arrays=part.arrays)]


def _steps(mask: Mask) -> int:
    if mask.kind in (*JOINED, "not"):
        return sum(map(_steps, mask.arrays)) + max(1, len(mask.arrays) - 1)
    return 3 if mask.kind in ("segments", "padding") else 1


def _depth(mask: Mask) -> int:
    """The number of tiles of truth values that its program holds at a time."""
    if mask.kind == "not":
        return _depth(mask.arrays[0])
    if mask.kind in JOINED:
        return max(_depth(part) + min(k, 1) for k, part in enumerate(mask.arrays))
    return 2 if mask.kind in ("segments", "padding") else 1
