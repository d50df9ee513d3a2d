"""The Transformer encoder block: attention and feed-forward network, residuals and layer norms. Pure JAX."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attendax import checks
from attendax.checks import check
from attendax.kernels.operands import takes_arrays, widen
from attendax.masks import ArrayLike, Mask
from attendax.params import EncoderBlockParams, EncoderParams, MultiHeadParams
from attendax.sharding.explicit import over_auto_axes

from .in_pieces import layer_in_pieces
from .init import glorot
from .multi_head import in_tiles, init_multi_head_attention
from .token_wise import feed_forward, layer_norm
from .token_wise import feed_forward_backward as feed_forward_backward
from .token_wise import layer_norm_backward as layer_norm_backward
from .weighted_sum import pull_back


def init_encoder_block(
    rng: Any, d_model: int, num_heads: int, d_ff: int | None = None, *, bias: bool = False, dtype: Any = float
) -> EncoderBlockParams:
    """Draw the weights of an encoder block: Glorot-uniform matrices, shifts and biases 0, scales 1.

    Args:
        rng: a random key.
        d_model: M.
        num_heads: N, a divisor of M.
        d_ff: F; 4 M unless given.
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


@takes_arrays
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
        mask: None; boolean, (T, T) or (B, N, T, T) with any axis 1 (L3: nothing else is guessed at); or a value from
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
        >>> params = init_encoder_block(jax.random.key(0), 6, 2)
        >>> encoder_block(jnp.ones((1, 3, 6)), params, num_heads=2).shape
        (1, 3, 6)
    """
    options: dict[str, Any] = {"num_heads": num_heads, "norm": norm, "activation": activation, "eps": eps}
    shape = checks.encoder_block("encoder_block", {"x": x}, params, mask, **options)
    return _forward(params, x, mask, shape, **options)


def _forward(
    params: EncoderBlockParams,
    x: ArrayLike,
    mask: Mask | ArrayLike | None,
    shape: tuple[int, ...],
    *,
    num_heads: int,
    norm: str,
    activation: str,
    eps: float,
) -> Array:
    """The block; ``shape`` is that of the scores (B, N, T, T)."""
    del num_heads  # said by the shape
    run = partial(_at_once, shape=shape, norm=norm, activation=activation, eps=eps)
    return layer_in_pieces(run, shape, params, x, mask=mask)


def _at_once(
    params: EncoderBlockParams,
    x: ArrayLike,
    mask: Mask | ArrayLike | None,
    *,
    shape: tuple[int, ...],
    norm: str,
    activation: str,
    eps: float,
) -> Array:
    """The block at once, in the compute dtype inside."""
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


@takes_arrays
def encoder_block_backward(
    grad_output: ArrayLike,
    x: ArrayLike,
    params: EncoderBlockParams,
    *,
    num_heads: int,
    mask: Mask | ArrayLike | None = None,
    norm: str = "pre",
    activation: str = "relu",
    eps: float = 1e-6,
) -> tuple[Array, EncoderBlockParams]:
    """Gradient of x, and those of the weights as ``EncoderBlockParams``; derived by hand in ``spec``."""
    options: dict[str, Any] = {"num_heads": num_heads, "norm": norm, "activation": activation, "eps": eps}
    arrays = {"x": x, "grad_output": grad_output}
    shape = checks.encoder_block("encoder_block_backward", arrays, params, mask, **options)
    return pull_back(lambda x, params: _forward(params, x, mask, shape, **options), grad_output, x, params)


@takes_arrays
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
        blocks: list of ``EncoderBlockParams``; an empty one returns ``x``.
        mask: None, or boolean, broadcastable to (B, N, T, T), given to every block.
        num_heads, norm, activation, eps: of every block.

    Returns:
        (B, T, M) in the dtype of ``x``.

    Raises:
        TypeError, ValueError: as ``encoder_block``.
    """
    options: dict[str, Any] = {"num_heads": num_heads, "norm": norm, "activation": activation, "eps": eps}
    return _stack("stack_encoder_blocks", x, blocks, mask, options)


