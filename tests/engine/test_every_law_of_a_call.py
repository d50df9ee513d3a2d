"""Calls of attention as users compile them, each judged by every law that it concerns (`fuzz.judge`).

The numbers are those of the definition (L17) and as near as those of the plain formula (L8), whatever the compiler
knows; what is masked changes no bit, and what sees a number that is not finite is NaN (L6); a part of a call has the
bits of the whole (L15). With a seed that 3 divides, a call runs natively and in tiles.

A loss as users write it hands the backward a constant, and XLA's CPU compiler once made gradients of 1e15 of it. Sizes
stand on both sides of every limit: products of 2^16 scores, tiles of 512, and 4,096 numbers, from which on XLA reduces
in other kernels. Factors are not multiplied out: they take turns.
"""

import dataclasses
import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from attendax import attention, ops
from attendax.kernels.operands import Limits
from blockwise import TINY, limited
from fuzz.case import DIRECTIONS, FIRST, JACOBIANS, LOSSES, Case
from fuzz.judge import judge
from native_calls import needs_library

CAUSAL = ("causal", 0)
NOT_FINITE = ("nan", "inf", "-inf")


def call(*sizes, mask=None, **fields):
    """A case of so many texts, heads, tokens and columns."""
    *lead, N, T, D = sizes
    return Case(lead=tuple(lead), **{"N": N, "G": N, "T": T, "S": T, "D": D, "V": D, "mask": mask} | fields)


def assert_keeps_every_law(case, attend=attention):
    case = case.without()
    assert case.is_valid()
    verdict = judge(attend, case)
    assert (verdict.findings, verdict.refused) == ([], "")


# Whatever the compiler knows

SIZES = (
    call(8, 12, 128, 32), call(2, 12, 128, 64, mask=CAUSAL), call(2, 12, 197, 64), call(12, 64, 16),
    call(1, 3, 63, 16, mask=CAUSAL), call(1, 2, 256, 16), call(1, 4, 300, 16, mask=CAUSAL), call(1, 2, 513, 16),
    call(1, 2, 700, 16, mask=CAUSAL), call(1, 1, 1100, 8, mask=CAUSAL),
)  # fmt: skip
OPERANDS = (
    {}, {"values": "equal", "known": ("value",)}, {"values": "ones", "known": ("key",)},
    {"values": "ones", "known": ("query",)}, {"broadcast": ("value",)}, {"values": "eye", "known": ("value",)},
    {"broadcast": ("key",)}, {"values": "iota", "known": ("key",)}, {"known": ("query",)},
    {"values": "ones", "known": ("key", "value")}, {"broadcast": ("query",)},
)  # fmt: skip


