"""Attention in NumPy by every convention that is known: what a function is held against, to say which are its own.

A convention is a name and a line of Python. The reference here evaluates the line, and an adapter prints it: the two
cannot differ. In the lines ``i`` are queries (a column), ``j`` keys (a row), and sizes have their letters.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..cases.case import Inputs
from ..conventions.formula import Steps, top
from ..conventions.table import IGNORED, TABLE
from ..conventions.values import LAW
from . import options
from .options import AXIS, BEGINS, HEAD_NAMES, MASKING, NO_LIMIT, ONE_QUERY, VARLEN
from .remote import Function
from .weights import MOST_HEADS, ONE_HOT, WEIGHTS, one_hot, packed, role_of

# Lines for a side {x} of a window; the keys tell whether a negative number, and whether None, means no limit.
SIDE_LINES = {
    (True, False): "({x} if {x} >= 0 else float('inf'))", (False, True): "(float('inf') if {x} is None else {x})",
    (True, True): "(float('inf') if {x} is None or {x} < 0 else {x})", (False, False): "{x}",
}  # fmt: skip
LSE = {"base e": "{x}", "base 2": "{x} / 0.6931471805599453", "without the maximum": "{x} - largest"}
SOFTMAX = ("float32", "bfloat16 scores", "bfloat16 weights")
PACKED = (  # the axis on which arrays are stacked and the layout of each; axes on which they are joined before it
    *itertools.product((2, 3, 1, 0), ("BTND", "BNTD", "TBND")), ("D", "BTND"), ("D", "BNTD"),
    *itertools.product("ND", ("BT(ND)", "TB(ND)", "B(ND)T", "T(ND)")), (1, "TND"), (1, VARLEN),
)  # fmt: skip
PREFIX = "given_"  # before the name of a keyword that is given to both as it is
ROLES = {"q": "query", "k": "key", "v": "value"}
UNKNOWN = ""  # of dropout, of bfloat16 arrays, and of the log-sum-exp of no key
AS_THEY_ARE = "takes them as they are"
OTHER_ROWS = "gives NaN in rows far below others: it subtracts the largest score of other rows"
# Values of the axis; a function may clip scores to any bounds.
LARGE_VALUES = (AS_THEY_ARE, "gives NaN: it does not subtract a row's largest score", OTHER_ROWS)
UNCLIPPED = -math.inf, math.inf  # bounds of a function that clips nothing
HIGHEST_SCORE, LOWEST_SCORE = 88.7, -103.9  # scores beyond which the exponential is inf or 0 in float32
CLIPS = re.compile(r"clips them to \[(.*), (.*)\]")
BY_LAW: dict[str, str] = {axis: LAW.value(axis) for axis in TABLE} | {
    "always": "", "reach": "w keys beside its own", "side": "on both sides", "masking": next(iter(MASKING)),
    "empty_lse": "-inf", "softmax": "float32", "out": "of the query", "dropout": UNKNOWN, "large": AS_THEY_ARE,
    "negative": NO_LIMIT, "none": NO_LIMIT,
}  # fmt: skip


def clips(low: float, high: float) -> str:
    """The value of a function that clips scores."""
    return f"clips them to [{low:.4g}, {high:.4g}]"


def bounds(value: str) -> tuple[float, float]:
    """The bounds of a value; infinite if it clips nothing."""
    found = CLIPS.fullmatch(value)
    return (float(found[1]), float(found[2])) if found else UNCLIPPED


class Scores(Steps):
    """The steps of a call by the value of the axis."""

    def __init__(self, *given: Any, large: str) -> None:
        self.large = large
        super().__init__(*given)

    def scaled(self, s: np.ndarray) -> np.ndarray:
        """The products times the scale, clipped."""
        return super().scaled(s).clip(*bounds(self.large))

    def spoiled(self) -> np.ndarray:
        """The rows (..., T, 1) that are NaN."""
        if self.large not in LARGE_VALUES[1:]:
            return np.zeros((), bool)
        largest = top(self.scores())
        if self.large == OTHER_ROWS:
            return largest - largest.max() < LOWEST_SCORE
        return (largest > HIGHEST_SCORE) | ((largest < LOWEST_SCORE) & (largest > -np.inf))


def text_of(axis: str, value: str) -> str:
    """The line of Python of a value."""
    return LAW.but(**{axis: value}).line(axis).text


def heads_of(value: str) -> tuple[str, str]:
    """The lines for which head of keys a query head reads, and which of values."""
    of_keys, of_values = (text_of("heads", value).split(", ") * 2)[:2]
    return of_keys, of_values


class Option(NamedTuple):
    """A keyword: its name there, and the kind of its value, of those that ``options`` has."""

    name: str
    form: str = ""


@dataclasses.dataclass(frozen=True)
class Form:
    """The way a function is called, and the conventions by which it computes."""

    path: str = ""  # "module:function"
    arrays: str = "numpy"  # of which framework
    # of the arrays: the axes, which comes when, and on which axis some are stacked ("qkv 2") or joined ("qkv N")
    layout: str = "BNTD"
    order: str = "query, key, value"
    pack: str = ""
    of_keys: tuple[str, ...] = ()  # the layouts of keys and of values, where they are others
    returned: str = ""  # the axes of the result, where they are not those of the arrays
    container: str = ""  # Python for the arrays of a result ``found`` that is another object
    first: bool = False  # whether its result is the first of several arrays, of which no other is known
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)  # by the name in attendax
    # of each convention the one that it has, by the names of ``BY_LAW``
    how: Mapping[str, str] = dataclasses.field(default_factory=lambda: BY_LAW)
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # keywords that it is always given
    grouped: bool = False  # whether it takes fewer heads of keys
    heads: str = ""  # the name of its keyword for the number of heads
    meant: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of other required arguments: Python
    by_name: tuple[str, ...] = ()  # of its arrays, where another argument comes before one of them
    by_position: str = ""  # Python that lets a function be called by name which is not
    word: str = ""  # the convention of causal of a mask that may be the word "causal"
    # of its keywords, where they are numbers, text or None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def but(self, **how: str) -> "Form":
        """The form with other conventions."""
        return dataclasses.replace(self, how={**self.how, **how})

    @property
    def outcome(self) -> str:
        """The axes of the result."""
        return self.returned or self.layout

    @property
    def has_one_key_head(self) -> bool:
        """Tell whether keys and values have no axis of heads, and queries have."""
        return bool(self.of_keys) and "N" not in self.of_keys[0] and "N" in self.layout

    def plain(self) -> "Form":
        """The way it is called, whatever it computes."""
        return dataclasses.replace(self, how=BY_LAW)

    def heard(self) -> "Form":
        """The form without the options that it ignores."""
        return self.keeping(x for x in self.options if self.how.get(AXIS.get(x, x)) != IGNORED)

    def offering(self, name: str, option: Option) -> "Form":
        """The form with another option."""
        options = {k: x for k, x in self.options.items() if k != name} | {name: option}
        return dataclasses.replace(self, options=options)

    def keeping(self, names: Iterable[str]) -> "Form":
        """The form with those of its options; of a result that always has a log-sum-exp the first may be left."""
        kept = set(names)
        options = {k: x for k, x in self.options.items() if k in kept}
        always = "return_lse" in self.options.keys() - options.keys() and not self.options["return_lse"].name
        return dataclasses.replace(self, options=options, first=self.first or always)


def order_of(names: Iterable[str]) -> str:
    """The order of query, key and value by the first letters of their names; empty where these do not tell."""
    roles = [ROLES.get(role_of(name)[0] or re.sub("^x_?(?=[qkv])", "", name.lower())[:1], "") for name in names]
    return ", ".join(roles) if sorted(roles) == sorted(ROLES.values()) else ""


def layouts(fn: Function, sizes: tuple[int, ...]) -> Iterator[Form]:
    """Each way in which the arrays may be given, of those sizes: first those with batches and heads."""
    count = sum(name not in HEAD_NAMES for name in fn.required)
    heads = next((name for name in fn.names if name in HEAD_NAMES), "")
    told = bool(heads) or options.MODULE_STUB in fn.meant.values()
    form = Form(path=fn.path, heads=heads, defaults=fn.defaults, meant=fn.meant, by_name=fn.by_name)
    form = dataclasses.replace(form, by_position=fn.by_position)
    if {*ONE_HOT} & {*fn.meant.values()}:
        yield from _of_weights(form, sizes)
        return
    if any(x.startswith(options.CACHED) for x in fn.meant.values()):
        yield from _cached(form)
        return
    square, begins = sizes[2::2] == sizes[3::2], {*BEGINS} & {*fn.meant}
    packs = ["qkv"] * (count == 1 and square) + ["kv"] * (count == 2 and sizes[4] == sizes[5])
    orders = sorted(itertools.permutations(("query", "key", "value")), key=lambda x: x[0] != "query")
    plain = [
        dataclasses.replace(form, layout=layout, pack=f"{pack} {axis}", order=", ".join(order))
        for order, pack, (axis, layout) in itertools.product(orders, packs, PACKED)
        if (told or "(ND)" not in layout) and (pack == "qkv" or order[0] == "query")
        if (layout == VARLEN) == bool(begins)
    ] + [
        dataclasses.replace(form, layout=layout, order=", ".join(order))
        for order, layout in itertools.product(orders if count >= 3 else (), options.LAYOUTS)
        if (told or "(ND)" not in layout) and (layout == VARLEN) == bool(begins)
        if layout != options.FLAT or "B" in fn.meant.values()
        if square or len(begins) != 1  # of queries and of keys
    ]
    ways = [(orders[0], pack) for pack in options.SHARED if "kv" in packs]  # keys that are the values
    of_shared = itertools.product(("BNTD", "BTND", "TBND", "BTD", "TD"), ways)
    shared = [dataclasses.replace(form, layout=layout, pack=pack) for layout, (_, pack) in of_shared]
    pairs = itertools.product(plain, options.MOVED)
    moved = [dataclasses.replace(x, returned=returned) for x, (taken, returned) in pairs if x.layout == taken]
    yield from sorted(plain + moved + shared, key=lambda x: not set("BN") <= set(x.layout))  # some take any rank
    for layout, (order, pack) in itertools.product(ONE_QUERY, [(x, "") for x in orders if count >= 3] or ways):
        for keys, returned in itertools.product(ONE_QUERY[layout], ("", *dict(options.MOVED).get(layout, "").split())):
            one = dataclasses.replace(form, layout=layout, of_keys=(keys, keys), returned=returned, pack=pack)
            yield dataclasses.replace(one, order=", ".join(order))
    for x, (taken, *of_keys) in itertools.product(plain + moved, options.KEY_LAYOUTS):
        if x.layout == taken and not x.pack:
            yield dataclasses.replace(x, of_keys=tuple(of_keys), grouped="BSD" in of_keys)
    for layout, (keys, results) in options.IN_GROUPS.items() if count >= 3 else ():
        for returned in results:
            yield dataclasses.replace(form, layout=layout, of_keys=(keys, keys), returned=returned, grouped=True)


def _cached(form: Form) -> Iterator[Form]:
    """Each way in which a function may take the last keys and values beside arrays with room for more of them."""
    earlier = "xp.concatenate([{0} * (xp.arange(S) < S - T)[:, None], xp.ones_like({0}[:, :, :1])], 2)"
    for layout, results in options.CACHED_LAYOUTS.items():
        for keys, returned in itertools.product(options.ONE_QUERY.get(layout, (layout,)), results):
            into = {f"{options.CACHED} {x}": options.INTO[keys].format(x=earlier.format(x)) for x in ("key", "value")}
            meant = {k: into.get(x, x) for k, x in form.meant.items()}
            yield dataclasses.replace(form, layout=layout, returned=returned, pack=options.CACHED, meant=meant)


def _of_weights(form: Form, sizes: tuple[int, ...]) -> Iterator[Form]:
    """Each way in which a function may take x and the weights by which queries, keys and values are made of it."""
    if sizes[2] != sizes[3] and ONE_HOT[1] not in form.meant.values():
        return
    every = ((layout, returned) for layout, (gives, _) in WEIGHTS.items() for returned in gives.split())
    pack = packed(form.by_name)
    for layout, returned in every:
        if ("M" in layout or pack) and sizes[4] != sizes[5]:
            continue
        own = dict(zip(ONE_HOT, (one_hot(layout, returned, x) for x in "TS"), strict=True))
        wide = f"{MOST_HEADS} * " if "M" in layout else "N * "  # of the weight of the result
        meant = {k: own.get(x, x.replace("N * ", wide)) for k, x in form.meant.items()}
        order = Form.order if pack else order_of(form.by_name)
        yield dataclasses.replace(form, layout=layout, pack=pack, returned=returned, order=order, meant=meant)


def has_more_heads(form: Form, shape: tuple[int, ...]) -> bool:
    """Tell whether square weights have more heads than arrays (B, N, T, D): mixed heads then give something else."""
    B, N, T, D = shape
    return "M" in form.layout and B * T > N * D


def sides(how: Mapping[str, str], name: str = "w", *, pair: bool = False) -> tuple[str, str]:
    """The lines for how far a window reaches to the left and to the right, that is a number or two."""
    if pair:
        line = SIDE_LINES[how["negative"] == NO_LIMIT, how["none"] == NO_LIMIT]
        return line.format(x=f"{name}[0]"), line.format(x=f"{name}[1]")
    reach = re.sub(r"\bw\b", name, options.REACH[how["reach"]])
    return reach, options.SIDES[how["side"]].format(r=reach)


def window_rule(how: Mapping[str, str], name: str = "w", *, pair: bool = False) -> str:
    """The line of Python for which keys a window has."""
    left, right = (f"({x})" if " " in x and x[0] != "(" else x for x in sides(how, name, pair=pair))
    line = text_of("window", how["window"])
    return re.sub(r"\bright\b", right, re.sub(r"\bleft\b", left, line)).replace(" + 0)", ")")


def attention(
    inputs: tuple[np.ndarray, ...], how: Mapping[str, str], *, bias: Any = None, window: Any = None, **options: Any
) -> tuple[np.ndarray, ...]:
    """Arrays (B, N, T, D), (B, G, S, D), (B, G, S, V), by the conventions ``how``: out and, if asked, lse."""
    arrays = dict(zip(("query", "key", "value", "bias"), (*inputs, bias), strict=False))
    if window is not None:
        options["window"] = tuple(eval(x, {"w": window}) for x in sides(how, pair=isinstance(window, tuple)))
    if (segments := options.pop("segments", None)) is not None:
        options |= dict(zip(("query_segment_ids", "key_segment_ids"), segments, strict=True))
    if options.get("offset") is not None:
        options["offset"] = np.atleast_1d(options["offset"])
    options["is_causal"] = options.get("is_causal") or bool(how["always"])
    conventions = LAW.but(**{axis: how[axis] for axis in TABLE} | MASKING[how["masking"]])
    conventions = conventions.but(causal=how["always"] or how["causal"])
    with np.errstate(all="ignore"):
        given = Inputs({name: x for name, x in arrays.items() if x is not None}, options, {})
        steps = Scores(given, conventions, large=how["large"])
        if how["softmax"] not in SOFTMAX[1:]:
            out, *logs = steps.out().values()
            out = np.where(steps.spoiled(), np.nan, out)
            return out, *(np.where(np.isneginf(x), float(how["empty_lse"] or "nan"), x) for x in logs)
        scores = steps.scores()
        narrow = how["softmax"] == SOFTMAX[2]
        weights = bfloat16(steps.weights(scores)) if narrow else steps.weights(bfloat16(scores).astype(np.float64))
        return (weights.astype(np.float64) @ steps.v,)


def bfloat16(x: np.ndarray) -> np.ndarray:
    """An array in bfloat16."""
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16)
