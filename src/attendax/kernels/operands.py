"""The input of every backend: the arrays of one call of attention (``Operands``), and its options (``Plan``)."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from attendax import checks
from attendax.masks import ArrayLike, Mask
from attendax.scores import ScoreModifier

Function = TypeVar("Function", bound=Callable[..., Any])

Index = int | Array  # known before anything runs, or traced
# One for each differentiable leaf, in its shape; None if its tangent is 0, or its gradient is not wanted.
Tangents = Sequence[Array | None]
Wanted = Sequence[tuple[int, ...] | None]  # the shapes of gradients
Marks = tuple[bool, ...]  # which differentiable leaves have a tangent
Cotangents = tuple[Array, Array]  # of out (..., N, T, V) and of lse (..., N, T, 1)

QUERY, KEY, VALUE, REST = range(4)  # places of the differentiable leaves

LONG = "gG"  # NumPy's characters for long double and its complex numbers


class Positions(NamedTuple):
    """The positions of heads, queries and keys where this device has a part of a call; None: they begin at 0.

    A scalar () is the position of the first; the others follow it. A vector, (T,) or (S,), has the position of each.
    vmap does not map them.
    """

    heads: Array | None = None
    queries: Array | None = None
    keys: Array | None = None


class Operands(NamedTuple):
    """The arrays of a call. Axes that vary with the pair are full or 1; the first ``len(plan.batch)`` come from vmap.

    The first five are differentiable. Everything in ``mask`` and ``dropout_keys``, ``bias``, and the offsets in
    ``score_mod`` have the rank of the scores (..., N, T, S); the other arrays of ``score_mod``, and those of masks from
    functions, have a shape of their own behind the axes from vmap.
    """

    query: Array  # (..., N, T, D)
    key: Array  # (..., G, S, D)
    value: Array  # (..., G, S, V)
    bias: Array | None
    score_mod: ScoreModifier | None
    mask: Mask | None  # of the rank of the scores
    dropout_keys: tuple[Array, ...] | None  # the random key of each head, two words of (..., N, 1, 1)
    positions: Positions = Positions()

    def differentiable(self) -> list[Array]:
        """The leaves that may have a gradient: query, key, value, bias where given, the arrays of the modifier."""
        return jax.tree.leaves(self[:5])

    def roles(self) -> list[str]:
        """The way in which a tile cuts each differentiable leaf."""
        pairs = [] if self.bias is None else ["pairs"]
        return ["queries", "keys", "keys", *pairs, *([] if self.score_mod is None else self.score_mod.roles())]

    def replaced(self, leaves: Sequence[Array]) -> "Operands":
        """The operands with other differentiable leaves."""
        query, key, value, bias, score_mod = jax.tree.unflatten(jax.tree.structure(self[:5]), leaves)
        return Operands(query, key, value, bias, score_mod, self.mask, self.dropout_keys, self.positions)

    def compute_dtype(self) -> Any:
        """The dtype to compute in: the widest of the arrays, float32 at least (L8)."""
        given = (x for x in self[:4] if x is not None)
        return wide_dtype(*(x.dtype for x in given))


class Results(NamedTuple):
    """The results of a forward, in the compute dtype: the average, the row maximum, the sum of ``exp(s - row_max)``.

    ``lse = row_max + log row_sum``. The two are kept apart because at scores of 1e30 their sum would lose the second.
    """

    out: Array  # (..., N, T, V)
    row_max: Array  # (..., N, T, 1), -inf for the empty set
    row_sum: Array  # (..., N, T, 1), 0 for the empty set
    lse: Any = None  # (..., N, T, 1), where ``derivatives.attend`` gives the results; it has a tangent of its own


class Limits(NamedTuple):
    """The largest size of a tile: queries, keys, and bytes of its scores."""

    rows: int
    columns: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """The options of a call: hashable, and part of the key of a compiled program."""

    scale: float | Array  # an array in a program that is made for any number
    rate: float
    limits: Limits | None  # of a tile; None: all T x S scores are one
    backend: str = "blockwise"
    platform: str = "cpu"  # for which the program is lowered
    asked: bool = False  # whether the backend was asked for by name
    exported: bool = False  # whether the program is to run elsewhere (``jax.export``)
    devices: int = 1  # over which XLA divides the program: then no loop may cut a batch or a head
    divisible: bool = False  # by what is told to XLA: no mesh axis is that of a ``shard_map``
    axis: tuple[str, ...] = ()  # the mesh axes of ``shard_map`` that divide the sequence, for a backend across devices
    local: str = "blockwise"  # there, the backend of what each device computes
    partial: bool = False  # the keys are some of those that the results are about
    rounded: bool = True  # gradients get the dtypes of their leaves, and do not stay in the compute dtype
    batch: tuple[int, ...] = ()  # sizes of the axes that vmap has put in front
    needs_lse: bool = False  # a result beside out: lse was asked for, or a sink reads it
    reversible: bool = False  # whether reverse mode may go through the program itself
    narrow: bool = False  # the arrays are float16 or bfloat16; see ``precision``

    @functools.lru_cache(256)  # noqa: B019 - plans are few and small
    def for_any_scale(self) -> "Plan":
        """The plan of a program that is given its scale, by ``with_scale``, when it runs."""
        return self.with_scale(1.0)

    def with_scale(self, scale: float | Array) -> "Plan":
        """The plan with another scale."""
        return dataclasses.replace(self, scale=scale)

    @property
    def flat(self) -> bool:
        """Tell whether the leading axes of a product may become one: not where they lie on several devices."""
        return self.devices == 1

    @property
    def precision(self) -> lax.Precision:
        """The precision of products in tiles: full; of narrow arrays on an NVIDIA GPU, operands of 11 bits (TF32).

        A number of float16 or bfloat16 has at most 11 bits. Weights and their gradients are rounded to 11 bits, as in a
        dense formula in float16; sums are of float32 (L8).
        """
        return lax.Precision.DEFAULT if self.narrow and self.platform == "cuda" else lax.Precision.HIGHEST

    @property
    def factors(self) -> tuple[Any, Any]:
        """The factor of queries before their products with keys, and that of the products; together scale.

        Of narrow operands the first is a power of two: a query times that has no more bits than before.
        """
        if self.precision == lax.Precision.HIGHEST:
            return self.scale, None
        if isinstance(self.scale, float):
            mantissa, exponent = math.frexp(self.scale)
            return math.ldexp(1.0, exponent), mantissa
        fraction, power = jnp.frexp(self.scale)
        return jnp.ldexp(jnp.ones_like(fraction), power), fraction

    def leading(self, operands: Operands) -> tuple[int, ...]:
        """The leading axes of the result, those from vmap included."""
        return *self.batch, *operands.query.shape[len(self.batch) : -3]

    def rows(self, operands: Operands) -> tuple[int, ...]:
        """The axes of the result except the last, (..., N, T)."""
        return *self.leading(operands), *operands.query.shape[-3:-1]


def wide_dtype(*dtypes: DTypeLike) -> Any:
    """The widest of floating dtypes, float32 at least. NumPy finds it, even if JAX is set not to promote."""
    return np.result_type(np.float32, *dtypes)


def takes_arrays(function: Function) -> Function:
    """Decorate a public function: NumPy arrays, in pytrees too, become JAX arrays in the precision JAX is set to.

    So float64 from NumPy is float32 where 64 bits are not enabled, as everywhere in JAX, before any dtype is compared.
    A thing that JAX has no number or dtype for stays as it is, for the checks to see and to refuse.
    """

    def convert(x):
        known = isinstance(x, np.ndarray) and x.dtype.kind not in "OSUMm" and x.dtype.isnative
        known = known and x.dtype.char not in LONG
        return jnp.asarray(x) if known and not checks.is_cut(x) else x

    @functools.wraps(function)
    def call(*args, **kwargs):
        with jax.ensure_compile_time_eval():  # what NumPy knows stays known inside jit, and is checked (L14)
            args, kwargs = jax.tree.map(convert, (args, kwargs))
        return function(*args, **kwargs)

    return cast(Function, call)


def public(function: Function) -> Function:
    """Decorate a public function with options: ``takes_arrays``, and advice for a wrong keyword."""
    return checks.knows_keywords(takes_arrays(function))


def widen(*arrays: ArrayLike | None) -> tuple[Any, ...]:
    """Return the arrays in the dtype to compute in: the widest among them, float32 at least (L8). None stays None."""
    dtype = wide_dtype(*(array.dtype for array in arrays if array is not None))
    return tuple(None if array is None else array.astype(dtype) for array in arrays)
