"""The right answer, in float64 NumPy: the definition, and its gradient by hand.

All formulas hold for complex numbers, too. So a derivative of them along a direction d is exact to rounding and needs
no formula: ``Im f(x + i h d) / h`` with a tiny h. That of the outputs judges jvp, that of the gradient second order.

How far rounding may lead follows from the definition as well: see ``rounding``.
"""

from typing import Any

import numpy as np

from attendax.spec import dropout

from . import data
from .case import Case
from .rounding import (
    EXACT,
    InDtype,
    Rounding,
    size_of,
    size_of_backward,
    size_of_delta,
    size_of_each,
    size_of_grad_scores,
    size_of_weights,
    uncertain,
)

STEP = {np.dtype(np.float64): 1e-60, np.dtype(np.float32): 2.0**-60}
EPSILON = 1e-5  # of the layer norm
MODEST = 1e4  # an lse whose square is not in the loss when it is larger, nor when it is -inf
Arrays = dict[str, np.ndarray]


class Call:
    """One call, without maps: forward and backward, from its arrays."""

    def __init__(self, case: Case, arrays: Arrays, rounding: Rounding = EXACT):
        self.case, self.rounding = case, rounding
        heads = (lambda x: x[None]) if case.one_head else (lambda x: x)
        self.x = {name: heads(arrays[name]) for name in ("query", "key", "value")}
        self.projected = dict(self.x)
        if case.layers:
            self.weights = {name: arrays[f"weights_{name}"] for name in self.x}
            pairs = {name: (x, self.weights[name]) for name, x in self.x.items()}
            self.projected = {
                name: rounding.of(x @ w, lambda x=x, w=w: size_of(x, w)) for name, (x, w) in pairs.items()
            }
        self.scale = case.D**-0.5 if case.scale is None else case.scale
        self.q, self.k, self.v = (self.projected[name] for name in ("query", "key", "value"))
        self.k, self.v = (np.repeat(x, case.N // case.G, axis=-3) for x in (self.k, self.v))
        self.bias, self.allowed = arrays.get("bias"), data.allowed(case, arrays)
        self.mod = [arrays[name] for name in arrays if name.startswith("mod")]
        if self.bias is not None:
            self.allowed = self.allowed & (self.bias.real != -np.inf)
        self.kept = 1.0
        if case.dropout:
            keep = dropout.keep(arrays["rng"], case.scores, case.dropout)
            self.kept = keep.astype(self.q.real.dtype) / (1 - case.dropout if case.dropout < 1 else 1)
        self.forward()

    def scores(self, z: Any) -> tuple[Any, list[Any]]:
        """``mod(z) + bias``, and the scores before each part of the modifier."""
        z = self.rounding.of(z, lambda: abs(self.scale) * size_of(self.q, self.k.swapaxes(-1, -2)) + 1)
        s, between = modified(self.case.modifier, z, list(self.mod), self.rounding)
        if self.bias is not None:
            b = np.where(self.bias.real == -np.inf, 0, self.bias)
            if self.rounding.rng:  # beside finfo.min a score of 1e30 is less than half a unit of float32
                s = s - np.where(abs(b) < 1e30, 0, s.real)
            s = s + (self.rounding.of(b) if np.all(abs(b) < 1e30) else b)
        return s, between

    def forward(self) -> None:
        """``s = mod(scale · q kᵀ) + bias``, ``p = exp(s - m) / Σ exp(s - m)`` over the allowed, ``out = kept p v``."""
        z = np.where(self.allowed, (self.scale * self.q) @ self.k.swapaxes(-1, -2), 0)
        s, self.modified = self.scores(z)
        largest = np.max(s.real, axis=-1, where=self.allowed, initial=-np.inf, keepdims=True)
        self.empty = largest == -np.inf
        largest = np.where(self.empty, 0, largest)
        powers = np.where(self.allowed, np.exp(np.where(self.allowed, s - largest, 0)), 0)
        total = powers.sum(-1, keepdims=True)
        p = powers / np.where(self.empty, 1, total)
        self.p_size = size_of_weights(p, s) if self.rounding.rng else p
        self.p = self.p_again = p = self.rounding.of(p, lambda: 1j * self.p_size.imag)
        dlse = 0.0
        if self.rounding.rng:
            again = self.scores(z)[0]
            powers = np.where(self.allowed, np.exp(np.minimum(np.where(self.allowed, (again - largest).real, 0), 0)), 0)
            p = powers / np.where(self.empty, 1, total.real)
            self.p, self.p_again, dlse = uncertain(self.rounding, self.p, p, s, again)
        self.attended = self.rounding.of(
            (self.p * self.kept) @ self.v, lambda: size_of(self.p_size * self.kept, self.v)
        )
        self.out = self.rounding.stored(self.attended)
        if self.case.layers:
            self.out, self.normed = layer_norm(self.out, self.rounding)
        lse = np.where(self.empty, -np.inf, largest + np.log(np.where(self.empty, 1, total)) + dlse)[..., 0]
        self.lse = self.rounding.of(lse, lambda: np.where(self.empty[..., 0], 0, 1 + abs(largest[..., 0])))
        every = np.maximum(abs(s.real), abs(z.real))
        self.largest = np.max(every, where=self.allowed, initial=0.0)

    def outputs(self) -> Arrays:
        both = {"out": self.out, "lse": self.lse}
        return {name: x[0] for name, x in both.items()} if self.case.one_head else both

    def backward(self, dout: Any, dlse: Any) -> Arrays:
        """``dp = kept dout vᵀ``, ``ds = p (dp - Σ dp p + dlse)``, and back through modifier, product and projection."""
        rounding, allowed = self.rounding, self.allowed
        if self.case.one_head:
            dout, dlse = dout[None], dlse[None]
        dout = rounding.stored(dout)
        if self.case.layers:
            dout = layer_norm_backward(dout, *self.normed, rounding)
        dv = (self.p_again * self.kept).swapaxes(-1, -2) @ dout
        dp = dout @ self.v.swapaxes(-1, -2) * self.kept
        delta = (dp * self.p).sum(-1, keepdims=True) - dlse[..., None]

        def size_of_dp():
            return size_of(dout, self.v.swapaxes(-1, -2)) * self.kept

        dp = rounding.of(dp, size_of_dp)
        delta = rounding.of(
            delta, lambda: size_of_delta(self.p, size_of_dp(), dlse)
        )  # one for the row: also dout · out
        ds = np.where(
            allowed, rounding.of(self.p_again * (dp - delta), lambda: size_of_grad_scores(self.p_size, dp, dlse)), 0
        )
        dz, grads_mod = modified_backward(self.case.modifier, ds, self.modified, list(self.mod), self.rounding)
        found = {"query": self.scale * dz @ self.k}
        found["key"] = self.per_group(self.scale * dz.swapaxes(-1, -2) @ self.q)
        found["value"] = self.per_group(dv)
        if self.case.layers:
            for name, dx in list(found.items()):
                x, w = self.x[name], self.weights[name]
                found[name] = dx @ w.T
                found[f"weights_{name}"] = x.reshape(-1, len(w)).T @ dx.reshape(-1, len(w))
        if self.case.one_head:
            found |= {name: found[name][0] for name in self.x}
        if self.bias is not None:
            found["bias"] = sum_to(ds, self.bias.shape)
        return found | {f"mod{k}": x for k, x in enumerate(grads_mod)}

    def per_group(self, x: np.ndarray) -> np.ndarray:
        *lead, N, S, width = x.shape
        return x.reshape(*lead, self.case.G, N // self.case.G, S, width).sum(-3)


def layer_norm(x: Any, rounding: Rounding = EXACT) -> Any:
    """``(x - mean) / √(var + ε)`` along the last axis, and what the backward needs."""
    centred = x - x.mean(-1, keepdims=True)
    centred = rounding.of(centred, lambda: size_of_each(x, lambda x: x + x.mean(-1, keepdims=True)))
    inverse = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)
    y = centred * inverse

    def size():
        dy = size_of_backward(abs(x.imag), abs(y.real), inverse.real)
        return abs(y.real) + 1j * dy

    return rounding.of(y, size), (y, inverse)


def layer_norm_backward(dy: Any, y: Any, inverse: Any, rounding: Rounding = EXACT) -> Any:
    """``(dy - mean(dy) - y mean(dy y)) / √(var + ε)``."""
    dx = inverse * (dy - dy.mean(-1, keepdims=True) - y * (dy * y).mean(-1, keepdims=True))

    def size():
        a, b, c = (abs(z.real) for z in (dy, y, inverse))
        da, db, dc = (abs(z.imag) for z in (dy, y, inverse))
        moved = size_of_backward(da, b, c) + c * (
            b * (a * db).mean(-1, keepdims=True) + db * (a * b).mean(-1, keepdims=True)
        )
        return size_of_backward(a, b, c) + 1j * (moved + dc / c * size_of_backward(a, b, c))

    return rounding.of(dx, size)


def _distance(z: Any, offset: int) -> Any:
    """j - i - offset."""
    return np.arange(z.shape[-1]) - np.arange(z.shape[-2])[:, None] - offset


def _column(z: Any, radius: int, offset: int) -> Any:
    return np.clip(_distance(z, offset), -radius, radius) + radius


def modified(modifier: Any, z: Any, arrays: list[Any], rounding: Rounding = EXACT) -> tuple[Any, list[Any]]:
    """The scores after a modifier, and the scores before each of its parts; uses up ``arrays``."""
    if modifier is None:
        return z, []
    kind, *settings = modifier
    if kind == "compose":
        between = []
        for part in settings:
            z, before = modified(part, z, arrays, rounding)
            between += before
        return z, between
    if kind == "softcap":
        capped = settings[0] * np.tanh(z / settings[0])
        return rounding.of(capped, lambda: abs(capped.real) + 2j * abs(z.imag)), [z]  # its derivative is 1 - tanh²
    array = arrays.pop(0)
    if kind == "alibi":
        lowered = array[:, None, None] * abs(_distance(z, settings[0])).astype(z.real.dtype)
        return z - rounding.of(lowered), [z]
    if kind == "relative":
        return z + array[:, _column(z, *settings)], [z]
    return rounding.of(z + array[:, None, None] * np.tanh(z)), [z]


def modified_backward(
    modifier: Any, ds: Any, between: list[Any], arrays: list[Any], rounding: Rounding
) -> tuple[Any, list[Any]]:
    """The gradients of the scores and of the arrays; uses up ``between`` and ``arrays`` from their ends."""
    if modifier is None:
        return ds, []
    kind, *settings = modifier
    if kind == "compose":
        grads: list[Any] = []
        for part in reversed(settings):
            ds, found = modified_backward(part, ds, between, arrays, rounding)
            grads = found + grads
        return ds, grads
    z = between.pop()
    if kind == "softcap":
        return ds * (1 - _tanh(z / settings[0], rounding) ** 2), []
    array = arrays.pop()
    if kind == "alibi":
        return ds, [-sum_to(ds * abs(_distance(z, settings[0])).astype(z.real.dtype), (*array.shape, 1, 1))[:, 0, 0]]
    if kind == "relative":
        per_head, column = sum_to(ds, ds.shape[-3:]), _column(z, *settings)
        return ds, [np.stack([per_head[:, column == c].sum(-1) for c in range(array.shape[1])], -1)]
    per_head = sum_to(ds * np.tanh(z), (*array.shape, 1, 1))[:, 0, 0]
    return ds * (1 + array[:, None, None] * (1 - _tanh(z, rounding) ** 2)), [per_head]


def _tanh(x: Any, rounding: Rounding) -> Any:
    """tanh, whose derivative is ``1 - tanh²`` of a rounded tanh."""
    return rounding.of(np.tanh(x), lambda: 2j * abs(x.imag))


def sum_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum over the axes along which an array of ``shape`` is repeated."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(axis for axis, n in enumerate(shape) if n == 1), keepdims=True)


def loss_backward(case: Case, outputs: Arrays, arrays: Arrays, rounding: Rounding = EXACT) -> tuple[Any, Any]:
    """The gradients of the loss with respect to out and lse."""
    out, lse = outputs["out"], outputs["lse"]
    dout, dlse = np.zeros_like(out), np.zeros_like(lse)
    count = max(1, out.size)
    if case.lse != "alone":
        if case.loss == "row":
            dout[..., -1:, :] = 1
        elif case.loss == "entropy":
            powers = np.exp(out - np.max(out.real, axis=-1, keepdims=True, initial=-np.inf))
            label = np.arange(out.shape[-1]) == 0
            p = powers / powers.sum(-1, keepdims=True)
            dout = rounding.of(p - label, lambda: size_of_weights(p, out) + label) * (out.shape[-1] / count)
        else:
            cotangent = arrays["cotangent_out"]
            each = {"sum": 1.0, "mean": 1 / count, "square": 2 * out / count, "weighted": cotangent}
            each |= {"rows": arrays["cotangent_lse"][..., None], "columns": cotangent.sum(-2, keepdims=True) / count}
            dout = dout + each[case.loss]
    if case.lse:
        each = {"sum": 1.0, "square": 2 * np.where(abs(lse.real) > MODEST, 0, lse), "alone": arrays["cotangent_lse"]}
        dlse = dlse + each[case.lse]
    return dout, dlse


def _calls(case: Case, arrays: Arrays, rounding: Rounding) -> dict[tuple[int, ...], Call]:
    def part(name, index):
        return arrays[name][data.place(case, name, index)]

    indices = list(np.ndindex(*case.mapped))
    return {index: Call(case, {name: part(name, index) for name in arrays}, rounding) for index in indices}


def _stacked(case: Case, per_call: dict[tuple[int, ...], Arrays]) -> Arrays:
    first = next(iter(per_call.values()))
    return {name: np.stack([x[name] for x in per_call.values()]).reshape(*case.mapped, *first[name].shape)
            for name in first}  # fmt: skip


def forward(case: Case, arrays: Arrays, rounding: Rounding = EXACT) -> Arrays:
    """out and lse, the axes of the maps in front."""
    calls = _calls(case, arrays, rounding)
    return _stacked(case, {index: call.outputs() for index, call in calls.items()})


def gradient(case: Case, arrays: Arrays, rounding: Rounding = EXACT) -> Arrays:
    """The gradients of the loss; with ``case.inside`` those of each call's own loss, the axes of the maps in front."""
    calls = _calls(case, arrays, rounding)
    cotangents = [name for name in arrays if name.startswith("cotangent")]
    if case.inside:
        per_call = {}
        for index, call in calls.items():
            own = {name: arrays[name][data.place(case, name, index)] for name in cotangents}
            per_call[index] = call.backward(*loss_backward(case, call.outputs(), own, rounding))
        return {name: x for name, x in _stacked(case, per_call).items() if name in data.wanted(case, arrays)}
    outputs = _stacked(case, {index: call.outputs() for index, call in calls.items()})
    dout, dlse = loss_backward(case, outputs, arrays, rounding)
    grads = {name: np.zeros_like(arrays[name], dtype=dout.dtype) for name in data.wanted(case, arrays)}
    for index, call in calls.items():
        found = call.backward(dout[index], dlse[index])
        for name in grads:
            grads[name][data.place(case, name, index)] += rounding.stored(found[name])
    return grads


def along(function: Any, case: Case, arrays: Arrays, moves: Arrays, rounding: Rounding = EXACT) -> Arrays:
    """The derivative of ``forward`` or ``gradient`` along a direction."""
    step = STEP[next(x.dtype for x in moves.values())]
    moved = {name: x + 1j * step * moves[name] if name in moves else x for name, x in arrays.items()}
    with np.errstate(invalid="ignore"):
        return {name: x.imag / step for name, x in function(case, moved, rounding).items()}


def largest_score(case: Case, arrays: Arrays) -> float:
    """The largest score that is allowed, before or after modifier and bias, without its sign."""
    return max((float(call.largest) for call in _calls(case, arrays, EXACT).values()), default=0.0)


def plain(case: Case, arrays: Arrays, moves: Arrays, function: Any) -> Arrays:
    """``function(arrays, moves, rounding)`` by the plain dense formula in the dtype of the case, no wider."""
    low = [{name: x.astype(np.float32) if x.dtype == data.FINE else x for name, x in each.items()}
           for each in (arrays, moves)]  # fmt: skip
    return function(*low, InDtype(data.storage(case, "query")))
