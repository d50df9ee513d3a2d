"""Sizes as people run them, drawn anew for each run: every value in every run, every pair of values in a few (L11).

A row has one value of each axis. What a run should have are parts of rows. A part is completed at random, several
times, and the row is taken that shows most of what is missing for its seconds.
"""

import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .case import FORWARD, GRADIENT, PAIRS, Case
from .how import How

LENGTHS = {"below 1,024": (64, 1023), "from 1,024": (1024, 2047), "from 2,048": (2048, 4096)}
TRIED = "small"
BLOCKS = (64, 128, 256, 512)
LONG, SQUARE, OTHER, ODD = "from 2,048", "T = S", "T != S", "odd"
FEW = (1, 4, 16)
WIDTHS = (64, 80, 96, 100, 128, 192, 256)
ASKED = {  # lines and call
    "plain": ("", ""),
    "causal": ("", "is_causal=True"),
    "key lengths": ('key_lengths = rng.integers(S // 2, S + 1, B).astype("int32")', "key_lengths=key_lengths"),
}
NUMBERS = {
    "normal": "",
    "logits to 60": 'query = (3 if dtype == "bfloat16" else 12) * query',  # it has no digits for more
    "values about 1": "value = value + 1",  # a sum of so many in bfloat16 stops early
    "equal keys": "key[..., ::2, :] = key[..., :1, :]",
    "heavy tails": "key, value = (x * np.exp(rng.standard_normal(x.shape)).astype(dtype) for x in (key, value))",
    "a value that stands out": "value[..., S // 2, :] = 100",
}
Axes = dict[str, tuple[Any, ...]]
AXES: Axes = {  # the first value of each is the one that most implementations take
    "direction": (FORWARD, GRADIENT),
    "dtype": (None, "bfloat16"),  # None: that of the run
    "asked": tuple(ASKED),
    "numbers": tuple(NUMBERS),
    "B": (1, 2, 3, 4, 8),
    "N": (16, 1, 4, 8, 12, 32, 64),
    "groups": (1, 2, 4, 8, 16),  # query heads for each key head
    "queries": (SQUARE, OTHER, *FEW),
    "keys": tuple(LENGTHS),
    "edge": (0, -1, 1, ODD),  # how far lengths are from a multiple of a block
    "D": WIDTHS,
    "V": ("D", *WIDTHS),
}
POOL = "; ".join(f"{axis} {', '.join(map(str, values))}" for axis, values in AXES.items())
USES = (  # in each direction a run has each value of each axis, and these
    {"queries": SQUARE, "keys": LONG, "asked": "causal", "edge": 0},
    {"queries": SQUARE, "keys": LONG, "asked": "causal", "edge": 1},
    {"queries": 16, "keys": LONG},
    {"queries": 1, "keys": LONG},
    {"B": 8, "N": 64},
    {"keys": LONG, "dtype": "bfloat16", "numbers": "values about 1"},
    {"keys": LONG, "dtype": "bfloat16", "numbers": "normal", "queries": SQUARE},
)
REFUSABLE = ("direction", "dtype", "asked", "groups", "queries", "edge", "D", "V")
MOST_PAIRS, MOST_NUMBERS = 17_000_000, 12_000_000  # of queries and keys: 4,097 squared; in the arrays and the result
LEAST, SHARE = 0.3, 1 / 10  # seconds of a case, to compile it; and of the budget the most for one
TRIES, DRAWS = 16, 500
NAME = re.compile(r"(gradient: )?ladder: (.+?), (.+?), (B=.+?)(?:, (bfloat16))?")
Row = dict[str, Any]
Part = frozenset[tuple[str, Any]]


class Rung(NamedTuple):
    """A row, its case, and the seconds that the judge needs for it."""

    row: Row
    case: Case
    seconds: float

    def shows(self, missing: set[Part]) -> set[Part]:
        """What is missing and in the row."""
        pairs = {frozenset(pair) for pair in itertools.combinations(self.row.items(), 2)}
        return pairs & missing | {part for part in missing if len(part) > 2 and part <= self.row.items()}


class Ladder(NamedTuple):
    """The cases of a run, and what it should have in each direction but its budget has no room for."""

    cases: tuple[Case, ...]
    left_out: tuple[str, ...]


