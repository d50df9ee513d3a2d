"""The arrays of a case, in float64 but rounded to the dtype of the program; its masks and modifiers, a table each.

Masks and modifiers are nested tuples: ("and", ("causal", 0), ("padding", False)).
"""

import functools
import math
import operator
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from attendax import masks, scores

from .case import Case

FINE = np.float64
Arrays = dict[str, Any]


class Kind(NamedTuple):
    """A kind of mask or modifier."""

    arrays: Callable  # (axes of the scores, *settings) -> what each of its arrays holds, and its axes
    make: Callable  # (first query, *settings, *arrays) -> as `attention` takes it
    meaning: Callable  # of a mask (i, j, *settings, *arrays) -> pairs; of a modifier (scores, j - i, ...) -> scores


def lifted(x: Any) -> Any:
    return x[..., None, None, None]


def no_arrays(full: Any, *settings: Any) -> list:
    return []


def ones(axes: tuple, keep: bool) -> tuple:
    return axes if keep else ("1",) * len(axes)


def of_pairs(full: tuple, flags: tuple[bool, ...]) -> list:
    full = full[-2:] if len(flags) == 2 else full
    flags = flags[-2:] if len(full) == 2 else (flags[0],) * (len(full) - 3) + flags[1:]
    return [("pairs", tuple(axis if flag else "1" for axis, flag in zip(full, flags, strict=True)))]


def columns_of(z: Any, distance: Any, limit: int, offset: int, table: Any) -> Any:
    column = np.clip(distance - offset, -limit, limit) + limit
    return z + sum(jnp.where(column == c, table[:, c : c + 1, None], 0) for c in range(2 * limit + 1))


def bent(s: Any, positions: Any, strengths: Any) -> Any:
    return s + jnp.asarray(strengths)[positions[0]] * jnp.tanh(s)


MASKS = {  # what they mean is L3 and L4
    "causal": Kind(
        no_arrays,
        lambda start, offset: masks.causal(offset + start),
        lambda i, j, offset: j <= i + offset),
    "traced causal": Kind(
        lambda full, each: [("offset", full[:-3] if each else ())],
        lambda start, each, offset: masks.causal(offset),
        lambda i, j, each, offset: j <= i + lifted(offset)),
    "window": Kind(
        no_arrays,
        lambda start, left, right: masks.window(left, right, start),
        lambda i, j, left, right: (left is None or i - left <= j) & (j <= i + (10**9 if right is None else right))),
    "padding": Kind(
        lambda full, both: [("lengths", full[:-3]), ("query lengths", full[:-3])][: 1 + both],
        lambda start, both, *lengths: masks.padding(*lengths),
        lambda i, j, both, keys, *queries: (j < lifted(keys)) & (i < lifted(queries[0]) if both else True)),
    "prefix": Kind(
        lambda full, each: [("lengths", ones(full[:-3], each))],
        lambda start, each, lengths: masks.prefix(lengths, start),
        lambda i, j, each, lengths: (j <= i) | (j < lifted(lengths))),
    "segments": Kind(
        lambda full, each: [("ids", (*ones(full[:-3], each), axis)) for axis in "TS"],
        lambda start, each, *ids: masks.segments(*ids),
        lambda i, j, each, queries, keys: (queries[..., :, None] == keys[..., None, :])[..., None, :, :]),
    "dense": Kind(of_pairs, lambda start, flags, x: masks.dense(x), lambda i, j, flags, x: x),
    "array": Kind(of_pairs, lambda start, flags, x: x, lambda i, j, flags, x: x),
    "function": Kind(
        lambda full, has_array: [("farthest", ("T",))] * has_array,
        lambda start, has_array, *x: (masks.from_function(lambda i, j, x: j <= x[i], *x) if has_array
                                      else masks.from_function(lambda i, j: (i * j) % 3 != 1)),
        lambda i, j, has_array, *x: j <= x[0][:, None] if has_array else (i * j) % 3 != 1),
}  # fmt: skip
MODIFIERS = {
    "softcap": Kind(
        no_arrays,
        lambda start, cap: scores.softcap(cap),
        lambda z, distance, cap: cap * jnp.tanh(z / cap)),
    "alibi": Kind(
        lambda full, offset: [("slopes", ("N",))],
        lambda start, offset, slopes: scores.alibi(slopes, offset=offset + start),
        lambda z, distance, offset, slopes: z - slopes[:, None, None] * abs(distance - offset).astype(float)),
    "relative": Kind(
        lambda full, limit, offset: [("table", ("N", str(2 * limit + 1)))],
        lambda start, limit, offset, table: scores.relative_bias(table, offset=offset + start),
        columns_of),
    "function": Kind(
        lambda full, closes: [("strengths", ("N",))],
        lambda start, closes, x: (scores.from_function(lambda s, positions: bent(s, positions, x)) if closes
                                  else scores.from_function(bent, x)),
        lambda z, distance, closes, x: z + x[:, None, None] * jnp.tanh(z)),
}  # fmt: skip
JOINED: dict[str, Callable] = {"and": operator.and_, "or": operator.or_, "not": operator.invert}


