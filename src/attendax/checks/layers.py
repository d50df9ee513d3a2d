"""Checks of whole calls of layers, and of their parts: heads, norms, positions, weights (L1, L14)."""

from typing import Any, NamedTuple

from attendax.params import EncoderBlockParams, MultiHeadParams, QKNorm

from .attention import fits, mask
from .shapes import check, fail, floating, is_wider
from .values import boolean, heads, in_range, instance, integer, is_traced, number, one_of

NORMS = ("pre", "post")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


def multi_head(
    function: str, arrays: dict[str, Any], params: Any, num_heads: Any, mask_: Any, *, broadcast: bool
) -> tuple:
    """Check a call of multi-head attention; returns the shape of the scores (B, N, T, S)."""
    if function == "multi_head_attention":  # its textbook form takes the weights one by one
        arrays_first(function, arrays, "params", params)
    instance(function, "params", params, MultiHeadParams)
    sizes = check(function, arrays | params._asdict())
    heads(function, sizes["M"], num_heads)
    shape = sizes["B"], int(num_heads), sizes["T"], sizes["S"]
    mask(function, mask_, shape, broadcast=broadcast)
    return shape


def qk_norm(function: str, gains: Any, query: Any, num_heads: int, eps: Any, one_plus: Any) -> float:
    """Check the norm of queries and keys; returns its eps."""
    boolean(function, "qk_one_plus", one_plus)
    eps = number(function, "qk_eps", eps, low=0, closed=False)
    if gains is None:
        return eps
    instance(function, "qk_norm", gains, QKNorm)
    width = query.shape[-1] // num_heads
    for name, gamma in gains._asdict().items():
        floating(function, name, gamma, rank=1)
        if gamma.shape[0] != width:
            sentence = f"{name} has {gamma.shape[0]} entries but a head has {width} columns; all heads share one gain."
            fail(ValueError, function, sentence)
        if not is_wider(gamma.dtype, query.dtype):
            facts = f"{name} has dtype {gamma.dtype} but the queries have {query.dtype}"
            fail(TypeError, function, f"{facts}: a weight may be wider, not narrower.")
    in_range(function, "qk_eps", eps, query.dtype, "summand")
    return eps


def encoder_block(
    function: str, arrays: dict[str, Any], params: Any, mask_: Any, *, num_heads: Any, norm: Any, activation: Any,
    eps: Any, broadcast: bool = False,
) -> tuple[int, ...]:  # fmt: skip
    """Check a call of an encoder block, its options included; returns the shape of the scores (B, N, T, T)."""
    arrays_first(function, arrays, "params", params)
    instance(function, "params", params, EncoderBlockParams)
    instance(function, "params.attention", params.attention, MultiHeadParams)
    weights = params._asdict()
    leaves = weights.pop("attention")._asdict() | weights
    sizes = check(function, arrays | leaves, signature="encoder_block")
    heads(function, sizes["M"], num_heads)
    block_options(function, norm, activation, eps)
    shape = sizes["B"], int(num_heads), sizes["T"], sizes["T"]
    mask(function, mask_, shape, broadcast=broadcast)
    return shape


def arrays_first(function: str, arrays: dict[str, Any], name: str, weights: Any) -> None:
    """Refuse weights in the place of the first array: arrays come first, then the weights."""
    given = {key: x for key, x in arrays.items() if key != "grad_output"}
    first = next(iter(given.values()))
    is_weights = hasattr(first, "_fields") or (isinstance(first, tuple | list) and hasattr(weights, "shape"))
    if is_weights:
        method = "" if function[0].islower() or "." in function else ".forward"
        order = ", ".join((*(["grad_output"] if "grad_output" in arrays else []), *given, name))
        names = " and ".join(", ".join(given).rsplit(", ", 1))
        facts = f"{names} come{'s' if len(given) == 1 else ''} first, then {name}, but they are swapped."
        fail(TypeError, function, facts, advice=f"Write {function}{method}({order}, ...).")


def block_options(function: str, norm: Any, activation: Any, eps: Any) -> None:
    """Refuse an unknown norm or activation and an eps that is not a number from 0 up."""
    one_of(function, "norm", norm, NORMS)
    one_of(function, "activation", activation, ACTIVATIONS)
    number(function, "eps", eps, low=0)


def softmax(function: str, arrays: dict[str, Any], axis: Any) -> None:
    """Check a call of softmax or its backward: floating arrays of one shape that have the axis."""
    check(function, arrays)
    rank = len(next(iter(arrays.values())).shape)
    if not -rank <= integer(function, "axis", axis, minimum=-(2**31)) < rank:
        fail(ValueError, function, f"axis={axis} is out of bounds for an array of rank {rank}.")


def positions(function: str, arrays: dict[str, Any]) -> int:
    """Check a call of ``add_positional_encoding``; returns T, for which there must be positions enough."""
    sizes = check(function, arrays)
    if sizes["T"] > sizes["P"]:
        fail(ValueError, function, f"x has T={sizes['T']} tokens but pe has only P={sizes['P']} positions.")
    return sizes["T"]


def gated(function: str, arrays: dict[str, Any], activation: Any) -> None:
    """Check a call of ``gated_feed_forward`` or its backward: W1 is twice as wide as the network."""
    sizes = check(function, arrays)
    if sizes["2F"] != 2 * sizes["F"]:
        facts = f"W1 has {sizes['2F']} columns but W2 has {sizes['F']} rows: W1 needs twice as many, for the gate."
        fail(ValueError, function, facts)
    one_of(function, "activation", activation, ACTIVATIONS)


