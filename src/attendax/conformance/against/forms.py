"""Attention in NumPy by every convention that is known: what a function is held against, to say which are its own.

A convention is a name and a line of Python. The reference here evaluates the line, and an adapter prints it: the two
cannot differ. In the lines ``i`` are queries (a column), ``j`` keys (a row), and sizes have their letters.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

SCALES = {
    "1/sqrt(D)": "D**-0.5", "1": "1.0", "1/D": "1 / D", "1/sqrt(N D)": "(N * D) ** -0.5", "sqrt(D)": "D**0.5",
    "1/sqrt(V)": "V**-0.5",
}  # fmt: skip
HEADS = {"repeat": "xp.arange(N) // (N // G)", "tile": "xp.arange(N) % G"}
CAUSAL = {
    "aligned to the start": "j <= i",
    "aligned to the end": "j <= i + S - T",
    "aligned to the start, and a single query sees all": "(j <= i) | (T == 1)",
    "without its own key": "j < i",
    "aligned to the end, without its own key": "j < i + S - T",
    "what comes after": "j >= i",
}
REACH = {"w keys, its own among them": "w - 1", "w keys beside its own": "w", "half of w keys beside its own": "w // 2"}
SIDES = {
    "before": "(j <= {i}) & (j >= {i} - ({r}))",
    "on both sides": "abs(j - {i}) <= {r}",
    "before, and all that comes after": "j >= {i} - ({r})",
}
PAIR = "((j >= {i} - {w}[0]) | ({w}[0] < 0)) & ((j <= {i} + {w}[1]) | ({w}[1] < 0))"  # left, right; -1 is no limit
ALIGNED = {"the start": "i", "the end": "(i + S - T)"}
STEPS = {
    "scale": "scores = scores * scale",
    "softcap": "scores = softcap * xp.tanh(scores / softcap)",
    "bias": "scores = scores + bias",
    "mask": "scores = xp.where(mask, scores, -xp.inf)",
}
ORDERS = (
    "scale, softcap, bias, mask", "bias, scale, softcap, mask", "scale, bias, softcap, mask",
    "scale, bias, mask, softcap", "softcap, scale, bias, mask", "scale, mask, softcap, bias",
)  # fmt: skip
MASKING = ("minus infinity", "weights set to 0 after the softmax", "scores set to 0")
EMPTY = ("0", "the mean of the values", "NaN")
LSE = {"base e": "{x}", "base 2": "{x} / 0.6931471805599453", "without the maximum": "{x} - largest"}
SOFTMAX = ("float32", "bfloat16 scores", "bfloat16 weights")
GIVEN = "given_"  # before the name of a keyword that is given to both as it is
REFUSED, UNCLEAR = "refused", "unclear"  # of bfloat16 arrays
LAW: dict[str, str] = {
    "scale": "1/sqrt(D)", "heads": "repeat", "causal": "aligned to the start", "always": "", "order": ORDERS[0],
    "window": "w keys beside its own/on both sides/the start", "masking": MASKING[0], "empty": "0", "lse": "base e",
    "softmax": "float32", "out": "of the query", "dropout": "",
}  # fmt: skip


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

    def offered(self) -> set[str]:
        """Which of the steps to scores it can be asked for beside the scale."""
        masks = {"mask", "is_causal", "window"} & set(self.options)
        return ({"softcap", "bias"} & set(self.options)) | ({"mask"} if masks else set())

    def offering(self, name: str, option: Option | None) -> "Form":
        """The same with another option, or without it."""
        options = {k: x for k, x in self.options.items() if k != name} | ({name: option} if option else {})
        return dataclasses.replace(self, options=options)


def window_rule(window: str) -> str:
    """The line of Python for which keys a window has."""
    reach, side, aligned = window.split("/")
    return SIDES[side].format(i=ALIGNED[aligned], r=REACH[reach])


def pair_rule(window: str, name: str = "w") -> str:
    """The same where a window is two numbers, to the left and to the right."""
    return PAIR.format(i=ALIGNED[window.split("/")[2]], w=name)


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
    query, key, value = (x.astype(np.float64) for x in inputs)
    (N, T, D), (G, S), V = query.shape[1:], key.shape[1:3], value.shape[-1]
    known = {"xp": np, "N": N, "T": T, "D": D, "G": G, "S": S, "V": V, "w": window}
    known |= {"i": np.arange(T)[:, None], "j": np.arange(S)[None]}
    heads = eval(HEADS[how["heads"]], known)
    key, value = key[:, heads], value[:, heads]
    rules = [how["always"] or how["causal"]] if is_causal or how["always"] else []
    allowed = np.ones((1, 1, T, S), bool) if mask is None else mask
    seen = pair_rule if isinstance(window, tuple) else window_rule
    for rule in [CAUSAL[x] for x in rules] + ([seen(how["window"])] if window is not None else []):
        allowed = allowed & eval(rule, known)
    scores = query @ key.swapaxes(-1, -2)
    known |= {"scale": eval(SCALES[how["scale"]], known) if scale is None else scale, "softcap": softcap, "bias": bias}
    scores = _steps(scores, allowed, how, known)
    if how["softmax"] == "bfloat16 scores":
        scores = _bfloat16(scores)
    largest = np.max(np.where(allowed, scores, -np.inf), -1, keepdims=True)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
        weights = weights / weights.sum(-1, keepdims=True)
        if how["masking"] == MASKING[1]:
            weights = np.where(allowed, weights, 0)
        weights = _bfloat16(weights) if how["softmax"] == "bfloat16 weights" else weights
        lse = np.log(np.sum(np.exp(scores), -1))
    out = np.where(np.isnan(weights), 0, weights) @ value
    empty = ~np.broadcast_to(allowed, scores.shape).any(-1, keepdims=True)
    filled = {"0": 0.0, "the mean of the values": value.mean(-2, keepdims=True), "NaN": np.nan}[how["empty"]]
    out = np.where(empty, filled, out) if how["masking"] == MASKING[0] else out
    lse = eval(LSE[how["lse"]].format(x="lse"), {"lse": lse, "largest": largest[..., 0]})
    return (out, lse) if return_lse else (out,)


def _steps(scores: np.ndarray, allowed: np.ndarray, how: Mapping[str, str], known: dict[str, Any]) -> np.ndarray:
    """Scores after each step, in the order that there is."""
    known |= {"mask": allowed, "scores": scores}
    for step in how["order"].split(", "):
        if step == "mask" and how["masking"] == MASKING[2]:
            known["scores"] = np.where(allowed, known["scores"], 0)
        elif (step != "mask" or how["masking"] == MASKING[0]) and known[step] is not None:
            exec(STEPS[step], known)
    return known["scores"]


def _bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, to the nearest."""
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16).astype(np.float64)
