"""A case: one call of attention, the context in which it is compiled, and what is asked of it."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

FORWARD, FIRST, SECOND = ("forward",), ("grad", "value_and_grad", "jvp", "linearize"), ("fr", "rr", "rf")
JACOBIANS = ("jacfwd", "jacrev", "hessian")
DIRECTIONS = (*FORWARD, *FIRST, *SECOND, *JACOBIANS)
LOSSES = ("sum", "mean", "square", "row", "rows", "columns", "entropy", "weighted")
VALUES = ("huge", "shifted", "equal", "columns", "zeros", "ones", "iota", "eye", "tiny")
POISONS = ("nan", "inf", "-inf", "big")
POISONED = ("query", "key", "value", "bias", "cotangent_out", "cotangent_lse")  # and "move query" and so on
LARGEST_SCORE = 1e5
LEAVES = ("query", "key", "value", "bias", "mod")  # what a case names; all the arrays of a modifier are one
ALWAYS_SHARED = ("rng", "weights_query", "weights_key", "weights_value")


@dataclasses.dataclass(frozen=True)
class Case:
    """Every array of the case follows from these numbers. It prints as the call that makes it."""

    direction: str = "forward"
    lead: tuple[int, ...] = ()  # axes before the heads; the first len(maps) are mapped over
    N: int = 1
    G: int = 1
    T: int = 3
    S: int = 5
    D: int = 2
    V: int = 2
    one_head: bool = False  # a call has rank 2
    dtype: str = "float32"
    x64: bool = False
    mask: Any = None  # nested tuples: ("and", ("causal", 0), ("padding", False)), see data.mask
    bias: Any = None  # which axes of the scores of a call are full, the last ones if fewer
    bias_values: str = "normal"  # normal | forbids: some are -inf | lowest: some are finfo.min
    wide: bool = False  # bias and arrays of the modifier in float32
    modifier: Any = None  # nested tuples: ("compose", ("softcap", 3.0), ("alibi", 2)), see data.modifier
    scale: Any = None
    dropout: float = 0.0
    values: str = "normal"  # see data.operand
    size: Any = None  # of the scores: their standard deviation, where ``values`` leaves them normal; None: as drawn
    common: float = 0.0  # how large what all keys have in common is, beside what is their own
    lse: str = ""  # "" is not asked for | sum | square | alone: the loss does not read out
    implementation: Any = None
    loss: str = "sum"
    wanted: tuple[str, ...] = ("query", "key", "value", "bias", "mod")  # with respect to what
    maps: tuple[str, ...] = ()  # vmap | scan | map, the outermost first
    inside: bool = False  # the gradient is taken inside the maps
    shared: tuple[tuple[str, ...], ...] = ()  # for each map, what is not mapped
    known: tuple[str, ...] = ()  # what the compiler knows: LEAVES, mask, cotangent
    broadcast: tuple[str, ...] = ()  # operands that the program makes of one number each
    layers: bool = False  # between projections and a layer norm
    remat: str = ""  # "" | all | dots | names: what jax.checkpoint keeps
    jit: str = "outer"  # none | inner: the attention alone | outer: everything | both
    poison: tuple[str, ...] = ()  # ("unseen", one of POISONS) or ("seen", one of POISONS, one of POISONED): L6
    seed: int = 0

    def __repr__(self) -> str:
        fields = ((field.name, getattr(self, field.name), field.default) for field in dataclasses.fields(self))
        return f"Case({', '.join(f'{name}={value!r}' for name, value, default in fields if value != default)})"

    @property
    def mapped(self) -> tuple[int, ...]:
        return self.lead[: len(self.maps)]

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores of one call, with a head axis."""
        return *self.lead[len(self.maps) :], self.N, self.T, self.S

    @property
    def work(self) -> int:
        return math.prod((*self.lead, self.N, self.T, self.S))

    def is_shared(self, leaf: str, level: int) -> bool:
        """Whether a leaf has no axis for this map; "mod0" is one of "mod"."""
        return leaf in ALWAYS_SHARED or leaf.rstrip("0123456789") in self.shared[level]

    def without(self) -> "Case":
        """The case with only those names that it has, so that equal cases are written alike."""
        here = {"query", "key", "value"} | ({"bias"} if self.bias else set())
        here |= {"mod"} if {*kinds(self.modifier)} - {"softcap", "compose"} else set()
        more = here | {"mask", "cotangent"}
        wanted = tuple(x for x in self.wanted if x in here and x not in self.known) or ("value",)
        known = tuple(x for x in self.known if x in more and x not in wanted)
        shared = tuple(tuple(x for x in names if x in here | {"mask"}) for names in self.shared[: len(self.maps)])
        return dataclasses.replace(self, wanted=wanted, known=known, shared=shared)

    def is_valid(self) -> bool:
        """Whether the fields fit together."""
        heads = self.G > 0 and self.N % self.G == 0 and not (self.one_head and (self.N > 1 or self.G > 1))
        maps = len(self.maps) <= len(self.lead) and len(self.shared) == len(self.maps)
        maps = maps and all(set(names) < {"query", "key", "value"} or "query" not in names for names in self.shared)
        maps = maps and not (self.one_head and len(self.maps) < len(self.lead)) and 0 not in self.mapped
        small = self.direction not in JACOBIANS or self.work * self.V <= 4096
        quiet = not (self.layers and self.values in ("huge", "tiny"))  # a layer norm hides or blows up both
        # Of scores near 1e30 a second derivative has numbers beyond the range; no law says that it is finite.
        quiet = quiet and not (self.values == "huge" and self.direction in (*SECOND, "hessian"))
        sized = self.size is None or self.values not in ("huge", "shifted")
        if self.size is not None and self.dtype == "float16":  # its largest number is 65,504
            sized = sized and self.size <= 1e3 and not self.layers
        wide = self.x64 or self.dtype != "float64"
        inside = not self.inside or (bool(self.maps) and self.direction == "grad")
        return heads and maps and small and quiet and sized and wide and inside and self._can_be_poisoned()

    def _can_be_poisoned(self) -> bool:
        if not self.poison:
            return True
        if self.layers or self.broadcast or self.direction not in ("forward", "grad", "jvp", *SECOND):
            return False
        if self.poison[0] == "unseen":
            return True
        if self.direction in ("rr", "rf"):
            return False
        kind, name = self.poison[1:]
        there = name not in ("bias", "move bias") or self.bias is not None
        there = there and name not in self.known and not (name == "bias" and kind == "-inf")  # which forbids
        if name.startswith("move"):
            there = there and self.direction in ("jvp", "fr") and name.removeprefix("move ") in self.wanted
        if self.direction in ("forward", "jvp"):
            return there and not name.startswith("cotangent")
        # the loss must be able to leave rows out
        there = there and self.loss == "weighted" and self.lse in ("", "alone") and "cotangent" not in self.known
        there = there and (self.direction != "fr" or kind != "big")  # it overflows, and only on the way
        return there and name != ("cotangent_out" if self.lse else "cotangent_lse")