class Turns(NamedTuple):
    """A call of ``rotary_encoding``: a frequency for each pair of columns, and the axis of its positions."""

    frequencies: tuple[float, ...] | None  # None: theta^(-2i/D)
    factor: float
    theta: float
    axes: tuple[int, ...] | None  # None: positions have no axes
    interleaved: bool


def rotary(
    function: str, arrays: dict[str, Any], positions_: Any, theta: Any, frequencies: Any, axes: Any, interleaved: Any
) -> Turns:
    """Check a call of ``rotary_encoding`` or its backward."""
    D = check(function, arrays)["D"]
    theta = number(function, "theta", theta, low=0, closed=False)
    boolean(function, "interleaved", interleaved)
    if frequencies is None and D % 2:
        fail(ValueError, function, f"x has D={D}, but D must be even: columns are rotated in pairs.")
    numbers, factor = _frequencies(function, frequencies, D)
    count = D // 2 if numbers is None else len(numbers)
    if axes is not None and not hasattr(axes, "__len__"):
        fail(TypeError, function, f"axes must be a tuple with one axis number for each pair of columns, got {axes!r}.")
    axes = None if axes is None else tuple(integer(function, "axes", axis, minimum=0) for axis in axes)
    if axes is not None and len(axes) != count:
        fail(ValueError, function, f"axes has {len(axes)} entries but {count} pairs of columns are rotated.")
    if axes is not None and positions_ is None:
        fail(ValueError, function, "axes need positions of shape (axes, ...), got None.")
    if positions_ is not None:
        _places(function, arrays["x"], positions_, 0 if not axes else max(axes) + 1)
    return Turns(numbers, factor, theta, axes, bool(interleaved))


def _frequencies(function: str, given: Any, D: int) -> tuple[tuple[float, ...] | None, float]:
    """The frequencies of a call, and the factor that comes with them."""
    if given is None:
        return None, 1.0
    numbers, factor = (given.numbers, given.factor) if hasattr(given, "numbers") else (given, 1.0)
    if not hasattr(numbers, "__len__"):
        fail(TypeError, function, f"frequencies must be numbers, one per pair, got {type(numbers).__name__}.")
    if is_traced(numbers):
        fail(TypeError, function, "frequencies must be known before tracing: their angles are computed in float64.")
    numbers = tuple(number(function, "frequencies", float(x)) for x in numbers)
    if 2 * len(numbers) > D:
        fail(ValueError, function, f"frequencies are for {2 * len(numbers)} columns but x has D={D}.")
    return numbers, number(function, "factor", factor)


def _places(function: str, x: Any, given: Any, axes: int) -> None:
    """Refuse positions that are not integers or do not fit; ``axes`` is the size of their first axis, or 0."""
    shape, wanted = tuple(getattr(given, "shape", ())), tuple(x.shape[:-1])
    dtype = str(getattr(given, "dtype", type(given).__name__))
    lead = f"{axes}, " if axes else ""
    texts = f", or ({lead}{', '.join(map(str, (*wanted[:-2], wanted[-1])))}) for each text" if len(wanted) > 2 else ""
    expected = f"({lead}{wanted[-1]}{',' if not axes else ''}), or ({lead}{str(wanted)[1:]}, any axis may be 1{texts}"
    rows = [("positions", f"{shape} {dtype}", expected)]
    if not dtype.startswith(("int", "uint")):
        fail(TypeError, function, f"positions must be an array of integers, got {dtype}.", rows)
    own = shape[1:] if axes else shape
    right = len(own) in (1, len(wanted)) and fits(own, wanted)
    right |= len(wanted) > 2 and len(own) == len(wanted) - 1 and fits(own, (*wanted[:-2], wanted[-1]))
    if not right or (axes and (not shape or shape[0] < axes)):
        sentence = f"positions have shape {shape} but x has {wanted[-1]} tokens{f' and {axes} axes' if axes else ''}."
        fail(ValueError, function, sentence, rows)


def split_heads(function: str, arrays: dict[str, Any], num_heads: Any) -> tuple[int, ...]:
    """Check a call of ``split_heads`` or its backward; returns the shape (B, N, T, d_k) of the result."""
    x = {"x": arrays["x"]}
    sizes = check(function, x)
    count, width = integer(function, "num_heads", num_heads), heads(function, sizes["M"], num_heads)
    shape = sizes["B"], count, sizes["T"], width
    _result(function, arrays, shape)
    return shape


def merge_heads(function: str, arrays: dict[str, Any]) -> tuple[int, ...]:
    """Check a call of ``merge_heads`` or its backward; returns the shape (B, T, M) of the result."""
    x = {"x": arrays["x"]}
    sizes = check(function, x)
    shape = sizes["B"], sizes["T"], sizes["N"] * sizes["d_k"]
    _result(function, arrays, shape)
    return shape


def _result(function: str, arrays: dict[str, Any], shape: tuple[int, ...]) -> None:
    """Refuse a ``grad_output`` that does not have the shape of the result."""
    if "grad_output" in arrays:
        check(function, arrays)
        if tuple(arrays["grad_output"].shape) != shape:
            got = tuple(arrays["grad_output"].shape)
            rows = [("grad_output", f"{got} {arrays['grad_output'].dtype}", str(shape))]
            fail(ValueError, function, f"grad_output has shape {got} but the result has {shape}.", rows)