def _stack(
    function: str, x: ArrayLike, blocks: Sequence[EncoderBlockParams], mask: ArrayLike | None, options: dict[str, Any]
) -> Array:
    """The forward in the name of ``function``."""
    checks.tokens_first(function, x, "blocks", blocks)
    if isinstance(blocks, EncoderParams):
        checks.fail(TypeError, function, "blocks must be a sequence, got EncoderParams.", advice="Write params.blocks.")
    check(function, {"x": x})
    hidden = jnp.asarray(x)
    for params in blocks:
        shape = checks.encoder_block(function, {"x": hidden}, params, mask, **options, broadcast=True)
        hidden = _forward(params, hidden, mask, shape, **options)
    return hidden


@takes_arrays
def stack_encoder_blocks_backward(
    grad_output: ArrayLike,
    x: ArrayLike,
    blocks: Sequence[EncoderBlockParams],
    mask: ArrayLike | None = None,
    *,
    num_heads: int,
    norm: str = "pre",
    activation: str = "relu",
    eps: float = 1e-6,
) -> tuple[Array, list[EncoderBlockParams]]:
    """Gradient of x, and a list with those of each block as ``EncoderBlockParams``; derived by hand in ``spec``."""
    checks.tokens_first("stack_encoder_blocks_backward", x, "blocks", blocks)
    check("stack_encoder_blocks_backward", {"x": x, "grad_output": grad_output})
    options: dict[str, Any] = {"num_heads": num_heads, "norm": norm, "activation": activation, "eps": eps}

    @takes_arrays
    def forward(x, blocks):
        return _stack("stack_encoder_blocks_backward", x, blocks, mask, options)

    return pull_back(forward, grad_output, x, list(blocks))


@dataclasses.dataclass(frozen=True)
class TransformerEncoderBlock:
    """One encoder block as a pair of pure functions; it holds sizes and options, never weights.

    Args:
        d_model: M, divisible by ``num_heads``.
        num_heads: N.
        d_ff: F; 4 M unless given.
        norm, activation, bias, eps: as in ``encoder_block`` and ``init_encoder_block``.

    Raises:
        TypeError, ValueError: a size is not a positive integer, M is not divisible by N, or an unknown option.

    Example:
        >>> block = TransformerEncoderBlock(d_model=6, num_heads=2)
        >>> params = block.init(jax.random.key(0))
        >>> block.forward(params, jnp.ones((1, 3, 6))).shape
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
        object.__setattr__(
            self, "d_ff", 4 * self.d_model if self.d_ff is None else checks.integer(name, "d_ff", self.d_ff)
        )
        checks.block_options(name, self.norm, self.activation, self.eps)

    @property
    def _options(self) -> dict[str, Any]:
        return {"num_heads": self.num_heads, "norm": self.norm, "activation": self.activation, "eps": self.eps}

    def init(self, rng: Any, dtype: Any = float) -> EncoderBlockParams:
        """Weights; see ``init_encoder_block``."""
        return init_encoder_block(rng, self.d_model, self.num_heads, self.d_ff, bias=self.bias, dtype=dtype)

    @takes_arrays
    def forward(self, params: EncoderBlockParams, x: ArrayLike, mask: ArrayLike | None = None) -> Array:
        """Encode x (B, T, M); mask: boolean, broadcastable to (B, N, T, T). See ``encoder_block``."""
        name = "TransformerEncoderBlock"
        shape = checks.encoder_block(name, {"x": x}, params, mask, **self._options, broadcast=True)
        return _forward(params, x, mask, shape, **self._options)

    @takes_arrays
    def backward(
        self, grad_output: ArrayLike, params: EncoderBlockParams, x: ArrayLike, mask: ArrayLike | None = None
    ) -> tuple[Array, EncoderBlockParams]:
        """Gradient of x, and those of the weights as ``EncoderBlockParams``."""
        name, arrays = "TransformerEncoderBlock.backward", {"x": x, "grad_output": grad_output}
        checks.encoder_block(name, arrays, params, mask, **self._options, broadcast=True)
        return pull_back(lambda x, params: self.forward(params, x, mask), grad_output, x, params)
