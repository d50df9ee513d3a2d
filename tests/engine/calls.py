"""Calls of attention as they stand in users' programs, and the same by the specification in float64.

A call has sizes and a mask, a loss, operands that may be constants to the compiler, options, surrounding code, a
direction of differentiation and a dtype. Each of them changes the program that XLA makes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attendax
from attendax import masks, ops, scores, spec
from attendax.conformance import directional_difference

CAUSAL = masks.causal()
SIZES: dict[tuple[int, ...], Any] = {  # and the mask
    (8, 12, 128, 32): None,
    (2, 12, 128, 64): CAUSAL,
    (2, 12, 197, 64): None,
    (12, 64, 16): None,
    (1, 3, 63, 16): CAUSAL,
    (1, 2, 256, 16): None,
    (1, 4, 300, 16): CAUSAL,
    (1, 2, 513, 16): None,
    (1, 2, 700, 16): CAUSAL,
    (1, 1, 1100, 8): CAUSAL,
}
LOSSES = {
    "sum": lambda out, lse, s: out.sum(),
    "mean": lambda out, lse, s: out.mean(),
    "row": lambda out, lse, s: out[..., 0, :].sum(),
    "square": lambda out, lse, s: (out**2).mean(),
    "lse": lambda out, lse, s: lse.sum(),
    "scaled": lambda out, lse, s: out.sum() * s,
    "columns": lambda out, lse, s: (out.mean(axis=-2) * s).sum(),
    "random": lambda out, lse, s: (out * normal(out.shape, 8)).sum(),
}


def normal(shape, seed: int):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Operands that are no arguments: of a scalar argument and a shape


def ones(s, shape):
    return jnp.ones(shape, s.dtype)


def constant(s, shape):
    return jnp.asarray(normal(shape, 9), s.dtype)


def iota(s, shape):
    return jnp.broadcast_to(jnp.arange(shape[-1], dtype=s.dtype) / shape[-1], shape)


def identity(s, shape):
    return jnp.broadcast_to(jnp.eye(*shape[-2:], dtype=s.dtype), shape)


def scalar(s, shape):
    return jnp.broadcast_to(s, shape)


def shared(s, shape):
    return jnp.broadcast_to(s * normal(shape[-2:], 10).astype(s.dtype), shape)


QUERY, KEY, VALUE = range(3)
OPERANDS: dict[str, dict] = {
    "arguments": {},
    "value of ones": {VALUE: ones},
    "key of ones": {KEY: ones},
    "query of ones": {QUERY: ones},
    "value from a scalar": {VALUE: scalar},
    "identity as value": {VALUE: identity},
    "key shared by all heads": {KEY: shared},
    "iota as key": {KEY: iota},
    "constant query": {QUERY: constant},
    "constant key, value of ones": {KEY: constant, VALUE: ones},
    "query from a scalar": {QUERY: scalar},
}


OPTIONS: dict[str, Callable] = {  # of the size (1, 4, 300, 16), for queries of a dtype
    "": lambda dtype: {},
    "bias": lambda dtype: {"bias": normal((1, 4, 300, 300), 13).astype(dtype)},
    "bias of zeros": lambda dtype: {"bias": np.zeros((300, 300), dtype)},
    "softcap": lambda dtype: {"score_mod": scores.softcap(2.0)},
    "alibi": lambda dtype: {"score_mod": scores.alibi(np.array([0.5, 0.25, 0.125, 0.0625], dtype))},
    "padding": lambda dtype: {"mask": masks.padding(np.array([211]))},
    "window": lambda dtype: {"mask": masks.window(40, 0)},
    "dropout": lambda dtype: {"dropout_rate": 0.3, "dropout_rng": np.array([7, 11], np.uint32)},
}


class Call(NamedTuple):
    """A call, as it stands in a user's program."""

    size: tuple[int, ...]
    loss: str
    operands: str
    between: bool  # a projection with constant weights before it, a layer norm after it
    direction: str
    implementation: str | None = None
    dtype: str = "float32"
    options: str = ""

    def __str__(self):
        place = "between" if self.between else "alone"
        parts = (
            self.size,
            self.loss,
            self.operands,
            place,
            self.direction,
            self.implementation,
            self.dtype,
            self.options,
        )
        return " ".join(str(part) for part in parts if part).replace(", ", "x")

    def keywords(self, dtype):
        return {"mask": SIZES[self.size]} | OPTIONS[self.options](dtype)

    @property
    def weights(self):
        """Of the projections and of the layer norm, in float64."""
        width = self.size[-1]
        return normal((3, width, width), 11) / np.sqrt(np.float64(width)), 1 + normal((width,), 12).astype(np.float64)

    def arguments(self):
        """The operands that are arguments, by their place, a direction for each, and the scalar argument."""
        places = [k for k in range(3) if k not in OPERANDS[self.operands]]
        arrays = {k: jnp.asarray(normal(self.size, k), self.dtype) for k in places}
        along = {k: jnp.asarray(normal(self.size, 4 + k), self.dtype) for k in places}
        return arrays, along, jnp.asarray(0.75, self.dtype)

    def operands_of(self, arrays, s):
        made = {k: make(s, self.size) for k, make in OPERANDS[self.operands].items()}
        return [{**made, **arrays}[k] for k in range(3)]

    def attend(self, arrays, s):
        """out and lse, by attendax; lse is None where the loss does not ask for it."""
        operands = self.operands_of(arrays, s)
        projections, gamma = (jnp.asarray(w, s.dtype) for w in self.weights)
        if self.between:
            operands = [x @ w for x, w in zip(operands, projections, strict=True)]
        asked = {"implementation": self.implementation, "return_lse": self.loss == "lse"}
        got = attendax.attention(*operands, **self.keywords(s.dtype), **asked)
        out, lse = got if self.loss == "lse" else (got, None)
        return (ops.layer_norm(out, gamma, jnp.zeros_like(gamma)) if self.between else out), lse

    def total(self, arrays, s):
        return LOSSES[self.loss](*self.attend(arrays, s), s)


