"""Norms of a token: layer norm, and the norm by the root mean square."""

import numpy as np

from attendax import checks
from attendax.checks import check

from .weighted_sum import Array, quiet, sum_to_shape, widen


@quiet
def layer_norm(x: Array, gamma: Array, beta: Array, eps: float = 1e-6) -> Array:
    """Give every token mean 0 and variance 1, then a learned scale and shift.

    ``y = gamma * (x - mean) / sqrt(var + eps) + beta`` over the last axis (Ba et al. 2016, equation 4), with the
    variance taken about the mean, ``mean((x - mean)²)``: as ``mean(x²) - mean²`` it would lose its digits where the
    mean is large against the spread (L8). The squares are added in float32, or in float64 for such x: where their sum
    is infinite, as of numbers beyond 1e19, the result is ``beta``.

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

    Example:
        >>> layer_norm(np.array([1.0, 3.0]), np.ones(2), np.zeros(2), eps=0.0)
        array([-1.,  1.])
    """
    check("layer_norm", {"x": x, "gamma": gamma, "beta": beta})
    wide, scale, shift = widen(x, gamma, beta)
    normalised, _ = _normalise("layer_norm", wide, eps)
    return (scale * normalised + shift).astype(x.dtype)


def _normalise(function: str, x: Array, eps: float) -> tuple[Array, Array]:
    """(x - mean) / deviation, and the deviation √(var + eps).

    The mean is subtracted twice: what the rounding of the first leaves over, half a unit in the last place of a large
    mean, the second takes away.
    """
    eps = checks.number(function, "eps", eps, low=0)
    checks.in_range(function, "eps", eps, x.dtype, "summand")
    eps = x.dtype.type(eps)
    centred = x - x.mean(axis=-1, keepdims=True)
    centred = centred - centred.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return centred / deviation, deviation


@quiet
def layer_norm_backward(grad_output: Array, x: Array, gamma: Array, eps: float = 1e-6) -> tuple[Array, Array, Array]:
    """Pull a gradient back through layer norm.

    With μ the mean, σ = √(var + eps), ``x̂ = (x - μ)/σ`` and ``y = γ x̂ + β``; M terms in each mean::

        dβ  = Σ dy                              over all tokens
        dγ  = Σ dy x̂                            over all tokens
        dx̂  = dy γ
        ∂x̂ₖ/∂xⱼ = (δₖⱼ - 1/M - x̂ₖ x̂ⱼ/M) / σ     the three ways in which xⱼ acts: itself, through μ, through σ:
                                                ∂μ/∂xⱼ = 1/M and ∂σ/∂xⱼ = (xⱼ - μ)/(M σ) = x̂ⱼ/M
        dxⱼ = Σₖ dx̂ₖ ∂x̂ₖ/∂xⱼ
            = (dx̂ⱼ - mean(dx̂) - x̂ⱼ mean(dx̂ x̂)) / σ

    Args:
        grad_output: gradient with respect to the result (..., M).
        x: the input of the forward (..., M).
        gamma: scale (M,).
        eps: as in the forward.

    Returns:
        grad_x (..., M), grad_gamma (M,), grad_beta (M,); the last two in the dtype of ``gamma``.

    Raises:
        TypeError, ValueError: as the forward.
    """
    check("layer_norm_backward", {"x": x, "gamma": gamma, "grad_output": grad_output})
    gradient, wide, scale = widen(grad_output, x, gamma)
    normalised, deviation = _normalise("layer_norm_backward", wide, eps)
    grad_gamma = sum_to_shape(gradient * normalised, gamma.shape)
    grad_beta = sum_to_shape(gradient, gamma.shape)
    inner = gradient * scale
    along = (inner * normalised).mean(axis=-1, keepdims=True)
    grad_x = (inner - inner.mean(axis=-1, keepdims=True) - normalised * along) / deviation
    return grad_x.astype(x.dtype), grad_gamma.astype(gamma.dtype), grad_beta.astype(gamma.dtype)


@quiet
def rms_norm(x: Array, gamma: Array, eps: float = 1e-6) -> Array:
    """Give every token the root mean square 1, then a learned scale.

    ``y = gamma * x / sqrt(mean(x²) + eps)`` over the last axis (Zhang and Sennrich 2019, equation 4): layer norm
    without its mean and shift.

    Args:
        x: (..., M).
        gamma: scale (M,); may be of a wider dtype.
        eps: added to the mean square, in its units; 0 or more.

    Returns:
        Array of the shape and dtype of ``x``.

    Raises:
        TypeError: an array is not floating, or the scale is narrower than ``x``.
        ValueError: a rank or a size disagrees, or eps is negative.

    Example:
        >>> rms_norm(np.array([3.0, -3.0]), np.array([1.0, 2.0]), eps=0.0)
        array([ 1., -2.])
    """
    check("rms_norm", {"x": x, "gamma": gamma})
    wide, scale = widen(x, gamma)
    return (scale * wide / _root_mean_square("rms_norm", wide, eps)).astype(x.dtype)


def _root_mean_square(function: str, x: Array, eps: float) -> Array:
    eps = checks.number(function, "eps", eps, low=0)
    checks.in_range(function, "eps", eps, x.dtype, "summand")
    return np.sqrt((x**2).mean(axis=-1, keepdims=True) + x.dtype.type(eps))


@quiet
def rms_norm_backward(grad_output: Array, x: Array, gamma: Array, eps: float = 1e-6) -> tuple[Array, Array]:
    """Pull a gradient back through the norm by the root mean square.

    With ρ = √(mean(x²) + eps), ``x̂ = x/ρ`` and ``y = γ x̂``; M terms in each mean::

        dγ  = Σ dy x̂                            over all tokens
        dx̂  = dy γ
        ∂ρ/∂xⱼ = xⱼ/(M ρ) = x̂ⱼ/M
        ∂x̂ₖ/∂xⱼ = (δₖⱼ - x̂ₖ x̂ⱼ/M) / ρ           the two ways in which xⱼ acts: itself, and through ρ
        dxⱼ = (dx̂ⱼ - x̂ⱼ mean(dx̂ x̂)) / ρ

    Args:
        grad_output: gradient with respect to the result (..., M).
        x: the input of the forward (..., M).
        gamma: scale (M,).
        eps: as in the forward.

    Returns:
        grad_x (..., M), grad_gamma (M,), the last in the dtype of ``gamma``.

    Raises:
        TypeError, ValueError: as the forward.
    """
    check("rms_norm_backward", {"x": x, "gamma": gamma, "grad_output": grad_output})
    gradient, wide, scale = widen(grad_output, x, gamma)
    root = _root_mean_square("rms_norm_backward", wide, eps)
    normalised = wide / root
    inner = gradient * scale
    grad_x = (inner - normalised * (inner * normalised).mean(axis=-1, keepdims=True)) / root
    return grad_x.astype(x.dtype), sum_to_shape(gradient * normalised, gamma.shape).astype(gamma.dtype)
