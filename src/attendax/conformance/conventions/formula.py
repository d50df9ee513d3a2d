"""The formula of attention by conventions, in float64: forward, backward, and every direction of them.

Each step is the line of its convention. By the law it is what ``spec`` computes, and a test holds it to that. It keeps
whole arrays of scores: it is for inputs that are small.
"""

import functools
from collections.abc import Mapping
from types import CodeType
from typing import Any

import numpy as np

from ..cases.case import Inputs, Leaves
from .parts import of_scores
from .table import ADDED_INSTEAD, ASKS, DECLARED, INSTEAD, MEAN_ADDED, SEES_LATER, SLOPES
from .values import LAW, Conventions, law

SEEING_AXES = ("causal", "window", "key_lengths", "segments", "mask")  # the axes that say which pairs are seen


@functools.cache
def _compiled(text: str) -> CodeType:
    return compile(text, "a line of conventions", "eval")


def by_rules(conventions: Conventions, options: Mapping[str, Any], T: int, S: int) -> np.ndarray:
    """The pairs (T, S), or (B, 1, T, S), that causal and a window let see, by their lines."""
    left, right = (np.inf if x is None else x for x in options.get("window") or (None, None))
    known = {"i": np.arange(T)[:, None], "j": np.arange(S), "T": T, "S": S, "left": left, "right": right}
    known |= {"seen": np.ones((T, S), bool), "is_causal": bool(options.get("is_causal"))}
    known["lengths"] = _lengths(options, S)
    known["instead"] = is_instead(conventions, options)
    for axis in (*(x for x in ("causal", "window") if is_given(options.get(*ASKS[x]))), "pairs"):
        known["seen"] = known["seen"] & eval(_compiled(conventions.line(axis).text), known)
    return np.asarray(known["seen"])


def is_instead(conventions: Conventions, given: Mapping[str, Any]) -> bool:
    """Tell whether an option that is given takes the place of causal."""
    some = {INSTEAD: ("mask",), ADDED_INSTEAD: ("mask", "bias")}.get(conventions.value("joins"), ())
    return any(is_given(given.get(name)) for name in some)


