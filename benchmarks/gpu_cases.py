"""The cases of the run on a GPU: shapes, numbers drawn on the device, and what is right for one key head of each."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shapes import Shape
from workload import CAP, WINDOW, Case

HEADS = "no model: 64 heads over 8 key heads, as large models have them"
SHAPES = {
    **{f"full-{T // 1024}k": Shape(2, 64, 8, T, T, 128, False, HEADS) for T in (2048, 4096, 8192, 16384)},
    **{f"causal-{T // 1024}k": Shape(2, 64, 8, T, T, 128, True, HEADS) for T in (2048, 4096, 8192, 16384)},
    "d64-full-8k": Shape(2, 64, 8, 8192, 8192, 64, False, HEADS),
    "d64-causal-8k": Shape(2, 64, 8, 8192, 8192, 64, True, HEADS),
    "left-window-8k": Shape(2, 64, 8, 8192, 8192, 128, True, f"{HEADS}; {WINDOW} keys back", "window"),
    "window-8k": Shape(2, 64, 8, 8192, 8192, 128, False, f"{HEADS}; {WINDOW} keys to either side", "window"),
    "padding-4k": Shape(2, 64, 8, 4096, 4096, 128, False, f"{HEADS}; texts of a quarter to all", "padding"),
    "segments-8k": Shape(2, 64, 8, 8192, 8192, 128, True, f"{HEADS}; four texts in each row", "segments"),
    "softcap-4k": Shape(2, 64, 8, 4096, 4096, 128, True, f"{HEADS}; scores capped as by Gemma 2", "softcap"),
    "bias-2k": Shape(2, 64, 8, 2048, 2048, 128, True, f"{HEADS}; a bias for each head, with its gradient", "bias"),
}
FIRST = (  # should the time be up: the ones that matter most
    "causal-8k", "full-8k", "softcap-4k", "padding-4k", "causal-2k", "left-window-8k", "d64-causal-8k", "segments-8k",
    "bias-2k",
)  # fmt: skip
TINY = {
    name: shape._replace(B=2, N=4, G=2, T=24, S=24, D=8)
    for name, shape in SHAPES.items()
    if name in ("full-8k", "causal-8k", "padding-4k", "left-window-8k", "segments-8k", "softcap-4k", "bias-2k")
}
MOST_SCORES = 2**27  # in a chunk of the judge


class DeviceCase(Case):
    """A case whose numbers are drawn where they are needed; of what is allowed only the ends of each row are known."""

    def _draw(self, seed: int) -> tuple[Any, ...]:
        B, N, G, T, S, D = self.shape[:6]
        sizes = [(B, N, T, D), (B, G, S, D), (B, G, S, D)] + [(1, N, T, S)] * (self.shape.variant == "bias")
        keys = jax.random.split(jax.random.key(seed), len(sizes))
        return tuple(jax.random.normal(key, size, self.dtype) for key, size in zip(keys, sizes, strict=True))

    @functools.cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The first key that each query sees, and the one after the last, (B, T)."""
        B, _, _, T, S = self.shape[:5]
        i = np.broadcast_to(np.arange(T), (B, T))
        low, high = np.zeros((B, T), int), np.full((B, T), S)
        if self.shape.causal:
            high = np.minimum(high, i + 1)
        if self.shape.variant == "window":
            low, high = np.maximum(low, i - WINDOW), np.minimum(high, i + WINDOW + 1)
        if self.shape.variant == "padding":
            high = np.minimum(high, self.lengths[:, None])
        if self.shape.variant == "segments":
            own = [(np.searchsorted(ids, ids, "left"), np.searchsorted(ids, ids, "right")) for ids in self.ids]
            first, after = (np.stack(x) for x in zip(*own, strict=True))
            low, high = np.maximum(low, first), np.minimum(high, after)
        return low, high

    @functools.cached_property
    def pairs(self) -> int:
        low, high = self.ends
        return int(np.maximum(high - low, 0).sum()) * self.shape.N


class DeviceJudge:
    """Right results for the first key head of the last text: the formula in float32, in chunks of queries.

    Its products are of full precision (no TF32). It shares no code with any contestant.
    """

    def __init__(self, case: DeviceCase) -> None:
        self.case, self.group = case, case.shape.N // case.shape.G

    def cut(self, x: Any) -> Any:
        """The part of an array (B, N or G, ., .) that belongs to the key head."""
        return x[-1:, : self.group if x.shape[1] == self.case.shape.N else 1]

    @functools.cached_property
    def right(self) -> list[np.ndarray]:
        """out and the gradients of query, key, value."""
        arrays = [self.cut(x).astype("float32") for x in (*self.case.arrays, self.case.cotangent)]
        return [np.asarray(x) for x in jax.jit(self._by_definition)(*arrays)]

    def error(self, results: list[Any]) -> float:
        """The largest difference over the largest number of each result; NaN if a result has NaN."""
        worst = 0.0
        for got, wanted in zip(results, self.right, strict=False):
            off = np.abs(np.asarray(self.cut(got), np.float64) - wanted).max() / np.abs(wanted).max()
            worst = float(np.maximum(worst, off))
        return worst

    def _by_definition(self, query: Any, key: Any, value: Any, *rest: Any) -> Any:
        *bias, cotangent = rest
        T, S, D = query.shape[-2], *key.shape[-2:]
        most = max(1, MOST_SCORES // (self.group * S))
        rows = max(n for n in range(1, T + 1) if T % n == 0 and n <= most)
        low, high = (jnp.asarray(x[-1]).reshape(-1, rows, 1) for x in self.case.ends)
        added = jnp.zeros((len(low), 1, 1, 1), jnp.float32)
        if bias:
            added = bias[0][0].reshape(self.group, -1, rows, S).swapaxes(0, 1)

        @jax.checkpoint
        def chunk(query, low, high, bias, key, value):
            scores = jnp.einsum("hid,jd->hij", query, key, precision="highest") / math.sqrt(D)
            if self.case.shape.variant == "softcap":
                scores = CAP * jnp.tanh(scores / CAP)
            scores, j = scores + bias, jnp.arange(S)[None]
            weights = jax.nn.softmax(jnp.where(((j >= low) & (j < high))[None], scores, -jnp.inf), axis=-1)
            return jnp.einsum("hij,jd->hid", weights, value, precision="highest")

        def attend(query, key, value):
            chunks = query[0].reshape(self.group, -1, rows, D).swapaxes(0, 1)
            outs = lax.map(lambda one: chunk(*one, key[0, 0], value[0, 0]), (chunks, low, high, added))
            return outs.swapaxes(0, 1).reshape(1, self.group, T, -1)

        out, pull = jax.vjp(attend, query, key, value)
        return out, *pull(cotangent)
