"""The conventions by which two functions differ, in words."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..conventions.table import IGNORED, TABLE
from .asking import Probe
from .describing import Description
from .examples import asking, narrow, small
from .forms import LAW, REFUSED, UNCLEAR, Form, heads_of, text_of, window_rule
from .keywords import steps
from .options import AXIS, MASKED, OPTIONS, RULES, beside, no_key


class Convention(NamedTuple):
    """One of the numbers themselves."""

    words: str  # of what it is
    said: str  # of a function, with its value and the line of that
    needs: tuple[str, ...] = ()  # options of which both have one; none for those that show in every call
    axes: tuple[str, ...] = ()  # of a form; its name alone unless given


def _as_read(ours: str) -> Convention:
    axis, it = AXIS[ours], "they are" if ours.endswith("s") else "it is"
    return Convention(f"{axis.replace('_', ' ')}, as {it} read", "has {0}: {line}", (ours,), (axis,))


NUMBERS = {
    "scale": Convention("scale where none is given", "multiplies by {0}"),
    "always": Convention("causal whatever is asked", "{0}"),
    "causal": Convention("causal", "is {0}: {line}", ("is_causal",)),
    "window": Convention("window", "sees {0}: {line}", ("window",), tuple(OPTIONS["window"].axes)),
    **{f"{AXIS[x]} read": _as_read(x) for x in ("scale", "softcap", "bias", "mask", "key_lengths", "offset")},
    "order": Convention("order of the steps to scores", ""),
    "masking": Convention("what a mask does", "{0}", ("is_causal", "mask")),
    "heads": Convention("grouped heads", "{0}"),
    "empty": Convention("a query without any key", "gives {0}", tuple(MASKED)),
    "lse": Convention("log-sum-exp", "is of {0}", ("return_lse",)),
    "dropout": Convention("dropout", "{0}"),
    "softmax": Convention("softmax of bfloat16 arrays", "has {0}"),
    "out": Convention("dtype of the result for bfloat16 arrays", "has {0}"),
}
UNSEEN = "dropout", "softmax", "out"  # the others are told if seen
OF_NUMBERS = {name: x.axes or (name,) for name, x in NUMBERS.items() if name not in UNSEEN}  # of which axes each is
WORDS = {name: x.words for name, x in NUMBERS.items()} | {
    "default": "where is_causal is not given", "scale given": "scale as given", "arguments": "order of the arguments",
}  # fmt: skip
KINDS = (  # options that two functions may be given in two ways, in words
    ("mask", "mask", lambda x: f"{x.name} ({', '.join(x.form.split('/')[0])}), {x.form.split('/')[1]}"),
    ("scale given", "scale", lambda x: f"takes {x.form}"),
    ("lse", "return_lse", lambda x: f"gives ({', '.join(x.form)})"),
    ("window", "window", lambda x: f"takes {x.form}"),
    ("offset", "offset", lambda x: f"takes {x.form}"),
)
SHOWN = {"dropout": "values that are all 1, 64 keys, rate 0.5: so says the mean of the results"}


class Difference(NamedTuple):
    """One convention by which the two differ, in words; ``shown`` is the smallest input that shows it."""

    name: str
    a: str
    b: str
    shown: str = ""

    def __str__(self) -> str:
        return f"{WORDS.get(self.name, self.name)}: A {self.a}; B {self.b}"


def differences(a: Description, b: Description) -> Iterator[tuple[Difference, Form, list[Probe]]]:
    """Yield each, with the form by which B is called just as A is where they differ, and probes that may show it."""
    one, other = a.form, b.form
    both = set(one.options) & set(other.options)
    for name in (x for x in NUMBERS if _differ(x, one, other, both)):
        said = _said(name, one, other), _said(name, other, one)
        yield Difference(name, *said, SHOWN.get(name, "")), other, _probes(name, both)
    for name, key, words in KINDS:
        heard = key in both and IGNORED not in (one.how[AXIS[key]], other.how[AXIS[key]])
        if heard and one.options[key].form != other.options[key].form:
            as_it_is = other.offering(key, other.options[key]._replace(form=one.options[key].form))
            yield Difference(name, *(words(x.options[key]) for x in (one, other))), as_it_is, asking(key)
    defaults = [x.defaults.get(x.options["is_causal"].name) is True for x in (one, other) if "is_causal" in both]
    if len(set(defaults)) == 2:
        yield Difference("default", *("is causal" if x else "is not causal" for x in defaults)), other, []
    for name, words, fields in (
        ("layout", _layout, ("layout", "pack", "returned")), ("arguments", lambda x: f"takes {x.order}", ("order",)),
    ):  # fmt: skip
        if any(getattr(one, x) != getattr(other, x) for x in fields):
            as_it_is = dataclasses.replace(other, **{x: getattr(one, x) for x in fields})
            elsewhere = name == "layout" and one.outcome != other.outcome
            shown = f"B=2, N=4, T=3, V=6: A gives {_shape(one)}, B {_shape(other)}" * elsewhere
            yield Difference(name, words(one), words(other), shown), as_it_is, list(small({}, heads=2))
    named = [k for k in one.options if k in both and one.options[k].name != other.options[k].name]
    if named:
        names = (", ".join(x.options[k].name or "(always)" for k in named) for x in (one, other))
        yield Difference("names", *names), other, []


def _differ(name: str, one: Form, other: Form, both: set[str]) -> bool:
    """Tell whether two functions differ in one of the numbers, where both have what it is of."""
    needs, axes = set(NUMBERS[name].needs), NUMBERS[name].axes or (name,)
    if (needs and not needs & both) or (name == "heads" and not (one.grouped and other.grouped)):
        return False
    if name == "order":
        return steps(one, other) != steps(other, one)
    unknown = {"dropout": {""}, "softmax": {REFUSED, UNCLEAR}, "out": {REFUSED, UNCLEAR}}.get(name, set())
    return any(one.how[x] != other.how[x] and not unknown & {one.how[x], other.how[x]} for x in axes)


def _said(name: str, form: Form, beside: Form) -> str:
    axis = (NUMBERS[name].axes or (name,))[0]
    value = form.how[axis] if name != "order" else steps(form, beside)
    if value == IGNORED:
        return "ignores it"
    line = text_of(axis, value) if axis in TABLE and name != "order" else ""
    if name == "window":
        value = {LAW["window"]: "", "end": "aligned to the end"}.get(value, value)
        value, line = ", ".join(filter(None, (form.how["reach"], form.how["side"], value))), window_rule(form.how)
    if name == "heads":
        said = {"repeat": "repeats each head of keys", "tile": "takes the heads of keys in turn"}
        value = said.get(value) or "reads head {} of keys, and {} of values".format(*heads_of(value))
    text = NUMBERS[name].said if "base" in value or name != "lse" else "{0}"
    return text.format(value or "no", line=line) or value


def _probes(name: str, both: set[str]) -> list[Probe]:
    needs = NUMBERS[name].needs
    rules = [x for x in RULES if x in both]
    if name in ("softmax", "out"):
        return narrow()
    if name == "heads":
        return list(small({}, heads=4, groups=2))
    if name == "order":
        named = [x for x in ("mask", "scale", "softcap", "bias") if x in both]
        return asking(*named, *([] if "mask" in both else rules[:1]))
    if name == "empty":
        asked: dict[str, Any] = {x: OPTIONS[x].values[0] for x in rules}
        for key, nothing in (("key_lengths", OPTIONS["key_lengths"].values[1]), ("mask", no_key)):
            asked = {key: nothing} if key in both else asked
        return list(small(asked, tall=not both & {"mask", "key_lengths"}))
    if name.endswith(" read"):
        return _of_many(needs[0], both)
    return asking(*[x for x in needs if x in both][-1:])


def _of_many(key: str, both: set[str]) -> list[Probe]:
    """Small inputs with an option; and such as are others for each batch and head."""
    more = beside(key, dict.fromkeys(both))

    def drawn(t: int, s: int) -> Any:
        rng = np.random.default_rng((t, s))
        if key in ("key_lengths", "offset"):
            return np.array([s, max(s - 1, 1)] if key == "key_lengths" else [0, 1], np.int32)
        mask = rng.random((2, 2, t, s)) < 0.5
        mask[..., 0] = True
        return mask if key == "mask" else rng.integers(-2, 3, (2, 2, t, s)).astype(np.float32)

    found = asking(key, **more)
    if key in ("scale", "softcap"):
        return found
    several = small({key: drawn, **more}, heads=2)
    return found + [Probe(tuple(np.repeat(x, 2, 0) for x in probe.arrays), probe.options) for probe in several]


def _layout(form: Form) -> str:
    pack, _, axis = form.pack.partition(" ")
    axes = list(form.layout.replace("(ND)", "*"))
    axes = ["N D" if x == "*" else x for x in axes]
    if pack:
        axes.insert(int(axis), {"qkv": "3", "kv": "2"}[pack])
    gives = f" and gives ({', '.join(form.returned.replace('(ND)', '*')).replace('*', 'N D')})" if form.returned else ""
    return f"takes {pack + ' ' if pack else ''}({', '.join(axes)}){gives}"


def _shape(form: Form) -> str:
    sizes = {"B": 2, "N": 4, "T": 3, "D": 6, "*": 24}
    return f"({', '.join(str(sizes[x]) for x in form.outcome.replace('(ND)', '*'))})"
