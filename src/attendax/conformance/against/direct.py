"""Give both functions all that both take: no two are called equal that an option of both sets apart."""

import dataclasses
from collections.abc import Iterator

from ..worker.errors import Failed
from . import writing
from .asking import TOLERANCE, Probe, arrays, ask, distance
from .describing import Description
from .examples import small, smallest, with_each_value
from .forms import GIVEN, Form, Option
from .options import DROPOUT, GROUPED, HEADS, OPTIONS, RULES, UNREAD
from .remote import Function

GUESSES = {  # of what a mask may be that neither is known to take
    "mask": ("BNTS/True attends", "BNTS/1 attends", "BNTS/added, -inf drops", "TS/True attends", "BS/True attends",
             "BS/1 attends", "BTS/True attends"),
}  # fmt: skip


def compared(
    one: Function, other: Function, a: Description, b: Description, mine: Form, theirs: Form
) -> tuple[str, frozenset[str]]:
    """Give all that both take, and that ``mine`` and ``theirs``, held to make them equal, do not say.

    The smallest input on which the two differ, if any, and the keywords that were given to both.
    """
    names: set[str] = set()
    for key, x, y in _shared(one, other, mine, theirs):
        for form, otherwise in _assumed(key, x, y, a.form, b.form, mine, theirs):
            names |= {x, y}
            call, known = other.adapted(writing.adapter(form, otherwise)), list(form.options)[-1]
            probes = with_each_value(known, form)
            if found := smallest(one, call, form, dataclasses.replace(form, first=False), probes):
                return found, frozenset(names)
    return _heads(one, other, mine, theirs), frozenset(names)


def _shared(one: Function, other: Function, mine: Form, theirs: Form) -> Iterator[tuple[str, str, str]]:
    """Keywords that both have, and that are not compared by a formula: what they may be, and the two names."""
    done = [{form.options[k].name for k in mine.options if k in form.options} for form in (mine, theirs)]
    left = [
        [x for x in fn.names if x not in (*fn.required, *HEADS, *GROUPED, *DROPOUT, *UNREAD, *names)]
        for fn, names in zip((one, other), done, strict=True)
    ]
    taken: set[str] = set()
    for x in left[0]:
        kinds = [key for key, row in OPTIONS.items() if x in row.names]
        alike = [y for y in left[1] if y not in taken and (y == x or any(y in OPTIONS[key].names for key in kinds))]
        for y in sorted(alike, key=lambda y: y != x)[:1]:
            taken.add(y)
            yield kinds[0] if kinds else "", x, y


def _assumed(key: str, x: str, y: str, a: Form, b: Form, mine: Form, theirs: Form) -> Iterator[tuple[Form, Form]]:
    """The two forms with that keyword, held to mean the same: as it is known of one of them, or as it may be."""
    known = [(form, k) for form, name in ((a, x), (b, y)) for k, o in form.options.items() if o.name == name]
    form, key = known[0] if known else (mine, key or GIVEN + x)
    row = OPTIONS.get(key)
    kinds = [form.options[key].form] if known else GUESSES.get(key, row.kinds if row else ("",))
    how = {axis: form.how[axis] for axis in ("empty", *(row.axes if row else ()))}
    for kind in kinds:
        yield _alone(mine, key, x, kind, how), _alone(theirs, key, y, kind, how)


def _alone(form: Form, key: str, name: str, kind: str, how: dict[str, str]) -> Form:
    """Options with that keyword, and beside an offset the rules that it moves."""
    form = dataclasses.replace(form.but(**how), given={k: x for k, x in form.given.items() if k != name})
    return form.keeping(RULES if key == "offset" else ()).offering(key, Option(name, kind))


def _heads(one: Function, other: Function, mine: Form, theirs: Form) -> str:
    """Fewer heads of keys, where both take them, and no formula says how one of the two reads them."""
    plain = not any(x.pack or "N" not in x.layout for x in (mine, theirs))
    if not plain or mine.grouped is theirs.grouped is True:
        return ""
    how = next((x.how["heads"] for x in (mine, theirs) if x.grouped), "repeat")
    form, otherwise = (dataclasses.replace(x, options={}, grouped=True).but(heads=how) for x in (mine, theirs))
    call = other.adapted(writing.adapter(form, otherwise))
    probe = Probe(arrays((1, 4, 3, 5, 4, 4), groups=2), {})
    straight = dataclasses.replace(form, first=False)
    try:
        found = ask(one, form, probe), ask(call, straight, probe)
    except Failed:
        return ""
    apart = distance(*found) > TOLERANCE and all(x[0].shape == (1, 4, 3, 4) for x in found)
    return smallest(one, call, form, straight, [*small({}, heads=4, groups=2), probe]) if apart else ""
