"""The encoder block: attention and feed-forward network, residuals and layer norms. Pure JAX."""

from functools import partial
from typing import Any

from jax import Array

from attendax import checks
from attendax.kernels.operands import public, widen
from attendax.masks import ArrayLike, Mask
from attendax.params import EncoderBlockParams, MultiHeadParams
from attendax.sharding.explicit import over_auto_axes

from .in_pieces import layer_in_pieces
from .multi_head import in_tiles
from .norms import layer_norm
from .token_wise import feed_forward
from .weighted_sum import pull_back


@public
@over_auto_axes
def encoder_block(
    x: ArrayLike,
    params: EncoderBlockParams,
    *,
    num_heads: int,
    mask: Mask | ArrayLike | None = None,
    norm: str = "pre",
    activation: str = "relu",
    eps: float = 1e-6,
) -> Array:
    """Pass tokens through one encoder block; under ``jit`` a CPU takes a few rows of a large batch at a time.

    With A multi-head self-attention, F the feed-forward network, and N₁, N₂ the two layer norms::

        norm="pre":   h = x + A(N₁(x)),   y = h + F(N₂(h))      (Xiong et al. 2020; GPT-2)
        norm="post":  h = N₁(x + A(x)),   y = N₂(h + F(h))      (Vaswani et al. 2017, "Add & Norm"; BERT)

    Args:
        x: (B, T, M).
        params: ``EncoderBlockParams``.
        num_heads: N, a divisor of M.
        mask: None; boolean, (T, T) or (B, N, T, T) with any axis 1 (L3); or a mask from
            ``attendax.masks``.
        norm: "pre" or "post".
        activation: "relu", "gelu" (erf) or "gelu_tanh".
        eps: of both layer norms.

    Returns:
        (B, T, M) in the dtype of ``x``.

    Raises:
        TypeError: an array is not floating, a weight is narrower than ``x``, or the mask is not boolean.
        ValueError: a rank or a size disagrees, or an option is not among its choices.

    Example:
        >>> import jax
        >>> from attendax import ops
        >>> params = ops.init_encoder_block(jax.random.key(0), 6, 2)
        >>> encoder_block(jax.numpy.ones((1, 3, 6)), params, num_heads=2).shape
        (1, 3, 6)
    """
    options: dict[str, Any] = {"num_heads": num_heads, "norm": norm, "activation": activation, "eps": eps}
    shape = checks.encoder_block("encoder_block", {"x": x}, params, mask, **options)
    return forward(params, x, mask, shape, **options)


def forward(
    params: EncoderBlockParams, x: ArrayLike, mask: Mask | ArrayLike | None, shape: tuple[int, ...], **options: Any
) -> Array:
    """The block; ``shape`` is that of the scores (B, N, T, T), which says ``num_heads``."""
    return layer_in_pieces(partial(_at_once, shape=shape, **options), shape, params, x, mask=mask)


def _at_once(
    params: EncoderBlockParams, x: ArrayLike, mask: Any, *, shape: Any, norm: str, activation: str, eps: float, **_: Any
) -> Array:
    wide, *leaves = widen(x, *params.attention, *params[1:])
    params = EncoderBlockParams(MultiHeadParams(*leaves[:8]), *leaves[8:])

    def attend(tokens):
        return in_tiles(params.attention, tokens, tokens, tokens, mask, shape)

    def feed(tokens):
        return feed_forward(tokens, params.W1, params.b1, params.W2, params.b2, activation=activation)

    def norm1(tokens):
        return layer_norm(tokens, params.gamma1, params.beta1, eps)

    def norm2(tokens):
        return layer_norm(tokens, params.gamma2, params.beta2, eps)

    if norm == "pre":
        hidden = wide + attend(norm1(wide))
        output = hidden + feed(norm2(hidden))
    else:
        hidden = norm1(wide + attend(wide))
        output = norm2(hidden + feed(hidden))
    return output.astype(x.dtype)


@public
def encoder_block_backward(
    grad_output: ArrayLike, x: ArrayLike, params: EncoderBlockParams, *, num_heads: int,
    mask: Mask | ArrayLike | None = None, norm: str = "pre", activation: str = "relu", eps: float = 1e-6,
) -> tuple[Array, EncoderBlockParams]:  # fmt: skip
    """Gradient of x, and those of the weights as ``EncoderBlockParams``; derived by hand in ``spec``."""
    options: dict[str, Any] = {"num_heads": num_heads, "norm": norm, "activation": activation, "eps": eps}
    arrays = {"x": x, "grad_output": grad_output}
    shape = checks.encoder_block("encoder_block_backward", arrays, params, mask, **options)
    return pull_back(lambda x, params: forward(params, x, mask, shape, **options), grad_output, x, params)
