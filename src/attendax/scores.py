"""Score modifiers: functions of a score, applied before bias and mask (L2).

A modifier is a pytree. Its arrays (slopes, tables, offsets, logits) are leaves and may be traced; floating arrays get
their gradient. The rest is part of its structure. ``spec`` and ``ops`` compute each kind.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from attendax import integers
from attendax.checks import fail, floating, function_arrays, number, python_code
from attendax.integers import ArrayLike

__all__ = ["ScoreModifier", "alibi", "compose", "from_function", "relative_bias", "sink", "softcap"]


def __dir__() -> list[str]:
    return __all__


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class ScoreModifier:
    """A modifier: its kind, its arrays, its settings. The functions of this module make it."""

    kind: str = dataclasses.field(metadata={"static": True})
    arrays: tuple[Any, ...] = ()
    settings: tuple[Any, ...] = dataclasses.field(default=(), metadata={"static": True})

    def __repr__(self) -> str:
        """A line of Python that makes it: ``compose(softcap(30.0), alibi([0.5, 0.25]))``."""
        if self.kind == "function":
            return python_code.call("from_function", *self.settings, *self.arrays)
        settings = (x for x in self.settings if not (isinstance(x, int) and x == 0))  # an offset that need not be said
        return python_code.call(self.kind, *self.arrays, *settings)

    def replace(self, arrays: tuple[Any, ...]) -> "ScoreModifier":
        """The modifier with other arrays."""
        return dataclasses.replace(self, arrays=arrays)

    def parts(self) -> list["ScoreModifier"]:
        """The modifiers that are not made of others, in their order."""
        return [x for part in self.arrays for x in part.parts()] if self.kind == "compose" else [self]

    def of_rank(self, rank: int) -> "ScoreModifier":
        """The modifier with its offsets in the rank of the scores, (..., 1, 1, 1); other arrays stay as they are."""
        if self.kind == "compose":
            return self.replace(tuple(part.of_rank(rank) for part in self.arrays))
        if self.kind not in WITH_OFFSET or len(self.arrays) == 1:
            return self
        array, offset = self.arrays
        return self.replace((array, offset.reshape((1,) * (rank - 3 - offset.ndim) + offset.shape + (1, 1, 1))))

    def roles(self) -> list[str]:
        """A word for each leaf of a modifier ``of_rank``: "pairs" if it lies along the scores, else "own"."""
        if self.kind == "compose":
            return [role for part in self.arrays for role in part.roles()]
        if self.kind in WITH_OFFSET:
            return ["own", "pairs"][: len(self.arrays)]
        return ["own" for _ in jax.tree.leaves(self.arrays)]

    def sinks(self) -> list[Any]:
        """The logits of each sink in it."""
        return [part.arrays[0] for part in self.parts() if part.kind == "sink"]

    def without_sinks(self) -> "ScoreModifier | None":
        """The modifier without its sinks; None if nothing else is left."""
        if self.kind == "compose":
            parts = tuple(part for each in self.arrays if (part := each.without_sinks()) is not None)
            return self.replace(parts) if parts else None
        return None if self.kind == "sink" else self

    def __bool__(self) -> bool:
        fail(TypeError, "score_mod", "a modifier has no truth value.", advice="Join modifiers by scores.compose(...).")


WITH_OFFSET = ("alibi", "relative_bias")


def softcap(cap: float) -> ScoreModifier:
    """Bound the scores smoothly: ``cap · tanh(s / cap)`` (Gemma 2).

    Args:
        cap: the bound, a positive number; in units of the scaled scores.

    Raises:
        TypeError, ValueError: the cap is not a positive, finite number.
    """
    return ScoreModifier("softcap", (), (number("softcap", "cap", cap, low=0, closed=False),))


def alibi(slopes: ArrayLike, offset: int | ArrayLike = 0) -> ScoreModifier:
    """Lower the scores with distance: ``s - slope_n · |i + offset - j|`` (Press et al. 2022).

    Args:
        slopes: floating (N,), one per query head.
        offset: the position of query 0 among the keys (L4): an integer; or an array of integers, which may be traced,
            a scalar for all or (B,) per text.

    Raises:
        TypeError: slopes are not floating, or the offset is not an integer or an array of integers.
        ValueError: slopes are not a vector, or the offset needs more than 32 bits.
    """
    floating("alibi", "slopes", slopes, rank=1)
    return _with_offset("alibi", slopes, integers.exact_offset("alibi", offset))


def relative_bias(table: ArrayLike, offset: int | ArrayLike = 0) -> ScoreModifier:
    """Add a learned number per head and distance: ``s + table[n, R + clip(j - i - offset, -R, R)]``.

    One number per distance is from Raffel et al. 2020, the clipping from Shaw et al. 2018.

    Args:
        table: floating (N, 2R + 1), a row per query head. Column R is distance 0; columns to its right are for later
            keys.
        offset: as in ``alibi``.

    Raises:
        TypeError: the table is not floating, or the offset is not an integer or an array of integers.
        ValueError: the table does not have rank 2, or has an even number of columns.
    """
    floating("relative_bias", "table", table, rank=2)
    if table.shape[1] % 2 == 0:
        fail(ValueError, "relative_bias", f"table has {table.shape[1]} columns but needs an odd number, 2R + 1.")
    return _with_offset("relative_bias", table, integers.offset("relative_bias", offset))


def sink(logits: ArrayLike) -> ScoreModifier:
    """Let a learned logit per head take a share of the weight (gpt-oss; Xiao et al. 2024).

    A sink is one more key that every query sees, with the score ``logits[n]`` and the value 0: ``p_ij = exp(s_ij) /
    (exp(logits_n) + Σ_k exp(s_ik))``. The lse includes the sink, so a query that may look at no key has out 0 and lse
    ``logits_n``. If ``merge`` joins calls, give the sink to one of them. Bias, mask, dropout, scale and other modifiers
    do not change a sink, so its place in ``compose`` does not matter. Two sinks are two such keys.

    Args:
        logits: floating (N,), one per query head, in units of the scaled scores; -inf means that a head has no sink.

    Raises:
        TypeError: logits are not floating.
        ValueError: logits are not a vector.
    """
    floating("sink", "logits", logits, rank=1)
    return ScoreModifier("sink", (logits,))


def from_function(f: Callable[..., Any], *arrays: Any) -> ScoreModifier:
    """Any function ``f(scores, (n, i, j), *arrays) -> scores``, of JAX operations, element by element.

    Args:
        f: scores is (..., N, T, S). The integer positions of head, query and key are n (..., N, 1, 1), i (..., 1, T, 1)
            and j (..., 1, 1, S). They have 1 for every leading axis.
        arrays: arrays, numbers or pytrees of them, passed to f; floating arrays get their gradient. If the queries
            begin at another position than key 0, pass that offset: ``lambda s, positions, offset: ...``.

    f is also called for masked pairs, with the score 0. Its derivative should be finite there: the gradient of
    ``log(w)`` at a padded ``w = 0`` is 0 times infinity, NaN, as everywhere in JAX.

    Raises:
        TypeError: f is not callable, or an argument is neither an array nor a number.
    """
    if not callable(f):
        fail(TypeError, "from_function", f"f must be a function of (scores, (n, i, j)), got {type(f).__name__}.")
    return ScoreModifier("function", function_arrays(arrays), (f,))


def compose(*modifiers: ScoreModifier) -> ScoreModifier:
    """Several modifiers, applied in order.

    Raises:
        TypeError: an argument is not a modifier.
        ValueError: there are no arguments.
    """
    if not modifiers:
        fail(ValueError, "compose", "needs at least one modifier.")
    for modifier in modifiers:
        if not isinstance(modifier, ScoreModifier):
            fail(TypeError, "compose", f"takes values from attendax.scores, got {type(modifier).__name__}.")
    return ScoreModifier("compose", modifiers)


def _with_offset(kind: str, array: Any, offset: Any) -> ScoreModifier:
    known = isinstance(offset, int)
    return ScoreModifier(kind, (array,) if known else (array, offset), (offset,) if known else ())
