"""Norms of a token: layer norm, and the norm by the root mean square; of the queries and keys of heads. Pure JAX."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attendax import checks
from attendax.checks import check
from attendax.kernels.numerics import finite_straight_through, in_memory, mark_of_rows, repeated, row_sums
from attendax.kernels.operands import takes_arrays, widen
from attendax.mask_kinds import lifted
from attendax.masks import ArrayLike

from .weighted_sum import pull_back


@takes_arrays
def layer_norm(x: ArrayLike, gamma: ArrayLike, beta: ArrayLike, eps: float = 1e-6) -> Array:
    """``y = gamma * (x - mean) / sqrt(var + eps) + beta`` over the last axis (Ba et al. 2016, equation 4).

    The variance is taken about the mean. The mean is subtracted twice; the second time removes the rounding error of
    the first, so that a large mean does not cost digits (L8). The squares of ``x - mean`` are added in float32, or in
    float64 for float64 arrays. If their sum is infinite (numbers beyond 1e19), the result is ``beta``.

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
    return lifted(gamma, x.ndim) * _normalised(eps, x)[0] + lifted(beta, x.ndim)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _normalised(eps: float, x: Array) -> tuple[Array, Array]:
    """``(x - mean) / root``, and the root, ``sqrt(var + eps)``: they are all that a derivative needs, of any order."""
    centred = x - _mean(x)
    centred = centred - _mean(centred)
    root = jnp.sqrt(_mean(in_memory(centred**2)) + eps)
    return centred / root, root


@_normalised.defjvp
def _normalised_jvp(eps: float, primals: Any, tangents: Any) -> tuple[Any, Any]:
    normalised, root = _normalised(eps, *primals)
    given, width = tangents[0], primals[0].shape[-1]
    moved = given - repeated(given.mean(axis=-1, keepdims=True), width)
    of_root = (moved * normalised).mean(axis=-1, keepdims=True)
    return (normalised, root), ((moved - normalised * repeated(of_root, width)) / root, of_root)


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
    return (lifted(scale, x.ndim) * wide / root).astype(x.dtype)


@takes_arrays
def rms_norm_backward(grad_output: ArrayLike, x: ArrayLike, gamma: ArrayLike, eps: float = 1e-6) -> tuple[Array, Array]:
    """Gradients grad_x, grad_gamma; derived by hand in ``spec``."""
    check("rms_norm_backward", {"x": x, "gamma": gamma, "grad_output": grad_output})
    return pull_back(lambda x, gamma: _rms_norm("rms_norm_backward", x, gamma, eps), grad_output, x, gamma)


class NormOfHeads(NamedTuple):
    """The norm of each head's queries and keys by their root mean square; gains, eps, whether a gain is 1 + gamma."""

    gamma_Q: ArrayLike
    gamma_K: ArrayLike
    eps: Any
    one_plus: Any = False

    def __call__(self, q: Array, k: Array) -> list[Array]:
        """Queries and keys (B, N, ., d_k). A row that is not finite is NaN, and meets the gradient 0 or NaN (L6)."""
        gains = (self.one_plus + gamma for gamma in widen(q, self.gamma_Q, self.gamma_K)[1:])
        return [self._of_rows(x, gain.astype(x.dtype)) for x, gain in zip((q, k), gains, strict=True)]

    def _of_rows(self, x: Array, gain: Array) -> Array:
        finite = finite_straight_through(x)
        root = jnp.sqrt((finite**2).mean(axis=-1, keepdims=True) + self.eps)
        return gain.reshape(1, 1, 1, -1) * finite / root + mark_of_rows(x).astype(x.dtype)
