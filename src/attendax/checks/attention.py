"""Checks of whole calls, beyond the shapes of their arrays: masks, biases, heads, options (L1, L3, L8, L14)."""

import math
from typing import Any, NamedTuple

import numpy as np

from attendax.params import EncoderBlockParams, MultiHeadParams, QKNorm

from . import advice
from .keywords import TOKENS_FIRST
from .shapes import FLOATING, check, fail, floating, is_floating, is_wider, native, table
from .values import boolean, heads, in_range, instance, integer, is_traced, key_data, number, one_of

NORMS = ("pre", "post")
IMPLEMENTATIONS = ("dense", "blockwise", "native", "cudnn")
SIGNATURES = {False: "attention", True: "attention, tokens first"}  # whether tokens come before heads
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


class _Meant(NamedTuple):
    """The array that a mask means."""

    shape: tuple[int, ...]
    dtype: str = "bool"


def mask(function: str, value: Any, scores: tuple[int, ...], *, broadcast: bool, optional: bool = True) -> None:
    """Refuse a mask that is not boolean or does not fit the scores (L3).

    Args:
        function: the name that the error gives.
        value: the mask: an array, or a value from ``attendax.masks``, which is held against them as the array it means.
        scores: shape of the scores (..., T, S).
        broadcast: NumPy broadcasting, where a seed fixes the signature; else rank 2 or the full rank.
        optional: whether None passes.
    """
    if value is None and optional:
        return
    given = value if advice.is_mask(value) else None
    if given is not None:
        meant = value.shape(*scores[-2:], rank=max(3, len(scores)))
        one_head = len(scores) == 2 and len(meant) == 3 and meant[0] == 1
        value = _Meant(meant[1:] if one_head else meant)
    has_heads = not broadcast or len(scores) > 3
    wanted = (
        f"{scores} or {scores[-2:]}, any axis may be 1" if not broadcast else f"a shape that broadcasts to {scores}"
    )
    got = str(tuple(value.shape)) if hasattr(value, "shape") else type(value).__name__
    rows = [("mask", f"{got} {getattr(value, 'dtype', '')}".rstrip(), wanted)]
    if str(getattr(value, "dtype", None)) != "bool":
        kind = getattr(value, "dtype", type(value).__name__)
        sentence = f"mask must be boolean (True = this query may look at this key), got {kind}."
        fail(TypeError, function, sentence, rows, advice=advice.on_mask(value, scores, heads=has_heads))
    right_rank = broadcast or len(value.shape) in (2, len(scores))
    if not (right_rank and _fits(tuple(value.shape), scores)):
        sentence = f"mask has shape {got} but the scores have shape {scores}."
        array = "array" if isinstance(value, _Meant) else ""
        said = advice.on_axes("mask", tuple(value.shape), scores, heads=has_heads, array=array)
        said += " So is the array that masks.dense takes." if said and array else ""
        said = advice.on_heads(given, scores) or advice.on_functions(given) or said
        fail(ValueError, function, sentence, rows, advice=said)


def bias(function: str, value: Any, scores: tuple[int, ...], dtype: Any) -> None:
    """Refuse a bias that is not floating, is narrower than ``dtype``, or does not fit the scores; None passes."""
    if value is None:
        return
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        said = advice.on_kind("bias", value, str(dtype))
        fail(TypeError, function, f"bias must be an array, got {type(value).__name__}.", advice=said)
    rows = [("bias", f"{tuple(value.shape)} {value.dtype}", f"a floating array that broadcasts to {scores}")]
    if str(value.dtype) not in FLOATING:
        said = advice.on_kind("bias", value) or native("bias", value)
        said = "A boolean array is a mask: pass it as mask." if str(value.dtype) == "bool" else said
        fail(TypeError, function, f"bias has dtype {value.dtype} but must be floating.", rows, advice=said)
    if not is_wider(value.dtype, dtype):
        fail(
            TypeError,
            function,
            f"bias has dtype {value.dtype} but query has {dtype}: a bias may be wider, not narrower.",
            rows,
        )
    if not _fits(tuple(value.shape), scores):
        sentence = f"bias has shape {tuple(value.shape)} but the scores have shape {scores}."
        said = advice.on_axes("bias", tuple(value.shape), scores, heads=len(scores) > 3)
        fail(ValueError, function, sentence, rows, advice=said)


def _fits(shape: tuple[int, ...], scores: tuple[int, ...]) -> bool:
    """Whether ``shape`` broadcasts to exactly ``scores``."""
    if len(shape) > len(scores):
        return False
    return all(size in (1, full) for size, full in zip(shape[::-1], scores[::-1], strict=False))


