"""The one value of the table by which a function is what it is, where what was tried of it is not enough."""

from collections.abc import Iterator
from itertools import chain

from ..conventions.table import BACKWARD, TABLE
from ..worker.errors import Failed
from . import examples
from .asking import NARROW, TOLERANCE, Answer, Probe, Subject, distance
from .forms import Form, Option
from .options import AXIS, OPTIONS, kind_of

FIRST = 3  # results that are wrong: what does not explain these is tried on no others


def neighbour(x: Subject, beside: Subject, sizes: tuple[int, ...]) -> Subject | None:
    """The function by the one value of an axis that explains all its results; None where none does, or several.

    Keywords that ``beside`` has as options are asked as such, also where they are none that was understood.
    """
    form = with_options(x, beside.form)
    found = list(_answers(x.by(form), sizes))
    wrong = [pair for pair in found if not _is(x.by(form), *pair)]
    if not wrong:
        return None
    without = {AXIS[ours] for ours in OPTIONS.keys() - form.options.keys()}
    fits: dict[str, list[tuple[str, Form]]] = {}  # by their words
    kept = (axis for axis in TABLE if axis not in (*BACKWARD, *without))
    for axis, value in ((name, value) for name in kept for value in TABLE[name]):
        tried = x.by(form.but(**{axis: value}))
        if value != form.how[axis] and all(_is(tried, *pair) for pair in chain(wrong[:FIRST], found)):
            fits.setdefault(TABLE[axis][value].words, []).append((value, tried.form))
    if len(fits) != 1:
        return None
    (alike,) = fits.values()
    known_now = {"order"}.union(*form.options.values())
    unknown = {k: why for k, why in x.unknown.items() if k not in known_now}
    if len(alike) > 1:
        unknown["line"] = f"nothing that was asked tells {' and '.join(value for value, _ in alike)} apart"
    return Subject(x.fn, alike[0][1], True, unknown, x.sizes)


def holds(x: Subject, sizes: tuple[int, ...]) -> int:
    """The number of cases in which a function does what its form says; 0 where it does not in one."""
    found = list(_answers(x, sizes))
    return len(found) if all(_is(x, *pair) for pair in found) else 0


def with_options(x: Subject, beside: Form) -> Form:
    """The form with the options of another that it has keywords for."""
    form = x.form
    for ours, option in beside.options.items():
        name = next((y for y in OPTIONS[ours].names if y in x.unknown), "") if ours in OPTIONS else ""
        if name and ours not in form.options:
            form = form.offering(ours, Option(name, kind_of(ours, option.form, x.fn.names)))
    return form


def _answers(x: Subject, sizes: tuple[int, ...]) -> Iterator[tuple[Probe, Answer]]:
    for probe in examples.cases(x.form, sizes):
        if not isinstance(found := x.answer(probe), Failed):
            yield probe, found


def _is(x: Subject, probe: Probe, found: Answer) -> bool:
    """Tell whether a result is that of a form."""
    return distance(found, x.right(probe)) <= (NARROW if probe.narrow else TOLERANCE)
