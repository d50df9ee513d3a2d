"""The values of the table by which a function is what it is, where what was tried of it is not enough: one, or two."""

import dataclasses
from collections.abc import Iterator

from ..conventions.search import Change, fitting
from ..conventions.table import ASKS, BACKWARD_AXES, TABLE
from ..worker.errors import Failed
from . import examples
from .asking import Answer, Candidate, Probe, distance
from .forms import BY_LAW, Form, Option
from .options import OPTIONS, kind_of

Result = tuple[Probe, Answer]
OF_SIDES = "negative", "none"  # what a side of a window is that is negative, or None
OF_DTYPES = "softmax", "out", "dropout", "large", "negative", "none"  # which no value of the table changes


def neighbour(x: Candidate, beside: Candidate, sizes: tuple[int, ...]) -> Candidate | None:
    """The function by the fewest values of the table that explain all its results, one or two; None where none do.

    Keywords that ``beside`` has as options are asked as such, also where they are none that was understood. Values
    are changed in what is known of the function, then in the law. Where several explain as much, and are told by
    other words, they are ``several``, and the function is none of them.
    """
    form = with_options(x, beside.form)
    found = sorted(_answers(x.by(form), sizes), key=_simple)
    if all(_is(x.by(form), result) for result in found) or not any(out.any() for _, (out, *_) in found):
        return None
    by_law = form.but(**{axis: value for axis, value in BY_LAW.items() if axis not in OF_DTYPES})
    for start, count in ((form, 1), (by_law, 2), (form, 2)):

        def explain(changes: frozenset[Change], result: Result, start: Form = start) -> bool:
            return _is(x.by(start.but(**dict(changes))), result)

        def here(result: Result, start: Form = start) -> list[Change]:
            return [(axis, value) for axis in _axes(result[0]) for value in TABLE[axis] if value != start.how[axis]]

        fits: dict[frozenset[str], list[frozenset[Change]]] = {}  # by their words
        for changes in fitting(found, here, explain, count):
            fits.setdefault(frozenset(TABLE[axis][value].words for axis, value in changes), []).append(changes)
        fewest = min((len(words) for words in fits), default=0)
        fits = {words: alike for words, alike in fits.items() if len(words) == fewest}
        if len(fits) == 1:
            return _known(x, start, *fits.values())
        if fits:
            apart = "; or ".join(", and ".join(sorted(words)) for words in fits)
            return dataclasses.replace(x, several=f"either {apart} (nothing that was asked tells these apart)")
    return None


def holds(x: Candidate, beside: Candidate, sizes: tuple[int, ...]) -> int:
    """The number of cases in which a function does what its form says; 0 where it does not in one.

    Options that ``beside`` has are also asked: if nothing is known of them, the law is expected.
    """
    asked = x.by(with_options(x, beside.form))
    found = list(_answers(asked, sizes))
    return len(found) if all(_is(asked, result) for result in found) else 0


def refuted(x: Candidate, axes: tuple[str, ...], beside: Form, sizes: tuple[int, ...]) -> Probe | None:
    """An input for which a function gives other numbers than its form says, also with other values of those axes.

    A query without any key may get anything, unless the axes are of such queries.
    """
    anything = {} if {"empty", "empty_lse"} & set(axes) else {"empty": "NaN", "empty_lse": "nan"}
    said = x.by(x.form.but(**anything))
    other = x.by(said.form.but(**{axis: beside.how[axis] for axis in axes}))
    for probe, found in _answers(x, sizes):
        right, some = said.right(probe), bool(anything)
        if min(distance(y, right, some=some) for y in (found, other.right(probe))) > probe.tolerance:
            return probe
    return None


def with_options(x: Candidate, beside: Form) -> Form:
    """The form with the options of another that it has keywords for."""
    form = x.form
    for ours, option in beside.options.items():
        left = x.unknown.keys() - {known.name for known in form.options.values()}
        name = next((y for y in OPTIONS[ours].names if y in left), "") if ours in OPTIONS else ""
        if name and ours not in form.options:
            form = form.offering(ours, Option(name, kind_of(ours, option.form, x.fn.names)))
            form = form.but(**{axis: beside.how[axis] for axis in OF_SIDES * (ours == "window")})
    return form


def _axes(probe: Probe) -> list[str]:
    """The axes that may make a difference to a result."""
    asked = {"query_segment_ids" if ours == "segments" else ours for ours in probe.options}
    return [axis for axis in TABLE if axis not in BACKWARD_AXES and (axis not in ASKS or asked & {*ASKS[axis]})]


def _known(x: Candidate, start: Form, alike: list[frozenset[Change]]) -> Candidate:
    """The function by the first of some changes; the others are told by the words of that."""
    form = start.but(**dict(alike[0]))
    if form.how["pairs"] == "causal" and form.how["causal"] == BY_LAW["causal"]:  # one convention, by its other name
        form = form.but(pairs=BY_LAW["pairs"], always=BY_LAW["causal"])
    known_now = {"order"}.union(*form.options.values())
    unknown = {name: why for name, why in x.unknown.items() if name not in known_now}
    if len(alike) > 1:
        axes = sorted({axis for changes in alike for axis, _ in changes})
        values = {axis: {dict(changes).get(axis, start.how[axis]): None for changes in alike} for axis in axes}
        for some in (some for some in values.values() if len(some) > 1):
            unknown["line"] = f"nothing that was asked tells {' and '.join(some)} apart"
    return Candidate(x.fn, form, True, unknown, x.sizes)


def _simple(result: Result) -> tuple[int, int]:
    return len(result[0].options), result[0].arrays[0].size


def _answers(x: Candidate, sizes: tuple[int, ...]) -> Iterator[Result]:
    for probe in examples.cases(x.form, sizes):
        if not isinstance(found := x.answer(probe), Failed):
            yield probe, found


def _is(x: Candidate, result: Result) -> bool:
    """Tell whether a result is that of a form."""
    probe, found = result
    return distance(found, x.right(probe)) <= probe.tolerance
