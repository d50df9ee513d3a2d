"""The Transformer encoder block: attention and feed-forward network, each with its residual and its layer norm."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attendax import checks
from attendax.checks import check
from attendax.params import EncoderBlockParams, MultiHeadParams

from .layer import Layer, generator, glorot
from .multi_head import MultiHeadAttention, multi_head_attention_backward
from .multi_head import forward as multi_head_forward
from .token_wise import feed_forward, feed_forward_backward, layer_norm, layer_norm_backward
from .weighted_sum import Array, widen


def encoder_block(
    x: Array,
    params: EncoderBlockParams,
    *,
    num_heads: int,
    mask: Array | None = None,
    norm: str = "pre",
    activation: str = "relu",
    eps: float = 1e-6,
) -> Array:
    """Pass tokens through one encoder block.

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
    """
    options: dict[str, Any] = {"num_heads": num_heads, "norm": norm, "activation": activation, "eps": eps}
    checks.encoder_block("encoder_block", {"x": x}, params, mask, **options)
    return _forward(params, x, mask, **options)[0]


def encoder_block_backward(
    grad_output: Array,
    x: Array,
    params: EncoderBlockParams,
    *,
    num_heads: int,
    mask: Array | None = None,
    norm: str = "pre",
    activation: str = "relu",
    eps: float = 1e-6,
) -> tuple[Array, EncoderBlockParams]:
    """Pull a gradient back through one encoder block.

    With A, F, N₁, N₂ as in the forward; a residual passes its gradient on twice, once around and once through::

        norm="pre":   y = h + F(N₂(h)):      dh = dy + N₂ᵀ(Fᵀ(dy))
                      h = x + A(N₁(x)):      dx = dh + N₁ᵀ(Aᵀ(dh))
        norm="post":  y = N₂(u), u = h + F(h):   du = N₂ᵀ(dy),  dh = du + Fᵀ(du)
                      h = N₁(w), w = x + A(x):   dw = N₁ᵀ(dh),  dx = dw + Aᵀ(dw)

    where ᵀ marks the backward of each part. A looks at itself: its dQ, dK and dV add up.

    Args:
        grad_output: gradient with respect to the result (B, T, M).
        x, params, num_heads, mask, norm, activation, eps: as in the forward.

    Returns:
        grad_x (B, T, M) and the gradients of the weights as ``EncoderBlockParams``; each in the dtype of its input.

    Raises:
        TypeError, ValueError: as the forward.
    """
    options: dict[str, Any] = {"num_heads": num_heads, "norm": norm, "activation": activation, "eps": eps}
    checks.encoder_block("encoder_block_backward", {"x": x, "grad_output": grad_output}, params, mask, **options)
    return _backward(grad_output, _forward(params, x, mask, **options)[1])


def _forward(
    params: EncoderBlockParams, x: Array, mask: Array | None, *, num_heads: int, norm: str, activation: str, eps: float
) -> Any:
    """The block, in the compute dtype inside: output, and a cache for ``_backward``."""
    cache: dict[str, Any] = {"params": params, "x": x, "norm": norm, "activation": activation, "eps": eps}
    wide, *leaves = widen(x, *params.attention, *params[1:])
    attention = MultiHeadParams(*leaves[:8])
    cache["network"] = W1, b1, W2, b2 = leaves[8:12]
    cache["norms"] = gamma1, beta1, gamma2, beta2 = leaves[12:]

    def attend(tokens):
        output, cache["attention"] = multi_head_forward(
            "multi_head_attention_forward", attention, tokens, tokens, tokens, num_heads, mask, broadcast=True
        )
        return output

    def feed(tokens):
        cache["fed"] = tokens
        return feed_forward(tokens, W1, b1, W2, b2, activation=activation)

    if norm == "pre":
        cache["normed1"] = wide
        cache["normed2"] = wide + attend(layer_norm(wide, gamma1, beta1, eps))
        output = cache["normed2"] + feed(layer_norm(cache["normed2"], gamma2, beta2, eps))
    else:
        cache["normed1"] = wide + attend(wide)
        hidden = layer_norm(cache["normed1"], gamma1, beta1, eps)
        cache["normed2"] = hidden + feed(hidden)
        output = layer_norm(cache["normed2"], gamma2, beta2, eps)
    return output.astype(x.dtype), cache


def _backward(grad_output: Array, cache: dict[str, Any]) -> Any:
    """grad_x and the gradients of the weights as ``EncoderBlockParams``; derived in ``encoder_block_backward``."""
    x, eps = cache["x"], cache["eps"]
    gamma1, _, gamma2, _ = cache["norms"]
    grads: dict[str, Any] = {}
    gradient = grad_output.astype(gamma1.dtype)

    def through_feed(grad):
        grad, *rest = feed_forward_backward(grad, cache["fed"], *cache["network"], activation=cache["activation"])
        grads.update(zip(("W1", "b1", "W2", "b2"), rest, strict=True))
        return grad

    def through_attention(grad):
        grad_Q, grad_K, grad_V, weights = multi_head_attention_backward(grad, cache["attention"])
        grads["attention"] = MultiHeadParams(**weights)
        return grad_Q + grad_K + grad_V

    def through_norm(grad, which, gamma):
        grad, grads[f"gamma{which}"], grads[f"beta{which}"] = layer_norm_backward(
            grad, cache[f"normed{which}"], gamma, eps
        )
        return grad

    if cache["norm"] == "pre":
        gradient = gradient + through_norm(through_feed(gradient), 2, gamma2)
        gradient = gradient + through_norm(through_attention(gradient), 1, gamma1)
    else:
        gradient = through_norm(gradient, 2, gamma2)
        gradient = through_norm(gradient + through_feed(gradient), 1, gamma1)
        gradient = gradient + through_attention(gradient)
    return gradient.astype(x.dtype), _like(cache["params"], EncoderBlockParams(**grads))


def _like(params: EncoderBlockParams, grads: EncoderBlockParams) -> EncoderBlockParams:
    """The gradients, each in the dtype of its weight."""
    attention = (g if p is None else g.astype(p.dtype) for p, g in zip(params.attention, grads.attention, strict=True))
    rest = (g.astype(p.dtype) for p, g in zip(params[1:], grads[1:], strict=True))
    return EncoderBlockParams(MultiHeadParams(*attention), *rest)


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
        """The forward in the name of ``function``: output, and the cache for ``_backward``."""
        checks.encoder_block(function, {"x": x}, self.params, mask, **self._options, broadcast=True)
        return _forward(self.params, x, mask, **self._options)

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
        grad_x, grads = _backward(grad_output, cache)
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
    checks.tokens_first(function, x, "blocks", blocks)
    check(function, {"x": x})
    caches = []
    for block in blocks:
        checks.instance(function, "each of blocks", block, TransformerEncoderBlock)
        x, cache = block._encode(function, x, mask)
        caches.append(cache)
    return x, caches


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
    checks.tokens_first("stack_encoder_blocks_backward", x, "blocks", blocks)
    check("stack_encoder_blocks_backward", {"x": x, "grad_output": grad_output})
    _, caches = _stack("stack_encoder_blocks_backward", x, blocks, mask)
    grad_params: list[dict[str, Any]] = []
    for cache in reversed(caches):
        grad_output, grads = _backward(grad_output, cache)
        grad_params.insert(0, grads._asdict())
    return grad_output, grad_params
