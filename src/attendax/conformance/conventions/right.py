"""Right results: the specification in float64, in every direction.

Large inputs are computed by ``formula``, which is held to it, and what that does not take in parts: memory stays within
some 64 MiB beside inputs and results.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from attendax import spec

from .. import differences
from ..cases.case import ARRAYS, SAME, Inputs, Leaves
from ..cases.case import allowed_pairs as allowed_pairs
from . import formula
from .parts import Function, by_formula_where_large, in_parts
from .values import Conventions, law

KINKED = "ReLU", "top"  # weights of which a finite difference may cross a kink
OF_A_ROW = {"empty", "fill", "order", "softcap", "cap", "lse", "given_scale"}  # axes by which no row looks at another
OF_WIDTH = ("1", "1/D")  # scales that the lengths do not change


class Modifier(NamedTuple):
    """A score modifier as the specification reads it: those of ``attendax.scores`` load JAX, as pytrees of it."""

    kind: str
    arrays: tuple[Any, ...]
    settings: tuple[Any, ...]

    def replace(self, arrays: tuple[Any, ...]) -> "Modifier":
        """The inputs with gradients in place of their arrays."""
        return self._replace(arrays=arrays)

    def sinks(self) -> list[Any]:
        """The logits of each sink in it."""
        return list(self.arrays) if self.kind == "sink" else [x for part in self.arrays for x in part.sinks()]


@by_formula_where_large(formula.forward)
@in_parts
def forward(inputs: Inputs) -> Leaves:
    """``out``, and ``lse`` where it is asked for."""
    arrays, options = _for_spec(inputs)
    out, lse = spec.attention(**arrays, **options, return_lse=True)
    return {"out": out, "lse": lse} if inputs.options.get("return_lse") else {"out": out}


@by_formula_where_large(formula.gradient)
@in_parts
def gradient(inputs: Inputs) -> Leaves:
    """Gradients of Σ cotangent · out (+ Σ lse_cotangent · lse) with respect to every floating array."""
    arrays, options = _for_spec(inputs)
    cotangent = np.asarray(inputs.extra["cotangent"], np.float64)
    if "lse_cotangent" in inputs.extra:
        options["grad_lse"] = np.asarray(inputs.extra["lse_cotangent"], np.float64)
    found = spec.attention_backward(cotangent, **arrays, **options)
    of_sinks = [] if found.grad_score_mod is None else found.grad_score_mod.sinks()
    by_name = dict(zip(ARRAYS, (*found[:4], *of_sinks), strict=False))
    return {f"grad {name}": by_name[name] for name in inputs.arrays}


def leaves(inputs: Inputs, direction: str, results: Function = forward, gradients: Function = gradient) -> Leaves:
    """Right results in a direction; or those of a function that has other results and gradients."""
    name = direction.partition(",")[0]
    function = gradients if "gradient" in name or name == "second" else results
    return around(inputs, functools.partial(_along, function=function) if name in ("jvp", "second") else function)


def by_conventions(
    inputs: Inputs, direction: str, conventions: Conventions, saved: Conventions | None = None
) -> Leaves:
    """Results by conventions in a direction; ``saved`` are those of its forward, where they differ.

    It raises one of several errors where a line makes no sense of such a call.
    """
    if direction.startswith("jvp") and conventions.value("weights").startswith(KINKED):
        raise NotImplementedError(f"no tangent is known if {conventions.line('weights').words}")
    normed = conventions.value("norm") != law("norm") and not direction.startswith("forward")
    if normed and any((inputs.arrays[name] == 0).all(-1).any() for name in ("query", "key")):
        raise NotImplementedError(f"no derivative is known at a length of 0 if {conventions.line('norm').words}")
    results: Function = functools.partial(formula.forward, conventions=conventions)
    gradients: Function = functools.partial(formula.gradient, conventions=conventions, saved=saved)
    axes = {axis for axis, x in conventions.off if axis != "scale" or x not in OF_WIDTH}
    if axes <= OF_A_ROW and not saved:
        results, gradients = in_parts(results), in_parts(gradients)
    with np.errstate(all="ignore"):
        return leaves(inputs, direction, results, gradients)


def _along(inputs: Inputs, function: Function) -> Leaves:
    """The movement of results or gradients along the tangents, by finite differences."""
    tangents: Leaves = inputs.extra["tangents"]
    names: list[str] = []

    def at(*moved: np.ndarray) -> list[np.ndarray]:
        found = function(inputs._replace(arrays=inputs.arrays | dict(zip(tangents, moved, strict=True))))
        names[:] = found  # in this order, which a dict would lose
        return list(found.values())

    moves = differences.of_numpy(at, [inputs.arrays[name] for name in tangents], list(tangents.values()))
    names = [leaf.replace("grad", "second") if leaf.startswith("grad") else f"tangent {leaf}" for leaf in names]
    return dict(zip(names, moves, strict=True))


def around(inputs: Inputs, function: Function) -> Leaves:
    """Results of a function with what a case does around the call.

    It is called for each index of ``mapped`` axes. ``changed`` arrays hold other numbers; constants have no gradient;
    ``weights`` project query, key and value; of one array in several places the gradient is the sum of theirs.
    """
    inputs, weights = _as_called(inputs), inputs.extra.get("weights")
    constants = inputs.extra.get("constants", {})
    found = dict(_mapped(inputs, function) if "mapped" in inputs.extra else function(inputs))
    for leaf in [k for k in found if constants.get(_of(k)) == SAME and "grad query" in found]:
        found["grad query"] = found["grad query"] + found[leaf]
    found = {k: x for k, x in found.items() if _of(k) not in constants}
    if weights is None:
        return found
    return {k: x @ weights.T if _of(k) in ARRAYS[:3] else x for k, x in found.items()}


def _mapped(inputs: Inputs, function: Function) -> Leaves:
    """A function for each index of the axes in ``extra["mapped"]`` (a name to its axis, or None), stacked."""
    axes = inputs.extra["mapped"]
    mapped = {name: axis for name, axis in axes.items() if axis is not None}
    size = next(inputs.arrays[name].shape[axis] for name, axis in mapped.items() if name in inputs.arrays)

    def at(k: int) -> Leaves:
        def take(given: dict[str, Any]) -> dict[str, Any]:
            return {n: x if axes.get(n) is None else np.take(x, k, axes[n]) for n, x in given.items()}

        cotangents = {name: x[k] for name, x in inputs.extra.items() if name == "cotangent"}
        return function(Inputs(take(inputs.arrays), take(inputs.options), inputs.extra | cotangents))

    each = [at(k) for k in range(size)]
    return {leaf: np.stack([x[leaf] for x in each]) for leaf in each[0]}


def _as_called(inputs: Inputs) -> Inputs:
    """Arguments of the function itself."""
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


def _for_spec(inputs: Inputs) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and options as ``spec.attention`` takes them, in float64."""
    arrays = {name: np.asarray(x, np.float64) for name, x in inputs.arrays.items()}
    sinks, cap = arrays.pop("sinks", None), inputs.options.get("softcap")
    options: dict[str, Any] = {"mask": _allowed(inputs)}
    if inputs.options.get("scale") is not None:
        options["scale"] = inputs.options["scale"]
    modifiers = [] if cap is None else [Modifier("softcap", (), (float(cap),))]
    modifiers += [] if sinks is None else [Modifier("sink", (sinks,), ())]
    if modifiers:
        options["score_mod"] = Modifier("compose", tuple(modifiers), ())
    return arrays, options


def _allowed(inputs: Inputs) -> np.ndarray:
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    return np.broadcast_to(allowed_pairs(inputs), (*query.shape[:-1], key.shape[-2]))


def empty_rows(inputs: Inputs) -> np.ndarray:
    """Queries that may look at no key: boolean (..., N, T). A sink is a key that all may look at."""
    allowed = _allowed(inputs) & (inputs.arrays["bias"] != -np.inf if "bias" in inputs.arrays else True)
    return np.asarray(~allowed.any(axis=-1) & ("sinks" not in inputs.arrays))
