"""Attention in NumPy by every convention that is known: what a function is held against, to say which are its own.

A convention is a name and a line of Python. The reference here evaluates the line, and an adapter prints it: the two
cannot differ. In the lines ``i`` are queries (a column), ``j`` keys (a row), and sizes have their letters.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..cases.case import Inputs
from ..conventions.form import LAW as BY_LAW
from ..conventions.formula import Steps
from ..conventions.table import IGNORED, TABLE

AXES = ("scale", "given_scale", "heads", "causal", "order", "softcap", "bias", "mask", "empty", "lse")  # of the table
HEADS, ORDERS, EMPTY = (tuple(TABLE[axis]) for axis in ("heads", "order", "empty"))
CAUSAL = tuple(x for x in TABLE["causal"] if x != IGNORED and not x.startswith("skips"))  # seen at few tokens
READ, BIASES = ("True attends", "first batch", "first head"), ("added", "subtracted", "first batch", "first head")
SOFTCAPS, GIVEN_SCALES = (tuple(x for x in TABLE[axis] if x != IGNORED) for axis in ("softcap", "given_scale"))
REACH = {"w keys, its own among them": "w - 1", "w keys beside its own": "w", "half of w keys beside its own": "w // 2"}
SIDES = {
    "before": "0",
    "on both sides": "{r}",
    "before, and all that comes after": "float('inf')",
}  # what is seen ahead
SIDE = "({w}[{k}] if {w}[{k}] >= 0 else float('inf'))"  # of a window that is two numbers; -1 is no limit
WINDOWS = tuple(x for x in TABLE["window"] if x not in (IGNORED, "before"))
MASKING = ("minus infinity", "weights set to 0 after the softmax", "scores set to 0")
OF_MASKING: dict[str, dict[str, str]] = dict(
    zip(MASKING, ({}, {"weights": "masked after"}, {"fill": "0"}), strict=True)
)
LSE = {"base e": "{x}", "base 2": "{x} / 0.6931471805599453", "without the maximum": "{x} - largest"}
SOFTMAX = ("float32", "bfloat16 scores", "bfloat16 weights")
GIVEN = "given_"  # before the name of a keyword that is given to both as it is
REFUSED, UNCLEAR = "refused", "unclear"  # of bfloat16 arrays
LAW: dict[str, str] = {axis: BY_LAW.value(axis) for axis in AXES} | {
    "always": "", "window": "w keys beside its own/on both sides/its own key between", "masking": MASKING[0],
    "softmax": "float32", "out": "of the query", "dropout": "",
}  # fmt: skip


def text_of(axis: str, value: str) -> str:
    """The line of Python of a value."""
    return BY_LAW.but(**{axis: value}).line(axis).text


def heads_of(value: str) -> tuple[str, str]:
    """The lines for which head of keys a query head reads, and which of values."""
    text = text_of("heads", value)
    of_keys, _, of_values = text.partition(", ") if ", of " in value else (text, "", text)
    return of_keys, of_values


class Option(NamedTuple):
    """A keyword: its name there, and the form of its value, of those that ``writing`` has."""

    name: str
    form: str = ""


@dataclasses.dataclass(frozen=True)
class Form:
    """How a function is called, and by which conventions it computes.

    Attributes:
        path: "module:function".
        arrays: of which framework.
        layout, order, pack: of the arrays: the axes, which comes when, and on which axis some are stacked ("qkv 2").
        returned: the axes of the result, where they are not those of the arrays.
        first: whether its result is the first of several arrays, of which no other is known.
        options: by the name in attendax.
        how: of each convention the one that it has, by the names of ``LAW``.
        given: keywords that it is always given.
        grouped: whether it takes fewer heads of keys.
        heads: the name of its keyword for the number of heads.
        defaults: of its keywords, where they are numbers, text or None.
    """

    path: str = ""
    arrays: str = "numpy"
    layout: str = "BNTD"
    order: str = "query, key, value"
    pack: str = ""
    returned: str = ""
    first: bool = False
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)
    how: Mapping[str, str] = dataclasses.field(default_factory=lambda: LAW)
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grouped: bool = False
    heads: str = ""
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def but(self, **how: str) -> "Form":
        """The same with other conventions."""
        return dataclasses.replace(self, how={**self.how, **how})

    @property
    def outcome(self) -> str:
        """The axes of the result."""
        return self.returned or self.layout

    def heard(self) -> "Form":
        """The same without the options that it ignores."""
        axes = {"is_causal": "causal", "scale": "given_scale"}
        deaf = [x for x in self.options if self.how.get(axes.get(x, x), "").split("/")[-1] == IGNORED]
        return dataclasses.replace(self, options={k: x for k, x in self.options.items() if k not in deaf})

    def offered(self) -> set[str]:
        """Which of the steps to scores it can be asked for beside the scale."""
        masks = {"mask", "is_causal", "window"} & set(self.options)
        return ({"softcap", "bias"} & set(self.options)) | ({"mask"} if masks else set())

    def offering(self, name: str, option: Option | None) -> "Form":
        """The same with another option, or without it."""
        options = {k: x for k, x in self.options.items() if k != name} | ({name: option} if option else {})
        return dataclasses.replace(self, options=options)


def window_rule(window: str, name: str = "w", *, pair: bool = False) -> str:
    """The line of Python for which keys a window has, that is a number or two: to the left and to the right."""
    reach, side, value = window.split("/")
    given = re.sub(r"\bw\b", name, REACH[reach])
    left, right = (SIDE.format(w=name, k=k) for k in (0, 1)) if pair else (given, SIDES[side].format(r=given))
    line = text_of("window", value)
    return re.sub(r"\bright\b", _bracketed(right), re.sub(r"\bleft\b", _bracketed(left), line)).replace(" + 0)", ")")


def _bracketed(text: str) -> str:
    return f"({text})" if " " in text and text[0] != "(" else text


def attention(
    inputs: tuple[np.ndarray, ...],
    how: Mapping[str, str],
    *,
    mask: Any = None,
    bias: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | tuple[int, int] | None = None,
    return_lse: bool = False,
) -> tuple[np.ndarray, ...]:
    """Arrays (B, N, T, D), (B, G, S, D), (B, G, S, V), by the conventions ``how``: out and, if asked, lse."""
    arrays = dict(zip(("query", "key", "value", "bias"), (*inputs, bias), strict=False))
    T, S = inputs[0].shape[2], inputs[1].shape[2]
    if window is not None:
        rule = window_rule(how["window"], pair=isinstance(window, tuple))
        known = {"i": np.arange(T)[:, None], "j": np.arange(S)[None], "T": T, "S": S, "w": window}
        seen = eval(rule, known)
        mask = seen[None, None] if mask is None else mask & seen
    options = {"mask": mask, "is_causal": is_causal or bool(how["always"]), "scale": scale, "softcap": softcap}
    form = BY_LAW.but(**{axis: how[axis] for axis in AXES}, **OF_MASKING[how["masking"]])
    form = form.but(causal=how["always"] or how["causal"])
    given = Inputs({name: x for name, x in arrays.items() if x is not None}, options | {"return_lse": return_lse}, {})
    with np.errstate(all="ignore"):
        steps = Steps(given, form)
        if how["softmax"] not in SOFTMAX[1:]:
            return tuple(steps.out().values())
        scores = steps.scores()
        narrow = how["softmax"] == SOFTMAX[2]
        weights = _bfloat16(steps.weights(scores)) if narrow else steps.weights(_bfloat16(scores))
        return (weights @ steps.v,)


def _bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, to the nearest."""
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16).astype(np.float64)
