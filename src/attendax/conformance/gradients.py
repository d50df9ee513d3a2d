"""Derivatives held against finite differences: by hand, by JAX, and by the values of the function itself."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from .differences import ORDER, STEP, WEIGHTS, difference, differences, weighed

LOWER = 6  # the order beside which the other is held
ROUNDINGS = 8  # so many are granted to each number of a result; 65 functions of attendax.spec need 0.2 at most
BEND = 1e-6  # share of the movement by which two orders may differ before the function counts as not smooth
# Weights of f(k h) + f(-k h) - 2 f(0): their sum is 2 h for |x|, and 0 up to h to the power of 8 for a smooth function.
# A sum of more than this share of the movement is a kink.
KINK, KINK_SHARE = (14 / 5, -7 / 5, 2 / 5, -1 / 20), 1e-3


def assert_gradients(
    fn: Callable[..., Any], *arrays: Any, backward: Callable[..., Any] | None = None, seed: int = 0,
    directions: int = 1, step: float = STEP,
) -> None:  # fmt: skip
    """Assert that derivatives agree with finite differences, argument by argument, in float64.

    For a JAX function, its vjp and its jvp are tested, and ``backward`` if it is passed; for a NumPy function,
    ``backward``. c is a random cotangent, and d a random direction of an array: normal numbers, times the size of the
    array if that is above 1. ``Σ grad · d`` must be the slope of ``Σ c · fn(x + h d)`` at ``h = 0``.

    The slope is a central difference of eighth order. Its allowed error is its distance from that of sixth order, and
    ``ROUNDINGS`` roundings of each term of ``Σ c · fn``, over the step.

    At a kink, such as that of a ReLU at exactly 0, a function has no one slope: then the error says so.

    Args:
        fn: function of ``arrays`` that returns a floating array or a pytree of them, without NaN. The derivative of an
            entry that stays infinite is 0.
        *arrays: arrays or pytrees. Arrays that are not floating, such as ids, masks and random keys, are not varied.
        backward: ``backward(grad_output, *arrays)`` returns the gradients in the order of ``arrays``; a single one may
            be an array. ``grad_output`` has the form of the result of ``fn``.
        seed: seed of the cotangent and the directions.
        directions: number of directions for each array.
        step: h. For a function with kinks, choose a step so short that no kink is within it, such as 1e-5.

    Raises:
        AssertionError: a derivative is wrong (the message has the argument, the difference and the seed) or has
            another shape than the argument. Or ``fn`` is not smooth within the step, returns NaN, or does not change
            along any direction.
        TypeError: no array is floating, ``fn`` is not a JAX function and has no ``backward``, or an array is a torch
            tensor.

    Example:
        >>> from attendax import spec
        >>> scores = np.array([[0.5, -1.0, 2.0]])
        >>> assert_gradients(spec.attention_weights, scores, backward=spec.attention_weights_backward)
        >>> def twice(grad_output, x):
        ...     return 2 * grad_output * np.cos(x)
        >>> assert_gradients(np.sin, scores, backward=twice)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        AssertionError: assert_gradients: sin disagrees with its finite differences (seed 0, step 0.001)
          x by hand: -0.0931..., by differences -0.0465..., allowed ± 2...e-12: off by 0.0466, 2 times as large
    """
    import jax

    with jax.enable_x64(True):
        rng = np.random.default_rng(seed)
        problem = _Problem(fn, arrays, rng, in_jax=backward is None)
        found = _gradients(problem, backward)
        wrong, moved = list[str](), False
        for _ in range(directions):
            for k, x in enumerate(problem.moving):
                direction = _size(x) * np.asarray(rng.standard_normal(x.shape))
                told, moves = _off(problem, k, direction, step, found)
                if told and _has_kink(problem, k, direction, step):
                    raise AssertionError(f"{problem.said} is not smooth here: {problem.names[k]} is at a kink; move it")
                wrong, moved = wrong + told, moved or moves
    if wrong:
        head = f"{problem.said} disagrees with its finite differences (seed {seed}, step {step:g})"
        raise AssertionError("\n  ".join([head, *wrong]))
    if not moved:
        raise AssertionError(f"{problem.said} moves along none of the directions (seed {seed}): nothing was shown")


class _Problem:
    """A function of the floating leaves of its arguments, and a weight for each number of its result."""

    def __init__(self, fn: Callable[..., Any], arrays: tuple[Any, ...], rng: np.random.Generator, in_jax: bool) -> None:
        import jax

        named = getattr(fn, "func", fn)
        self.fn, self.said = fn, f"assert_gradients: {getattr(named, '__name__', type(named).__name__)}"
        paths, tree = jax.tree_util.tree_flatten_with_path(arrays, is_leaf=lambda x: x is None)
        self.tree: Any = tree
        for path, x in paths:
            if type(x).__module__.partition(".")[0] == "torch":
                raise TypeError(
                    f"assert_gradients: {_label(fn, path)} got a torch.{type(x).__name__}, expected JAX or NumPy "
                    "arrays; for torch there is torch.autograd.gradcheck"
                )
        self.leaves = [_own(x, in_jax or isinstance(x, jax.Array)) if _is_floating(x) else x for _, x in paths]
        self.places = [k for k, x in enumerate(self.leaves) if _is_floating(x)]
        self.names = [_label(fn, paths[k][0]) for k in self.places]
        self.moving = [self.leaves[k] for k in self.places]
        if not self.places:
            raise TypeError(f"{self.said} is given no floating array")
        self.result = self.at(*self.moving)
        numbers = jax.tree.leaves(self.result)
        if any(np.isnan(np.asarray(y, np.float64)).any() for y in numbers):
            raise AssertionError(f"{self.said} gives NaN")
        self.is_of_jax = any(isinstance(y, jax.Array) for y in numbers)
        self.cotangent = jax.tree.map(lambda y: np.asarray(rng.standard_normal(np.shape(y))), self.result)

    def at(self, *moving: Any) -> Any:
        """The function of what moves."""
        moved = dict(zip(self.places, moving, strict=True))
        return self.fn(*self.tree.unflatten([moved.get(k, x) for k, x in enumerate(self.leaves)]))

    def weighed(self, moves: Any) -> float:
        """Σ cotangent · what the result moves by."""
        import jax

        pairs = zip(jax.tree.leaves(self.cotangent), jax.tree.leaves(moves), strict=True)
        return sum(float(np.sum(c * np.asarray(move))) for c, move in pairs)


def _told(what: str, got: float, value: float, allowed: float) -> str:
    ratio = f", {got / value:.4g} times as large" if abs(value) > allowed else ""
    numbers = f"{got:.12g}, by differences {value:.12g}, allowed ± {allowed:.1e}"
    return f"{what}: {numbers}: off by {abs(got - value):.3g}{ratio}"


def _off(
    problem: _Problem, k: int, direction: np.ndarray, step: float, found: dict[str, list[np.ndarray]]
) -> tuple[list[str], bool]:
    """Tell what is wrong along a direction of the k-th leaf that moves, and whether the function moves along it."""
    value, allowed = _slope(problem, k, direction, step)
    numbers = _numbers(problem, k, direction, found)
    off = {how: got for how, got in numbers.items() if not abs(got - value) <= allowed}  # NaN is off
    return [_told(f"{problem.names[k]} {how}", got, value, allowed) for how, got in off.items()], abs(value) > allowed


def _numbers(problem: _Problem, k: int, direction: np.ndarray, found: dict[str, list[np.ndarray]]) -> dict[str, float]:
    """The slopes that gradients say, and the jvp."""
    by_gradient = {how: float(np.sum(grads[k] * direction)) for how, grads in found.items()}
    return by_gradient | _pushed(problem, k, direction)


def _has_kink(problem: _Problem, k: int, direction: np.ndarray, step: float) -> bool:
    """Tell whether the slopes of any number of the result to the two sides of the point differ."""
    import jax

    here = [np.asarray(y, np.float64) for y in jax.tree.leaves(problem.result)]
    bend, movement = [0.0 * np.abs(y) for y in here], [0.0 * np.abs(y) for y in here]
    for number, weight in enumerate(KINK, start=1):
        for h in (number * step, -number * step):
            moved = problem.at(*problem.moving[:k], problem.moving[k] + h * direction, *problem.moving[k + 1 :])
            moves = [difference(up, y) for up, y in zip(jax.tree.leaves(moved), here, strict=True)]
            bend = [x + weight * move for x, move in zip(bend, moves, strict=True)]
            movement = [x + np.abs(move) for x, move in zip(movement, moves, strict=True)]
    rounding = ROUNDINGS * np.finfo(np.float64).eps * 2 * sum(map(abs, KINK))
    rows = zip(bend, movement, here, strict=True)
    return any((np.abs(x) > KINK_SHARE * moves + rounding * np.abs(y)).any() for x, moves, y in rows)


def _slope(problem: _Problem, k: int, direction: np.ndarray, step: float) -> tuple[float, float]:
    """The slope of Σ cotangent · result along a direction of the k-th leaf that moves, and a bound of its error."""
    import jax

    def along(x: Any) -> Any:
        return problem.at(*problem.moving[:k], x, *problem.moving[k + 1 :])

    found = differences(along, [problem.moving[k]], [direction], step, len(WEIGHTS[ORDER]))
    parts = list(map(jax.tree.leaves, found))
    weights = [np.asarray(c) for c in jax.tree.leaves(problem.cotangent)]
    values = [np.asarray(y, np.float64) for y in jax.tree.leaves(problem.result)]
    high, low = (
        [c * weighed(WEIGHTS[order], x, step) for c, *x in zip(weights, *parts[: len(WEIGHTS[order])], strict=True)]
        for order in (ORDER, LOWER)
    )
    size = sum(np.sum(np.abs(c * y), where=np.isfinite(y)) for c, y in zip(weights, values, strict=True))
    movement = sum(float(np.abs(x).sum()) for x in high)
    rounding = ROUNDINGS * np.finfo(np.float64).eps * float(2 * sum(map(abs, WEIGHTS[ORDER])) * size / step + movement)
    value = sum(float(x.sum()) for x in high)
    bend = abs(value - sum(float(x.sum()) for x in low))
    if not bend <= rounding + BEND * movement:
        raise AssertionError(
            f"{problem.said} is not smooth here: along {problem.names[k]} the differences of order 8 and 6 are "
            f"{bend:.1e} apart, of a movement of {movement:.1e}: a kink, a jump or too little precision within steps "
            f"of {step:g}; move the point, or shorten the step"
        )
    return value, bend + rounding


def _gradients(problem: _Problem, backward: Callable[..., Any] | None) -> dict[str, list[np.ndarray]]:
    """Compute gradients by hand and by JAX, as far as there are: one for each leaf that moves."""
    import jax

    found = {}
    if backward is not None:
        found["by hand"] = _by_hand(problem, backward(problem.cotangent, *problem.tree.unflatten(problem.leaves)))
    if problem.is_of_jax:
        cotangent = jax.tree.map(lambda c, y: np.asarray(c, np.asarray(y).dtype), problem.cotangent, problem.result)
        found["by vjp"] = jax.vjp(problem.at, *problem.moving)[1](cotangent)
    if not found:
        raise TypeError(f"{problem.said} gives NumPy arrays: its backward is missing")
    for how, grads in found.items():
        for name, x, grad in zip(problem.names, problem.moving, grads, strict=True):
            if grad is None or np.shape(grad) != x.shape:
                said = "missing" if grad is None else f"of shape {np.shape(grad)}, expected {x.shape}"
                raise AssertionError(f"{problem.said}: {name} {how}: the gradient is {said}")
    return {how: [np.asarray(grad, np.float64) for grad in grads] for how, grads in found.items()}


def _by_hand(problem: _Problem, grads: Any) -> list[Any]:
    """The gradients of the leaves that move, from those of the arguments."""
    import jax

    given = problem.tree.unflatten(problem.leaves)
    flat: Callable[[Any], Any] = functools.partial(jax.tree.flatten, is_leaf=lambda x: x is None)
    bare = len(given) == 1 and flat(grads)[1] == flat(given[0])[1]
    grads = (grads,) if bare else tuple(grads)
    if len(grads) < len(given) or any(x is not None for x in grads[len(given) :]):
        raise AssertionError(f"{problem.said}: {len(grads)} gradients by hand of {len(given)} arguments")
    found: list[Any] = []
    for k, (x, grad) in enumerate(zip(given, grads, strict=False)):
        leaves = flat(x)[0]
        parts = flat(grad)[0] if any(map(_is_floating, leaves)) else leaves
        if len(parts) != len(leaves):
            told = f"{len(parts)} gradients of {len(leaves)} arrays"
            raise AssertionError(f"{problem.said}: argument {k} by hand: {told}")
        found += parts
    return [found[k] for k in problem.places]


def _pushed(problem: _Problem, k: int, direction: np.ndarray) -> dict[str, float]:
    """The slope by its jvp; nothing where it is not of JAX, or has a vjp of its own and no jvp."""
    import jax

    from .frameworks.in_jax import is_lack

    if not problem.is_of_jax:
        return {}
    moves = [direction if j == k else np.zeros_like(x) for j, x in enumerate(problem.moving)]
    try:
        return {"by jvp": problem.weighed(jax.jvp(problem.at, tuple(problem.moving), tuple(moves))[1])}
    except TypeError as error:
        if is_lack(error):
            return {}
        raise


def _is_floating(x: Any) -> bool:
    """Tell whether it moves; random keys and NumPy's objects do not."""
    import jax.numpy as jnp

    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _own(x: Any, in_jax: bool) -> Any:
    """A read-only copy in float64: the differences are taken of the same numbers."""
    import jax.numpy as jnp

    copied = np.array(x, np.float64)
    copied.flags.writeable = False
    return jnp.asarray(copied) if in_jax else copied


def _size(x: Any) -> float:
    """The size of the numbers of an array, at least 1."""
    sizes = np.abs(np.asarray(x))
    return max(1.0, float(np.median(sizes[np.isfinite(sizes)]))) if np.isfinite(sizes).any() else 1.0


def _label(fn: Callable[..., Any], path: tuple[Any, ...]) -> str:
    """The name of an argument, as far as the signature has it, and the place within it."""
    import jax

    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    given = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    index = path[0].idx
    return (given[index] if index < len(given) else f"argument {index}") + jax.tree_util.keystr(path[1:])
