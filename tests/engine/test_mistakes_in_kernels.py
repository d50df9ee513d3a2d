"""Mistakes planted in the blockwise kernels, one at a time: each must be caught, or the judges prove nothing.

A mistake is a piece of text replaced in one file of a copy of ``attendax.kernels``, or of what ``attendax.masks`` says
about whole tiles. The judge beside it holds the copy, in tiles of 3 queries and 2 keys, against the specification; it
must raise AssertionError, and must pass on an untouched copy. Where all keys of a row are in one tile, second
derivatives have functions of their own: the settings with "few keys" judge these. Judges that call once or twice run
step by step, which at this size is faster than compiling a mistake first.
"""

import importlib
import importlib.util
import itertools
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import mask_type, masks, scores, spec
from attendax.conformance import directional_difference
from attendax.kernels.blockwise.partition import LIMITS
from attendax.kernels.operands import Limits
from cases import KEY, attention_case
from compilation import quick_steps
from copied_kernels import copied
from judges import arrays_of, assert_same_bits, assert_tree_close, cotangent_of
from mistakes_in_kernels import KERNELS

B, N, G, T, S, D, V = 2, 4, 2, 5, 7, 3, 4
NAME = "mistaken_kernels"
OF_MASKS = "mask_type.py", "mask_kinds.py"  # of which what is said about whole tiles is replaced
ONE_HEAD, ALL_HEADS = Limits(3, 2, 8 * 3 * 2 * 2), Limits(3, 2, 2**20)  # of the keys; two query heads share it
ALL_KEYS = Limits(3, 9, 2**20)  # each row of scores is in one tile


class Setting(NamedTuple):
    """A case of attention with fixed options, and how large its tiles may be."""

    forward: Any
    backward: Any
    arrays: Any
    options: dict
    limits: Limits
    platform: str


def setting(sizes=(1, N, G, T, S, D, V), limits=ONE_HEAD, extra=None, platform="cpu", **options):
    b, n, g, t, s, d, v = sizes
    shapes = {"query": (b, n, t, d), "key": (b, g, s, d), "value": (b, g, s, v)} | (extra or {})
    case = attention_case("", shapes, lse=True, **options)
    return Setting(case.forward, case.backward, case.arrays, options, limits, platform)


TWO, SMALL = (2, N, G, T, S, D, V), (1, 2, 1, 5, 3, 2, 2)
LENGTHS = masks.padding(np.array([3, S]), np.array([T, 4]))
IDS = np.array([[0, 0, 0, 1, 1]]), np.array([[0, 1, 1, 1, 2, 0, 2]])
DENSE = np.random.default_rng(6).random((1, N, T, S)) < 0.5
DENSE[0, 0, :, 2:4] = DENSE[0, 1, 2:] = False
DENSE[0, 2, :3, :2] = DENSE[0, 3, 1, 5] = True
OPEN_TO_ONE = DENSE.copy()
OPEN_TO_ONE[0, 1] = True
FORBIDDING = np.where(np.arange(S) < 3, 0.5, -np.inf)

SETTINGS = {
    "open": setting(),
    "as users do": setting(limits=LIMITS),
    "one tile": setting(limits=LIMITS),
    "few keys": setting(limits=ALL_KEYS),
    "some": setting(limits=Limits(3, 2, 1)),
    "three key heads": setting((1, 6, 3, T, S, D, V), Limits(3, 2, 200)),
    "small": setting(SMALL, mask=masks.causal(1)),
    "small, all heads": setting(SMALL, ALL_HEADS, mask=masks.causal(1)),
    "one value": setting((1, 2, 1, 5, 3, 2, 1)),
    "all alike": setting((1, 2, 2, T, T, D, D)),
    "causal": setting(mask=masks.causal(-1)),
    "future": setting((1, 2, 1, T, T, D, V), mask=masks.causal()),
    "future, few keys": setting((1, 2, 1, T, T, D, V), ALL_KEYS, mask=masks.causal()),
    "future, few keys, scaled": setting((1, 2, 1, T, T, D, V), ALL_KEYS, mask=masks.causal(), scale=2.0),
    "offset": setting(TWO, mask=masks.causal(np.array([3, -2]))),
    "window": setting(mask=masks.window(1, 1) & masks.causal(1)),
    "wide window": setting((1, N, G, 6, 6, D, V), mask=masks.window(2, 2)),
    "not window": setting(mask=~masks.window(None, 1)),
    "padding": setting(TWO, mask=LENGTHS),
    "padding, all heads": setting(TWO, ALL_HEADS, mask=LENGTHS),
    "prefix": setting(TWO, mask=masks.prefix(np.array([6, 1]))),
    "segments": setting(mask=masks.segments(*IDS)),
    "dense": setting(mask=DENSE),
    "open to one head": setting(mask=OPEN_TO_ONE),
    "function": setting(mask=masks.from_function(lambda i, j: (i + j) % 3 != 0)),
    "and": setting(mask=masks.causal(1) & ~masks.causal(-3)),
    "or": setting(mask=masks.causal(-2) | ~masks.causal(2)),
    "dropout": setting(dropout_rate=0.4, dropout_rng=KEY),
    "alibi": setting(extra={"slopes": (N,)}),
    "bias": setting(extra={"bias": (1, N, T, S)}),
    "bias of keys": setting(TWO, extra={"bias": (N, 1, S)}),
    "keys": setting(mask=masks.padding(np.array([3]))),
    "bias forbids": setting(mask=masks.causal(1), bias=FORBIDDING),
    "cubed": setting(mask=masks.padding(np.array([3])), score_mod=scores.from_function(lambda s, at: s + s**3 / 9)),
    "wide": setting(TWO),
}


