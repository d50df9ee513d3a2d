"""Checks of single values: integers, numbers, choices, lengths, random keys (L14)."""

import math
import numbers
import operator
import sys
from typing import Any

import numpy as np

from .shapes import fail


def integer(function: str, name: str, value: Any, *, minimum: int = 1, maximum: int | None = None) -> int:
    """``value`` as an int within the bounds; TypeError for another kind, ValueError for one that is out of them."""
    try:
        number = operator.index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        fail(TypeError, function, f"{name} must be an integer, got {value!r} of type {type(value).__name__}.")
    if number < minimum:
        fail(ValueError, function, f"{name} must be at least {minimum}, got {number}.")
    if maximum is not None and number > maximum:
        fail(ValueError, function, f"{name} must be at most {maximum}, got {number}.")
    return number


def number(
    function: str,
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    closed: bool = True,
    finite: bool = True,
) -> float:
    """``value`` as a float from ``low`` to ``high`` (ends included where ``closed``), finite unless told; never NaN."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        fail(TypeError, function, f"{name} must be a number known before tracing, got {_shown(value)}.")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    inside = low <= result <= high if closed else low < result < high
    if not inside or (finite and not math.isfinite(result)):
        left, right = ("[", "]") if closed else ("(", ")")
        kind = "a finite number" if finite else "a number"
        fail(ValueError, function, f"{name} must be {kind} in {left}{low}, {high}{right}, got {result}.")
    return result


def boolean(function: str, name: str, value: Any) -> bool:
    """``value`` as a bool; TypeError for anything that merely counts as true or false."""
    if not isinstance(value, bool | np.bool_):
        fail(TypeError, function, f"{name} must be True or False, got {_shown(value)}.")
    return bool(value)


def one_of(function: str, name: str, value: Any, choices: tuple) -> None:
    """Refuse a ``value`` that is none of ``choices``."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        fail(ValueError, function, f"{name} must be one of {', '.join(map(repr, choices))}; got {_shown(value)}.")


def _shown(value: Any) -> str:
    """What an error says it got: a plain value itself, of anything larger the kind."""
    plain = isinstance(value, str | bytes | int | float | complex | np.generic)
    return repr(value) if plain else type(value).__name__


def instance(function: str, name: str, value: Any, kind: type) -> None:
    """Refuse a ``value`` that is not of the class ``kind``."""
    if not isinstance(value, kind):
        fail(TypeError, function, f"{name} must be {kind.__name__}, got {type(value).__name__}.")


def heads(function: str, d_model: int, num_heads: Any) -> int:
    """The width of a head, d_model / num_heads; ValueError where it is not whole."""
    num_heads = integer(function, "num_heads", num_heads)
    if d_model % num_heads:
        fail(ValueError, function, f"d_model={d_model} is not divisible by num_heads={num_heads}.")
    return d_model // num_heads


def key_words(function: str, rng: Any) -> Any:
    """The two 32-bit words of a random key: a typed key, the array of an old one, or two uint32 as they are."""
    if rng is None:
        fail(
            ValueError,
            function,
            "dropout_rate is above 0 but dropout_rng is None.",
            [("dropout_rng", "None", "a random key")],
        )
    if str(getattr(rng, "dtype", "")).startswith("key<"):
        import jax  # a typed key cannot be read otherwise, and whoever holds one has JAX loaded

        rng = jax.random.key_data(rng)
    if str(getattr(rng, "dtype", "")) != "uint32" or tuple(rng.shape) != (2,):
        got = f"{getattr(rng, 'shape', type(rng).__name__)} {getattr(rng, 'dtype', '')}".rstrip()
        error = ValueError if str(getattr(rng, "dtype", "")) == "uint32" else TypeError
        fail(
            error,
            function,
            "dropout_rng is not a key of two 32-bit words.",
            [("dropout_rng", got, "jax.random.key(seed), or (2,) uint32")],
        )
    return rng


def lengths(function: str, name: str, value: Any, longest: int, *, rank: int | None = 1) -> None:
    """Refuse lengths that are no integers, of another rank (None: any), negative or above ``longest``.

    The values of a traced array are not known yet and pass.
    """
    dtype = str(getattr(value, "dtype", type(value).__name__))
    if not dtype.startswith(("int", "uint")) or not hasattr(value, "shape"):
        fail(TypeError, function, f"{name} must be an array of integers, got {dtype}.")
    if rank is not None and len(value.shape) != rank:
        fail(ValueError, function, f"{name} has rank {len(value.shape)} but needs rank {rank}.")
    if is_traced(value) or 0 in value.shape:
        return
    known = np.asarray(value)  # a JAX array would be traced by its own operations inside jit
    if known.min() < 0 or known.max() > longest:
        fail(ValueError, function, f"{name} must lie in [0, {longest}], got {known.min()} to {known.max()}.")


def is_traced(value: Any) -> bool:
    """Whether the values are not known yet: an array inside jit, vmap or grad, by the mark that JAX gives it."""
    jax = sys.modules.get("jax")  # where JAX is not loaded nothing is traced
    return jax is not None and isinstance(value, jax.core.Tracer)
