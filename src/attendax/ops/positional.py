"""Positions of tokens: sinusoidal, learned and rotary encodings, and the causal and padding masks. Pure JAX."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from attendax import checks, rotary
from attendax.checks import knows_keywords
from attendax.kernels.operands import takes_arrays, widen
from attendax.mask_kinds import lifted
from attendax.masks import ArrayLike

from .weighted_sum import pull_back


def sinusoidal_encoding(max_length: int, d_model: int, *, dtype: Any = float) -> Array:
    """``PE(pos, 2i) = sin(pos / 10000^(2i/M))``, ``PE(pos, 2i+1) = cos(...)`` (Vaswani et al. 2017, section 3.5).

    The sizes are known before tracing, so the table is computed in float64 and rounded once: in float32 the angle of
    position 100,000 would be off by 0.004.

    Args:
        max_length: number of positions P, 0 or more.
        d_model: M.
        dtype: of the result; float is the default precision of JAX.

    Returns:
        (P, M).

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is negative, or M is 0.

    Example:
        >>> sinusoidal_encoding(100, 512).shape
        (100, 512)
    """
    max_length = checks.integer("sinusoidal_encoding", "max_length", max_length, minimum=0)
    d_model = checks.integer("sinusoidal_encoding", "d_model", d_model)
    position = np.arange(max_length, dtype=np.float64)[:, None]
    frequency = np.exp(-np.log(10000.0) * np.arange(0, d_model, 2) / d_model)
    table = np.empty((max_length, d_model))
    table[:, 0::2] = np.sin(position * frequency)
    table[:, 1::2] = np.cos(position * frequency[: d_model // 2])
    return jnp.asarray(table, dtype)


@takes_arrays
def add_positional_encoding(x: ArrayLike, pe: ArrayLike) -> Array:
    """Add to each token the encoding of its position: ``x + pe[:T]``.

    Args:
        x: embeddings (B, T, M).
        pe: encodings (P, M) with P >= T; may be of a wider dtype.

    Returns:
        (B, T, M) in the dtype of ``x``.

    Raises:
        TypeError: an array is not floating, or ``pe`` is narrower than ``x``.
        ValueError: a rank or a size disagrees, or T > P.
    """
    T = checks.positions("add_positional_encoding", {"x": x, "pe": pe})
    wide, encoding = widen(x, pe)
    return (wide + encoding[None, :T]).astype(x.dtype)


@takes_arrays
def add_positional_encoding_backward(grad_output: ArrayLike, x: ArrayLike, pe: ArrayLike) -> tuple[Array, Array]:
    """Gradients grad_x, grad_pe; derived by hand in ``spec``."""
    checks.positions("add_positional_encoding_backward", {"x": x, "pe": pe, "grad_output": grad_output})
    return pull_back(add_positional_encoding, grad_output, x, pe)


@knows_keywords
def learned_positional_encoding(max_length: int, d_model: int, *, rng: Any, dtype: Any = float) -> Array:
    """Draw the table that learned encodings start from: normal, standard deviation 0.02 (as in BERT).

    Args:
        max_length: number of positions P, 0 or more.
        d_model: M.
        rng: a random key.
        dtype: of the result; float is the default precision of JAX.

    Returns:
        (P, M): a weight, to be added with ``add_positional_encoding``.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is negative, or M is 0.

    Example:
        >>> learned_positional_encoding(100, 512, rng=jax.random.key(0)).shape
        (100, 512)
    """
    max_length = checks.integer("learned_positional_encoding", "max_length", max_length, minimum=0)
    d_model = checks.integer("learned_positional_encoding", "d_model", d_model)
    return 0.02 * jax.random.normal(rng, (max_length, d_model), dtype)


@knows_keywords
def rotary_encoding(
    x: ArrayLike,
    *,
    theta: float = 10000.0,
    positions: ArrayLike | None = None,
    frequencies: rotary.Frequencies | Sequence[float] | None = None,
    axes: Sequence[int] | None = None,
    interleaved: bool = False,
) -> Array:
    """Rotate pairs of columns by angles that grow with position, so that scores depend on distances (Su et al. 2021).

    ``aᵢ' = aᵢ cos φᵢ - bᵢ sin φᵢ``, ``bᵢ' = bᵢ cos φᵢ + aᵢ sin φᵢ`` for the pairs (xᵢ, x_{i+D/2}), with
    ``φᵢ = pos · theta^(-2i/D)``; derived in ``spec``, with the meaning of the options. The angles are computed in
    float64, whatever JAX is set to: in float32 the angle of position 100,000 would be off by 0.004.

    Args:
        x: (..., T, D), D even, unless ``frequencies`` are given.
        theta: the base of the frequencies, above 0; ignored if ``frequencies`` are given.
        positions: None for 0 to T-1; or integers (T,), (B, T) per text with x (B, N, T, D), or of the shape of ``x``
            without its last axis, any axis 1. With ``axes``, one more axis in front. They may be traced.
        frequencies: None; or ``rotary.Frequencies``, or numbers, one per rotated pair. They rotate the first columns.
        axes: None; or the axis number of each pair, see ``rotary.sections``.
        interleaved: pair neighbouring columns, (x_{2i}, x_{2i+1}).

    Returns:
        Array of the shape and dtype of ``x``.

    Raises:
        TypeError: ``x`` is not floating, the positions are not integers, or the frequencies are traced.
        ValueError: D is odd, theta is not above 0, there are more frequencies than pairs, or positions or axes do not
            fit.

    Example:
        >>> rotary_encoding(jnp.array([[1.0, 0.0], [1.0, 0.0]])).round(2).tolist()[0]
        [1.0, 0.0]
        >>> from attendax import rotary
        >>> x = jnp.ones((2, 4, 6, 128))  # (B, N, T, D)
        >>> rotary_encoding(x, frequencies=rotary.yarn(128, 4.0, trained=32768, theta=1e6)).shape
        (2, 4, 6, 128)
    """
    x, positions = _arrays(x, positions)  # not the frequencies, which stay known
    turns = checks.rotary("rotary_encoding", {"x": x}, positions, theta, frequencies, axes, interleaved)
    return _turned(x, positions, turns)


@takes_arrays
def _arrays(*given: ArrayLike | None) -> tuple[Any, ...]:
    return given


def _turned(x: ArrayLike, positions: ArrayLike | None, turns: checks.Turns) -> Array:
    (wide,) = widen(x)
    count = wide.shape[-1] // 2 if turns.frequencies is None else len(turns.frequencies)
    turned, rest = wide[..., : 2 * count], wide[..., 2 * count :]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if turns.interleaved else jnp.split(turned, 2, axis=-1)
    numbers = turns.frequencies
    frequency = turns.theta ** (-np.arange(count) / count) if numbers is None else np.array(numbers)
    cos, sin = _cos_and_sin(x, positions, frequency, turns, wide.dtype)
    cos, sin = (lifted(f, x.ndim) for f in (cos, sin))
    pair = first * cos - second * sin, second * cos + first * sin
    found = jnp.stack(pair, -1).reshape(turned.shape) if turns.interleaved else jnp.concatenate(pair, axis=-1)
    return (jnp.concatenate([found, rest], axis=-1) if rest.shape[-1] else found).astype(x.dtype)


def _cos_and_sin(
    x: ArrayLike, positions: ArrayLike | None, frequency: np.ndarray, turns: checks.Turns, dtype: DTypeLike
) -> list[Array]:
    """Cosine and sine of the angles, times the factor: (..., T, pairs)."""
    factor = np.asarray(turns.factor, dtype)
    if positions is None:
        angle = np.arange(x.shape[-2])[:, None] * frequency
        return [jnp.asarray(turns.factor * f(angle), dtype) for f in (np.cos, np.sin)]
    if turns.axes is None:
        found = _of_traced(positions, frequency, dtype)
    else:
        pairs = [np.flatnonzero(np.array(turns.axes) == axis) for axis in range(max(turns.axes) + 1)]
        each = [_of_traced(positions[axis], frequency[own], dtype) for axis, own in enumerate(pairs)]
        back = np.argsort(np.concatenate(pairs))
        found = tuple(jnp.concatenate(parts, -1)[..., back] for parts in zip(*each, strict=True))
    if found[0].ndim == x.ndim - 1 > 2:  # one for each text, for all heads
        found = tuple(f[..., None, :, :] for f in found)
    return [f if turns.factor == 1 else f * factor for f in found]


def _of_traced(positions: ArrayLike, frequency: np.ndarray, dtype: DTypeLike) -> tuple[Array, ...]:
    """Cosine and sine at positions that are not known: those of their digits to the base 1,024, by tables, then joined.

    ``e^{i(a+b)} = e^{ia} e^{ib}``: an angle is never a product of float32.
    """
    xp: Any = np if isinstance(positions, np.ndarray) else jnp  # NumPy's are of 64 bits where JAX has none
    bits = max(32, np.iinfo(positions.dtype).bits)
    unsigned = np.dtype(f"uint{bits}")
    positive = xp.where(positions < 0, (~positions).astype(unsigned) + 1, positions.astype(unsigned))
    cos, sin = jnp.ones((), dtype), jnp.zeros((), dtype)
    for shift in range(0, bits, 10):
        digits = np.arange(min(1024, 2 ** (bits - shift)), dtype=np.float64)
        angle = digits[:, None] * 2.0**shift * frequency
        digit = ((positive >> shift) & 1023).astype(np.int32)
        c, s = (jnp.asarray(f(angle), dtype)[digit] for f in (np.cos, np.sin))
        cos, sin = cos * c - sin * s, sin * c + cos * s
    return cos, jnp.asarray(xp.where(positions < 0, -1, 1)[..., None], dtype) * sin


@knows_keywords
def rotary_encoding_backward(
    grad_output: ArrayLike, x: ArrayLike, *, theta: float = 10000.0, positions: ArrayLike | None = None,
    frequencies: rotary.Frequencies | Sequence[float] | None = None, axes: Sequence[int] | None = None,
    interleaved: bool = False,
) -> Array:  # fmt: skip
    """Gradient with respect to ``x``; derived by hand in ``spec``."""
    grad_output, x, positions = _arrays(grad_output, x, positions)
    arrays = {"x": x, "grad_output": grad_output}
    turns = checks.rotary("rotary_encoding_backward", arrays, positions, theta, frequencies, axes, interleaved)
    return pull_back(lambda x: _turned(x, positions, turns), grad_output, x)[0]


def create_causal_mask(seq_length: int) -> Array:
    """Let each position look at itself and what came before it (L4): boolean (T, T).

    Raises:
        TypeError: the length is not an integer.
        ValueError: the length is negative.

    Example:
        >>> create_causal_mask(2).tolist()
        [[True, False], [True, True]]
    """
    seq_length = checks.integer("create_causal_mask", "seq_length", seq_length, minimum=0)
    return jnp.tril(jnp.ones((seq_length, seq_length), bool))


@takes_arrays
def create_padding_mask(lengths: ArrayLike, max_length: int) -> Array:
    """Mark the real tokens of sequences that were padded to one length.

    Args:
        lengths: integers (B,), each from 0 to ``max_length``. If they are traced, only their rank is checked.
        max_length: S, 0 or more.

    Returns:
        Boolean (B, S), True for real tokens. As a mask for scores (B, N, T, S): ``mask[:, None, None, :]``.

    Raises:
        TypeError: the lengths are not integers.
        ValueError: the rank is not 1, or a length is negative or above ``max_length``.

    Example:
        >>> create_padding_mask(jnp.array([3, 0]), max_length=4).tolist()
        [[True, True, True, False], [False, False, False, False]]
    """
    max_length = checks.integer("create_padding_mask", "max_length", max_length, minimum=0)
    checks.lengths("create_padding_mask", "lengths", lengths, max_length)
    return jnp.arange(max_length)[None, :] < lengths[:, None]