def groups(function: str, arrays: dict[str, Any], *, tokens_first: bool = False) -> int:
    """How many query heads share a key/value head (L1); ValueError where that is not whole.

    Where key and value, or all three, would fit with heads and tokens the other way round, and these look like it
    (fewer heads than tokens, or as many keys as queries), the error says how to swap them.
    """
    heads, tokens = (-2, -3) if tokens_first else (-3, -2)
    (N, T), (G, S) = ((arrays[name].shape[heads], arrays[name].shape[tokens]) for name in ("query", "key"))
    if N == G or (G and N % G == 0):
        return N // G if G else 1
    swapped = []
    if S > 1 and T % S == 0 and T < N and S < G:
        swapped = ["query", "key", "value"]
    elif S and N % S == 0 and (G == T or (S < G and N < G)):
        swapped = ["key", "value"]
    rank = len(arrays["query"].shape)
    right, wrong = ("(..., T, N, D)", "(..., N, T, D)") if tokens_first else ("(..., N, T, D)", "(..., T, N, D)")
    order = "Tokens come before heads" if tokens_first else "Heads come before tokens"
    moves = ", ".join(f"{name}.swapaxes({rank - 3}, {rank - 2})" for name in swapped)
    sentence = f"query has N={N} heads, which is not a multiple of the G={G} of key."
    said = f"{order}, {right}. From {wrong}: {moves}." if swapped else ""
    said += f"\n{TOKENS_FIRST}" if swapped and not tokens_first else ""
    fail(ValueError, function, sentence, table(function, arrays, SIGNATURES[tokens_first]), advice=said)


class Checked(NamedTuple):
    """The results of the check of the arguments of ``attention``."""

    group: int
    scale: float
    rate: float
    key_data: Any  # of dropout: two 32-bit words, or None


def attention(
    function: str,
    query: Any,
    key: Any,
    value: Any,
    mask_: Any,
    bias_: Any,
    score_mod: Any,
    scale: Any = None,
    dropout_rate: Any = 0.0,
    dropout_rng: Any = None,
    implementation: Any = None,
    return_lse: Any = False,
    *,
    grad_output: Any = None,
    grad_lse: Any = None,
    offered: tuple[str, ...] = ("dense",),
) -> Checked:
    """Check all arguments of ``attention`` (L1, L3, L8, L10); settle the scale and the key data of dropout."""
    if implementation in IMPLEMENTATIONS and implementation not in offered:
        there = " and ".join(map(repr, offered))
        fail(NotImplementedError, function, f"implementation {implementation!r} is not here; offered: {there}.")
    one_of(function, "implementation", implementation, (None, *offered))
    boolean(function, "return_lse", return_lse)
    arrays = {"query": query, "key": key, "value": value, "grad_output": grad_output}
    one_head = len(getattr(query, "shape", ())) == 2
    sizes = check(function, arrays, signature="attention, one head" if one_head else "attention")
    group = 1 if one_head else groups(function, {"query": query, "key": key, "value": value})
    shape = (*query.shape[:-1], sizes["S"])
    if grad_lse is not None:
        _grad_lse(function, grad_lse, shape[:-1])
    mask(function, mask_, shape, broadcast=False)
    bias(function, bias_, shape, query.dtype)
    wide = query.dtype if bias_ is None else bias_.dtype  # float32, if that is less (L8)
    if score_mod is not None:
        _score_mod(function, score_mod, (1, *shape[-2:]) if one_head else shape, query.dtype, wide)
    if isinstance(scale, np.ndarray) and scale.ndim == 0 and is_floating(scale.dtype):
        scale = scale.item()
    scale = 1 / math.sqrt(sizes["D"]) if scale is None else number(function, "scale", scale)
    in_range(function, "scale", scale, wide, "factor")
    rate = number(function, "dropout_rate", dropout_rate, low=0, high=1)
    return Checked(group, scale, rate, key_data(function, dropout_rng) if rate else None)


def pairs_to_merge(function: str, one: Any, other: Any) -> None:
    """Refuse what is not two pairs (out, lse) that go together."""
    for name, pair in (("one", one), ("other", other)):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            fail(TypeError, function, f"{name} must be a pair (out, lse), got {type(pair).__name__}.")
    check(function, {"out1": one[0], "lse1": one[1], "out2": other[0], "lse2": other[1]})


