"""The native path: what is not finite, the smallest and largest sizes, what is refused, what the environment says."""

import functools
import sys

import jax
import numpy as np
import pytest

from attendax import attention, masks, scores
from judges import assert_same_bits
from native_calls import Sizes, arrays, assert_near, cotangents, needs_library, right, run
from processes import in_a_process

pytestmark = needs_library
native = functools.partial(attention, implementation="native")


# What is not finite (L6)


OPTIONS = {
    "plain": lambda z: {},
    "causal": lambda z: {"mask": masks.causal(z.S - z.T)},
    "lengths": lambda z: {"mask": masks.padding(np.array([z.S // 2, z.S]), np.array([z.T, z.T // 2]))},
    "segments": lambda z: {"mask": masks.segments(ids(z, z.T), ids(z, z.S))},
    "dense, softcap": lambda z: {
        "mask": masks.dense(np.random.default_rng(3).random((z.B, z.N, z.T, z.S)) < 0.4),
        "score_mod": scores.softcap(2.0),
    },
    "window, bias": lambda z: {"mask": masks.window(9, 1, 30) | masks.causal(-3), "bias": forbidding(z)},
    "dropout, slopes": lambda z: {
        "dropout_rate": 0.4, "dropout_rng": np.array([1, 2], np.uint32), "mask": masks.causal(),
        "score_mod": scores.alibi(np.linspace(0, 0.3, z.N, dtype=np.float32)),
    },
}  # fmt: skip


def ids(z, n):
    return np.random.default_rng(n).integers(0, 3, (z.B, n)).astype(np.int32)


def forbidding(z):
    rng = np.random.default_rng(4)
    bias = rng.normal(size=(z.B, z.N, z.T, z.S)).astype(np.float32)
    return np.where(rng.random(bias.shape) < 0.2, np.float32(-np.inf), bias)


def poisons(z, rng, chosen):
    """Arrays of a call with some numbers that are not finite, some rows that nothing depends on."""
    given, found = arrays(z, np.float32), cotangents(z, np.float32)
    found[0][rng.random(found[0].shape[:-1]) < 0.3] = 0
    found[1][rng.random(found[1].shape) < 0.5] = 0
    for _ in range(rng.integers(1, 4)):
        x = given[rng.integers(3)]
        x[tuple(rng.integers(n) for n in x.shape)] = rng.choice([np.nan, np.inf, -np.inf])
    if rng.random() < 0.3:
        found[0][0, 0, 0, 0] = np.nan
    if "bias" in chosen:
        chosen["bias"] = chosen["bias"].copy()
        chosen["bias"][0, 1, z.T // 2, z.S // 2] = rng.choice([np.nan, np.inf, 1.0])
    return given, found, chosen


@functools.cache
def programs(z, option):
    """The call, native and in tiles, compiled once."""
    chosen = OPTIONS[option](z)
    bias = chosen.pop("bias", np.float32(0))

    @functools.partial(jax.jit, static_argnums=3)
    def both(given, bias, found, im):
        more = {} if bias.ndim == 0 else {"bias": bias}
        call = functools.partial(attention, **chosen, return_lse=True, implementation=im)
        leaves = {name: chosen[name] for name in ("score_mod",) if name in chosen}
        results, pull_back = jax.vjp(lambda given, more: call(*given, **more | leaves), given, more)
        return results, pull_back(tuple(d.astype(x.dtype) for d, x in zip(found, results, strict=True)))

    return both, bias


@pytest.mark.law("L6", "native")
@pytest.mark.sample(5)
@pytest.mark.parametrize("z", [Sizes(2, 2, 1, 70, 130, 16, 8), Sizes(2, 4, 2, 3, 100, 5, 3)], ids=["blocks", "folded"])
@pytest.mark.parametrize("option", OPTIONS)
def test_l6_what_is_not_finite_spreads_as_in_tiles(option, z):
    both, bias = programs(z, option)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        given, found, chosen = poisons(z, rng, {"bias": bias} if np.ndim(bias) else {})
        got, wanted = (
            jax.tree.leaves(both(given, chosen.get("bias", bias), found, im)) for im in ("native", "blockwise")
        )
        for k, (x, y) in enumerate(zip(got, wanted, strict=True)):
            x, y = np.asarray(x), np.asarray(y)
            np.testing.assert_array_equal(np.isnan(x), np.isnan(y), f"seed {seed}, leaf {k}")
            np.testing.assert_array_equal(np.isinf(x), np.isinf(y), f"seed {seed}, leaf {k}")
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-4 * np.abs(y[np.isfinite(y)]).max(initial=1.0))


@pytest.mark.law("L6", "native")
@pytest.mark.parametrize("number", [np.nan, np.inf, 3e38])
def test_l6_what_is_hidden_changes_no_bit(number):
    z = Sizes(2, 4, 2, 70, 200, 16, 16)
    given, found = arrays(z, np.float32), cotangents(z, np.float32)
    mask = masks.padding(np.array([150, 33])) & masks.segments(
        np.zeros((2, 70), int), np.arange(200)[None] % 7 // 5 * [[1], [1]]
    )
    clean = jax.block_until_ready(run(given, found, mask=mask))  # arrays of NumPy are not copied, and change below
    hidden = ~np.asarray(mask.to_dense(70, 200))[:, 0, 0]
    for x in given[1:]:
        x[np.broadcast_to(hidden[:, None], x.shape[:-1])] = number
    assert_same_bits(run(given, found, mask=mask), clean, "hidden")


@pytest.mark.law("L5", "native")
def test_l5_a_row_that_sees_nothing():
    """By mask, by bias, by both: 0, -inf, and no gradient."""
    z = Sizes(1, 2, 2, 80, 200, 8, 8)
    given, found = arrays(z, np.float32), cotangents(z, np.float32)
    bias = np.where(np.arange(200) < 100, np.float32(-np.inf), np.float32(0))[None]
    (out, lse), (grads, _) = run(given, found, mask=masks.padding(np.array([100])), bias=bias)
    assert (np.asarray(out) == 0).all()
    assert (np.asarray(lse) == -np.inf).all()
    assert all((np.asarray(x) == 0).all() for x in grads)


# Sizes (L11)


@pytest.mark.law("L11", "native")
@pytest.mark.parametrize(
    "z",
    [
        Sizes(T=0), Sizes(S=0), Sizes(T=0, S=0), Sizes(B=0), Sizes(S=1), Sizes(D=1, V=1),
        Sizes(T=2, S=2, D=1000, V=999), Sizes(1, 1, 1, 3, 3, 4096, 4096),
        Sizes(1, 60, 1, 2, 5, 3, 3), Sizes(5, 2, 2, 1, 1, 2, 2),
    ],
    ids=repr,
)  # fmt: skip
def test_l11_sizes(z):
    """Right, by name, and as the default; where nothing is there to compute, too."""
    given, found = arrays(z), cotangents(z)
    for implementation in ("native", None):
        for chosen in ({}, {"mask": masks.causal(), "bias": np.ones((z.N, z.T, z.S))}):
            wanted = right(given, found, **chosen)
            assert_near(run(given, found, implementation, **chosen), wanted, 1e-11, f"{implementation}")


@pytest.mark.law("L1", "native")
def test_l1_one_head_and_many_leading_axes():
    query, key, value = arrays(Sizes(1, 1, 1, 20, 30, 4, 4))
    wanted = np.asarray(native(query, key, value))
    np.testing.assert_array_equal(native(query[0, 0], key[0, 0], value[0, 0]), wanted[0, 0])
    axes = (1,) * 12
    one = [x.reshape(*axes[1:], *x.shape) for x in (query, key, value)]
    np.testing.assert_array_equal(np.asarray(native(*one)).reshape(wanted.shape), wanted)


@pytest.mark.law("L4", "native")
def test_l4_positions_of_any_size():
    """Offsets near the ends of 32 bits do not wrap around."""
    given = arrays(Sizes(1, 2, 2, 5, 9, 4, 4))
    for offset in (2**31 - 1, -(2**31), 2**40, -(2**40)):
        for form in (int, np.int64):
            some = masks.causal(form(offset)), masks.window(3, None, form(offset)), ~masks.window(None, 2, form(offset))
            for mask in some:
                got, wanted = (attention(*given, mask=mask, implementation=im) for im in (None, "dense"))
                assert_near(got, wanted, 1e-13, f"offset {offset}")
    for offset in (2**30, -(2**30)):
        slopes = scores.alibi(np.array([1e-9, 2e-9]), offset)
        got, wanted = (attention(*given, score_mod=slopes, implementation=im) for im in ("native", "dense"))
        assert_near(got, wanted, 1e-12, f"slopes, offset {offset}")


# The environment


LIBRARY = """
import jax
jax.config.update("jax_enable_x64", True)
import numpy as np
from attendax import attention
from attendax.kernels import native
x = np.ones((1, 2, 5, 8), np.float32)
print(native.status())
print("attendax_forward" in jax.jit(attention).lower(x, x, x).as_text())
try:
    attention(x, x, x, implementation="native")
    print("taken")
except NotImplementedError as error:
    print(" ".join(str(error).split()))
"""

NUMBERS = (
    LIBRARY
    + """
from native_calls import SIZES, Sizes, arrays, assert_near, cotangents, options, right, run
from judges import assert_same_bits
for z in (SIZES["one more"], SIZES["a folded group"], SIZES["two chunks of keys"]):
    for name in ("causal", "segments or causal", "composed", "everything"):
        given, found, chosen = arrays(z), cotangents(z), options(name, z)
        assert_near(run(given, found, **chosen), right(given, found, **chosen), 2e-12, name)
from test_native_rows import SIZES, Part
calls = ("no whole vectors", "plain"), ("folded", "all"), ("groups", "table"), ("several chunks", "plain")
for sizes, option in calls:
    call = Part(SIZES[sizes]._replace(B=2), option)
    whole = call.take()
    assert_same_bits(call.take(b=slice(1, 2)), [x[1:] for x in whole], "one batch entry alone")
    for a, b in ((0, 1), (10, 30)):
        assert_same_bits(call.take(t=slice(a, b))[:3], [x[:, :, a:b] for x in whole[:3]], "queries")
print("ok")
"""
)


def test_the_library_is_turned_off_by_the_environment():
    status, chosen, told = in_a_process(LIBRARY, ATTENDAX_NATIVE="0")
    assert "turned off by ATTENDAX_NATIVE=0" in status
    assert chosen == "False"
    assert "turned off by ATTENDAX_NATIVE=0" in told


def test_no_such_instruction_set_is_no_library():
    status, chosen, told = in_a_process(LIBRARY, ATTENDAX_ISA="quantum")
    assert "instruction set" in status
    assert (chosen, "instruction set" in told) == ("False", True)


@pytest.mark.law("L15", "native")
@pytest.mark.skipif(sys.platform != "linux", reason="the names of sets are those of x86")
def test_another_instruction_set_is_right_and_row_invariant_too():
    status, chosen, told, last = in_a_process(NUMBERS, ATTENDAX_ISA="avx2")
    assert (status, chosen, told, last) == ("native kernel: avx2", "True", "taken", "ok")