def parts(tree: Any) -> list[tuple]:
    """The parts of a mask or modifier that are not made of others."""
    if tree is None:
        return []
    return [part for each in tree[1:] for part in parts(each)] if tree[0] in (*JOINED, "compose") else [tree]


def built(table: dict[str, Kind], tree: Any, arrays: list, part: Callable, joined: dict[str, Callable] = JOINED) -> Any:
    """Put a mask or modifier together from ``part(kind, settings and arrays)`` of each part; uses up ``arrays``."""
    kind, *settings = tree
    if kind in joined:
        return joined[kind](*(built(table, each, arrays, part, joined) for each in settings))
    return part(table[kind], [*settings, *(arrays.pop(0) for _ in table[kind].arrays("TS", *settings))])


def axes(case: Case) -> dict[str, tuple]:
    """The axes of each array of one call: a letter, the number of a leading axis, or a size in digits."""
    full = ("T", "S") if case.one_head else (*range(len(case.lead) - len(case.maps)), "N", "T", "S")
    query, group = full[:-1], full[:-2] if case.one_head else (*full[:-3], "G")
    found = {"query": (*query, "D"), "key": (*group, "S", "D"), "value": (*group, "S", "V"),
             "cotangent_out": (*query, "V"), "cotangent_lse": query}  # fmt: skip
    if case.bias is not None:
        flags = case.bias[-len(full) :]
        named = zip(full[len(full) - len(flags) :], flags, strict=True)
        found["bias"] = tuple(axis if flag else "1" for axis, flag in named)
    for table, name, tree in ((MODIFIERS, "mod", case.modifier), (MASKS, "mask", case.mask)):
        own = [array for kind, *settings in parts(tree) for array in table[kind].arrays(full, *settings)]
        found |= {f"{name}{k}": where for k, (_, where) in enumerate(own)}
    if case.layers:
        found |= {"weights_query": ("D", "D"), "weights_key": ("D", "D"), "weights_value": ("V", "V")}
    return found


def shape(case: Case, name: str, own: tuple) -> tuple[int, ...]:
    """The shape of an array with the axes of the maps."""
    sizes = dict(enumerate(case.lead[len(case.maps) :])) | {axis: getattr(case, axis) for axis in "NGTSDV"}
    return *outer(case, name), *(sizes[axis] if axis in sizes else int(axis) for axis in own)


def generator(case: Case, name: str) -> Any:
    return np.random.default_rng([case.seed, zlib.crc32(name.encode())])


def storage(case: Case, leaf: str) -> Any:
    """The dtype of a floating leaf."""
    low = case.dtype in ("bfloat16", "float16")
    wide = leaf.startswith("cotangent") or (case.wide and leaf.startswith(("bias", "mod")))
    name = "float32" if low and wide else case.dtype
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def in_dtypes(case: Case, arrays: Arrays) -> Arrays:
    """As JAX gets them: floating ones in their dtype."""
    return {name: x.astype(storage(case, name)) if x.dtype == FINE else x for name, x in arrays.items()}


