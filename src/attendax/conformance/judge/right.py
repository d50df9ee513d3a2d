"""What is right: the specification in float64, in every direction, and what a declared convention makes of it.

Large inputs are computed by ``quick``, which is held to it, and what that does not take in parts: memory stays within
some 64 MiB beside inputs and results.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attendax import spec

from .. import differences
from ..cases.allowed import allowed_pairs as allowed_pairs
from ..cases.case import ARRAYS, GRADIENT_HELD, HELD, SAME, Inputs, Leaves
from . import quick
from .parts import in_parts


class Modifier(NamedTuple):
    """A score modifier as the specification reads it: those of ``attendax.scores`` load JAX, as pytrees of it."""

    kind: str
    arrays: tuple[Any, ...]
    settings: tuple[Any, ...]

    def replace(self, arrays: tuple[Any, ...]) -> "Modifier":
        """With gradients in place of its arrays."""
        return self._replace(arrays=arrays)

    def sinks(self) -> list[Any]:
        """The logits of each sink in it."""
        return list(self.arrays) if self.kind == "sink" else [x for part in self.arrays for x in part.sinks()]


in_blocks = functools.partial(in_parts, allowed=allowed_pairs)


@quick.at_large_sizes(quick.forward)
@in_blocks
def forward(inputs: Inputs, **conventions: Any) -> Leaves:
    """``out``, and ``lse`` where it is asked for."""
    arrays, options = _for_spec(inputs, **conventions)
    out, lse = spec.attention(**arrays, **options, return_lse=True)
    return {"out": out, "lse": lse} if inputs.options.get("return_lse") else {"out": out}


@quick.at_large_sizes(quick.gradient)
@in_blocks
def gradient(inputs: Inputs, **conventions: Any) -> Leaves:
    """Gradients of Σ cotangent · out (+ Σ lse_cotangent · lse) with respect to every floating array."""
    arrays, options = _for_spec(inputs, **conventions)
    cotangent = np.asarray(inputs.extra["cotangent"], np.float64)
    if "lse_cotangent" in inputs.extra:
        options["grad_lse"] = np.asarray(inputs.extra["lse_cotangent"], np.float64)
    found = spec.attention_backward(cotangent, **arrays, **options)
    of_sinks = [] if found.grad_score_mod is None else found.grad_score_mod.sinks()
    by_name = dict(zip(ARRAYS, (*found[:4], *of_sinks), strict=False))
    return {f"grad {name}": by_name[name] for name in inputs.arrays}


def jvp(inputs: Inputs, **conventions: Any) -> Leaves:
    """How the results move along the tangents."""
    return {f"tangent {name}": x for name, x in along(inputs, functools.partial(forward, **conventions)).items()}


def second(inputs: Inputs, **conventions: Any) -> Leaves:
    """How the gradients move along the tangents: the Hessian of Σ cotangent · out times the tangents."""
    moved = along(inputs, functools.partial(gradient, **conventions))
    return {name.replace("grad", "second"): x for name, x in moved.items()}


def along(inputs: Inputs, function: Callable[[Inputs], Leaves]) -> Leaves:
    """How what a function gives moves along the tangents, by finite differences."""
    tangents: Leaves = inputs.extra["tangents"]
    leaves: list[str] = []

    def at(*moved: np.ndarray) -> list[np.ndarray]:
        found = function(inputs._replace(arrays=inputs.arrays | dict(zip(tangents, moved, strict=True))))
        leaves[:] = found  # in this order, which a dict would lose
        return list(found.values())

    moves = differences.of_numpy(at, [inputs.arrays[name] for name in tangents], list(tangents.values()))
    return dict(zip(leaves, moves, strict=True))


def mapped(inputs: Inputs, function: Callable[..., Leaves], **conventions: Any) -> Leaves:
    """``function`` for each index of the axes in ``extra["mapped"]`` (a name to its axis, or None), stacked."""
    axes = inputs.extra["mapped"]
    size = next(
        inputs.arrays[name].shape[axis] for name, axis in axes.items() if axis is not None and name in inputs.arrays
    )

    def at(k: int) -> Leaves:
        def take(given: dict[str, Any]) -> dict[str, Any]:
            return {n: x if axes.get(n) is None else np.take(x, k, axes[n]) for n, x in given.items()}

        extra = dict(inputs.extra)
        if "cotangent" in extra:
            extra["cotangent"] = extra["cotangent"][k]
        return function(Inputs(take(inputs.arrays), take(inputs.options), extra), **conventions)

    each = [at(k) for k in range(size)]
    return {leaf: np.stack([x[leaf] for x in each]) for leaf in each[0]}


def in_context(function: Callable[..., Leaves]) -> Callable[..., Leaves]:
    """The same with what a case does around the call.

    ``changed`` arrays hold other numbers; constants have no gradient; ``weights`` project query, key and value; of one
    array in several places the gradient is the sum of theirs.
    """

    def run(inputs: Inputs, **conventions: Any) -> Leaves:
        inputs, weights = _as_called(inputs), inputs.extra.get("weights")
        constants = inputs.extra.get("constants", {})
        found = dict(function(inputs, **conventions))
        for leaf in [k for k in found if constants.get(_of(k)) == SAME and "grad query" in found]:
            found["grad query"] = found["grad query"] + found[leaf]
        found = {k: x for k, x in found.items() if _of(k) not in constants}
        if weights is None:
            return found
        return {k: x @ weights.T if _of(k) in ARRAYS[:3] else x for k, x in found.items()}

    return run


def _as_called(inputs: Inputs) -> Inputs:
    """What the function itself is given."""
    changed, weights = inputs.extra.get("changed", {}), inputs.extra.get("weights")
    arrays, options = ({k: changed.get(k, x) for k, x in some.items()} for some in (inputs.arrays, inputs.options))
    if weights is None:
        return Inputs(arrays, options, inputs.extra)

    def projected(given: Leaves) -> Leaves:
        return {k: x @ weights if k in ARRAYS[:3] else x for k, x in given.items()}

    tangents = {"tangents": projected(inputs.extra["tangents"])} if "tangents" in inputs.extra else {}
    return Inputs(projected(arrays), options, inputs.extra | tangents)


def _of(leaf: str) -> str:
    return leaf.partition(" ")[2]


DIRECTIONS: dict[str, Callable[..., Leaves]] = {
    "forward": forward,
    "gradient": gradient,
    "jvp": jvp,
    "second, forward over reverse": second,
    "second, reverse over reverse": second,
    "vmap": functools.partial(mapped, function=forward),
    "per example gradient": functools.partial(mapped, function=gradient),
    "gradient under checkpoint": gradient,
    "eager": forward,
    "changed in place": forward,
    HELD: forward,
    GRADIENT_HELD: gradient,
    **{f"gradient of a loss, {how}": gradient for how in ("sum", "mean", "a row")},
}
BY_DIRECTION = {direction: in_context(function) for direction, function in DIRECTIONS.items()}


def _for_spec(inputs: Inputs, *, causal_to_the_end: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and options as ``spec.attention`` takes them, in float64."""
    arrays = {name: np.asarray(x, np.float64) for name, x in inputs.arrays.items()}
    sinks = arrays.pop("sinks", None)
    query, key = arrays["query"], arrays["key"]
    allowed = allowed_pairs(inputs, causal_to_the_end=causal_to_the_end)
    shape = (*query.shape[:-1], key.shape[-2])
    options: dict[str, Any] = {"mask": np.broadcast_to(allowed, shape)}
    if inputs.options.get("scale") is not None:
        options["scale"] = inputs.options["scale"]
    cap = inputs.options.get("softcap")
    modifiers = [] if cap is None else [Modifier("softcap", (), (float(cap),))]
    modifiers += [] if sinks is None else [Modifier("sink", (sinks,), ())]
    if modifiers:
        options["score_mod"] = Modifier("compose", tuple(modifiers), ())
    return arrays, options


