"""Options together: which of two counts, and in which order the steps of the scores come."""

import itertools
from typing import Any

from ..conventions.table import DECLARED, IN_PLACE, OF_VALID, TABLE
from . import options
from .asking import TOLERANCE, distance
from .caller import Caller
from .forms import Form, Option
from .options import OF_KEYS, OPTIONS, OR_ADDED, RULES, WITH_CAUSAL
from .reading import Reading

END = DECLARED["end"]  # of causal
COMBINATION = "combination of"  # two options or more, each of which alone is known
SCORE_STEPS = ("softcap", "scale", "bias", "is_causal", "window", "mask")


def joined(reading: Reading, form: Form) -> Form:
    """The form with whether causal counts beside a mask, and whether key lengths move its end, and that of a window."""
    for ours, axis, end in (("is_causal", "causal", END), ("window", "window", "end")):
        if form.how[axis] == end and {"key_lengths", ours} <= form.options.keys():
            lengths = options.drawn("key_lengths", form.options["key_lengths"].form, reading.sizes)
            by_lengths = [reading.probe({"key_lengths": lengths, ours: OPTIONS[ours].values[0]})]
            ways = (form.but(**{axis: x, "empty": y}) for x in (end, OF_VALID) for y in TABLE["empty"])
            settled = reading.settled(ways, by_lengths)
            form = form.but(**{axis: settled.how[axis]}) if settled else form
    if not {"mask", "is_causal"} <= form.options.keys():
        return form
    mask = options.drawn("mask", form.options["mask"].form, reading.sizes)
    probe = reading.probe({"mask": mask, "is_causal": True})
    if settled := reading.settled([form, *(form.but(joins=x) for x in IN_PLACE)], [probe]):
        return settled
    of_lengths = reading.as_lengths(form) if form.how["causal"] == END else None
    moved = joined(reading, of_lengths) if of_lengths else form
    return moved if moved.how["causal"] == OF_VALID else form


def ordered(caller: Caller, form: Form) -> Form:
    """The form with the order of its steps; of a softcap beside a mask that may be added, with numbers as well."""
    form = _ordered(caller, form)
    if "softcap" in form.options and "mask" in form.options and form.options["mask"].form.endswith(OR_ADDED):
        return form.but(order=_ordered(caller, as_bias(form)).how["order"])
    return form


def as_bias(form: Form) -> Form:
    """The form in which the keyword of its mask is a bias."""
    name, kind = form.options["mask"]
    rest = form.keeping(x for x in form.options if x != "mask")
    return rest.offering("bias", Option(name, kind.partition("/")[0]))


def _ordered(caller: Caller, form: Form) -> Form:
    """The form with the order in which scale, softcap, bias and mask come."""
    if len(set(SCORE_STEPS) & set(form.options)) < 2:
        return form
    values = {
        k: options.drawn(k, x if (x := form.options[k].form).startswith((OF_KEYS, "BS/")) else "TS", caller.sizes)
        for k in SCORE_STEPS
        if k in form.options
    }
    ways = [form.but(order=x) for x in dict.fromkeys((form.how["order"], *TABLE["order"]))]
    rules: list[dict[str, Any]] = [{}, *({k: values.pop(k)} for k in RULES if k in values)]
    if "window" in form.options and form.options["window"].form == WITH_CAUSAL:
        rules = [x | dict.fromkeys(["is_causal"] * ("window" in x), True) for x in rules]
    probes = [probe for probe in (caller.probe({**values, **rule}) for rule in rules) if caller.answer(form, probe)]
    settled = caller.settled(ways, probes) if probes else form
    return settled or _fewest(caller, form, ways, {k: x for probe in probes for k, x in probe.options.items()})


def _fewest(caller: Caller, form: Form, ways: list[Form], values: dict[str, Any]) -> Form:
    """The form with the order of all options but the fewest that no order explains together, which it names."""

    def words(*some: str) -> str:
        return " and ".join(form.options[k].name for k in some)

    names = sorted(values, key=lambda k: k == "scale")
    for some in (x for count in range(2, len(names) + 1) for x in itertools.combinations(names, count)):
        probe = caller.probe({k: values[k] for k in some})
        if not caller.answer(form, probe) or caller.settled(ways, [probe]):
            continue
        together = f"{COMBINATION} {words(*some)}"
        caller.unknown[together] = "no known formula gives its results"
        for left in some:  # as if one of them were not given
            rest = tuple(k for k in some if k != left)
            without = caller.answer(form, caller.probe({k: values[k] for k in rest}))
            if without and distance(without, caller.answer(form, probe)) <= TOLERANCE:
                caller.unknown[together] = f"{words(left)} is ignored if {words(*rest)} is given"
        of_rest = caller.probe({k: x for k, x in values.items() if k not in some})
        return caller.settled(ways, [of_rest]) or form
    return form
