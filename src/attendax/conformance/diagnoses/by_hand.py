"""The formula in float64, step by step, forward and backward: with a place for each of some mistakes."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..cases.case import Inputs, Leaves
from .hypothesis import allowed

Scored = Callable[[Inputs, "Steps"], np.ndarray | None]  # other scores of a call, -inf where a key is not seen


class Steps(NamedTuple):
    """The arrays of a call in float64, key heads repeated, and what is computed of them."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    bias: np.ndarray
    scale: float
    cap: float | None
    products: np.ndarray
    seen: np.ndarray
    sinks: np.ndarray  # of each head, one more key of value 0; -inf where there is none

    def capped(self, x: np.ndarray) -> np.ndarray:
        """Through the softcap, where there is one."""
        return x if self.cap is None else self.cap * np.tanh(x / self.cap)

    @property
    def plain(self) -> np.ndarray:
        """The scores, before a mask."""
        return self.capped(self.products * self.scale) + self.bias

    @property
    def scores(self) -> np.ndarray:
        """The scores, -inf where a key is not seen."""
        return np.where(self.seen, self.plain, -np.inf)


def steps(inputs: Inputs) -> Steps:
    """Of a call."""
    arrays = {name: np.asarray(x, np.float64) for name, x in inputs.arrays.items()}
    q, k, v = (arrays[name] for name in ("query", "key", "value"))
    if q.ndim > 2 and k.shape[-3] != q.shape[-3]:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    given = inputs.options.get("scale")
    return Steps(
        q, k, v, arrays.get("bias", np.zeros(())), q.shape[-1] ** -0.5 if given is None else given,
        inputs.options.get("softcap"), q @ k.swapaxes(-1, -2), allowed(inputs),
        arrays["sinks"][:, None, None] if "sinks" in arrays else np.full((), -np.inf),
    )  # fmt: skip


def lse_of(scores: np.ndarray, axis: int = -1, sinks: np.ndarray | float = -np.inf) -> np.ndarray:
    """The log-sum-exp of each row and its sink; the axis stays, and it is -inf where there is nothing."""
    largest = np.max(scores, axis=axis, keepdims=True, initial=-1e300)
    return np.logaddexp(largest + np.log(np.exp(scores - largest).sum(axis=axis, keepdims=True)), sinks)


def weights(scores: np.ndarray, lse: np.ndarray) -> np.ndarray:
    """exp(scores - lse); 0 in rows that see nothing."""
    return np.exp(scores - np.where(lse == -np.inf, 0, lse))


def forward(inputs: Inputs, scores: np.ndarray) -> Leaves:
    """The result with these scores, and its lse where that is asked for."""
    s = steps(inputs)
    lse = lse_of(scores, sinks=s.sinks)
    found = {"out": weights(scores, lse) @ s.v, "lse": lse[..., 0]}
    return found if inputs.options.get("return_lse") else {"out": found["out"]}


def backward(
    inputs: Inputs,
    scores: np.ndarray | None = None,
    saved: Inputs | None = None,
    *,
    row: Callable[[np.ndarray], np.ndarray] | None = None,
    cap: bool = True,
    through_lse: float = 1.0,
    power: int = 1,
    group: Callable[[np.ndarray], np.ndarray] | None = None,
    of_bias: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Leaves:
    """The gradients with these scores.

    Args:
        inputs: of the call.
        scores: in place of its own.
        saved: the call whose lse and delta are used, as a backward uses those that its forward has saved.
        row: delta, of P · dP; the sum of each row unless given.
        cap: whether the derivative of the softcap counts.
        through_lse: what the cotangent of lse is multiplied by.
        power: of the scale that gradients of queries and keys are multiplied by.
        group: of the gradients of all query heads of a group (axis -3); their sum unless given.
        of_bias: what of the gradient of the scores goes to the bias; all of it unless given.
    """
    s, before = steps(inputs), steps(inputs if saved is None else saved)
    scores = s.scores if scores is None else scores
    kept = before.scores if saved is not None else scores
    lse, cotangent = lse_of(kept, sinks=before.sinks), np.asarray(inputs.extra["cotangent"], np.float64)
    p, dp = weights(scores, lse), cotangent @ s.v.swapaxes(-1, -2)
    of_row = p * dp if saved is None else weights(kept, lse) * (cotangent @ before.v.swapaxes(-1, -2))
    ds = p * (dp - (of_row.sum(axis=-1, keepdims=True) if row is None else row(of_row)))
    if "lse_cotangent" in inputs.extra:
        ds = ds + through_lse * p * np.asarray(inputs.extra["lse_cotangent"], np.float64)[..., None]
    slope = 1 - np.tanh(s.products * s.scale / s.cap) ** 2 if s.cap is not None and cap else 1.0
    pulled = ds * slope * s.scale**power
    found = {"grad query": pulled @ s.k, "grad key": pulled.swapaxes(-1, -2) @ s.q}
    found |= {"grad value": p.swapaxes(-1, -2) @ cotangent}
    for leaf in ("grad key", "grad value"):
        shape = inputs.arrays[leaf.removeprefix("grad ")].shape
        if found[leaf].shape != shape:
            heads = found[leaf].reshape(*shape[:-2], -1, *shape[-2:])
            found[leaf] = heads.sum(axis=-3) if group is None else group(heads)
    if "bias" in inputs.arrays:
        found["grad bias"] = summed_to(ds if of_bias is None else of_bias(ds), inputs.arrays["bias"].shape)
    return found


def summed_to(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Summed over the axes along which an array of a shape is repeated."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    return gradient.sum(axis=tuple(k for k, size in enumerate(shape) if size == 1), keepdims=True)
