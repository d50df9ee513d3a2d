"""A JAX function, derivatives and all, run by NumPy: exactly, in a narrow dtype, or with random rounding errors.

JAX writes a function down as a list of primitives. Every program for the function rounds at about the same places, so
random errors in the primitives show how far rounding may lead.
"""

import math
from typing import Any

import numpy as np

Array = np.ndarray
TOO_LARGE = 1e30  # larger numbers have no random error: a score must be lost beside a bias of finfo.min


class Exact:
    """float64."""

    dtype: Any = np.float64

    def computed(self, x: Array, size: Array) -> Array:
        """The result of a primitive, whose terms have absolute values that add up to ``size``."""
        return x

    def stored(self, x: Array) -> Array:
        """A number that is stored in the dtype of the query."""
        return x


EXACT = Exact()


class Rounded(Exact):
    """The plain formula in a dtype: each result is rounded to it."""

    dtype = np.float32

    def __init__(self, dtype: Any):
        self.to = dtype

    def computed(self, x: Array, size: Array) -> Array:
        return x.astype(self.to).astype(np.float32)


class Perturbed(Exact):
    """Each result is off by a random part of a unit in the last place.

    If ``alike``, all numbers of an array are off by the same, as those of equal rows are: no sum evens that out.
    """

    def __init__(self, rng: Any, unit: float, stored: float, least: float, *, alike: bool):
        self.rng, self.unit, self.stored_unit, self.least, self.alike = rng, unit, stored, least, alike

    def noise(self, shape: tuple[int, ...]) -> Array:
        return self.rng.choice((-1.0, 1.0), (1,) * len(shape)) if self.alike else self.rng.uniform(-1, 1, shape)

    def computed(self, x: Array, size: Array) -> Array:
        moved = x + self.unit * self.noise(x.shape) * size
        large = abs(x) >= TOO_LARGE
        return np.where(large, x.astype(np.float32), moved) if large.any() else moved

    def stored(self, x: Array) -> Array:
        return x + self.noise(x.shape) * (self.stored_unit * abs(x) + self.least)


def dot_general(x: Array, y: Array, dimension_numbers: Any, **_: Any) -> Array:
    (cx, cy), (bx, by) = dimension_numbers
    fx, fy = ([d for d in range(a.ndim) if d not in (*c, *b)] for a, c, b in ((x, cx, bx), (y, cy, by)))
    batch, rows, columns, terms = ([a.shape[d] for d in axes] for a, axes in ((x, bx), (x, fx), (y, fy), (x, cx)))
    x = x.transpose(*bx, *fx, *cx).reshape(*batch, math.prod(rows), math.prod(terms))
    y = y.transpose(*by, *cy, *fy).reshape(*batch, math.prod(terms), math.prod(columns))
    return (x @ y).reshape((*batch, *rows, *columns))


def broadcast_in_dim(x: Array, shape: Any, broadcast_dimensions: Any, **_: Any) -> Array:
    own = dict(zip(broadcast_dimensions, x.shape, strict=True))
    return np.broadcast_to(x.reshape([own.get(axis, 1) for axis in range(len(shape))]), shape)


def pad(x: Array, fill: Any, padding_config: Any) -> Array:
    """A negative padding cuts off."""
    x = np.pad(x, [(max(a, 0), max(b, 0)) for a, b, _ in padding_config], constant_values=fill)
    return x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b, _) in zip(x.shape, padding_config, strict=True))]


SUMS = {"dot_general": dot_general, "reduce_sum": lambda x, axes, **_: x.sum(tuple(axes))}
ARITHMETIC = SUMS | {
    "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "square": np.square,
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "sqrt": np.sqrt, "rsqrt": lambda x, **_: 1 / np.sqrt(x),
    "integer_pow": lambda x, y: x ** float(y),
}  # fmt: skip
OTHERS = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "max": np.maximum, "min": np.minimum, "rem": np.fmod,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "not": np.bitwise_not, "stop_gradient": np.positive, "copy": np.copy,
    "select_n": lambda which, no, yes: np.where(which, yes, no),
    "reduce_max": lambda x, axes, **_: x.max(tuple(axes), initial=-np.inf),
    "reduce_or": lambda x, axes, **_: x.any(tuple(axes)),
    "broadcast_in_dim": broadcast_in_dim,
    "convert_element_type": lambda x, new_dtype, **_: x if x.dtype.kind == new_dtype.kind else x.astype(new_dtype),
    "pad": pad,
    "slice": lambda x, start_indices, limit_indices, strides: x[tuple(map(slice, start_indices, limit_indices))],
    "transpose": lambda x, permutation: x.transpose(permutation),
    "reshape": lambda x, new_sizes, **_: x.reshape(new_sizes),
    "squeeze": lambda x, dimensions: x.squeeze(tuple(dimensions)),
    "concatenate": lambda *x, dimension: np.concatenate(x, dimension),
    "split": lambda x, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis),
    "iota": lambda dtype, shape, dimension, **_: np.indices(shape, dtype)[dimension],
}  # fmt: skip


def call(function: Any, x: list[Array], params: Any) -> Any:
    return function(*x, **({} if isinstance(function, np.ufunc) else params))


def run(program: Any, arguments: Any, rounding: Exact) -> list[Array]:
    """The results of a ``ClosedJaxpr``."""
    jaxpr, values = program.jaxpr, {}

    def narrow(x: Any) -> Array:
        return np.asarray(x, rounding.dtype) if np.asarray(x).dtype.kind == "f" else np.asarray(x)

    def read(x: Any) -> Array:
        return narrow(x.val) if hasattr(x, "val") else values[x]

    last = {id(x): k for k, equation in enumerate(jaxpr.eqns) for x in equation.invars}
    last |= {id(x): len(jaxpr.eqns) for x in jaxpr.outvars}
    values |= zip((*jaxpr.constvars, *jaxpr.invars), map(narrow, (*program.consts, *arguments)), strict=True)
    for k, equation in enumerate(jaxpr.eqns):
        x, name, params = [read(a) for a in equation.invars], equation.primitive.name, equation.params
        if inner := params.get("jaxpr") or params.get("call_jaxpr"):
            results = run(inner, x, rounding)
        elif name == "reduce_precision":  # `stored` of program.py
            results = [rounding.stored(x[0])]
        elif name in ARITHMETIC:
            y = np.asarray(call(ARITHMETIC[name], x, params))
            size = call(SUMS[name], [abs(a) for a in x], params) if name in SUMS else abs(y)
            results = [rounding.computed(y, size) if y.dtype.kind == "f" else y]
        else:
            y = call(OTHERS[name], x, params)
            results = y if equation.primitive.multiple_results else [y]
        values |= zip(equation.outvars, map(narrow, results), strict=True)
        for a in [a for a in values if last.get(id(a), -1) <= k]:
            del values[a]
    return [read(x) for x in jaxpr.outvars]
