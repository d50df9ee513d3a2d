"""What a model is asked to compute, as data: nothing in it says what is right."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Request(NamedTuple):
    """One computation of a model.

    A model of vectors is asked about tokens, too: each stands for a vector of one fixed table (``vectors``).

    Attributes:
        tokens: integers (B, T).
        options: keywords: ``mask`` (B, T), True = a real token; ``lengths`` (B,); ``segment_ids``, ``positions`` (B,
            T); ``seed`` (), of dropout, without which there is none
        way: of running, one of those that the model has; the plain one unless given.
        weights: (B, T); asks for the gradient of Σ weights · (results · ``direction``) with respect to the vectors.
        chunks: so many tokens at a time, through the cache; the whole at once, without it, unless given.
        room: of the cache, in tokens.
        order: after the first chunk, which row of the cache each row goes on from.
        read: the name of a weight of a layer, which is asked for in place of results; none of it is an array without
            numbers.
    """

    tokens: np.ndarray
    options: Mapping[str, np.ndarray] = {}
    way: str = ""
    weights: np.ndarray | None = None
    chunks: tuple[int, ...] = ()
    room: int = 0
    order: tuple[int, ...] = ()
    read: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """The same for the same request."""
        arrays = {"tokens": self.tokens, **self.options}
        arrays |= {} if self.weights is None else {"weights": self.weights}
        told = tuple((name, x.shape, str(x.dtype), x.tobytes()) for name, x in sorted(arrays.items()))
        return told, self.way, self.chunks, self.room, self.order, self.read

    def row(self, index: int) -> "Request":
        """The same question about one row."""
        options = {name: x[index : index + 1] if x.ndim else x for name, x in self.options.items()}
        weights = None if self.weights is None else self.weights[index : index + 1]
        return self._replace(tokens=self.tokens[index : index + 1], options=options, weights=weights)


COUNT, LONGER = 64, 48  # vectors in the table, and the first of those that are longer


def vectors(width: int) -> np.ndarray:
    """The table: a vector for each token, a quarter of them four times as long, and one more that is NaN."""
    table = np.random.default_rng(0).standard_normal((COUNT + 1, width))
    table[LONGER:] *= 4
    table[COUNT] = np.nan
    return table.astype(np.float32)


def direction(width: int) -> np.ndarray:
    """Of the results at a position, what a loss adds up."""
    return np.random.default_rng(1).standard_normal(width).astype(np.float32)