def ladder(
    how: How,
    level: str = "everything",
    offers: Callable[[Case], bool] | None = None,
    takes: Callable[[Case], bool] = bool,
) -> Ladder:
    """Draw the cases of a run by its seed until its budget is spent: single values, uses, then pairs of values.

    Args:
        how: seed, budget and sizes; an axis whose size is given has no other.
        level: "forward" is without gradients, "backward" has nothing else.
        offers: whether the implementation takes a case. A value that it refuses at a small size is asked there alone.
        takes: whether the sizes of a case are those of a call that it takes at all.
    """
    if not how.budget:
        return Ladder((), ())
    rng = random.Random(how.seed)
    axes, found = _taken(_axes(how, level), rng, offers, takes)
    uses = [{"direction": way} | use for use in USES for way in axes["direction"]]
    pairs = [{a: x, b: y} for a, b in itertools.combinations(axes, 2) for x in axes[a] for y in axes[b]]
    parts = [part for part in uses + pairs if all(x in axes[axis] for axis, x in part.items())]
    parts.sort(key=lambda part: ("direction" not in part, len(part), rng.random()))
    missing = {frozenset(part.items()) for part in parts}
    left = how.budget - sum(rung.seconds for rung in found)
    for part in parts:
        if frozenset(part.items()) in missing and left > LEAST and (found or "direction" in part):
            most = min(left, max(2 * LEAST, SHARE * how.budget))
            rungs = (rung for rung in _completed(part, axes, missing, rng) if rung.seconds <= most and takes(rung.case))
            if tries := list(itertools.islice(rungs, TRIES)):
                found.append(max(tries, key=lambda rung: len(rung.shows(missing)) / rung.seconds))
                left -= found[-1].seconds
                missing -= found[-1].shows(missing)
    left_out = [part for part in parts if "direction" in part and frozenset(part.items()) in missing]
    told = tuple(", ".join(f"{axis} {x}" for axis, x in part.items()).removeprefix("direction ") for part in left_out)
    return Ladder(tuple({rung.case.name: rung.case for rung in found}.values()), told)


def named(name: str) -> Case | None:
    """The case of a name."""
    if not (found := NAME.fullmatch(name)):
        return None
    gradient, asked, numbers, sizes, dtype = found.groups()
    given = {axis: int(size) for axis, _, size in (pair.partition("=") for pair in sizes.split())}
    return _case(GRADIENT if gradient else FORWARD, asked, numbers, given, dtype)


