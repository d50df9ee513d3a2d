"""Calls by ``implementation="triton"`` on a CPU: the kernels in Triton's interpreter; and what must come."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from attendax import attention, masks, scores, spec
from attendax.kernels import gpu
from attendax.kernels.gpu import compiled, launches

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
DTYPES |= {name: np.dtype(name) for name in ("float16", "float32", "int32", "int8")}
TINY = "tiny"
WIDTHS = 16, 32, 64
STEPS = 16, 32, 16
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-20}
NAMES = "out", "lse", "dquery", "dkey", "dvalue"
B, N, G, T, S = 2, 2, 1, 37, 45
IDS = (
    np.array([[0] * 11 + [1] * 9 + [2] * 17, [3] * 37]),
    np.array([[0] * 14 + [1] * 3 + [4] * 28, [3] * 20 + [5] * 25]),
)
RNG = np.random.default_rng(5)
BIASES = RNG.standard_normal((B, N, T, S)).astype(np.float32)
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
    "a small scale": {"scale": 2.0**-23 * 1.3},
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
    "a window for each head": {"mask": masks.window(np.array([3, 9]).reshape(2, 1, 1), 3)},
}

MODIFIED = {  # more than scores of products and intervals of keys
    "softcap": {"score_mod": scores.softcap(0.5), "mask": masks.causal(8)},
    "softcap, a negative scale": {"score_mod": scores.softcap(0.7), "scale": -0.6},
    "ALiBi": {"score_mod": scores.alibi(np.float32([0.3, 0.05]), offset=8), "mask": masks.causal(8)},
    "ALiBi, an offset for each text": {"score_mod": scores.alibi(np.float32([0.3, -0.1]), np.array([-3, 20]))},
    "relative bias": {"score_mod": scores.relative_bias(RNG.standard_normal((2, 9)).astype(np.float32), 3)},
    "all modifiers": {
        "score_mod": scores.compose(
            scores.softcap(2.0),
            scores.alibi(np.float32([0.3, 0.1])),
            scores.relative_bias(RNG.standard_normal((2, 7)).astype(np.float32), np.array([2, -9])),
        ),
        "mask": masks.segments(*IDS),
    },
    "a bias": {"bias": BIASES, "mask": masks.causal(8)},
    "a bias for each text and key": {"bias": BIASES[:, :1, :1]},
    "a bias for each head and query": {"bias": BIASES[:1, :, :, :1], "mask": masks.causal()},
    "a bias for each key of all": {"bias": BIASES[0, 0]},
    "a bias that forbids": {"bias": np.where(BIASES > 1, -np.inf, BIASES), "score_mod": scores.softcap(3.0)},
    "a bias of the lowest number": {"bias": np.where(BIASES > 1, np.finfo(np.float32).min, 0), "mask": masks.causal()},
    "causal or a window": {"mask": masks.causal(-5) | masks.window(3, 20) & ~masks.window(1, 1)},
    "a dense mask": {"mask": RNG.random((B, N, T, S)) > 0.4},
    "a dense mask, causal": {"mask": masks.dense(RNG.random((T, S)) > 0.4) & masks.causal(4)},
    "a dense mask of queries": {"mask": RNG.random((B, 1, T, 1)) > 0.4},
    "a function": {"mask": masks.from_function(lambda i, j: (i * j) % 3 != 1) & masks.padding(np.array([45, 20]))},
    "segments twice": {"mask": masks.segments(*IDS) & masks.segments(*SHUFFLED)},
    "blocks": {"mask": masks.blocks(RNG.random((5, 6)) > 0.5, 8, 8)},
    "dropout": {
        "sizes": {"T": 18, "S": 20},
        "dropout_rate": 0.4,
        "dropout_rng": jax.random.key(7),
        "mask": masks.causal(8),
    },
    "dropout of all": {"sizes": {"T": 5, "S": 6}, "dropout_rate": 1.0, "dropout_rng": jax.random.key(7)},
    "everything": {
        "sizes": {"T": 18, "S": 20},
        "dropout_rate": 0.2,
        "dropout_rng": jax.random.key(3),
        "mask": RNG.random((B, 1, 18, 20)) > 0.3,
        "bias": BIASES[:, :1, :18, :20],
        "score_mod": scores.compose(scores.softcap(2.0), scores.alibi(np.float32([0.3, 0.1]))),
    },
}
CALLS |= MODIFIED


@contextlib.contextmanager
def in_interpreter(kernels=None):
    """The kernels in place of the launcher, in tiles of 16 x 16."""
    import interpreted

    kernels = kernels or the_kernels()

    def called(program, given):
        types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in program.results.values()]

        def callback(*given):
            given = dict(zip(program.given, map(np.asarray, given), strict=True))
            return list(interpreted.run(kernels, program, given).values())

        return jax.pure_callback(callback, types, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "_called", called)
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
    patch.setattr(launches, "STEPS", STEPS)
    patch.setattr(launches, "PART", 32)
    tiles = {kernel: (launches.Tiles(16, 16, 4, 1),) * len(WIDTHS) for kernel in KERNELS}
    for size in (2, 4):
        patch.setitem(launches.TILES, (TINY, size), tiles)
        patch.setitem(launches.TILES_OF_MODIFIED, (TINY, size), tiles)


@contextlib.contextmanager
def parts_in_one_block(holds):
    """Whether one block adds all parts of the keys; else each part has a block of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launches, "FEW", 0 if holds else 2**30)
        yield


