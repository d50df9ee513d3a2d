"""Finite differences along a direction: the one stencil that everything is held against."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

STEP = 1e-3
WEIGHTS = {  # of the central differences of a function at ±1, ±2, ... steps, by the order of their error
    2: (1 / 2,),
    4: (2 / 3, -1 / 12),
    6: (3 / 4, -3 / 20, 1 / 60),
    8: (4 / 5, -1 / 5, 4 / 105, -1 / 280),
}
ORDER = max(WEIGHTS)


def directional_difference(
    fn: Callable[..., Any], arrays: Sequence[Any], directions: Sequence[Any], *, step: float = STEP, order: int = ORDER
) -> Any:
    """Differentiate ``fn(*arrays)`` along a direction, by a central difference in float64.

    ``Σₖ wₖ (f(x + k h d) - f(x - k h d)) / h`` with the weights of Fornberg (1988). Its error is about ``h`` to the
    power of the order, times a derivative one order higher, plus two roundings of ``f`` over ``h``.

    Args:
        fn: function that returns an array or a pytree of arrays, in NumPy or JAX.
        arrays: the point; floating arrays or pytrees of them.
        directions: the direction, in the form of ``arrays``.
        step: h.
        order: 2, 4, 6 or 8, which is also the number of calls of ``fn``.

    Returns:
        The derivative, in the form of the result of ``fn``, as NumPy arrays. An entry that is the same infinity at both
        ends has derivative 0.

    Raises:
        KeyError: the order is not one of the four.

    Example:
        >>> directional_difference(np.sin, [np.array([0.0, 1.0])], [np.array([1.0, 2.0])]).round(12).tolist()
        [1.0, 1.080604611736]
    """
    import jax

    parts = differences(fn, arrays, directions, step, len(WEIGHTS[order]))
    return jax.tree.map(lambda *x: weighed(WEIGHTS[order], x, step), *parts)


def differences(fn: Callable[..., Any], arrays: Any, directions: Any, step: float, number: int) -> list[Any]:
    """``f(x + k h d) - f(x - k h d)`` for k from 1 on, as NumPy arrays; equal infinities differ by 0."""
    import jax

    def at(h: float) -> Any:
        return fn(*jax.tree.map(lambda x, d: _wide(x) + h * _wide(d), list(arrays), list(directions)))

    with jax.enable_x64(True):
        return [jax.tree.map(difference, at(k * step), at(-k * step)) for k in range(1, number + 1)]


def of_numpy(
    fn: Callable[..., Iterable[np.ndarray]], arrays: Sequence[np.ndarray], directions: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """``directional_difference`` of NumPy arrays, as NumPy arrays, without JAX."""

    def at(h: float) -> Iterable[np.ndarray]:
        return fn(*(x.astype(np.float64) + h * d.astype(np.float64) for x, d in zip(arrays, directions, strict=True)))

    steps = [k * STEP for k in range(1, len(WEIGHTS[ORDER]) + 1)]
    parts = [[difference(*ends) for ends in zip(at(h), at(-h), strict=True)] for h in steps]
    return [weighed(WEIGHTS[ORDER], x, STEP) for x in zip(*parts, strict=True)]


def difference(up: Any, down: Any) -> np.ndarray:
    """``up - down`` in float64; 0 where both are one infinity."""
    up, down = np.asarray(up, np.float64), np.asarray(down, np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(up == down, 0.0, up - down)


def weighed(weights: Sequence[float], parts: Sequence[np.ndarray], step: float) -> np.ndarray:
    """The slope, of what ``differences`` gives for a result."""
    return np.asarray(sum(w / step * x for w, x in zip(weights, parts, strict=True)))


def _wide(x: Any) -> Any:
    """Widen to float64; a JAX array stays one."""
    import jax

    return x.astype(np.float64) if isinstance(x, jax.Array) else np.asarray(x, np.float64)
