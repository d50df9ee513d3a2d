"""Conventions: the value of each axis of the table that a function has; numbers as values, which are solved for."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from .table import (
    ADDED_INSTEAD,
    CONVENTION,
    DECLARED,
    DEFECT,
    INSTEAD,
    TABLE,
    UNSEARCHED,
    UNUSUAL,
    Line,
    cap_unless_given,
    python,
    words_of_cap,
    words_of_scale,
)  # fmt: skip

NEAR = 2e-3  # of an exponent, and of a number as a share of it
MEASURED = 2e-6  # a share of a number that was measured in float32, by which it may be off
MOST_DIGITS = 5  # characters of a number up to which nobody writes a root in its place
SIZE_AXES = ("N", "T", "S", "D", "V")
Measure = Callable[[Mapping[str, int], float | None], float | None]  # the scale, at sizes and where one is given


@dataclasses.dataclass(frozen=True)
class Conventions:
    """Conventions by which a function computes.

    A value is the name of one in the table; a scale may be any number, as it is written, 1.4852/√D,
    and causal may reach any number of keys: j <= i + 2.
    """

    off: tuple[tuple[str, str], ...] = ()  # the values that are not those of the law, by axis

    def but(self, **values: str) -> "Conventions":
        """The conventions with other values."""
        how = dict(self.off) | values
        return Conventions(tuple(sorted((axis, x) for axis, x in how.items() if x != law(axis))))

    def value(self, axis: str) -> str:
        """Its value of an axis."""
        return dict(self.off).get(axis) or law(axis)

    def line(self, axis: str) -> Line:
        """The line of its value."""
        value = self.value(axis)
        instead = value in (INSTEAD, ADDED_INSTEAD)
        if instead and self.value("causal") == DECLARED["decode"]:  # the rule of the same library
            documented = TABLE["causal"][DECLARED["decode"]].source
            return TABLE[axis][value]._replace(kind=CONVENTION, source=documented)
        if known := TABLE[axis].get(value) or UNSEARCHED.get(axis, {}).get(value):
            return known
        if axis == "fill":
            return TABLE[axis]["less 10"].with_number("10", value.removeprefix("less "))
        said = {"given_scale": "a given scale counts as {}", "causal": "causal reaches as far as {}"}
        said |= {"bias": "the bias counts as {}", "scale": words_of_scale(value), "cap": words_of_cap(value)}
        kind = UNUSUAL if axis in ("scale", "cap") else DEFECT  # a model may have its own, as Gemma 2 has
        text = cap_unless_given(value) if axis == "cap" else python(value)
        return Line(text, said[axis].format(value), kind=kind)

    def is_measured(self, axis: str) -> bool:
        """Tell whether its value is a number with a fraction, of which measured digits are known."""
        return self.value(axis) not in TABLE[axis] and "." in self.value(axis)

    def kind(self, axis: str) -> str:
        """The kind of its value of an axis: law, convention, unusual or defect."""
        return "law" if self.value(axis) == law(axis) else self.line(axis).kind


def law(axis: str) -> str:
    """The value that the law has."""
    return next(iter(TABLE[axis]))


LAW = Conventions()


def scale_of_first(out: np.ndarray, S: int) -> float | None:
    """The scale, by the share of the first of S keys."""
    share = np.asarray(out, np.float64)[..., -1, :]
    if not share.size or S < 2 or not 0 < share.flat[0] < 1 or np.ptp(share) > 1e-5:
        return None
    return math.log(share.flat[0] * (S - 1) / (1 - share.flat[0])) / 2


def solved(measure: Measure, sizes: Mapping[str, int], given: float | None = None) -> str:
    """The scale as a product of powers of the sizes and a number, 1.4852/√D; empty where it is none."""
    first = measure(sizes, given)
    if not first or first < 0:
        return ""
    powers = {}
    for axis in SIZE_AXES:
        more = {axis: 2 * sizes[axis]} | ({"G": 2 * sizes["G"]} if axis == "N" and "G" in sizes else {})
        found = measure({**sizes, **more}, given)
        if found is None and axis == "D":  # of as many values
            found = measure({**sizes, **more, "V": 2 * sizes["D"]}, given)
        powers[axis] = 0.0 if not found or found < 0 else math.log2(found / first)
    if given is not None:
        found = measure(sizes, 2 * given)
        powers["given"] = 0.0 if not found or found < 0 else math.log2(found / first)
    of_log = math.log2(math.log(2 * sizes["S"]) / math.log(sizes["S"])) if sizes["S"] > 1 else 0.0
    grows = given is None and of_log > 0 and abs(powers["S"] - of_log) < NEAR
    if grows:
        first, powers["S"] = first / math.log(sizes["S"]), 0.0
    rounded = {axis: round(4 * power) / 4 for axis, power in powers.items()}
    if any(abs(power - rounded[axis]) > NEAR for axis, power in powers.items()):
        return ""
    known = {**sizes, "given": given or 1.0}
    product = written(first / math.prod(known[axis] ** power for axis, power in rounded.items()), rounded)
    return f"log(S)·{product}" if grows else product


def factor_of(one: float | None, other: float | None, name: str) -> str:
    """The factor of what two calls add for 1, by ``scale_of_first``; empty where it is 0, 1 or -1, or not the same."""
    if one is None or other is None or abs(one - other) > NEAR * abs(one) or min(abs(one), abs(abs(one) - 0.5)) < NEAR:
        return ""
    return f"{2 * one:.4g}·{name}"


def written(number: float, powers: Mapping[str, float]) -> str:
    """A product as one writes it."""
    up, roots_up = _parts({axis: power for axis, power in powers.items() if power > 0})
    down, roots_down = _parts({axis: -power for axis, power in powers.items() if power < 0})
    if abs(number - 1) > NEAR:
        squares, shortest = (number**2, number**-2), shortest_of(number)
        root = next((round(x) for x in squares if round(x) > 1 and abs(x - round(x)) < 2 * MEASURED * x), 0)
        if not root or (len(shortest) < MOST_DIGITS and (number > 1 or down or up or roots_up or roots_down)):
            up = [shortest, *up]
        elif number > 1:
            roots_up = [str(root), *roots_up]
        else:
            roots_down = [str(root), *roots_down]
    over, under = ([*parts, *_root(roots)] for parts, roots in ((up, roots_up), (down, roots_down)))
    if not under:
        return "·".join(over) or "1"
    return f"{'·'.join(over) or '1'}/{under[0] if len(under) == 1 else '(' + '·'.join(under) + ')'}"


def shortest_of(number: float) -> str:
    """The fewest digits that differ from a measured number by no more than it may be off."""
    digits = (f"{number:.{k}g}" for k in range(1, 8))
    return next((x for x in digits if abs(float(x) - number) < MEASURED * number), f"{number:.7g}")


def _parts(powers: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Whole powers, and what is under a root."""
    exponents = {axis: int(power) for axis, power in powers.items() if power >= 1}
    whole = [axis + {1: "", 2: "²"}.get(n, f" ** {n}") for axis, n in exponents.items()]
    roots = [axis for axis, power in powers.items() if power % 1 >= 0.5]
    return whole, roots + [f"√{axis}" for axis, power in powers.items() if power % 0.5]


def _root(parts: list[str]) -> list[str]:
    """A root of a product; one of a root has brackets."""
    plain = len(parts) == 1 and not parts[0].startswith("√")
    return [f"√{parts[0]}" if plain else f"√({'·'.join(parts)})"] if parts else []
