"""The check of arguments: named axes in, one clear error out (L14).

``SHAPES`` says, once for NumPy and JAX alike, what every public function takes. In ``"x (... M) | gamma (M)"`` the
arrays before the bar share one floating dtype, which is also that of the result; those after it (weights) may be
wider. Equal letters are equal sizes and ``...`` stands for any leading axes, equal in all arrays. An optional array
may be None. After ``->`` stands the result, and so the ``grad_output`` of the backward. Only shapes and dtypes are
read, so a traced array passes like any other.
"""

import functools
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .advice import on_kind, on_leading_axes

FLOATING = ("float16", "bfloat16", "float32", "float64")
_MAY_BE_EMPTY = ("...", "B", "N", "G", "T", "S", "P")  # the widths of vectors may not (L11)

_BIASES = "b_Q (M), b_K (M), b_V (M), b_O (M)"
_SELF_ATTENTION_WEIGHTS = f"W_Q (M M), W_K (M M), W_V (M M), W_O (M M), {_BIASES}"
_MULTI_HEAD_WEIGHTS = f"W_Q (M M), W_K (M_k M), W_V (M_v M), W_O (M M), {_BIASES}"
_SINGLE_HEAD_WEIGHTS = "query_weights (M M), key_weights (M M), value_weights (M M), output_weights (M M)"
_NETWORK = "W1 (M F), b1 (F), W2 (F M), b2 (M)"
_BLOCK = f"x (B T M) | {_SELF_ATTENTION_WEIGHTS}, {_NETWORK}, gamma1 (M), beta1 (M), gamma2 (M), beta2 (M) -> B T M"

SHAPES = {
    "softmax": "x (...) -> ...",
    "attention_weights": "scores (...) -> ...",
    "compute_attention_scores": "Q (... T D), K (... S D) -> ... T S",
    "apply_attention_mask": "scores (... T S) -> ... T S",
    "scaled_dot_product_attention": "Q (... T D), K (... S D), V (... S V) -> ... T V",
    "additive_attention": "Q (B T d_q), K (B S d_k), V (B S d_v) | W_q (d_q A), W_k (d_k A), v (A) -> B T d_v",
    "attention": "query (... N T D), key (... G S D), value (... G S V) -> ... N T V",
    "attention, one head": "query (T D), key (S D), value (S V) -> T V",
    "attention, tokens first": "query (... T N D), key (... S G D), value (... S G V) -> ... T N V",
    "merge": "out1 (... T V), out2 (... T V) | lse1 (... T), lse2 (... T) -> ... T V",
    "split_heads": "x (B T M) -> B N T d_k",
    "merge_heads": "x (B N T d_k) -> B T M",
    "multi_head_attention_forward": f"Q (B T M), K (B S M_k), V (B S M_v) | {_MULTI_HEAD_WEIGHTS} -> B T M",
    "multi_head_attention": f"query (B T M), key (B S M_k), value (B S M_v) | {_MULTI_HEAD_WEIGHTS} -> B T M",
    "add_positional_encoding": "x (B T M) | pe (P M) -> B T M",
    "layer_norm": "x (... M) | gamma (M), beta (M) -> ... M",
    "rms_norm": "x (... M) | gamma (M) -> ... M",
    "rotary_encoding": "x (... T D) -> ... T D",
    "feed_forward": f"x (B T M) | {_NETWORK} -> B T M",
    "gated_feed_forward": "x (B T M) | W1 (M 2F), b1 (2F), W2 (F M), b2 (M) -> B T M",
    "encoder_block": _BLOCK,
    "TransformerEncoderBlock": _BLOCK,
    "stack_encoder_blocks": "x (B T M) -> B T M",
    "Attention": f"x (B T M) | {_SINGLE_HEAD_WEIGHTS} -> B T M",
    "ScaledDotProductAttention": "query (B T D), key (B S D), value (B S V) -> B T V",
}


class _Row(NamedTuple):
    """One array that is checked: what came and what the table asks for."""

    name: str
    array: Any
    pattern: tuple[str, ...]
    is_weight: bool

    def __str__(self) -> str:
        got = tuple(self.array.shape) if hasattr(self.array, "shape") else type(self.array).__name__
        return f"{got} {getattr(self.array, 'dtype', '')}".rstrip()


