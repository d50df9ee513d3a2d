"""Mistakes planted in the blockwise kernels, one at a time: each must be caught, or the judges prove nothing.

A mistake is a piece of text replaced in one file of a copy of ``attendax.kernels``. The judge beside it holds the copy,
in tiles of 3 queries and 2 keys, against the specification; it must raise AssertionError, and must pass on an untouched
copy. The judge "law" is that of random programs (`fuzz`): its settings are the cases of `LAWS`. Where all keys of a row
are in one tile, second derivatives have functions of their own: the settings with "few keys" and "at once" judge these.
Judges run step by step, which at this size is faster than compiling a mistake first.
"""

import importlib
import importlib.util
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import masks, scores, spec
from attendax.conformance import directional_difference
from attendax.kernels.blockwise.partition import LIMITS
from attendax.kernels.operands import Limits
from cases import attention_case
from compilation import quick_steps
from copied_kernels import copied
from fuzz import judge as laws
from fuzz.case import Case
from judges import arrays_of, assert_same_bits, assert_tree_close, cotangent_of
from mistakes_in_kernels import KERNELS

B, N, G, T, S, D, V = 2, 4, 2, 5, 7, 3, 4
NAME = "mistaken_kernels"
ONE_HEAD, ALL_HEADS = Limits(3, 2, 8 * 3 * 2 * 2), Limits(3, 2, 2**20)  # of the keys; two query heads share it
ALL_KEYS = Limits(3, 9, 2**20)  # each row of scores is in one tile


class Setting(NamedTuple):
    """A case of attention with fixed options, and how large its tiles may be."""

    forward: Any
    backward: Any
    arrays: Any
    options: dict
    limits: Limits


def setting(sizes=(1, N, G, T, S, D, V), limits=ONE_HEAD, **options):
    b, n, g, t, s, d, v = sizes
    shapes = {"query": (b, n, t, d), "key": (b, g, s, d), "value": (b, g, s, v)}
    case = attention_case("", shapes, lse=True, **options)
    return Setting(case.forward, case.backward, case.arrays, options, limits)


SMALL = (1, 2, 1, 5, 3, 2, 2)
SETTINGS = {
    "open": setting(),
    "few keys": setting(limits=ALL_KEYS),
    "three key heads": setting((1, 6, 3, T, S, D, V), Limits(3, 2, 200)),
    "small": setting(SMALL, mask=masks.causal(1)),
    "all alike": setting((1, 2, 2, T, T, D, D)),
    "future": setting((1, 2, 1, T, T, D, V), mask=masks.causal()),
    "future, few keys": setting((1, 2, 1, T, T, D, V), ALL_KEYS, mask=masks.causal()),
    "cubed": setting(mask=masks.padding(np.array([3])), score_mod=scores.from_function(lambda s, at: s + s**3 / 9)),
}


EXACT: dict[str, Any] = {"dtype": "float64", "x64": True, "jit": "none", "loss": "weighted"}
FUTURE = Case(lead=(1,), N=2, T=5, S=5, D=3, V=4, mask=("causal", 0), **EXACT)
KEYS = Case(lead=(1,), N=4, G=2, T=5, S=7, D=3, V=4, mask=("padding", False), seed=1, **EXACT)
FEW = Case(lead=(1,), N=2, T=5, S=3, D=2, V=2, mask=("causal", 1), lse="square", **EXACT)


def law(base, direction, number="", name="", limits=ONE_HEAD, **fields):
    """A case for every law: what is written where something sees it, or, without a name, where nothing does."""
    poison = ("seen", number, name) if name else ("unseen", number) if number else ()
    return replace(base, direction=direction, poison=poison, **fields).without(), limits


