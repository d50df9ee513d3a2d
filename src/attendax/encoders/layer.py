"""One layer of an encoder, written once for both twins: norms, residuals, heads, positions, windows, dropout."""

import math
from typing import Any, NamedTuple

import numpy as np

from attendax import masks, scores
from attendax.params import EncoderBlockParams
from attendax.rotary import Frequencies

from .config import GATED, EncoderConfig

DRAWS = 3  # of random keys in a layer: attention weights, and the result of each part


class EncoderCall(NamedTuple):
    """The settings that all layers of a call share.

    ``mask`` is None, boolean (B, 1, 1, T), or a value from ``attendax.masks``; ``positions`` None for 0, 1, ..., or
    (B, 1, T); ``key_data`` the two 32-bit words of a random key, or None for no dropout.
    """

    config: EncoderConfig
    pieces: Any
    mask: Any
    positions: Any
    key_data: Any


def layer(
    call: EncoderCall, block: EncoderBlockParams, hidden: Any, number: Any, window: int | None, theta: Any
) -> Any:
    """Pass tokens through a layer: see ``ops.encoder_block``, and the options of ``EncoderConfig``.

    Args:
        call: what all layers share.
        block: the weights of this one.
        hidden: (B, T, M).
        number: which layer it is, for its random keys; it may be traced.
        window: how many tokens a token sees on each side; None for all.
        theta: base of the rotary frequencies, or ``rotary.Frequencies``.

    Returns:
        (B, T, M).
    """

    def attend(tokens: Any) -> Any:
        query, key, value = heads(call, block, tokens, theta)
        options = attention_options(call, window, tokens.shape[1])
        if call.key_data is not None and call.config.dropout:
            rng = call.pieces.key(call.key_data, DRAWS * number + 1)
            options |= {"dropout_rate": call.config.dropout, "dropout_rng": rng}
        out = call.pieces.merge_heads(call.pieces.attention(query, key, value, **options))
        return drop(call, call.pieces.linear(out, block.attention.W_O, block.attention.b_O), DRAWS * number + 2)

    def feed(tokens: Any) -> Any:
        name = call.config.activation
        network = block.W1, block.b1, block.W2, block.b2
        out = call.pieces.feed_forward(tokens, *network, GATED.get(name, name), name in GATED)
        return drop(call, out, DRAWS * number + 3)

    def norm1(tokens: Any) -> Any:
        return normalised(call, tokens, block.gamma1, block.beta1)

    def norm2(tokens: Any) -> Any:
        return normalised(call, tokens, block.gamma2, block.beta2)

    if call.config.norm == "pre":
        hidden = hidden + attend(norm1(hidden))
        return hidden + feed(norm2(hidden))
    hidden = norm1(hidden + attend(hidden))
    return norm2(hidden + feed(hidden))


def heads(call: EncoderCall, block: EncoderBlockParams, tokens: Any, theta: float | Frequencies) -> list[Any]:
    """The queries (B, N, T, D), keys and values (B, G, T, D) of a layer; with rotary positions the first two turned."""
    weights, N, G = block.attention, call.config.num_heads, call.config.key_heads
    query, key, value = call.pieces.heads(
        tokens, (weights.W_Q, weights.b_Q, N), (weights.W_K, weights.b_K, G), (weights.W_V, weights.b_V, G)
    )
    if call.config.positions == "rotary":
        given: Any = {"frequencies" if isinstance(theta, Frequencies) else "theta": theta}
        query, key = (call.pieces.rotary(x, **given, positions=call.positions) for x in (query, key))
    return [query, key, value]


def attention_options(call: EncoderCall, window: int | None, length: int) -> dict[str, Any]:
    """Mask and score modifier of a layer."""
    mask = call.mask
    if window is not None and window < length:
        near = masks.window(window, window)
        mask = near if mask is None else (mask if isinstance(mask, masks.Mask) else masks.dense(mask)) & near
    if call.config.positions != "alibi":
        return {"mask": mask}
    return {"mask": mask, "score_mod": scores.alibi(call.pieces.xp.asarray(alibi_slopes(call.config.num_heads)))}


def normalised(call: EncoderCall, tokens: Any, gamma: Any, beta: Any) -> Any:
    """The norm of the configuration; without a scale, none."""
    if gamma is None:
        return tokens
    if call.config.norm_kind == "rms":
        return call.pieces.rms_norm(tokens, gamma, call.config.eps)
    beta = call.pieces.xp.zeros_like(gamma) if beta is None else beta
    return call.pieces.layer_norm(tokens, gamma, beta, eps=call.config.eps)


def drop(call: EncoderCall, x: Any, number: Any) -> Any:
    """Dropout by the random key of this number, if the call has dropout."""
    if call.key_data is None or not call.config.dropout:
        return x
    return call.pieces.drop(x, call.pieces.key(call.key_data, number), call.config.dropout)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """The slope of each head: 2^(-8/N), 2^(-16/N), ... (Press et al. 2022, section 3).

    If N is not a power of two, the slopes of the power below it come first, then every second slope of the power above,
    as in their published code.

    Example:
        >>> alibi_slopes(4).tolist()
        [0.25, 0.0625, 0.015625, 0.00390625]
        >>> alibi_slopes(6)[4:].tolist()
        [0.5, 0.125]
    """
    power = 2 ** int(math.log2(num_heads))
    first, second = (2.0 ** (-8 * np.arange(1, n + 1) / n) for n in (power, 2 * power))
    return np.concatenate([first, second[::2]])[:num_heads]
