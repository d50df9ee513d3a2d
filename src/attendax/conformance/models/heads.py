"""The heads of a layer are attention by its definition: its results beside those of its weights, in float64."""

from functools import partial

import numpy as np

from attendax import spec

from .blackbox import Model, Request
from .padding import padded_request
from .trial import Found, Law, Trial, equal, true
from .weights import NAMES

SLACK = 4.0  # times what two orders of the same sums may be apart: these are sums in float64
USUAL = (
    "another order of heads or of q, k and v in the weights, a scale that is not 1/sqrt of a head's width, or a bias "
    "that is left out"
)


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    asked = {"one token": (2, 1), "a short text": (2, 6), "a long text": (1, 130)}
    found = [
        Law("heads", f"heads: {name}", "the results are attention of the layer's weights", partial(_whole, size=size),
            ("heads",))
        for name, size in asked.items()
    ]  # fmt: skip
    about = "the same of real tokens beside padding"
    for side in ("right", "left"):
        needs = ("heads", f"{side} padding")
        found.append(Law("heads", f"heads: padding, {side}", about, partial(_padded, side=side), needs))
    return found


def _whole(trial: Trial, size: tuple[int, int]) -> Found:
    rows, length = size
    request = Request(trial.texts(rows, trial.model.lengths((length,))[0]))
    return _judged(trial, request, np.ones(request.tokens.shape, bool))


def _padded(trial: Trial, side: str) -> Found:
    return _judged(trial, *padded_request(trial, side, (9, 5, 1, 7)))


def _judged(trial: Trial, request: Request, real: np.ndarray) -> Found:
    """Hold the results of real tokens against the definition."""
    expected = by_definition(trial, request.tokens, real)
    said = "is not attention of the layer's weights"
    return equal(trial, expected[real], request, true(real), said, USUAL, SLACK)


def by_definition(trial: Trial, tokens: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Multi-head attention of the weights, in float64: (B, T, M)."""
    weights = {name: trial.ask(Request(tokens[:1, :1], read=name)) for name in NAMES}
    known = {name: x for name, x in weights.items() if x.size}
    count = int(known["num_heads"])
    inputs = trial.model.vectors(tokens).astype(np.float64)
    size = known["W_Q"].shape[-1] // count
    groups = known["W_K"].shape[-1] // size
    queries, keys, values = (
        _split(inputs @ known[f"W_{part}"] + known.get(f"b_{part}", 0.0), heads)
        for part, heads in (("Q", count), ("K", groups), ("V", groups))
    )
    visible = np.broadcast_to(real[:, None, None, :], (len(real), 1, real.shape[1], real.shape[1]))
    from attendax import masks  # it loads JAX

    mask = masks.dense(visible & trial.model.visible.pairs(real.shape[1]).T)
    found = np.asarray(spec.attention(queries, keys, values, mask=mask))
    merged = found.swapaxes(1, 2).reshape(*tokens.shape, -1)
    return merged @ known["W_O"] + known.get("b_O", 0.0)


def _split(x: np.ndarray, heads: int) -> np.ndarray:
    """(B, T, N·D) -> (B, N, T, D)."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)
