"""The names of attention's arguments in other libraries, and what to write here instead."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar, cast, get_args

from .advice import is_mask
from .shapes import fail

Function = TypeVar("Function", bound=Callable[..., Any])

_CAUSAL = "Write mask=masks.causal()."
_MASK = "Write mask=array (boolean, True = may look), or bias=array for numbers that are added to the scores."
_DROPOUT = "Write dropout_rate=rate, dropout_rng=jax.random.key(seed)."
_ALWAYS = "Leave it out: dropout is off unless dropout_rate is given."
_GROUPED = "Leave it out: pass fewer key and value heads than query heads."
_WINDOW = "Write mask=masks.window(left, right)."
_SEGMENTS = "Write mask=masks.segments(query_ids, key_ids)."
_LENGTHS = "Write mask=masks.padding(key_lengths, query_lengths)."
_SOFTCAP = "Write score_mod=scores.softcap(cap)."
_SINK = "Write score_mod=scores.sink(logits)."
_SCALE = "Write scale=number."
_LSE = "Write return_lse=True."
_WEIGHTS = "Call attention_with_weights (in ops or spec), or weights_at for some of the weights."

TOKENS_FIRST = "attendax.compat.jax_nn.dot_product_attention takes (B, T, N, D) directly."
_LAYOUT = f"Heads come before tokens, (..., N, T, D): x.swapaxes(1, 2). {TOKENS_FIRST}"

HERE = {
    "layout": _LAYOUT,
    "input_layout": _LAYOUT,
    "tensor_layout": _LAYOUT,
    "qkv_format": _LAYOUT,
    "is_causal": _CAUSAL,
    "causal": _CAUSAL,
    "use_causal_mask": _CAUSAL,
    "attn_mask": _MASK,
    "attention_mask": _MASK,
    "key_padding_mask": "Write mask=masks.padding(key_lengths), or mask=~key_padding_mask[:, None, None, :].",
    "attn_bias": "Write bias=array.",
    "dropout_p": _DROPOUT,
    "dropout": _DROPOUT,
    "deterministic": _ALWAYS,
    "training": _ALWAYS,
    "enable_gqa": _GROUPED,
    "num_kv_heads": _GROUPED,
    "window_size": _WINDOW,
    "sliding_window": _WINDOW,
    "local_window_size": _WINDOW,
    "segment_ids": _SEGMENTS,
    "query_segment_ids": _SEGMENTS,
    "key_segment_ids": _SEGMENTS,
    "kv_segment_ids": _SEGMENTS,
    "key_lengths": _LENGTHS,
    "query_seq_lengths": _LENGTHS,
    "key_value_seq_lengths": _LENGTHS,
    "softcap": _SOFTCAP,
    "logits_soft_cap": _SOFTCAP,
    "alibi_slopes": "Write score_mod=scores.alibi(slopes).",
    "sinks": _SINK,
    "s_aux": _SINK,
    "learnable_sink": _SINK,
    "sm_scale": _SCALE,
    "softmax_scale": _SCALE,
    "return_residual": _LSE,
    "return_attn_probs": _WEIGHTS,
    "need_weights": _WEIGHTS,
    "return_attention_scores": _WEIGHTS,
}


def knows_arguments(known: Mapping[str, str], shown: str = "", missing: str = "") -> Callable[[Function], Function]:
    """Decorate a function: a TypeError for a wrong set of arguments says what to write instead.

    Args:
        known: names of other libraries' arguments, and what to write here.
        shown: the function's name in errors, unless it is its own.
        missing: the advice if an argument is missing, unless it is the call that has all of them.
    """

    def decorated(function: Function) -> Function:
        names, (places, required) = _names(function), _places(function)
        name = shown or function.__name__

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if unknown := next((key for key in kwargs if key not in names), None):
                _refuse_unknown(name, unknown, names, known)
            if len(args) > len(places):
                _refuse_place(name, args, places, names)
            given = {*places[: len(args)], *kwargs}
            if absent := [key for key in required if key not in given]:
                _refuse_missing(name, absent, places, required, missing)
            return function(*args, **kwargs)

        return cast(Function, call)

    return decorated


def knows_keywords(function: Function) -> Function:
    """Decorate a function of the names that are used here: see ``knows_arguments``."""
    return knows_arguments(HERE)(function)


def _refuse_unknown(function: str, name: str, names: list[str], known: Mapping[str, str]) -> NoReturn:
    """Refuse a keyword; advice for attention itself, or to write what is not there, is left out elsewhere."""
    advice = known.get(name, "")
    needed = advice.removeprefix("Write ").partition("=")[0] if advice.startswith("Write ") else "bias"
    if known is HERE and needed not in names:
        advice = ""
    fail(TypeError, function, f"unexpected argument {name!r}.", advice=advice or f"Arguments: {', '.join(names)}.")


def _refuse_place(function: str, args: tuple[Any, ...], places: list[str], names: list[str]) -> NoReturn:
    """Refuse arguments by position where they are keyword-only; the first is named if its kind tells its name."""
    by_name, extra = [name for name in names if name not in places], args[len(places)]
    name = next((name for name in by_name if name in _names_of_kind(extra)), "")
    if name:
        call = f"{function}({', '.join(places)}, {name}=...)"
        fail(TypeError, function, f"{name} is keyword-only: write {call}.")
    count = f"{len(places)} positional argument{'s' * (len(places) != 1)}"
    facts = f"takes {count} ({', '.join(places)}), got {len(args)}."
    fail(TypeError, function, facts, advice=f"Keyword-only: {', '.join(by_name)}." if by_name else "")


def _names_of_kind(value: Any) -> tuple[str, ...]:
    if hasattr(value, "kind"):
        return ("mask",) if is_mask(value) else ("score_mod",)
    if str(getattr(value, "dtype", "")) == "bool":
        return ("mask",)
    names = {"float": ("scale",), "int": ("num_heads",), "str": ("axis_name", "implementation")}
    return names.get(type(value).__name__, ("config",) if type(value).__name__.endswith("Config") else ())


def _refuse_missing(function: str, absent: list[str], places: list[str], required: list[str], said: str) -> NoReturn:
    names = " and ".join(", ".join(absent).rsplit(", ", 1))
    order = [name if name in places else f"{name}=..." for name in required]
    sentence = f"{names} {'is' if len(absent) == 1 else 'are'} missing."
    fail(TypeError, function, sentence, advice=said or f"Write {function}({', '.join(order)}).")


def _places(function: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """The arguments that a function takes by position, and those that have no default."""
    parameters = inspect.signature(function).parameters.values()
    by_place = [x.name for x in parameters if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    return by_place, [x.name for x in parameters if x.default is x.empty and x.kind is not x.VAR_KEYWORD]


def _names(function: Callable[..., Any]) -> list[str]:
    """The arguments of a function, those of ``**options: Unpack[...]`` too."""
    found: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        (options,) = get_args(parameter.annotation) if parameter.kind is parameter.VAR_KEYWORD else (None,)
        found += [name] if options is None else options.__annotations__
    return found
