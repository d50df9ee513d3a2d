"""Frequencies of rotary encodings in known models: parts of a head, longer contexts, positions on several axes.

Pass the results as ``frequencies`` and ``axes`` to ``ops.rotary_encoding`` or ``spec.rotary_encoding``. A pair of
columns has one frequency f: at position p the pair is rotated by the angle p·f. The frequencies are known before
tracing, and computed in float64.

Below, ``width`` is the number of rotated columns, D for a whole head; ``theta`` is the base; ``plain`` frequencies are
``fᵢ = theta^(-2i/width)``; ``trained`` is the length that a model was trained for before its context was extended.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attendax import checks
from attendax.checks import fail

__all__ = [
    "Frequencies", "axial", "in_turn", "interpolated", "llama3", "longrope", "ntk", "ntk_dynamic", "plain",
    "proportional", "sections", "yarn",
]  # fmt: skip


class Frequencies(NamedTuple):
    """One frequency per rotated pair of columns, and a factor on these columns.

    Queries and keys are both multiplied by ``factor``, so scores are multiplied by its square. It is the temperature of
    YaRN and LongRoPE.
    """

    numbers: tuple[float, ...]
    factor: float = 1.0


def plain(width: int, theta: float = 10000.0, *, of: int | None = None) -> Frequencies:
    """The frequencies ``theta^(-2i/of)`` of ``width`` columns (Su et al. 2021); ``of`` is ``width`` unless given.

    If a head has more columns than ``width``, only the first ones are rotated. With ``width`` alone the frequencies are
    those of the part, as in GPT-NeoX and Phi; with ``of=D`` they are those of the whole head.

    Raises:
        TypeError, ValueError: the width is not an even integer above 0, or theta is not above 0.

    Example:
        >>> plain(4, 100.0).numbers
        (1.0, 0.1)
        >>> plain(4, 100.0, of=8).numbers[1]  # 100^(-2/8)
        0.31622776601683794
    """
    return Frequencies(_listed(_plain("plain", width, theta, of)))


def proportional(width: int, share: float, theta: float = 10000.0, *, factor: float = 1.0) -> Frequencies:
    """Frequencies of a whole head in which a ``share`` of the pairs rotates; the slow rest does not (Gemma 4).

    Unlike in ``plain(width·share, of=width)``, a pair is column i with column i + width/2 of the whole head.

    Raises:
        TypeError, ValueError: as ``plain``; a share outside [0, 1], or a factor that is not above 0.
    """
    found = _plain("proportional", width, theta)
    share = checks.number("proportional", "share", share, low=0, high=1)
    found[int(share * width // 2) :] = 0
    return Frequencies(_listed(found / _above_0("proportional", "factor", factor)))


def interpolated(width: int, factor: float, theta: float = 10000.0) -> Frequencies:
    """Position interpolation: positions, and so frequencies, are divided by ``factor`` (Chen et al. 2023).

    Configurations of transformers call it "linear".

    Raises:
        TypeError, ValueError: as ``plain``; a factor that is not above 0.

    Example:
        >>> interpolated(4, 2.0, 100.0).numbers
        (0.5, 0.05)
    """
    return Frequencies(_listed(_plain("interpolated", width, theta) / _above_0("interpolated", "factor", factor)))


def ntk(width: int, factor: float, theta: float = 10000.0) -> Frequencies:
    """NTK-aware scaling: the base grows to ``theta · factor^(width / (width - 2))`` (bloc97 2023).

    The fastest pair keeps its frequency, and the slowest gets 1/factor of its own.

    Raises:
        TypeError, ValueError: as ``plain``; a width of 2, or a factor that is not above 0.

    Example:
        >>> [round(f, 12) for f in ntk(4, 2.0, 100.0).numbers]
        [1.0, 0.05]
    """
    return Frequencies(_listed(_plain("ntk", width, _larger_base("ntk", width, factor, theta))))


def ntk_dynamic(width: int, factor: float, *, length: int, trained: int, theta: float = 10000.0) -> Frequencies:
    """NTK-aware scaling that grows with the text, of ``length`` tokens.

    The base grows as in ``ntk``, with ``factor · length / trained - (factor - 1)`` as the factor. Up to the ``trained``
    length nothing changes. Configurations of transformers call it "dynamic" (emozilla 2023).

    Raises:
        TypeError, ValueError: as ``ntk``; a length below 1.
    """
    length, trained = _length("ntk_dynamic", "length", length), _length("ntk_dynamic", "trained", trained)
    factor = _above_0("ntk_dynamic", "factor", factor)
    grown = factor * max(length, trained) / trained - (factor - 1)
    return Frequencies(_listed(_plain("ntk_dynamic", width, _larger_base("ntk_dynamic", width, grown, theta))))


def yarn(
    width: int,
    factor: float,
    *,
    trained: int,
    theta: float = 10000.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
    truncate: bool = True,
) -> Frequencies:
    """YaRN: fast pairs keep their frequency, slow pairs are interpolated, pairs between are mixed (Peng et al. 2023).

    A pair makes ``r = trained · f / 2π`` turns in the trained length. From ``beta_fast`` turns on it keeps f; up to
    ``beta_slow`` turns it gets f / factor. Between these pairs, the share of f falls linearly from 1 to 0 with the
    index of the pair. ``truncate`` rounds the two ends to whole pairs.

    Queries and keys are multiplied by ``attention_factor`` (default: ``0.1 ln(factor) + 1``). For DeepSeek's "mscale"
    and "mscale_all_dim" pass m(mscale) / m(mscale_all_dim), with ``m(x) = 0.1 x ln(factor) + 1``.

    Raises:
        TypeError, ValueError: as ``plain``; a length below 1, a factor or a beta that is not above 0, or theta = 1.
    """
    function, trained = "yarn", _length("yarn", "trained", trained)
    found = _plain(function, width, theta)
    factor = _above_0(function, "factor", factor)
    betas = (_above_0(function, *each) for each in (("beta_fast", beta_fast), ("beta_slow", beta_slow)))
    if theta == 1:
        fail(ValueError, function, "theta must not be 1, because all pairs would rotate alike.")
    low, high = (width * math.log(trained / (beta * 2 * math.pi)) / (2 * math.log(theta)) for beta in betas)
    if checks.boolean(function, "truncate", truncate):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high + 0.001 if low == high else high
    kept = 1 - np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
    if attention_factor is None:
        attention_factor = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    mixed = found * kept + found / factor * (1 - kept)
    return Frequencies(_listed(mixed), _above_0(function, "attention_factor", attention_factor))


def llama3(
    width: int,
    factor: float,
    *,
    trained: int = 8192,
    theta: float = 500_000.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
) -> Frequencies:
    """The scaling of Llama 3.1 and later, by the number of turns in the trained length (Grattafiori et al. 2024).

    From ``high_freq_factor`` turns on a pair keeps f; up to ``low_freq_factor`` turns it gets f / factor. Between, the
    share of f grows linearly with the number of turns.

    Raises:
        TypeError, ValueError: as ``plain``; a length below 1, or factors that are not above 0 and in order.
    """
    function, found = "llama3", _plain("llama3", width, theta)
    low = _above_0(function, "low_freq_factor", low_freq_factor)
    high = checks.number(function, "high_freq_factor", high_freq_factor, low=low, closed=False)
    turns = _length(function, "trained", trained) * found / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    slow = found / _above_0(function, "factor", factor)
    return Frequencies(_listed(found * kept + slow * (1 - kept)))


def longrope(
    factors: Sequence[float],
    *,
    scale: float,
    trained: int,
    theta: float = 10000.0,
    attention_factor: float | None = None,
) -> Frequencies:
    """LongRoPE: the frequency of each pair is divided by a factor of its own, found by search (Ding et al. 2024).

    A model such as Phi 3 has two lists: ``short_factor`` for texts up to the trained length, ``long_factor`` beyond.
    Queries and keys are multiplied by ``attention_factor`` (default: ``√(1 + ln(scale) / ln(trained))``).

    Args:
        factors: one per pair; their number is half the width.
        scale: the model's length over its trained length.
        trained, theta: as above.
        attention_factor: the configuration's, if it has one.

    Raises:
        TypeError, ValueError: as ``plain``; a factor or scale that is not above 0, or a length below 2.
    """
    function = "longrope"
    numbers = np.array([_above_0(function, "factors", float(x)) for x in factors])
    found = _plain(function, 2 * len(numbers), theta) / numbers
    scale, trained = _above_0(function, "scale", scale), _length(function, "trained", trained, least=2)
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(scale) / math.log(trained)) if scale > 1 else 1.0
    return Frequencies(_listed(found), _above_0(function, "attention_factor", attention_factor))


def sections(*counts: int) -> tuple[int, ...]:
    """The axis of each pair: the first ``counts[0]`` pairs have axis 0, the next ``counts[1]`` pairs axis 1, and so on.

    M-RoPE of Qwen2-VL (Wang et al. 2024) has time, height and width: ``sections(16, 24, 24)``.

    Example:
        >>> sections(1, 2, 2)
        (0, 1, 1, 2, 2)
    """
    known = [checks.integer("sections", "counts", count, minimum=0) for count in counts]
    return tuple(axis for axis, count in enumerate(known) for _ in range(count))


def in_turn(*counts: int) -> tuple[int, ...]:
    """The axis of each pair, if the axes alternate, so that each has fast and slow pairs (Qwen3-VL).

    With A axes, axis a > 0 has ``counts[a]`` pairs: a, a + A, a + 2A, ... Axis 0 has the rest.

    Example:
        >>> in_turn(3, 2, 1)
        (0, 1, 2, 0, 1, 0)
    """
    known = [checks.integer("in_turn", "counts", count, minimum=0) for count in counts]
    axes = [0] * sum(known)
    for axis, count in list(enumerate(known))[1:]:
        for pair in range(axis, min(len(axes), len(known) * count), len(known)):
            axes[pair] = axis
    return tuple(axes)


def axial(width: int, axes: int = 2, theta: float = 10000.0) -> tuple[Frequencies, tuple[int, ...]]:
    """Frequencies and axes of a grid, such as an image: each axis has an equal part of the columns.

    Each part has the plain frequencies of its own width, as in the vision part of Qwen2-VL. For an image write
    ``frequencies, axes = axial(D)``, with positions (2, T) of rows and columns.

    Raises:
        TypeError, ValueError: the width is not divisible by twice the number of axes; a theta that is not above 0.

    Example:
        >>> axial(8, theta=100.0)
        (Frequencies(numbers=(1.0, 0.1, 1.0, 0.1), factor=1.0), (0, 0, 1, 1))
    """
    width, axes = checks.integer("axial", "width", width), checks.integer("axial", "axes", axes)
    if width % (2 * axes):
        fail(ValueError, "axial", f"width={width} is not divisible by {2 * axes}: pairs of columns for {axes} axes.")
    of_one = _listed(_plain("axial", width // axes, theta))
    return Frequencies(of_one * axes), sections(*[len(of_one)] * axes)


def _plain(function: str, width: int, theta: float, of: int | None = None) -> np.ndarray:
    width = checks.integer(function, "width", width)
    of = width if of is None else checks.integer(function, "of", of)
    if width % 2 or of % 2:
        fail(ValueError, function, f"widths must be even, because columns are rotated in pairs; got {width} and {of}.")
    return float(_above_0(function, "theta", theta)) ** (-np.arange(0, width, 2) / of)


def _larger_base(function: str, width: int, factor: float, theta: float) -> float:
    if checks.integer(function, "width", width) < 4:
        fail(ValueError, function, f"width must be at least 4 (two pairs), got {width}.")
    return theta * _above_0(function, "factor", factor) ** (width / (width - 2))


def _above_0(function: str, name: str, value: float) -> float:
    return checks.number(function, name, value, low=0, closed=False)


def _length(function: str, name: str, value: int, *, least: int = 1) -> int:
    return int(checks.integer(function, name, value, minimum=least))


def _listed(numbers: np.ndarray) -> tuple[float, ...]:
    return tuple(map(float, numbers))
