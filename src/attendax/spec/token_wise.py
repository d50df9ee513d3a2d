"""The feed-forward network, with a gate or without, and its activations."""

import math

import numpy as np
from scipy.special import erf, expit

from attendax import checks
from attendax.checks import check

from .weighted_sum import Array, public, widen


def _relu(x: Array) -> tuple[Array, Array]:
    """max(x, 0); the derivative at 0 is taken to be 0."""
    return np.maximum(x, 0), np.where(x > 0, 1, 0).astype(x.dtype)


def _gelu(x: Array) -> tuple[Array, Array]:
    """x Φ(x), Φ the normal distribution function (Hendrycks and Gimpel 2016); (x Φ)' = Φ + x φ, φ its density."""
    share = (1 + erf(x * math.sqrt(0.5))) / 2
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return x * share, share + x * density


def _gelu_tanh(x: Array) -> tuple[Array, Array]:
    """x (1 + tanh u) / 2 with u = √(2/π) (x + 0.044715 x³): GELU as GPT-2 has it.

    Its derivative is (1 + tanh u)/2 + x (1 - tanh² u) u'/2 with u' = √(2/π) (1 + 0.134145 x²).
    """
    root = math.sqrt(2 / math.pi)
    t = np.tanh(root * (x + 0.044715 * x**3))
    return x * (1 + t) / 2, (1 + t) / 2 + x * (1 - t**2) * root * (1 + 3 * 0.044715 * x**2) / 2


def _silu(x: Array) -> tuple[Array, Array]:
    """x σ(x), σ the logistic function (Hendrycks and Gimpel 2016; "swish"); (x σ)' = σ + x σ (1 - σ)."""
    share = expit(x)
    return x * share, share + x * share * (1 - share)


_ACTIVATIONS = {"relu": _relu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "silu": _silu}
"""Name -> a function that gives the activation and its derivative."""


@public
def feed_forward(x: Array, W1: Array, b1: Array, W2: Array, b2: Array, *, activation: str = "relu") -> Array:
    """Put every token through the same two-layer network.

    ``FFN(x) = f(x W1 + b1) W2 + b2`` (Vaswani et al. 2017, equation 2, with f = ReLU).

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

    Example:
        >>> x, one = np.array([[[2.0]], [[-2.0]]]), np.ones((1, 1))
        >>> feed_forward(x, one, np.zeros(1), one, np.ones(1)).ravel()
        array([3., 1.])
    """
    check("feed_forward", {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2})
    checks.one_of("feed_forward", "activation", activation, checks.ACTIVATIONS)
    wide, w1, c1, w2, c2 = widen(x, W1, b1, W2, b2)
    hidden, _ = _ACTIVATIONS[activation](wide @ w1 + c1)
    return (hidden @ w2 + c2).astype(x.dtype)


@public
def feed_forward_backward(
    grad_output: Array, x: Array, W1: Array, b1: Array, W2: Array, b2: Array, *, activation: str = "relu"
) -> tuple[Array, ...]:
    """Pull a gradient back through the feed-forward network.

    With ``a = x W1 + b1``, ``h = f(a)``, ``y = h W2 + b2``; sums over batch and sequence::

        dW2 = Σ hᵀ dy,  db2 = Σ dy,  dh = dy W2ᵀ
        da  = dh f'(a)
        dW1 = Σ xᵀ da,  db1 = Σ da,  dx = da W1ᵀ

    Args:
        grad_output: gradient with respect to the result (B, T, M).
        x, W1, b1, W2, b2, activation: as in the forward.

    Returns:
        grad_x, grad_W1, grad_b1, grad_W2, grad_b2: each in the shape and dtype of its input.

    Raises:
        TypeError, ValueError: as the forward.
    """
    arrays = {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2}
    check("feed_forward_backward", arrays | {"grad_output": grad_output})
    checks.one_of("feed_forward_backward", "activation", activation, checks.ACTIVATIONS)
    gradient, wide, w1, c1, w2, _ = widen(grad_output, *arrays.values())
    hidden, slope = _ACTIVATIONS[activation](wide @ w1 + c1)
    grad_hidden, grad_W2, grad_b2 = affine_backward(gradient, hidden, w2)
    grad_x, grad_W1, grad_b1 = affine_backward(grad_hidden * slope, wide, w1)
    gradients = grad_x, grad_W1, grad_b1, grad_W2, grad_b2
    return tuple(grad.astype(array.dtype) for grad, array in zip(gradients, arrays.values(), strict=True))


