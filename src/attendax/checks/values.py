"""Checks of single values: integers, numbers, choices, lengths, random keys (L14)."""

import math
import numbers
import operator
import sys
from typing import Any

import numpy as np

from .advice import on_integers
from .shapes import fail

NUMBERS = {"scale": "a number or a floating array of shape ()"}  # what is taken beside plain numbers
ADVICE_ON_NUMBERS = {  # what to do with a number that is an array
    "scale": "Multiply the query by an array of another shape or dtype: query * array, with scale=1.0.",
    "cap": "Write it as a function: scores.from_function(lambda s, positions, cap: cap * jnp.tanh(s / cap), cap).",
}


def integer(
    function: str, name: str, value: Any, *, minimum: int | None = 1, maximum: int | None = None, advice: str = ""
) -> int:
    """``value`` as an int within the bounds; TypeError for another kind, ValueError for one that is out of them.

    An array gets the ``advice``.
    """
    try:
        number = operator.index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        is_array = hasattr(value, "shape") or isinstance(value, list | tuple)
        sentence = f"{name} must be an integer, got {value!r} of type {type(value).__name__}."
        fail(TypeError, function, sentence, advice=advice if is_array else "")
    if minimum is not None and number < minimum:
        fail(ValueError, function, f"{name} must be at least {minimum}, got {number}.")
    if maximum is not None and number > maximum:
        fail(ValueError, function, f"{name} must be at most {maximum}, got {number}.")
    return number


