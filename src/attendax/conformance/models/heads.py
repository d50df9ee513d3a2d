"""The heads of a layer are attention by its definition: its results beside those of its weights, in float64."""

import numpy as np

from attendax import spec

from .blackbox import Request
from .padding import padded_request
from .trial import SIDES, Found, Laws, Trial, equal, true
from .weights import NAMES

SLACK = 4.0  # times what two orders of the same sums may be apart: these are sums in float64
USUAL = (
    "another order of heads or of q, k and v in the weights, a scale that is not 1/sqrt of a head's width, or a bias "
    "that is left out"
)
SIZES = {"one token": {"size": (2, 1)}, "a short text": {"size": (2, 6)}, "a long text": {"size": (1, 130)}}
laws = Laws("heads")


@laws.ask("heads: padding, {}", "the same of real tokens beside padding", "heads", "{} padding", of=SIDES)
@laws.ask("heads: {}", "the results are attention of the layer's weights", "heads", of=SIZES)
def _heads(trial: Trial, size: tuple[int, int] = (0, 0), side: str = "") -> Found:
    """Hold the results of real tokens against the definition."""
    if side:
        request, real = padded_request(trial, side, (9, 5, 1, 7))
    else:
        request = Request(trial.texts(size[0], trial.model.lengths(size[1:])[0]))
        real = np.ones(request.tokens.shape, bool)
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
        (inputs @ known[f"W_{part}"] + known.get(f"b_{part}", 0.0)).reshape(*tokens.shape, heads, -1).swapaxes(1, 2)
        for part, heads in (("Q", count), ("K", groups), ("V", groups))
    )
    visible = np.broadcast_to(real[:, None, None, :], (len(real), 1, real.shape[1], real.shape[1]))
    from attendax import masks  # it loads JAX

    mask = masks.dense(visible & trial.model.visible.pairs(real.shape[1]).T)
    found = np.asarray(spec.attention(queries, keys, values, mask=mask))
    merged = found.swapaxes(1, 2).reshape(*tokens.shape, -1)
    return merged @ known["W_O"] + known.get("b_O", 0.0)
