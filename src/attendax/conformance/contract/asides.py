"""Parameters that no case of `attendax check` asks for, and whose meaning is tried all the same."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..against import forms, options
from ..against.asking import TOLERANCE, Answer, Candidate, Probe, arrays, distance
from ..against.forms import Form, Option
from ..against.options import INTO, LONGEST_NAMES, QUERY_LENGTHS, is_dropout_mask
from ..against.remote import Function
from ..conventions.table import DECLARED

PAST_PAIRS = (
    ("past_key", "past_value"), ("past_k", "past_v"), ("k_cache", "v_cache"), ("cache_k", "cache_v"),
    ("k_past", "v_past"),
)  # fmt: skip
PASTS = (
    *sum(PAST_PAIRS, ()),
    "past_key_value",
    "past_key_values",
    "layer_past",
    "past_kv",
    "kv_cache",
    "past",
    "cache",
)
PAST = 2  # tokens of earlier calls
START, END = DECLARED["start"], DECLARED["end"]  # of causal
FAULT = "fault: "  # before words for a meaning that is a defect
OPEN = "open: "  # and for one that is right only if it is meant
NORMS = "q_norm", "k_norm"  # functions or None, as of timm
HOOKS = (  # of xformers, Flax, JAX, Keras, MaxText and MLX
    "op",
    "module",
    "stream",
    "preferred_element_type",
    "flash_attention",
    "use_flash_attention",
    "use_flash",
    "config",
    "cfg",
    "kernel_options",
    "name",
    "seed",
)
LAYOUTS = "layout", "kv_layout", "input_layout", "qkv_layout", "tensor_layout", "data_format", "qkv_format"  # text
SCALED = "bias, scale, softcap, mask"  # the order of steps in which the scale is applied to a bias as well
Right = Callable[..., np.ndarray]  # the result by the law, with a bias or without; or its log-sum-exp
Tried = tuple[list[np.ndarray], Mapping[str, np.ndarray]]  # values that it may take; right results, by their words


def words(fn: Function, ask: Callable[[Form, Probe], Answer], form: Form, sizes: tuple[int, ...], name: str) -> str:
    """Words for the meaning of a parameter, that calls have confirmed; empty if none is known.

    Args:
        fn: the function.
        ask: its answer to a probe, called by a form.
        form: its form, of which the options are left out.
        sizes: B, N, T, S, D, V.
        name: of the parameter.
    """
    if (
        name in HOOKS
        or (name in NORMS and fn.defaults.get(name, ...) is None)
        or name in LONGEST_NAMES
        or name.endswith("_dtype")
        or is_dropout_mask(name)
        or (name in LAYOUTS and isinstance(fn.defaults.get(name), str))
    ):
        return "left as it is, not tested"
    if isinstance(fn.defaults.get(name), bool) and "scale" in options.named(name):
        return _switch(ask, form, sizes, name, value=not fn.defaults[name])
    if name in PASTS:
        return _past(fn, ask, form, sizes, name)
    if name not in ASIDES:
        return ""
    plain = form.keeping(x for x in form.options if not form.options[x].name)
    given = plain.offering(forms.PREFIX + name, Option(name))

    def right(*, lse: bool = False, order: str = forms.BY_LAW["order"], **options: Any) -> np.ndarray:
        asked = plain.but(order=order).offering("bias", Option("bias", "BNTS")) if options else plain
        asked = asked.offering("return_lse", Option("return_lse")) if lse else asked
        probe = Probe(arrays(sizes), options | dict.fromkeys(["return_lse"] * lse, True))
        return Candidate(fn, asked).right(probe)[lse]

    values, rights = ASIDES[name](right, *sizes[:4])
    answers = (ask(given, Probe(arrays(sizes), {forms.PREFIX + name: x})) for x in values)
    found = next(filter(None, answers), None)
    near = (x for x, y in rights.items() if found and distance(found[:1], (y,), some=True) <= TOLERANCE)
    return next(near, "")


def _switch(ask: Callable[[Form, Probe], Answer], form: Form, sizes: tuple[int, ...], name: str, *, value: bool) -> str:
    """Words for a parameter that switches the scale on or off."""
    plain, probe = form.keeping(x for x in form.options if not form.options[x].name), Probe(arrays(sizes), {})
    other = plain.but(scale="1" if form.how["scale"] != "1" else forms.BY_LAW["scale"])
    found = ask(dataclasses.replace(plain, given={**form.given, name: value}), probe)
    right = Candidate(None, other).right(probe)
    same = found and distance(found[:1], right[:1]) <= TOLERANCE
    return f"{value}: the scale is {other.how['scale']}" if same else ""


def _past(fn: Function, ask: Callable[[Form, Probe], Answer], form: Form, sizes: tuple[int, ...], name: str) -> str:
    """Words for keys and values of earlier calls, in two parameters or a pair: they are joined to those of the call."""
    query, key, value = arrays(sizes)
    plain = form.keeping(x for x in form.options if not form.options[x].name)
    names = next((x for x in PAST_PAIRS if name in x), (name,))
    if form.pack or form.of_keys or not {*names} <= {*fn.names}:
        return ""
    for x in names:
        plain = plain.offering(forms.PREFIX + x, Option(x))
    first = PAST * (sizes[2] == sizes[3])  # it may take as many queries as keys alone
    words = f"{'a pair of ' * (len(names) == 1)}keys and values of earlier calls, which come first"
    ways = {words: form}
    if form.how["always"] == START:  # each query sees all of them
        ways = {words: form.but(always=END), f"{FAULT}causal does not count the keys of earlier calls": form}
    whole = Probe((query, key, value), {})
    rights = {said: Candidate(fn, way).right(whole)[0][:, :, first:] for said, way in ways.items()}
    for into in dict.fromkeys((INTO[form.layout], "{x}")):
        past = [eval(into.format(x="x"), {"xp": np, "x": x[:, :, :PAST], "B": sizes[0]}) for x in (key, value)]
        given = dict(zip(names, past if len(names) > 1 else [tuple(past)], strict=True))
        rest = query[:, :, first:], key[:, :, PAST:], value[:, :, PAST:]
        found = ask(plain, Probe(rest, {forms.PREFIX + x: y for x, y in given.items()}))
        near = (said for said, right in rights.items() if found and distance(found[:1], (right,)) <= TOLERANCE)
        if said := next(near, ""):
            return said
    return ""


def _slopes(right: Right, B: int, N: int, T: int, S: int) -> Tried:
    slopes, i, j = (2.0 ** -np.arange(1, N + 1)).astype(np.float32), np.arange(T)[:, None], np.arange(S)
    lines = {"-slope · |i + S - T - j|": -abs(i + S - T - j), "-slope · |i - j|": -abs(i - j), "slope · j": j + 0 * i}
    wrong = {text.removeprefix("-") if text[0] == "-" else f"-{text}": -x for text, x in lines.items()}
    lines = {f"ALiBi, adds {text}": x for text, x in lines.items()}
    lines |= {f"{FAULT}ALiBi has the wrong sign, adds {text}": x for text, x in wrong.items()}
    biases = {text: np.broadcast_to(slopes[:, None, None] * x, (B, N, T, S)) for text, x in lines.items()}
    biases = {text: x.astype(np.float32) for text, x in biases.items()}
    rights = {text: right(bias=x) for text, x in biases.items()}
    rights |= {
        f"{OPEN}{x}, then times the scale, as Falcon does": right(bias=biases[x], order=SCALED)
        for x in biases
        if FAULT not in x
    }
    return [slopes, np.tile(slopes, (B, 1)), slopes[:, None, None]], rights


def _lengths(right: Right, B: int, N: int, T: int, S: int) -> Tried:
    lengths = np.resize([T - 1, T], B).astype(np.int32)
    words = "lengths of queries; what those behind get was not tested"
    return [lengths], {words: _of_queries(right, np.arange(T) < lengths[:, None])}


def _of_queries(right: Right, kept: np.ndarray) -> np.ndarray:
    """The right result of the queries (B, T) that are kept; NaN elsewhere, where any number is right."""
    return np.where(kept[:, None, :, None], right(), np.nan)


def _query_masks(right: Right, B: int, N: int, T: int, S: int) -> Tried:
    kept = np.arange(T) < np.resize([T - 1, T], B)[:, None]
    words = "a mask of queries, True {}; what those that it hides get was not tested"
    return [kept], {words.format("keeps"): _of_queries(right, kept), words.format("drops"): _of_queries(right, ~kept)}


def _factors(right: Right, B: int, N: int, T: int, S: int) -> Tried:
    factors = (np.arange(N) % 2).astype(np.float32)
    shapes = [factors, factors[:, None, None], factors[None, :, None, None]]
    return shapes, {"a factor for each head": right() * factors[:, None, None]}


def _sinks(right: Right, B: int, N: int, T: int, S: int) -> Tried:
    sinks = np.linspace(-1, 1, N, dtype=np.float32)
    shares = 1 / (1 + np.exp(sinks[:, None] - right(lse=True)))
    return [sinks], {"a score of each head, that takes a share of the softmax": right() * shares[..., None]}


ASIDES: dict[str, Callable[..., Tried]] = {
    **dict.fromkeys(("alibi_slopes", "slopes"), _slopes),
    **dict.fromkeys(QUERY_LENGTHS, _lengths),
    **dict.fromkeys(("query_padding_mask", "q_padding_mask", "query_mask", "q_mask"), _query_masks),
    **dict.fromkeys(("head_mask", "layer_head_mask"), _factors),
    "sinks": _sinks,
}
