"""By which conventions two functions differ, in words."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..conventions.table import IGNORED
from . import forms
from .asking import Probe
from .describing import Description
from .examples import VALUES, asking, narrow, no_key, small
from .forms import Form, heads_of, text_of, window_rule
from .keywords import steps

READ = {"given_scale": "scale", "softcap": "softcap", "bias": "bias", "mask": "mask"}  # axes, and their options
WORDS = {
    "scale": "scale where none is given",
    "always": "causal whatever is asked",
    "default": "where is_causal is not given",
    "causal": "causal",
    "window": "window",
    "mask": "mask",
    "order": "order of the steps to scores",
    "masking": "what a mask does",
    "heads": "grouped heads",
    "empty": "a query without any key",
    "lse": "log-sum-exp",
    "scale given": "scale as given",
    **{f"{axis} read": f"{axis.replace('_', ' ')}, as it is read" for axis in READ},
    "dropout": "dropout",
    "softmax": "softmax of bfloat16 arrays",
    "out": "dtype of the result for bfloat16 arrays",
    "layout": "layout",
    "arguments": "order of the arguments",
    "names": "names",
}


CAUSAL_OR_NOT = {True: "is causal", False: "is not causal"}
SAID = {"end": "aligned to the end"}
SHOWN = {"dropout": "values that are all 1, 64 keys, rate 0.5: so says the mean of the results"}


OF_NUMBERS = {  # told if seen; and of which conventions each is
    **{x: (x,) for x in ("scale", "always", "causal", "window", "order", "masking", "heads", "empty", "lse")},
    **{f"{axis} read": (axis,) for axis in READ},
}


class Difference(NamedTuple):
    """One convention by which the two differ, in words; ``shown`` is the smallest input that shows it."""

    name: str
    a: str
    b: str
    shown: str = ""

    def __str__(self) -> str:
        return f"{WORDS.get(self.name, self.name)}: A {self.a}; B {self.b}"


def differences(a: Description, b: Description) -> Iterator[tuple[Difference, Form, list[Probe]]]:
    """Each, with the form by which B is called just as A is in what differs, and probes that may show it."""
    one, other = a.form, b.form
    both = set(one.options) & set(other.options)
    for name, said, asked in _numbers(one, other, both):
        yield Difference(name, said(one), said(other), SHOWN.get(name, "")), other, asked
    for name, key in (("mask", "mask"), ("scale given", "scale"), ("lse", "return_lse"), ("window", "window")):
        if key in both and one.options[key].form != other.options[key].form:
            as_it_is = other.offering(key, other.options[key]._replace(form=one.options[key].form))
            yield Difference(name, *map(_form_of(key), (one, other))), as_it_is, asking(key)
    defaults = [x.defaults.get(x.options["is_causal"].name) is True for x in (one, other) if "is_causal" in both]
    if len(set(defaults)) == 2:
        yield Difference("default", *(CAUSAL_OR_NOT[x] for x in defaults)), other, []
    for name, words, fields in (("layout", _layout, ("layout", "pack", "returned")), ("arguments", _order, ("order",))):
        if any(getattr(one, x) != getattr(other, x) for x in fields):
            as_it_is = dataclasses.replace(other, **{x: getattr(one, x) for x in fields})
            elsewhere = name == "layout" and one.outcome != other.outcome
            shown = f"B=2, N=4, T=3, V=6: A gives {_shape(one)}, B {_shape(other)}" * elsewhere
            yield Difference(name, words(one), words(other), shown), as_it_is, list(small({}, heads=2))
    named = [k for k in one.options if k in both and one.options[k].name != other.options[k].name]
    if named:
        yield (
            Difference("names", *(", ".join(x.options[k].name or "(always)" for k in named) for x in (one, other))),
            other,
            [],
        )


def _numbers(one: Form, other: Form, both: set[str]) -> Iterator[tuple[str, Callable[[Form], str], list[Probe]]]:
    """Conventions of the numbers themselves."""
    rules = [x for x in VALUES if x in ("is_causal", "window") and x in both]

    def differ(*names: str) -> bool:
        return any(one.how[x] != other.how[x] for x in names)

    if differ("scale"):
        yield "scale", lambda x: f"multiplies by {x.how['scale']}", list(small({}))
    if differ("always"):
        yield "always", lambda x: x.how["always"] or "no", list(small({}))
    if "is_causal" in both and differ("causal"):
        yield "causal", _causal, asking("is_causal")
    if "window" in both and differ("window"):
        yield "window", lambda x: _window(x.how["window"]), asking("window")
    for axis, key in READ.items():
        if key in both and differ(axis):
            shown = _of_many(key) if key in ("mask", "bias") else asking(key)
            yield f"{axis} read", lambda x, axis=axis: _read(x, axis), shown  # type: ignore[misc]
    if steps(one, other) != steps(other, one):
        named = [x for x in VALUES if x in ("softcap", "bias", "scale", "mask") and x in both]
        named += [] if "mask" in both else rules[:1]
        yield (
            "order",
            lambda x: steps(x, other if x is one else one),
            list(small({x: VALUES[x] for x in named})),
        )
    if ("mask" in both or "is_causal" in both) and differ("masking"):
        yield "masking", lambda x: x.how["masking"], asking("mask" if "mask" in both else "is_causal")
    if one.grouped and other.grouped and differ("heads"):
        yield "heads", _heads, list(small({}, heads=4, groups=2))
    if ("mask" in both or rules) and differ("empty"):
        asked: dict[str, Any] = {"mask": no_key} if "mask" in both else {x: VALUES[x] for x in rules}
        yield "empty", lambda x: f"gives {x.how['empty']}", list(small(asked, tall=True))
    if "return_lse" in both and differ("lse"):
        yield "lse", lambda x: f"is of {x.how['lse']}" if "base" in x.how["lse"] else x.how["lse"], asking("return_lse")
    if differ("dropout") and one.how["dropout"] and other.how["dropout"]:
        yield "dropout", lambda x: x.how["dropout"], []
    for name in ("softmax", "out"):
        if differ(name) and not {forms.REFUSED, forms.UNCLEAR} & {one.how[name], other.how[name]}:
            yield name, lambda x, name=name: f"has {x.how[name]}", narrow()  # type: ignore[misc]


def _read(form: Form, axis: str) -> str:
    value = form.how[axis]
    if value == IGNORED:
        return "ignores it"
    return f"has {value}: {text_of(axis, value)}"


def _heads(form: Form) -> str:
    value = form.how["heads"]
    said = {"repeat": "repeats each head of keys", "tile": "takes the heads of keys in turn"}
    return said.get(value) or "reads head {} of keys, and {} of values".format(*heads_of(value))


def _causal(form: Form) -> str:
    value = form.how["causal"]
    return "ignores it" if value == IGNORED else f"is {value}: {text_of('causal', value)}"


def _of_many(key: str) -> list[Probe]:
    """Small inputs whose masks, or biases, are others for each batch and head."""

    def drawn(t: int, s: int) -> Any:
        rng = np.random.default_rng((t, s))
        shape = (2, 2, t, s)
        mask = rng.random(shape) < 0.5
        mask[..., 0] = True
        return mask if key == "mask" else rng.integers(-2, 3, shape).astype(np.float32)

    return [*asking(key), *(Probe(tuple(np.repeat(x, 2, 0) for x in probe.arrays), probe.options)
            for probe in small({key: drawn}, heads=2))]  # fmt: skip


def _window(window: str) -> str:
    reach, side, value = window.split("/")
    if value == IGNORED:
        return "ignores it"
    said = ", ".join(x for x in (reach, side, "" if value == forms.WINDOWS[0] else SAID.get(value, value)) if x)
    return f"sees {said}: {window_rule(window)}"


def _form_of(key: str) -> Callable[[Form], str]:
    """What to say of the form of an option."""

    def said(form: Form) -> str:
        found = form.options[key].form
        if key == "mask":
            rank, meaning = found.split("/")
            return f"{form.options[key].name} ({', '.join(rank)}), {meaning}"
        return {"return_lse": lambda x: f"gives ({', '.join(x)})"}.get(key, "takes {}".format)(found)

    return said


def _layout(form: Form) -> str:
    pack, _, axis = form.pack.partition(" ")
    axes = list(form.layout.replace("(ND)", "*"))
    axes = ["N D" if x == "*" else x for x in axes]
    if pack:
        axes.insert(int(axis), {"qkv": "3", "kv": "2"}[pack])
    gives = f" and gives ({', '.join(form.returned.replace('(ND)', '*')).replace('*', 'N D')})" if form.returned else ""
    return f"takes {pack + ' ' if pack else ''}({', '.join(axes)}){gives}"


def _shape(form: Form) -> str:
    """Of a result."""
    sizes = {"B": 2, "N": 4, "T": 3, "D": 6, "*": 24}
    return f"({', '.join(str(sizes[x]) for x in form.outcome.replace('(ND)', '*'))})"


def _order(form: Form) -> str:
    return f"takes {form.order}"
