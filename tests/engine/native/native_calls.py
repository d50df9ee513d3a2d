"""Calls for the tests of the native path: sizes on both sides of its limits, every option, and what is right."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, masks, scores
from attendax.kernels import backends, native
from judges import as_floats, by_definition

WHY_NOT = native.library().why_not
needs_library = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
where_native_is = pytest.mark.skipif(backends.default() != "native", reason=native.status())


class Sizes(NamedTuple):
    """The axes of a call; the limits are those of problem.h: 64 rows, 96 keys, 512 queries, 960 and 1920 keys."""

    B: int = 2
    N: int = 4
    G: int = 2
    T: int = 5
    S: int = 7
    D: int = 4
    V: int = 4


SIZES = {
    "tiny": Sizes(2, 3, 3, 5, 7, 4, 6),
    "one number": Sizes(1, 1, 1, 1, 1, 1, 1),
    "whole blocks": Sizes(2, 4, 2, 64, 96, 16, 16),
    "one more": Sizes(1, 4, 2, 65, 97, 33, 19),
    "a folded group": Sizes(2, 4, 1, 3, 300, 16, 8),
    "two chunks of queries": Sizes(1, 2, 2, 513, 961, 8, 8),
    "two chunks of keys": Sizes(1, 2, 1, 130, 2900, 9, 5),
    "one key more than a chunk": Sizes(1, 2, 1, 3, 1921, 4, 4),
    "one query, few keys": Sizes(1, 2, 2, 1, 96, 16, 16),
    "one query, many keys": Sizes(2, 2, 2, 1, 2500, 64, 64),
    "one query alone": Sizes(1, 1, 1, 1, 4000, 64, 64),
    "few queries": Sizes(2, 14, 2, 1, 2000, 32, 48),
    "few tokens": Sizes(1, 2, 1, 3, 300, 16, 16),
}

SHORT = {
    "tiny": Sizes(2, 3, 3, 5, 7, 4, 6),
    "one number": Sizes(1, 1, 1, 1, 1, 1, 1),
    "a folded group": Sizes(2, 4, 2, 7, 40, 9, 3),
    "two blocks": Sizes(1, 2, 2, 70, 90, 16, 24),
    "the largest": Sizes(1, 4, 2, 96, 96, 17, 16),
}


def generator(*numbers):
    return np.random.default_rng(numbers)


def arrays(z, dtype=np.float64, seed=0):
    """query, key, value."""
    rng = generator(seed, *z)
    shapes = (z.B, z.N, z.T, z.D), (z.B, z.G, z.S, z.D), (z.B, z.G, z.S, z.V)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def _random(z, *shape, p=0.5):
    return generator(9, *z).random(shape) < p


MASKS = {
    "none": lambda z: None,
    "causal": lambda z: masks.causal(),
    "causal to the end": lambda z: masks.causal(z.S - z.T),
    "traced causal": lambda z: masks.causal(np.arange(z.B, dtype=np.int32) + z.S // 2),
    "window": lambda z: masks.window(3, 2, z.S // 2),
    "traced window": lambda z: masks.window(
        3 * np.arange(z.N).reshape(z.N, 1, 1) + 1, 2 * np.arange(z.B) + z.S // 8, np.int32(z.S // 2)
    ),
    "window to the left": lambda z: masks.window(100, None, 1),
    "padding": lambda z: masks.padding(np.full(z.B, z.S // 2, np.int32), np.full(z.B, (z.T + 1) // 2, np.int32)),
    "prefix": lambda z: masks.prefix(np.full(z.B, z.S // 3, np.int32)),
    "segments": lambda z: masks.segments(_ids(z, z.T), _ids(z, z.S)),
    "segments or causal": lambda z: masks.segments(_ids(z, z.T), _ids(z, z.S)) | masks.causal(3),
    "dense": lambda z: masks.dense(_random(z, z.B, z.N, z.T, z.S)),
    "dense for all heads": lambda z: masks.dense(_random(z, z.B, 1, z.T, z.S)) & masks.causal(z.S // 2),
    "dense in a window": lambda z: masks.dense(_random(z, z.T, z.S)) & masks.window(5, 2, z.S // 2),
    "blocks": lambda z: masks.blocks(_random(z, z.B, z.N, -(-z.T // 5), -(-z.S // 7)), 5, 7),
    "blocks or a window": lambda z: (
        masks.blocks(_random(z, -(-z.T // 32), -(-z.S // 16), p=0.1), 32, 16) | masks.window(3, 2, z.S // 2)
    ),
    "second blocks or none": lambda z: masks.blocks(_second(z), max(1, z.T), 16) | masks.causal(-2 * (z.T + z.S)),
    "first keys or none": lambda z: masks.padding(min(z.S, z.S // 2 + 5)) | masks.causal(-2 * (z.T + z.S)),
    "blocks of one query": lambda z: masks.blocks(_random(z, z.B, 1, z.T, 1), 1, z.S) & masks.causal(z.S // 2),
    "dense for all keys": lambda z: masks.dense(_random(z, z.T, 1)),
    "not dense": lambda z: ~masks.dense(_random(z, z.T, z.S)) & masks.window(None, 40, 5),
    "not causal, or a window": lambda z: ~masks.causal(2) | (masks.window(1, 0) & ~masks.padding(z.S // 2)),
}


def _second(z):
    """Of six blocks of 16 keys, a tile, the second."""
    return np.arange(-(-z.S // 16))[None] % 6 == 1


def _ids(z, n):
    return np.sort(generator(8, *z).integers(0, 3, (z.B, n)), axis=-1).astype(np.int32)


def _bias(z, *shape):
    return generator(7, *z).normal(size=shape)


BIASES = {
    "bias": lambda z: (z.B, z.N, z.T, z.S),
    "bias for all batches": lambda z: (1, z.N, z.T, z.S),
    "bias for all heads": lambda z: (z.B, 1, z.T, z.S),
    "bias of rank 2": lambda z: (z.T, z.S),
    "bias of keys": lambda z: (z.B, 1, 1, z.S),
    "bias of heads and keys": lambda z: (z.N, 1, z.S),
    "bias of queries": lambda z: (1, z.N, z.T, 1),
    "bias of heads": lambda z: (z.N, 1, 1),
}
MODIFIERS = {
    "softcap": lambda z: scores.softcap(0.8),
    "alibi": lambda z: scores.alibi(_bias(z, z.N) / 10, 3),
    "relative": lambda z: scores.relative_bias(_bias(z, z.N, 11), 3),
    "traced offsets": lambda z: scores.compose(
        scores.alibi(_bias(z, z.N) / 10, np.full((), z.S // 2, np.int32)),
        scores.relative_bias(_bias(z, z.N, 7), np.full((), 2, np.int32)),
    ),
    "composed": lambda z: scores.compose(
        scores.relative_bias(_bias(z, z.N, 11), 3), scores.softcap(3.0), scores.alibi(_bias(z, z.N) / 50)
    ),
    "sinks": lambda z: scores.sink(_bias(z, z.N)),
}
DROPOUT = {"dropout_rate": 0.3, "dropout_rng": np.array([3, 5], np.uint32)}


def options(name, z):
    """The options of a call, by name."""
    if name in MASKS:
        return {"mask": MASKS[name](z)}
    some = {"mask": masks.causal(z.S // 2)}
    if name in BIASES:
        return some | {"bias": _bias(z, *BIASES[name](z))}
    if name in MODIFIERS:
        return some | {"score_mod": MODIFIERS[name](z)}
    return some | OTHERS[name](z)


OTHERS = {
    "scale": lambda z: {"scale": -0.3},
    "scale 0": lambda z: {"scale": 0.0},
    "dropout": lambda z: DROPOUT,
    "dropout of everything": lambda z: DROPOUT | {"dropout_rate": 1.0},
    "everything": lambda z: (
        DROPOUT
        | {"mask": masks.segments(_ids(z, z.T), _ids(z, z.S)) | masks.causal(1), "bias": _bias(z, z.N, z.T, 1)}
        | {"score_mod": MODIFIERS["composed"](z)}
    ),
    "forbidding bias": lambda z: {"bias": np.where(_random(z, z.B, z.N, z.T, z.S), -np.inf, 0.5)},
}
OPTIONS = (*MASKS, *BIASES, *MODIFIERS, *OTHERS)


def cotangents(z, dtype=np.float64, seed=5):
    """Of out and lse."""
    rng = generator(seed, *z)
    dout, dlse = rng.normal(size=(z.B, z.N, z.T, z.V)), rng.normal(size=(z.B, z.N, z.T))
    return dout.astype(dtype), dlse.astype(np.promote_types(dtype, np.float32))


def run(given, found, implementation="native", attend=attention, **options):
    """out, lse, and the gradients of query, key, value, bias and what a modifier holds, compiled."""
    leaves = {name: options.pop(name) for name in ("bias", "score_mod") if options.get(name) is not None}
    call = functools.partial(attend, **options, return_lse=True, implementation=implementation)

    @jax.jit
    def both(given, leaves, found):
        def of(given, leaves):
            return call(*given, **leaves)

        results, pull_back = jax.vjp(of, given, leaves)
        dout, dlse = (d.astype(x.dtype) for d, x in zip(found, results, strict=True))
        return results, pull_back((dout, jnp.where(jnp.isfinite(results[1]), dlse, 0)))

    return both(given, leaves, found)


def right(given, found, **options):
    """Results and gradients by the specification, in float64."""
    given, found = ([np.asarray(x, np.float64) for x in part] for part in (given, found))
    return by_definition(given, *found, **options)


def assert_near(got, wanted, tolerances, what):
    """Every leaf: NaN and infinities in the same places, and no entry further off than allowed."""
    got, wanted = as_floats(got), as_floats(wanted)
    tolerances = [tolerances] * len(wanted) if isinstance(tolerances, float) else tolerances
    for index, (x, y, tolerance) in enumerate(zip(got, wanted, tolerances, strict=True)):
        assert x.shape == y.shape, f"{what}, leaf {index}: shape {x.shape}, expected {y.shape}"
        finite = np.isfinite(y)
        np.testing.assert_array_equal(x[~finite], y[~finite], f"{what}, leaf {index}: NaN and infinities")
        error = np.abs(x[finite] - y[finite]).max(initial=0.0)
        size = np.abs(y[finite]).max(initial=1.0)
        assert error <= tolerance * size, f"{what}, leaf {index}: off by {error:.3g}, largest {size:.3g}"
