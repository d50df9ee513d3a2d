"""The feed-forward network, with a gate or without, its activations, and what it is made of: ``affine``. Pure JAX."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike

from attendax import checks
from attendax.checks import check
from attendax.kernels.operands import public, widen
from attendax.mask_kinds import lifted
from attendax.masks import ArrayLike

from .projections import project
from .weighted_sum import pull_back


def _with_slope(function: Callable[[Array], Array], slope: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The function, differentiated by its slope: the backward keeps one array, not one for each factor."""
    found = jax.custom_jvp(function)
    found.defjvp(lambda primals, tangents: (found(*primals), tangents[0] * slope(*primals)))
    return found


def _gelu(x: Array) -> Array:
    """x Φ(x), Φ the normal distribution function (Hendrycks and Gimpel 2016)."""
    return x * (1 + lax.erf(x * math.sqrt(0.5))) / 2


def _slope_of_gelu(x: Array) -> Array:
    """Φ(x) + x φ(x), φ the normal density."""
    return (1 + lax.erf(x * math.sqrt(0.5))) / 2 + x * jnp.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(x: Array) -> Array:
    """x (1 + tanh u) / 2 with u = √(2/π) (x + 0.044715 x³): GELU as GPT-2 has it."""
    return x * (1 + jnp.tanh(_argument_of_tanh(x))) / 2


def _slope_of_gelu_tanh(x: Array) -> Array:
    """(1 + tanh u) / 2 + x (1 - tanh² u) u' / 2."""
    tanh, slope = jnp.tanh(_argument_of_tanh(x)), math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
    return (1 + tanh) / 2 + x * (1 - tanh) * (1 + tanh) * slope / 2


def _argument_of_tanh(x: Array) -> Array:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def _slope_of_silu(x: Array) -> Array:
    """σ(x) (1 + x σ(-x)) of x σ(x), σ the logistic function."""
    return jax.nn.sigmoid(x) * (1 + x * jax.nn.sigmoid(-x))


def glorot(rng: Array, rows: int, columns: int, dtype: DTypeLike) -> Array:
    """Uniform in ±√(6 / (rows + columns)), so that variance neither grows nor fades (Glorot and Bengio 2010)."""
    limit = math.sqrt(6 / (rows + columns))
    return jax.random.uniform(rng, (rows, columns), dtype, -limit, limit)


def affine(x: Array, W: Array, b: Array | None = None) -> Array:
    """``x W + b`` for x (..., M)."""
    return plus(project(x, W), b)


def plus(y: Array, b: Array | None) -> Array:
    """``y + b`` for b (M,), or ``y``."""
    return y if b is None else y + lifted(b, y.ndim)


def projection(x: Array, W: Array, b: Array | None = None) -> Array:
    """``affine`` of tokens that attention may not look at: in the gradient of W, what is not finite counts as 0 (L6).

    It meets the gradient 0 where nothing depends on it, and NaN otherwise.
    """
    return plus(project(x, W, only_finite=True), b)


ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": _with_slope(_gelu, _slope_of_gelu),
    "gelu_tanh": _with_slope(_gelu_tanh, _slope_of_gelu_tanh),
    "silu": _with_slope(lambda x: x * jax.nn.sigmoid(x), _slope_of_silu),
}


def activated(activation: str, before: Array, gated: bool) -> Array:
    """``f(before)``, or ``f(u) ∘ g`` of halves (u, g). The backward keeps ``before``, and computes the rest anew."""

    def run(before: Array) -> Array:
        hidden, *gates = jnp.split(before, 1 + gated, axis=-1)
        return math.prod(gates, start=ACTIVATIONS[activation](hidden))

    return jax.checkpoint(run)(before)


@public
def feed_forward(
    x: ArrayLike, W1: ArrayLike, b1: ArrayLike, W2: ArrayLike, b2: ArrayLike, *, activation: str = "relu"
) -> Array:
    """Put every token through ``FFN(x) = f(x W1 + b1) W2 + b2`` (Vaswani et al. 2017, equation 2, with f = ReLU).

    Args:
        x: (B, T, M).
        W1: (M, F).
        b1: (F,).
        W2: (F, M).
        b2: (M,).
        activation: f, one of "relu", "gelu" (erf), "gelu_tanh", "silu".

    Returns:
        (B, T, M) in the dtype of ``x``.

    Raises:
        TypeError: an array is not floating, or a weight is narrower than ``x``.
        ValueError: a rank or a size disagrees, or the activation is unknown.
    """
    return _feed_forward("feed_forward", x, W1, b1, W2, b2, activation)


def _feed_forward(
    function: str, x: ArrayLike, W1: ArrayLike, b1: ArrayLike, W2: ArrayLike, b2: ArrayLike, activation: str
) -> Any:
    check(function, {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2})
    checks.one_of(function, "activation", activation, checks.ACTIVATIONS)

    wide, w_1, b_1, w_2, b_2 = widen(x, W1, b1, W2, b2)
    return affine(activated(activation, affine(wide, w_1, b_1), False), w_2, b_2).astype(x.dtype)


@public
def feed_forward_backward(
    grad_output: ArrayLike, x: ArrayLike, W1: ArrayLike, b1: ArrayLike, W2: ArrayLike, b2: ArrayLike, *,
    activation: str = "relu",
) -> tuple[Array, ...]:  # fmt: skip
    """Gradients of x, W1, b1, W2, b2; derived by hand in ``spec``."""
    function = "feed_forward_backward"
    check(function, {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2, "grad_output": grad_output})
    return pull_back(partial(_feed_forward, function, activation=activation), grad_output, x, W1, b1, W2, b2)


@public
def gated_feed_forward(
    x: ArrayLike, W1: ArrayLike, b1: ArrayLike, W2: ArrayLike, b2: ArrayLike, *, activation: str = "gelu"
) -> Array:
    """``FFN(x) = (f(u) ∘ g) W2 + b2`` with ``(u, g) = x W1 + b1``, halves of the columns (Shazeer 2020, equation 6).

    Args:
        x: (B, T, M).
        W1: (M, 2F), the activated half first, then the gate.
        b1: (2F,).
        W2: (F, M).
        b2: (M,).
        activation: f, one of "relu", "gelu" (erf), "gelu_tanh", "silu".

    Returns:
        (B, T, M) in the dtype of ``x``.

    Raises:
        TypeError: an array is not floating, or a weight is narrower than ``x``.
        ValueError: a rank or a size disagrees, or the activation is unknown.
    """
    arrays = {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2}
    checks.gated("gated_feed_forward", arrays, activation)
    return _gated(x, W1, b1, W2, b2, activation)


def _gated(x: ArrayLike, W1: ArrayLike, b1: ArrayLike, W2: ArrayLike, b2: ArrayLike, activation: str) -> Array:
    wide, w_1, b_1, w_2, b_2 = widen(x, W1, b1, W2, b2)
    return affine(activated(activation, affine(wide, w_1, b_1), True), w_2, b_2).astype(x.dtype)


@public
def gated_feed_forward_backward(
    grad_output: ArrayLike, x: ArrayLike, W1: ArrayLike, b1: ArrayLike, W2: ArrayLike, b2: ArrayLike, *,
    activation: str = "gelu",
) -> tuple[Array, ...]:  # fmt: skip
    """Gradients of x, W1, b1, W2, b2; derived by hand in ``spec``."""
    arrays = {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2}
    checks.gated("gated_feed_forward_backward", arrays | {"grad_output": grad_output}, activation)
    return pull_back(partial(_gated, activation=activation), grad_output, *arrays.values())