def fail(
    error: type[Exception], function: str, sentence: str, rows: list[_Row] | list[tuple[str, str, str]] | None = None,
    *, advice: str = "",
) -> NoReturn:  # fmt: skip
    """Raise ``error``: the function and the facts that disagree, a row per array, got and expected, the next step."""
    lines = [f"{function}: {sentence}"]
    rows = [_shown(row) if isinstance(row, _Row) else row for row in rows or ()]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines += [f"  {name:<{widths[0]}}  got {got:<{widths[1]}}   expected {wanted}" for name, got, wanted in rows]
    lines += [advice] if advice else []
    raise error("\n".join(lines))


def check(function: str, arrays: dict[str, Any], *, signature: str | None = None) -> dict[str, Any]:
    """Hold ``arrays`` against the table and return the size of every named axis.

    Args:
        function: the name that the error gives; a backward goes by the line of its forward.
        arrays: name -> array; None for an optional bias, or for the ``grad_output`` of a forward. ``grad_output`` has
            the shape of the result. A name that is not there is not checked.
        signature: the line of ``SHAPES`` to use, where it is not that of ``function``.

    Returns:
        Axis letter -> size; ``"..."`` -> the tuple of leading sizes, where the table has them.

    Raises:
        TypeError: something is not an array, not floating, or of another dtype than its neighbours.
        ValueError: a rank or a size disagrees.
    """
    line = SHAPES[signature or function.removesuffix("backward").rstrip("_.")]
    rows = _rows(function, arrays, line)
    _check_dtypes(function, rows)
    sizes: dict[str, Any] = {}
    owner: dict[str, str] = {}
    for row in rows:
        for axis, size in _named_axes(function, row, rows):
            if sizes.setdefault(axis, size) != size:
                said = _repeated(rows) if axis in ("...", "B") else ""
                sentence = _disagreement(owner[axis], row.name, axis, sizes[axis], size)
                fail(ValueError, function, sentence, rows, advice=said)
            owner.setdefault(axis, row.name)
            if size == 0 and axis not in _MAY_BE_EMPTY:
                fail(ValueError, function, f"{row.name} has {axis}=0 but a width is at least 1.", rows)
    return sizes


def table(function: str, arrays: dict[str, Any], signature: str) -> list[tuple[str, str, str]]:
    """The rows of an error: each array of a call, got and expected."""
    return [_shown(row) for row in _rows(function, arrays, SHAPES[signature])]


def _shown(row: _Row) -> tuple[str, str, str]:
    return row.name, str(row), _expected(row.pattern)


def _rows(function: str, arrays: dict[str, Any], line: str) -> list[_Row]:
    """Pair the arrays that are present with their patterns, in the order of the table; the gradient before weights."""
    optional = {"b_Q", "b_K", "b_V", "b_O"} | ({"grad_output"} if not function.endswith("backward") else set())
    absent = {name for name, array in arrays.items() if array is None and name in optional}
    present = arrays.keys() - absent
    return [_Row(name, arrays[name], pattern, w) for name, pattern, w in _patterns(line) if name in present]


@functools.cache
def _patterns(line: str) -> list[tuple[str, tuple[str, ...], bool]]:
    """Name and axes of each array of a line of ``SHAPES``, and whether it is a weight."""
    inputs, result = line.split(" -> ")
    data, _, weights = inputs.partition(" | ")
    items = [(item, False) for item in f"{data}, grad_output ({result})".rstrip(")").split("), ")]
    items += [(item, True) for item in weights.rstrip(")").split("), ") if item]
    return [(item.split(" ")[0], tuple(item.split(" (")[1].split()), is_weight) for item, is_weight in items]


def _expected(pattern: tuple[str, ...]) -> str:
    return f"({', '.join(pattern)}{',' if len(pattern) == 1 and pattern != ('...',) else ''})"


def _repeated(rows: list[_Row]) -> str:
    """The code that repeats inputs along their leading axes; of a wrong gradient there is none."""
    inputs = (row for row in rows if not row.is_weight and row.name != "grad_output")
    return on_leading_axes({row.name: (row.array, len(row.pattern) - 1) for row in inputs})


