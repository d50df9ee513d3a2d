"""Encoder blocks with their weights, and stacks of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attendax import checks
from attendax.checks import check, knows_keywords
from attendax.params import EncoderBlockParams

from .block import backward, forward
from .layer import Layer, generator, glorot
from .multi_head import MultiHeadAttention
from .norms import layer_norm as layer_norm
from .norms import layer_norm_backward as layer_norm_backward
from .token_wise import feed_forward as feed_forward
from .token_wise import feed_forward_backward as feed_forward_backward
from .weighted_sum import Array


class TransformerEncoderBlock(Layer):
    """One encoder block with its weights; pre-norm unless told otherwise.

    ::

        x -> LayerNorm -> MultiHeadAttention -> + -> LayerNorm -> FFN -> +
        |_______________________________________|  |_____________________|

    Attributes:
        d_model, num_heads, d_ff: M, N and F.
        attention: the ``MultiHeadAttention`` inside, with its own weights.
        W1, b1, W2, b2: weights of the feed-forward network.
        gamma1, beta1: of the layer norm of the attention; gamma2, beta2: of that of the feed-forward network.
        norm, activation, eps: the options.

    Args:
        d_model: M, divisible by ``num_heads``.
        num_heads: N.
        d_ff: F; 4 M unless given.
        norm: "pre", or "post" for the paper's Add & Norm.
        activation: "relu", "gelu" (erf) or "gelu_tanh".
        bias: whether the projections of the attention have biases.
        eps: of both layer norms.
        rng: ``numpy.random.Generator``, or a seed for one; None draws a fresh one.

    Raises:
        TypeError, ValueError: a size is not a positive integer, M is not divisible by N, or an unknown option.

    Example:
        >>> block = TransformerEncoderBlock(d_model=6, num_heads=2, rng=0)
        >>> block.forward(np.ones((1, 3, 6))).shape
        (1, 3, 6)
        >>> grad_x, grad_params = block.backward(np.ones((1, 3, 6)))
        >>> grad_x.shape, grad_params["W1"].shape
        ((1, 3, 6), (6, 24))
    """

    Params = EncoderBlockParams

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int | None = None,
        *,
        norm: str = "pre",
        activation: str = "relu",
        bias: bool = False,
        eps: float = 1e-6,
        rng: Any = None,
    ) -> None:
        name = "TransformerEncoderBlock"
        self.d_model = checks.integer(name, "d_model", d_model)
        checks.heads(name, self.d_model, num_heads)
        self.num_heads = int(num_heads)
        self.d_ff = 4 * self.d_model if d_ff is None else checks.integer(name, "d_ff", d_ff)
        checks.block_options(name, norm, activation, eps)
        self.norm, self.activation, self.eps = norm, activation, float(eps)
        rng = generator(name, rng)
        self.attention = MultiHeadAttention(self.d_model, self.num_heads, bias=bias, rng=rng)
        self.W1, self.b1 = glorot(rng, self.d_model, self.d_ff), np.zeros(self.d_ff)
        self.W2, self.b2 = glorot(rng, self.d_ff, self.d_model), np.zeros(self.d_model)
        self.gamma1, self.gamma2 = np.ones(self.d_model), np.ones(self.d_model)
        self.beta1, self.beta2 = np.zeros(self.d_model), np.zeros(self.d_model)
        self._cache: dict[str, Any] | None = None

    @property
    def params(self) -> Any:
        """The weights as ``EncoderBlockParams``; the arrays themselves, not copies."""
        return super().params._replace(attention=self.attention.params)

    def forward(self, x: Array, mask: Array | None = None) -> Array:
        """Encode x (B, T, M); mask: boolean, broadcastable to (B, N, T, T). See ``encoder_block``."""
        output, self._cache = self._encode("TransformerEncoderBlock", x, mask)
        return output

    def _encode(self, function: str, x: Array, mask: Array | None) -> tuple[Array, dict[str, Any]]:
        """The forward in the name of ``function``: output, and the cache for ``backward``."""
        checks.encoder_block(function, {"x": x}, self.params, mask, **self._options, broadcast=True)
        return forward(self.params, x, mask, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"num_heads": self.num_heads, "norm": self.norm, "activation": self.activation, "eps": self.eps}

    def backward(self, grad_output: Array) -> tuple[Array, dict[str, Any]]:
        """Gradients of the last forward: grad_x (B, T, M), and a dict with those of the weights.

        Its entry "attention" is a ``MultiHeadParams``. See ``encoder_block_backward``.
        """
        cache = self._after_forward("_cache")
        arrays = {"x": cache["x"], "grad_output": grad_output}
        name = "TransformerEncoderBlock.backward"
        checks.encoder_block(name, arrays, cache["params"], None, **self._options, broadcast=True)
        grad_x, grads = backward(grad_output, cache)
        return grad_x, grads._asdict()

    def _check_param(self, function: str, name: str, value: Any, current: Any) -> None:
        if name == "attention":
            self.attention._checked(value)
        else:
            super()._check_param(function, name, value, current)

    def _set_param(self, name: str, value: Any) -> None:
        if name == "attention":
            self.attention.set_params(value)
        else:
            super()._set_param(name, value)


@knows_keywords
def stack_encoder_blocks(x: Array, blocks: Sequence[TransformerEncoderBlock], mask: Array | None = None) -> Array:
    """Pass tokens through several blocks, one after the other.

    Args:
        x: (B, T, M).
        blocks: list of ``TransformerEncoderBlock``; an empty one returns ``x``.
        mask: None, or boolean, broadcastable to (B, N, T, T), given to every block.

    Returns:
        (B, T, M) in the dtype of ``x``.

    Raises:
        TypeError, ValueError: as ``TransformerEncoderBlock.forward``.

    Example:
        >>> blocks = [TransformerEncoderBlock(4, 2, rng=seed) for seed in range(3)]
        >>> stack_encoder_blocks(np.ones((1, 2, 4)), blocks).shape
        (1, 2, 4)
    """
    return _stack("stack_encoder_blocks", x, blocks, mask)[0]


def _stack(
    function: str, x: Array, blocks: Sequence[TransformerEncoderBlock], mask: Array | None
) -> tuple[Array, list]:
    """The forward in the name of ``function``: output, and the caches of the blocks.

    They are kept here, not in the blocks: one block may stand in the stack more than once.
    """
    checks.arrays_first(function, {"x": x}, "blocks", blocks)
    check(function, {"x": x})
    caches = []
    for block in blocks:
        checks.instance(function, "each of blocks", block, TransformerEncoderBlock)
        x, cache = block._encode(function, x, mask)
        caches.append(cache)
    return x, caches


@knows_keywords
def stack_encoder_blocks_backward(
    grad_output: Array, x: Array, blocks: Sequence[TransformerEncoderBlock], mask: Array | None = None
) -> Any:
    """Pull a gradient back through the stack: the last block first.

    From ``x_l = block_l(x_{l-1})``: ``dx_{l-1} = block_lᵀ(dx_l)``, and the weights of block l get theirs on the way.

    Args:
        grad_output: gradient with respect to the result (B, T, M).
        x, blocks, mask: as in the forward, which is run again.

    Returns:
        grad_x (B, T, M), and a list with the ``grad_params`` dict of each block.

    Raises:
        TypeError, ValueError: as the forward.
    """
    checks.arrays_first("stack_encoder_blocks_backward", {"x": x, "grad_output": grad_output}, "blocks", blocks)
    check("stack_encoder_blocks_backward", {"x": x, "grad_output": grad_output})
    _, caches = _stack("stack_encoder_blocks_backward", x, blocks, mask)
    grad_params: list[dict[str, Any]] = []
    for cache in reversed(caches):
        grad_output, grads = backward(grad_output, cache)
        grad_params.insert(0, grads._asdict())
    return grad_output, grad_params
