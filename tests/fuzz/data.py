"""The arrays of a case: float64 NumPy, rounded to the dtype in which the program gets them."""

import functools
import math
import zlib
from typing import Any

import ml_dtypes
import numpy as np

from . import masks
from .case import Case

FINE = np.float64


def storage(case: Case, leaf: str) -> Any:
    """The dtype of a floating leaf."""
    low = case.dtype in ("bfloat16", "float16")
    wide = leaf.startswith("cotangent") or (case.wide and leaf.startswith(("bias", "mod")))
    name = "float32" if low and wide else case.dtype
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def draw(case: Case, leaf: str, shape: tuple[int, ...], rng: Any) -> np.ndarray:
    """Query, key or value, in the manner of ``case.values``."""
    x, kind = rng.normal(size=shape), case.values
    if kind == "huge" and leaf != "value":
        x = x * (100 if case.dtype == "float16" else 1e15)
    if kind == "shifted" and leaf != "query":
        x = x + 30
    if kind == "equal" and leaf == "value":
        x = np.ones(shape)
    if kind == "columns":
        x = np.broadcast_to(x[..., :1], shape)
    if kind == "zeros" and leaf == "query":
        x = np.zeros(shape)
    if kind == "ones":
        x = np.ones(shape)
    if kind == "iota":
        x = np.arange(x.size, dtype=FINE).reshape(shape) / max(1, x.size)
    if kind == "eye":
        x = np.broadcast_to(np.eye(*shape[-2:]), shape)
    if kind == "tiny" and leaf == "value":
        exponent = -36 if case.direction == "forward" else -30  # a gradient has products of such numbers with weights
        x = x * (1e-3 if case.dtype == "float16" else 10.0**exponent)
    return x


def sized(case: Case, leaf: str, x: np.ndarray) -> np.ndarray:
    """Queries and keys so large that scores have the size of the case, which a common part of the keys leaves as it is.

    The size is in the queries; in float16, where few numbers are large, in queries and keys alike.
    """
    if case.common and leaf == "key":
        common = generator(case, "common").normal(size=case.D)
        x = (x + case.common * common) / math.hypot(1, case.common)
    if case.size is None or leaf not in ("query", "key"):
        return x
    scale = abs(case.D**-0.5 if case.scale is None else case.scale) or 1.0
    factor = case.size / (scale * math.sqrt(case.D))
    if case.dtype == "float16":
        return x * math.sqrt(factor)
    return x * factor if leaf == "query" else x


def leaves(case: Case) -> dict[str, np.ndarray]:
    """Every array that the program reads, by name; of floating ones, what is left after rounding to their dtype."""
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
        rng = generator(case, name)
        shape = (*outer(case, name), *shape)
        x = draw(case, name, shape, rng) if name in ("query", "key", "value") else rng.normal(size=shape)
        x = sized(case, name, x)
        if name == "bias" and case.bias_values != "normal":
            lowest = -np.inf if case.bias_values == "forbids" else float(ml_dtypes.finfo(storage(case, name)).min)
            x = np.where(rng.random(shape) < 0.3, lowest, x)
        if name.startswith("weights"):
            x = x / math.sqrt(shape[-1])
        with np.errstate(over="ignore"):
            found[name] = x.astype(storage(case, name)).astype(FINE)
    if case.mask is not None:
        arrays = masks.draw(case.mask, case, generator(case, "mask"), outer(case, "mask"))
        found |= {f"mask{k}": array for k, array in enumerate(arrays)}
    if case.dropout:
        found["rng"] = np.array([case.seed, 5], np.uint32)
    return found


def directions(case: Case, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """How each array moves with respect to which is differentiated."""
    moves = {name: generator(case, f"move {name}").normal(size=arrays[name].shape) for name in wanted(case, arrays)}
    return {name: x.astype(storage(case, name)).astype(FINE) for name, x in moves.items()}


def wanted(case: Case, arrays: dict[str, np.ndarray]) -> list[str]:
    """The names of the arrays with respect to which is differentiated."""
    return [name for name in arrays if group(name) in case.wanted]


def group(name: str) -> str:
    """The name of an array in the fields of a case: "mod0" is one of "mod", and a weight goes with what it projects."""
    return name.rstrip("0123456789").removeprefix("weights_").split("_")[0]


def known(case: Case, arrays: dict[str, np.ndarray]) -> list[str]:
    """The names of the arrays that the compiler knows."""
    return [name for name in arrays if group(name) in case.known]


def generator(case: Case, name: str) -> Any:
    return np.random.default_rng([case.seed, zlib.crc32(name.encode())])


def outer(case: Case, name: str) -> tuple[int, ...]:
    """The sizes of the axes that an array has for the maps."""
    return tuple(size for level, size in enumerate(case.mapped) if not case.is_shared(name, level))


def place(case: Case, name: str, index: tuple[int, ...]) -> tuple[int, ...]:
    """Where in an array the part for one call stands."""
    return tuple(k for level, k in enumerate(index) if not case.is_shared(name, level))


@functools.cache
def modifier_shapes(modifier: Any, N: int) -> tuple[tuple[int, ...], ...]:
    """The shapes of the arrays of a modifier."""
    if modifier is None:
        return ()
    kind, *settings = modifier
    if kind == "compose":
        return tuple(shape for part in settings for shape in modifier_shapes(part, N))
    return {"softcap": (), "alibi": ((N,),), "relative": ((N, 2 * settings[0] + 1),), "function": ((N,),)}[kind]


def allowed(case: Case, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The pairs that the mask of one call allows, from the arrays of this call."""
    if case.mask is None:
        return np.ones(case.scores, bool)
    given = [arrays[name] for name in arrays if name.startswith("mask")]
    return np.broadcast_to(masks.truth(case.mask, given, case.scores), case.scores)