def kinds(tree: Any) -> Iterator[str]:
    """The kinds in a mask or a modifier."""
    if isinstance(tree, tuple) and tree and isinstance(tree[0], str):
        yield tree[0]
        for part in tree[1:]:
            yield from kinds(part)


class Draw:
    """Draws the fields of a case by ``index(n)``, one of n numbers: of 0 comes what is least likely to matter."""

    def __init__(self, index: Callable[[int], int]):
        self.index = index

    def chance(self, p: float) -> bool:
        """Of 100 numbers, since of more hypothesis would draw the ends."""
        return self.index(100) >= 100 * (1 - p)

    def one(self, *choices: Any) -> Any:
        return choices[self.index(len(choices))]

    def some(self, choices: Any, p: float) -> tuple:
        return tuple(x for x in choices if self.chance(p))

    def length(self) -> int:
        """A length on one side or the other of a limit of ``partition``; mostly small."""
        small, tile = (1, 2, 3, 5, 8), (12, 16, 23, 31, 32, 33, 64)
        more, many = (127, 128, 129, 130, 200, 255, 256, 257), (300, 511, 512, 513, 600, 700)
        most = (1023, 1024, 1025, 1100)
        return self.one(*self.one(*[small] * 9, *[tile] * 6, *[more] * 4, *[many] * 4, most))

    def sizes(self) -> dict[str, Any]:
        T, S = self.length(), self.length()
        if T > 257 and self.chance(0.5):
            S = T
        else:
            T, S = self.one(*[(T, T)] * 4, *[(T, S)] * 4, (1, S), (T, 1))
        G, group = self.one(1, 1, 2, 3, 12), self.one(1, 1, 1, 2, 3)
        lead = self.one((), (), (1,), (2,), (2,), (3,), (8,), (2, 3), (2, 1, 2))
        is_large = T * S > 2**16
        D = min(self.one(1, 2, 8, 16, 32, 64, 80), 32 if is_large else 80)
        while math.prod((*lead, G, group, T, S)) > (2**19 if is_large else 2**18) and (lead or G > 1 or group > 1):
            lead, G, group = (lead[1:], G, group) if lead else ((), 1, group) if G > 1 else ((), 1, 1)
        sizes = {"lead": lead, "N": G * group, "G": G, "T": T, "S": S, "D": D, "V": D if self.chance(0.6) else 3}
        if self.chance(0.04):
            sizes |= self.one({"S": 0}, {"T": 0}, {"lead": (0,)}, {"lead": (2, 0)})
        if self.chance(0.1):
            sizes |= {"N": 1, "G": 1, "one_head": True, "lead": sizes["lead"][:2]}
        if self.chance(0.5 if is_large else 0.05):  # one head in all
            one_head = self.chance(0.4)
            sizes |= {"N": 1, "G": 1, "lead": () if one_head else self.one((), (1,)), "one_head": one_head}
        return sizes

    def score_size(self, dtype: str, least: float = 1e-3, largest: float = LARGEST_SCORE) -> float:
        """Every power of ten is as likely; float16 has no large ones."""
        largest = min(largest, 1e3) if dtype == "float16" else largest
        return float(f"{least * (largest / least) ** (self.index(100) / 100):.2g}")

    def values(self, dtype: str) -> dict[str, Any]:
        """Of three cases two with scores of a drawn size."""
        values = self.one(*["normal"] * 12, *VALUES)
        if values in ("huge", "shifted") or self.chance(0.33):
            return {"values": values}
        common = float(self.one(0, 0, 0, 0, 1, 30, 300) if dtype != "float16" else 0)
        return {"values": values, "size": self.score_size(dtype), "common": common}

    def poison(self, case: Case) -> tuple[str, ...]:
        """Of what is seen, each array is as likely."""
        if self.chance(0.3):
            return "unseen", self.one(*POISONS)
        names = *POISONED, *(f"move {name}" for name in POISONED[:4])
        fit = [x for x in names if any(dataclasses.replace(case, poison=("seen", kind, x)).is_valid()
                                       for kind in POISONS)]  # fmt: skip
        return "seen", self.one(*POISONS), self.one(*(fit or names))

    def mask(self, depth: int = 0) -> Any:
        if depth < 2 and self.chance(0.3):
            kind = self.one("and", "and", "or", "not")
            return kind, *(self.mask(depth + 1) for _ in range(1 if kind == "not" else 2))
        kinds = ("causal", "traced causal", "window", "padding", "segments", "prefix", "dense", "function")
        kind = self.one(*kinds, *(() if depth else ("array", "array", "causal")))
        if kind == "causal":
            return kind, self.one(0, 0, 1, -2, 7, 40)
        if kind == "window":
            return kind, self.one(None, 0, 2, 100), self.one(None, 0, 1, 30)
        if kind in ("dense", "array"):
            return kind, tuple(self.chance(0.6) for _ in range(self.one(2, 4)))
        return kind, self.chance(0.3 if kind == "padding" else 0.5)

    def modifier(self, depth: int = 0) -> Any:
        if depth < 1 and self.chance(0.2):
            return "compose", self.modifier(1), self.modifier(1)
        softcap, alibi = ("softcap", self.one(0.8, 3.0, 30.0)), ("alibi", self.one(0, 2, -5))
        relative, function = ("relative", self.one(0, 2, 7), self.one(0, 3)), ("function", self.chance(0.5))
        return self.one(softcap, alibi, relative, function)

    def context(self, lead: tuple[int, ...], whole: bool) -> dict[str, Any]:
        most = len(lead) if 0 not in lead else 0
        count = most if whole else min(most, self.one(0, 0, 1, 1, 2))
        return {
            "maps": tuple(self.one("vmap", "vmap", "vmap", "scan", "map") for _ in range(count)),
            "shared": tuple(self.some((*LEAVES[1:], "mask", "query"), 0.25) for _ in range(count)),
            "known": self.some((*LEAVES, "mask"), 0.15) + self.some(("cotangent",), 0.5),
            "remat": self.one(*[""] * 6, "all", "dots", "names"),
            "jit": self.one("outer", "outer", "outer", "none", "inner", "both"),
            "layers": self.chance(0.12),
            "broadcast": self.some(LEAVES[:3], 0.02),
            "loss": self.one(*LOSSES),
            "direction": self.one(*self.one(*[FORWARD] * 2, *[FIRST] * 4, *[SECOND] * 2, JACOBIANS)),
            "wanted": self.some(LEAVES, 0.8),
            "inside": self.chance(0.2),
        }

    def options(self) -> dict[str, Any]:
        if self.chance(0.3):  # the plain call, the most common and the fastest path
            return {"mask": self.mask() if self.chance(0.4) else None}
        return {
            "mask": self.mask() if self.chance(0.55) else None,
            "bias": tuple(self.chance(0.6) for _ in range(self.one(*range(6)))) if self.chance(0.25) else None,
            "bias_values": self.one("normal", "normal", "forbids", "lowest"),
            "modifier": self.modifier() if self.chance(0.25) else None,
            "wide": self.chance(0.3),
            "scale": self.one(*[None] * 6, 0.0, -0.7, 1, 25.0),
            "dropout": self.one(*[0.0] * 20, 0.1, 0.5, 1.0),
            "lse": self.one("", "", "", "sum", "square", "alone"),
            "implementation": self.one(*[None] * 7, "native", "native", "blockwise", "dense"),
        }

    def case(self) -> Case:
        sizes, options = self.sizes(), self.options()
        dtype, x64 = self.one(*[("float32", False)] * 6, ("float32", True), *[("float64", True)] * 3,
                              ("bfloat16", False), ("float16", False), ("bfloat16", True))  # fmt: skip
        if sizes["N"] == 1 and sizes["T"] * sizes["S"] > 2**16 and self.chance(0.5):
            options |= {"mask": None, "bias": None, "modifier": None, "dropout": 0.0}
        fields = sizes | options | self.values(dtype) | self.context(sizes["lead"], sizes.get("one_head", False))
        fields |= {"dtype": dtype, "x64": x64, "seed": self.index(1000)}
        is_poisoned = self.chance(0.25 if fields["mask"] is not None else 0.1)
        if is_poisoned:
            fields |= {"layers": False, "broadcast": (), "loss": "weighted", "known": ()}
            fields |= {"direction": self.one("forward", "grad", "grad", "jvp", "fr"), "lse": self.one("", "alone")}
            if self.chance(0.3):
                fields |= {"bias": tuple(self.chance(0.6) for _ in range(3)), "wanted": LEAVES}
        fields["layers"] &= dtype in ("float32", "float64")
        if fields["direction"] in SECOND and Case(**fields).work > 2**17:
            fields["direction"] = self.one(*FIRST)
        if fields["direction"] in JACOBIANS:
            fields |= {name: min(fields[name], most) for name, most in (("T", 5), ("S", 7), ("D", 3), ("V", 3))}
            fields |= {"N": 1 if fields.get("one_head") else 2, "G": 1, "lead": fields["lead"][:1]}
            fields |= {"maps": fields["maps"][: len(fields["lead"])], "wanted": fields["wanted"][:1]}
        if fields["jit"] == "none" and fields["direction"] in (*SECOND, *JACOBIANS) and self.chance(0.8):
            fields["jit"] = "outer"  # step by step they take 5 to 30 seconds
        fields["inside"] &= fields["direction"] == "grad"
        case = Case(**fields).without()
        return dataclasses.replace(case, poison=self.poison(case)) if is_poisoned else case


