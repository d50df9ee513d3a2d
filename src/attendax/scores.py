"""Score modifiers as values: what changes a score before bias and mask (L2).

A modifier is a pytree: its arrays (slopes, tables) are leaves, may be traced, and get their gradient; the rest is part
of its structure. ``spec`` and ``ops`` say what each kind does.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from attendax.checks import FLOATING, fail, integer, number


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ScoreModifier:
    """A modifier: its kind, its arrays, its settings. Made by the functions of this module."""

    kind: str = dataclasses.field(metadata={"static": True})
    arrays: tuple[Any, ...] = ()
    settings: tuple[Any, ...] = dataclasses.field(default=(), metadata={"static": True})

    def replace(self, arrays: tuple[Any, ...]) -> "ScoreModifier":
        """The same modifier with other arrays."""
        return dataclasses.replace(self, arrays=arrays)


def softcap(cap: float) -> ScoreModifier:
    """Bound the scores smoothly: ``cap · tanh(s / cap)`` (Gemma 2).

    Args:
        cap: the bound, a positive number; in units of the scaled scores.

    Raises:
        TypeError, ValueError: not a positive, finite number.
    """
    return ScoreModifier("softcap", (), (number("softcap", "cap", cap, low=0, closed=False),))


def alibi(slopes: Any, *, offset: int = 0) -> ScoreModifier:
    """Lower the scores with distance: ``s - slope_n · |i + offset - j|`` (Press et al. 2022).

    Args:
        slopes: floating (N,), one for each query head.
        offset: the position of query 0 among the keys (compare L4).

    Raises:
        TypeError, ValueError: slopes not a floating vector, or an offset that is not an integer.
    """
    _floating("alibi", "slopes", slopes, rank=1)
    return ScoreModifier("alibi", (slopes,), (integer("alibi", "offset", offset, minimum=-(2**30), maximum=2**30),))


def relative_bias(table: Any, *, offset: int = 0) -> ScoreModifier:
    """Add a learned number per head and distance: ``s + table[n, R + clip(j - i - offset, -R, R)]``.

    One number per distance is from Raffel et al. 2020, the clipping from Shaw et al. 2018.

    Args:
        table: floating (N, 2R + 1): a row for each query head; column R is distance 0, later keys to its right.
        offset: the position of query 0 among the keys (compare L4).

    Raises:
        TypeError, ValueError: a table that is not floating, not of rank 2, or of an even number of columns.
    """
    _floating("relative_bias", "table", table, rank=2)
    if table.shape[1] % 2 == 0:
        fail(ValueError, "relative_bias", f"table has {table.shape[1]} columns but needs an odd number, 2R + 1.")
    return ScoreModifier(
        "relative_bias", (table,), (integer("relative_bias", "offset", offset, minimum=-(2**30), maximum=2**30),)
    )


def from_function(f: Callable, *arrays: Any) -> ScoreModifier:
    """Any function ``f(scores, (n, i, j), *arrays) -> scores``, of JAX operations, element by element.

    Args:
        f: scores is (..., N, T, S); n (..., N, 1, 1), i (..., 1, T, 1) and j (..., 1, 1, S) are the integer positions
            of head, query and key, with 1 for every leading axis.
        arrays: passed on to f; they get their gradient.

    Raises:
        TypeError: f is not callable.
    """
    if not callable(f):
        fail(TypeError, "from_function", f"f must be callable, got {type(f).__name__}.")
    return ScoreModifier("function", arrays, (f,))


def compose(*modifiers: ScoreModifier) -> ScoreModifier:
    """Several modifiers, the first one first.

    Raises:
        TypeError: something is not a modifier.
        ValueError: there is none.
    """
    if not modifiers:
        fail(ValueError, "compose", "needs at least one modifier.")
    for modifier in modifiers:
        if not isinstance(modifier, ScoreModifier):
            fail(TypeError, "compose", f"takes values from attendax.scores, got {type(modifier).__name__}.")
    return ScoreModifier("compose", modifiers)


def _floating(function: str, name: str, array: Any, *, rank: int) -> None:
    if str(getattr(array, "dtype", None)) not in FLOATING:
        got = getattr(array, "dtype", type(array).__name__)
        fail(TypeError, function, f"{name} must be a floating array, got {got}.")
    if len(array.shape) != rank:
        fail(ValueError, function, f"{name} has rank {len(array.shape)} but needs rank {rank}.")
