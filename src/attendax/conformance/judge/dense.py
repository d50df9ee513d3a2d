"""The plain dense formula in the dtype of the inputs: the tolerance is twice its error (L8).

Scores, softmax and sums are in float32 at least. Weights and values are multiplied in the dtype of the inputs, as in
the usual implementations.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..cases.case import Inputs, Leaves, allowed_pairs

MANTISSA = {"tf32": 10, "bf16": 7}  # bits of what a tensor core multiplies
SUMS, SUMS_AND_PRODUCTS = "sums", "sums and products"


class Style(NamedTuple):
    """The way in which the formula is computed: the precision of its products, the dtype of its steps, and its sums."""

    precision: str = ""  # of MANTISSA; "": that of float32
    steps: str = "float32"  # scores, softmax and sums; the inputs' own where that is wider, or narrower and asked for
    in_turn: str = ""  # SUMS or ALL: what adds one term after the other, as ``np.einsum`` does
    by_lse: bool = False  # whether a weight is exp(score - lse), as in backwards that have kept the lse


COMPLEX_STEP = 2.0**-60  # of a complex step: its square is nothing beside 1


class Rounding(NamedTuple):
    """The rounding of numbers between the steps, in NumPy or JAX arrays whose dtype holds them.

    Numbers that move along tangents are complex: the imaginary part is the movement, rounded by itself, times
    ``COMPLEX_STEP``.
    """

    xp: Any
    compute_dtype: Any
    narrow: Any  # the dtype of the inputs
    style: Style
    tangents: Leaves

    def wide(self, name: str, x: Any) -> Any:
        """An array in the dtype that holds it, with its movement."""
        x = x.astype(self.compute_dtype)
        return x + 1j * COMPLEX_STEP * self.tangents[name].astype(self.compute_dtype) if name in self.tangents else x

    def constant(self, x: Any) -> Any:
        """Numbers that no derivative sees: the shift of a softmax, as ``jax.nn.softmax`` has it."""
        if self.xp is np:
            return x
        import jax

        return jax.lax.stop_gradient(x)

    def product(self, a: Any, b: Any) -> Any:
        """``a @ b``, of operands at the precision of the products."""
        a, b = _each(self._operand, a), _each(self._operand, b)
        return self.step(_in_turn(a, b) if self.style.in_turn == SUMS_AND_PRODUCTS else a @ b)

    def total(self, x: Any) -> Any:
        """The sum of each row."""
        if not self.style.in_turn:
            return x.sum(axis=-1, keepdims=True)
        return _in_turn(x, self.xp.ones_like(x[..., :1, :].swapaxes(-1, -2)))

    def step(self, x: Any) -> Any:
        """A step's result, in the dtype of the steps."""
        narrow = np.dtype(self.style.steps)
        return x if narrow.itemsize >= np.dtype(self.compute_dtype).itemsize else self.rounded(x, narrow)

    def rounded(self, x: Any, narrow: Any = None) -> Any:
        """Numbers as a narrower dtype has them, that of the inputs unless given."""
        return _each(lambda part: part.astype(narrow or self.narrow).astype(self.compute_dtype), x)

    def _operand(self, x: Any) -> Any:
        bits = MANTISSA.get(self.style.precision)
        if bits is None or self.compute_dtype is not np.float32:
            return x
        if self.xp is not np:
            import jax

            return jax.lax.reduce_precision(x, 8, bits)
        fraction, exponent = np.frexp(x)  # of at least 1/2, so one bit more than a mantissa has
        return np.ldexp(np.rint(fraction * 2.0 ** (bits + 1)) * 2.0 ** -(bits + 1), exponent).astype(np.float32)


def _each(function: Callable[[Any], Any], x: Any) -> Any:
    return function(x.real) + 1j * COMPLEX_STEP * function(x.imag / COMPLEX_STEP) if np.iscomplexobj(x) else function(x)


def _in_turn(a: Any, b: Any) -> Any:
    """``a @ b``: one term is added after the other, which rounds more than pairs or blocks of terms do."""
    total = a[..., :1] * b[..., :1, :]
    for k in range(1, a.shape[-1]):
        total = total + a[..., k, None] * b[..., k, None, :]
    return total