# Judges: each takes the attention of a copy, and a case


JUDGES = {}


def judge(name):
    def note(function):
        JUDGES[name] = function
        return function

    return note


def results_and_gradients(case, twin, arrays, cotangent):
    results, pull = jax.vjp(partial(case.forward, twin), *arrays)
    return results, pull(cotangent)


def random_of(case, seed=4):
    """Arrays of a case, and a random cotangent of out and lse."""
    arrays = arrays_of(case)
    return arrays, cotangent_of(case.forward(spec, *arrays), seed)


def directions_of(arrays):
    return tuple(np.random.default_rng(7 + k).normal(size=x.shape) for k, x in enumerate(arrays))


def along(grads, directions):
    return sum(np.sum(np.asarray(g) * d) for g, d in zip(grads, directions, strict=True))


@judge("forward")
def judge_forward(twin, case):
    arrays = arrays_of(case)
    assert_tree_close(case.forward(twin, *arrays), case.forward(spec, *arrays), 1e-12, "forward")


@judge("jvp of jvp")
def judge_jvp_of_jvp(twin, case):
    """Of out and lse, against the differences of differences of the definition."""
    arrays, directions = arrays_of(case), directions_of(arrays_of(case))
    attend, defined = partial(case.forward, twin), partial(case.forward, spec)
    _, got = jax.jvp(lambda *a: jax.jvp(attend, a, directions)[1], arrays, directions)
    wanted = directional_difference(lambda *a: directional_difference(defined, a, directions), arrays, directions)
    assert_tree_close(got, wanted, 1e-6, "jvp of jvp")


# As users do: default limits and optimisation, float32, a loss that the compiler knows


def normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@judge("an unseen NaN")
def judge_an_unseen_nan(twin, case):
    """L6, with 12,288 numbers; and one that all queries see reaches all."""
    query, key, value = (normal(12, 64, 16) for _ in range(3))
    mask = np.arange(64)[None] < 60
    attend = jax.jit(partial(twin.attention, mask=mask))
    bad = value.copy()  # written in place, the array might change before the first call has read it
    bad[:, 63] = np.nan
    assert_same_bits(attend(query, key, bad), attend(query, key, value), "NaN")
    seen = value.copy()
    seen[:, 5] = np.nan
    assert np.isnan(attend(query, key, seen)).all()


@judge("gradient")
def judge_gradient(twin, case):
    arrays, cotangent = random_of(case)
    grads = results_and_gradients(case, twin, arrays, cotangent)[1]
    assert_tree_close(grads, case.backward(spec, cotangent, *arrays), 1e-10, "gradient")


@judge("tangent")
def judge_tangent(twin, case, moving=None):
    """The derivative along a direction, of all arrays or of those named, is that of the gradients by hand."""
    arrays, cotangent = random_of(case)
    directions = directions_of(arrays)
    used = range(len(arrays)) if moving is None else moving

    def of_used(*some):
        filled = dict(zip(used, some, strict=True))
        return case.forward(twin, *(filled.get(k, x) for k, x in enumerate(arrays)))

    _, dots = jax.jvp(of_used, [arrays[k] for k in used], [directions[k] for k in used])
    by_hand = case.backward(spec, cotangent, *arrays)
    wanted = along([by_hand[k] for k in used], [directions[k] for k in used])
    np.testing.assert_allclose(along(dots, cotangent), wanted, rtol=1e-10)


