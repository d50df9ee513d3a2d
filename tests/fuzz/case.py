"""A case: one call of attention, the context in which it is compiled, and what is asked of it."""

import dataclasses
import math
from typing import Any

FORWARD, FIRST, SECOND = ("forward",), ("grad", "value_and_grad", "jvp", "linearize"), ("fr", "rr", "rf")
JACOBIANS = ("jacfwd", "jacrev", "hessian")
DIRECTIONS = (*FORWARD, *FIRST, *SECOND, *JACOBIANS)
LOSSES = ("sum", "mean", "square", "row", "rows", "columns", "entropy", "weighted")
VALUES = ("huge", "shifted", "equal", "columns", "zeros", "ones", "iota", "eye", "tiny")
POISONS = ("nan", "inf", "-inf", "big")
LEAVES = (
    "query",
    "key",
    "value",
    "bias",
    "mod",
)  # what a case names, for all the arrays of a modifier or a mask at once

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
    mask: Any = None  # nested tuples: ("and", ("causal", 0), ("padding", False)), see data.Masks
    bias: Any = None  # which axes of the scores of a call are full, the last ones if fewer
    bias_values: str = "normal"  # normal | forbids: some are -inf | lowest: some are finfo.min
    wide: bool = False  # bias and arrays of the modifier in float32
    modifier: Any = None  # nested tuples: ("compose", ("softcap", 3.0), ("alibi", 2)), see data.Modifiers
    scale: Any = None
    dropout: float = 0.0
    values: str = "normal"  # see data.draw
    lse: str = ""  # "" is not asked for | sum | square | alone: the loss does not read out
    implementation: Any = None
    loss: str = "sum"
    wanted: tuple[str, ...] = ("query", "key", "value", "bias", "mod")  # with respect to what
    maps: tuple[str, ...] = ()  # vmap | scan | map, the outermost first
    inside: bool = False  # the gradient is taken inside the maps
    shared: tuple[tuple[str, ...], ...] = ()  # for each map, what is not mapped
    known: tuple[str, ...] = ()  # what the compiler knows: LEAVES, mask, cotangent
    layers: bool = False  # between projections and a layer norm
    remat: str = ""  # "" | all | dots | names: what jax.checkpoint keeps
    jit: str = "outer"  # none | inner: the attention alone | outer: everything | both
    poison: tuple[str, ...] = ()  # ("unseen" | "seen", what is written there): L6
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
        here |= {"mod"} if has_arrays(self.modifier) else set()
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
        quiet = not self.poison or (not self.layers and self.direction in ("forward", "grad", "jvp", "fr"))
        if self.poison and self.poison[0] == "seen":  # the loss must be able to leave rows out
            quiet = quiet and self.loss == "weighted" and self.lse in ("", "alone") and "cotangent" not in self.known
            quiet = quiet and (self.direction != "fr" or self.poison[1] != "big")  # it overflows, and only on the way
        quiet = quiet and not (self.layers and self.values in ("huge", "tiny"))  # a layer norm hides or blows up both
        wide = self.x64 or self.dtype != "float64"
        inside = not self.inside or (bool(self.maps) and self.direction == "grad")
        return heads and maps and small and quiet and wide and inside


def has_arrays(modifier: Any) -> bool:
    """Whether a modifier has something to differentiate."""
    return modifier is not None and any(part[0] != "softcap" for part in (modifier, *modifier[1:])
                                        if isinstance(part, tuple) and part[0] != "compose")  # fmt: skip