def taking_turns():
    """Each size with two losses; operands, directions and surroundings take turns."""
    operands, directions = itertools.cycle(OPERANDS), itertools.cycle(["forward", *FIRST])
    for row, size in enumerate(SIZES):
        for column, loss in enumerate(LOSSES):
            if (row + column) % 4 == 1:
                fields = {"loss": loss, "direction": next(directions), "layers": row % 2 == column // 4}
                yield dataclasses.replace(size, **fields | next(operands))


PLAIN, LONGER = call(12, 64, 16, direction="grad"), call(1, 4, 300, 16, direction="grad")
EQUAL = {"values": "equal", "known": ("value",)}
KNOWN = call(2, 12, 197, 64, direction="value_and_grad", loss="mean", layers=True, **EQUAL)
CALLS = [
    *taking_turns(),
    *(dataclasses.replace(size, direction="grad") for size in SIZES),
    *(dataclasses.replace(case, **fields, direction=order) for order in ("fr", "rr", "rf")
      for case, fields in ((PLAIN, {"lse": "sum"}), (LONGER, {"layers": True, **EQUAL}))),
    *(dataclasses.replace(PLAIN, lead=(2,), **fields) for fields in (
        {"remat": "all"}, {"maps": ("scan",), "shared": ((),)}, {"maps": ("vmap",), "shared": ((),)})),
    *(dataclasses.replace(case, implementation=name) for case in (PLAIN, KNOWN) for name in ("dense", "blockwise")),
    *(dataclasses.replace(case, dtype=dtype, x64=dtype == "float64") for dtype in ("float64", "bfloat16")
      for case in (PLAIN, dataclasses.replace(LONGER, loss="mean", **EQUAL))),
    *(dataclasses.replace(LONGER, **fields) for fields in (
        {"bias": (True,) * 4}, {"modifier": ("softcap", 3.0)}, {"modifier": ("alibi", 0)}, {"dropout": 0.5},
        {"mask": ("padding", False)}, {"mask": ("window", 100, 0)})),
]  # fmt: skip


@pytest.mark.law("L17", "tiles", "native")
@pytest.mark.sample(3)
@pytest.mark.parametrize("case", CALLS, ids=repr)
def test_l17_the_compiler_may_know_anything(case):
    assert_keeps_every_law(case)


# What is not finite, on both sides of 4,096 numbers, where a compiler's maximum drops NaN

UNSEEN = [
    call(*size, mask=("array", (False, True)), direction=direction, loss="weighted", poison=("unseen", number))
    for size, direction, number in itertools.product(
        ((4, 63, 16), (12, 64, 16), (2, 300, 16)), ("grad", "jvp", "fr"), (*NOT_FINITE, "big"))
]  # fmt: skip
UNSEEN_BIAS = [dataclasses.replace(case, bias=(True,) * 4) for case in (UNSEEN[0], UNSEEN[13])]
UNREAD = [
    call(*size, mask=CAUSAL, direction=direction, loss="weighted", poison=("seen", number, name))
    for size, (direction, name), number in itertools.product(
        ((1, 5, 8), (12, 64, 16), (2, 300, 16)),
        (*(("grad", name) for name in ("query", "key", "value")), *(("fr", f"move {x}") for x in ("key", "value"))),
        NOT_FINITE)
]  # fmt: skip


@pytest.mark.law("L6", "tiles", "native")
@pytest.mark.sample(3)
@pytest.mark.parametrize("case", [*UNSEEN, *UNSEEN_BIAS, *UNREAD], ids=repr)
def test_l6_what_is_not_finite(case):
    """Where nothing sees it; and in one place, for rows that the loss reads, and for rows that it does not."""
    assert_keeps_every_law(case)


@pytest.mark.law("L6", "ops")
@pytest.mark.sample(1)
@pytest.mark.parametrize("case", [UNSEEN[12], UNSEEN_BIAS[0], UNREAD[15]], ids=repr)
def test_l6_in_the_dense_functions(case):
    assert_keeps_every_law(case, ops.attention)
    assert_keeps_every_law(dataclasses.replace(case, implementation="dense"))


SMALLER = Case(N=2, G=2, T=4, S=5, D=2, V=3, dtype="float64", x64=True, loss="square", lse="square")


@pytest.mark.smoke(2)
@pytest.mark.law("L12", "ops")
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_l12_in_the_dense_functions(direction):
    assert_keeps_every_law(dataclasses.replace(SMALLER, direction=direction, mask=("causal", 1)), ops.attention)


# A few queries, as in decoding: some in one tile, some not, and wider than there are keys

FEW = [
    Case(lead=(2,), N=N, G=G, T=T, S=S, D=D, V=V, mask=mask, poison=("seen", number, name))
    for (T, N, G, S, D, V), mask, name, number in itertools.product(
        ((1, 2, 2, 700, 8, 8), (2, 8, 2, 600, 8, 8), (20, 2, 2, 700, 16, 16), (40, 2, 2, 700, 16, 16),
         (1, 2, 2, 600, 8, 640), (97, 5, 5, 70, 8, 8)),
        (None, ("padding", False), ("array", (False, True))), ("query", "key", "value"), NOT_FINITE)
]  # fmt: skip


@pytest.mark.law("L6", "tiles", "native")
@pytest.mark.sample(4)
@pytest.mark.parametrize("case", FEW, ids=repr)
def test_l6_few_queries(case):
    assert_keeps_every_law(case)


# The native kernel by name, in every direction: texts of more than 96 keys have second derivatives in tiles

DOUBLE = {"dtype": "float64", "x64": True, "implementation": "native"}
SHORT = Case(lead=(2,), N=4, G=2, T=8, S=20, D=8, V=4, mask=("causal", 7), loss="square", lse="square", **DOUBLE)
LONG = dataclasses.replace(SHORT, T=70, S=130, mask=("causal", 40))
NATIVE = [
    *(dataclasses.replace(case, direction=direction) for case in (SHORT, LONG)
      for direction in ("forward", "grad", "jvp", "linearize", "fr", "rr", "rf")),
    *(dataclasses.replace(SHORT, lead=(), N=1, G=1, T=2, S=3, D=2, V=2, direction=direction, loss="square")
      for direction in JACOBIANS),
    *(dataclasses.replace(LONG, direction="grad", remat=remat) for remat in ("all", "dots", "names")),
    *(dataclasses.replace(LONG, lead=(3, 2), T=20, S=40, direction="grad", maps=(kind,), shared=(shared,), seed=seed)
      for seed, (kind, shared) in enumerate((
          ("vmap", ()), ("vmap", ("key",)), ("vmap", ("query",)), ("vmap", ("value", "query")), ("scan", ()),
          ("map", ()), ("vmap", ("value",)), ("vmap", ("key", "query"))))),
    dataclasses.replace(LONG, lead=(3, 1), T=20, S=40, direction="grad", maps=("vmap",), shared=(("key", "value"),),
                        mask=("and", ("padding", False), ("traced causal", True)), bias=(True,) * 4,
                        modifier=("alibi", 0)),
    *(dataclasses.replace(case, direction=direction, wanted=wanted) for case in (SHORT, LONG)
      for direction in ("jvp", "fr") for wanted in (("query",), ("key",), ("value",), ("query", "value"))),
    *(dataclasses.replace(LONG, S=90, direction=direction, dtype=dtype, x64=False, lse="")
      for direction in ("jvp", "fr") for dtype in ("bfloat16", "float16")),
    *(dataclasses.replace(LONG, S=90, direction=direction, dtype="float32", mask=("padding", False), loss="weighted",
                          lse="", poison=("unseen", number))
      for direction in ("grad", "jvp", "fr") for number in NOT_FINITE),
    *(dataclasses.replace(LONG, values="huge", direction=direction, dtype=dtype)
      for direction in ("grad", "jvp") for dtype in ("float32", "float64")),
]  # fmt: skip


@needs_library
@pytest.mark.law("L6", "native")
@pytest.mark.law("L12", "native")
@pytest.mark.sample(8)
@pytest.mark.parametrize("case", NATIVE, ids=repr)
def test_l6_l12_natively(case):
    assert_keeps_every_law(case)


# Tiles: all heads in one, some of a group, one by one; and of 3 queries and 2 keys

SMALL = Case(lead=(2,), N=4, G=2, T=5, S=7, D=3, V=4, dtype="float64", x64=True, implementation="blockwise")
RAGGED = dataclasses.replace(SMALL, N=6, T=13, S=11, bias=(True, False, True), direction="grad", lse="sum")
TILES = {
    "all heads": Limits(512, 512, 2**21),
    "pairs": Limits(512, 512, 8 * 5 * 7 * 2),  # of a group of heads that share a key head
    "one by one": Limits(512, 512, 1),
    "tiny": TINY,
    "ragged": Limits(5, 4, 8 * 60),  # of 6 heads on a key head and 20 scores each, three
    "ragged, two heads": Limits(5, 4, 8 * 40),
    "narrow": Limits(2, 4, 8 * 60),
}
MASKS = (None, ("causal", -2), ("padding", True), ("segments", True), ("dense", (True,) * 4), ("prefix", True),
         ("window", 2, 1), ("and", ("window", 2, None), ("causal", 1)), ("function", True))  # fmt: skip
EDGES = (("causal", -9), ("causal", 2), ("and", ("causal", 1), ("not", ("causal", -5))), ("window", 4, 3),
         ("and", ("window", 3, 3), ("causal", 1)), ("and", ("window", 2, 2), ("not", ("causal", -1))),
         ("and", ("window", 1, 0), ("causal", -2)), ("dense", (True,) * 4))  # fmt: skip
SHARED = ("key", "value", "mask", "bias", "mod")
SMALLER_IN_TILES = dataclasses.replace(SMALLER, implementation="blockwise")
OPTIONS = ({"G": 2}, {"G": 1, "scale": -0.7}, {"mask": ("causal", 1)}, {"lead": (1,), "mask": ("padding", True)},
           {"bias": (True,) * 3}, {"modifier": ("softcap", 0.8)}, {"dropout": 0.5})  # fmt: skip
IN_TILES = [
    *(dataclasses.replace(SMALL, mask=mask, direction=direction, lse="sum")
      for mask, direction in itertools.product(MASKS, ("forward", "grad", "jvp", "fr", "rr"))),
    *(dataclasses.replace(SMALL, mask=("padding", False), dtype=dtype, x64=True, direction=direction, loss="weighted",
                          poison=("unseen", number))
      for dtype, direction, number in itertools.product(
          ("float32", "float64"), ("grad", "jvp", "fr", "rr", "rf"), (*NOT_FINITE, "big"))),
    *(dataclasses.replace(SMALLER_IN_TILES, direction=direction, **options)
      for direction, options in itertools.product(DIRECTIONS, OPTIONS)),
    *(dataclasses.replace(SMALL, direction="grad", **fields)
      for fields in ({"remat": "all"}, {"maps": ("scan",), "shared": ((),)})),
    *(dataclasses.replace(RAGGED, mask=mask) for mask in EDGES),
    *(dataclasses.replace(SMALL, lead=lead, mask=mask, lse="sum")
      for lead, mask in itertools.product(((), (3,), (2, 3), (2, 1, 3)), (("causal", 1), ("padding", False)))),
    dataclasses.replace(RAGGED, N=12, mask=("dense", (True,) * 4), bias=None),
    Case(N=2, G=2, S=512, bias=(True,) * 3, bias_values="forbids", dtype="float64", x64=True, direction="grad"),
    Case(lead=(2,), N=4, G=2, T=700, S=900, D=8, V=8, mask=("causal", 40), direction="grad", loss="square"),
    *(dataclasses.replace(SMALL, mask=mask, direction=direction, loss="weighted", poison=("seen", number, name))
      for mask, direction, name, number in itertools.product(
          (None, CAUSAL), ("grad", "jvp"), ("query", "key", "value"), ("nan", "inf", "big"))),
    *(dataclasses.replace(SMALL, lead=(3, 2), mask=("padding", False), bias=(True,) * 4, modifier=("alibi", 0),
                          maps=("vmap",), shared=(tuple(x for x in SHARED if x != name),), direction="grad")
      for name in ("query", *SHARED)),  # a map over the query and one of them, or none
    *(dataclasses.replace(SMALL, lead=(3, 2), mask=("causal", 1), maps=("vmap",), shared=(shared,), direction="grad",
                          inside=inside)  # over one array alone
      for shared in (("key", "value"), ("query", "value"), ("query", "key")) for inside in (False, True)),
]  # fmt: skip


TURNS = [(case, tiles) for k, case in enumerate(IN_TILES) for tiles in (list(TILES)[k % 7], list(TILES)[(k + 3) % 7])]


@pytest.mark.law("L6", "tiles")
@pytest.mark.law("L12", "tiles")
@pytest.mark.law("L13", "tiles")
@pytest.mark.sample(9)
@pytest.mark.parametrize(("case", "tiles"), TURNS, ids=repr)
def test_l6_l12_l13_in_tiles_of_every_kind(case, tiles):
    with limited(TILES[tiles]):
        assert_keeps_every_law(case)


@pytest.mark.law("L11", "tiles")
@pytest.mark.slow
@hypothesis.settings(max_examples=12, deadline=None, derandomize=True)
@hypothesis.given(*[st.integers(1, 9)] * 4, st.sampled_from([1, 2, 3]), st.sampled_from(MASKS), st.integers(0, 999))
def test_any_sizes_in_any_tiles(T, S, rows, columns, group, mask, seed):
    """Ragged everything: the last tiles overlap the ones before and count once, in value and gradient."""
    case = dataclasses.replace(SMALL, N=2 * group, T=T, S=S, mask=mask, direction="grad", lse="sum", seed=seed)
    with limited(Limits(rows, columns, 1)):
        assert_keeps_every_law(case)