@judge("tangent of the keys")
def judge_tangent_of_the_keys(twin, case):
    judge_tangent(twin, case, moving=[1])


@judge("second order")
def judge_second_order(twin, case):
    """The gradients along a direction, forward over reverse."""
    arrays, cotangent = random_of(case)
    directions = directions_of(arrays)
    _, got = jax.jvp(lambda *a: results_and_gradients(case, twin, a, cotangent)[1], arrays, directions)
    wanted = directional_difference(lambda *a: case.backward(spec, cotangent, *a), arrays, directions)
    assert_tree_close(got, wanted, 1e-9, "second order")


@judge("second order in reverse")
def judge_second_order_in_reverse(twin, case):
    """Second order, reverse over reverse; and with respect to the cotangent, the tangent of the results."""
    arrays, cotangent = random_of(case)
    directions = directions_of(arrays)

    def slope(arrays, cotangent):
        grads = results_and_gradients(case, twin, arrays, cotangent)[1]
        return sum(jnp.sum(g * d) for g, d in zip(grads, directions, strict=True))

    got, of_cotangent = jax.grad(slope, (0, 1))(arrays, cotangent)
    wanted = directional_difference(lambda *a: case.backward(spec, cotangent, *a), arrays, directions)
    assert_tree_close(got, wanted, 1e-9, "reverse over reverse")
    tangent = directional_difference(partial(case.forward, spec), arrays, directions)
    assert_tree_close(of_cotangent, tangent, 1e-9, "with respect to the cotangent")


@judge("vmap")
def judge_vmap(twin, case):
    """Queries batched along an axis in the middle, keys and values not batched."""
    (query, *others), cotangent = random_of(case)
    queries = np.stack([query, -0.5 * query, query[..., ::-1]], axis=2)
    run = jax.vmap(lambda q: results_and_gradients(case, twin, (q, *others), cotangent), in_axes=2)
    got = run(queries)
    for k in range(3):
        arrays = queries[:, :, k], *others
        wanted = case.forward(spec, *arrays), tuple(case.backward(spec, cotangent, *arrays))
        assert_tree_close(jax.tree.map(lambda x, k=k: x[k], got), wanted, 1e-10, f"vmap {k}")


@judge("shared by vmap")
def judge_shared_by_vmap(twin, case):
    """The gradient of keys and values that a batch of queries shares is the sum over the batch."""
    (query, *others), cotangent = random_of(case)
    queries, cotangents = np.stack([query, -0.5 * query]), [np.stack([c, c]) for c in cotangent]

    def total(*others):
        results = jax.vmap(lambda q: case.forward(twin, q, *others))(queries)
        return sum(jnp.sum(x * c) for x, c in zip(results, cotangents, strict=True))

    got = jax.grad(total, (0, 1))(*others)
    one, other = (case.backward(spec, cotangent, q, *others)[1:] for q in queries)
    assert_tree_close(got, tuple(a + b for a, b in zip(one, other, strict=True)), 1e-10, "shared")


def poisoned(arrays, first, poison):
    """The arrays with keys and values from ``first`` on replaced."""
    query, key, value, *rest = (x.copy() for x in arrays)
    key[..., first:, :], value[..., first:, :] = poison, poison
    return query, key, value, *rest


@judge("poison forward")
def judge_poison_forward(twin, case):
    """L6: what stands in the keys from 3 on, which nobody may look at, changes no bit."""
    arrays = arrays_of(case)
    wanted = case.forward(twin, *arrays)
    assert_tree_close(wanted, case.forward(spec, *arrays), 1e-12, "without it")
    assert_same_bits(case.forward(twin, *poisoned(arrays, 3, np.nan)), wanted, "NaN")


@judge("poison backward")
def judge_poison_backward(twin, case):
    arrays = arrays_of(case)
    cotangent = cotangent_of(case.forward(spec, *arrays))
    run = jax.jit(lambda arrays: results_and_gradients(case, twin, arrays, cotangent))
    wanted = run(arrays)
    for poison in (np.nan, 1e200, 1e308):
        assert_same_bits(run(poisoned(arrays, 3, poison)), wanted, str(poison))


