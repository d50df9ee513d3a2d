"""A case: a few lines of Python that make the arrays, the words of the call, and how the answer is judged.

A case is text on purpose. The kit runs the very lines that it prints in a reproduction, so the two cannot differ.
"""

import math
import re
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

FORWARD, GRADIENT, EVERYTHING = "forward", "gradient", "everything"
HELD, GRADIENT_HELD = "held", "gradient held"  # read again after more calls
LEVELS = (FORWARD, GRADIENT, EVERYTHING)  # each includes those before it
NUMBERS, ROBUST, LAW = "numbers", "robust", "law"
PROFILES = (NUMBERS, ROBUST, LAW)  # each includes those before it
SIZES = {"B": 2, "N": 3, "G": 3, "T": 5, "S": 7, "D": 4, "V": 4}
PAIRS = (("T", "S"), ("N", "G"), ("V", "D"))  # axes whose order a case may be about; who gives the one means the other
ARRAYS = ("query", "key", "value", "bias", "sinks")  # what has a gradient; the last two are options
SAME = "the query"
CONSTANTS = {  # what a compiler may know, as NumPy has it; the drivers make the same by JAX and torch
    "ones": "np.ones_like({0})",
    "positions": "((np.arange({0}.shape[-2])[:, None] + np.arange({0}.shape[-1])) / 64 + 0 * {0}).astype(dtype)",
    "identity": "(np.eye(*{0}.shape[-2:]) + 0 * {0}).astype(dtype)",
    "as given": "",
    SAME: "query",  # no constant: the call is given the query itself in this place, too
}

Leaves = dict[str, np.ndarray]
Sizes = Mapping[str, int]
HOLDS = {  # words of a name, and where they are true
    r"no block divides": "T % 16 or S % 16",
    r"longer than a block": "S > 128",
    r"long row": "S >= 1000",
    r"one query": "T == 1",
    r"one key$": "S == 1",
    r"one key head": "G == 1",
    r"batch of one": "B == 1",
    r"one head$": "N == 1",
    r"where B = T": "B == T",
    r"where B = N": "B == N",
    r"\d numbers": "False",
}


class Inputs(NamedTuple):
    """Arguments of a call."""

    arrays: Leaves  # query, key, value, and of bias and sinks those that there are
    options: dict[str, Any]  # the other keywords
    extra: dict[str, Any]  # every other variable of the text: cotangents, directions, what a judge asks for


def allowed_pairs(inputs: Inputs) -> np.ndarray:
    """Pairs of a query and a key that it may look at, broadcastable to (..., N, T, S); a bias of -inf is not asked."""
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    T, S, given = query.shape[-2], key.shape[-2], inputs.options
    i, j = np.arange(T)[:, None], np.arange(S)
    allowed = np.ones((T, S), bool)
    begins = np.asarray(given.get("offset", 0))
    i = i + (begins[..., None, None, None] if begins.ndim else begins)  # of the queries, among the keys (L4)
    if given.get("is_causal"):
        allowed = allowed & (j <= i)
    if given.get("window") is not None:
        left, right = given["window"]
        allowed = allowed & ((left is None) | (j >= i - (left or 0))) & ((right is None) | (j <= i + (right or 0)))
    if given.get("key_lengths") is not None:
        allowed = allowed & (j < np.asarray(given["key_lengths"])[..., None, None, None])
    if given.get("query_segment_ids") is not None:
        ids = given["query_segment_ids"], given["key_segment_ids"]
        allowed = allowed & (np.asarray(ids[0])[..., None, :, None] == np.asarray(ids[1])[..., None, None, :])
    if given.get("mask") is not None:
        allowed = allowed & given["mask"]
    return allowed


