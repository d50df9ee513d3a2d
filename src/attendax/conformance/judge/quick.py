"""What is right at large sizes: the formula of ``spec`` in float64, prepared once for a head, its scores in blocks.

``spec`` makes an array for each step of L2, and prepares all keys for each part. Here a block of scores stays where it
is from its product to its weights. A part of each case is computed by ``spec``, too: where the two differ by more than
rounding, all of the case is ``spec``'s.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..cases.allowed import allowed_pairs
from ..cases.case import Inputs, Leaves
from .parts import bias_of, can_be_cut, pairs, part

LARGE = 2**17  # pairs of queries and keys, from which on a case is computed so
REPEATED = 2**20  # or so many numbers of keys and values, were they repeated for each query head
BLOCK = 2**17  # pairs whose scores are made at a time: 1 MiB, which a cache holds
SAMPLE = 2**15  # pairs that are computed by ``spec``, too
ROUNDING = 1e-11  # of the largest number: what two orders of the same sums may differ by
MOST = 1e100  # beyond it, or where a number is not finite, ``spec`` alone knows


class Head(NamedTuple):
    """A key head and the query heads that read it, in float64.

    Attributes:
        place: b and g.
        query: (group, T, D), scaled.
        key, value: (S, D) and (S, V).
        bias: None, or (group or 1, T or 1, S or 1).
        seen: None where all is, or boolean (group, T, S).
        sinks: None, or (group, 1, 1).
        cap: of the scores; None for none.
    """

    place: tuple[int, int]
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray | None
    seen: np.ndarray | None
    sinks: np.ndarray | None
    cap: float | None

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Query heads and queries of each block: all queries of some heads, or some of one."""
        group, T, _ = self.query.shape
        S = max(len(self.key), 1)
        rows, heads = max(1, min(T, BLOCK // S)), max(1, BLOCK // (T * S))
        for n in range(0, group, heads):
            for start in range(0, T, rows):
                yield slice(n, min(n + heads, group)), slice(start, min(start + rows, T))

    def weights(self, heads: slice, rows: slice) -> "Weights":
        """exp(scores - shift) of a block, of the keys from the first to the last that any of its queries sees."""
        seen = None if self.seen is None else self.seen[heads, rows]
        keys = slice(0, len(self.key)) if seen is None else _span(np.asarray(seen.any(axis=(0, 1))))
        query = self.query[heads, rows]
        scores = _product(query, self.key[keys].T)
        bend = None
        if self.cap is not None:
            scores /= self.cap
            np.tanh(scores, out=scores)
            bend = 1 - scores**2
            scores *= self.cap
        if self.bias is not None:
            scores += _cut(self.bias, heads, rows, keys)
        if seen is not None:
            np.copyto(scores, -np.inf, where=~seen[..., keys])
        shift = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        sinks = None if self.sinks is None else self.sinks[heads]
        shift = shift if sinks is None else np.maximum(shift, sinks)
        shift[shift == -np.inf] = 0  # of a query that sees nothing
        scores -= shift
        np.exp(scores, out=scores)
        total = scores.sum(axis=-1, keepdims=True)
        of_sink = None if sinks is None else np.exp(sinks - shift)
        total = total if of_sink is None else total + of_sink
        return Weights(keys, query, scores, shift, total, of_sink, bend)


class Weights(NamedTuple):
    """A block: its keys and queries, exp(scores - shift), and of each row the shift, the sum and the part of a sink."""

    keys: slice
    query: np.ndarray
    powers: np.ndarray
    shift: np.ndarray
    total: np.ndarray
    of_sink: np.ndarray | None
    bend: np.ndarray | None  # the derivative of the softcap

    @property
    def divisor(self) -> np.ndarray:
        """The sum of each row; 1 where there is nothing."""
        return np.where(self.total == 0, 1, self.total)


def forward(inputs: Inputs, allowed: np.ndarray) -> Leaves:
    """``out``, and ``lse`` where it is asked for."""
    query, value = inputs.arrays["query"], inputs.arrays["value"]
    found = {"out": np.zeros((*query.shape[:-1], value.shape[-1])), "lse": np.zeros(query.shape[:-1])}
    for head in _heads(inputs, allowed):
        out, lse = (_of_head(x, head) for x in found.values())
        for block in head.blocks():
            w = head.weights(*block)
            out[block] = _product(w.powers, head.value[w.keys]) / w.divisor
            lse[block] = (w.shift + np.log(w.total))[..., 0]
    return found if inputs.options.get("return_lse") else {"out": found["out"]}


def gradient(inputs: Inputs, allowed: np.ndarray) -> Leaves:
    """The gradients of every array, by the lines of ``spec.attention_backward``."""
    found = {f"grad {name}": np.zeros(x.shape) for name, x in inputs.arrays.items()}
    if "bias" in inputs.arrays:
        found["grad bias"] = np.zeros(bias_of(inputs).shape)
    for head in _heads(inputs, allowed):
        for block in head.blocks():
            _pull(inputs, head, *block, found)
    if "bias" in inputs.arrays:
        found["grad bias"] = found["grad bias"].reshape(inputs.arrays["bias"].shape)
    return found


def _pull(inputs: Inputs, head: Head, heads: slice, rows: slice, found: Leaves) -> None:
    """Add the gradients of a block: ds = p (dp - Σ dp p + dlse), and what follows from it."""
    (b, g), w = head.place, head.weights(heads, rows)
    cotangent, dlse = (_of_head(inputs.extra[k], head) if k in inputs.extra else None for k in COTANGENTS)
    assert cotangent is not None
    grad_out = cotangent[heads, rows].astype(np.float64)
    p = np.divide(w.powers, w.divisor, out=w.powers)
    grad_scores = _product(grad_out, head.value[w.keys].T)
    lessened = np.einsum("...s,...s->...", p, grad_scores)[..., None]
    if dlse is not None:
        lessened = lessened - dlse[heads, rows, None]
    grad_scores -= lessened
    grad_scores *= p
    found["grad value"][b, g, w.keys] += _rows(p).T @ _rows(grad_out)
    if head.bias is not None:
        _add(found["grad bias"], grad_scores, head, heads, rows, w.keys)
    if w.of_sink is not None:
        first = g * head.query.shape[0]
        share = -(w.of_sink / w.divisor * lessened).sum(axis=(-1, -2))
        found["grad sinks"][first + heads.start : first + heads.stop] += share
    if w.bend is not None:
        grad_scores *= w.bend
    of_query = _of_head(found["grad query"], head)
    of_query[heads, rows] = _product(grad_scores, head.key[w.keys]) * _scale(inputs)
    found["grad key"][b, g, w.keys] += _rows(grad_scores).T @ _rows(w.query)


COTANGENTS = ("cotangent", "lse_cotangent")


def _add(whole: np.ndarray, grad_scores: np.ndarray, head: Head, heads: slice, rows: slice, keys: slice) -> None:
    """Add a block to the gradient of a bias, summed over the axes along which that is repeated."""
    (b, g), group, sizes = head.place, head.query.shape[0], whole.shape
    own = slice(g * group + heads.start, g * group + heads.stop)
    repeated = tuple(k for k, size in enumerate(sizes[1:]) if size == 1)
    at = tuple(slice(None) if size == 1 else x for size, x in zip(sizes[1:], (own, rows, keys), strict=True))
    whole[b if sizes[0] > 1 else 0][at] += grad_scores.sum(axis=repeated, keepdims=True)


def _heads(inputs: Inputs, allowed: np.ndarray) -> Iterator[Head]:
    """Each key head with what belongs to it."""
    query, key, value = (inputs.arrays[name] for name in ("query", "key", "value"))
    (B, N, T, _), (_, G, S, _) = query.shape, key.shape
    group, scale, cap = N // G, _scale(inputs), inputs.options.get("softcap")
    seen = None if allowed.all() else np.broadcast_to(allowed, (B, N, T, S))
    bias = bias_of(inputs) if "bias" in inputs.arrays else None
    for b, g in np.ndindex(B, G):
        own = slice(g * group, (g + 1) * group)
        of_bias = None
        if bias is not None:
            of_bias = bias[b if bias.shape[0] > 1 else 0, own if bias.shape[1] > 1 else slice(None)]
            of_bias = of_bias.astype(np.float64)
        sinks = np.asarray(inputs.arrays["sinks"][own], np.float64)[:, None, None] if "sinks" in inputs.arrays else None
        yield Head(
            (b, g), query[b, own].astype(np.float64) * scale, key[b, g].astype(np.float64),
            value[b, g].astype(np.float64), of_bias, None if seen is None else seen[b, own], sinks, cap,
        )  # fmt: skip


def _scale(inputs: Inputs) -> float:
    given = inputs.options.get("scale")
    return float(inputs.arrays["query"].shape[-1] ** -0.5 if given is None else given)


def _of_head(x: np.ndarray, head: Head) -> np.ndarray:
    """The part of what queries have, (B, N, T, ..), that belongs to a key head."""
    (b, g), group = head.place, head.query.shape[0]
    return x[b, g * group : (g + 1) * group]


def _rows(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1])


def _product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``x @ y``, as one product of matrices for all query heads."""
    return (_rows(x) @ y).reshape(*x.shape[:-1], y.shape[-1])


def _cut(bias: np.ndarray, *block: slice) -> np.ndarray:
    return bias[tuple(slice(None) if size == 1 else at for size, at in zip(bias.shape, block, strict=True))]


def _span(seen: np.ndarray) -> slice:
    """From the first that is seen to the last."""
    keys = np.flatnonzero(seen)
    return slice(int(keys[0]), int(keys[-1]) + 1) if len(keys) else slice(0, 0)


def at_large_sizes(formula: Callable[[Inputs, np.ndarray], Leaves]) -> Callable[..., Callable[..., Leaves]]:
    """Of a function of ``spec``: the same, by a formula where the inputs are large and all numbers are ordinary."""

    def quicker(by_spec: Callable[..., Leaves]) -> Callable[..., Leaves]:
        @functools.wraps(by_spec)
        def run(inputs: Inputs, **conventions: Any) -> Leaves:
            if not is_for(inputs):
                return by_spec(inputs, **conventions)
            allowed = allowed_pairs(inputs, **conventions)
            with np.errstate(all="ignore"):
                found = formula(inputs, allowed)
                agrees = _agrees(found, inputs, allowed, formula, by_spec)
            return found if agrees else by_spec(inputs, **conventions)

        return run

    return quicker


def is_for(inputs: Inputs) -> bool:
    """Whether a call is large, and all of its numbers are ordinary; a bias may be -inf."""
    if not can_be_cut(inputs) or (pairs(inputs) <= LARGE and _repeated(inputs) <= REPEATED):
        return False
    given: Mapping[str, Any] = inputs.arrays | {k: inputs.extra[k] for k in COTANGENTS if k in inputs.extra}
    return all(_is_ordinary(x, bound=name == "bias") for name, x in given.items())


def _repeated(inputs: Inputs) -> int:
    (B, N, _, D), value = inputs.arrays["query"].shape, inputs.arrays["value"]
    return B * N * value.shape[2] * (D + value.shape[3]) if value.shape[1] < N else 0


def _is_ordinary(x: np.ndarray, *, bound: bool) -> bool:
    x = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    lowest, largest = float(x.min(initial=0)), float(x.max(initial=0))  # NaN, where one is
    return largest < MOST and (lowest > -MOST or (bound and lowest == -np.inf))


def _agrees(
    found: Leaves, inputs: Inputs, allowed: np.ndarray, formula: Callable[..., Leaves], by_spec: Callable[..., Leaves]
) -> bool:
    """Whether some queries of one key head, drawn by the sizes, are as ``spec`` has them, and in their place."""
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    (B, N, T, _), (G, S) = query.shape, key.shape[1:3]
    draw = np.random.default_rng([B, N, T, S])
    rows = max(1, min(T, SAMPLE // (N // G * S)))
    start = int(draw.integers(T - rows + 1))
    some, places = part(inputs, allowed, int(draw.integers(B)), int(draw.integers(G)), slice(start, start + rows))
    right, mine = by_spec(some), formula(some, allowed_pairs(some))
    of_queries = [leaf for leaf in ("out", "lse", "grad query") if leaf in found]
    there = {leaf: found[leaf][places["query"]] for leaf in of_queries}
    return all(_is_near(x, right[leaf]) for leaves in (mine, there) for leaf, x in leaves.items())


def _is_near(x: np.ndarray, right: np.ndarray) -> bool:
    size = np.abs(right, where=np.isfinite(right), out=np.zeros(right.shape)).max(initial=0.0)
    return bool(np.allclose(x, right, rtol=ROUNDING, atol=ROUNDING * size))