SINGLE = {"dtype": "float32", "x64": False}
LAWS = {
    "huge scores": law(KEYS, "forward", lead=(2,), mask=None, values="huge", **SINGLE),
    "second order": law(FEW, "fr"),
    "second order at once": law(KEYS, "fr", limits=ALL_KEYS, mask=None, lse="square"),
    "reverse over reverse": law(FEW, "rr"),
    "reverse over reverse, one value": law(FEW, "rr", V=1, mask=None),
    "vmap": law(FEW, "grad", lead=(3, 1), maps=("vmap",), shared=(("key", "value"),), inside=True, seed=3),
    "shared by vmap": law(FEW, "grad", limits=ALL_HEADS, lead=(3, 1), maps=("vmap",), shared=(("key", "value"),)),
    "forward, unseen nan": law(KEYS, "forward", "nan", lse="sum"),
    "forward, unseen nan, bias": law(KEYS, "forward", "nan", lse="sum", mask=None, seed=0,
                                     bias=(False, False, False, True), bias_values="forbids"),
    "forward, unseen nan, compiled": law(FUTURE, "forward", "nan", limits=LIMITS, lead=(), N=12, G=12, T=64, S=64, D=16,
                                         V=16, mask=("array", (False, True)), jit="outer", **SINGLE),
    "forward, inf in key": law(KEYS, "forward", "inf", "key", mask=None, lse="sum"),
    "forward, nan in value": law(KEYS, "forward", "nan", "value", mask=None, lse="sum"),
    "forward, nan in value, causal": law(FUTURE, "forward", "nan", "value", lse="sum"),
    "unseen nan": law(KEYS, "grad", "nan", **SINGLE),
    "unseen big": law(KEYS, "grad", "big", **SINGLE),
    "nan in query": law(FUTURE, "grad", "nan", "query"),
    "nan in query, lse alone": law(FUTURE, "grad", "nan", "query", lse="alone"),
    "nan in value": law(FUTURE, "grad", "nan", "value"),
    "nan in dout": law(FUTURE, "grad", "nan", "cotangent_out"),
    "big in value": law(FUTURE, "grad", "big", "value", **SINGLE),
    "tangent, nan in key": law(FUTURE, "jvp", "nan", "key", lse="sum"),
    "tangent, nan in value": law(FUTURE, "jvp", "nan", "value", lse="sum"),
    "tangent, inf in move key": law(FUTURE, "jvp", "inf", "move key", lse="sum"),
    "tangent, nan in move value": law(FUTURE, "jvp", "nan", "move value", lse="sum"),
    "tangent, nan in move value, few keys": law(FUTURE, "jvp", "nan", "move value", ALL_KEYS, lse="sum"),
    "second, inf in query": law(FUTURE, "fr", "inf", "query"),
    "second, nan in move query": law(FUTURE, "fr", "nan", "move query"),
    "second, nan in move key": law(FUTURE, "fr", "nan", "move key"),
    "at once, inf in query": law(FUTURE, "fr", "inf", "query", ALL_KEYS),
    "at once, scaled": law(KEYS, "fr", "big", limits=ALL_KEYS, scale=2.0, **SINGLE),
    "at once, nan in key": law(FUTURE, "fr", "nan", "key", ALL_KEYS),
    "one tile, nan in key": law(FUTURE, "fr", "nan", "key", LIMITS),
    "at once, nan in move value": law(FUTURE, "fr", "nan", "move value", ALL_KEYS),
    "at once, nan in dout": law(FUTURE, "fr", "nan", "cotangent_out", ALL_KEYS),
}  # fmt: skip


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


@judge("law")
def judge_law(twin, case):
    verdict = laws.judge(twin.attention, case)
    assert (verdict.findings, verdict.refused) == ([], "")


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


@judge("tangent of the keys")
def judge_tangent_of_the_keys(twin, case):
    """The derivative along a direction of the keys alone is that of the gradients by hand."""
    (query, key, value), cotangent = random_of(case)
    (direction,) = directions_of([key])
    _, moved = jax.jvp(lambda key: case.forward(twin, query, key, value), (key,), (direction,))
    by_hand = case.backward(spec, cotangent, query, key, value)[1]
    along = sum(np.sum(np.asarray(x) * c) for x, c in zip(moved, cotangent, strict=True))
    np.testing.assert_allclose(along, np.sum(by_hand * direction), rtol=1e-10)


def gradients_before(twin, case, arrays, **options):
    """Of queries and keys 0 to 2, where nothing depends on queries 3 and later."""
    cotangent = np.random.default_rng(4).normal(size=(*arrays[0].shape[:-1], V))
    cotangent[..., 3:, :] = 0
    gradients = jax.vjp(partial(twin.attention, **case.options | options), *arrays)[1](cotangent)
    return [np.asarray(x)[..., :3, :] for x in gradients]


@judge("unread modifier")
def judge_unread_modifier(twin, case):
    """Unread queries where the modifier makes them NaN."""
    arrays = arrays_of(case)

    def before(late):
        score_mod = scores.from_function(lambda s, at: jnp.where(at[1] < 3, s, late))
        return gradients_before(twin, case, arrays, score_mod=score_mod)

    assert_same_bits(before(jnp.nan), before(0.0), "gradients before")