class Draw:
    """Draws a case; ``random(rng)`` is the way in."""

    def __init__(self, rng: Any):
        self.rng = rng

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def one(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def some(self, choices: Any, p: float = 0.5) -> tuple:
        return tuple(x for x in choices if self.chance(p))

    def length(self) -> int:
        """A length on one side or the other of a limit; mostly small."""
        sizes = (1, 2, 3, 5, 8), (12, 16, 23, 33, 64), (127, 128, 130, 200, 255, 256, 257), (300, 512, 513, 700, 1024)
        return self.one(*sizes[self.rng.choice(4, p=(0.4, 0.33, 0.2, 0.07))]) if self.chance(0.97) else 1100

    def sizes(self) -> dict[str, Any]:
        T, S = self.length(), self.length()
        T, S = (T, T) if self.chance(0.4) else (1, S) if self.chance(0.1) else (T, S)
        G, group = self.one(1, 1, 2, 3, 12), self.one(1, 1, 1, 2, 3)
        lead = self.one((), (), (1,), (2,), (2,), (3,), (8,), (2, 3), (2, 1, 2))
        while math.prod((*lead, G, group, T, S)) > 2**20 and (lead or G > 1):
            lead, G = lead[1:], (G if lead else 1)
        D = self.one(1, 2, 8, 16, 32, 64, 80)
        sizes = {"lead": lead, "N": G * group, "G": G, "T": T, "S": S, "D": D, "V": D if self.chance(0.6) else 3}
        if self.chance(0.04):
            sizes |= self.one({"S": 0}, {"T": 0}, {"lead": (0,)}, {"lead": (2, 0)})
        if self.chance(0.1):
            sizes |= {"N": 1, "G": 1, "one_head": True, "lead": sizes["lead"][:2]}
        return sizes

    def mask(self, depth: int = 0) -> Any:
        if depth < 2 and self.chance(0.3):
            kind = self.one("and", "and", "or", "not")
            return kind, *(self.mask(depth + 1) for _ in range(1 if kind == "not" else 2))
        kinds = ("causal", "traced causal", "window", "padding", "segments", "prefix", "dense", "function")
        kind = self.one(*kinds, *(() if depth else ("array", "array", "causal")))
        if kind == "causal":
            return kind, int(self.one(0, 0, 1, -2, 7, 40))
        if kind == "window":
            return kind, self.one(None, 0, 2, 100), self.one(None, 0, 1, 30)
        if kind == "padding":
            return kind, self.chance(0.3)
        if kind in ("dense", "array"):
            return kind, tuple(bool(self.chance(0.6)) for _ in range(self.one(2, 4)))
        return kind, self.chance(0.5)

    def modifier(self, depth: int = 0) -> Any:
        if depth < 1 and self.chance(0.2):
            return "compose", self.modifier(1), self.modifier(1)
        kind = self.one("softcap", "alibi", "relative", "function")
        settings = {"softcap": (self.one(0.8, 3.0, 30.0),), "alibi": (self.one(0, 2, -5),)}
        settings |= {"relative": (self.one(0, 2, 7), self.one(0, 3)), "function": (self.chance(0.5),)}
        return kind, *settings[kind]

    def context(self, lead: tuple[int, ...], whole: bool) -> dict[str, Any]:
        most = len(lead) if 0 not in lead else 0
        count = most if whole else min(most, self.one(0, 0, 1, 1, 2))
        names = (*LEAVES[1:], "mask", "query")
        return {
            "maps": tuple(self.one("vmap", "vmap", "vmap", "scan", "map") for _ in range(count)),
            "shared": tuple(self.some(names, 0.25) for _ in range(count)),
            "known": self.some((*LEAVES, "mask"), 0.15) + self.some(("cotangent",), 0.5),
            "remat": self.one(*[""] * 6, "all", "dots", "names"),
            "jit": self.one("outer", "outer", "outer", "none", "inner", "both"),
            "layers": self.chance(0.12),
        }

    def options(self) -> dict[str, Any]:
        if self.chance(0.3):  # the plain call, the most common and the fastest path
            return {"mask": self.mask() if self.chance(0.4) else None}
        axes = tuple(self.chance(0.6) for _ in range(self.rng.integers(6)))
        return {
            "mask": self.mask() if self.chance(0.55) else None,
            "bias": axes if self.chance(0.25) else None,
            "bias_values": self.one("normal", "normal", "forbids", "lowest"),
            "modifier": self.modifier() if self.chance(0.25) else None,
            "wide": self.chance(0.3),
            "scale": self.one(*[None] * 6, 0.0, -0.7, 1, 25.0),
            "dropout": self.one(*[0.0] * 20, 0.1, 0.5, 1.0),
            "values": self.one(*["normal"] * 8, *VALUES),
            "lse": self.one("", "", "", "sum", "square", "alone"),
            "implementation": self.one(*[None] * 8, "blockwise", "dense"),
        }

    def case(self) -> Case:
        sizes = self.sizes()
        dtype, x64 = self.one(*[("float32", False)] * 6, ("float32", True), *[("float64", True)] * 3,
                              ("bfloat16", False), ("float16", False), ("bfloat16", True))  # fmt: skip
        fields = sizes | self.options() | self.context(sizes["lead"], sizes.get("one_head", False))
        fields |= {"dtype": dtype, "x64": x64, "seed": int(self.rng.integers(1000))}
        groups = (FORWARD, FORWARD, FIRST, FIRST, FIRST, FIRST, SECOND, SECOND, JACOBIANS)
        fields |= {"direction": self.one(*self.one(*groups)), "loss": self.one(*LOSSES)}
        fields |= {"wanted": self.some(LEAVES, 0.8), "inside": self.chance(0.2)}
        if self.chance(0.2) and fields["mask"] is not None:
            fields |= {
                "poison": (self.one("unseen", "seen"), self.one(*POISONS)),
                "loss": "weighted",
            }
            fields |= {"layers": False, "known": (), "direction": self.one("forward", "grad", "grad", "jvp", "fr")}
        case = Case(**fields)
        if case.dtype in ("bfloat16", "float16"):
            case = dataclasses.replace(case, layers=False)
        if case.direction in SECOND and case.work > 2**17:
            case = dataclasses.replace(case, direction=self.one(*FIRST))
        if case.direction in JACOBIANS:
            shape = {"T": min(case.T, 5), "S": min(case.S, 7), "D": min(case.D, 3), "V": min(case.V, 3)}
            case = dataclasses.replace(case, N=2 * (not case.one_head) or 1, G=1, lead=case.lead[:1], **shape)
            case = dataclasses.replace(case, maps=case.maps[: len(case.lead)], wanted=case.wanted[:1])
        if case.jit == "none" and case.direction in (*SECOND, *JACOBIANS) and self.chance(0.8):  # 5 to 30 seconds
            case = dataclasses.replace(case, jit="outer")
        return dataclasses.replace(case, inside=case.inside and case.direction == "grad").without()


def random(rng: Any) -> Case:
    """A case that is valid."""
    while not (case := Draw(rng).case()).is_valid():
        pass
    return case


def siblings(case: Case, rng: Any) -> list[Case]:
    """Cases with other numbers for the same program: where the compiler knows none, they cost no compilation."""
    draw = Draw(rng)
    if case.work > 2**17 or set(case.known) & {"query", "key", "value", "bias"}:
        return []
    found = [dataclasses.replace(case, values=kind) for kind in (draw.one(*VALUES), "normal")]
    if case.mask is not None or case.bias_values == "forbids":
        found += [dataclasses.replace(case, poison=(where, draw.one(*POISONS))) for where in ("seen", "unseen")]
    return [each for each in dict.fromkeys(found) if each.is_valid() and each != case]