class Case(NamedTuple):
    """One question about attention, and the law that answers it."""

    name: str
    law: str
    about: str  # what is asked, in a sentence
    judge: str = "value"  # a function of ``judges``
    direction: str = "forward"  # what is computed of the function: forward, gradient, jvp, ...
    lines: str = ""  # Python, after query, key and value are drawn
    call: str = ""  # keywords of the call, as one writes them
    sizes: dict[str, int] = {}
    leading: str = "B"  # the axes before the heads; "-" for neither batch nor heads, "" for no batch
    dtype: str | None = None  # None: that of the run
    changed: str = ""  # Python that changes the inputs, for judges that compare two calls
    where: dict[str, str] = {}  # the part of each leaf that is compared, as an index; all of it unless given
    slack: float = 1.0  # times what L8 allows below float64, where a case asks for something else than precision
    needs: tuple[str, ...] = ()  # traits that no keyword shows, which an adapter may declare to lack
    frameworks: tuple[str, ...] = ("jax", "torch", "numpy")
    constants: dict[str, str] = {}  # what a compiler knows, each of a kind of ``CONSTANTS``
    claim: str = ""  # who makes it is asked, and nobody else
    then: str = ""  # the direction of the second call, where it is another
    least: str = ""  # the least profile that includes it, where it is not that of its law
    units: dict[str, float] = {}  # the size of the terms that cancel, where a leaf is 0 in truth, or of what rounds

    @property
    def profile(self) -> str:
        """The least profile that includes the case."""
        if self.least:
            return self.least
        if self.leading != "B" and not self.direction.startswith(("vmap", "per ")):
            return LAW
        return ROBUST if self.law in ("L5", "L6", "L7") else NUMBERS

    @property
    def pairs(self) -> int:
        """The number of its pairs of a query and a key."""
        return math.prod((SIZES | self.sizes)[axis] for axis in "BNTS")

    @property
    def options(self) -> set[str]:
        """The keywords of its call."""
        return set(re.findall(r"(\w+)=", self.call))

    @property
    def level(self) -> str:
        """The least level that includes the case."""
        if self.direction in (FORWARD, HELD, "eager", "changed in place"):
            return FORWARD
        name = self.direction.partition(",")[0]
        return GRADIENT if name in (GRADIENT, GRADIENT_HELD, "gradient of a loss") else EVERYTHING

    def sized(self, given: Mapping[str, int]) -> "Case | None":
        """The case at sizes that are given; None where it makes no sense there.

        It is about the order of two axes, or about an axis of 0 or 1, where its own sizes say so.
        """
        own = SIZES | self.sizes
        sizes = own | dict(given)
        for a, b in PAIRS:
            for one, other in ((a, b), (b, a)):
                if one in given and other not in given and own[one] == own[other]:
                    sizes[other] = sizes[one]
            if {a, b} & self.sizes.keys() and np.sign(own[a] - own[b]) != np.sign(sizes[a] - sizes[b]):
                return None
        others = [axis for axis in self.sizes if own[axis] != sizes[axis]]
        if any(own[axis] == 0 or (own[axis] == 1 and len(self.sizes) == 1) for axis in others):
            return None
        if others and not _holds(self.name, sizes):
            return None
        name, about = (_reworded(text, own, sizes) for text in (self.name, self.about))
        return self._replace(sizes=sizes, name=name, about=about)

    def text(self, seed: int, dtype: str) -> str:
        """The lines that make the inputs."""
        dtype, sizes = self.dtype or dtype, SIZES | self.sizes
        lead = "".join(f"{axis}, " for axis in self.leading.removeprefix("-"))
        N, G = ("", "") if self.leading == "-" else ("N, ", "G, ")
        drawn = zlib.crc32(self.name.encode()) % 10**6 + seed
        lines = ["import numpy as np"] + ["import ml_dtypes  # registers bfloat16"] * (dtype == "bfloat16")
        lines += [
            f"{', '.join(sizes)} = {', '.join(map(str, sizes.values()))}",
            f'dtype, rng = "{dtype}", np.random.default_rng({drawn})',
            f"query = rng.standard_normal(({lead}{N}T, D)).astype(dtype)",
            f"key = rng.standard_normal(({lead}{G}S, D)).astype(dtype)",
            f"value = rng.standard_normal(({lead}{G}S, V)).astype(dtype)",
            *self.lines.splitlines(),
            *(f"{name} = {CONSTANTS[kind].format(name)}" for name, kind in self.constants.items() if CONSTANTS[kind]),
        ]
        second = self.direction.startswith("second")  # cotangents and tangents are drawn, unless by the case
        if second or "gradient" in self.direction:
            if "cotangent =" not in self.lines:
                lines += ["cotangent = rng.standard_normal(query.shape[:-1] + value.shape[-1:]).astype(dtype)"]
            if "return_lse" in self.call:
                lse = '"float64" if dtype == "float64" else "float32"'
                lines += [f"lse_cotangent = rng.standard_normal(query.shape[:-1]).astype({lse})"]
        if second or self.direction == "jvp":
            moving = [x for x in ARRAYS if (x in ARRAYS[:3] or f"{x}=" in self.call) and x not in self.constants]
            moves = (f"{name}=rng.standard_normal({name}.shape).astype({name}.dtype)" for name in moving)
            lines += [f"tangents = dict({', '.join(moves)})"]
        return "\n".join(lines)

    @property
    def collected(self) -> str:
        """The lines that put the inputs together: ``arrays``, which are floating, and the other ``options``."""
        lines = ["arrays = dict(query=query, key=key, value=value)", f"options = dict({self.call})"]
        for name in ARRAYS[3:]:
            if f"{name}=" in self.call:
                lines.append(f'if options["{name}"].dtype.kind in "fV":\n    arrays["{name}"] = options.pop("{name}")')
        return "\n".join(lines)

    def inputs(self, seed: int, dtype: str, *, changed: bool = False) -> Inputs:
        """Run the lines; with ``changed``, also those that change the inputs."""
        space: dict[str, Any] = {}
        with np.errstate(all="ignore"):
            exec("\n".join([self.text(seed, dtype), *[self.changed] * changed, self.collected]), space)
        arrays, options = space.pop("arrays"), space.pop("options")
        hidden = {"np", "ml_dtypes", "rng", "dtype", "__builtins__", *ARRAYS, *options}
        extra = {k: x for k, x in space.items() if k not in hidden}
        return Inputs(arrays, options, extra | ({"constants": self.constants} if self.constants else {}))

    def traits(self, inputs: Inputs) -> list[str]:
        """Traits that an implementation must offer: keywords, and others that no keyword shows."""
        query, key, value = (inputs.arrays[name] for name in ARRAYS[:3])
        found = [*inputs.options, *(name for name in ARRAYS[3:] if name in inputs.arrays), *self.needs]
        given, (left, right) = inputs.arrays | inputs.options, inputs.options.get("window") or (0, 0)
        ids: list[Any] = [given.get(name) for name in ("query_segment_ids", "key_segment_ids")]
        shown = {
            f"rank {query.ndim}": query.ndim != 4 and self.direction != "vmap",
            "grouped heads": query.shape[-3:-2] != key.shape[-3:-2],
            **{f"{x} of rank {given[x].ndim}": query.ndim == 4 for x in ("bias", "mask") if x in given},
            "segments apart": not np.array_equal(*ids),
            "asymmetric windows": left != right,
            "V != D": query.shape[-1] != value.shape[-1],
            "odd widths": bool(query.shape[-1] % 2),
            "empty arrays": 0 in query.shape + key.shape,
            "not finite": not all(np.isfinite(x).all() for x in (query, key, value)),
            "V != D with grouped heads": query.shape[-1] != value.shape[-1] and query.shape[-3:-2] != key.shape[-3:-2],
            "gradients": self.direction.startswith("gradient"),
        }
        return [*found, *(trait for trait, is_so in shown.items() if is_so), str(query.dtype)]