class Reference:
    """The call by the specification in float64."""

    def __init__(self, call):
        self.call = call
        arrays, along, s = jax.tree.map(lambda x: np.asarray(x, np.float64), call.arguments())
        self.arrays, self.along, self.s = arrays, along, s
        self.made = [np.asarray(x, np.float64) for x in call.operands_of(arrays, jnp.float64(s))]

    def forward(self, arrays):
        return self._forward(arrays)[:2]

    def _forward(self, arrays):
        operands = [arrays.get(k, self.made[k]) for k in range(3)]
        projections, gamma = self.call.weights
        if self.call.between:
            operands = [x @ w for x, w in zip(operands, projections, strict=True)]
        averages, lse = spec.attention(*operands, **self.call.keywords(np.float64), return_lse=True)
        out = spec.layer_norm(averages, gamma, np.zeros_like(gamma)) if self.call.between else averages
        return out, (lse if self.call.loss == "lse" else None), operands, averages

    def scales(self, leaves: int):
        """A size for each result to be measured against where it is smaller, or 0, in truth.

        Of results and how they move, an operand's usual size; of gradients, the largest cotangent; of a loss, the sum
        of its terms without their signs.
        """
        if self.call.direction in ("forward", "jvp"):
            return [1.0] * leaves
        results = self.forward(self.arrays)
        pairs = [(c, y) for c, y in zip(self.cotangents(*results), results, strict=True) if y is not None]
        scales = [max(np.abs(c).max() for c, _ in pairs)] * leaves
        if self.call.direction == "value_and_grad":
            scales[0] = sum(np.abs(c * y).sum() for c, y in pairs)
        return scales

    def total(self):
        return float(LOSSES[self.call.loss](*self.forward(self.arrays), self.s))

    def cotangents(self, out, lse):
        loss = LOSSES[self.call.loss]
        if lse is None:
            return np.asarray(jax.grad(lambda out: loss(out, None, self.s))(out)), np.zeros(out.shape[:-1])
        return np.zeros_like(out), np.asarray(jax.grad(lambda lse: loss(None, lse, self.s))(lse))

    def gradient(self, arrays):
        out, lse, operands, averages = self._forward(arrays)
        dout, dlse = self.cotangents(out, lse)
        projections, gamma = self.call.weights
        if self.call.between:
            dout = spec.layer_norm_backward(dout, averages, gamma)[0]
        grads = spec.attention_backward(dout, *operands, **self.call.keywords(np.float64), grad_lse=dlse)[:3]
        if self.call.between:
            grads = [g @ w.T for g, w in zip(grads, projections, strict=True)]
        return {k: grads[k] for k in arrays}

    def moved(self, function):
        """How the results of a function of the arrays move along the direction."""
        return directional_difference(function, [self.arrays], [self.along])


# Directions: the function of (arrays, along, s) that is compiled, and the reference for its results


def forward(call, arrays, along, s):
    return call.attend(arrays, s)


def grad(call, arrays, along, s):
    return jax.grad(call.total)(arrays, s)


def value_and_grad(call, arrays, along, s):
    return jax.value_and_grad(call.total)(arrays, s)


def jvp(call, arrays, along, s):
    return jax.jvp(lambda arrays: call.attend(arrays, s), (arrays,), (along,))[1]


def forward_over_reverse(call, arrays, along, s):
    return jax.jvp(lambda arrays: jax.grad(call.total)(arrays, s), (arrays,), (along,))[1]


def reverse_over_reverse(call, arrays, along, s):
    def slope(arrays):
        grads = jax.grad(call.total)(arrays, s)
        return sum(jnp.vdot(grads[k], along[k]) for k in arrays)

    return jax.grad(slope)(arrays)


SHARES = np.array([0.25, 0.75])


def checkpoint(call, arrays, along, s):
    return jax.grad(jax.checkpoint(call.total))(arrays, s)


def scan(call, arrays, along, s):
    """Steps that weigh 1/4 and 3/4."""

    def total(arrays):
        return jax.lax.scan(
            lambda sum, share: (sum + share * call.total(arrays, s), None), s * 0, SHARES.astype(s.dtype)
        )[0]

    return jax.grad(total)(arrays)


def vmap(call, arrays, along, s):
    stacked = jax.tree.map(lambda x, d: jnp.stack([d, x]), arrays, along)
    return jax.tree.map(lambda x: x[1], jax.vmap(jax.grad(call.total), (0, None))(stacked, s))


DIRECTIONS: dict[str, tuple] = {
    "forward": (forward, lambda ref: ref.forward(ref.arrays)),
    "grad": (grad, lambda ref: ref.gradient(ref.arrays)),
    "value_and_grad": (value_and_grad, lambda ref: (ref.total(), ref.gradient(ref.arrays))),
    "jvp": (jvp, lambda ref: ref.moved(ref.forward)),
    "checkpoint": (checkpoint, lambda ref: ref.gradient(ref.arrays)),
    "scan": (scan, lambda ref: ref.gradient(ref.arrays)),
    "vmap": (vmap, lambda ref: ref.gradient(ref.arrays)),
    "forward over reverse": (forward_over_reverse, lambda ref: ref.moved(ref.gradient)),
    "reverse over reverse": (reverse_over_reverse, lambda ref: ref.moved(ref.gradient)),
}
