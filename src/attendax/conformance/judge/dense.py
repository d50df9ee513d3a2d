"""The plain dense formula in the dtype of the inputs: the tolerance is twice its error (L8).

Scores, softmax and sums are in float32 at least. Weights and values are multiplied in the dtype of the inputs, as in
the usual implementations.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..cases.allowed import allowed_pairs
from ..cases.case import SAME, Inputs, Leaves

MANTISSA = {"tf32": 10, "bf16": 7}  # bits of what a tensor core multiplies


class Style(NamedTuple):
    """The way in which the formula is computed: the precision of its products, and the dtype of its steps."""

    precision: str = ""  # of MANTISSA; "": that of float32
    steps: str = "float32"  # scores, softmax and sums; the inputs' own where that is wider, or narrower and asked for


class Rounding:
    """The rounding of numbers between the steps."""

    def __init__(self, xp: Any, compute_dtype: Any, style: Style) -> None:
        """``compute_dtype`` is the dtype that holds the numbers."""
        self.xp, self.compute_dtype, self.style = xp, compute_dtype, style

    def product(self, a: Any, b: Any) -> Any:
        """``a @ b``, of operands at the precision of the products."""
        return self.step(self._operand(a) @ self._operand(b))

    def step(self, x: Any) -> Any:
        """A step's result, in the dtype of the steps."""
        narrow = np.dtype(self.style.steps)
        if narrow.itemsize >= np.dtype(self.compute_dtype).itemsize:
            return x
        return x.astype(narrow).astype(self.compute_dtype)

    def _operand(self, x: Any) -> Any:
        bits = MANTISSA.get(self.style.precision)
        if bits is None or self.compute_dtype is not np.float32:
            return x
        if self.xp is not np:
            import jax

            return jax.lax.reduce_precision(x, 8, bits)
        fraction, exponent = np.frexp(x)  # of at least 1/2, so one bit more than a mantissa has
        return np.ldexp(np.rint(fraction * 2.0 ** (bits + 1)) * 2.0 ** -(bits + 1), exponent).astype(np.float32)


def forward(inputs: Inputs, xp: Any = np, kept: Any = 1, style: Style = Style()) -> Leaves:  # noqa: B008
    """``out`` and ``lse``; with ``xp=jax.numpy`` to be differentiated by JAX."""
    steps = _forward(inputs, xp, kept, style)
    given = {"out": steps["out"], "lse": steps["lse"]}
    return given if inputs.options.get("return_lse") else {"out": given["out"]}


