"""Kinks at the very place where a derivative is judged: where they are, and which slopes are right there."""

from collections.abc import Callable
from typing import Any

import numpy as np

ONE_SIDED = {4: (4.0, -3.0, 4 / 3, -1 / 4), 3: (3.0, -3 / 2, 1 / 3)}  # of f(k h) - f(0), by the order of their error
CLEAR = 16  # times the error of the two slopes they have to differ by; at a jump it is 8, at the root of |x| 14
NEAR_PLACES = 16  # places whose slopes are right where several kinks meet
ROUNDINGS = 8


class Corners:
    """The kinks of ``Σ cotangent · fn(*moving)`` in the k-th array, by differences to either side."""

    def __init__(self, fn: Callable[..., Any], moving: list[Any], k: int, cotangent: Any, step: float) -> None:
        import jax

        self.fn, self.moving, self.k, self.step = fn, moving, k, step
        self.weights = [np.asarray(c, np.float64) for c in jax.tree.leaves(cotangent)]
        self.value = self._at(np.zeros(np.shape(moving[k])))

    def found(self, direction: np.ndarray) -> list[np.ndarray]:
        """The numbers of x, by their flat places, that have a kink along a direction; several where only they do."""
        waiting, places = [np.arange(direction.size)], list[np.ndarray]()
        while waiting:
            some = waiting.pop()
            if not self._has_kink(self.only(direction, some)):
                continue
            halves = [half for half in np.array_split(some, 2) if len(some) > 1]
            bent = [half for half in halves if self._has_kink(self.only(direction, half))]
            waiting += bent
            places += [] if bent else [some]
        return sorted(places, key=lambda place: int(place[0]))

    def only(self, direction: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The direction of some numbers, the others at rest."""
        kept = np.zeros(direction.size)
        kept[place] = direction.ravel()[place]
        return kept.reshape(direction.shape)

    def between(self, direction: np.ndarray) -> tuple[float, float, float]:
        """The lowest and the highest slope that is right along a direction, and the error of both."""
        left, right, error = self._sides(direction)
        low, high = sorted((float(left.sum()), float(right.sum())))
        return low, high, float(error.sum())

    def nearby(self, direction: np.ndarray) -> tuple[float, float, float]:
        """The lowest and the highest slope where several kinks meet in x, as of a ReLU network at a token of zeros.

        There places nearby have other slopes than the two sides, and each number of the result takes any of them for
        itself. Where only one kink is, it is what ``between`` says.
        """
        left, right, error = self._sides(direction)
        rng, slopes, short = np.random.default_rng(0), [left, right], self.step / 16  # a step crosses no kink nearby
        for _ in range(NEAR_PLACES):
            size = 8 * self.step * max(1.0, float(np.abs(direction).max()))
            away = [x + size * rng.standard_normal(np.shape(x)) for x in self.moving]
            slopes.append(_moved(self._at(short * direction, away), self._at(-short * direction, away)) / (2 * short))
        sums, margin = np.sum(slopes, axis=1), float(np.abs(right - left).sum()) / 10 + float(error.sum())
        several = (np.minimum(np.abs(sums - sums[0]), np.abs(sums - sums[1])) > margin).any()
        if not several:
            return self.between(direction)
        return float(np.min(slopes, axis=0).sum()), float(np.max(slopes, axis=0).sum()), float(error.sum())

    def _has_kink(self, direction: np.ndarray) -> bool:
        left, right, error = self._sides(direction)
        return bool((np.abs(right - left) > CLEAR * error).any())

    def _sides(self, direction: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The slopes to the left and to the right of each weighed number of the result, and their error."""
        size = np.where(np.isfinite(self.value), np.abs(self.value), 0)
        slopes, error = [], ROUNDINGS * np.finfo(np.float64).eps * 4 * sum(map(abs, ONE_SIDED[4])) * size / self.step
        for sign in (-1, 1):
            moves = [sign * _moved(self._at(sign * k * self.step * direction), self.value) for k in (1, 2, 3, 4)]
            high, low = (sum(w * x for w, x in zip(ONE_SIDED[order], moves, strict=False)) for order in (4, 3))
            slopes.append(np.asarray(high) / self.step)
            error = error + np.abs(high - low) / self.step
        return slopes[0], slopes[1], error

    def _at(self, move: np.ndarray, moving: list[Any] | None = None) -> np.ndarray:
        """Every number of the result there, weighed, in one row."""
        import jax

        given = list(self.moving if moving is None else moving)
        given[self.k] = given[self.k] + move
        results = jax.tree.leaves(self.fn(*given))
        rows = [(c * np.asarray(y, np.float64)).ravel() for c, y in zip(self.weights, results, strict=True)]
        return np.concatenate(rows)


def _moved(up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """The difference, 0 where both are one infinity."""
    with np.errstate(invalid="ignore"):
        return np.where(up == down, 0.0, up - down)
