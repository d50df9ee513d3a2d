"""Sizes as people run them, drawn anew for each run: every value in every run, every pair of values in a few (L11).

A row has one value of each axis; what it is asked may be several options, each of which it shows. A run should
have parts of rows. A part is completed at random, several times, and the row is taken that shows most of what is
missing for its seconds.
"""

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from . import pool
from .case import FORWARD, GRADIENT, PAIRS, Case
from .how import How

TRIED, TRIED_LENGTHS = "small", (128, 255)
BLOCK_SIZES = (64, 128, 256, 512)
REFUSABLE = ("direction", "dtype", "asked", "groups", "queries", "keys", "edge", "D", "V")
MOST_PAIRS, MOST_NUMBERS = 17_000_000, 12_000_000  # of queries and keys: 4,097 squared; in the arrays and the result
MOST_IN_FLOAT16 = 100_000_000  # products: NumPy takes a second for so many
CASE_SECONDS = {"numpy": 0.04, "torch": 0.06, "jax": 0.33}  # seconds of a case: a call, and to compile it
CASE_SHARE = 1 / 10  # of the budget the most for one case
# Rows to choose from for a part, and to find them among: more cost too much.
PART_ROWS, FEW_PART_ROWS, MOST_ROWS = 32, 12, 128
NOT_IN_JAX = ("held", "key lengths of 64 bits", "mask expanded")  # nothing is written to, has 64 bits, or strides
MOST_TOGETHER = 5
MODEL_HEADS, MODEL_WIDTH, MODEL_TILE = 4, 32, 64  # at least, and more than, in the shape of a model
# 0 is the length of other pairs: many of them cannot be.
DRAWS_BY_LENGTH = {0: 60, 2: 2500, 3: 2500, 4: 9000, 5: 9000}
Part = frozenset[tuple[str, Any]]
Takes = Callable[[Case], bool]
HALF = "bfloat16", "float16"
OF_A_MODEL: pool.Row = {"numbers": "normal", "dtype": None, "shape": pool.MODEL}
LONG_USES: tuple[pool.Row, ...] = (*pool.USES, *({"together": x} | OF_A_MODEL for x in pool.TOGETHER))
LONGER = [frozenset(({"direction": x} | use).items()) for use in LONG_USES for x in pool.AXES["direction"]]


class Rung(NamedTuple):
    """A row, its sizes, and the seconds that the judge needs for it."""

    row: pool.Row
    sizes: dict[str, int]
    seconds: float

    @property
    def case(self) -> Case:
        """The demand of the row."""
        direction, asked, numbers = (self.row[axis] for axis in ("direction", "asked", "numbers"))
        return pool.case_of(direction, asked, numbers, self.sizes, self.row["dtype"], self.row["layout"])

    @property
    def values(self) -> set[tuple[str, Any]]:
        """The values of the axes."""
        values = {x for x in self.row.items() if x[0] not in ("asked", "shape")}
        return values | {("asked", one) for one in self.row["asked"].split(pool.AND)}

    def shows(self, missing: set[Part], longer: set[Part]) -> set[Part]:
        """Parts that are missing, pairs and longer ones, and in the row."""
        items, options = self.values, pool.asked_of(self.row["asked"]).options
        pairs = missing.intersection(map(frozenset, itertools.combinations(items, 2)))
        items |= {("option", x) for x in options} | {("together", x) for x in pool.TOGETHER if {*x} <= {*options}}
        items.add(("shape", self.row["shape"]))
        return pairs | {part for part in longer if part <= items}


class Ladder(NamedTuple):
    """The cases of a run, and what it should have in each direction but its budget has no room for."""

    cases: tuple[Case, ...]
    left_out: tuple[str, ...]


