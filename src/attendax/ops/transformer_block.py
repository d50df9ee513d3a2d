"""Encoder blocks as pairs of pure functions, and stacks of them. Pure JAX."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attendax import checks
from attendax.checks import check
from attendax.kernels.operands import public, takes_arrays
from attendax.masks import ArrayLike
from attendax.params import EncoderBlockParams, EncoderParams

from .block import forward
from .multi_head import init_multi_head_attention
from .norms import layer_norm as layer_norm
from .norms import layer_norm_backward as layer_norm_backward
from .token_wise import feed_forward as feed_forward
from .token_wise import feed_forward_backward as feed_forward_backward
from .token_wise import glorot
from .weighted_sum import pull_back


def init_encoder_block(
    rng: Any, d_model: int, num_heads: int, d_ff: int | None = None, *, bias: bool = False, dtype: Any = float
) -> EncoderBlockParams:
    """Draw the weights of an encoder block: Glorot-uniform matrices, shifts and biases 0, scales 1.

    Args:
        rng: a random key.
        d_model: M.
        num_heads: N, a divisor of M.
        d_ff: F (default: 4 M).
        bias: whether the projections of the attention have biases.
        dtype: of the weights; float is the default precision of JAX.

    Returns:
        ``EncoderBlockParams``.

    Raises:
        TypeError, ValueError: a size is not a positive integer, or M is not divisible by N.
    """
    layer = TransformerEncoderBlock(d_model, num_heads, d_ff)
    M, F = layer.d_model, layer.d_ff or 4 * layer.d_model
    attention_key, key1, key2 = jax.random.split(rng, 3)
    return EncoderBlockParams(
        attention=init_multi_head_attention(attention_key, M, num_heads, bias=bias, dtype=dtype),
        W1=glorot(key1, M, F, dtype),
        b1=jnp.zeros(F, dtype),
        W2=glorot(key2, F, M, dtype),
        b2=jnp.zeros(M, dtype),
        gamma1=jnp.ones(M, dtype),
        beta1=jnp.zeros(M, dtype),
        gamma2=jnp.ones(M, dtype),
        beta2=jnp.zeros(M, dtype),
    )


@public
def stack_encoder_blocks(
    x: ArrayLike,
    blocks: Sequence[EncoderBlockParams],
    mask: ArrayLike | None = None,
    *,
    num_heads: int,
    norm: str = "pre",
    activation: str = "relu",
    eps: float = 1e-6,
) -> Array:
    """Pass tokens through several blocks, one after the other.

    Args:
        x: (B, T, M).
        blocks: list of ``EncoderBlockParams``; an empty list returns ``x``.
        mask: None, or boolean, broadcastable to (B, N, T, T), given to every block.
        num_heads, norm, activation, eps: of every block.

    Returns:
        (B, T, M) in the dtype of ``x``.

    Raises:
        TypeError, ValueError: as ``encoder_block``.
    """
    options: dict[str, Any] = {"num_heads": num_heads, "norm": norm, "activation": activation, "eps": eps}
    _check("stack_encoder_blocks", blocks, x=x)
    return _stack("stack_encoder_blocks", x, blocks, mask, options)


def _check(function: str, blocks: Sequence[EncoderBlockParams], **arrays: ArrayLike) -> None:
    checks.arrays_first(function, arrays, "blocks", blocks)
    if isinstance(blocks, EncoderParams):
        checks.fail(TypeError, function, "blocks must be a sequence, got EncoderParams.", advice="Write params.blocks.")
    check(function, arrays)


def _stack(
    function: str, x: ArrayLike, blocks: Sequence[EncoderBlockParams], mask: ArrayLike | None, options: dict[str, Any]
) -> Array:
    hidden = jnp.asarray(x)
    for params in blocks:
        shape = checks.encoder_block(function, {"x": hidden}, params, mask, **options, broadcast=True)
        hidden = forward(params, hidden, mask, shape, **options)
    return hidden


@public
def stack_encoder_blocks_backward(
    grad_output: ArrayLike, x: ArrayLike, blocks: Sequence[EncoderBlockParams], mask: ArrayLike | None = None, *,
    num_heads: int, norm: str = "pre", activation: str = "relu", eps: float = 1e-6,
) -> tuple[Array, list[EncoderBlockParams]]:  # fmt: skip
    """Gradient of x, and a list with those of each block as ``EncoderBlockParams``; derived by hand in ``spec``."""
    function = "stack_encoder_blocks_backward"
    _check(function, blocks, x=x, grad_output=grad_output)
    options: dict[str, Any] = {"num_heads": num_heads, "norm": norm, "activation": activation, "eps": eps}
    return pull_back(lambda x, blocks: _stack(function, x, blocks, mask, options), grad_output, x, list(blocks))


@dataclasses.dataclass(frozen=True)
class TransformerEncoderBlock:
    """One encoder block as a pair of pure functions; it holds sizes and options, never weights.

    Args:
        d_model: M, divisible by ``num_heads``.
        num_heads: N.
        d_ff: F (default: 4 M).
        norm, activation, bias, eps: as in ``encoder_block`` and ``init_encoder_block``.

    Raises:
        TypeError, ValueError: a size is not a positive integer, M is not divisible by N, or an option is unknown.

    Example:
        >>> block = TransformerEncoderBlock(d_model=6, num_heads=2)
        >>> params = block.init(jax.random.key(0))
        >>> block.forward(jnp.ones((1, 3, 6)), params).shape
        (1, 3, 6)
    """

    d_model: int
    num_heads: int
    d_ff: int | None = None
    _: dataclasses.KW_ONLY
    norm: str = "pre"
    activation: str = "relu"
    bias: bool = False
    eps: float = 1e-6

    def __post_init__(self) -> None:
        name = "TransformerEncoderBlock"
        checks.integer(name, "d_model", self.d_model)
        checks.heads(name, self.d_model, self.num_heads)
        width = 4 * self.d_model if self.d_ff is None else checks.integer(name, "d_ff", self.d_ff)
        object.__setattr__(self, "d_ff", width)
        checks.block_options(name, self.norm, self.activation, self.eps)

    @property
    def _options(self) -> dict[str, Any]:
        return {"num_heads": self.num_heads, "norm": self.norm, "activation": self.activation, "eps": self.eps}

    def init(self, rng: Any, dtype: Any = float) -> EncoderBlockParams:
        """Weights; see ``init_encoder_block``."""
        return init_encoder_block(rng, self.d_model, self.num_heads, self.d_ff, bias=self.bias, dtype=dtype)

    @takes_arrays
    def forward(self, x: ArrayLike, params: EncoderBlockParams, mask: ArrayLike | None = None) -> Array:
        """Encode x (B, T, M); mask: boolean, broadcastable to (B, N, T, T). See ``encoder_block``."""
        name = "TransformerEncoderBlock"
        shape = checks.encoder_block(name, {"x": x}, params, mask, **self._options, broadcast=True)
        return forward(params, x, mask, shape, **self._options)

    @takes_arrays
    def backward(
        self, grad_output: ArrayLike, x: ArrayLike, params: EncoderBlockParams, mask: ArrayLike | None = None
    ) -> tuple[Array, EncoderBlockParams]:
        """Gradient of x, and those of the weights as ``EncoderBlockParams``."""
        name, arrays = "TransformerEncoderBlock.backward", {"x": x, "grad_output": grad_output}
        checks.encoder_block(name, arrays, params, mask, **self._options, broadcast=True)
        return pull_back(lambda x, params: self.forward(x, params, mask), grad_output, x, params)