@judge("values alone move")
def judge_values_alone_move(twin, case):
    """L6: of rows that see a key or value which is not finite, gradients along the values alone are NaN as well."""
    arrays, cotangent = random_of(case)
    for which, number in ((1, np.nan), (1, -np.inf), (2, np.nan)):
        query, key, value = (abs(x) for x in arrays)  # so that the product with -inf is -inf
        (key, value)[which - 1][..., 3, 0] = number

        def gradients(value, query=query, key=key):
            return results_and_gradients(case, twin, (query, key, value), cotangent)[1]

        of_query, *others = jax.jvp(gradients, (value,), directions_of([value]))[1]
        assert np.isfinite(of_query[..., :3, :]).all()
        assert np.isnan(of_query[..., 3:, :]).all()
        assert all(np.isnan(x).all() for x in others)


@judge("overflow of a modifier")
def judge_overflow_of_a_modifier(twin, case):
    """L6: keys from 3 on, which nobody may look at, have scores whose cubes overflow."""
    arrays, cotangent = random_of(case)
    wanted = results_and_gradients(case, twin, arrays, cotangent)
    query, key, value, *rest = (x.copy() for x in arrays)
    key[..., 3:, :] = 1e200
    assert_same_bits(results_and_gradients(case, twin, (query, key, value, *rest), cotangent), wanted, "cubed")


@judge("unread overflow")
def judge_unread_overflow(twin, case):
    """Unread queries where the products of a later query, itself finite, overflow."""
    query, key, value = (x.copy() for x in arrays_of(case))
    key[..., 0, :] = 9
    wanted = gradients_before(twin, case, (query, key, value))
    query[..., 3, :] = 1e308
    assert_same_bits(gradients_before(twin, case, (query, key, value)), wanted, "gradients before")


@judge("jvp of jvp of NaN")
def judge_jvp_of_jvp_of_nan(twin, case):
    """A NaN in the direction of a value reaches no earlier query."""
    arrays = arrays_of(case)
    directions = directions_of(arrays)
    attend = partial(case.forward, twin)
    moves = tuple(x.copy() for x in directions)
    moves[2][..., 3:, :] = np.nan
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


@judge("stats of equals")
def judge_stats_of_equals(twin, case):
    query, key, _ = arrays_of(case)
    np.testing.assert_array_equal(twin.attention_stats(0 * query, key, **case.options).where, 0)


def hold(judge_name, setting_name, twin):
    """Run one judge under one setting."""
    by_law = judge_name == "law"
    case, limits = LAWS[setting_name] if by_law else (SETTINGS[setting_name], SETTINGS[setting_name].limits)
    twin.partition.LIMITS = limits
    twin.primitives.default_platform = lambda: "cpu"
    if by_law and case.jit == "outer":
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
        self.attention, self.attention_stats = part("dispatch").attention, part("inspection").attention_stats


def replaced(file, right, wrong):
    text = file.read_text(encoding="utf-8")
    assert text.count(right) >= 1, f"{right!r} is not in {file.name}: the table is stale"
    file.write_text(text.replace(right, wrong), encoding="utf-8")


def forget():
    for module in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[module]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """One copy for all judges."""
    folder = tmp_path_factory.mktemp("untouched")
    copied(folder / "untouched_kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield Twin("untouched_kernels")


@pytest.fixture
def twin_with(tmp_path, monkeypatch, request):
    """Make an importable copy of the kernels with one piece of text replaced."""

    def make(file, right, wrong):
        copied(tmp_path / NAME)
        replaced(tmp_path / NAME / file, right, wrong)
        monkeypatch.syspath_prepend(str(tmp_path))
        forget()
        request.addfinalizer(forget)
        importlib.invalidate_caches()
        return Twin()

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


@pytest.mark.smoke(4)  # the laws are tested in tiles by test_laws.py; the slow test of the mistakes has all judges
@pytest.mark.parametrize(("judge", "setting"), sorted({(m.judge, m.setting) for m in KERNELS}))
def test_an_untouched_copy_passes_every_judge(judge, setting, untouched):
    """So that it is the mistake that is caught, not the copying."""
    hold(judge, setting, untouched)
