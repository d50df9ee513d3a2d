"""The conventions by which two functions differ, in words; and all that both take, given to both as it is.

No two functions are called equal that an option of both sets apart.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..conventions.table import IGNORED, TABLE
from ..worker.errors import Failed
from . import examples, extremes, options
from .asking import TOLERANCE, Candidate, Probe, arrays, distance, narrowed
from .examples import Record, asking, small
from .forms import BY_LAW, PREFIX, UNKNOWN, Form, Option, heads_of, text_of, window_rule
from .keywords import steps
from .options import AXIS, MASKED, NO_LIMIT, OPTIONS, RULES, WIDE, axes_of, beside, drawn, kind_of
from .options import RESULT_LAYOUTS as RESULTS


class Convention(NamedTuple):
    """One of the numbers themselves."""

    words: str  # of what it is
    said: str  # of a function, with its value and the line of that
    axes: tuple[str, ...] = ()  # of a form; its name alone unless given


def _as_read(ours: str) -> Convention:
    axis, it = AXIS[ours], "they are" if ours.endswith("s") else "it is"
    return Convention(f"{axis.replace('_', ' ')}, as {it} read", "has {0}: {line}", (axis,))


READ_AS = "scale", "softcap", "bias", "mask", "key_lengths", "segments", "offset"
OF_TABLE = {  # axes whose values are told by the words of the table, and what is done by the law
    "joins": ("several rules", "joins them by and"), "pairs": ("keys", "takes all that the rules allow"),
    "fill": ("scores of what is masked", "sets them to minus infinity"), "weights": ("weights", "takes the softmax"),
    "norm": ("queries and keys", "takes them as they are"), "rotary": ("rotary positions", "has none by itself"),
    "split": ("the split into heads", "keeps them apart"),
    "join": ("the heads of the result", "keeps them apart"),
    "width": ("numbers of a head", "takes all of them"),
    "cap": ("scores", "caps them if it is asked for alone"), "alibi": ("ALiBi", "adds none by itself"),
}  # fmt: skip
SOLVED = {
    "scale": Convention("scale if none is given", "multiplies by {0}"),
    "negative": Convention("a side of a window that is negative", "{0}"),
    "always": Convention("causal whatever is asked", "{0}"),
    "causal": Convention("causal", "is {0}: {line}"),
    "window": Convention("window", "sees {0}: {line}", tuple(OPTIONS["window"].axes)),
    **{f"{AXIS[x]} read": _as_read(x) for x in READ_AS},
    "order": Convention("order of the steps to scores", ""),
    "masking": Convention("what a mask does", "{0}"),
    "large": Convention("large scores", "{0}"),
    "heads": Convention("grouped heads", "{0}"),
    **{axis: Convention(words, "{0}") for axis, (words, _) in OF_TABLE.items()},
    "empty": Convention("a query without any key", "gives {0}"),
    "lse": Convention("log-sum-exp", "is of {0}"),
    "empty_lse": Convention("log-sum-exp of a query without any key", "is {0}"),
    "dropout": Convention("dropout", "{0}"),
    "softmax": Convention("softmax of bfloat16 arrays", "has {0}"),
    "out": Convention("dtype of the result for bfloat16 arrays", "has {0}"),
}
UNSEEN_AXES = "dropout", "softmax", "out"  # the others are told if seen
# The axes of each.
SOLVED_AXES = {name: x.axes or (name,) for name, x in SOLVED.items() if name not in UNSEEN_AXES}
WORDS = {name: x.words for name, x in SOLVED.items()} | {
    "default": "where is_causal is not given", "scale given": "scale as given", "arguments": "order of the arguments",
}  # fmt: skip
OPTION_KINDS = (  # options that two functions may be given in two ways, in words
    ("mask", "mask", lambda x: f"takes {x.name} ({', '.join(x.form.split('/')[0])}), {x.form.split('/')[1]}"),
    ("scale given", "scale", lambda x: f"takes {x.form}"),
    ("lse", "return_lse", lambda x: f"gives ({', '.join(x.form)})"),
    ("window", "window", lambda x: f"takes {x.form}"),
    ("offset", "offset", lambda x: f"takes {x.form}"),
)
GUESSES = {  # of what a mask may be that neither is known to take
    "mask": ("BNTS/True attends", "BNTS/1 attends", "BNTS/added, -inf drops", "TS/True attends", "BS/True attends",
             "BS/1 attends", "BTS/True attends"),
}  # fmt: skip
OF_NARROW = (1, 1, 1, 2, 1, 1), (1, 1, 1, 2, 4, 1), (1, 1, 2, 3, 8, 1), (1, 2, 3, 5, 8, 6)  # sizes of bfloat16 arrays
EVIDENCE = {"dropout": "values that are all 1, 64 keys, rate 0.25: so says the mean of the results"}


class Difference(NamedTuple):
    """One convention by which the two differ, in words; ``shown`` is the smallest input that shows it."""

    name: str
    a: str
    b: str
    shown: str = ""

    def __str__(self) -> str:
        return f"{WORDS.get(self.name, self.name)}: A {self.a}; B {self.b}"


def differences(a: Candidate, b: Candidate) -> Iterator[Difference]:
    """Yield each, with the smallest input that shows it, if there is one."""
    one, other = a.form, b.form
    both = set(one.options) & set(other.options)
    for name in (x for x in SOLVED if _differ(x, one, other)):
        if axes := SOLVED_AXES.get(name):
            larger = (x for x in examples.cases(one.keeping(both), a.sizes) if not x.narrow)
            shown = examples.shown(a, b, axes, itertools.chain(_small(one, other), larger))
        else:
            drawn_of = (narrowed(sizes, seed, times=8) for seed, sizes in enumerate(OF_NARROW))
            narrow = (x for x in drawn_of if examples.alike_in_float32(a, b, x))
            shown = EVIDENCE.get(name) or examples.smallest(a, b, narrow)
        yield Difference(name, _said(name, one, other), _said(name, other, one), shown)
    for name, key, words in OPTION_KINDS:
        heard = key in both and IGNORED not in (one.how[AXIS[key]], other.how[AXIS[key]])
        if heard and one.options[key].form != other.options[key].form:
            as_it_is = other.offering(key, other.options[key]._replace(form=one.options[key].form))
            shown = examples.called(a, b, as_it_is, asking(key))
            yield Difference(name, words(one.options[key]), words(other.options[key]), shown)
    if "window" in both and WIDE["window"] == one.options["window"].form == other.options["window"].form:
        asked = options.HALF_OPEN if one.how["none"] and not other.how["none"] else ()
        if shown := examples.smallest(a, b, (x for sides in asked for x in small({"window": sides}))):
            yield Difference("a side of a window that is None", NO_LIMIT, "is not taken", shown)
    defaults = [x.defaults.get(x.options["is_causal"].name) is True for x in (one, other) if "is_causal" in both]
    if len(set(defaults)) == 2:
        yield Difference("default", *("is causal" if x else "is not causal" for x in defaults))
    for name, words, fields in (
        ("layout", _layout, ("layout", "pack", "returned")), ("arguments", lambda x: f"takes {x.order}", ("order",)),
    ):  # fmt: skip
        if any(getattr(one, x) != getattr(other, x) for x in fields):
            as_it_is = dataclasses.replace(other, **{x: getattr(one, x) for x in fields})
            elsewhere = name == "layout" and one.outcome != other.outcome
            shape = f"B=2, N=4, T=3, V=6: A gives {_shape(one)}, B {_shape(other)}" * elsewhere
            shown = examples.called(a, b, as_it_is, small({}, heads=2))
            yield Difference(name, words(one), words(other), shown or shape)
    named = [k for k in one.options if k in both and _names(k, one) != _names(k, other)]
    if named:
        yield Difference("names", *(_has(named, x) for x in (one, other)))


def _names(key: str, form: Form) -> str:
    """The keyword of an option, or the two of segments."""
    return " and ".join(form.options[key]) if key == "segments" else form.options[key].name


def _has(keys: list[str], form: Form) -> str:
    return f"has {', '.join(_names(k, form) or 'none (always on)' for k in keys)}"


def _differ(name: str, one: Form, other: Form) -> bool:
    """Tell whether two functions differ in one of the numbers; where they lack what it is of, no input shows it."""
    if name == "order":
        return steps(one, other) != steps(other, one)
    known = name not in (*UNSEEN_AXES, "empty_lse", "negative") or UNKNOWN not in (one.how[name], other.how[name])
    return known and any(one.how[x] != other.how[x] for x in SOLVED[name].axes or (name,))


def _said(name: str, form: Form, beside: Form) -> str:
    axis = (SOLVED[name].axes or (name,))[0]
    value = form.how[axis] if name != "order" else steps(form, beside)
    if value == IGNORED:
        return "ignores it"
    if axis in OF_TABLE:
        alike = TABLE[axis][value].words == TABLE[axis][beside.how[axis]].words
        words = f"does not: {TABLE[axis][value].words}" if value != BY_LAW[axis] else OF_TABLE[axis][1]
        return words + f" ({value})" * alike
    line = text_of(axis, value) if axis in TABLE and name != "order" else ""
    if name == "window":
        value = "" if value == BY_LAW["window"] else re.sub(r"^end\b", "aligned to the end", value)
        pair = "window" in form.options and form.options["window"].form == WIDE["window"]
        reach = ("the keys between two sides",) if pair else (form.how["reach"], form.how["side"])
        value, line = ", ".join(filter(None, (*reach, value))), line if pair else window_rule(form.how)
    if name == "heads":
        said = {
            "repeat": "repeats each head of keys",
            "tile": "takes the heads of keys in turn",
            "first": "reads the first head of keys alone",
        }
        of_keys, of_values = heads_of(value)
        each = f"of keys, and {of_values} of values" if of_keys != of_values else "of keys and of values"
        value = said.get(value) or f"reads head {of_keys} {each}"
    text = SOLVED[name].said if "base" in value or name != "lse" else "{0}"
    return text.format(value or "no", line=line) or value


def _small(one: Form, other: Form) -> Iterator[Probe]:
    """Small inputs for both: plain ones, with each option, without any key, with several options, batches and heads."""
    both = [x for x in OPTIONS if x in one.options and x in other.options]
    yield from itertools.chain(small({}), small({}, heads=2))
    for key in both:
        yield from examples.with_each_value(key, one.keeping(both))
    for key in (x for x in both if x in MASKED and "return_lse" in both):
        yield from small({key: OPTIONS[key].values[-1], "return_lse": True}, tall=key in RULES)
    rules = {x: OPTIONS[x].values[0] for x in RULES if x in both}
    yield from small(rules, tall=True)
    some = [x for x in ("mask", "scale", "softcap", "bias") if x in both]
    yield from asking(*some, **({} if "mask" in both else rules))
    for key in (x for x in ("bias", "mask", "key_lengths", "offset") if x in both):

        def each(t: int, s: int, key: str = key) -> Any:
            x = drawn(key, WIDE.get(key, "BNTS"), (2, 2, t, s), t, each_head=True)
            return np.round(2 * x) if key == "bias" else x

        for probe in small({key: each, **beside(key, dict.fromkeys(both))}, heads=2):
            yield Probe(tuple(np.repeat(x, 2, 0) for x in probe.arrays), probe.options)
    if one.grouped and other.grouped:
        yield from small({}, heads=4, groups=2)
    yield from extremes.small(itertools.chain(small({}), small({}, heads=2)))


def _layout(form: Form) -> str:
    pack = form.pack.partition(" ")[0]
    gives = f" and gives {axes_of(form.returned)}" if form.returned else ""
    return f"takes {pack}{' ' * bool(pack)}{axes_of(form.layout, form.pack)}{gives}"


def _shape(form: Form) -> tuple[int, ...]:
    found = eval(RESULTS[form.outcome].format(x="x"), {"xp": np, "x": np.empty((2, 4, 3, 6)), "B": 2})
    return tuple(found.shape)


class Apart(NamedTuple):
    """A difference that options of both show and no formula explains."""

    shown: str  # the smallest input on which the two differ, if any
    names: frozenset[str] = frozenset()  # the keywords that A was given and has answered
    refused: tuple[str, ...] = ()  # words for the calls that one of the two refuses


def set_apart(a: Candidate, b: Candidate, mine: Form, theirs: Form, sizes: tuple[int, ...]) -> Apart:
    """Give all that both take, and that ``mine`` and ``theirs``, held to make them equal, do not say."""
    names, refused = set[str](), list[str]()
    for shared, x, y in _shared(a, b, mine, theirs):
        # as it is known of one of them, or as it may be
        both = (a.form, x), (b.form, y)
        known = [(form, k) for form, name in both for k, option in form.options.items() if option.name == name]
        form, key = known[0] if known else (mine, shared or PREFIX + x)
        row = OPTIONS.get(key)
        kinds = [form.options[key].form] if known else GUESSES.get(key, row.kinds if row else ("",))
        how = {axis: form.how[axis] for axis in ("empty", *(row.axes if row else ()))}
        for kind in kinds:
            named = (mine, x, a), (theirs, y, b)
            options = ((held, Option(name, kind_of(key, kind, by.fn.names))) for held, name, by in named)
            one, other = (_alone(held, key, option, how) for held, option in options)
            asked = [probe for probe in examples.cases(one, sizes, alone=True) if key in probe.options]
            if key.startswith(PREFIX) and not examples.answered(a.by(one), asked, key):
                asked = list(examples.with_arrays(key))
            if "return_lse" in one.options.keys() & other.options.keys():
                asked += [x._replace(options={**x.options, "return_lse": True}) for x in asked]
            names |= {x, y} if examples.answered(a.by(one), asked, key) else set()
            record = Record([], [], crashes=False)
            found = examples.smallest(a.by(one), b.by(other).around(one), asked, record)
            if not found and not record.compared:  # B refuses all that A takes
                found = examples.smallest(a.by(one), b.by(other).around(one), asked)
            if found:
                return Apart(found, frozenset(names))
            refused += record.told(one)
    return Apart(_fewer_heads(a, b, mine, theirs), frozenset(names), tuple(dict.fromkeys(refused)))


def _shared(a: Candidate, b: Candidate, mine: Form, theirs: Form) -> Iterator[tuple[str, str, str]]:
    """Keywords that both have, and that are not compared by a formula: what they may be, and the two names."""
    left = []
    for one, form in ((a, mine), (b, theirs)):
        done = {x for k in mine.options if k in form.options for x in form.options[k]}
        known = {*one.fn.required, *options.OF_NO_OPTION, *options.GROUPED_NAMES, *options.DROPOUT_NAMES, *done}
        left.append([x for x in one.fn.names if x not in known])
    taken: set[str] = set()
    for x in left[0]:
        kinds = [key for key, row in OPTIONS.items() if x in row.names]
        alike = [y for y in left[1] if y not in taken and (y == x or any(y in OPTIONS[key].names for key in kinds))]
        for y in sorted(alike, key=lambda y: y != x)[:1]:
            taken.add(y)
            yield kinds[0] if kinds else "", x, y


def _alone(form: Form, key: str, option: Option, how: dict[str, str]) -> Form:
    """Options with that keyword, and beside an offset the rules that it moves."""
    form = dataclasses.replace(form.but(**how), given={k: x for k, x in form.given.items() if k != option.name})
    return form.keeping(("return_lse", *(RULES if key == "offset" else ()))).offering(key, option)


def _fewer_heads(a: Candidate, b: Candidate, mine: Form, theirs: Form) -> str:
    """Fewer heads of keys, where both take them, and no formula says how one of the two reads them."""
    plain = not any(x.pack or "N" not in x.layout for x in (mine, theirs))
    if not plain or mine.grouped is theirs.grouped is True:
        return ""
    how = next((x.how["heads"] for x in (mine, theirs) if x.grouped), "repeat")
    form, otherwise = (dataclasses.replace(x, options={}, grouped=True).but(heads=how) for x in (mine, theirs))
    one, other = a.by(form), b.by(otherwise).around(form)
    probe = Probe(arrays((1, 4, 3, 5, 4, 4), groups=2), {})
    found = [x for x in (one.answer(probe), other.answer(probe)) if not isinstance(x, Failed)]
    if len(found) < 2 or distance(*found) <= TOLERANCE or any(x[0].shape != (1, 4, 3, 4) for x in found):
        return ""
    return examples.smallest(one, other, [*small({}, heads=4, groups=2), probe])
