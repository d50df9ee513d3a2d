"""Checks of whole calls, beyond the shapes of their arrays: masks, biases, heads, options (L1, L3, L8, L14)."""

import math
from typing import Any, NamedTuple

import numpy as np

from . import advice
from .keywords import TOKENS_FIRST
from .shapes import FLOATING, check, fail, floating, is_floating, is_wider, native, table
from .values import boolean, in_range, key_data, number, one_of

IMPLEMENTATIONS = ("dense", "blockwise", "native", "cudnn", "triton")
SIGNATURES = {False: "attention", True: "attention, tokens first"}  # whether tokens come before heads


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
        _parts(function, given, scores)
        meant = value.shape(*scores[-2:], rank=max(3, len(scores)))
        one_head = len(scores) == 2 and len(meant) == 3 and meant[0] == 1
        value = _Meant(meant[1:] if one_head else meant)
    has_heads = not broadcast or len(scores) > 3
    either = f"{scores} or {scores[-2:]}, any axis may be 1"
    wanted = f"a shape that broadcasts to {scores}" if broadcast else either
    got = str(tuple(value.shape)) if hasattr(value, "shape") else type(value).__name__
    rows = [("mask", f"{got} {getattr(value, 'dtype', '')}".rstrip(), wanted)]
    if str(getattr(value, "dtype", None)) != "bool":
        kind = getattr(value, "dtype", type(value).__name__)
        sentence = f"mask must be boolean (True = this query may look at this key), got {kind}."
        fail(TypeError, function, sentence, rows, advice=advice.on_mask(value, scores, heads=has_heads))
    right_rank = broadcast or len(value.shape) in (2, len(scores))
    if not (right_rank and fits(tuple(value.shape), scores)):
        sentence = f"mask has shape {got} but the scores have shape {scores}."
        array = "array" if isinstance(value, _Meant) else ""
        said = advice.on_axes("mask", tuple(value.shape), scores, heads=has_heads, array=array)
        said += " Pass the result to masks.dense." if said and array else ""
        said = advice.on_heads(given, scores) or advice.on_functions(given) or said
        fail(ValueError, function, sentence, rows, advice=said)


def _parts(function: str, value: Any, scores: tuple[int, ...]) -> None:
    """Refuse a mask of which an offset, a side, lengths or ids are not those of the texts and heads of the scores."""
    full = scores if len(scores) > 2 else (1, *scores)
    texts = full[:-3]

    for part in value.parts():
        of_tokens = part.kind == "segments"
        for name, array in zip(advice.ARRAYS_OF_MASKS.get(part.kind, ()), part.arrays, strict=False):
            shape = tuple(getattr(array, "shape", ()))
            own = shape[:-1] if of_tokens else shape
            by_head = not of_tokens and len(shape) > 2 and shape[-2:] == (1, 1) and len(shape) + 3 != len(full)
            if not own or (fits(shape, full) if by_head else len(own) == len(texts) and fits(own, texts)):
                continue
            whole = f"{name} of masks.{repr(part).partition('(')[0]}"
            sentence = f"{whole} has shape {shape} but the scores have shape {scores}."
            wanted = f"{shape[-1:]}" if of_tokens else "()"
            wanted += f" or {(*texts, *shape[-1:]) if of_tokens else texts}, for each text" if texts else ""
            wanted += "" if of_tokens else f"; {(full[-3], 1, 1)}, for each head"
            fail(ValueError, function, sentence, [(name, str(shape), wanted)], advice=advice.on_heads(value, scores))


def bias(function: str, value: Any, scores: tuple[int, ...], dtype: Any) -> None:
    """Refuse a bias that is not floating, is narrower than ``dtype``, or does not fit the scores; None passes."""
    if value is None:
        return
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        said = advice.on_kind("bias", value, str(dtype))
        said = ("Pass a mask as mask." if advice.is_mask(value) else said) if hasattr(value, "kind") else said
        rows = [("bias", type(value).__name__, f"a floating array that broadcasts to {scores}")]
        fail(TypeError, function, f"bias must be an array, got {type(value).__name__}.", rows, advice=said)
    rows = [("bias", f"{tuple(value.shape)} {value.dtype}", f"a floating array that broadcasts to {scores}")]
    if str(value.dtype) not in FLOATING:
        said = advice.on_kind("bias", value) or native("bias", value)
        said = "A boolean array is a mask: pass it as mask." if str(value.dtype) == "bool" else said
        fail(TypeError, function, f"bias has dtype {value.dtype} but must be floating.", rows, advice=said)
    if not is_wider(value.dtype, dtype):
        sentence = f"bias has dtype {value.dtype} but query has {dtype}: a bias may be wider, not narrower."
        fail(TypeError, function, sentence, rows)
    if not fits(tuple(value.shape), scores):
        sentence = f"bias has shape {tuple(value.shape)} but the scores have shape {scores}."
        said = advice.on_axes("bias", tuple(value.shape), scores, heads=len(scores) > 3)
        fail(ValueError, function, sentence, rows, advice=said)