KERNELS = "forward", "gradient_of_query", "gradients_of_keys", "gradient_of_bias"


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


def is_floating(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def found(arrays, bias=None, score_mod=None, **options):
    """out, lse and the gradients, by jit: of query, key, value, the bias, and the floating arrays of the modifier."""
    query, key, value, dout, dlse = map(jnp.asarray, arrays)
    leaves, tree = jax.tree.flatten((bias, score_mod))
    leaves = list(map(jnp.asarray, leaves))

    @jax.jit
    def run(query, key, value, dout, dlse, moving):
        def attend(query, key, value, moving):
            moving = iter(moving)
            bias, score_mod = jax.tree.unflatten(tree, [next(moving) if is_floating(x) else x for x in leaves])
            more = options | {"bias": bias, "score_mod": score_mod}
            return attention(query, key, value, return_lse=True, implementation="triton", **more)

        results, pull = jax.vjp(attend, query, key, value, moving)
        return *results, *jax.tree.leaves(pull((dout, dlse)))

    return [np.asarray(x) for x in run(query, key, value, dout, dlse, list(filter(is_floating, leaves)))]


def right(arrays, bias=None, score_mod=None, **options):
    """The same by the specification, in float64."""
    query, key, value, dout, dlse = (np.asarray(x, np.float64) for x in arrays)
    options["bias"], options["score_mod"] = jax.tree.map(
        lambda x: np.asarray(x, np.float64) if is_floating(x) else x, (bias, score_mod)
    )
    with np.errstate(all="ignore"):
        out, lse = spec.attention(query, key, value, return_lse=True, **options)
        grads = spec.attention_backward(dout, query, key, value, grad_lse=dlse, **options)
    return [out, lse, *grads[:3], *filter(is_floating, jax.tree.leaves(grads[3:5]))]


def compare(got, wanted, dtype, most=2.0):
    """Hold NaN and -inf at the same places, and numbers off by at most so many roundings of the largest."""
    for name, one, other in zip((*NAMES, *map(str, range(9)))[: len(got)], got, wanted, strict=True):
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


ARRAYS = "query", "key", "value", "dout", "dlse"
HIDING = "causal", "lengths", "a window", "segments in pieces", "packed and causal", "no keys", "a negative scale"
POISONS = [(name, *poison) for name in HIDING for poison in itertools.product(ARRAYS, (np.nan, np.inf, -np.inf))]
for of_modified, bads in (("a bias that forbids", (np.inf, np.nan)), ("a dense mask", (np.nan, -np.inf))):
    POISONS += [(of_modified, array, bad) for array, bad in zip(ARRAYS, itertools.cycle(bads), strict=False)]