def with_mean_of_values(inputs: Inputs, leaves: Leaves, **conventions: Any) -> Leaves:
    """The same where a query without any key gets the mean of all values, and a zero cotangent no gradient."""
    empty = empty_rows(inputs, **conventions)
    value = np.asarray(inputs.arrays["value"], np.float64)
    groups = empty.shape[-2] // value.shape[-3] if value.ndim > 2 else 1
    leaves = dict(leaves)
    for leaf, x in (("out", value), ("tangent out", inputs.extra.get("tangents", {}).get("value"))):
        if leaf in leaves:
            mean = np.asarray(x, np.float64).sum(axis=-2, keepdims=True) / max(value.shape[-2], 1)
            mean = np.repeat(mean, groups, axis=-3) if value.ndim > 2 else mean
            leaves[leaf] = np.where(empty[..., None], mean, leaves[leaf])
    if "grad value" in leaves:
        through = np.where(empty[..., None], np.asarray(inputs.extra["cotangent"], np.float64), 0).sum(
            -2, keepdims=True
        )
        if value.ndim > 2:
            through = through.reshape(*value.shape[:-2], groups, -1).sum(-2)[..., None, :]
        leaves["grad value"] = leaves["grad value"] + through / max(value.shape[-2], 1)
    return leaves


def empty_rows(inputs: Inputs, **conventions: Any) -> np.ndarray:
    """Which queries may look at no key: boolean (..., N, T). A sink is a key that all may look at."""
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    allowed = np.broadcast_to(allowed_pairs(inputs, **conventions), (*query.shape[:-1], key.shape[-2]))
    if "bias" in inputs.arrays:
        allowed = allowed & (inputs.arrays["bias"] != -np.inf)
    return np.asarray(~allowed.any(axis=-1) & ("sinks" not in inputs.arrays))
