"""How far rounding may lead: what a program must round on its way, moved at random by units in the last place.

A score is moved by a unit of its terms, so a weight by eps |s|. A backward, and a derivative, computes the scores once
more, in products of other shapes, and takes maximum and sum from the forward: its weights move on their own, and need
not sum to 1. A part that all keys have in common, times the error of that sum, is in the gradient of the query.

The size of a sum is that of its terms, for each of them is rounded; so for each formula of ``reference`` where terms
may cancel there is one here with all terms positive. Of a complex number, which carries a derivative, the real and the
imaginary part have a size each.
"""

from typing import Any

import numpy as np


class Rounding:
    """Moves numbers by about one unit in the last place; ``Rounding(None)`` leaves them alone.

    Where ``alike``, all numbers of an array are moved in the same way, as those of equal rows are: no sum of them
    evens it out.
    """

    def __init__(self, rng: Any, unit: float = 0.0, stored: float = 0.0, least: float = 0.0, *, alike: bool = False):
        self.rng, self.unit, self.stored_unit, self.least, self.alike = rng, unit, stored, least, alike

    def moved(self, x: Any, unit: float, size: Any = None) -> Any:
        if self.rng is None or unit == 0:
            return x
        x = x * (1 + unit * self.noise(x.shape))
        if size is None:
            return x
        size = size()
        x = x + unit * self.noise(x.shape) * size.real
        return x + 1j * unit * self.noise(x.shape) * size.imag if np.iscomplexobj(x) else x

    def noise(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.rng.choice((-1.0, 1.0), (1,) * len(shape)) if self.alike else self.rng.uniform(-1, 1, shape)

    def of(self, x: Any, size: Any = None) -> Any:
        """A number that is computed, from terms of the size that ``size()`` gives."""
        return self.moved(x, self.unit, size)

    def stored(self, x: Any) -> Any:
        """A number that is stored in the dtype of the operands."""
        return self.moved(x, self.stored_unit, lambda: np.float64(self.least / self.stored_unit))


class InDtype(Rounding):
    """Rounds what is computed to a dtype, as a plain formula in this dtype does; arrays are float32."""

    def __init__(self, dtype: Any):
        super().__init__(None)
        self.dtype = dtype

    def of(self, x: Any, size: Any = None) -> Any:
        if np.iscomplexobj(x):
            return self.of(x.real) + 1j * self.of(x.imag)
        return x.astype(self.dtype).astype(np.float32)

    def stored(self, x: Any) -> Any:
        return self.of(x)


EXACT = Rounding(None)


def uncertain(rounding: Rounding, p: Any, again: Any, s: Any, s_again: Any) -> tuple[Any, Any, Any]:
    """Weights of the forward and of the backward, and how much the derivative of lse moves.

    Args:
        rounding: how numbers are moved.
        p: the weights, whose imaginary part carries a derivative.
        again: the weights from scores that are rounded otherwise, real.
        s, s_again: both scores.
    """
    if not np.iscomplexobj(s):
        return p, again, 0.0
    apart = np.minimum(abs(s.real - s_again.real), 1)
    terms = (p.real * apart * abs(s.imag)).sum(-1, keepdims=True)
    dlse = terms * rounding.noise(terms.shape)
    moves = s_again.imag - (p.real * s.imag).sum(-1, keepdims=True) - dlse
    again = again + 1j * rounding.moved(again * moves, rounding.unit)
    noise = p.imag - p.real * (s.imag - (p.real * s.imag).sum(-1, keepdims=True))
    again = again + 1j * noise
    return p.real + 1j * again.imag, again, 1j * dlse


def size_of(one: Any, other: Any) -> Any:
    """The product with all its terms, and those of its derivative, positive."""
    (a, da), (b, db) = ((abs(x.real), abs(x.imag)) for x in (one, other))
    return a @ b + 1j * (da @ b + a @ db) if da.any() or db.any() else a @ b


def size_of_weights(p: Any, s: Any) -> Any:
    """The weights, and the terms of their derivative ``p (ds - Σ p ds)``, all positive."""
    p, ds = p.real, abs(s.imag)
    return p + 1j * p * (ds + (p * ds).sum(-1, keepdims=True))


def size_of_grad_scores(p: Any, dp: Any, dlse: Any) -> Any:
    """The terms of ``p (dp - Σ dp p + dlse)``, and of its derivative, all positive."""
    (p, mp), (dp, mdp), (dlse, mdlse) = ((abs(x.real), abs(x.imag)) for x in (p, dp, dlse[..., None]))
    sums = dp + (dp * p).sum(-1, keepdims=True) + dlse
    moves = mdp + (mdp * p + dp * mp).sum(-1, keepdims=True) + mdlse
    return p * sums + 1j * (mp * sums + p * moves)


def size_of_delta(p: Any, dp: Any, dlse: Any) -> Any:
    """The terms of ``Σ p dp - dlse``, where dp is itself the size of a sum, and of its derivative, all positive."""
    (p, mp), (dp, mdp), (dlse, mdlse) = ((abs(x.real), abs(x.imag)) for x in (p, dp, dlse[..., None]))
    total, moves = (x.sum(-1, keepdims=True) for x in (dp * p, mdp * p + dp * mp))
    return total + dlse + 1j * (moves + mdlse)


def size_of_backward(dy: Any, y: Any, inverse: Any) -> Any:
    """The terms of ``layer_norm_backward``, which are positive here."""
    return inverse * (dy + dy.mean(-1, keepdims=True) + y * (dy * y).mean(-1, keepdims=True))


def size_of_each(x: Any, function: Any) -> Any:
    """``function`` of the sizes of numbers and of their derivatives."""
    return function(abs(x.real)) + 1j * function(abs(x.imag))
