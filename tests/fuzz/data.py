"""The arrays of a case, in float64 but rounded to the dtype of the program; its mask and modifier.

Masks and modifiers are nested tuples: ("and", ("causal", 0), ("padding", False)).
"""

import functools
import math
import zlib
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from attendax import masks, scores

from .case import Case

FINE = np.float64
Arrays = dict[str, Any]


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


def operand(case: Case, leaf: str, shape: tuple[int, ...], rng: Any) -> np.ndarray:
    """Query, key or value, in the manner of ``case.values``."""
    x, low = rng.normal(size=shape), case.dtype == "float16"
    exponent = -36 if case.direction == "forward" else -30  # a gradient has products of tiny values with weights
    everywhere = {
        "columns": lambda: np.broadcast_to(x[..., :1], shape),
        "ones": lambda: np.ones(shape),
        "iota": lambda: np.arange(x.size, dtype=FINE).reshape(shape) / max(1, x.size),
        "eye": lambda: np.broadcast_to(np.eye(*shape[-2:]), shape),
    }
    of_leaf = {
        "query": {"huge": lambda: x * (100 if low else 1e15), "zeros": lambda: np.zeros(shape)},
        "key": {"huge": lambda: x * (100 if low else 1e15), "shifted": lambda: x + 30},
        "value": {
            "shifted": lambda: x + 30,
            "equal": lambda: np.ones(shape),
            "tiny": lambda: x * (1e-3 if low else 10.0**exponent),
        },
    }
    return sized(case, leaf, (everywhere | of_leaf[leaf]).get(case.values, lambda: x)())


def sized(case: Case, leaf: str, x: np.ndarray) -> np.ndarray:
    """Queries and keys so large that scores have the size of the case, which a common part of the keys leaves as it is.

    The size is in the queries; in float16, where few numbers are large, in queries and keys alike.
    """
    if case.common and leaf == "key":
        common = generator(case, "common").normal(size=case.D)
        x = (x + case.common * common) / math.hypot(1, case.common)
    if case.size is None or leaf == "value":
        return x
    scale = abs(case.D**-0.5 if case.scale is None else case.scale) or 1.0
    factor = case.size / (scale * math.sqrt(case.D))
    if case.dtype == "float16":
        return x * math.sqrt(factor)
    return x * factor if leaf == "query" else x


def leaves(case: Case) -> Arrays:
    """Every array that the program reads, by name."""
    *lead, N, T, S = case.scores
    heads, groups = ((), ()) if case.one_head else ((N,), (case.G,))
    shapes = {
        "query": (*lead, *heads, T, case.D),
        "key": (*lead, *groups, S, case.D),
        "value": (*lead, *groups, S, case.V),
        "cotangent_out": (*lead, *heads, T, case.V),
        "cotangent_lse": (*lead, *heads, T),
    }
    if case.bias is not None:
        full = case.scores[-2:] if case.one_head else case.scores
        flags = case.bias[-len(full) :]
        shapes["bias"] = tuple(n if f else 1 for n, f in zip(full[len(full) - len(flags) :], flags, strict=True))
    shapes |= {f"mod{k}": shape for k, shape in enumerate(modifier_shapes(case.modifier, N))}
    if case.layers:
        shapes |= {f"weights_{name}": (n, n) for name, n in (("query", case.D), ("key", case.D), ("value", case.V))}
    found = {}
    for name, shape in shapes.items():
        rng, shape = generator(case, name), (*outer(case, name), *shape)
        is_operand = name in ("query", "key", "value")
        x = operand(case, name, shape, rng) if is_operand else rng.normal(size=shape)
        if name == "bias" and case.bias_values != "normal":
            lowest = -np.inf if case.bias_values == "forbids" else float(ml_dtypes.finfo(storage(case, name)).min)
            x = np.where(rng.random(shape) < 0.3, lowest, x)
        found[name] = rounded(case, name, x / math.sqrt(shape[-1]) if name.startswith("weights") else x)
    if case.mask is not None:
        arrays = mask_arrays(case.mask, case, generator(case, "mask"), outer(case, "mask"))
        found |= {f"mask{k}": array for k, array in enumerate(arrays)}
    return found | ({"rng": np.array([case.seed, 5], np.uint32)} if case.dropout else {})


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