def forward(inputs: Inputs, xp: Any = np, kept: Any = 1, style: Style = Style()) -> Leaves:  # noqa: B008
    """``out`` and ``lse``; with ``xp=jax.numpy`` to be differentiated by JAX."""
    steps = _forward(inputs, xp, kept, style)
    given = {"out": steps["out"].astype(inputs.arrays["query"].dtype), "lse": steps["lse"]}
    return given if inputs.options.get("return_lse") else {"out": given["out"]}


def _forward(inputs: Inputs, xp: Any, kept: Any, style: Style, tangents: Leaves = {}) -> dict[str, Any]:  # noqa: B006
    narrow = inputs.arrays["query"].dtype
    compute_dtype: Any = np.float64 if narrow == np.float64 else np.float32
    rounding = Rounding(xp, compute_dtype, narrow, style, tangents)
    step = rounding.step
    arrays = {name: rounding.wide(name, x) for name, x in inputs.arrays.items()}
    q, k, v = (arrays[name] for name in ("query", "key", "value"))
    by_head = rounding.product
    if q.ndim > 2 and k.shape[-3] != q.shape[-3]:
        if xp is np:
            k, v = (xp.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
        else:
            by_head = functools.partial(_in_groups, rounding.product)
    scale = compute_dtype(inputs.options.get("scale", 1 / np.sqrt(q.shape[-1])))
    products = by_head(step(q * scale), k.swapaxes(-1, -2))
    cap = inputs.options.get("softcap")
    scores = products if cap is None else step(compute_dtype(cap) * xp.tanh(products / compute_dtype(cap)))
    slope = 1 if cap is None else 1 - xp.tanh(products / compute_dtype(cap)) ** 2  # of the scores in the products
    if "bias" in arrays:
        bias = arrays["bias"]
        if xp is not np:  # XLA sums its gradient in its own dtype
            bias = rounding.wide("bias", xp.broadcast_to(inputs.arrays["bias"], scores.shape))
        scores = step(scores + bias)
    scores = xp.where(allowed_pairs(inputs), scores, -np.inf)
    largest = xp.max(scores.real, axis=-1, keepdims=True, initial=np.finfo(compute_dtype).min)
    sinks = arrays["sinks"][:, None, None] if "sinks" in arrays else np.full((), -np.inf, compute_dtype)
    largest = rounding.constant(xp.maximum(largest, sinks.real))
    powers, of_sink = step(xp.exp(step(scores - largest))), step(xp.exp(step(sinks - largest)))
    total = step(rounding.total(powers) + of_sink)
    some = xp.where(total == 0, 1, total)
    weights = step(powers / some)
    if style.by_lse:  # that of scores which are rounded otherwise
        weights = step(xp.exp(step(scores - xp.nextafter(step(largest + xp.log(some)), compute_dtype(np.inf)))))
    out = rounding.rounded(by_head(rounding.rounded(weights * kept), v))
    lse = step(xp.where(total == 0, -np.inf, largest + xp.log(some)))[..., 0]
    return dict(
        q=q, k=k, v=v, scale=scale, slope=slope, weights=weights, out=out, lse=lse, rounding=rounding,
        share=step(of_sink / some),
    )  # fmt: skip


def _in_groups(product: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """The product of x (..., N, T, K) and y (..., G, K, M), the queries of a group side by side, as in ``jax.nn``.

    The gradient of y is one sum over them all, which rounds more than a sum of sums does.
    """
    *lead, N, T, K = x.shape
    G = y.shape[-3]
    found = product(x.reshape(*lead, G, N // G * T, K), y)
    return found.reshape(*lead, N, T, found.shape[-1])


def gradient(inputs: Inputs, kept: Any = 1, style: Style = Style()) -> Leaves:  # noqa: B008
    """Gradients by hand, as in ``spec.attention_backward``."""
    found = _pulled(inputs, _forward(inputs, np, kept, style), kept)
    return {f"grad {name}": found[name].astype(x.dtype) for name, x in inputs.arrays.items()}


def _pulled(inputs: Inputs, s: dict[str, Any], kept: Any = 1) -> dict[str, Any]:
    """The gradients of query, key, value, bias and sinks. A sink is a key of value 0: its weight has the gradient 0."""
    rounding: Rounding = s["rounding"]
    step, product = rounding.step, rounding.product
    cotangent = inputs.extra["cotangent"].astype(rounding.compute_dtype)
    dweights = product(cotangent, s["v"].swapaxes(-1, -2)) * kept
    weights = s["weights"]
    average = step(rounding.total(dweights * weights))
    dscores, of_sink = step(weights * step(dweights - average)), -average
    if "lse_cotangent" in inputs.extra:
        through_lse = inputs.extra["lse_cotangent"].astype(rounding.compute_dtype)[..., None]
        dscores, of_sink = step(dscores + weights * through_lse), step(of_sink + through_lse)
    dproducts = step(rounding.rounded(dscores * s["slope"]) * s["scale"])
    found = {"query": product(dproducts, s["k"]), "key": product(dproducts.swapaxes(-1, -2), s["q"])}
    found |= {"value": product(rounding.rounded(weights * kept).swapaxes(-1, -2), cotangent), "bias": dscores}
    found |= {"sinks": step(s["share"] * of_sink)}
    return {name: _to_shape(found[name], x, name) for name, x in inputs.arrays.items()}


EQUAL_VALUES = 8  # times eps |dout| |v|, where all values that a row sees are equal (L8)


def of_delta(inputs: Inputs) -> Leaves:
    """The largest change of gradients by an error |dout| |v| in the gradient of each score (L8).

    The error may be 8 times as large in a row if all values that it sees are equal: their gradients cancel to 0.
    """
    s = _forward(inputs, np, 1, Style())
    length = np.linalg.norm(inputs.extra["cotangent"].astype(s["q"].dtype), axis=-1, keepdims=True)
    length = length * np.where(_sees_equal_values(inputs, s["v"], s["weights"].shape), EQUAL_VALUES, 1)
    dscores = s["weights"] * length * np.linalg.norm(s["v"], axis=-1)[..., None, :]
    dproducts = dscores * np.abs(s["slope"] * s["scale"])
    found = {"query": dproducts @ np.abs(s["k"]), "key": dproducts.swapaxes(-1, -2) @ np.abs(s["q"]), "bias": dscores}
    found |= {"sinks": s["share"] * length * np.linalg.norm(s["out"], axis=-1, keepdims=True)}
    return {f"grad {name}": _to_shape(found[name], x, name) for name, x in inputs.arrays.items() if name in found}


def of_largest(inputs: Inputs) -> Leaves:
    """The largest change of each number of gradients by an error Σ p |dp| in that of a row's largest score so far.

    dp is the gradient of a weight p. Autodiff of ``exp(x - x.max())`` gives the largest score the sum of the row's
    gradients, which cancel, once more. If keys come in blocks, so does each score that is larger than all before it.
    """
    s = _forward(inputs, np, 1, Style())
    weights, v = s["weights"], s["v"].swapaxes(-1, -2)
    size = (weights * np.abs(inputs.extra["cotangent"].astype(v.dtype) @ v)).sum(axis=-1, keepdims=True)
    dscores = np.where((weights == np.maximum.accumulate(weights, axis=-1)) & (weights > 0), size, 0)
    dproducts = dscores * np.abs(s["slope"] * s["scale"])
    found = {"query": dproducts @ np.abs(s["k"]), "key": dproducts.swapaxes(-1, -2) @ np.abs(s["q"]), "bias": dscores}
    return {f"grad {name}": _to_shape(found[name], x, name) for name, x in inputs.arrays.items() if name in found}


def _sees_equal_values(inputs: Inputs, v: Any, shape: tuple[int, ...]) -> Any:
    """Tell, for each row of weights of this shape, whether all values (..., S, V) that it may look at are equal."""
    seen = np.broadcast_to(allowed_pairs(inputs), shape)
    whole = np.ascontiguousarray(v).view(np.dtype((np.void, v.shape[-1] * v.itemsize)))[..., 0]
    numbers = np.unique(whole, return_inverse=True)[1].reshape(whole.shape)[..., None, :]  # equal ones have one number
    low = np.where(seen, numbers, numbers.size).min(-1, keepdims=True, initial=numbers.size)
    return low == np.where(seen, numbers, -1).max(-1, keepdims=True, initial=-1)


def _along(inputs: Inputs, name: str, style: Style) -> Leaves:
    """The movement of results or of gradients along the tangents, whose steps are those of the formula, rounded."""
    tangents = inputs.extra["tangents"]
    s = _forward(inputs, np, 1, style, tangents)
    found = _pulled(inputs, s) if name == "second" else {x: s[x] for x in ("out", "lse")}
    moved = {leaf: np.imag(x) / COMPLEX_STEP for leaf, x in found.items()}
    if name == "second":
        return {f"second {leaf}": moved[leaf].astype(x.dtype) for leaf, x in inputs.arrays.items() if leaf in tangents}
    lse = {"tangent lse": moved["lse"]} if inputs.options.get("return_lse") else {}
    return {"tangent out": moved["out"].astype(inputs.arrays["query"].dtype)} | lse


def formula(direction: str, in_jax: bool, style: Style = Style()) -> Callable[[Inputs], Leaves]:  # noqa: B008
    """The dense formula in a direction: by hand in NumPy, or by JAX.

    By JAX it is compiled once, with the options of the first call.
    """
    name = direction.partition(",")[0]
    name = "gradient" if "gradient" in name else name
    if in_jax:
        return _by_jax(name, style)
    if name in ("jvp", "second"):
        return functools.partial(_along, name=name, style=style)
    return functools.partial(gradient if name == "gradient" else forward, style=style)


def _by_jax(name: str, style: Style) -> Callable[[Inputs], Leaves]:
    import jax

    prefix = {"jvp": "tangent ", "second": "second ", "gradient": "grad "}.get(name, "")
    compiled: list[Any] = []

    def run(inputs: Inputs) -> Leaves:
        given = {k: x for k, x in inputs.extra.items() if k in ("cotangent", "lse_cotangent", "tangents")}
        given |= {k: x for k, x in inputs.options.items() if k == "mask"}
        with jax.enable_x64(inputs.arrays["query"].dtype == np.float64), jax.numpy_rank_promotion("allow"):
            if not compiled:
                compiled.append(jax.jit(functools.partial(_differentiated, name, style, inputs, jax)))
            found = compiled[0](dict(inputs.arrays), given)
        return {prefix + leaf: np.asarray(x) for leaf, x in found.items()}

    return run


def _differentiated(name: str, style: Style, inputs: Inputs, jax: Any, arrays: Any, given: Any) -> Any:
    moving = {k: arrays[k] for k in given.get("tangents", arrays)}
    mask = {k: x for k, x in given.items() if k == "mask"}

    def results(moving: Any) -> Any:
        return forward(Inputs(arrays | moving, inputs.options | mask, inputs.extra), jax.numpy, style=style)

    def pulled(moving: Any) -> Any:
        found, pull = jax.vjp(results, moving)
        cotangents = {"out": given["cotangent"], "lse": given.get("lse_cotangent")}
        return pull({leaf: cotangents[leaf].astype(x.dtype) for leaf, x in found.items()})[0]

    if name == "jvp":
        return jax.jvp(results, (moving,), (given["tangents"],))[1]
    if name == "second":
        return jax.jvp(pulled, (moving,), (given["tangents"],))[1]
    return pulled(moving) if name == "gradient" else results(moving)


def _to_shape(gradient: np.ndarray, array: np.ndarray, name: str) -> np.ndarray:
    """Summed over what was repeated: the query heads of a group, the axes of a bias that were broadcast."""
    shape = array.shape
    if name == "sinks":
        return _to_shape(gradient, array[:, None, None], "")[:, 0, 0]
    if name in ("key", "value") and gradient.ndim > 2 and gradient.shape != shape:
        return gradient.reshape(*shape[:-2], -1, *shape[-2:]).sum(axis=-3)
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(k for k, size in enumerate(shape) if size == 1 and gradient.shape[k] != 1)
    return gradient.sum(axis=repeated, keepdims=True)
