"""A model on trial: what it computes, asked once each; texts to ask about; and how far apart two results may be."""

from typing import NamedTuple

import numpy as np

from ..judge.verdicts import Finding, Verdict
from .blackbox import Model
from .request import LONGER, Request

ROUNDING = {"float64": 2**20, "float32": 128.0}  # times the spacing of numbers; of narrower ones the last
NARROW = 8.0
MOST_NOISE = 1e-4  # more than that is not rounding


class Evidence(NamedTuple):
    """Two requests, a place of each, and what has to be of the two.

    ``one`` may be the numbers (C,) that are right. ``kind`` is "equal", "other", "finite", "zero", "some", or "mean":
    the mean of ``other`` over seeds is in the direction of ``one`` what that is.
    """

    one: Request | np.ndarray
    other: Request
    at: tuple[int, int]  # row and position
    beside: tuple[int, int]
    allowed: float
    kind: str = "equal"


class Found(NamedTuple):
    """What a law found: a verdict, what shows it, and what is usually the cause."""

    finding: Finding
    evidence: Evidence | None = None
    usual: str = ""


FINE = Found(Finding(Verdict.OK))


class Trial:
    """A model, with its answers."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.seed = model, seed
        self.noise = 0.0
        self.fit: str | None = None  # what the model sees, once that was measured
        self._answers: dict[tuple[object, ...], np.ndarray] = {}

    def ask(self, request: Request) -> np.ndarray:
        """Results (B, T, C), or the gradient (B, T, M)."""
        key = request.key
        if key not in self._answers:
            self._answers[key] = self.model.run(request)
        return self._answers[key]

    def texts(self, rows: int, length: int, *, salt: int = 0) -> np.ndarray:
        """Tokens (rows, length), no two neighbours equal; the same again for the same numbers.

        With a salt, those of vectors have one length.
        """
        rng = np.random.default_rng((self.seed, rows, length, salt))
        known = self._known(salt)
        found = rng.integers(len(known), size=(rows, length))
        found[:, 1:] += found[:, 1:] == found[:, :-1]
        return known[found % len(known)].astype(np.int32)

    def _known(self, salt: int) -> np.ndarray:
        known = self.model.known_tokens
        return known[known < LONGER] if salt and self.model.inputs == "vectors" else known

    def others(self, tokens: np.ndarray, *, salt: int = 0) -> np.ndarray:
        """Other tokens at each place."""
        known = self.model.known_tokens
        rng = np.random.default_rng((self.seed, *tokens.shape, salt, 1))
        moved = np.searchsorted(known, tokens) + rng.integers(1, len(known), size=tokens.shape)
        return known[moved % len(known)].astype(np.int32)

    def allowed(self, results: np.ndarray) -> np.ndarray:
        """How far each position's result may be off by rounding: (..., C) -> (...)."""
        size = np.abs(np.where(np.isfinite(results), results, 0)).max(-1, initial=0.0)
        size = np.maximum(size, 1e-3 * size.max(initial=0.0))
        return size * max(self.relative(results), 8 * self.noise)

    def relative(self, results: np.ndarray) -> float:
        """The same, as a share of the result."""
        if self.model.bits:
            return 0.0
        dtype = self.model.dtype
        return ROUNDING.get(dtype, NARROW) * {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10}.get(
            dtype, 2.0**-7
        )

    def measure(self) -> None:
        """How much a result moves when the same row is computed with others: rounding, where it is small."""
        tokens = self.texts(3, 9)
        together, alone = self.ask(Request(tokens)), self.ask(Request(tokens[:1]))
        size = np.abs(alone).max(initial=0.0)
        found = float(np.abs(together[:1] - alone).max(initial=0.0) / size) if size else 0.0
        self.noise = found if found < MOST_NOISE and not self.model.bits else 0.0


def distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The largest difference of each position (..., C) -> (...); infinite where one of the two is not a number."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    apart = np.where(np.isnan(one) & np.isnan(other), 0.0, np.where(np.isnan(apart), np.inf, apart))
    return apart.max(-1, initial=0.0)