def rounded(case: Case, name: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x.astype(storage(case, name)).astype(FINE)


def operand(case: Case, leaf: str, x: np.ndarray) -> np.ndarray:
    """Query, key or value, in the manner of ``case.values``, from normal numbers.

    Queries and keys are so large that scores have the size of the case, which a common part of the keys leaves as it
    is. The size is in the queries; in float16, where few numbers are large, in queries and keys alike.
    """
    low, exponent = case.dtype == "float16", -36 if case.direction == "forward" else -30  # products with weights
    manners: dict[Any, Callable] = {
        "columns": lambda: np.broadcast_to(x[..., :1], x.shape),
        "ones": lambda: np.ones(x.shape),
        "iota": lambda: np.arange(x.size, dtype=FINE).reshape(x.shape) / max(1, x.size),
        "eye": lambda: np.broadcast_to(np.eye(*x.shape[-2:]), x.shape),
        ("huge", "query"): lambda: x * (100 if low else 1e15),
        ("huge", "key"): lambda: x * (100 if low else 1e15),
        ("zeros", "query"): lambda: np.zeros(x.shape),
        ("shifted", "key"): lambda: x + 30,
        ("shifted", "value"): lambda: x + 30,
        ("equal", "value"): lambda: np.ones(x.shape),
        ("tiny", "value"): lambda: x * (1e-3 if low else 10.0**exponent),
    }
    made = manners.get(case.values) or manners.get((case.values, leaf)) or (lambda: x)
    y = made()
    if case.common and leaf == "key":
        y = (y + case.common * generator(case, "common").normal(size=case.D)) / math.hypot(1, case.common)
    if case.size is None or leaf == "value" or (leaf == "key" and not low):
        return y
    factor = case.size / ((abs(case.D**-0.5 if case.scale is None else case.scale) or 1.0) * math.sqrt(case.D))
    return y * (math.sqrt(factor) if low else factor)


def leaves(case: Case) -> Arrays:
    """Every array that the program reads, by name."""
    found = {}
    for name, own in axes(case).items():
        if name.startswith("mask"):
            continue
        rng, size = generator(case, name), shape(case, name, own)
        x = rng.normal(size=size)
        x = operand(case, name, x) if name in ("query", "key", "value") else x
        if name == "bias" and case.bias_values != "normal":
            lowest = -np.inf if case.bias_values == "forbids" else float(ml_dtypes.finfo(storage(case, name)).min)
            x = np.where(rng.random(size) < 0.3, lowest, x)
        found[name] = rounded(case, name, x / math.sqrt(size[-1]) if name.startswith("weights") else x)
    return found | mask_arrays(case) | ({"rng": np.array([case.seed, 5], np.uint32)} if case.dropout else {})


def mask_arrays(case: Case) -> Arrays:
    rng, T, S, found = generator(case, "mask"), case.T, case.S, {}
    for name, holds in held(case).items():
        size = shape(case, name, axes(case)[name])
        if holds == "pairs":
            found[name] = rng.random(size) < rng.choice((0.15, 0.6, 0.9))
            continue
        ends = {"lengths": (0, S + 1), "query lengths": (0, T + 1), "offset": (-2, S + 2), "ids": (0, 3)}
        x = rng.integers(*ends.get(holds, (-1, S)), size)
        found[name] = np.asarray(np.sort(x, -1) if holds == "ids" and rng.random() < 0.7 else x, np.int32)
    return found


def held(case: Case) -> dict[str, str]:
    """What each array of the mask holds."""
    holds = [what for kind, *settings in parts(case.mask) for what, _ in MASKS[kind].arrays("TS", *settings)]
    return {f"mask{k}": what for k, what in enumerate(holds)}


def directions(case: Case, arrays: Arrays) -> Arrays:
    """How each array moves with respect to which is differentiated."""
    moves = {name: generator(case, f"move {name}").normal(size=arrays[name].shape) for name in wanted(case, arrays)}
    return {name: rounded(case, name, x) for name, x in moves.items()}


def group(name: str) -> str:
    """The name of an array in the fields of a case: "mod0" is one of "mod", and a weight goes with what it projects."""
    return name.rstrip("0123456789").removeprefix("weights_").split("_")[0]


def wanted(case: Case, arrays: Arrays) -> list[str]:
    """The names of the arrays with respect to which is differentiated."""
    return [name for name in arrays if group(name) in case.wanted]


def outer(case: Case, name: str) -> tuple[int, ...]:
    """The sizes of the axes that an array has for the maps."""
    return tuple(size for level, size in enumerate(case.mapped) if not case.is_shared(name, level))


def of_call(case: Case, arrays: Arrays, index: tuple[int, ...]) -> Arrays:
    """The arrays of one call."""
    return {name: x[tuple(k for level, k in enumerate(index) if not case.is_shared(name, level))]
            for name, x in arrays.items()}  # fmt: skip


def named(arrays: Arrays, kind: str) -> list[Any]:
    """The arrays of the mask or the modifier."""
    return [arrays[name] for name in sorted(arrays) if name.startswith(kind)]


def options(case: Case, arrays: Arrays, start: int = 0) -> dict[str, Any]:
    """The options of a call, or of its part from the query ``start`` on."""
    found: dict[str, Any] = {"scale": case.scale, "implementation": case.implementation}

    def make(kind: Kind, given: list) -> Any:
        return kind.make(start, *given)

    if case.mask is not None:
        found["mask"] = built(MASKS, case.mask, named(arrays, "mask"), make)
    if case.bias is not None:
        found["bias"] = arrays["bias"]
    if case.modifier is not None:
        joined = {"compose": scores.compose}
        found["score_mod"] = built(MODIFIERS, case.modifier, named(arrays, "mod"), make, joined)
    return found | ({"dropout_rate": case.dropout, "dropout_rng": arrays["rng"]} if case.dropout else {})


def allowed(case: Case, arrays: Arrays, numpy: Any = np) -> Any:
    """The pairs that the mask of one call allows, from the arrays of this call."""
    i, j = np.arange(case.T)[:, None], np.arange(case.S)
    pairs = True
    if case.mask is not None:
        pairs = built(MASKS, case.mask, named(arrays, "mask"), lambda kind, given: kind.meaning(i, j, *given))
    return numpy.broadcast_to(pairs, case.scores)


def modified(case: Case, z: Any, arrays: Arrays) -> Any:
    """The scores after the modifier, by its definition."""
    distance = np.arange(case.S) - np.arange(case.T)[:, None]

    def meaning(kind: Kind, given: list) -> Callable:
        return lambda z: kind.meaning(z, distance, *given)

    def one_by_one(*functions: Callable) -> Callable:
        return lambda z: functools.reduce(lambda z, function: function(z), functions, z)

    return built(MODIFIERS, case.modifier, named(arrays, "mod"), meaning, {"compose": one_by_one})(z)