def _grad_lse(function: str, value: Any, lse: tuple[int, ...]) -> None:
    """Refuse a gradient of lse that is not floating or has another shape than lse."""
    floating(function, "grad_lse", value)
    if tuple(value.shape) != lse:
        fail(ValueError, function, f"grad_lse has shape {tuple(value.shape)} but lse has {lse}.")


def _score_mod(function: str, value: Any, scores: tuple[int, ...], dtype: Any, wide: Any) -> None:
    """Refuse a modifier that is not one, or whose arrays or numbers do not fit the scores (..., N, T, S)."""
    if not (hasattr(value, "kind") and hasattr(value, "replace")):  # a mask has a kind, too
        sentence = f"score_mod must be a value from attendax.scores, got {type(value).__name__}."
        fail(TypeError, function, sentence, advice=_advice_on_score_mod(value))
    if value.kind == "compose":
        for part in value.arrays:
            _score_mod(function, part, scores, dtype, wide)
    if value.kind == "softcap":
        in_range(function, "cap", value.settings[0], wide, "divisor")
    if value.kind not in ("alibi", "relative_bias", "sink"):
        return
    array, *offset = value.arrays
    num_heads, name = scores[-3], f"score_mod {value.kind}"
    if array.shape[0] != num_heads:
        fail(ValueError, function, f"{name} is for {array.shape[0]} heads but query has N={num_heads}.")
    if not is_wider(array.dtype, dtype):
        fail(TypeError, function, f"{name} has dtype {array.dtype}, narrower than {dtype} of query.")
    for x in offset:
        if x.shape and not (len(x.shape) == len(scores) - 3 and _fits(tuple(x.shape), scores[:-3])):
            fail(ValueError, function, f"{name} has an offset of shape {tuple(x.shape)}, expected () or {scores[:-3]}.")


def _advice_on_score_mod(value: Any) -> str:
    """The line to write in place of something that is no modifier."""
    if getattr(value, "__module__", "") == "attendax.scores" and callable(value):
        return f"Call it: score_mod=scores.{value.__name__}(...)."
    if callable(value):
        return "A function f(scores, (n, i, j)) becomes a modifier by scores.from_function(f)."
    if hasattr(value, "to_dense"):
        return "A mask is passed as mask."
    return "What is added to the scores is passed as bias." if hasattr(value, "dtype") else ""


def multi_head(
    function: str, arrays: dict[str, Any], params: Any, num_heads: Any, mask_: Any, *, broadcast: bool
) -> tuple:
    """Check a call of multi-head attention; returns the shape of the scores (B, N, T, S)."""
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
            sentence = f"{name} has {gamma.shape[0]} entries but a head has {width} columns, for all heads alike."
            fail(ValueError, function, sentence)
        if not is_wider(gamma.dtype, query.dtype):
            facts = f"{name} has dtype {gamma.dtype} but the queries have {query.dtype}"
            fail(TypeError, function, f"{facts}: a weight may be wider, not narrower.")
    in_range(function, "qk_eps", eps, query.dtype, "summand")
    return eps


def encoder_block(
    function: str,
    arrays: dict[str, Any],
    params: Any,
    mask_: Any,
    *,
    num_heads: Any,
    norm: Any,
    activation: Any,
    eps: Any,
    broadcast: bool = False,
) -> tuple[int, ...]:
    """Check a call of an encoder block, its options included; returns the shape of the scores (B, N, T, T)."""
    if function.startswith("encoder_block"):  # a layer has a method, which takes the weights first
        tokens_first(function, arrays["x"], "params", params)
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


def tokens_first(function: str, x: Any, name: str, weights: Any) -> None:
    """Refuse weights in the place of the tokens, and the tokens in theirs."""
    if isinstance(x, tuple | list) and hasattr(weights, "shape"):
        gradient = "grad_output, " if function.endswith("backward") else ""
        advice = f"Write {function}({gradient}x, {name}, ...)."
        fail(TypeError, function, f"x comes first, then {name}, and they are the other way round.", advice=advice)


