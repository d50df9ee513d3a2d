"""What both functions can be given is given to both: no two are called equal that an option of both sets apart."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..worker.errors import Failed
from . import writing
from .asking import TOLERANCE, Call, Probe, arrays, ask, distance
from .describing import Description
from .examples import VALUES, no_key, small, smallest
from .forms import GIVEN, Form, Option
from .remote import Function
from .ways import DROPOUT, GROUPED, HEADS, IGNORED, NAMES

PAIRS = ((3, 0), (0, 2), (1, 1), (-1, -1), (-1, 0))
DECIDED = {
    "is_causal": ("causal",), "mask": ("masking", "mask"), "window": ("window",), "return_lse": ("lse",),
    "softcap": ("order", "softcap"), "bias": ("order", "bias"), "scale": ("given_scale",),
}  # fmt: skip
SOME: dict[str, tuple[Any, ...]] = {"window": (0, 1, 2, 3), "scale": (0.25, 2.0), "softcap": (0.5, 3.0)}
GUESSES = {
    "mask": ("BNTS/True attends", "BNTS/1 attends", "BNTS/added, -inf drops", "TS/True attends", "BS/True attends",
             "BS/1 attends", "BTS/True attends"),
    "bias": ("BNTS", "NTS", "TS"), "scale": ("a factor",), "window": ("a number", "both sides"),
    "return_lse": ("BNT",),
}  # fmt: skip


class Direct(NamedTuple):
    """What came of it: the smallest input on which the two differ, if any, and the keywords that were given to both."""

    example: str
    names: frozenset[str]


def compared(one: Function, other: Function, a: Description, b: Description, mine: Form, theirs: Form) -> Direct:
    """Give all that both take: ``mine`` and ``theirs`` are the forms under which the two are held to be equal."""
    text = writing.adapter(mine, theirs)
    adapted = other.adapted(text)
    names: set[str] = set()
    for key, option in mine.options.items():
        if found := _first(one, adapted, mine, _probes(key, mine)):
            return Direct(found, frozenset(names))
        as_given = mine.offering(key, Option(option.name, "a number"))
        if option.form == "both sides" and (found := _first(one, adapted, as_given, _pairs(as_given))):
            return Direct(found, frozenset(names))
    for key, x, y in _shared(one, other, mine, theirs):
        for form, otherwise in _assumed(key, x, y, a.form, b.form, mine, theirs):
            call = other.adapted(writing.adapter(form, otherwise))
            names |= {x, y}
            known = next(iter(form.options))
            found = _first(one, call, form, _probes(known, form))
            if not found and form.options[known].form == "both sides":
                as_given = form.offering(known, Option(x, "a number"))
                found = _first(one, call, as_given, _pairs(as_given))
            if found:
                return Direct(found, frozenset(names))
    return Direct(_heads(one, other, mine, theirs), frozenset(names))


def _first(one: Call, adapted: Call, form: Form, probes: Iterable[Probe]) -> str:
    """The smallest input on which an adapter of that form gives something else."""
    return smallest(one, adapted, form, dataclasses.replace(form, first=False), probes)


def _shared(one: Function, other: Function, mine: Form, theirs: Form) -> Iterator[tuple[str, str, str]]:
    """Keywords that both have, and that are not compared by a formula: what they may be, and the two names."""
    done = [{form.options[k].name for k in mine.options if k in form.options} for form in (mine, theirs)]
    left = [
        [x for x in fn.names if x not in (*fn.required, *HEADS, *GROUPED, *DROPOUT, *IGNORED, *names)]
        for fn, names in zip((one, other), done, strict=True)
    ]
    taken: set[str] = set()
    for x in left[0]:
        kinds = [key for key, names in NAMES.items() if x in names]
        alike = [y for y in left[1] if y not in taken and (y == x or any(y in NAMES[key] for key in kinds))]
        for y in sorted(alike, key=lambda y: y != x)[:1]:
            taken.add(y)
            yield kinds[0] if kinds else "", x, y


def _assumed(key: str, x: str, y: str, a: Form, b: Form, mine: Form, theirs: Form) -> Iterator[tuple[Form, Form]]:
    """The two forms with that keyword alone, held to mean the same: as it is known of one of them, or as it may be."""
    for known in (a, b):
        found = [(k, option) for k, option in known.options.items() if option.name == (x if known is a else y)]
        for k, option in found:
            how = {convention: known.how[convention] for convention in ("empty", *DECIDED.get(k, ()))}
            yield _alone(mine, k, x, option.form, how), _alone(theirs, k, y, option.form, how)
        if found:
            return
    if not key:
        yield _alone(mine, GIVEN + x, x, "", {}), _alone(theirs, GIVEN + x, y, "", {"empty": mine.how["empty"]})
        return
    for guess in GUESSES.get(key, ("",)):
        how = {convention: mine.how[convention] for convention in ("empty", *DECIDED.get(key, ()))}
        yield _alone(mine, key, x, guess, how), _alone(theirs, key, y, guess, how)


def _alone(form: Form, key: str, name: str, guess: str, how: dict[str, str]) -> Form:
    given = {k: x for k, x in form.given.items() if k != name}
    return dataclasses.replace(form.but(**how), options={key: Option(name, guess)}, given=given)


def _probes(key: str, form: Form) -> Iterator[Probe]:
    """Small inputs with several values of one option."""
    if key.startswith(GIVEN):
        name = form.options[key].name
        yield from (probe for x in _near(form.defaults.get(name)) for probe in small({key: x}))
        return
    if key == "return_lse" and not form.options[key].name:
        return
    for x in SOME.get(key, (VALUES[key],)):
        yield from small({key: x})
    if key == "mask" and form.options["mask"].form.startswith("BNTS"):
        yield from small({"mask": _of_each_head}, heads=2)
    if key == "mask":
        yield from small({"mask": no_key})
    if key == "bias" and form.options["bias"].form != "TS":
        yield from small({"bias": lambda t, s: np.arange(2.0 * t * s, dtype=np.float32).reshape(1, 2, t, s)}, heads=2)


def _pairs(form: Form) -> Iterator[Probe]:
    """Small inputs with windows of two sides that are not alike; with -1, no limit, where the default has it."""
    limited = -1 not in (form.defaults.get(form.options["window"].name) or ())
    return (probe for pair in PAIRS if min(pair) >= 0 or not limited for probe in small({"window": pair}))


def _near(default: Any) -> tuple[Any, ...]:
    """Values of a keyword of which its default alone is known."""
    if isinstance(default, bool):
        return (not default,)
    if isinstance(default, int):
        return default + 1, default + 2
    return () if isinstance(default, str) else (0.25, 2.0, True)


def _of_each_head(t: int, s: int) -> np.ndarray:
    """A mask (1, 2, T, S): the second head lacks the first key, the first head the last."""
    mask = np.ones((1, 2, t, s), bool)
    if s > 1:
        mask[:, 0, :, -1] = mask[:, 1, :, 0] = False
    return mask


def _heads(one: Function, other: Function, mine: Form, theirs: Form) -> str:
    """Fewer heads of keys, where both take them."""
    if mine.pack or theirs.pack or "N" not in mine.layout or "N" not in theirs.layout:
        return ""
    if mine.grouped and theirs.grouped:
        call, form = other.adapted(writing.adapter(mine, theirs)), mine
        return _first(one, call, form, list(small({}, heads=4, groups=2)))
    how = next((x.how["heads"] for x in (mine, theirs) if x.grouped), "repeat")
    form, otherwise = (dataclasses.replace(x, options={}, grouped=True).but(heads=how) for x in (mine, theirs))
    call = other.adapted(writing.adapter(form, otherwise))
    probe = Probe(arrays((1, 4, 3, 5, 4, 4), groups=2), {})
    try:
        found = ask(one, form, probe), ask(call, dataclasses.replace(form, first=False), probe)
    except Failed:
        return ""
    apart = distance(*found) > TOLERANCE and all(x[0].shape == (1, 4, 3, 4) for x in found)
    return _first(one, call, form, [*small({}, heads=4, groups=2), probe]) if apart else ""
