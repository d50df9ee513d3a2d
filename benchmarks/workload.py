"""A case: a named shape with its numbers, the same for every contestant, and how often it multiplies and adds."""

import functools

import jax.numpy as jnp
import numpy as np

from attendax import masks, scores
from shapes import Shape

WINDOW, CAP, RATE = 256, 50.0, 0.1
MEASURES = ("forward", "backward", "jvp", "hvp")  # "backward" is the forward and the backward
WORK = {"forward": 1.0, "backward": 3.5, "jvp": 2.0, "hvp": 9.0}  # in forwards: 2 products, +5; each with its tangent


class Case:
    """The numbers of a shape in a dtype: NumPy's arrays (B, heads, length, width), key and value of G heads."""

    def __init__(self, name: str, shape: Shape, dtype: str = "float32", *, dropout: bool = True) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.rate = RATE if shape.variant == "dropout" and dropout else 0.0

    def without_dropout(self) -> "Case":
        return Case(self.name, self.shape, self.dtype, dropout=False)

    @functools.cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Query, key, value, and where the case has one the bias: what gets a gradient."""
        return self._draw(0)

    @functools.cached_property
    def tangents(self) -> tuple[np.ndarray, ...]:
        return self._draw(1)

    @functools.cached_property
    def cotangent(self) -> np.ndarray:
        return self._draw(2)[0]  # value is as wide as query

    def _draw(self, seed: int) -> tuple[np.ndarray, ...]:
        B, N, G, T, S, D = self.shape[:6]
        rng = np.random.default_rng(seed)
        sizes = [(B, N, T, D), (B, G, S, D), (B, G, S, D)] + [(1, N, T, S)] * (self.shape.variant == "bias")
        drawn = (rng.standard_normal(size, np.float32) for size in sizes)
        return tuple(x.astype(jnp.dtype(self.dtype)) for x in drawn)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """The number of real keys of each text: from a quarter to all of them."""
        S = self.shape.S
        return np.random.default_rng(3).integers(S // 4, S + 1, self.shape.B, np.int32)

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """Four texts in a row, of lengths that differ from row to row."""
        B, T = self.shape.B, self.shape.T
        ends = np.sort(np.random.default_rng(4).integers(1, T, (B, 1, 3)))
        return (np.arange(T)[:, None] >= ends).sum(-1, dtype=np.int32)

    @functools.cached_property
    def slopes(self) -> np.ndarray:
        N = self.shape.N
        return (2.0 ** (-8.0 * np.arange(1, N + 1) / N)).astype(np.float32)

    @property
    def mask(self) -> masks.Mask | None:
        made = {
            "padding": lambda: masks.padding(self.lengths),
            "window": lambda: masks.window(WINDOW, WINDOW),
            "segments": lambda: masks.segments(self.ids, self.ids),
        }
        parts = [made[self.shape.variant]()] if self.shape.variant in made else []
        parts += [masks.causal()] * self.shape.causal
        return functools.reduce(lambda a, b: a & b, parts) if parts else None

    @property
    def score_mod(self) -> scores.ScoreModifier | None:
        if self.shape.variant == "softcap":
            return scores.softcap(CAP)
        return scores.alibi(self.slopes) if self.shape.variant == "alibi" else None

    @functools.cached_property
    def allowed(self) -> np.ndarray | None:
        """The mask in full, (B or 1, 1, T, S); None where every pair is allowed."""
        if self.mask is None:
            return None
        full = self.mask.to_dense(self.shape.T, self.shape.S)
        return np.asarray(full).reshape(-1, 1, self.shape.T, self.shape.S)

    @functools.cached_property
    def added(self) -> np.ndarray | None:
        """ALiBi in full, (1, N, T, S), for those who know it as a bias only."""
        if self.shape.variant != "alibi":
            return None
        distance = np.abs(np.arange(self.shape.T)[:, None] - np.arange(self.shape.S))
        return (-self.slopes[None, :, None, None] * distance).astype(jnp.dtype(self.dtype))

    @functools.cached_property
    def pairs(self) -> int:
        """The number of pairs of a query and a key, over heads and texts, that the masks leave."""
        B, N, _, T, S = self.shape[:5]
        if self.allowed is None:
            return B * N * T * S
        return int(self.allowed.sum()) * N * (B // self.allowed.shape[0])

    def flops(self, measure: str) -> float:
        """Operations of the products: 4 D for every pair forward, 2.5 times that backward; tangents of all double it.

        Work that a path does again, or beyond the mask, does not count: it is the same number for everyone.
        """
        return 4 * self.shape.D * self.pairs * WORK[measure]

    @property
    def compulsory_bytes(self) -> int:
        """The bytes that the forward must at least read and write: its inputs and the result."""
        return sum(x.nbytes for x in self.arrays) + self.arrays[0].nbytes
