"""Sixty calls of the kernels of Triton on this GPU, before anything is timed: are they right?

Twenty sets of options in three dtypes; the widths take turns. out, lse and all gradients are held against the
specification in float64, by the rule of the tests that run in Triton's interpreter. Bits are compared with those of a
second run, of some queries alone, and of the first text beside another that holds NaN.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attendax import attention, masks, scores, spec

ROUNDINGS = 2.0  # of the largest number of a result
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-20}
NAMES = "out", "lse", "dquery", "dkey", "dvalue", "dbias"
WIDTHS = (64, 64), (128, 128), (96, 80), (256, 256)  # of queries, and of values
FEW = 37  # queries of a call of its own


class Sizes(NamedTuple):
    """The axes of a call but its widths."""

    B: int = 2
    N: int = 4
    G: int = 2
    T: int = 280
    S: int = 300


class Check(NamedTuple):
    """A call: ``options(sizes, rows)`` are those of some of its queries, a slice."""

    name: str
    dtype: str
    widths: tuple[int, int]
    sizes: Sizes
    options: Callable[[Sizes, slice], dict[str, Any]]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def ids(sizes: Sizes, count: int) -> np.ndarray:
    """Three texts in each row of a batch, one after the other."""
    ends = np.array([count // 5, count // 2]) + np.arange(sizes.B)[:, None]
    return (np.arange(count)[:, None] >= ends[:, None]).sum(-1)


def segments(sizes: Sizes, rows: slice) -> masks.Mask:
    return masks.segments(ids(sizes, sizes.T)[:, rows], ids(sizes, sizes.S))


def dense(sizes: Sizes, rows: slice) -> np.ndarray:
    return drawn(sizes.B, 1, sizes.T, sizes.S)[:, :, rows] > -0.5


def modifiers(sizes: Sizes, rows: slice) -> scores.ScoreModifier:
    slopes, table = np.linspace(0.05, 0.3, sizes.N, dtype=np.float32), drawn(sizes.N, 65)
    parts = scores.alibi(slopes, rows.start), scores.relative_bias(table, rows.start)
    return scores.compose(scores.softcap(3.0), *parts)


def bias(sizes: Sizes, rows: slice) -> np.ndarray:
    return drawn(1, sizes.N, sizes.T, sizes.S)[:, :, rows]


def lengths(sizes: Sizes, *shares: float) -> masks.Mask:
    return masks.padding(np.array([int(share * sizes.S) for share in shares][: sizes.B]))


SIZES = Sizes()
CACHE = Sizes(B=1, N=4, G=1, T=40, S=20_000)
OPTIONS: dict[str, Callable[[Sizes, slice], dict[str, Any]]] = {
    "no mask": lambda sizes, rows: {},
    "causal": lambda sizes, rows: {"mask": masks.causal(rows.start)},
    "causal from key 20 on": lambda sizes, rows: {"mask": masks.causal(20 + rows.start)},
    "a window": lambda sizes, rows: {"mask": masks.window(sizes.S // 2, 9, rows.start)},
    "a window to the left": lambda sizes, rows: {"mask": masks.window(sizes.S // 5, 0, rows.start)},
    "lengths": lambda sizes, rows: {"mask": lengths(sizes, 1.0, 0.25)},
    "no keys": lambda sizes, rows: {"mask": masks.causal(rows.start) & lengths(sizes, 0.5, 0.0)},
    "segments": lambda sizes, rows: {"mask": segments(sizes, rows)},
    "packed and causal": lambda sizes, rows: {"mask": segments(sizes, rows) & masks.causal(rows.start)},
    "a negative scale": lambda sizes, rows: {"scale": -0.11, "mask": masks.causal(rows.start)},
    "scale 0": lambda sizes, rows: {"scale": 0.0, "mask": masks.causal(rows.start)},
    "a dense mask": lambda sizes, rows: {"mask": dense(sizes, rows)},
    "causal or a window": lambda sizes, rows: {
        "mask": masks.causal(rows.start - sizes.T // 3) | masks.window(sizes.S // 15, sizes.S // 10, rows.start)
    },
    "a bias": lambda sizes, rows: {"bias": bias(sizes, rows)},
    "a bias for each key": lambda sizes, rows: {"bias": drawn(sizes.B, 1, 1, sizes.S)},
    "softcap": lambda sizes, rows: {"score_mod": scores.softcap(2.0), "mask": masks.causal(rows.start)},
    "all modifiers": lambda sizes, rows: {"score_mod": modifiers(sizes, rows)},
    "dropout": lambda sizes, rows: {"dropout_rate": 0.2, "dropout_rng": jax.random.key(7)},
    "everything": lambda sizes, rows: {
        "dropout_rate": 0.2,
        "dropout_rng": jax.random.key(3),
        "score_mod": modifiers(sizes, rows),
        "bias": bias(sizes, rows),
        "mask": masks.dense(dense(sizes, rows)) & masks.window(2 * sizes.S // 3, 8, rows.start),
    },
    "a long cache": lambda sizes, rows: {"mask": masks.causal(sizes.S - sizes.T + rows.start)},
}


def checks(sizes: Sizes = SIZES, cache: Sizes = CACHE) -> Iterator[Check]:
    """All calls."""
    for number, (name, options) in enumerate(OPTIONS.items()):
        for dtype in EPS:
            yield Check(name, dtype, WIDTHS[number % len(WIDTHS)], cache if name == "a long cache" else sizes, options)


def arrays_of(check: Check) -> list[np.ndarray]:
    """query, key, value, dout, dlse."""
    (B, N, G, T, S), (D, V) = check.sizes, check.widths
    arrays = [drawn(*shape) for shape in ((B, N, T, D), (B, G, S, D), (B, G, S, V), (B, N, T, V))]
    return [*(x.astype(jnp.dtype(check.dtype)) for x in arrays), drawn(B, N, T)]


def found(check: Check, arrays: list[np.ndarray], rows: slice) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """The program of some queries, compiled: of query, key, value, dout and dlse, it gives the results."""
    options = check.options(check.sizes, rows)
    bias = options.pop("bias", None)

    def run(query: Any, key: Any, value: Any, dout: Any, dlse: Any, bias: Any) -> Any:
        def attend(query: Any, key: Any, value: Any, bias: Any) -> Any:
            return attention(query, key, value, bias=bias, return_lse=True, implementation="triton", **options)

        results, pull = jax.vjp(attend, query, key, value, bias)
        return *results, *jax.tree.leaves(pull((dout, dlse)))

    compiled = jax.jit(run).lower(*arrays, bias).compile()
    return lambda arrays: [np.asarray(x) for x in compiled(*arrays, bias)]


def right(check: Check, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The results by the specification, in float64."""
    query, key, value, dout, dlse = (x.astype(np.float64) for x in arrays)
    options = check.options(check.sizes, slice(0, check.sizes.T))
    for name in {"bias", "score_mod"} & {*options}:
        options[name] = jax.tree.map(lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, options[name])
    with np.errstate(all="ignore"):
        outputs = spec.attention(query, key, value, return_lse=True, **options)
        grads = spec.attention_backward(dout, query, key, value, grad_lse=dlse, **options)
    return [*outputs, *grads[: 4 if "bias" in options else 3]]