@st.composite
def cases(draw: Callable) -> Case:
    """Cases that are valid."""
    case = Draw(lambda n: draw(st.integers(0, n - 1))).case()
    hypothesis.assume(case.is_valid())
    return case


def by_numpy(rng: Any) -> Draw:
    return Draw(lambda n: int(rng.integers(n)))


def random(rng: Any) -> Case:
    """A valid case by a generator of NumPy, which draws 50 times as fast."""
    return next(case for case in iter(by_numpy(rng).case, None) if case.is_valid())


def with_siblings(case: Case) -> list[Case]:
    """A case, and others with other numbers for its program: they cost no compilation, if the compiler knows none."""
    draw = by_numpy(np.random.default_rng(case.seed))
    if case.work > 2**20 or set(case.known) & {"query", "key", "value", "bias"}:
        return [case]
    found = [dataclasses.replace(case, values="normal", size=draw.score_size(case.dtype, *ends))
             for ends in ((1.0, 64.0), (64.0, LARGEST_SCORE))]  # fmt: skip
    if case.work <= 2**17:
        found += [dataclasses.replace(case, values=draw.one(*VALUES), size=None, common=0.0)]
        poisons = ("unseen", draw.one(*POISONS)), *(draw.poison(case) for _ in range(3))
        found += [dataclasses.replace(case, poison=poison) for poison in poisons]
    return [case, *(each for each in dict.fromkeys(found) if each.is_valid() and each != case)]