def known(case: Case, arrays: Arrays) -> list[str]:
    """The names of the arrays that the compiler knows."""
    return [name for name in arrays if group(name) in case.known]


def named(arrays: Arrays, kind: str) -> list[Any]:
    """The arrays of the mask or the modifier."""
    return [arrays[name] for name in sorted(arrays) if name.startswith(kind)]


def outer(case: Case, name: str) -> tuple[int, ...]:
    """The sizes of the axes that an array has for the maps."""
    return tuple(size for level, size in enumerate(case.mapped) if not case.is_shared(name, level))


def place(case: Case, name: str, index: tuple[int, ...]) -> tuple[int, ...]:
    """Where in an array the part for one call stands."""
    return tuple(k for level, k in enumerate(index) if not case.is_shared(name, level))


def of_call(case: Case, arrays: Arrays, index: tuple[int, ...]) -> Arrays:
    """The arrays of one call."""
    return {name: x[place(case, name, index)] for name, x in arrays.items()}


def options(case: Case, arrays: Arrays) -> dict[str, Any]:
    """The options of a call."""
    found: dict[str, Any] = {"scale": case.scale, "implementation": case.implementation}
    if case.mask is not None:
        found["mask"] = mask(case.mask, named(arrays, "mask"))
    if case.bias is not None:
        found["bias"] = arrays["bias"]
    if case.modifier is not None:
        found["score_mod"] = modifier(case.modifier, named(arrays, "mod"))
    return found | ({"dropout_rate": case.dropout, "dropout_rng": arrays["rng"]} if case.dropout else {})


def mask_arrays(mask: Any, case: Case, rng: Any, outer: tuple[int, ...]) -> list[np.ndarray]:
    """The arrays of a mask, ``outer`` the axes of the maps that it is mapped over."""
    kind, *settings = mask
    if kind in ("and", "or", "not"):
        return [array for part in settings for array in mask_arrays(part, case, rng, outer)]
    *own, N, T, S = case.scores
    lead = (*outer, *own)
    per_call = lead if kind == "padding" or settings[0] is True else (*outer, *(1 for _ in own))

    def ids(length: int) -> np.ndarray:
        x = rng.integers(0, 3, (*per_call, length))
        return np.sort(x, axis=-1) if rng.random() < 0.7 else x

    def booleans(full: tuple[bool, ...]) -> np.ndarray:
        shape = (T, S) if len(full) == 2 or case.one_head else (*own, N, T, S)
        flags = full[-2:] if len(shape) == 2 else (full[0],) * len(own) + full[1:]
        shape = (*outer, *(size if flag else 1 for size, flag in zip(shape, flags, strict=True)))
        return rng.random(shape) < rng.choice((0.15, 0.6, 0.9))

    found = {
        "padding": lambda: [rng.integers(0, S + 1, lead)] + [rng.integers(0, T + 1, lead)] * settings[0],
        "traced causal": lambda: [rng.integers(-2, S + 2, lead if settings[0] else outer)],
        "prefix": lambda: [rng.integers(0, S + 1, per_call)],
        "segments": lambda: [ids(T), ids(S)],
        "dense": lambda: [booleans(settings[0])],
        "array": lambda: [booleans(settings[0])],
        "function": lambda: [rng.integers(-1, S, (*outer, T))] * settings[0],
    }.get(kind, list)()
    return [np.asarray(x, np.int32 if np.asarray(x).dtype != bool else bool) for x in found]