def cotangent_before(out):
    """Where nothing depends on queries 3 and later."""
    cotangent = np.random.default_rng(4).normal(size=out.shape)
    cotangent[..., 3:, :] = 0
    return cotangent


def gradients_of(twin, case, arrays):
    out, pull = jax.vjp(partial(twin.attention, **case.options), *arrays)
    return pull(cotangent_before(out))


def gradients_before(twin, case, arrays):
    """Of queries and keys 0 to 2."""
    return tuple(np.asarray(g)[..., :3, :] for g in gradients_of(twin, case, arrays))


@judge("unread")
def judge_unread(twin, case):
    """L6: NaN that only these later queries see reaches no gradient, neither before nor after."""
    arrays = arrays_of(case)
    wanted = gradients_of(twin, case, arrays)
    cotangent = cotangent_before(spec.attention(*arrays, **case.options))
    by_hand = spec.attention_backward(cotangent, *arrays, **case.options)[:3]
    assert_tree_close(wanted, by_hand, 1e-10, "gradients")  # NaN without any in the arrays would equal NaN below
    bad = poisoned(arrays, 3, np.nan)
    query = arrays[0].copy()
    query[..., 3:, 0] = np.nan
    for spoilt in (bad, (*arrays[:2], bad[2]), (query, *arrays[1:])):
        for got, known in zip(gradients_of(twin, case, spoilt), wanted, strict=True):
            np.testing.assert_array_equal(got, known)


@judge("unread modifier")
def judge_unread_modifier(twin, case):
    """Unread queries where the modifier makes them NaN."""
    arrays = arrays_of(case)

    def before(late):
        score_mod = scores.from_function(lambda s, at: jnp.where(at[1] < 3, s, late))
        return gradients_before(twin, case._replace(options=case.options | {"score_mod": score_mod}), arrays)

    assert_same_bits(before(jnp.nan), before(0.0), "gradients before")


def second_before(twin, case):
    """How these gradients move along a direction, as a function of the arrays and it."""

    @jax.jit
    def moved(arrays, directions):
        return jax.jvp(lambda *arrays: gradients_of(twin, case, arrays), arrays, directions)[1]

    return lambda *given: tuple(np.asarray(g)[..., :3, :] for g in moved(*given))


@judge("unread second")
def judge_unread_second(twin, case):
    """L6: NaN in arrays or in the direction, that only unread queries see, reaches no second derivative before it.

    Nor does an overflow.
    """
    arrays = arrays_of(case)
    directions = directions_of(arrays)
    second = second_before(twin, case)
    wanted = second(arrays, directions)
    for poison in (np.nan, 1e308):
        query = arrays[0].copy()
        query[..., 3:, :] = poison
        assert_same_bits(second((query, *arrays[1:]), directions), wanted, "unread queries")
        for spoilt in (
            (poisoned(arrays, 3, poison), directions),
            (arrays, poisoned(directions, 3, poison)),
            (poisoned(arrays, 3, poison), poisoned(directions, 3, poison)),
        ):
            assert_same_bits(second(*spoilt), wanted, str(poison))


@judge("visible second")
def judge_visible_second(twin, case):
    """A NaN in the direction reaches the second derivatives of queries that see it, and no earlier one."""
    arrays = arrays_of(case)
    directions = directions_of(arrays)
    cotangent = np.ones((*arrays[0].shape[:-1], V))

    def gradients(*arrays):
        return jax.vjp(lambda *a: case.forward(twin, *a)[0], *arrays)[1](cotangent)

    query = jax.jvp(gradients, arrays, poisoned(directions, 3, np.nan))[1][0]
    assert np.isfinite(query[..., :3, :]).all()
    assert np.isnan(query[..., 3:, :]).all()


def attended(module, case):
    """The attention of a case, with lse."""
    return partial(module.attention, return_lse=True, **case.options)


def spoilt(arrays, numbers=(np.nan,)):
    """The number of the array with one number that is not finite, in row 3 of the first head, and the arrays."""
    for k, number in itertools.product(range(len(arrays)), numbers):
        bad = tuple(x.copy() for x in arrays)
        bad[k][..., 0, 3, 0] = number
        yield k, bad


def assert_equal_with_nan(got, wanted, tolerance=1e-10):
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@judge("spoiled forward")
def judge_spoiled_forward(twin, case):
    """L6: what is not finite makes NaN of the rows that it belongs to, or that see it, an infinite score of 0, too."""
    query, key, value = arrays_of(case)
    for _, bad in spoilt((abs(query), abs(key), value), (np.nan, -np.inf)):
        assert_equal_with_nan(attended(twin, case)(*bad), attended(spec, case)(*bad))


