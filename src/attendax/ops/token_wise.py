"""Layers that act on each token alone: layer norm, activations, the feed-forward network. Pure JAX."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from attendax import checks
from attendax.checks import check
from attendax.kernels.numerics import in_memory, repeated, row_sums
from attendax.kernels.operands import takes_arrays, widen
from attendax.masks import ArrayLike

from .projections import project
from .weighted_sum import pull_back


@takes_arrays
def layer_norm(x: ArrayLike, gamma: ArrayLike, beta: ArrayLike, eps: float = 1e-6) -> Array:
    """``y = gamma * (x - mean) / sqrt(var + eps) + beta`` over the last axis (Ba et al. 2016, equation 4).

    The variance is taken about the mean, and the mean is subtracted twice: the second time takes away what the rounding
    of the first left over, so that a large mean costs no digits (L8). The squares of ``x - mean`` are added in float32,
    or in float64 for such x: where their sum is infinite, as of numbers beyond 1e19, the result is ``beta``.

    Args:
        x: (..., M).
        gamma: scale (M,); may be of a wider dtype.
        beta: shift (M,); may be of a wider dtype.
        eps: added to the variance, in its units; 0 or more.

    Returns:
        Array of the shape and dtype of ``x``.

    Raises:
        TypeError: an array is not floating, or a weight is narrower than ``x``.
        ValueError: a rank or a size disagrees, or eps is negative.
    """
    check("layer_norm", {"x": x, "gamma": gamma, "beta": beta})
    wide, scale, shift = widen(x, gamma, beta)
    return _layer_norm("layer_norm", wide, scale, shift, eps).astype(x.dtype)


def _layer_norm(function: str, x: Array, gamma: Array, beta: Array, eps: float) -> Any:
    eps = checks.number(function, "eps", eps, low=0)
    checks.in_range(function, "eps", eps, x.dtype, "summand")
    row = (1,) * (x.ndim - 1) + gamma.shape
    return gamma.reshape(row) * _normalised(eps, x) + beta.reshape(row)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _normalised(eps: float, x: Array) -> Array:
    """``(x - mean) / sqrt(var + eps)``; its backward keeps the result and the root."""
    return jnp.divide(*_centred_and_root(eps, x))


@_normalised.defjvp
def _normalised_jvp(eps: float, primals: Any, tangents: Any) -> tuple[Array, Array]:
    normalised, (_, root) = _normalised(eps, *primals), _centred_and_root(eps, *primals)
    mean = lambda t: repeated(t.mean(axis=-1, keepdims=True), t.shape[-1])  # noqa: E731
    moved = tangents[0] - mean(tangents[0])
    return normalised, (moved - normalised * mean(moved * normalised)) / root


def _centred_and_root(eps: float, x: Array) -> tuple[Array, Array]:
    centred = x - _mean(x)
    centred = centred - _mean(centred)
    return centred, jnp.sqrt(_mean(in_memory(centred**2)) + eps)


def _mean(x: Array) -> Array:
    """The mean of each row, in memory, as squares are: XLA would fuse a product and a sum in some programs (L15)."""
    return in_memory(row_sums(x) / x.shape[-1])


@takes_arrays
def layer_norm_backward(
    grad_output: ArrayLike, x: ArrayLike, gamma: ArrayLike, eps: float = 1e-6
) -> tuple[Array, Array, Array]:
    """Gradients grad_x, grad_gamma, grad_beta; derived by hand in ``spec``."""
    function = "layer_norm_backward"
    check(function, {"x": x, "gamma": gamma, "grad_output": grad_output})

    @takes_arrays
    def forward(x, gamma, beta):
        wide, scale, shift = widen(x, gamma, beta)
        return _layer_norm(function, wide, scale, shift, eps).astype(x.dtype)

    return pull_back(forward, grad_output, x, gamma, jnp.zeros_like(gamma))


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


def affine(x: Array, W: Array, b: Array | None = None) -> Array:
    """``x W + b`` for x (..., M)."""
    return plus(project(x, W), b)


def plus(y: Array, b: Array | None) -> Array:
    """``y + b`` for b (M,), or ``y``."""
    return y if b is None else y + b.reshape((1,) * (y.ndim - 1) + b.shape)


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


@takes_arrays
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
        ValueError: a rank or a size disagrees, or an unknown activation.
    """
    return _feed_forward("feed_forward", x, W1, b1, W2, b2, activation)


