"""The encoder block: attention and feed-forward network, each with its residual and its layer norm."""

from typing import Any

from attendax import checks
from attendax.checks import knows_keywords
from attendax.params import EncoderBlockParams, MultiHeadParams

from .multi_head import forward as multi_head_forward
from .multi_head import multi_head_attention_backward
from .norms import layer_norm, layer_norm_backward
from .token_wise import feed_forward, feed_forward_backward
from .weighted_sum import Array, widen


@knows_keywords
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
    return forward(params, x, mask, **options)[0]


@knows_keywords
def encoder_block_backward(
    grad_output: Array, x: Array, params: EncoderBlockParams, *, num_heads: int, mask: Array | None = None,
    norm: str = "pre", activation: str = "relu", eps: float = 1e-6,
) -> tuple[Array, EncoderBlockParams]:  # fmt: skip
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
    return backward(grad_output, forward(params, x, mask, **options)[1])


def forward(
    params: EncoderBlockParams, x: Array, mask: Array | None, *, num_heads: int, norm: str, activation: str, eps: float
) -> Any:
    """The block, in the compute dtype inside: output, and a cache for ``backward``."""
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


def backward(grad_output: Array, cache: dict[str, Any]) -> Any:
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