def _forward(inputs: Inputs, xp: Any, kept: Any, style: Style) -> dict[str, Any]:
    query, key, value = (inputs.arrays[name] for name in ("query", "key", "value"))
    compute_dtype: Any = np.float64 if query.dtype == np.float64 else np.float32
    rounding = Rounding(xp, compute_dtype, style)
    step = rounding.step
    q, k, v = (x.astype(compute_dtype) for x in (query, key, value))
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
    if "bias" in inputs.arrays:
        scores = step(scores + inputs.arrays["bias"].astype(compute_dtype))
    scores = xp.where(allowed_pairs(inputs), scores, -np.inf)
    largest = xp.max(scores, axis=-1, keepdims=True, initial=np.finfo(compute_dtype).min)
    sinks = (
        column(inputs.arrays["sinks"]).astype(compute_dtype)
        if "sinks" in inputs.arrays
        else np.full((), -np.inf, compute_dtype)
    )
    largest = xp.maximum(largest, sinks)
    powers, of_sink = step(xp.exp(step(scores - largest))), step(xp.exp(step(sinks - largest)))
    total = step(powers.sum(axis=-1, keepdims=True) + of_sink)
    weights = step(powers / xp.where(total == 0, 1, total))
    rounded = (weights * kept).astype(query.dtype).astype(compute_dtype)
    out = by_head(rounded, v).astype(query.dtype)
    lse = step(largest + xp.log(total))[..., 0]
    return dict(
        q=q, k=k, v=v, scale=scale, products=products, slope=slope, weights=weights, out=out, lse=lse,
        compute_dtype=compute_dtype, rounding=rounding, share=step(of_sink / xp.where(total == 0, 1, total)),
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
    return {f"grad {name}": _to_shape(found[name], x, name).astype(x.dtype) for name, x in inputs.arrays.items()}


def _pulled(inputs: Inputs, s: dict[str, Any], kept: Any = 1) -> dict[str, Any]:
    """The gradients of query, key, value, bias and sinks in the shapes of the scores, and the steps to them.

    A sink is a key of value 0, so its weight has the gradient 0.
    """
    narrow, compute_dtype, rounding = s["out"].dtype, s["compute_dtype"], s["rounding"]
    step, product = rounding.step, rounding.product
    cotangent = inputs.extra["cotangent"].astype(compute_dtype)
    dweights = product(cotangent, s["v"].swapaxes(-1, -2)) * kept
    weights = s["weights"]
    average = step((dweights * weights).sum(-1, keepdims=True))
    centred, of_sink = step(dweights - average), -average
    dscores = step(weights * centred)
    if "lse_cotangent" in inputs.extra:
        through_lse = inputs.extra["lse_cotangent"].astype(compute_dtype)[..., None]
        centred, dscores = step(centred + through_lse), step(dscores + weights * through_lse)
        of_sink = step(of_sink + through_lse)
    dproducts = step((dscores * s["slope"]).astype(narrow).astype(compute_dtype) * s["scale"])
    rounded = (weights * kept).astype(narrow).astype(compute_dtype)
    found = {"query": product(dproducts, s["k"]), "key": product(dproducts.swapaxes(-1, -2), s["q"])}
    found |= {"value": product(rounded.swapaxes(-1, -2), cotangent), "bias": dscores}
    found |= {"sinks": step(s["share"] * of_sink), "of_sink": of_sink}
    return found | {"cotangent": cotangent, "dweights": dweights, "centred": centred, "dproducts": dproducts}


def tangent(inputs: Inputs, style: Style = Style()) -> Leaves:  # noqa: B008
    """The movement of ``out`` and ``lse`` along the tangents."""
    s = _forward(inputs, np, 1, style)
    moved = _moved(inputs, s)
    found = {"tangent out": moved["out"].astype(s["out"].dtype), "tangent lse": moved["lse"]}
    return found if inputs.options.get("return_lse") else {"tangent out": found["tangent out"]}


def _moved(inputs: Inputs, s: dict[str, Any]) -> dict[str, Any]:
    """Movements of the steps of the forward: of ``softmax(c(scale q kᵀ) + bias) v`` the product rule, line by line."""
    step, product, narrow, compute_dtype = s["rounding"].step, s["rounding"].product, s["out"].dtype, s["compute_dtype"]
    given = {name: np.zeros_like(x) for name, x in inputs.arrays.items()} | inputs.extra["tangents"]
    q, k, v = (given[name].astype(compute_dtype) for name in ("query", "key", "value"))
    if s["k"].shape != k.shape:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    keys, moved_keys = (x.swapaxes(-1, -2) for x in (s["k"], k))
    products = step(product(step(q * s["scale"]), keys) + product(step(s["q"] * s["scale"]), moved_keys))
    scores = step(products * s["slope"])
    if "bias" in given:
        scores = step(scores + given["bias"].astype(compute_dtype))
    sinks = column(given["sinks"]).astype(compute_dtype) if "sinks" in given else np.zeros((), compute_dtype)
    lse = step((s["weights"] * scores).sum(-1, keepdims=True) + s["share"] * sinks)
    weights, share = step(s["weights"] * step(scores - lse)), step(s["share"] * step(sinks - lse))
    rounded, moved = (x.astype(narrow).astype(compute_dtype) for x in (s["weights"], weights))
    out = step(product(moved, s["v"]) + product(rounded, v))
    return dict(q=q, k=k, v=v, products=products, weights=weights, share=share, out=out, lse=lse[..., 0])


def second(inputs: Inputs, style: Style = Style()) -> Leaves:  # noqa: B008
    """The movement of the gradients along the tangents: of each line of ``_pulled`` the product rule."""
    s = _forward(inputs, np, 1, style)
    m, g = _moved(inputs, s), _pulled(inputs, s)
    step, product, narrow, compute_dtype = s["rounding"].step, s["rounding"].product, s["out"].dtype, s["compute_dtype"]
    weights, slope, cotangent = s["weights"], s["slope"], g["cotangent"]
    moved_dweights = product(cotangent, m["v"].swapaxes(-1, -2))
    average = step((moved_dweights * weights + g["dweights"] * m["weights"]).sum(-1, keepdims=True))
    dscores = step(m["weights"] * g["centred"] + weights * step(moved_dweights - average))
    dproducts = dscores * slope
    if (cap := inputs.options.get("softcap")) is not None:  # slope = 1 - tanh², whose derivative is -2 tanh slope / cap
        bend = -2 * np.tanh(s["products"] / compute_dtype(cap)) * slope / compute_dtype(cap)
        dproducts = step(dproducts + step(weights * g["centred"]) * bend * m["products"])
    dproducts = step(dproducts.astype(narrow).astype(compute_dtype) * s["scale"])
    rounded = m["weights"].astype(narrow).astype(compute_dtype)
    found = {
        "query": product(dproducts, s["k"]) + product(g["dproducts"], m["k"]),
        "key": product(dproducts.swapaxes(-1, -2), s["q"]) + product(g["dproducts"].swapaxes(-1, -2), m["q"]),
        "value": product(rounded.swapaxes(-1, -2), cotangent),
        "bias": dscores,
        "sinks": m["share"] * g["of_sink"] - s["share"] * average,
    }
    moving = {name: x for name, x in inputs.arrays.items() if name in inputs.extra["tangents"]}
    return {f"second {name}": _to_shape(step(found[name]), x, name).astype(x.dtype) for name, x in moving.items()}


def formula(direction: str, in_jax: bool, style: Style = Style()) -> Callable[[Inputs], Leaves]:  # noqa: B008
    """The dense formula in a direction: by hand in NumPy, or by JAX.

    By JAX it is compiled once, with the options of the first call.
    """
    name = direction.partition(",")[0]
    name = "gradient" if "gradient" in name else name
    if in_jax:
        return _by_jax(name, style)
    by_hand: dict[str, Callable[..., Leaves]] = {"gradient": gradient, "jvp": tangent, "second": second}
    return functools.partial(by_hand.get(name, forward), style=style)


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
    constants = inputs.extra.get("constants", {})
    moving = {k: x for k, x in arrays.items() if k not in constants}
    mask = {k: x for k, x in given.items() if k == "mask"}

    def results(moving: Any) -> Any:
        same = {k: moving["query"] for k, kind in constants.items() if kind == SAME}
        return forward(Inputs(arrays | moving | same, inputs.options | mask, inputs.extra), jax.numpy, style=style)

    def pulled(moving: Any) -> Any:
        found, pull = jax.vjp(results, moving)
        cotangents = {"out": given["cotangent"], "lse": given.get("lse_cotangent")}
        return pull({leaf: cotangents[leaf].astype(x.dtype) for leaf, x in found.items()})[0]

    if name == "jvp":
        return jax.jvp(results, (moving,), (given["tangents"],))[1]
    if name == "second":
        return jax.jvp(pulled, (moving,), (given["tangents"],))[1]
    return pulled(moving) if name == "gradient" else results(moving)


def column(sinks: Any) -> Any:
    """Sinks (N,) beside the scores: (N, 1, 1)."""
    return sinks[:, None, None]


def _to_shape(gradient: np.ndarray, array: np.ndarray, name: str) -> np.ndarray:
    """Summed over what was repeated: the query heads of a group, the axes of a bias that were broadcast."""
    shape = array.shape
    if name == "sinks":
        return _to_shape(gradient, column(array), "")[:, 0, 0]
    if name in ("key", "value") and gradient.ndim > 2 and gradient.shape != shape:
        return gradient.reshape(*shape[:-2], -1, *shape[-2:]).sum(axis=-3)
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(k for k, size in enumerate(shape) if size == 1 and gradient.shape[k] != 1)
    return gradient.sum(axis=repeated, keepdims=True)