def of_rows(check: Check) -> slice:
    """The queries that are tried alone; dropout goes by position, so there the first ones."""
    options = check.options(check.sizes, slice(0, 1))
    start = 0 if "dropout_rate" in options else max(0, check.sizes.T - FEW - 1)
    return slice(start, min(start + FEW, check.sizes.T))


def faults(check: Check) -> list[str]:
    """Name what is wrong with the results of a call."""
    arrays, everything, rows = arrays_of(check), slice(0, check.sizes.T), of_rows(check)
    run = found(check, arrays, everything)
    got, again = run(arrays), run(arrays)
    told = off(check, got, right(check, arrays)) + other_bits("a second run", got, again)
    few = [x[:, :, rows] if k in (0, 3, 4) else x for k, x in enumerate(arrays)]
    part = found(check, few, rows)(few)[:3]
    told += other_bits(f"queries {rows.start} to {rows.stop} alone", [x[:, :, rows] for x in got[:3]], part)
    if check.sizes.B > 1:
        bad = [np.concatenate([x[:1], np.full_like(x[1:], np.nan)]) for x in arrays[:3]]
        told += other_bits("a text beside NaN", [x[:1] for x in got[:5]], [x[:1] for x in run([*bad, *arrays[3:]])[:5]])
    return told


def off(check: Check, got: list[np.ndarray], wanted: list[np.ndarray]) -> list[str]:
    """Results that are not near those of the specification."""
    told = []
    for name, one, other in zip(NAMES, got, wanted, strict=False):
        one, fine = one.astype(np.float64), np.isfinite(other)
        if not all((kind(one) == kind(other)).all() for kind in (np.isnan, np.isneginf, np.isposinf)):
            told.append(f"{name}: not finite elsewhere than in the specification")
            continue
        largest = np.abs(other[fine]).max(initial=0.0)
        error = np.abs(one[fine] - other[fine]).max(initial=0.0)
        if not error <= ROUNDINGS * EPS[check.dtype] * largest:
            told.append(f"{name}: off by {error:.2g}, the largest is {largest:.2g}")
    return told


def other_bits(what: str, got: list[np.ndarray], again: list[np.ndarray]) -> list[str]:
    pairs = zip(NAMES, got, again, strict=False)
    told = [(name, np.ascontiguousarray(one), np.ascontiguousarray(other)) for name, one, other in pairs]
    return [f"{name}: other bits in {what}" for name, one, other in told if one.tobytes() != other.tobytes()]


def judged(check: Check) -> dict[str, Any]:
    """The record of a call."""
    record = {"call": check.name, "dtype": check.dtype, "widths": list(check.widths)}
    try:
        told = faults(check)
    except Exception as error:
        told = [f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"]
    return record | {"status": "wrong" if told else "right", "faults": told}


def run_all(every: list[Check], threads: int, keep: Callable[[dict[str, Any]], None]) -> None:
    """Judge the calls, some at a time, and keep each record as soon as it is there."""
    with ThreadPoolExecutor(threads) as pool:
        for record in pool.map(judged, every):
            keep(record)
