"""Positions of tokens: sinusoidal, learned and rotary encodings, and the causal and padding masks."""

from typing import Any

import numpy as np

from attendax import checks
from attendax.checks import knows_keywords

from .layer import generator
from .weighted_sum import Array, public, widen


def sinusoidal_encoding(max_length: int, d_model: int) -> Array:
    """Give every position a pattern of sines and cosines.

    ``PE(pos, 2i) = sin(pos / 10000^(2i/M))``, ``PE(pos, 2i+1) = cos(pos / 10000^(2i/M))`` (Vaswani et al. 2017, section
    3.5). A shift by k turns each (sin, cos) pair by a fixed angle, so relative position is a linear map. An odd M ends
    on a sine. The sizes are integers, so there is nothing to differentiate.

    Args:
        max_length: number of positions P, 0 or more.
        d_model: M.

    Returns:
        (P, M), float64.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is negative, or M is 0.

    Example:
        >>> pe = sinusoidal_encoding(100, 512)
        >>> pe.shape
        (100, 512)
    """
    max_length = checks.integer("sinusoidal_encoding", "max_length", max_length, minimum=0)
    d_model = checks.integer("sinusoidal_encoding", "d_model", d_model)
    position, column = np.arange(max_length)[:, None], np.arange(d_model)
    angle = position / 10000.0 ** (2 * (column // 2) / d_model)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def add_positional_encoding(x: Array, pe: Array) -> Array:
    """Add to each token the encoding of its position: ``x + pe[:T]``.

    Args:
        x: embeddings (B, T, M).
        pe: encodings (P, M) with P >= T; may be of a wider dtype.

    Returns:
        (B, T, M) in the dtype of ``x``.

    Raises:
        TypeError: an array is not floating, or ``pe`` is narrower than ``x``.
        ValueError: a rank or a size disagrees, or T > P.

    Example:
        >>> add_positional_encoding(np.zeros((1, 2, 2)), sinusoidal_encoding(5, 2)).round(2)
        array([[[0.  , 1.  ],
                [0.84, 0.54]]])
    """
    T = checks.positions("add_positional_encoding", {"x": x, "pe": pe})
    wide, encoding = widen(x, pe)
    return (wide + encoding[:T]).astype(x.dtype)


def add_positional_encoding_backward(grad_output: Array, x: Array, pe: Array) -> tuple[Array, Array]:
    """Pull a gradient back through the sum.

    From ``out_bt = x_bt + pe_t``: ``dx = dout`` and ``dpe_t = Σ_b dout_bt``; positions from T on were not used: 0.

    Args:
        grad_output: gradient with respect to the result (B, T, M).
        x: embeddings (B, T, M).
        pe: encodings (P, M).

    Returns:
        grad_x (B, T, M), grad_pe (P, M).

    Raises:
        TypeError, ValueError: as the forward.
    """
    T = checks.positions("add_positional_encoding_backward", {"x": x, "pe": pe, "grad_output": grad_output})
    gradient, _ = widen(grad_output, pe)
    grad_pe = np.zeros(pe.shape, gradient.dtype)
    grad_pe[:T] = gradient.sum(axis=0)
    return grad_output.copy(), grad_pe.astype(pe.dtype)


@knows_keywords
def learned_positional_encoding(max_length: int, d_model: int, *, rng: Any = None) -> Array:
    """Draw the table that learned encodings start from: normal, standard deviation 0.02 (as in BERT).

    It is a weight: add it with ``add_positional_encoding`` and train it with the gradient ``grad_pe`` of that.

    Args:
        max_length: number of positions P, 0 or more.
        d_model: M.
        rng: ``numpy.random.Generator``, or a seed for one; None draws a fresh one.

    Returns:
        (P, M), float64.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is negative, or M is 0.

    Example:
        >>> learned_positional_encoding(100, 512, rng=0).shape
        (100, 512)
    """
    max_length = checks.integer("learned_positional_encoding", "max_length", max_length, minimum=0)
    d_model = checks.integer("learned_positional_encoding", "d_model", d_model)
    return generator("learned_positional_encoding", rng).normal(0.0, 0.02, (max_length, d_model))


@public
def rotary_encoding(
    x: Array,
    *,
    theta: float = 10000.0,
    positions: Any = None,
    frequencies: Any = None,
    axes: Any = None,
    interleaved: bool = False,
) -> Array:
    """Turn pairs of columns by angles that grow with the position, so that products see distances (Su et al. 2021).

    With d = D/2, the angle ``φᵢ = pos · theta^(-i/d)`` and the pairs (aᵢ, bᵢ) = (xᵢ, x_{i+d}) for i < d::

        aᵢ' = aᵢ cos φᵢ - bᵢ sin φᵢ
        bᵢ' = bᵢ cos φᵢ + aᵢ sin φᵢ

    Halves are paired, as in GPT-NeoX, Llama and ModernBERT; or neighbours (x_{2i}, x_{2i+1}), ``interleaved``, as in
    RoFormer and GPT-J. Queries and keys are turned, values are not; the product of a query at i with a key at j then
    depends on i - j alone.

    ``frequencies`` from ``attendax.rotary`` are those of longer contexts (interpolation, NTK, YaRN, Llama 3, LongRoPE),
    or of a part of the columns: w frequencies turn the first 2w, and the rest stays as it is. They bring a factor c, by
    which the turned columns are multiplied. With ``axes``, pair i has the position ``positions[axes[i]]``: row and
    column of an image, or time, height and width.

    Args:
        x: (..., T, D), D even, unless ``frequencies`` are given.
        theta: the base of the frequencies, above 0; of no use where ``frequencies`` are given.
        positions: None for 0 to T-1; or integers (T,), one for each text (B, T) with x (B, N, T, D), or of the shape of
            ``x`` without its last axis, any axis 1. With ``axes``, an axis of as many in front.
        frequencies: None; ``rotary.Frequencies``, or numbers, one for each pair that is turned.
        axes: None; or for each pair the number of its axis, see ``rotary.sections``.
        interleaved: whether neighbours are paired.

    Returns:
        Array of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not floating, or the positions are not integers.
        ValueError: D is odd, theta is not above 0, there are more frequencies than pairs, or positions or axes do not
            fit.

    Example:
        >>> rotary_encoding(np.array([[1.0, 0.0], [1.0, 0.0]])).round(2)
        array([[1.  , 0.  ],
               [0.54, 0.84]])
    """
    turns = checks.rotary("rotary_encoding", {"x": x}, positions, theta, frequencies, axes, interleaved)
    return _turned(x, positions, turns, 1)


def _turned(x: Array, positions: Any, turns: checks.Turns, direction: int) -> Array:
    """``x`` turned by its angles, or back by them, and multiplied by the factor."""
    (wide,) = widen(x)
    known = turns.frequencies
    turned, rest = (wide, wide[..., :0]) if known is None else np.split(wide, [2 * len(known)], -1)
    first, second = (turned[..., 0::2], turned[..., 1::2]) if turns.interleaved else np.split(turned, 2, axis=-1)
    d = first.shape[-1]
    frequency = turns.theta ** (-np.arange(d) / d) if known is None else np.array(known)
    position = np.arange(x.shape[-2]) if positions is None else np.asarray(positions)
    position = position[..., None] if turns.axes is None else np.moveaxis(position[list(turns.axes)], 0, -1)
    if position.ndim == x.ndim - 1 > 2:  # one for each text, for all heads
        position = position[..., None, :, :]
    angle = direction * position * frequency
    cos, sin = (turns.factor * f(angle) for f in (np.cos, np.sin))
    cos, sin = cos.astype(wide.dtype), sin.astype(wide.dtype)
    pair = first * cos - second * sin, second * cos + first * sin
    turned = np.stack(pair, -1).reshape(turned.shape) if turns.interleaved else np.concatenate(pair, axis=-1)
    return np.concatenate([turned, rest], axis=-1).astype(x.dtype)


@public
def rotary_encoding_backward(
    grad_output: Array, x: Array, *, theta: float = 10000.0, positions: Any = None, frequencies: Any = None,
    axes: Any = None, interleaved: bool = False,
) -> Array:  # fmt: skip
    """Pull a gradient back through ``rotary_encoding``: turn it back.

    From ``a' = c (a cos φ - b sin φ)``, ``b' = c (b cos φ + a sin φ)``, pair by pair::

        da = c (da' cos φ + db' sin φ)
        db = c (db' cos φ - da' sin φ)           the turn by -φ: a rotation's transpose is its inverse
        dx = dx'                                 of the columns that are not turned

    Args:
        grad_output: gradient with respect to the result (..., T, D).
        x: the input of the forward (..., T, D).
        theta, positions, frequencies, axes, interleaved: as in the forward.

    Returns:
        Gradient with respect to ``x``, of its shape and dtype.

    Raises:
        TypeError, ValueError: as the forward.
    """
    arrays = {"x": x, "grad_output": grad_output}
    turns = checks.rotary("rotary_encoding_backward", arrays, positions, theta, frequencies, axes, interleaved)
    return _turned(grad_output, positions, turns, -1)


def create_causal_mask(seq_length: int) -> Array:
    """Let each position look at itself and what came before it (L4).

    Args:
        seq_length: T, 0 or more.

    Returns:
        Boolean (T, T), True on and below the diagonal.

    Raises:
        TypeError: not an integer.
        ValueError: negative.

    Example:
        >>> mask = create_causal_mask(4)
        >>> mask
        array([[ True, False, False, False],
               [ True,  True, False, False],
               [ True,  True,  True, False],
               [ True,  True,  True,  True]])
    """
    seq_length = checks.integer("create_causal_mask", "seq_length", seq_length, minimum=0)
    position = np.arange(seq_length)
    return position[:, None] >= position


def create_padding_mask(lengths: Array, max_length: int) -> Array:
    """Mark the real tokens of sequences that were padded to one length.

    Args:
        lengths: integers (B,), each from 0 to ``max_length``.
        max_length: S, 0 or more.

    Returns:
        Boolean (B, S), True for real tokens. As a mask for scores (B, N, T, S): ``mask[:, None, None, :]``.

    Raises:
        TypeError: lengths that are not integers.
        ValueError: another rank, or a length that is negative or above ``max_length``.

    Example:
        >>> mask = create_padding_mask(np.array([3, 2]), max_length=4)
        >>> mask
        array([[ True,  True,  True, False],
               [ True,  True, False, False]])
    """
    max_length = checks.integer("create_padding_mask", "max_length", max_length, minimum=0)
    checks.lengths("create_padding_mask", "lengths", lengths, max_length)
    return np.arange(max_length) < lengths[:, None]