def fits(shape: tuple[int, ...], scores: tuple[int, ...]) -> bool:
    """Tell whether ``shape`` broadcasts to exactly ``scores``."""
    if len(shape) > len(scores):
        return False
    return all(size in (1, full) for size, full in zip(shape[::-1], scores[::-1], strict=False))


def groups(function: str, arrays: dict[str, Any], *, tokens_first: bool = False) -> int:
    """The number of query heads that share a key/value head (L1); ValueError where that is not whole.

    If key and value, or all three arrays, would fit with heads and tokens swapped, and look like it, the error says
    how to swap them. They look like it if they have fewer heads than tokens, or as many keys as queries.
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
    function: str, query: Any, key: Any, value: Any, mask_: Any, bias_: Any, score_mod: Any, scale: Any = None,
    dropout_rate: Any = 0.0, dropout_rng: Any = None, implementation: Any = None, return_lse: Any = False, *,
    grad_output: Any = None, grad_lse: Any = None, offered: tuple[str, ...] = ("dense",),
) -> Checked:  # fmt: skip
    """Check all arguments of ``attention`` (L1, L3, L8, L10); settle the scale and the key data of dropout."""
    if implementation in IMPLEMENTATIONS and implementation not in offered:
        there = " and ".join(map(repr, offered))
        fail(NotImplementedError, function, f"implementation {implementation!r} is not available here, only {there}.")
    one_of(function, "implementation", implementation, (None, *offered))
    boolean(function, "return_lse", return_lse)
    arrays = {"query": query, "key": key, "value": value, "grad_output": grad_output}
    if len(getattr(query, "shape", (0, 0))) < 2:
        sentence = f"query has rank {len(query.shape)} but needs 2 (one head) or at least 3."
        fail(ValueError, function, sentence, table(function, arrays, "attention"))
    one_head = len(getattr(query, "shape", ())) == 2
    sizes = check(function, arrays, signature="attention, one head" if one_head else "attention")
    group = 1 if one_head else groups(function, {"query": query, "key": key, "value": value})
    shape = (*query.shape[:-1], sizes["S"])
    if grad_lse is not None:
        floating(function, "grad_lse", grad_lse)
        if tuple(grad_lse.shape) != shape[:-1]:
            fail(ValueError, function, f"grad_lse has shape {tuple(grad_lse.shape)} but lse has {shape[:-1]}.")
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
            fail(TypeError, function, f"{name} must be a pair (out, lse), got {_kind(pair)}.")
    check(function, {"out1": one[0], "lse1": one[1], "out2": other[0], "lse2": other[1]})


def _kind(value: Any) -> str:
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def _score_mod(function: str, value: Any, scores: tuple[int, ...], dtype: Any, wide: Any) -> None:
    """Refuse a modifier that is not one, or whose arrays or numbers do not fit the scores (..., N, T, S)."""
    if not (hasattr(value, "kind") and hasattr(value, "replace")):  # a mask also has a kind
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
        sentence = f"{name} has dtype {array.dtype} but query has {dtype}: it may be wider, not narrower."
        fail(TypeError, function, sentence)
    for x in offset:
        if x.shape and not (len(x.shape) == len(scores) - 3 and fits(tuple(x.shape), scores[:-3])):
            fail(ValueError, function, f"{name} has an offset of shape {tuple(x.shape)}, expected () or {scores[:-3]}.")


def _advice_on_score_mod(value: Any) -> str:
    if getattr(value, "__module__", "") == "attendax.scores" and callable(value):
        return f"Call it: score_mod=scores.{value.__name__}(...)."
    if callable(value):
        return "Make a modifier of f(scores, (n, i, j)): scores.from_function(f)."
    if hasattr(value, "to_dense"):
        return "Pass a mask as mask."
    return "Pass numbers that are added to the scores as bias." if hasattr(value, "dtype") else ""


def modified(scores: Any, result: Any) -> None:
    """Refuse what the function of a score modifier made of the scores, unless it is floating and of their shape."""
    got = f"{getattr(result, 'dtype', type(result).__name__)} {getattr(result, 'shape', '')}".rstrip()
    if str(getattr(result, "dtype", None)) not in FLOATING:
        fail(TypeError, "attention", f"the score_mod function must return floating scores, got {got}.")
    if tuple(result.shape) != tuple(scores.shape):
        fail(ValueError, "attention", f"the score_mod function must return shape {tuple(scores.shape)}, got {got}.")
