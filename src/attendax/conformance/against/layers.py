"""A layer in NumPy by every convention that is known: what a function of (params, x) is held against.

``params`` has the names of ``shapes``; kernels are (in, out). A function reads those that it needs.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf, expit

from attendax import rotary, spec

from ..conventions.table import python

TABLE_ROWS = 320  # rows of the table of positions


class LayerSizes(NamedTuple):
    """Texts, tokens, width, width within, and by how much the heads are more than those that were asked for."""

    B: int
    T: int
    M: int
    F: int
    more: int = 1


SEARCH = LayerSizes(2, 5, 32, 12)  # at which conventions are found
# Two layers are compared at these.
SIZES = SEARCH, LayerSizes(1, 9, 16, 20, 2), LayerSizes(3, 4, 24, 40), LayerSizes(1, 301, 16, 12)
PACKINGS = {  # how the columns of qkv_kernel lie: the axes of a reshape, and where query, key and value are
    "[q | k | v]": ("3, N, D", 0), "each head [q | k | v]": ("N, 3, D", 1), "each column [q, k, v]": ("N, D, 3", 2),
}  # fmt: skip
SPLITS = {"side by side": ("N, D", 0), "every N-th": ("D, N", 1)}
POSITIONS = "", *(f"the table from row {k}" for k in range(3)), "sines from 0", "sines from 1"
OUT_IN = "(out, in)"  # kernels


NORMS = "layer norm", "RMS norm", "RMS norm times (1 + scale)", "layer norm by the sample deviation (M - 1)"
ACTIVATIONS: dict[str, Callable[[np.ndarray], Any]] = {
    "GELU by erf": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "GELU by tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "GELU by the sigmoid of 1.702 x": lambda x: x * expit(1.702 * x),
    "ReLU": lambda x: np.maximum(x, 0),
    "SiLU": lambda x: x * expit(x),
}


class Axis(NamedTuple):
    """A convention: the values that are tried, the first by the law; in words; and parts without which it is none."""

    values: tuple[Any, ...]
    words: str = ""
    needs: tuple[str, ...] = ()


OF_HEADS = "query_norm", "key_norm", "queries_norm", "keys_norm"
PLACES = "before", "after", "before, with a normed residual", "before, in parallel", "before, in parallel, a norm each"
LAYER_AXES = {
    "place": Axis(PLACES, "place of the norms and residuals"),
    "norm": Axis(NORMS, "norm of the layer", ("norm",)),
    "eps": Axis((1e-5, 1e-6, 1e-12, 1e-3, 1e-8, 1e-7), "eps of the norms", ("norm",)),
    "activation": Axis(tuple(ACTIVATIONS), "activation", ("up",)),
    "gated": Axis(("the gate", "up"), "input of the activation", ("gate",)),
    "packing": Axis(tuple(PACKINGS), "columns of qkv_kernel", ("qkv",)),
    "split": Axis(tuple(SPLITS), "columns of a head", ("query_kernel",)),
    "kernels": Axis(("(in, out)", OUT_IN), "kernels"),
    "rotary": Axis(("", "halves", "neighbours", "half a head apart"), "rotary"),  # what is turned together
    "part": Axis((1.0, 0.5, 0.25), "part of a head that rotary turns", ("rotary",)),
    "frequencies": Axis(
        ("for the width of the part", "for the width of the head"), "frequencies of rotary", ("rotary",)
    ),
    "base": Axis((1e4, 5e5, 1e6), "base of rotary", ("rotary",)),
    "scaling": Axis(("", "linear", "NTK", "YaRN"), "scaling of rotary", ("rotary",)),  # by a factor
    "factor": Axis((1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 40.0)),
    "trained": Axis((0, 2048, 4096, 8192, 32768)),
    "positions": Axis(POSITIONS, "positions"),
    "qk_norm": Axis(("RMS norm", *(x for x in NORMS if x != "RMS norm")), "norm of queries and keys", OF_HEADS),
    "qk_order": Axis(("before rotary", "after rotary"), "norm of queries and keys", OF_HEADS),
    "causal": Axis(("no", "yes"), "causal"),
    "scale": Axis(("1/√D", "1", "1/D", "1/√(N·D)"), "scale"),
    "residual": Axis(("yes", "no"), "residual"),
}
LAW: dict[str, Any] = {name: axis.values[0] for name, axis in LAYER_AXES.items()}


def shapes(sizes: LayerSizes = SEARCH, heads: int = 2) -> dict[str, tuple[int, ...]]:
    """The names and shapes of all that a layer may read."""
    M, F = sizes.M, sizes.F
    of_parts: dict[str, tuple[int, ...]] = dict.fromkeys(("query", "key", "value", "out"), (M, M))
    of_parts |= {"qkv": (M, 3 * M), "norm1": (M,), "norm2": (M,), "up": (M, F), "gate": (M, F), "down": (F, M)}
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in of_parts.items():
        found |= {f"{name}_{'kernel' if len(shape) > 1 else 'scale'}": shape, f"{name}_bias": shape[-1:]}
    of_heads = {"query": M // heads, "key": M // heads, "queries": M, "keys": M}  # of each head; of all together
    return found | {"positions": (TABLE_ROWS, M)} | {f"{name}_norm_scale": (size,) for name, size in of_heads.items()}


def drawn(seed: int, sizes: LayerSizes = SEARCH, heads: int = 2) -> dict[str, np.ndarray]:
    """Weights; those of ``qkv_kernel`` are query, key and value beside each other."""
    rng = np.random.default_rng(seed)
    found = {k: rng.standard_normal(shape).astype(np.float32) for k, shape in shapes(sizes, heads).items()}
    less = np.float32((8 / sizes.M) ** 0.5)  # scores are as large at any width, and exp of them is finite
    found = {k: x * less if k.endswith("_kernel") else x for k, x in found.items()}
    for kind in ("kernel", "bias"):
        found[f"qkv_{kind}"] = np.concatenate([found[f"{x}_{kind}"] for x in ("query", "key", "value")], -1)
    return found


def inputs(seed: int, size: float = 1.0, sizes: LayerSizes = SEARCH) -> np.ndarray:
    """x (B, T, M)."""
    return (np.random.default_rng((seed, 9)).standard_normal(sizes[:3]) * size).astype(np.float32)


def first_row(positions: str) -> int | None:
    """The row of the table that the first token gets; None without a table."""
    return int(positions[-1]) if "table" in positions else None


def layer(params: Mapping[str, np.ndarray], x: np.ndarray, how: Mapping[str, Any], heads: int) -> np.ndarray:
    """Results (B, T, M) of x (B, T, M), in float64; what ``params`` lacks, the layer lacks."""
    p = {k: np.asarray(v, np.float64) for k, v in params.items()}
    x = np.asarray(x, np.float64)
    x = x + _positions(p, how["positions"], *x.shape[1:])
    place, residual = how["place"], how["residual"] == "yes"

    def norm(k: int, x: np.ndarray) -> np.ndarray:
        scale = p.get(f"norm{k}_scale")
        return x if scale is None else _normed(x, scale, how["norm"], how["eps"]) + p.get(f"norm{k}_bias", 0)

    parts = [(1, _attention)] if {"query_kernel", "qkv_kernel"} & p.keys() else []
    parts += [(2, _mlp)] if "up_kernel" in p else []
    if "in parallel" in place:
        normed = {1: norm(1, x), 2: norm(2 if place.endswith("each") else 1, x)}
        return np.asarray(x * residual + sum(run(p, normed[k], how, heads) for k, run in parts))
    for k, run in parts:
        if place == "after":
            x = norm(k, x * residual + run(p, x, how, heads))
        else:
            y = norm(k, x)
            x = (y if place.endswith("residual") else x) * residual + run(p, y, how, heads)
    return x


def _positions(p: Mapping[str, np.ndarray], positions: str, length: int, width: int) -> Any:
    if (start := first_row(positions)) is not None:
        return p["positions"][start : start + length]
    if not positions:
        return 0
    first = int(positions[-1])
    return spec.sinusoidal_encoding(first + length, width)[first:]


def _normed(x: np.ndarray, scale: np.ndarray, kind: str, eps: float) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True) if kind.startswith("layer") else x
    size = np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    if kind == NORMS[-1]:
        size = x.std(-1, ddof=1, keepdims=True) + eps
    return x / size * (scale + ("1 + scale" in kind))


def _linear(p: Mapping[str, np.ndarray], name: str, x: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    kernel = p[f"{name}_kernel"]
    return x @ (kernel.T if how["kernels"] == OUT_IN else kernel) + p.get(f"{name}_bias", 0)


def _attention(p: Mapping[str, np.ndarray], x: np.ndarray, how: Mapping[str, Any], heads: int) -> np.ndarray:
    B, T, M = x.shape
    sizes = {"N": heads, "D": M // heads, "3": 3}

    def rows(name: str, axes: str) -> np.ndarray:
        return _linear(p, name, x, how).reshape(B, T, *(sizes[axis] for axis in axes.split(", ")))

    axes, head = SPLITS["side by side" if "qkv_kernel" in p else how["split"]]
    if "qkv_kernel" in p:
        packed, three = PACKINGS[how["packing"]]
        query, key, value = np.moveaxis(rows("qkv", packed), 2 + three, 0).swapaxes(2, 3)
    else:
        query, key, value = (np.moveaxis(rows(name, axes), 2 + head, 1) for name in ("query", "key", "value"))
    for step in ("normed", "rotated") if how["qk_order"] == LAW["qk_order"] else ("rotated", "normed"):
        if step == "rotated":
            query, key = (_rotated(y, how) for y in (query, key))
        else:
            query, key = (_norm_of_heads(p, y, name, how) for y, name in ((query, "query"), (key, "key")))
    scores = query @ key.swapaxes(-1, -2) * eval(python(how["scale"]), {"np": np, **sizes})
    if how["causal"] == "yes":
        scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ value
    out = np.moveaxis(out, 1, 2 + head).reshape(B, T, M)
    return _linear(p, "out", out, how) if "out_kernel" in p else out


def _norm_of_heads(p: Mapping[str, np.ndarray], x: np.ndarray, name: str, how: Mapping[str, Any]) -> np.ndarray:
    """Queries or keys (B, N, T, D) after their own norm: of each head, or of all heads together."""
    if (scale := p.get(f"{name}_norm_scale")) is not None:
        x = _normed(x, scale, how["qk_norm"], how["eps"])
    if (scale := p.get("queries_norm_scale" if name == "query" else "keys_norm_scale")) is not None:
        rows = x.swapaxes(1, 2)
        flat = _normed(rows.reshape(*rows.shape[:2], -1), scale, how["qk_norm"], how["eps"])
        x = flat.reshape(rows.shape).swapaxes(1, 2)
    return x


def _rotated(x: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    """x (..., T, D), turned by its position."""
    if not how["rotary"]:
        return x
    D = x.shape[-1]
    R = int(how["part"] * D) // 2 * 2
    width = R if how["frequencies"] == LAW["frequencies"] else D // 2 * 2
    if not R:
        return x
    speeds, larger = _frequencies(width, how["base"], how["scaling"], how["factor"], how["trained"])
    angles = np.arange(x.shape[-2])[:, None] * np.array(speeds[: R // 2])
    start = D // 2 if how["rotary"] == "half a head apart" else R // 2
    places = slice(R // 2), slice(start, start + R // 2)
    if how["rotary"] == "neighbours":
        places = slice(0, R, 2), slice(1, R, 2)
    pairs, turned = x[..., places[0]] + 1j * x[..., places[1]], x.copy()
    pairs = pairs * larger * np.exp(1j * angles)
    turned[..., places[0]], turned[..., places[1]] = pairs.real, pairs.imag
    return turned


@functools.lru_cache
def _frequencies(width: int, base: float, scaling: str, factor: float, trained: int) -> rotary.Frequencies:
    """The angle by which a position turns each pair of columns."""
    if scaling == "linear":
        return rotary.interpolated(width, factor, base)
    if scaling == "YaRN":
        return rotary.yarn(width, factor, trained=trained, theta=base)
    return rotary.ntk(width, factor, base) if scaling and width > 2 else rotary.plain(width, base)


def _mlp(p: Mapping[str, np.ndarray], x: np.ndarray, how: Mapping[str, Any], heads: int) -> np.ndarray:
    up, active = _linear(p, "up", x, how), ACTIVATIONS[how["activation"]]
    if "gate_kernel" not in p:
        up = active(up)
    else:
        gate = _linear(p, "gate", x, how)
        up = active(gate) * up if how["gated"] == LAW["gated"] else gate * active(up)
    return _linear(p, "down", up, how)