def read_but_the_last(twin, case, arrays):
    """A cotangent that is 0 for the last query."""
    shapes = jax.eval_shape(attended(twin, case), *arrays)
    grads = tuple(np.array(x) for x in jax.tree.leaves(cotangent_of(shapes)))
    grads[0][..., -1, :] = 0
    for dlse in grads[1:]:
        dlse[..., -1] = 0
    return grads


def gradients_by(twin, case, grads, arrays):
    return jax.vjp(attended(twin, case), *arrays)[1](grads if len(grads) > 1 else grads[0])


def gradients_by_hand(case, grads, arrays):
    given = {"grad_lse": grads[1]} if len(grads) > 1 else {}
    return tuple(spec.attention_backward(grads[0], *arrays, **given, **case.options)[:3])


@judge("spoiled gradient")
def judge_spoiled_gradient(twin, case):
    """Rows of gradients, where the last query is not read."""
    arrays = arrays_of(case)
    grads = read_but_the_last(twin, case, arrays)
    for _, bad in spoilt(arrays):
        assert_equal_with_nan(gradients_by(twin, case, grads, bad), gradients_by_hand(case, grads, bad))


@judge("spoiled cotangent")
def judge_spoiled_cotangent(twin, case):
    arrays = arrays_of(case)
    grads = read_but_the_last(twin, case, arrays)
    for number in (np.nan, np.inf):
        bad = tuple(x.copy() for x in grads)
        bad[0][..., 2, 1] = number
        assert_equal_with_nan(gradients_by(twin, case, bad, arrays), gradients_by_hand(case, bad, arrays))


@judge("overflow of a gradient")
def judge_overflow_of_a_gradient(twin, case):
    """A value too large for the gradient of a row that sees it leaves those of keys that this row does not see."""
    query, key, value = (x.copy() for x in arrays_of(case))
    grads = read_but_the_last(twin, case, (query, key, value))
    value[..., 3, :] = 1e308
    _, dkey, dvalue = gradients_by(twin, case, tuple(1e3 * x for x in grads), (query, key, value))
    np.testing.assert_array_equal(dkey[..., 4:, :], 0)
    np.testing.assert_array_equal(dvalue[..., 4:, :], 0)