class Steps:
    """The steps of one call. Arrays have the axes (B, N, T, D)."""

    def __init__(self, inputs: Inputs, conventions: Conventions = LAW) -> None:
        """Arrays in float64, and the names that the lines know."""
        self.inputs, self.conventions = inputs, conventions
        arrays = {name: np.asarray(x, np.float64) for name, x in inputs.arrays.items()}
        sinks = arrays.pop("sinks", None)
        self.lead = arrays["query"].shape[:-2]
        q, k, v = (of_scores(arrays[name]) for name in ("query", "key", "value"))
        q, k, v = eval(_compiled(conventions.line("split").text), FUNCTIONS | {"q": q, "k": k, "v": v})
        (N, T, D), (G, S, V) = q.shape[1:], v.shape[1:]
        self.known: dict[str, Any] = dict(np=np, N=N, T=T, D=D, G=G, S=S, V=V, n=np.arange(N), d=np.arange(D))
        self.known |= dict(rows=np.arange(T)[:, None], j=np.arange(S), without=self._without) | FUNCTIONS
        heads = self.line("heads")
        self.heads = heads if isinstance(heads, tuple) else (heads, heads)  # of keys and of values, of each query head
        self.width = self.line("width")
        self.unnormed = q, k
        q, k = self.line("norm", q=q, k=k)
        q, k = self.line("rotary", q=q, k=k)
        self.q = q * self.width
        self.k, self.v = (x[:, one if np.ptp(one) else one[:1]] for x, one in zip((k, v), self.heads, strict=True))
        self.known["v"] = self.v
        self.sinks = np.full((), -np.inf) if sinks is None else sinks[:, None, None]
        given = inputs.options.get("scale")
        self.scale = self.line("scale") if given is None else self.line("given_scale", given=given)
        self.bias = of_scores(arrays["bias"]) if "bias" in arrays else None
        self.cap = self.line("cap", given=inputs.options.get("softcap"))
        self.seen = self._seen()
        self.known |= {"scale": self.scale, "cap": self.cap, "seen": self.seen}

    def line(self, axis: str, **more: Any) -> Any:
        """The result of the line of an axis."""
        return eval(_compiled(self.conventions.line(axis).text), self.known | more)

    def _seen(self) -> np.ndarray:
        options, known = self.inputs.options, self.known
        begins = 0 if options.get("offset") is None else self.line("offset", offset=_of_batch(options["offset"]))
        known["i"] = known["rows"] + begins
        left, right = (np.inf if x is None else x for x in options.get("window") or (None, None))
        known |= {"left": left, "right": right, "is_causal": bool(options.get("is_causal"))}
        known["lengths"] = _lengths(options, known["S"])
        known |= {x: np.asarray(options.get(name, 0))[..., None, :]
                  for x, name in (("of_queries", "query_segment_ids"), ("of_keys", "key_segment_ids"))
                  if options.get(name) is not None}  # fmt: skip
        known["mask"] = of_scores(options["mask"]) if options.get("mask") is not None else None
        asked = [axis for axis in SEEING_AXES if any(is_given(options.get(name)) for name in ASKS[axis])]
        by_axis = {axis: self.line(axis) for axis in asked}
        known["by_mask"] = self._all({axis: x for axis, x in by_axis.items() if axis == "mask"})
        if self.bias is not None:
            known["by_mask"] = known["by_mask"] & (self.bias != -np.inf)
        known["either"] = functools.partial(self._either, by_axis)
        known["in_place"] = functools.partial(self._in_place, by_axis)
        known["instead"] = is_instead(self.conventions, options | self.inputs.arrays)
        known["hides"] = bool(asked)
        seen = self.line("joins", seen=self._all(by_axis))
        seen = self.line("pairs", seen=seen)
        return np.broadcast_to(seen, (*self.q.shape[:3], known["S"]))

    def _all(self, by_axis: dict[str, np.ndarray]) -> np.ndarray:
        """The pairs that every option allows."""
        everything = np.ones((1, 1, self.known["T"], self.known["S"]), bool)
        return functools.reduce(np.logical_and, by_axis.values(), everything)

    def _either(self, by_axis: dict[str, np.ndarray], one: str, other: str) -> np.ndarray:
        """The pairs that every option allows, where for two of them, if both are given, one is enough."""
        if not {one, other} <= by_axis.keys():
            return self._all(by_axis)
        rest = {axis: x for axis, x in by_axis.items() if axis != other}
        return self._all(rest | {one: by_axis[one] | by_axis[other]})

    def _in_place(self, by_axis: dict[str, np.ndarray], some: str, other: str) -> np.ndarray:
        """The pairs that every option allows; ``other`` is left out if one of some options is given."""
        given = any(is_given((self.inputs.options | self.inputs.arrays).get(x)) for x in some.split())
        return self._all({axis: x for axis, x in by_axis.items() if axis != other or not given})

    def scaled(self, s: np.ndarray) -> np.ndarray:
        """Products of queries and keys, times the scale."""
        return s * self.scale

    def scores(self, skip: str = "", kept: list[tuple[str, np.ndarray]] | None = None) -> np.ndarray:
        """The scores after each step in the order of the function; what each step was given is ``kept``."""
        s = self.q @ self.k.swapaxes(-1, -2)
        for step in self.conventions.line("order").text.split():
            if step == skip:
                continue
            if kept is not None:
                kept.append((step, s))
            if step == "scale":
                s = self.scaled(s)
            elif step == "softcap" and self.cap is not None:
                s = self.line("softcap", s=s)
            elif step == "bias":
                s = s if self.bias is None else s + self.line("bias", bias=self.bias)
                s = s if self.conventions.value("alibi") == law("alibi") else s + self.line("alibi")
            elif step == "mask":
                s = self.line("fill", s=s)
        return s

    def _without(self, step: str) -> np.ndarray:
        """Scores without a step."""
        return self.scores(step) if step == "mask" else self.line("fill", s=self.scores(step))

    def shares(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The share of each key, that of the sink, and the log-sum-exp of both; the axis stays.

        No share is made of the lse, to which scores of 1e30 leave no digits.
        """
        shift = np.maximum(top(s), self.sinks)
        shift = np.where(shift == -np.inf, 0, shift)
        keys, sinks = s - shift, np.exp(self.sinks - shift)
        total = np.exp(keys, out=keys).sum(-1, keepdims=True) + sinks
        divisor = np.where(total == 0, 1, total)
        keys /= divisor
        return keys, sinks / divisor, shift + np.log(total)

    def weights(self, s: np.ndarray) -> np.ndarray:
        """The factor of each value."""
        if self.conventions.value("weights") == "softmax":
            return self.shares(s)[0]
        if np.isfinite(self.sinks).any():
            raise NotImplementedError("no sinks")
        return self.line("weights", s=s, bias=0 if self.bias is None else self.bias)

    def out(self) -> Leaves:
        """The result, and its log-sum-exp where that is asked for."""
        s = self.scores()
        keys, _, lse = self.shares(s)
        out = (keys if self.conventions.value("weights") == "softmax" else self.weights(s)) @ self.v
        if (empty := lse == -np.inf).any():
            out = np.where(empty, self.line("empty"), out)
        out = self.line("join", out=out)
        found = {"out": out.reshape(*self.lead, *out.shape[-2:])}
        if self.inputs.options.get("return_lse"):
            told = self.line("lse", lse=lse[..., 0], largest=top(s)[..., 0])
            found["lse"] = told.reshape(*self.lead, told.shape[-1])
        return found

    def backward(self, saved: "Steps | None" = None) -> Leaves:
        """The gradients; with lse and delta of other steps, as a backward has those that its forward has saved."""
        for axis in ("weights", "split", "join"):
            if self.conventions.value(axis) != law(axis):
                raise NotImplementedError(f"no gradient is known if {self.conventions.line(axis).words}")
        kept: list[tuple[str, np.ndarray]] = []
        s = self.scores(kept=kept)
        extra = self.inputs.extra
        cotangent = np.asarray(extra["cotangent"], np.float64).reshape(*self.q.shape[:3], self.known["V"])
        p, share, lse = self.shares(s)
        dp = cotangent @ self.v.swapaxes(-1, -2)
        empty, moved = lse == -np.inf, p * dp
        if saved is not None:
            p, share, lse = saved.shares(saved.scores())
            moved = p * (cotangent @ saved.v.swapaxes(-1, -2))
            p = np.exp(s - np.where(lse == -np.inf, 0, lse))
        delta = self.line("delta", x=moved)
        ds, of_sinks = self.line("of_scores", p=p, dp=dp, delta=delta), -share * delta
        if "lse_cotangent" in extra:
            unit = self.line("lse", lse=1.0, largest=0.0) - self.line("lse", lse=0.0, largest=0.0)
            dlse = unit * np.asarray(extra["lse_cotangent"], np.float64).reshape(*self.q.shape[:3], 1)
            ds, of_sinks = (x + self.line("through_lse", x=y * dlse) for x, y in ((ds, p), (of_sinks, share)))
        later: Any = 0.0
        if empty.any() and self.conventions.value("empty") == SEES_LATER:
            even = softmax(np.where(self.known["by_mask"], 0, -np.inf))
            later = np.where(empty, even * (dp - (even * dp).sum(-1, keepdims=True)), 0)
            p = np.where(empty, even, p)
        if self.conventions.value("empty") in (DECLARED["mean"], MEAN_ADDED):
            p = np.where(empty, 1 / max(self.known["S"], 1), p)
        if self.conventions.value("empty") == MEAN_ADDED:
            ds = np.where(empty, p * (dp - (p * dp).sum(-1, keepdims=True)), ds)
        found = self._through_the_steps(ds, kept, later)
        found["value"] = self._of_key_heads(p.swapaxes(-1, -2) @ cotangent, "values")
        found["key"], found["value"] = self.line("gradients", keys=found["key"], values=found["value"])
        found["sinks"] = of_sinks.sum((0, 2, 3)) if self.sinks.ndim else of_sinks
        return {f"grad {name}": found[name].reshape(x.shape) for name, x in self.inputs.arrays.items()}

    def _through_the_steps(self, ds: np.ndarray, kept: list[tuple[str, np.ndarray]], later: Any) -> Leaves:
        """The gradients of queries, keys and bias, of that of the scores; that of ``later`` keys goes to the bias."""
        found, scaled = {}, False
        for step, s in reversed(kept):
            if step == "mask" and self.conventions.value("fill") == law("fill"):
                continue  # a weight is 0 where -inf is written
            if step == "mask":  # nothing reaches the scores where a number is written
                one, zero = (self.line("fill", s=np.full(self.seen.shape, x)) for x in (1.0, 0.0))
                with np.errstate(invalid="ignore"):
                    ds = ds * np.nan_to_num(one - zero)
            elif step == "bias" and self.bias is not None:
                found["bias"] = self._of_bias(later + (ds * self.scale if scaled else ds))
            elif step == "softcap" and self.cap is not None:
                slope = eval(_compiled(SLOPES[self.conventions.line("softcap").text]), self.known | {"s": s})
                ds = ds * self.line("slope", slope=slope)
            scaled = scaled or step == "scale"
        of_queries, of_keys = self.line("gradient_scale")
        of_q = of_queries * (ds @ self.k) * self.width
        of_k = self._of_key_heads(of_keys * (ds.swapaxes(-1, -2) @ self.q), "keys")
        if (pairs := self.conventions.value("rotary")) != law("rotary"):
            of_q, of_k = (turned(x, pairs, back=True) for x in (of_q, of_k))
        found["query"], found["key"] = map(self._through_the_norm, (of_q, of_k), self.unnormed)
        return found

    def _through_the_norm(self, grad: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The gradient of x from that of c x / r, where r² = |x|² + eps: (grad - x <x, grad> / r²) c / r."""
        norm, D = self.conventions.value("norm"), self.known["D"]
        if norm == law("norm"):
            return grad
        width = D if "root mean square" in norm else 1
        square = np.maximum((x * x).sum(-1, keepdims=True) + (1e-5 * width if "eps" in norm else 0), 1e-60)
        through: np.ndarray = (grad - x * (x * grad).sum(-1, keepdims=True) / square) * (width / square) ** 0.5
        return through

    def _of_key_heads(self, x: np.ndarray, of: str) -> np.ndarray:
        """Gradients of each key head, from those of the query heads that read it, ``of`` "keys" or "values"."""
        N, G = (self.known[axis] for axis in "NG")
        if self.conventions.value("group") != "sum":
            return self.line("group", x=x.reshape(x.shape[0], G, N // G, *x.shape[2:]), of=of)
        heads = self.heads[of == "values"]
        return np.einsum("gn,bnsd->bgsd", (np.arange(G)[:, None] == heads).astype(np.float64), x)

    def _of_bias(self, ds: np.ndarray) -> np.ndarray:
        """The gradient of a bias that is read otherwise: each number gets those of all places that read it."""
        assert self.bias is not None
        if not self.bias.size:
            return np.zeros_like(self.bias)
        ds = self.line("of_bias", ds=ds, bias=self.bias, rank=self.inputs.arrays["bias"].ndim)
        factor = self.line("bias", bias=np.ones_like(self.bias)).flat[0]
        places = np.arange(self.bias.size, dtype=np.float64).reshape(self.bias.shape)
        if factor:
            places = np.rint(self.line("bias", bias=places) / factor)
        else:  # who ignores it in the scores
            factor = 1.0
        read = np.broadcast_to(places.astype(int), ds.shape)
        return factor * np.bincount(read.ravel(), ds.ravel(), self.bias.size).reshape(self.bias.shape)


def _of_batch(x: Any) -> np.ndarray:
    """A number for each batch, beside (B, N, T, S)."""
    x = np.asarray(x)
    return x[..., None, None, None] if x.ndim else x


def _lengths(options: Mapping[str, Any], S: int) -> np.ndarray:
    """Key lengths, or S if none are given."""
    lengths = options.get("key_lengths")
    return _of_batch(S if lengths is None else lengths)


def is_given(x: Any) -> bool:
    """Tell whether an option asks for something."""
    return x is not None and x is not False


def top(s: np.ndarray, axis: int = -1) -> np.ndarray:
    """The largest score of each row."""
    largest: np.ndarray = np.max(s, axis=axis, keepdims=True, initial=-np.inf)
    return largest


def largest(s: np.ndarray, count: int) -> np.ndarray:
    """The last of so many largest scores of each row, or the least of fewer."""
    return np.sort(s, axis=-1)[..., [-min(count, s.shape[-1])]] if s.shape[-1] else s


def so_far(s: np.ndarray, block: int) -> np.ndarray:
    """The largest score of each row up to the end of each key's block."""
    most = np.maximum.accumulate(s, axis=-1)
    last = np.minimum((np.arange(s.shape[-1]) // block + 1) * block, s.shape[-1]) - 1
    found: np.ndarray = np.where(np.isneginf(most[..., last]), 0, most[..., last])
    return found


def mixed(x: np.ndarray) -> np.ndarray:
    """Arrays (B, N, T, D) of which (B, T, N, D) is read as (B, N, T, D)."""
    return x.swapaxes(1, 2).reshape(x.shape)


def slopes(count: int) -> np.ndarray:
    """The slopes of ALiBi: powers of 2 ** (-8 / count); of other counts than powers of 2 those of two such counts."""
    power = 2 ** int(np.log2(count))
    some = 2.0 ** (-8 / power * np.arange(1, power + 1))
    between = 2.0 ** (-4 / power * np.arange(1, 2 * (count - power), 2))
    return np.concatenate([some, between])


def unit(x: np.ndarray, eps: float = 0.0) -> np.ndarray:
    """Rows divided by their length; eps is added to its square."""
    rows: np.ndarray = x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True) + eps), 1e-30)
    return rows


def turned(x: np.ndarray, pairs: str, *, back: bool = False, rounded: bool = False) -> np.ndarray:
    """Rows (..., T, D) that are rotated by their positions: each number with its neighbour, or one half with the other.

    ``rounded``: by angles that are off by as much as those in float32 may be.
    """
    T, D = x.shape[-2:]
    if D % 2:
        raise ValueError("rotary positions turn pairs of numbers")
    angles = np.arange(T)[:, None] * 1e4 ** (-np.arange(0, D, 2) / D)
    if rounded:
        angles *= 1 + 2**-22 * (-1.0) ** np.arange(T)[:, None]
    places = (slice(0, D, 2), slice(1, D, 2)) if pairs == "neighbours" else (slice(0, D // 2), slice(D // 2, D))
    both = (x[..., places[0]] + 1j * x[..., places[1]]) * np.exp((-1j if back else 1j) * angles)
    found = np.empty_like(x)
    found[..., places[0]], found[..., places[1]] = both.real, both.imag
    return found


def softmax(s: np.ndarray, axis: int = -1, added: float = 0.0) -> np.ndarray:
    """Along an axis; 0 where all are -inf. A number may be added to the sum of the powers."""
    shift = np.where(top(s, axis) == -np.inf, 0, top(s, axis))
    powers = np.exp(s - shift)
    total = powers.sum(axis=axis, keepdims=True) + (added * np.exp(-shift) if added else 0)
    shares: np.ndarray = powers / np.where(total == 0, 1, total)
    return shares


def in_blocks(x: np.ndarray, block: int) -> np.ndarray:
    """The sums of each block of keys, for each of its keys."""
    each = np.add.reduceat(x, np.arange(0, x.shape[-1], block), axis=-1)
    return np.repeat(each, block, axis=-1)[..., : x.shape[-1]]


def by_first_query(mask: np.ndarray, rows: int, keys: int) -> np.ndarray:
    """The part of a mask in a block of queries and keys of which the first query sees something."""
    T, S = mask.shape[-2:]
    first = mask[..., ::rows, :]
    counts = np.logical_or.reduceat(first, np.arange(0, S, keys), axis=-1)
    return mask & counts.repeat(rows, axis=-2)[..., :T, :].repeat(keys, axis=-1)[..., :S]


FUNCTIONS = {
    f.__name__: f for f in (by_first_query, in_blocks, largest, mixed, slopes, so_far, softmax, top, turned, unit)
}  # in lines


def forward(inputs: Inputs, conventions: Conventions = LAW) -> Leaves:
    """``out``, and ``lse`` where it is asked for."""
    return Steps(inputs, conventions).out()


def gradient(inputs: Inputs, conventions: Conventions = LAW, saved: Conventions | None = None) -> Leaves:
    """Gradients of Σ cotangent · out (+ Σ lse_cotangent · lse), with lse and delta of ``saved`` where that is given."""
    return Steps(inputs, conventions).backward(None if saved is None else Steps(inputs, saved))


def weights(inputs: Inputs, conventions: Conventions = LAW) -> np.ndarray:
    """(B, N, T, S)."""
    steps = Steps(inputs, conventions)
    return steps.weights(steps.scores())