class Drawing:
    """The drawing of a run: its chance, the values of the axes, and the seconds of the least case."""

    def __init__(self, seed: int, axes: pool.Axes, least: float) -> None:
        self.rng, self.axes, self.least = random.Random(seed), axes, least
        self.lengths = [x for x in axes["keys"] if x != pool.FAR]

    def choice(self, values: Any) -> Any:
        """One of them: ``random.choice`` takes thrice the time."""
        return values[int(self.rng.random() * len(values))]

    def completed(self, part: pool.Row, missing: set[Part]) -> Iterator[Rung]:
        """Rows that have a part, the other values at random, mostly of those that this direction has not had."""
        way = ("direction", part.get("direction", self.choice(self.axes["direction"])))
        axes = self._beside(part)
        if not all(axes.values()):
            return
        options = part.get("together", ())
        if "dtype" in part and part.get("option", pool.ALONE[0]) not in pool.ALONE:
            options = (part["option"],)
        wanted = {y for x in missing if way in x for axis, y in x if axis == "together"} if options else set()
        fixed, chance = dict([way]) | part, self.rng.random
        free = [(axis, values) for axis, values in axes.items() if axis not in fixed]
        both = [(axis, values, [x for x in values if frozenset((way, (axis, x))) in missing]) for axis, values in free]
        for _ in range(DRAWS_BY_LENGTH[len(part) if "direction" in part else 0]):
            drawn = ((axis, some if some and chance() < 0.7 else values) for axis, values, some in both)
            row = fixed | {axis: self.choice(values) for axis, values in drawn}
            if options:
                row |= {"asked": self._together(options, wanted), "numbers": "normal"}
            if pool.can_be(row) and (rung := self.rung(row)) and part.get("shape") in (None, rung.row["shape"]):
                yield rung

    def _beside(self, part: pool.Row) -> pool.Axes:
        """The values of the axes that may be beside a part."""
        axes, far, many = self.axes, part.get("keys") == pool.FAR, part.get("queries") == pool.MANY
        if "option" in part:
            axes = axes | {"asked": tuple(x for x in axes["asked"] if part["option"] in pool.ASKED[x].options)}
        if "shape" in part:  # of lengths, all that may be
            cache = "cache" in (part.get("option"), *part.get("together", ()))
            queries = pool.FEW if cache else (pool.SQUARE, pool.OTHER)
            axes = axes | {
                "B": axes["B"][:4],
                "N": tuple(x for x in axes["N"] if x >= MODEL_HEADS),
                **{axis: tuple(x for x in axes[axis] if x == "D" or x >= MODEL_WIDTH) for axis in "DV"},
                "queries": tuple(x for x in axes["queries"] if x in queries or x not in pool.AXES["queries"]),
                "keys": tuple(x for x in axes["keys"] if x == "below 1,024" or (isinstance(x, int) and x > MODEL_TILE)),
            }
        if far:  # for few queries alone, and few of the rest
            axes = axes | {"queries": tuple(x for x in axes["queries"] if x in pool.FEW)}
        if many:
            axes = axes | {"keys": tuple(x for x in axes["keys"] if x in pool.BESIDE_MANY)}
        return axes | {"B": axes["B"][:2], "N": axes["N"][:4]} if far or many else axes

    def _together(self, options: tuple[str, ...], wanted: set[tuple[str, str]]) -> str:
        """A combination of some options, and of others by chance, of which more of what is wanted is likelier."""
        names = _by_option(self.axes["asked"])
        others = [x for x in names if x not in pool.ALONE]
        for _ in range(self.rng.randrange(MOST_TOGETHER)):
            two = self.choice(others), self.choice(others)
            new = [sum((x, y) in wanted or (y, x) in wanted for y in options) for x in two]
            more = *options, two[new[1] > new[0]]
            options = more if len(more) <= MOST_TOGETHER and pool.fit(more) else options
        return pool.AND.join(self.choice(names[option]) for option in options)

    def rung(self, row: pool.Row) -> Rung | None:
        """The row at lengths that are drawn; nothing where it is too large."""
        keys, queries, edge, asked = row["keys"], row["queries"], row["edge"], pool.asked_of(row["asked"])
        S = self._length(keys, edge)
        known = {pool.SQUARE: S, pool.OTHER: 0}
        T = self._length(queries, edge) if queries == pool.MANY else known.get(queries, queries)
        few = asked.from_the_first and not isinstance(keys, int)  # fewer would see few of the keys
        T = T or self._length(keys if few else self.choice(self.lengths), edge)
        cache, held = "cache" in asked.options, "held" in asked.options
        if (queries == pool.OTHER and T == S) or (cache and S < 2 * T):
            return None
        B, N, G, D = row["B"], row["N"], row["N"] // row["groups"], row["D"]
        sizes = {"B": B, "N": N, "G": G, "T": T, "S": S, "D": D, "V": D if row["V"] == "D" else row["V"]}
        width, pairs = D + sizes["V"], B * N * T * S
        numbers = B * (N * T + G * S) * width + eval(asked.holds, {}, sizes)
        if pairs > MOST_PAIRS or numbers > MOST_NUMBERS:
            return None
        if row["dtype"] == "float16" and pairs * width > MOST_IN_FLOAT16:
            return None
        each = (22 + 0.1 * width) * (2 if row["direction"] == GRADIENT else 1) * (3 if held else 1)
        repeated = B * N * S * width if row["groups"] > 1 else 0  # by who repeats key heads
        seconds = self.least + (pairs * each + numbers * 40 + repeated * 4) * 1e-9  # the judge and plain NumPy
        large = N >= MODEL_HEADS and min(D, sizes["V"]) >= MODEL_WIDTH and min(S, S if cache else T) > MODEL_TILE
        more = {"edge": None if isinstance(keys, int) else edge, "shape": pool.MODEL if large else None}
        return Rung({axis: x for axis, x in row.items() if axis in pool.AXES} | more, sizes, seconds)

    def _length(self, scale: Any, edge: Any) -> int:
        """A length of a scale: beside a multiple of a block, or odd and not beside one; or the length that is given."""
        if isinstance(scale, int):
            return scale
        least, most = (pool.LENGTHS | pool.QUERIES).get(scale, TRIED_LENGTHS)
        if edge == pool.ODD:
            return 64 * self.rng.randint(least // 64, most // 64 - 1) + self.rng.randrange(3, 62, 2)
        block = self.choice([block for block in BLOCK_SIZES if block <= most])
        return block * self.rng.randint(-(-least // block), most // block) + int(edge or 0)


def ladder(
    how: How, level: str = "everything", offers: Takes | None = None, takes: Takes = bool, arrays: str = "numpy"
) -> Ladder:
    """Draw the cases of a run by its seed until its budget is spent.

    Combinations of options come first, then single values, long uses, other uses, and pairs of values. An axis whose
    size is given has no other. A value of which the implementation ``offers`` nothing at a small size is asked there
    alone; ``takes`` tells whether it takes the sizes of a case at all.
    """
    budget = left = how.seconds_of_ladder(arrays)
    if not budget or 0 in how.sizes.values():  # nobody runs these
        return Ladder((), ())
    given = dict(how.sizes)  # T means S, G means N and V means D, too, and the other way round
    for one, other in (*PAIRS, *(pair[::-1] for pair in PAIRS)):
        if one in given:
            given.setdefault(other, given[one])
    if math.prod(given.get(axis, 1) for axis in "BNTS") > MOST_PAIRS:
        return Ladder((), (f"every case: B * N * T * S is more than {MOST_PAIRS:,}",))
    drawing = Drawing(how.seed, _axes(given, how.dtype, level, arrays), CASE_SECONDS[arrays])
    tries = PART_ROWS if how.thorough else FEW_PART_ROWS
    found = _refused(drawing, offers, takes)  # which takes no time
    _add_own(drawing)
    parts = [part for part in _parts(drawing) if how.strict or not _is_long_half_gradient(part)]
    missing = {frozenset(part.items()) for part in parts}
    longer = missing.intersection(LONGER)
    for part in parts:
        if how.left() <= 0:
            break
        if frozenset(part.items()) in missing and left > drawing.least and (found or "direction" in part):
            most = min(left, max(2 * drawing.least, CASE_SHARE * budget))
            rungs = (x for x in drawing.completed(part, missing) if takes(x.case))
            rungs = (x for x in itertools.islice(rungs, MOST_ROWS) if x.seconds <= most)
            shows = ((rung, rung.shows(missing, longer)) for rung in itertools.islice(rungs, tries))
            best, shown = max(shows, key=lambda x: len(x[1]) / x[0].seconds, default=(None, set()))
            if best:
                found.append(best)
                left, missing, longer = left - best.seconds, missing - shown, longer - shown
    left_out = [part for part in parts if "direction" in part and frozenset(part.items()) in missing]
    told = tuple(", ".join(f"{axis} {x}" for axis, x in part.items()).removeprefix("direction ") for part in left_out)
    return Ladder(tuple({rung.case.name: rung.case for rung in by_finds(found)}.values()), told)


def by_finds(rungs: Iterable[Rung]) -> list[Rung]:
    """The order in which cases are asked: first what has the most values, for its seconds, that none before it has."""
    left = [(rung, {(rung.row["direction"], *value) for value in rung.values}) for rung in rungs]
    found: list[Rung] = []
    while left and any(new for _, new in left):
        best, shown = max(left, key=lambda x: len(x[1]) / x[0].seconds)
        left = [(rung, new - shown) for rung, new in left if rung is not best]
        found.append(best)
    return found + [rung for rung, _ in left]


@functools.lru_cache(maxsize=4)
def _by_option(asked: tuple[str, ...]) -> dict[str, list[str]]:
    """The names that ask for each option, of those that some do."""
    found = {x: [name for name in asked if pool.ASKED[name].options == (x,)] for x in pool.OPTIONS}
    return {option: names for option, names in found.items() if names}


def _axes(given: dict[str, int], dtype: str, level: str, arrays: str) -> pool.Axes:
    """The values of each axis, one alone where its size is given."""
    axes = pool.AXES | {axis: (given[axis],) for axis in "BNDV" if axis in given}
    if "S" in given:
        queries = pool.SQUARE if given["T"] == given["S"] else given["T"]
        axes |= {"queries": (queries,), "keys": (given["S"],), "edge": (None,)}
    if "N" in given:
        axes |= {"groups": (given["N"] // max(given["G"], 1),)}
    if dtype != "float32":
        axes |= {"dtype": (None,)}
    if dtype in HALF:
        axes |= {"numbers": tuple(x for x in pool.NUMBERS if pool.is_held_by(dtype, x))}
    if arrays == "jax":
        axes |= {"asked": tuple(x for x in axes["asked"] if x not in NOT_IN_JAX), "layout": (pool.IN_ORDER,)}
    return axes | {FORWARD: {"direction": (FORWARD,)}, "backward": {"direction": (GRADIENT,)}}.get(level, {})


def _parts(drawing: Drawing) -> list[pool.Row]:
    """Parts that a run should have, the first the most."""
    options = _by_option(drawing.axes["asked"])
    axes: dict[str, Any] = drawing.axes | {"option": options, "shape": [pool.MODEL]}
    axes["together"] = [x for x in pool.TOGETHER if options.keys() >= {*x}]
    longer = [{"direction": way} | use for use in LONG_USES for way in drawing.axes["direction"]]
    pairs = [{a: x, b: y} for a, b in itertools.combinations(drawing.axes, 2) for x in axes[a] for y in axes[b]]
    parts = [part for part in longer + pairs if all(x in axes[axis] for axis, x in part.items())]

    def rank(part: pool.Row) -> int:
        if "direction" not in part:
            return 4
        early = len(part) == 2 or part.get("numbers") == pool.LOW  # where whole blocks are hidden
        return 0 if "together" in part else 1 if early else 2 if part.get("keys") == pool.LONG else 3

    can_be = (part for part in parts if not pool.cannot(part))
    return sorted(can_be, key=lambda part: (rank(part), drawing.rng.random()))


def _is_long_half_gradient(part: pool.Row) -> bool:
    """Tell whether it asks for gradients of long texts in half precision, which are asked by the law alone."""
    return part.get("direction") == GRADIENT and part.get("dtype") in HALF and part.get("keys") == pool.LONG


def _add_own(drawing: Drawing) -> None:
    """Sizes that no list names, two of an axis of which nothing is refused."""
    for axis, sizes in pool.OWN.items():
        if drawing.axes[axis] == pool.AXES[axis]:
            own = tuple(drawing.rng.sample([x for x in sizes if x not in pool.AXES[axis]], 2))
            both = [x for x in axis.replace("D", "DV") if drawing.axes[x] == pool.AXES[x]]
            drawing.axes |= {x: pool.AXES[x] + own for x in both}


def _refused(drawing: Drawing, offers: Takes | None, takes: Takes) -> list[Rung]:
    """The small cases of the values that an implementation refuses, which are taken out of the axes."""
    axes = drawing.axes
    small = {axis: values[0] for axis, values in axes.items()}
    small |= {"keys": TRIED} if len(axes["keys"]) > 1 else {}
    small |= {"N": 1} if len(axes["N"]) > 1 else {}

    def at_lengths(row: pool.Row) -> Rung | None:
        """A row at lengths that it takes, where a draw has them."""
        first = None
        for rung in filter(None, (drawing.rung(row) for _ in range(PART_ROWS))):
            if takes(rung.case):
                return rung
            first = first or rung
        return first

    plainest = (small | {"asked": asked, "D": D} for D in axes["D"] for asked in axes["asked"][:3])
    refused: list[Rung] = []
    if offers is None:
        return refused
    usable = (row for row in plainest if pool.can_be(row) and (rung := at_lengths(row)) and offers(rung.case))
    if (base := next(usable, None)) is None:
        return refused
    for axis in REFUSABLE:
        rows = {x: base | {axis: x} for x in axes[axis] if x != base[axis]}
        if axis == "V":  # another width than that of the keys
            rows = {x: row | {"D": next((D for D in axes["D"] if x != D), x)} for x, row in rows.items()}
        if axis == "groups" and len(axes["N"]) > 1:
            rows = {x: row | {"N": x} for x, row in rows.items()}
        if axis in ("keys", "queries"):  # the long ones cost too much
            rows = {x: row for x, row in rows.items() if isinstance(x, int) or x in (pool.SQUARE, pool.OTHER)}
        if axis == "asked":
            rows |= {"cache": rows["cache"] | {"queries": 4}} if "cache" in rows else {}
        tried = ((x, at_lengths(row)) for x, row in rows.items())
        no = {x: rung for x, rung in tried if rung and not offers(rung.case)}
        axes = drawing.axes = drawing.axes | {axis: tuple(x for x in axes[axis] if x not in no)}
        refused += no.values()
    if all(pool.ASKED[x].from_the_first and x != "cache" for x in axes["asked"]):  # few queries see few of the keys
        drawing.axes = axes | {"queries": tuple(x for x in axes["queries"] if x not in pool.FEW)}
    return refused