def spoiled_rows(case, k, arrays):
    """The rows (N, T) that row 3 of the first head of array k spoils."""
    (N, T), (G, S) = arrays[0].shape[-3:-1], arrays[1].shape[-3:-1]
    rows, mask = np.zeros((N, T), bool), case.options.get("mask")
    seen = np.ones((T, S), bool) if mask is None else mask.to_dense(T, S)
    if k == 0:
        rows[0, 3] = True
    else:
        rows[: N // G] = seen[:, 3]
    return rows, seen


@judge("spoiled tangent")
def judge_spoiled_tangent(twin, case):
    """Rows of tangents, of arrays and of directions: NaN in these rows, all else as without."""
    arrays, directions = arrays_of(case), directions_of(arrays_of(case))
    tangent = jax.jit(lambda *pair: jax.jvp(attended(twin, case), *pair)[1])
    clean = jax.tree.leaves(tangent(arrays, directions))
    numbers = np.nan, np.inf
    every = [(k, bad, directions) for k, bad in spoilt(arrays, numbers)]
    for k, *pair in every + [(k, arrays, bad) for k, bad in spoilt(directions, numbers)]:
        got = jax.tree.leaves(tangent(*pair))
        rows, _ = spoiled_rows(case, k, arrays)
        wanted = np.where(rows[..., None], np.nan, clean[0]), *(np.where(rows, np.nan, x) for x in clean[1:])
        assert_equal_with_nan(got, wanted)


@judge("spoiled second")
def judge_spoiled_second(twin, case):
    """Rows of the gradients along a direction: NaN in these rows where they are read, and in what they see.

    So it is of cotangents, and where values alone move.
    """
    query, key, value = arrays_of(case)
    arrays, directions, numbers = (abs(query), abs(key), value), directions_of((query, key, value)), (np.nan, -np.inf)
    grads = read_but_the_last(twin, case, arrays)

    @partial(jax.jit, static_argnums=3)
    def second(grads, arrays, directions, first=0):
        fixed = arrays[:first]
        return jax.jvp(lambda *a: gradients_by(twin, case, grads, (*fixed, *a)), arrays[first:], directions[first:])[1]

    clean = second(grads, arrays, directions)

    def hold_to(rows, *given, clean=clean):
        rows[:, -1] = False
        keys = (rows[..., None] & seen).any(axis=1).reshape(key.shape[-3], -1, seen.shape[-1]).any(axis=1)
        wanted = [np.where(nan[..., None], np.nan, x) for nan, x in zip((rows, keys, keys), clean, strict=True)]
        assert_equal_with_nan(second(*given), wanted)

    every = [(k, bad, directions) for k, bad in spoilt(arrays, numbers)]
    for k, *pair in every + [(k, arrays, bad) for k, bad in spoilt(directions, numbers)]:
        rows, seen = spoiled_rows(case, k, arrays)
        hold_to(rows, grads, *pair)
    of_values = second(grads, arrays, directions, 2)
    for k, bad in spoilt(arrays, numbers):
        hold_to(spoiled_rows(case, k, arrays)[0], grads, bad, directions, 2, clean=of_values)
    for k, number in itertools.product(range(2), numbers):
        bad, rows = tuple(x.copy() for x in grads), np.zeros_like(rows)
        bad[k][(..., 0, 2, 1)[: 4 - k]], rows[0, 2] = number, True
        hold_to(rows, bad, arrays, directions)
        hold_to(rows, bad, arrays, directions, 2, clean=of_values)


@judge("open tiles")
def judge_open_tiles(twin, case):
    """Kinds of whole tiles, by which a report counts: none is open that is not, none skipped that is not."""
    query, key, _ = arrays_of(case)
    T, S = query.shape[-2], key.shape[-2]
    mask = case.options["mask"]
    mask = masks.dense(mask) if isinstance(mask, np.ndarray) else mask
    axes = *query.shape[:-3], key.shape[-3], query.shape[-3] // key.shape[-3]
    T, S = 3 * (T // 3), 2 * (S // 2)
    grid = twin.tiles.Grid(axes, (*(1 for _ in axes[:-2]), *axes[-2:]), T, S, 3, 2)
    kinds = np.asarray(twin.partition.kinds_of_tiles(mask.of_rank(len(grid.shape)), grid))
    dense = mask.to_dense(query.shape[-2], key.shape[-2])
    dense = np.broadcast_to(dense, (*query.shape[:-1], key.shape[-2]))[..., :T, :S]
    tiles = dense.reshape(grid.chunks, query.shape[-3], T // 3, 3, S // 2, 2)
    kinds = np.broadcast_to(kinds, (grid.chunks, T // 3, S // 2))
    assert tiles.all(axis=(1, 3, 5))[kinds == twin.partition.FULL].all()
    assert not tiles.any(axis=(1, 3, 5))[kinds == twin.partition.EMPTY].any()


@judge("jvp of jvp of NaN")
def judge_jvp_of_jvp_of_nan(twin, case):
    """A NaN in the direction of a value reaches no earlier query."""
    arrays = arrays_of(case)
    directions = directions_of(arrays)
    attend = partial(case.forward, twin)
    moves = (*directions[:2], poisoned(directions, 3, np.nan)[2])
    for first, second in ((moves, directions), (directions, moves)):
        out, lse = jax.jvp(lambda *a: jax.jvp(attend, a, first)[1], arrays, second)[1]  # noqa: B023
        for got in (out, lse[..., None]):
            assert np.isfinite(got[..., :3, :]).all()
            assert np.isnan(got[..., 3:, :]).all()


@judge("third order")
def judge_third_order(twin, case):
    """The second derivative of the gradients along a direction."""
    arrays, cotangent = random_of(case)
    directions = directions_of(arrays)

    def slopes(*arrays):
        return jax.jvp(lambda *a: results_and_gradients(case, twin, a, cotangent)[1], arrays, directions)[1]

    got = jax.jvp(slopes, arrays, directions)[1]
    wanted = directional_difference(slopes_by_hand(case, cotangent, directions), arrays, directions)
    assert_tree_close(got, wanted, 1e-6, "third order")


def slopes_by_hand(case, cotangent, directions):
    return lambda *arrays: directional_difference(lambda *a: case.backward(spec, cotangent, *a), arrays, directions)


@judge("unread overflow")
def judge_unread_overflow(twin, case):
    """Unread queries where the products of a later query, itself finite, overflow."""
    query, key, value = (x.copy() for x in arrays_of(case))
    key[..., 0, :] = 9
    wanted = gradients_before(twin, case, (query, key, value))
    query[..., 3, :] = 1e308
    assert_same_bits(gradients_before(twin, case, (query, key, value)), wanted, "gradients before")


@judge("cotangent")
def judge_cotangent(twin, case):
    """L6: a NaN in the cotangent of query 1 reaches no other query, and no key after it."""
    arrays, cotangent = random_of(case)
    broken = tuple(x.copy() for x in cotangent)
    broken[0][..., 1, :] = np.nan

    def spared(cotangent):
        query, key, value = (np.asarray(g) for g in results_and_gradients(case, twin, arrays, cotangent)[1])
        return query[..., [0, 2, 3, 4], :], key[..., 2:, :], value[..., 2:, :]

    got, wanted = spared(broken), spared(cotangent)
    assert_tree_close(got[:1], wanted[:1], 1e-10, "other queries")
    assert np.isfinite(got[1]).all()
    assert np.isfinite(got[2]).all()


@judge("visible forward")
def judge_visible(twin, case):
    """A NaN that a query may see is seen, there and nowhere else."""
    arrays = tuple(x.copy() for x in arrays_of(case))
    arrays[2][..., 0, 3, 0] = arrays[2][..., 0, 4, 1] = np.nan
    np.testing.assert_allclose(case.forward(twin, *arrays)[0], case.forward(spec, *arrays)[0], atol=1e-12)


@judge("visible backward")
def judge_visible_backward(twin, case, read=1.0):
    arrays, (dout, dlse) = random_of(case)
    arrays = poisoned(arrays, 3, np.nan)
    got = results_and_gradients(case, twin, arrays, (read * dout, dlse))[1]
    wanted = case.backward(spec, (read * dout, dlse), *arrays)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


@judge("visible lse")
def judge_visible_lse(twin, case):
    judge_visible_backward(twin, case, read=0.0)


@judge("huge forward")
def judge_huge_forward(twin, case):
    """L7: scores of 1e30, where softmax has become the maximum."""
    query, key, value = (x.astype(np.float32) for x in arrays_of(case))
    query, key = np.float32(1e15) * query, np.float32(1e15) * key
    out = jax.jit(partial(case.forward, twin))(query, key, value)[0]
    wide = [x.astype(np.float64) for x in (query, key, value)]
    np.testing.assert_allclose(out, case.forward(spec, *wide)[0], atol=1e-5)


@judge("merge")
def judge_merge(twin, case):
    query, key, value = arrays_of(case)
    parts = [
        spec.attention(query, key[..., k, :], value[..., k, :], return_lse=True) for k in ([0, 4], [1, 2, 3, 5, 6])
    ]
    assert_tree_close(twin.merge(*parts), case.forward(spec, query, key, value), 1e-12, "merged")


@judge("stats")
def judge_stats(twin, case, factor=1.0):
    query, key, _ = arrays_of(case)
    query = factor * query
    weights = spec.attention_with_weights(query, key, key, **case.options)[2]
    logs = np.log(np.where(weights > 0, weights, 1))
    stats = twin.attention_stats(query, key, **case.options)
    np.testing.assert_array_equal(stats.where, np.where(weights.any(-1), weights.argmax(-1), -1))
    np.testing.assert_allclose(stats.entropy, -(weights * logs).sum(-1), atol=1e-12)
    np.testing.assert_allclose(stats.largest, weights.max(-1), atol=1e-12)
    np.testing.assert_allclose(stats.received, weights.sum(-2), atol=1e-12)


@judge("stats of equals")
def judge_stats_of_equals(twin, case):
    judge_stats(twin, case, factor=0.0)


@judge("some weights")
def judge_some_weights(twin, case):
    query, key, _ = arrays_of(case)
    weights = spec.attention_with_weights(query, key, key, **case.options)[2]
    at = partial(twin.weights_at, query, key, **case.options)
    rows, columns = np.array([3, 0, 4]), np.array([6, 1])
    np.testing.assert_allclose(at(queries=rows), weights[..., rows, :], atol=1e-12)
    np.testing.assert_allclose(at(keys=columns), weights[..., columns], atol=1e-12)


COMPILED = {  # judges that call more than once, or are about rounding
    "an unseen NaN", "huge forward", "poison backward", "spoiled second",
    "spoiled tangent", "unread second",
}  # fmt: skip


def hold(judge_name, setting_name, twin):
    """Run one judge under one setting."""
    case = SETTINGS[setting_name]
    twin.partition.LIMITS = case.limits
    twin.partition.LIMITS_ON["cuda"] = case.limits
    twin.primitives.default_platform = lambda: case.platform
    if judge_name in COMPILED:
        JUDGES[judge_name](twin, case)
        return
    with jax.disable_jit(), quick_steps(), np.errstate(invalid="ignore", over="ignore"):  # of constants of a step
        JUDGES[judge_name](twin, case)


# The copy


class Twin:
    """Functions that a copy of the kernels and of ``dispatch.py`` offers, in tiny tiles."""

    def __init__(self, package=NAME):
        def part(name):
            return importlib.import_module(f"{package}.{name}")

        assert part("kernels.backends").default() == "blockwise"
        self.primitives, self.partition = part("kernels.primitives"), part("kernels.blockwise.partition")
        self.tiles, self.merge = part("kernels.blockwise.tiles"), part("dispatch").merge
        self.attention, inspection = part("dispatch").attention, part("inspection")
        self.attention_stats, self.weights_at = inspection.attention_stats, inspection.weights_at


def replaced(file, right, wrong):
    text = file.read_text(encoding="utf-8")
    assert text.count(right) >= 1, f"{right!r} is not in {file.name}: the table is stale"
    file.write_text(text.replace(right, wrong), encoding="utf-8")


def forget():
    for module in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[module]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """One copy for all judges; those that compile need their own, for JAX keeps what it has traced."""
    folder = tmp_path_factory.mktemp("untouched")
    copied(folder / "untouched_kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield Twin("untouched_kernels")


@pytest.fixture
def twin_with(tmp_path, monkeypatch, request):
    """Make an importable copy of the kernels with one piece of text replaced, in them or in the bounds of the masks."""

    def make(file, right, wrong):
        copied(tmp_path / NAME)
        if file in OF_MASKS:
            replace_bounds(file, right, wrong)
        else:
            replaced(tmp_path / NAME / file, right, wrong)
        monkeypatch.syspath_prepend(str(tmp_path))
        forget()
        request.addfinalizer(forget)
        importlib.invalidate_caches()
        return Twin()

    def replace_bounds(file, right, wrong):
        """Only the bounds: what a mask allows is also what the specification goes by."""
        copy = tmp_path / "mistaken_masks.py"
        shutil.copy(Path(attendax.__file__).with_name(file), copy)
        replaced(copy, right, wrong)
        module_spec = importlib.util.spec_from_file_location("mistaken_masks", copy)
        module = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(module)
        if file == "mask_type.py":
            monkeypatch.setattr(masks.Mask, "bounds", module.Mask.bounds)
        else:
            monkeypatch.setattr(mask_type, "BOUNDS", module.BOUNDS)

    return make


def test_every_text_to_replace_is_in_the_source():
    package = Path(attendax.__file__).parent
    assert [m.name for m in KERNELS if m.right not in (package / m.file).read_text(encoding="utf-8")] == []


@pytest.mark.slow
@pytest.mark.parametrize("mistake", KERNELS, ids=[f"{m.file}: {m.name}" for m in KERNELS])
def test_the_mistake_is_caught(mistake, twin_with):
    twin = twin_with(mistake.file, mistake.right, mistake.wrong)
    with pytest.raises(AssertionError):
        hold(mistake.judge, mistake.setting, twin)


@pytest.mark.smoke(
    8
)  # the laws are tested in tiles by test_laws.py; this is the other half of test_the_mistake_is_caught
@pytest.mark.parametrize(("judge", "setting"), sorted({(m.judge, m.setting) for m in KERNELS}))
def test_an_untouched_copy_passes_every_judge(judge, setting, twin_with, untouched):
    """So that it is the mistake that is caught, not the copying."""
    new = judge in COMPILED
    hold(judge, setting, twin_with("kernels/blockwise/algorithm.py", '"""', '"""') if new else untouched)


@pytest.mark.parametrize(("judge", "setting"), sorted({(m.judge, m.setting) for m in KERNELS if m.file in OF_MASKS}))
@pytest.mark.parametrize("file", OF_MASKS)
def test_untouched_bounds_pass_every_judge(judge, setting, file, twin_with):
    hold(judge, setting, twin_with(file, '"""', '"""'))
