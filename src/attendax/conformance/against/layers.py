"""A layer in NumPy by every convention that is known: what a function of (params, x) is held against.

``params`` has the names of ``shapes``; kernels are (in, out). A function reads those that it needs.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

PLACES = 16  # rows of the table of positions


class Sizes(NamedTuple):
    """Texts, tokens, width, width within, and by how much the heads are more than those that were asked for."""

    B: int
    T: int
    M: int
    F: int
    more: int = 1


SEARCH = Sizes(2, 5, 32, 12)  # at which conventions are found
SIZES = SEARCH, Sizes(1, 9, 16, 20, 2), Sizes(3, 4, 24, 40)  # at which two layers are compared
PACKINGS = {  # how the columns of qkv_kernel lie: the axes of a reshape, and where query, key and value are
    "[q | k | v]": ("3, N, D", 0), "each head [q | k | v]": ("N, 3, D", 1), "each number [q, k, v]": ("N, D, 3", 2),
}  # fmt: skip
SPLITS = {"head after head": ("N, D", 0), "the heads in turn": ("D, N", 1)}
KERNELS = "(in, out)", "(out, in)"
ROTARY = "", "halves", "neighbours", "halves of the whole"  # which two numbers of a head are turned together
PARTS, FREQUENCIES = (1.0, 0.5, 0.25), ("of the part", "of the whole")  # of a head: turned, and counted by
BASES = 1e4, 5e5, 1e6
SCALINGS = "", "linear", "NTK", "YaRN"  # each but the first with a factor, YaRN with the length that was trained
TRAINED, FACTORS = (2048, 4096, 8192, 32768), (2.0, 4.0, 8.0, 16.0, 32.0, 40.0)
BETAS = 32, 1  # of YaRN: turns within the trained length, from which on all is kept, and down to which all is stretched
QK_ORDER = "before rotary", "after rotary"
POSITIONS = {"": None, "the table from row 0": 0, "the table from row 1": 1, "the table from row 2": 2,
             "sines from 0": "sines 0", "sines from 1": "sines 1"}  # fmt: skip
PLACE = "before", "after", "before, the residual after", "before both at once", "before both at once, a norm each"
NORMS = {
    "layer norm": "{d} / xp.sqrt((({d}) ** 2).mean(-1)[..., None] + eps)",
    "RMS norm": "x / xp.sqrt((x**2).mean(-1)[..., None] + eps)",
    "RMS norm of 1 + scale": "x / xp.sqrt((x**2).mean(-1)[..., None] + eps)",
    "layer norm by the deviation of N - 1": "{d} / (xp.sqrt((({d}) ** 2).sum(-1)[..., None] / (M - 1)) + eps)",
}
EPS = 1e-5, 1e-6, 1e-12, 1e-3, 1e-8, 1e-7
ACTIVATIONS = "GELU by erf", "GELU by tanh", "GELU by the sigmoid of 1.702 x", "ReLU", "SiLU"
GATES = "the gate", "up"
SCALES = {"1/sqrt(D)": "D**-0.5", "1": "1.0", "1/D": "1 / D", "1/sqrt(M)": "M**-0.5"}
LAW: dict[str, Any] = {
    "place": PLACE[0], "norm": "layer norm", "eps": 1e-5, "activation": ACTIVATIONS[0], "gated": GATES[0],
    "packing": "[q | k | v]", "split": "head after head", "kernels": KERNELS[0], "rotary": "", "part": 1.0,
    "frequencies": FREQUENCIES[0], "base": 1e4, "scaling": "", "factor": 1.0, "trained": 0, "positions": "",
    "qk_norm": "RMS norm", "qk_order": QK_ORDER[0],
    "causal": "no", "scale": "1/sqrt(D)", "residual": "yes",
}  # fmt: skip


def shapes(sizes: Sizes = SEARCH, heads: int = 2) -> dict[str, tuple[int, ...]]:
    """The names and shapes of all that a layer may read."""
    M, F = sizes.M, sizes.F
    D = M // heads
    found: dict[str, tuple[int, ...]] = {}
    for name in ("query", "key", "value", "out"):
        found |= {f"{name}_kernel": (M, M), f"{name}_bias": (M,)}
    found |= {"qkv_kernel": (M, 3 * M), "qkv_bias": (3 * M,)}
    for name in ("norm1", "norm2"):
        found |= {f"{name}_scale": (M,), f"{name}_bias": (M,)}
    found |= {"up_kernel": (M, F), "up_bias": (F,), "gate_kernel": (M, F), "gate_bias": (F,)}
    found |= {"down_kernel": (F, M), "down_bias": (M,), "positions": (PLACES, M)}
    found |= {"query_norm_scale": (D,), "key_norm_scale": (D,)}  # of each head; of all heads together:
    return found | {"queries_norm_scale": (M,), "keys_norm_scale": (M,)}


def drawn(seed: int, sizes: Sizes = SEARCH, heads: int = 2) -> dict[str, np.ndarray]:
    """Weights; those of ``qkv_kernel`` are query, key and value beside each other."""
    rng = np.random.default_rng(seed)
    found = {k: rng.standard_normal(shape).astype(np.float32) for k, shape in shapes(sizes, heads).items()}
    less = np.float32((8 / sizes.M) ** 0.5)  # scores are as large at any width, and exp of them is finite
    found = {k: x * less if k.endswith("_kernel") else x for k, x in found.items()}
    for kind in ("kernel", "bias"):
        found[f"qkv_{kind}"] = np.concatenate([found[f"{x}_{kind}"] for x in ("query", "key", "value")], -1)
    return found


def layer(params: Mapping[str, np.ndarray], x: np.ndarray, how: Mapping[str, Any], heads: int) -> np.ndarray:
    """Results (B, T, M) of x (B, T, M), in float64; what ``params`` lacks, the layer lacks."""
    p = {k: np.asarray(v, np.float64) for k, v in params.items()}
    x = np.asarray(x, np.float64)
    x = x + _positions(p, how["positions"], *x.shape[1:])
    place, residual = how["place"], how["residual"] == "yes"

    def norm(k: int, x: np.ndarray) -> np.ndarray:
        return _norm(x, p.get(f"norm{k}_scale"), p.get(f"norm{k}_bias"), how)

    attend = _parts(p, {"query", "qkv"})
    mlp = "up_kernel" in p
    if place.startswith("before both at once"):
        y, z = norm(1, x), norm(2 if place.endswith("each") else 1, x)
        return x * residual + (_attention(p, y, how, heads) if attend else 0) + (_mlp(p, z, how) if mlp else 0)
    for k, there, run in ((1, attend, lambda y: _attention(p, y, how, heads)), (2, mlp, lambda y: _mlp(p, y, how))):
        if not there:
            continue
        if place == "after":
            x = norm(k, x * residual + run(x))
        else:
            y = norm(k, x)
            x = (y if place.endswith("after") else x) * residual + run(y)
    return x


def _parts(p: Mapping[str, np.ndarray], names: set[str]) -> bool:
    return any(f"{name}_kernel" in p for name in names)


def sines(start: int, length: int, width: int) -> np.ndarray:
    """(length, width): sines and cosines of positions from ``start``, in turn."""
    angles = (start + np.arange(length))[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, width)


def _positions(p: Mapping[str, np.ndarray], positions: str, length: int, width: int) -> Any:
    start = POSITIONS[positions]
    if isinstance(start, str):
        return sines(int(start[-1]), length, width)
    return 0 if start is None else p["positions"][start : start + length]


def _norm(x: np.ndarray, scale: np.ndarray | None, bias: np.ndarray | None, how: Mapping[str, Any]) -> np.ndarray:
    if scale is None:
        return x
    return _normed(x, scale, how["norm"], how["eps"]) + (0 if bias is None else bias)


def _normed(x: np.ndarray, scale: np.ndarray, kind: str, eps: float) -> np.ndarray:
    known = {"xp": np, "x": x, "eps": eps, "M": x.shape[-1]}
    y: np.ndarray = eval(NORMS[kind].format(d="(x - x.mean(-1)[..., None])"), known)
    return y * (scale + (1 if "1 + scale" in kind else 0))


def _linear(p: Mapping[str, np.ndarray], name: str, x: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    kernel = p[f"{name}_kernel"]
    return x @ (kernel.T if how["kernels"] == KERNELS[1] else kernel) + p.get(f"{name}_bias", 0)


def _attention(p: Mapping[str, np.ndarray], x: np.ndarray, how: Mapping[str, Any], heads: int) -> np.ndarray:
    length, M = x.shape[1:]
    D = M // heads
    sizes = {"N": heads, "D": D, "3": 3}
    if "qkv_kernel" in p:
        axes, three = PACKINGS[how["packing"]]
        y = _linear(p, "qkv", x, how).reshape(*x.shape[:2], *(sizes[a] for a in axes.split(", ")))
        query, key, value = (np.take(y, k, 2 + three).swapaxes(1, 2) for k in range(3))
    else:
        axes, head = SPLITS[how["split"]]
        rows = [
            _linear(p, n, x, how).reshape(*x.shape[:2], *(sizes[a] for a in axes.split(", ")))
            for n in ("query", "key", "value")
        ]
        query, key, value = (np.moveaxis(y, 2 + head, 1) for y in rows)
    for step in ("normed", "rotated") if how["qk_order"] == QK_ORDER[0] else ("rotated", "normed"):
        if step == "rotated":
            query, key = (_rotated(y, how) for y in (query, key))
        else:
            query, key = (_norm_of_heads(p, y, name, how) for y, name in ((query, "query"), (key, "key")))
    scores = query @ key.swapaxes(-1, -2) * eval(SCALES[how["scale"]], {"D": D, "M": M})
    if how["causal"] == "yes":
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ value
    _, head = SPLITS["head after head" if "qkv_kernel" in p else how["split"]]
    out = np.moveaxis(out, 1, 2 + head).reshape(*x.shape)
    return _linear(p, "out", out, how) if "out_kernel" in p else out


def _norm_of_heads(p: Mapping[str, np.ndarray], x: np.ndarray, name: str, how: Mapping[str, Any]) -> np.ndarray:
    """Queries or keys (B, N, T, D) after their own norm: of each head, or of all heads together."""
    whole = f"{name}s" if name == "key" else "queries"
    if (scale := p.get(f"{name}_norm_scale")) is not None:
        x = _normed(x, scale, how["qk_norm"], how["eps"])
    if (scale := p.get(f"{whole}_norm_scale")) is not None:
        B, N, T, D = x.shape
        flat = _normed(x.swapaxes(1, 2).reshape(B, T, N * D), scale, how["qk_norm"], how["eps"])
        x = flat.reshape(B, T, N, D).swapaxes(1, 2)
    return x


def _rotated(x: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    """x (..., T, D), turned by its position."""
    if not how["rotary"]:
        return x
    D = x.shape[-1]
    R = int(how["part"] * D) // 2 * 2
    speeds, larger = frequencies(R, R if how["frequencies"] == FREQUENCIES[0] else D, how)
    angles = np.arange(x.shape[-2])[:, None] * speeds
    start = {"halves": R // 2, "halves of the whole": D // 2}.get(how["rotary"])
    places = (slice(0, R, 2), slice(1, R, 2)) if start is None else (slice(0, R // 2), slice(start, start + R // 2))
    one, other = (x[..., place] for place in places)
    turned = x.copy()
    turned[..., places[0]] = larger * (one * np.cos(angles) - other * np.sin(angles))
    turned[..., places[1]] = larger * (one * np.sin(angles) + other * np.cos(angles))
    return turned


def frequencies(R: int, width: int, how: Mapping[str, Any]) -> tuple[np.ndarray, float]:
    """By how much a position turns each of R / 2 pairs, counted by a width; and what the turned numbers are times."""
    base, factor, exponents = how["base"], how["factor"], np.arange(0, R, 2) / max(width, 1)
    if how["scaling"] == "NTK" and width > 2:
        base = base * factor ** (width / (width - 2))
    speeds = np.asarray(base, np.float64) ** -exponents
    if how["scaling"] == "linear":
        return speeds / factor, 1.0
    if how["scaling"] != "YaRN":
        return speeds, 1.0
    low, high = (width * math.log(how["trained"] / (2 * math.pi * beta)) / (2 * math.log(base)) for beta in BETAS)
    low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    stretched = np.clip((np.arange(R // 2) - low) / max(high - low, 1e-3), 0, 1)
    return speeds / factor * stretched + speeds * (1 - stretched), 0.1 * math.log(factor) + 1


def _mlp(p: Mapping[str, np.ndarray], x: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    up = _linear(p, "up", x, how)
    if "gate_kernel" not in p:
        up = _active(up, how["activation"])
    else:
        gate = _linear(p, "gate", x, how)
        up = (
            _active(gate, how["activation"]) * up if how["gated"] == GATES[0] else gate * _active(up, how["activation"])
        )
    return _linear(p, "down", up, how)


def _active(x: np.ndarray, activation: str) -> np.ndarray:
    if activation == "ReLU":
        return np.maximum(x, 0)
    if activation == "GELU by erf":
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    if activation == "GELU by tanh":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return x / (1 + np.exp(-x * (1.702 if "1.702" in activation else 1)))
