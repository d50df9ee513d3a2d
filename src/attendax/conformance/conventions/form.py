"""A form: of each axis of ``conventions`` the value that a function has."""

import dataclasses

from .table import TABLE, Line, python, words_of_scale


@dataclasses.dataclass(frozen=True)
class Form:
    """Conventions by which a function computes.

    A value is the name of one in the table; a scale may be any number, as it is written, 1.4852/√D,
    and causal may reach any number of keys: j <= i + 2.
    """

    off: tuple[tuple[str, str], ...] = ()  # the values that are not those of the law, by axis

    def but(self, **values: str) -> "Form":
        """The form with other values."""
        how = dict(self.off) | values
        return Form(tuple(sorted((axis, x) for axis, x in how.items() if x != law(axis))))

    def value(self, axis: str) -> str:
        """Its value of an axis."""
        return dict(self.off).get(axis) or law(axis)

    def line(self, axis: str) -> Line:
        """The line of its value."""
        value = self.value(axis)
        return TABLE[axis].get(value) or Line(python(value), words_of(axis, value))

    def __sub__(self, other: "Form") -> tuple[tuple[str, str, str], ...]:
        """The axes in which the two differ, with both values."""
        both = ((axis, self.value(axis), other.value(axis)) for axis in TABLE)
        return tuple(entry for entry in both if entry[1] != entry[2])


def law(axis: str) -> str:
    """The value that the law has."""
    return next(iter(TABLE[axis]))


def words_of(axis: str, value: str) -> str:
    """Words for a number that was solved for."""
    said = {"given_scale": "a given scale counts as {}", "causal": "causal reaches as far as {}"}
    said |= {"bias": "the bias counts as {}"}
    return words_of_scale(value) if axis == "scale" else said[axis].format(value)


LAW = Form()
