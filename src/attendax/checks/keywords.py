"""The names of attention's arguments in other libraries, and what to write here instead."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast, get_args

from .shapes import fail

Function = TypeVar("Function", bound=Callable[..., Any])

_CAUSAL = "Write mask=masks.causal()."
_MASK = "Write mask=array, boolean with True = may look; an array that is added is bias=array."
_DROPOUT = "Write dropout_rate=rate, dropout_rng=jax.random.key(seed)."
_ALWAYS = "Leave it out: there is dropout only where dropout_rate is given."
_GROUPED = "Leave it out: fewer heads of key and value than of query are enough."
_WINDOW = "Write mask=masks.window(left, right)."
_SEGMENTS = "Write mask=masks.segments(query_ids, key_ids)."
_LENGTHS = "Write mask=masks.padding(key_lengths, query_lengths)."
_SOFTCAP = "Write score_mod=scores.softcap(cap)."
_SINK = "Write score_mod=scores.sink(logits)."
_SCALE = "Write scale=number."
_LSE = "Write return_lse=True."
_WEIGHTS = "Call attention_with_weights of ops or spec, or weights_at for some of them."

TOKENS_FIRST = "attendax.compat.jax_nn.dot_product_attention takes (B, T, N, D) as it is."
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


def knows_keywords(function: Function) -> Function:
    """Decorate a function: a TypeError for a keyword that it does not have says what to write instead, if known."""
    names = _names(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in names:
                advice = HERE.get(name, f"There are {', '.join(names)}.")
                fail(TypeError, function.__name__, f"there is no argument {name!r}.", advice=advice)
        return function(*args, **kwargs)

    return cast(Function, call)


def names_missing(advice: str) -> Callable[[Function], Function]:
    """Decorate a function: a TypeError for an argument that is missing has this advice."""

    def decorated(function: Function) -> Function:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = {*list(signature.parameters)[: len(args)], *kwargs}
            for name, parameter in signature.parameters.items():
                if parameter.default is parameter.empty and name not in given:
                    fail(TypeError, function.__name__, f"{name} is missing.", advice=advice)
            return function(*args, **kwargs)

        return cast(Function, call)

    return decorated


def _names(function: Callable[..., Any]) -> list[str]:
    """The arguments of a function, those of ``**options: Unpack[...]`` too."""
    found: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        (options,) = get_args(parameter.annotation) if parameter.kind is parameter.VAR_KEYWORD else (None,)
        found += [name] if options is None else options.__annotations__
    return found