@public
def gated_feed_forward(x: Array, W1: Array, b1: Array, W2: Array, b2: Array, *, activation: str = "gelu") -> Array:
    """Put every token through a two-layer network with a gate.

    ``FFN(x) = (f(u) ∘ g) W2 + b2`` with ``(u, g) = x W1 + b1``, halves of the columns (Shazeer 2020, equation 6): GeGLU
    with f = GELU, SwiGLU with f = SiLU. ModernBERT also stores the two halves as one matrix.

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

    Example:
        >>> x, W1, W2 = np.array([[[3.0]]]), np.array([[1.0, 2.0]]), np.ones((1, 1))
        >>> gated_feed_forward(x, W1, np.zeros(2), W2, np.ones(1), activation="relu")
        array([[[19.]]])
    """
    arrays = {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2}
    checks.gated("gated_feed_forward", arrays, activation)
    wide, w1, c1, w2, c2 = widen(*arrays.values())
    before, gate = np.split(wide @ w1 + c1, 2, axis=-1)
    return (_ACTIVATIONS[activation](before)[0] * gate @ w2 + c2).astype(x.dtype)


@public
def gated_feed_forward_backward(
    grad_output: Array, x: Array, W1: Array, b1: Array, W2: Array, b2: Array, *, activation: str = "gelu"
) -> tuple[Array, ...]:
    """Pull a gradient back through the network with a gate.

    With ``(u, g) = x W1 + b1``, ``h = f(u) ∘ g``, ``y = h W2 + b2``; sums over batch and sequence::

        dW2 = Σ hᵀ dy,  db2 = Σ dy,  dh = dy W2ᵀ
        du  = dh g f'(u),  dg = dh f(u)              a product: each factor gets the other
        dW1 = Σ xᵀ (du, dg),  db1 = Σ (du, dg),  dx = (du, dg) W1ᵀ

    Args:
        grad_output: gradient with respect to the result (B, T, M).
        x, W1, b1, W2, b2, activation: as in the forward.

    Returns:
        grad_x, grad_W1, grad_b1, grad_W2, grad_b2: each in the shape and dtype of its input.

    Raises:
        TypeError, ValueError: as the forward.
    """
    arrays = {"x": x, "W1": W1, "b1": b1, "W2": W2, "b2": b2}
    checks.gated("gated_feed_forward_backward", arrays | {"grad_output": grad_output}, activation)
    gradient, wide, w1, c1, w2, _ = widen(grad_output, *arrays.values())
    before, gate = np.split(wide @ w1 + c1, 2, axis=-1)
    hidden, slope = _ACTIVATIONS[activation](before)
    grad_hidden, grad_W2, grad_b2 = affine_backward(gradient, hidden * gate, w2)
    grad_both = np.concatenate([grad_hidden * gate * slope, grad_hidden * hidden], axis=-1)
    grad_x, grad_W1, grad_b1 = affine_backward(grad_both, wide, w1)
    gradients = grad_x, grad_W1, grad_b1, grad_W2, grad_b2
    return tuple(grad.astype(array.dtype) for grad, array in zip(gradients, arrays.values(), strict=True))


def affine_backward(grad_output: Array, x: Array, W: Array) -> tuple[Array, Array, Array]:
    """Backward of ``y = x W + b`` for x (B, T, M): dx = dy Wᵀ, dW = Σ xᵀ dy, db = Σ dy over batch and sequence."""
    rows, gradient = x.reshape(-1, x.shape[-1]), grad_output.reshape(-1, W.shape[-1])
    return grad_output @ W.T, rows.T @ gradient, gradient.sum(axis=0)