def block_options(function: str, norm: Any, activation: Any, eps: Any) -> None:
    """Refuse an unknown norm or activation and an eps that is no number from 0 up."""
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
        facts = f"W1 has {sizes['2F']} columns but W2 has {sizes['F']} rows: half of W1's are the gate."
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
        fail(ValueError, function, f"x has D={D} but pairs of columns are turned: D must be even.")
    numbers, factor = _frequencies(function, frequencies, D)
    count = D // 2 if numbers is None else len(numbers)
    if axes is not None and not hasattr(axes, "__len__"):
        fail(TypeError, function, f"axes must be the number of an axis for each pair, got {type(axes).__name__}.")
    axes = None if axes is None else tuple(integer(function, "axes", axis, minimum=0) for axis in axes)
    if axes is not None and len(axes) != count:
        fail(ValueError, function, f"axes has {len(axes)} entries but {count} pairs of columns are turned.")
    if axes is not None and positions_ is None:
        fail(ValueError, function, "axes are given but positions are None: they are (axes, ...).")
    if positions_ is not None:
        _places(function, arrays["x"], positions_, 0 if not axes else max(axes) + 1)
    return Turns(numbers, factor, theta, axes, bool(interleaved))


def _frequencies(function: str, given: Any, D: int) -> tuple[tuple[float, ...] | None, float]:
    """The frequencies of a call, and the factor that comes with them."""
    if given is None:
        return None, 1.0
    numbers, factor = (given.numbers, given.factor) if hasattr(given, "numbers") else (given, 1.0)
    if not hasattr(numbers, "__len__"):
        fail(TypeError, function, f"frequencies must be numbers, one for each pair, got {type(numbers).__name__}.")
    if is_traced(numbers):
        fail(TypeError, function, "frequencies must be known before tracing: their angles are computed in float64.")
    numbers = tuple(number(function, "frequencies", float(x)) for x in numbers)
    if 2 * len(numbers) > D:
        fail(ValueError, function, f"frequencies are those of {2 * len(numbers)} columns but x has D={D}.")
    return numbers, number(function, "factor", factor)


def _places(function: str, x: Any, given: Any, axes: int) -> None:
    """Refuse positions that are no integers or do not fit; with so many ``axes`` in front, unless 0."""
    shape, wanted = tuple(getattr(given, "shape", ())), tuple(x.shape[:-1])
    dtype = str(getattr(given, "dtype", type(given).__name__))
    lead = f"{axes}, " if axes else ""
    texts = f", or ({lead}{', '.join(map(str, (*wanted[:-2], wanted[-1])))}) for each text" if len(wanted) > 2 else ""
    expected = f"({lead}{wanted[-1]}{',' if not axes else ''}), or ({lead}{str(wanted)[1:]}, any axis may be 1{texts}"
    rows = [("positions", f"{shape} {dtype}", expected)]
    if not dtype.startswith(("int", "uint")):
        fail(TypeError, function, f"positions must be an array of integers, got {dtype}.", rows)
    own = shape[1:] if axes else shape
    right = len(own) in (1, len(wanted)) and _fits(own, wanted)
    right |= len(wanted) > 2 and len(own) == len(wanted) - 1 and _fits(own, (*wanted[:-2], wanted[-1]))
    if not right or (axes and (not shape or shape[0] < axes)):
        sentence = f"positions have shape {shape} but x has {wanted[-1]} tokens{f' and {axes} axes' if axes else ''}."
        fail(ValueError, function, sentence, rows)


def split_heads(function: str, arrays: dict[str, Any], num_heads: Any) -> tuple[int, ...]:
    """Check a call of ``split_heads`` or its backward; returns the shape (B, N, T, d_k) of the result."""
    x = {"x": arrays["x"]}
    sizes = check(function, x)
    shape = (
        sizes["B"],
        int(integer(function, "num_heads", num_heads)),
        sizes["T"],
        heads(function, sizes["M"], num_heads),
    )
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
    """Hold ``grad_output``, where there is one, against the shape of the result."""
    if "grad_output" in arrays:
        check(function, arrays)
        if tuple(arrays["grad_output"].shape) != shape:
            got = tuple(arrays["grad_output"].shape)
            rows = [("grad_output", f"{got} {arrays['grad_output'].dtype}", str(shape))]
            fail(ValueError, function, f"grad_output has shape {got} but the result has {shape}.", rows)


def modified(scores: Any, result: Any) -> None:
    """Refuse what the function of a score modifier made of the scores, unless it is floating and of their shape."""
    got = f"{getattr(result, 'dtype', type(result).__name__)} {getattr(result, 'shape', '')}".rstrip()
    if str(getattr(result, "dtype", None)) not in FLOATING:
        fail(TypeError, "attention", f"the function of score_mod must return floating scores, got {got}.")
    if tuple(result.shape) != tuple(scores.shape):
        fail(ValueError, "attention", f"the function of score_mod made {got} of scores {tuple(scores.shape)}.")