def _disagreement(first: str, second: str, axis: str, size: Any, other: Any) -> str:
    if axis == "...":
        return f"{first} has leading axes {size} but {second} has {other}."
    if first == second:
        return f"{first} has {axis}={size} and {axis}={other} at once."
    return f"{first} has {axis}={size} but {second} has {axis}={other}."


def _named_axes(function: str, row: _Row, rows: list[_Row]) -> list[tuple[str, Any]]:
    """The (axis, size) pairs of one array; a wrong rank is refused."""
    shape = tuple(row.array.shape)
    if row.pattern[0] != "...":
        if len(shape) != len(row.pattern):
            fail(ValueError, function, f"{row.name} has rank {len(shape)} but needs rank {len(row.pattern)}.", rows)
        return list(zip(row.pattern, shape, strict=True))
    named = row.pattern[1:]
    if len(shape) < len(named):
        fail(ValueError, function, f"{row.name} has rank {len(shape)} but needs at least {len(named)}.", rows)
    split = len(shape) - len(named)
    return [("...", shape[:split]), *zip(named, shape[split:], strict=True)]


def _check_dtypes(function: str, rows: list[_Row]) -> None:
    """Refuse arrays that are not floating, two dtypes before the bar, and a narrower one after it."""
    for row in rows:
        if not (hasattr(row.array, "shape") and hasattr(row.array, "dtype")):
            sentence = f"{row.name} must be an array, got {type(row.array).__name__}."
            fail(TypeError, function, sentence, rows, advice=on_kind(row.name, row.array, _common_dtype(rows)))
        if not is_floating(row.array.dtype):
            sentence = f"{row.name} has dtype {row.array.dtype} but must be floating: {', '.join(FLOATING)}."
            said = on_kind(row.name, row.array, _common_dtype(rows)) or native(row.name, row.array)
            fail(TypeError, function, sentence, rows, advice=said)
    first = next((row for row in rows if not row.is_weight), None)
    for row in rows:
        if first is None or row.array.dtype == first.array.dtype:
            continue
        facts = f"{first.name} has dtype {first.array.dtype} but {row.name} has {row.array.dtype}"
        if not row.is_weight:
            said = f"Use one dtype: {row.name}.astype({first.name}.dtype)."
            fail(TypeError, function, f"{facts}.", rows, advice=said)
        if not is_wider(row.array.dtype, first.array.dtype):
            fail(TypeError, function, f"{facts}: a weight may be wider, not narrower.", rows)


def is_floating(dtype: Any) -> bool:
    """Tell whether a dtype, of whatever library, is one of ``FLOATING``."""
    return _is_floating(dtype) if isinstance(dtype, np.dtype) else str(dtype) in FLOATING


@functools.lru_cache(64)
def _is_floating(dtype: Any) -> bool:  # a name of NumPy's takes as long as all else that is checked of an array
    return str(dtype) in FLOATING


def _common_dtype(rows: list[_Row]) -> str:
    """The dtype of the first array that has a floating one."""
    dtypes = (str(getattr(row.array, "dtype", "")) for row in rows)
    return next((dtype for dtype in dtypes if dtype in FLOATING), "float32")


def floating(function: str, name: str, array: Any, *, rank: int | None = None) -> None:
    """Refuse everything except a floating array of this rank (None: any)."""
    dtype = getattr(array, "dtype", type(array).__name__)
    if not is_floating(dtype):
        advice = on_kind(name, array, "float32") or native(name, array)
        fail(TypeError, function, f"{name} must be a floating array, got {dtype}.", advice=advice)
    if rank is not None and len(array.shape) != rank:
        fail(ValueError, function, f"{name} has shape {tuple(array.shape)} but needs rank {rank}.")


def native(name: str, array: Any) -> str:
    """Advice for floating numbers in another byte order than this machine's; empty for others."""
    dtype: Any = getattr(array, "dtype", None)
    native = str(dtype.newbyteorder("=")) if getattr(dtype, "isnative", True) is False else ""
    return f"Convert the byte order: {name}.astype({native!r})." if native in FLOATING else ""


def is_wider(dtype: Any, other: Any) -> bool:
    """Tell whether every value of the floating ``other`` is one of ``dtype``."""
    width = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}
    return width[str(dtype)] > width[str(other)] or dtype == other