def _axes(how: How, level: str) -> Axes:
    """The values of each axis, one alone where its size is given; T means S, G means N and V means D, too."""
    given = dict(how.sizes)
    for one, other in (*PAIRS, *(pair[::-1] for pair in PAIRS)):
        if one in given:
            given.setdefault(other, given[one])
    axes = AXES | {axis: (given[axis],) for axis in "BNDV" if axis in given}
    if "S" in given:
        axes |= {"queries": (given["T"],), "keys": (given["S"],), "edge": (0,)}
    if "N" in given:
        axes |= {"groups": (given["N"] // max(given["G"], 1),)}
    if how.dtype != "float32":
        axes |= {"dtype": (None,)}
    return axes | {FORWARD: {"direction": (FORWARD,)}, "backward": {"direction": (GRADIENT,)}}.get(level, {})


def _taken(
    axes: Axes, rng: random.Random, offers: Callable[[Case], bool] | None, takes: Callable[[Case], bool]
) -> tuple[Axes, list[Rung]]:
    """The values that an implementation takes, and the small cases of those that it refuses."""
    small = {axis: values[0] for axis, values in axes.items()}
    small |= {"keys": TRIED} if len(axes["keys"]) > 1 else {}
    small |= {"N": 1} if len(axes["N"]) > 1 else {}

    def at_lengths(row: Row) -> Rung | None:
        """At lengths that it takes, where some draws have them."""
        rung = _rung(row, rng)
        tries = TRIES
        while rung and not takes(rung.case) and (tries := tries - 1):
            rung = _rung(row, rng)
        return rung

    plainest = (small | {"asked": asked, "D": D} for D in axes["D"] for asked in axes["asked"])
    usable = (row for row in plainest if offers and (rung := at_lengths(row)) and offers(rung.case))
    refused: list[Rung] = []
    if offers is None or (base := next(usable, None)) is None:
        return axes, refused
    for axis in REFUSABLE:
        rows = {x: base | {axis: x} for x in axes[axis] if x != base[axis]}
        if axis == "V":  # another width than that of the keys
            rows = {x: row | {"D": next((D for D in axes["D"] if x != D), x)} for x, row in rows.items()}
        if axis == "groups" and len(axes["N"]) > 1:
            rows = {x: row | {"N": x} for x, row in rows.items()}
        tried = ((x, at_lengths(row)) for x, row in rows.items())
        no = {x: rung for x, rung in tried if rung and not offers(rung.case)}
        axes = axes | {axis: tuple(x for x in axes[axis] if x not in no)}
        refused += no.values()
    if axes["asked"] == ("causal",):  # where few queries would see few of the keys
        axes = axes | {"queries": tuple(x for x in axes["queries"] if x not in FEW)}
    return axes, refused


def _completed(part: Row, axes: Axes, missing: set[Part], rng: random.Random) -> Iterator[Rung]:
    """Rows that have a part, the other values at random, mostly of those that this direction has not had."""
    way = ("direction", part.get("direction", rng.choice(axes["direction"])))
    new = {axis: tuple(x for x in values if frozenset({way, (axis, x)}) in missing) for axis, values in axes.items()}

    def drawn(axis: str) -> Any:
        values = new[axis] if new[axis] and rng.random() < 0.7 else axes[axis]
        return values[int(rng.random() * len(values))]  # ``choice`` takes thrice the time

    draws = DRAWS if "direction" in part else DRAWS // 4  # of other pairs, many cannot be
    rows = ({axis: drawn(axis) for axis in axes} | dict([way]) | part for _ in range(draws))
    return filter(None, (_rung(row, rng) for row in rows))


def _rung(row: Row, rng: random.Random) -> Rung | None:
    """The row at lengths that are drawn; nothing where heads do not divide, or it is too large.

    Few queries are not causal: from key 0 on, they would see few of the keys.
    """
    if row["N"] % row["groups"] or (row["asked"] == "causal" and row["queries"] in FEW):
        return None
    S = _length(row["keys"], row["edge"], rng)
    T = {SQUARE: S, OTHER: _length(rng.choice(tuple(LENGTHS)), row["edge"], rng)}.get(row["queries"], row["queries"])
    B, N, G, D = row["B"], row["N"], row["N"] // row["groups"], row["D"]
    V = D if row["V"] == "D" else row["V"]
    pairs, numbers = B * N * T * S, B * (N * T + G * S) * (D + V)
    if pairs > MOST_PAIRS or numbers > MOST_NUMBERS:
        return None
    each = (50 + 0.15 * (D + V)) * (2 if row["direction"] == GRADIENT else 1)
    seconds = LEAST + (pairs * each + numbers * 60) * 1e-9  # the reference and plain NumPy on one core, as measured
    sizes = {"B": B, "N": N, "G": G, "T": T, "S": S, "D": D, "V": V}
    return Rung(row, _case(row["direction"], row["asked"], row["numbers"], sizes, row["dtype"]), seconds)


def _case(direction: str, asked: str, numbers: str, sizes: dict[str, int], dtype: str | None) -> Case:
    words = [f"ladder: {asked}", numbers, " ".join(f"{axis}={size}" for axis, size in sizes.items()), dtype]
    lines = "\n".join(filter(None, (NUMBERS[numbers], ASKED[asked][0])))
    return Case(
        "gradient: " * (direction == GRADIENT) + ", ".join(filter(None, words)), "L11", "sizes as people run them",
        direction=direction, lines=lines, call=ASKED[asked][1], sizes=sizes, dtype=dtype,
    )  # fmt: skip


def _length(scale: Any, edge: Any, rng: random.Random) -> int:
    """A length of a scale: beside a multiple of a block, or odd and not beside one; or the length that is given."""
    if isinstance(scale, int):
        return scale
    least, most = LENGTHS.get(scale, (128, 255))
    if edge == ODD:
        return 64 * rng.randint(least // 64, most // 64 - 1) + rng.randrange(3, 62, 2)
    block = rng.choice([block for block in BLOCKS if block <= most])
    return block * rng.randint(-(-least // block), most // block) + int(edge)


SMALL = {"B": 1, "N": 2, "G": 2, "T": 128, "S": 128, "D": 64, "V": 64}
EXAMPLES = tuple(_case(way, "plain", "normal", SMALL, None) for way in AXES["direction"])  # of what a run draws