def number(
    function: str, name: str, value: Any, *, low: float = -math.inf, high: float = math.inf, closed: bool = True,
    finite: bool = True,
) -> float:  # fmt: skip
    """``value`` as a float from ``low`` to ``high`` (ends included where ``closed``), finite unless told; never NaN."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        advice = ADVICE_ON_NUMBERS.get(name, "") if hasattr(value, "shape") else ""
        wanted = NUMBERS.get(name, "a number known before tracing")
        fail(TypeError, function, f"{name} must be {wanted}, got {_shown(value)}.", advice=advice)
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    inside = low <= result <= high if closed else low < result < high
    if not inside or (finite and not math.isfinite(result)):
        left, right = ("[", "]") if closed else ("(", ")")
        kind = "a finite number" if finite else "a number"
        where = "" if (low, high) == (-math.inf, math.inf) else f" in {left}{low}, {high}{right}"
        fail(ValueError, function, f"{name} must be {kind}{where}, got {result}.")
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
    """The value as an error shows it: a plain value itself, or the type of anything larger."""
    if isinstance(value, str | bytes | int | float | complex | np.generic):
        return repr(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array {tuple(value.shape)} {value.dtype}"
    return type(value).__name__


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


def projections(function: str, d_model: int, kdim: Any, vdim: Any) -> tuple[int, int, int, int]:
    """The widths that W_Q, W_K, W_V and W_O take."""
    given = {"kdim": kdim, "vdim": vdim}
    of_keys, of_values = (d_model if x is None else integer(function, name, x) for name, x in given.items())
    return d_model, of_keys, of_values, d_model


def key_data(function: str, rng: Any) -> Any:
    """The two 32-bit words of a random key: a typed key, the array of an old one, or two uint32 as they are."""
    if rng is None:
        rows = [("dropout_rng", "None", "a random key")]
        advice = "Write dropout_rng=jax.random.key(seed), and per step a new key: jax.random.fold_in(key, step)."
        fail(ValueError, function, "dropout_rate is above 0 but dropout_rng is None.", rows, advice=advice)
    if str(getattr(rng, "dtype", "")).startswith("key<"):
        import jax  # a typed key cannot be read otherwise; a caller who has one has loaded JAX

        rng = jax.random.key_data(rng)
    if str(getattr(rng, "dtype", "")) != "uint32" or tuple(rng.shape) != (2,):
        got = f"{getattr(rng, 'shape', type(rng).__name__)} {getattr(rng, 'dtype', '')}".rstrip()
        error = ValueError if str(getattr(rng, "dtype", "")) == "uint32" else TypeError
        rows = [("dropout_rng", got, "jax.random.key(seed), or (2,) uint32")]
        fail(error, function, "dropout_rng is not a key of two 32-bit words.", rows)
    return rng


def in_range(function: str, name: str, value: float, dtype: Any, role: str) -> None:
    """Refuse a number that is another one in the dtype of the computation, float32 at least (L8).

    None may overflow. A "factor" may flush to 0, for so do its products. A "summand" may not, unless it is 0. A
    "divisor" must leave its reciprocal, and what is divided by it, their digits: tiny / eps to eps / tiny.
    """
    info = np.finfo(np.float64 if str(dtype) == "float64" else np.float32)
    tiny, eps, most = float(info.tiny), float(info.eps), float(info.max)
    ends = {"factor": (0.0, most), "summand": (tiny if value else 0.0, most), "divisor": (tiny / eps, eps / tiny)}
    low, high = ends[role]
    if not low <= abs(value) <= high:
        bounds = f"from {low:.2g} to {high:.2g}" if low else f"at most {high:.2g}"
        fail(ValueError, function, f"{name}={value!r} must be {bounds}, because the computation is in {info.dtype}.")


def is_cut(x: np.ndarray) -> bool:
    """Tell whether JAX, as it is set, would silently cut these integers to 32 bits."""
    import jax.numpy as jnp  # only functions of JAX ask this

    if x.dtype.kind not in "iu" or x.dtype.itemsize < 8 or jnp.result_type(int).itemsize == 8 or not x.size:
        return False
    info = np.iinfo(np.int32 if x.dtype.kind == "i" else np.uint32)
    return bool(x.min() < info.min or x.max() > info.max)


def function_arrays(arrays: Any) -> Any:
    """The arrays that go with a function: numbers as arrays, all in the byte order of this machine.

    Raises:
        TypeError: something is neither.
        ValueError: integers of more than 32 bits, where JAX is set to 32 bits.
    """
    import jax  # they are a pytree; both modules that call this have JAX loaded

    def converted(x: Any) -> Any:
        x = np.asarray(x) if isinstance(x, numbers.Number | np.generic) else x
        dtype = getattr(x, "dtype", None)
        if dtype is None or not hasattr(x, "shape") or getattr(dtype, "kind", "") == "O":  # random keys have no kind
            fail(TypeError, "from_function", f"arrays must be arrays, numbers, or pytrees of them, got {_shown(x)}.")
        x = x.astype(dtype.newbyteorder("=")) if isinstance(x, np.ndarray) and not dtype.isnative else x
        if isinstance(x, np.ndarray) and is_cut(x):
            sentence = f"arrays hold {x.min()} to {x.max()}, but JAX is set to 32 bits."
            advice = 'For 64 bits: jax.config.update("jax_enable_x64", True).'
            fail(ValueError, "from_function", sentence, advice=advice)
        return x

    return jax.tree.map(converted, arrays)


def lengths(function: str, name: str, value: Any, longest: int, *, rank: int | None = 1) -> None:
    """Refuse lengths that are not integers, have another rank (None: any), are negative or above ``longest``.

    The values of a traced array are not known yet and pass.
    """
    dtype = str(getattr(value, "dtype", type(value).__name__))
    if not dtype.startswith(("int", "uint")) or not hasattr(value, "shape"):
        fail(TypeError, function, f"{name} must be an array of integers, got {dtype}.", advice=on_integers(name, value))
    if rank is not None and len(value.shape) != rank:
        fail(ValueError, function, f"{name} has shape {tuple(value.shape)} but needs rank {rank}.")
    if is_traced(value) or 0 in value.shape:
        return
    known = np.asarray(value)  # a JAX array would be traced by its own operations inside jit
    if known.min() < 0 or known.max() > longest:
        fail(ValueError, function, f"{name} must lie in [0, {longest}], got {bounds(known)}.")


def bounds(values: np.ndarray) -> str:
    """The least and the largest number of an array, as an error shows them."""
    low, high = values.min(), values.max()
    return f"{low}" if low == high else f"{low} to {high}"


def is_traced(value: Any) -> bool:
    """Tell whether values are not known yet: an array inside jit, vmap or grad, by the mark that JAX gives it."""
    jax = sys.modules.get("jax")  # where JAX is not loaded nothing is traced
    return jax is not None and isinstance(value, jax.core.Tracer)
