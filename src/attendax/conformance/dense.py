"""The plain dense formula in the dtype of the inputs: how large an error is nobody's fault (L8).

Scores, softmax and sums in float32 at least; below that, weights and what is multiplied by them in the dtype itself,
which is how everyone writes it.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .cases.case import Inputs, Leaves
from .expected import allowed_pairs


def forward(inputs: Inputs, xp: Any = np, kept: Any = 1) -> Leaves:
    """``out`` and ``lse``; with ``xp=jax.numpy`` to be differentiated by JAX."""
    steps = _forward(inputs, xp, kept)
    given = {"out": steps["out"], "lse": steps["lse"]}
    return given if inputs.options.get("return_lse") else {"out": given["out"]}


def _forward(inputs: Inputs, xp: Any, kept: Any) -> dict[str, Any]:
    query, key, value = (inputs.arrays[name] for name in ("query", "key", "value"))
    wide: Any = np.float64 if query.dtype == np.float64 else np.float32
    q, k, v = (x.astype(wide) for x in (query, key, value))
    if q.ndim > 2 and k.shape[-3] != q.shape[-3]:
        k, v = (xp.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    scale = wide(inputs.options.get("scale", 1 / np.sqrt(q.shape[-1])))
    products = (q * scale) @ k.swapaxes(-1, -2)
    cap = inputs.options.get("softcap")
    scores = products if cap is None else wide(cap) * xp.tanh(products / wide(cap))
    if "bias" in inputs.arrays:
        scores = scores + inputs.arrays["bias"].astype(wide)
    scores = xp.where(allowed_pairs(inputs), scores, -np.inf)
    largest = xp.max(scores, axis=-1, keepdims=True, initial=np.finfo(wide).min)
    powers = xp.exp(scores - largest)
    total = powers.sum(axis=-1, keepdims=True)
    weights = powers / xp.where(total == 0, 1, total)
    rounded = (weights * kept).astype(query.dtype).astype(wide)
    out = (rounded @ v).astype(query.dtype)
    lse = (largest + xp.log(total))[..., 0]
    return dict(q=q, k=k, v=v, scale=scale, products=products, weights=weights, out=out, lse=lse, wide=wide)


def gradient(inputs: Inputs, kept: Any = 1) -> Leaves:
    """By hand, as in ``spec.attention_backward``."""
    s = _forward(inputs, np, kept)
    narrow, wide = s["out"].dtype, s["wide"]
    cotangent = inputs.extra["cotangent"].astype(wide)
    dweights = (cotangent @ s["v"].swapaxes(-1, -2)) * kept
    weights = s["weights"]
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdims=True))
    if "lse_cotangent" in inputs.extra:
        dscores = dscores + weights * inputs.extra["lse_cotangent"].astype(wide)[..., None]
    dproducts = dscores
    if inputs.options.get("softcap") is not None:
        dproducts = dscores * (1 - np.tanh(s["products"] / wide(inputs.options["softcap"])) ** 2)
    dproducts = dproducts.astype(narrow).astype(wide) * s["scale"]
    rounded = (weights * kept).astype(narrow).astype(wide)
    found = {"query": dproducts @ s["k"], "key": dproducts.swapaxes(-1, -2) @ s["q"]}
    found |= {"value": rounded.swapaxes(-1, -2) @ cotangent, "bias": dscores}
    return {f"grad {name}": _to_shape(found[name], x, name).astype(x.dtype) for name, x in inputs.arrays.items()}


def formula(direction: str, in_jax: bool) -> Callable[[Inputs], Leaves]:
    """The dense formula in a direction: by hand in NumPy, or by JAX, which all but the first two are.

    By JAX it is compiled once, with the options of the first call.
    """
    name = direction.partition(",")[0]
    if "gradient" in name and not in_jax:
        return gradient
    if name in ("jvp", "second") or in_jax:
        return _by_jax("gradient" if "gradient" in name else name)
    return forward


def _by_jax(name: str) -> Callable[[Inputs], Leaves]:
    import jax

    prefix = {"jvp": "tangent ", "second": "second ", "gradient": "grad "}.get(name, "")
    compiled: list[Any] = []

    def run(inputs: Inputs) -> Leaves:
        given = {k: x for k, x in inputs.extra.items() if k in ("cotangent", "lse_cotangent", "tangents")}
        with jax.enable_x64(inputs.arrays["query"].dtype == np.float64):
            if not compiled:
                compiled.append(jax.jit(functools.partial(_differentiated, name, inputs, jax)))
            found = compiled[0](dict(inputs.arrays), given)
        return {prefix + leaf: np.asarray(x) for leaf, x in found.items()}

    return run


def _differentiated(name: str, inputs: Inputs, jax: Any, arrays: Any, given: Any) -> Any:
    moving = {k: x for k, x in arrays.items() if k not in inputs.extra.get("constants", {})}

    def results(moving: Any) -> Any:
        return forward(inputs._replace(arrays=arrays | moving), jax.numpy)

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
    if name in ("key", "value") and gradient.ndim > 2 and gradient.shape != shape:
        return gradient.reshape(*shape[:-2], -1, *shape[-2:]).sum(axis=-3)
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(k for k, size in enumerate(shape) if size == 1 and gradient.shape[k] != 1)
    return gradient.sum(axis=repeated, keepdims=True)