def _holds(name: str, sizes: Sizes) -> bool:
    return all(eval(holds, {}, sizes) for words, holds in HOLDS.items() if re.search(words, name))


def _reworded(text: str, own: Sizes, sizes: Sizes) -> str:
    """A text with the sizes that are asked in place of a case's own: "T = S = 131", "width 13", ", 300"."""

    def assigned(match: re.Match[str]) -> str:
        axes = re.findall("[BNGTSDV]", match[1])
        if all(sizes[axis] == own[axis] for axis in axes):
            return match[0]
        if len({sizes[axis] for axis in axes}) == 1:
            return f"{match[1]}{sizes[axes[0]]:,}"
        return ", ".join(f"{axis} = {sizes[axis]:,}" for axis in axes)

    def listed(match: re.Match[str]) -> str:
        axes = {1: "T", 4: "BNTD"}.get(match[0].count(","), "")
        if [own[axis] for axis in axes] != [int(x) for x in match[0].split(",")[1:]]:
            return match[0]
        return "".join(f", {sizes[axis]}" for axis in axes)

    text = re.sub(r"\b((?:[BNGTSDV] = )+)\d[\d,]*\b", assigned, text)
    text = re.sub(r"(?:, \d+)+$", listed, text)
    return re.sub(r"\bwidth \d+", f"width {sizes['D']}", text)