def _feed_forward(
    function: str,
    x: ArrayLike,
    W1: ArrayLike,
    b1: ArrayLike,
    W2: ArrayLike,
    b2: ArrayLike,
    activation: str,
) -> Any:
    check(function, {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2})
    checks.one_of(function, "activation", activation, checks.ACTIVATIONS)

    wide, w_1, b_1, w_2, b_2 = widen(x, W1, b1, W2, b2)
    return affine(activated(activation, affine(wide, w_1, b_1), False), w_2, b_2).astype(x.dtype)


@takes_arrays
def feed_forward_backward(
    grad_output: ArrayLike,
    x: ArrayLike,
    W1: ArrayLike,
    b1: ArrayLike,
    W2: ArrayLike,
    b2: ArrayLike,
    *,
    activation: str = "relu",
) -> tuple[Array, ...]:
    """Gradients of x, W1, b1, W2, b2; derived by hand in ``spec``."""
    function = "feed_forward_backward"
    check(function, {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2, "grad_output": grad_output})
    return pull_back(partial(_feed_forward, function, activation=activation), grad_output, x, W1, b1, W2, b2)


@takes_arrays
def rms_norm(x: ArrayLike, gamma: ArrayLike, eps: float = 1e-6) -> Array:
    """``y = gamma * x / sqrt(mean(x²) + eps)`` over the last axis (Zhang and Sennrich 2019, equation 4).

    Args:
        x: (..., M).
        gamma: scale (M,); may be of a wider dtype.
        eps: added to the mean square, in its units; 0 or more.

    Returns:
        Array of the shape and dtype of ``x``.

    Raises:
        TypeError: an array is not floating, or the scale is narrower than ``x``.
        ValueError: a rank or a size disagrees, or eps is negative.
    """
    return _rms_norm("rms_norm", x, gamma, eps)


def _rms_norm(function: str, x: ArrayLike, gamma: ArrayLike, eps: float) -> Array:
    check(function, {"x": x, "gamma": gamma})
    eps = checks.number(function, "eps", eps, low=0)
    wide, scale = widen(x, gamma)
    checks.in_range(function, "eps", eps, wide.dtype, "summand")
    root = repeated(jnp.sqrt(_mean(in_memory(wide**2)) + eps), x.shape[-1])
    return (scale.reshape((1,) * (x.ndim - 1) + scale.shape) * wide / root).astype(x.dtype)


@takes_arrays
def rms_norm_backward(grad_output: ArrayLike, x: ArrayLike, gamma: ArrayLike, eps: float = 1e-6) -> tuple[Array, Array]:
    """Gradients grad_x, grad_gamma; derived by hand in ``spec``."""
    check("rms_norm_backward", {"x": x, "gamma": gamma, "grad_output": grad_output})
    return pull_back(lambda x, gamma: _rms_norm("rms_norm_backward", x, gamma, eps), grad_output, x, gamma)


@takes_arrays
def gated_feed_forward(
    x: ArrayLike, W1: ArrayLike, b1: ArrayLike, W2: ArrayLike, b2: ArrayLike, *, activation: str = "gelu"
) -> Array:
    """``FFN(x) = (f(u) ∘ g) W2 + b2`` with ``(u, g) = x W1 + b1``, halves of the columns (Shazeer 2020, equation 6).

    Args:
        x: (B, T, M).
        W1: (M, 2F), what is activated first, the gate behind it.
        b1: (2F,).
        W2: (F, M).
        b2: (M,).
        activation: f, one of "relu", "gelu" (erf), "gelu_tanh", "silu".

    Returns:
        (B, T, M) in the dtype of ``x``.

    Raises:
        TypeError: an array is not floating, or a weight is narrower than ``x``.
        ValueError: a rank or a size disagrees, or an unknown activation.
    """
    arrays = {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2}
    checks.gated("gated_feed_forward", arrays, activation)
    return _gated(x, W1, b1, W2, b2, activation)


def _gated(x: ArrayLike, W1: ArrayLike, b1: ArrayLike, W2: ArrayLike, b2: ArrayLike, activation: str) -> Array:
    wide, w_1, b_1, w_2, b_2 = widen(x, W1, b1, W2, b2)
    return affine(activated(activation, affine(wide, w_1, b_1), True), w_2, b_2).astype(x.dtype)


@takes_arrays
def gated_feed_forward_backward(
    grad_output: ArrayLike,
    x: ArrayLike,
    W1: ArrayLike,
    b1: ArrayLike,
    W2: ArrayLike,
    b2: ArrayLike,
    *,
    activation: str = "gelu",
) -> tuple[Array, ...]:
    """Gradients of x, W1, b1, W2, b2; derived by hand in ``spec``."""
    arrays = {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2}
    checks.gated("gated_feed_forward_backward", arrays | {"grad_output": grad_output}, activation)
    return pull_back(partial(_gated, activation=activation), grad_output, *arrays.values())