def mask(tree: Any, arrays: list[Any]) -> Any:
    """The mask as ``attention`` takes it; uses up ``arrays``."""
    kind, *settings = tree
    if kind in ("and", "or"):
        one, other = (mask(part, arrays) for part in settings)
        return one & other if kind == "and" else one | other
    if kind == "not":
        return ~mask(settings[0], arrays)
    if kind in ("causal", "window"):
        return getattr(masks, kind)(*settings)
    if kind == "function" and not settings[0]:
        return masks.from_function(lambda i, j: (i * j) % 3 != 1)
    own = [arrays.pop(0) for _ in range(2 if kind == "segments" or (kind == "padding" and settings[0]) else 1)]
    if kind == "function":
        return masks.from_function(lambda i, j, farthest: j <= farthest[i], *own)
    return own[0] if kind == "array" else getattr(masks, kind.removeprefix("traced "))(*own)


def truth(tree: Any, arrays: list[Any], shape: tuple[int, ...]) -> Any:
    """The pairs of scores (..., N, T, S) that are allowed, by L3 and L4: broadcastable to them; uses up ``arrays``."""
    kind, *settings = tree
    i, j = np.arange(shape[-2])[:, None], np.arange(shape[-1])
    if kind in ("and", "or"):
        one, other = (truth(part, arrays, shape) for part in settings)
        return one & other if kind == "and" else one | other
    if kind == "not":
        return ~truth(settings[0], arrays, shape)
    if kind == "causal":
        return j <= i + settings[0]
    if kind == "window":
        left, right = (10**9 if bound is None else bound for bound in settings)
        return (i - left <= j) & (j <= i + right)
    if kind in ("dense", "array"):
        return arrays.pop(0)
    if kind == "function":
        return j <= arrays.pop(0)[:, None] if settings[0] else (i * j) % 3 != 1
    if kind == "segments":
        query_ids, key_ids = arrays.pop(0), arrays.pop(0)
        return (query_ids[..., :, None] == key_ids[..., None, :])[..., None, :, :]
    number = arrays.pop(0)[..., None, None, None]
    if kind == "traced causal":
        return j <= i + number
    if kind == "prefix":
        return (j <= i) | (j < number)
    return (j < number) & (i < arrays.pop(0)[..., None, None, None]) if settings[0] else j < number


def allowed(case: Case, arrays: Arrays, numpy: Any = np) -> Any:
    """The pairs that the mask of one call allows, from the arrays of this call."""
    pairs = True if case.mask is None else truth(case.mask, named(arrays, "mask"), case.scores)
    return numpy.broadcast_to(pairs, case.scores)


def modifier(tree: Any, arrays: list[Any]) -> Any:
    """The modifier as ``attention`` takes it; uses up ``arrays``."""
    kind, *settings = tree
    if kind == "compose":
        return scores.compose(*(modifier(part, arrays) for part in settings))
    if kind == "softcap":
        return scores.softcap(*settings)
    array = arrays.pop(0)
    if kind == "alibi":
        return scores.alibi(array, offset=settings[0])
    if kind == "relative":
        return scores.relative_bias(array, offset=settings[1])

    def bent(s: Any, positions: Any, strengths: Any) -> Any:
        return s + jnp.asarray(strengths)[positions[0]] * jnp.tanh(s)

    if settings[0]:  # the function closes over its array
        return scores.from_function(lambda s, positions: bent(s, positions, array))
    return scores.from_function(bent, array)


@functools.cache
def modifier_shapes(modifier: Any, N: int) -> tuple[tuple[int, ...], ...]:
    """The shapes of the arrays of a modifier."""
    if modifier is None:
        return ()
    kind, *settings = modifier
    if kind == "compose":
        return tuple(shape for part in settings for shape in modifier_shapes(part, N))
    return {"softcap": (), "alibi": ((N,),), "relative": ((N, 2 * settings[0] + 1),), "function": ((N,),)}[kind]
