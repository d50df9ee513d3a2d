"""Calls by ``implementation="triton"`` on a CPU: the kernels in Triton's interpreter; and what must come."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from attendax import attention, masks, spec
from attendax.kernels import gpu
from attendax.kernels.gpu import compiled, launches

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
DTYPES |= {name: np.dtype(name) for name in ("float16", "float32", "int32", "int8")}
TINY = "tiny"
WIDTHS = 16, 32, 64
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-20}
NAMES = "out", "lse", "dquery", "dkey", "dvalue"
B, N, G, T, S = 2, 2, 1, 37, 45
IDS = (
    np.array([[0] * 11 + [1] * 9 + [2] * 17, [3] * 37]),
    np.array([[0] * 14 + [1] * 3 + [4] * 28, [3] * 20 + [5] * 25]),
)
SHUFFLED = tuple(np.random.default_rng(k).integers(0, 3, (B, n)) for k, n in enumerate((T, S)))

CALLS = {
    "plain": {},
    "causal": {"mask": masks.causal()},
    "an offset": {"mask": masks.causal(8)},
    "queries before all keys": {"mask": masks.causal(-9)},
    "a window": {"mask": masks.window(7, 3, 2)},
    "a window to the left": {"mask": masks.window(19, 0)},
    "a window to the right": {"mask": masks.window(None, 5)},
    "a window whose sides are arrays": {"mask": masks.window(np.array([7, 2]), np.array([3, 0]), np.array([3, -2]))},
    "lengths": {"mask": masks.padding(np.array([45, 11]))},
    "lengths of queries": {"mask": masks.padding(np.array([30, 45]), np.array([37, 20]))},
    "no keys": {"mask": masks.causal() & masks.padding(np.array([0, 30]))},
    "segments": {"mask": masks.segments(*IDS)},
    "segments in pieces": {"mask": masks.segments(*SHUFFLED)},
    "packed and causal": {"mask": masks.segments(*IDS) & masks.causal(2)},
    "in pieces, causal, lengths": {
        "mask": masks.segments(*SHUFFLED) & masks.causal() & masks.padding(np.array([40, 33]))
    },
    "a negative scale": {"scale": -0.7, "mask": masks.causal(4)},
    "scale 0": {"scale": 0.0, "mask": masks.causal(4)},
    "a small scale": {"scale": 2.0**-11 * 1.3},
    "a large scale": {"scale": 3.0, "mask": masks.window(9, 9)},
    "two groups of two heads": {"sizes": {"N": 4, "G": 2}, "mask": masks.causal(3)},
    "as many key heads": {"sizes": {"G": 2}, "mask": masks.causal()},
    "V is larger": {"sizes": {"V": 32}, "mask": masks.causal(8)},
    "D is larger": {"sizes": {"D": 32, "V": 16}},
    "widths between": {"sizes": {"D": 21, "V": 1}, "mask": masks.causal(8)},
    "one query": {"sizes": {"T": 1}},
    "one key": {"sizes": {"S": 1}},
    "more queries than keys": {"sizes": {"T": 50, "S": 17}, "mask": masks.causal()},
    "whole tiles": {"sizes": {"T": 32, "S": 48}, "mask": masks.causal(16)},
}


@contextlib.contextmanager
def in_interpreter(kernels=None):
    """The kernels in place of the launcher, in tiles of 16 x 16."""
    import interpreted

    kernels = kernels or the_kernels()

    def run(program, arrays):
        types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in program.results.values()]

        def callback(*given):
            given = dict(zip(program.given, map(np.asarray, given), strict=True))
            return list(interpreted.run(kernels, program, given).values())

        found = jax.pure_callback(callback, types, *(arrays[name] for name in program.given))
        return dict(zip(program.results, found, strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "_run", run)
        stand_in(patch)
        jax.clear_caches()
        yield
    jax.clear_caches()


def stand_in(patch):
    """A CPU counts as a GPU for which there are kernels, of small widths in small tiles."""
    patch.setattr(gpu, "PLATFORM", "cpu")
    patch.setattr(compiled, "why_not", lambda: "")
    patch.setattr(compiled, "target", lambda: TINY)
    patch.setattr(launches, "WIDTHS", WIDTHS)
    tiles = {kernel: (launches.Tiles(16, 16, 4, 1),) * len(WIDTHS) for kernel in KERNELS}
    for size in (2, 4):
        patch.setitem(launches.TILES, (TINY, size), tiles)


KERNELS = "forward", "gradient_of_query", "gradients_of_keys"


@functools.cache
def the_kernels():
    import interpreted

    return interpreted.kernels_of()


def arrays_of(dtype="bfloat16", *, B=B, N=N, G=G, T=T, S=S, D=16, V=16, std=1.0, seed=0):
    """query, key, value, dout, dlse."""
    rng = np.random.default_rng(seed)
    shapes = (B, N, T, D), (B, G, S, D), (B, G, S, V), (B, N, T, V)
    arrays = [(std * rng.standard_normal(shape)).astype(DTYPES[dtype]) for shape in shapes]
    return [*arrays, rng.standard_normal((B, N, T)).astype(np.float32)]


def options_of(name):
    """The options of a call, and its sizes."""
    call = dict(CALLS[name])
    return call, call.pop("sizes", {})


def found(arrays, **options):
    """out, lse and the gradients, by jit."""
    query, key, value, dout, dlse = map(jnp.asarray, arrays)

    @jax.jit
    def run(query, key, value, dout, dlse):
        def attend(*qkv):
            return attention(*qkv, return_lse=True, implementation="triton", **options)

        results, pull = jax.vjp(attend, query, key, value)
        return *results, *pull((dout, dlse))

    return [np.asarray(x) for x in run(query, key, value, dout, dlse)]


def right(arrays, **options):
    """The same by the specification, in float64."""
    query, key, value, dout, dlse = (np.asarray(x, np.float64) for x in arrays)
    with np.errstate(all="ignore"):
        out, lse = spec.attention(query, key, value, return_lse=True, **options)
        return [out, lse, *spec.attention_backward(dout, query, key, value, grad_lse=dlse, **options)[:3]]


def compare(got, wanted, dtype, most=2.0):
    """Hold NaN and -inf at the same places, and numbers off by at most so many roundings of the largest."""
    for name, one, other in zip(NAMES[: len(got)], got, wanted, strict=True):
        one = one.astype(np.float64)
        for kind in (np.isnan, np.isneginf, np.isposinf):
            np.testing.assert_array_equal(kind(one), kind(other), name)
        fine = np.isfinite(other)
        off, largest = np.abs(one[fine] - other[fine]).max(initial=0), np.abs(other[fine]).max(initial=0)
        assert off <= most * EPS[dtype] * largest, f"{name}: {off / largest / EPS[dtype]:.2f} roundings"


def poisoned(arrays, name, bad, seed=0):
    """The arrays with one number that is not finite, somewhere."""
    arrays, rng = [x.copy() for x in arrays], np.random.default_rng(seed)
    x = arrays[("query", "key", "value", "dout", "dlse").index(name)]
    x[tuple(rng.integers(0, n) for n in x.shape)] = bad
    return arrays


POISONS = list(itertools.product(("query", "key", "value", "dout", "dlse"), (np.nan, np.inf, -np.inf)))


def same_bits(one, other, what):
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes(), what
