"""Parameters that no case of `attendax check` asks for, and whose meaning is tried all the same."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..against import forms
from ..against.asking import TOLERANCE, Answer, Probe, Subject, arrays, distance
from ..against.forms import Form, Option
from ..against.remote import Function

ALIBI = "alibi_slopes", "slopes"
QUERY_LENGTHS = "query_seq_lengths", "query_lengths", "q_seq_lengths", "q_lens"
HEAD_MASK = "head_mask", "layer_head_mask"
HOOKS = "op", "module", "promote_dtype", "preferred_element_type"  # of xformers, Flax and JAX
SLOPES: dict[str, Callable[[int, int, np.ndarray, np.ndarray], np.ndarray]] = {  # a bias for each slope
    "-slope · |i + S - T - j|": lambda T, S, i, j: -abs(i + S - T - j),
    "-slope · |i - j|": lambda T, S, i, j: -abs(i - j),
    "slope · j": lambda T, S, i, j: j + 0 * i,
}
Ask = Callable[[Form, Probe], Answer]


def words(fn: Function, ask: Ask, form: Form, sizes: tuple[int, ...], name: str) -> str:
    """Words for the meaning of a parameter, that calls have confirmed; empty if none is known.

    Args:
        fn: the function.
        ask: its answer to a probe, called by a form.
        form: its form, of which the options are left out.
        sizes: B, N, T, S, D, V.
        name: of the parameter.
    """
    plain = form.keeping(x for x in form.options if not form.options[x].name)
    if name in HOOKS:
        return "left as it is, not tested"
    if name in ALIBI:
        return _slopes(fn, ask, plain, sizes, name)
    if name in QUERY_LENGTHS:
        return _lengths(fn, ask, plain, sizes, name)
    return _heads(fn, ask, plain, sizes, name) if name in HEAD_MASK else ""


def _given(form: Form, sizes: tuple[int, ...], name: str, x: np.ndarray) -> tuple[Form, Probe]:
    """The form with a keyword that is given as it is, and a probe with it."""
    key = forms.GIVEN + name
    return form.offering(key, Option(name, "")), Probe(arrays(sizes), {key: x})


def _found(ask: Ask, form: Form, sizes: tuple[int, ...], name: str, values: Iterator[Any]) -> Iterator[Answer]:
    """The answers of the calls that it takes."""
    for x in values:
        if found := ask(*_given(form, sizes, name, x)):
            yield found


def _slopes(fn: Function, ask: Ask, form: Form, sizes: tuple[int, ...], name: str) -> str:
    B, N, T, S = sizes[:4]
    slopes = (2.0 ** -np.arange(1, N + 1)).astype(np.float32)
    shapes = iter((slopes, np.tile(slopes, (B, 1)), slopes[:, None, None]))
    found = next(_found(ask, form, sizes, name, shapes), None)
    if not found:
        return ""
    with_bias, i, j = form.offering("bias", Option("bias", "BNTS")), np.arange(T)[:, None], np.arange(S)
    for text, line in SLOPES.items():
        bias = np.broadcast_to(slopes[:, None, None] * line(T, S, i, j), (B, N, T, S)).astype(np.float32)
        right = Subject(fn, with_bias).right(Probe(arrays(sizes), {"bias": bias}))
        if distance(found[:1], right[:1]) <= TOLERANCE:
            return f"ALiBi, adds {text}"
    return ""


def _lengths(fn: Function, ask: Ask, form: Form, sizes: tuple[int, ...], name: str) -> str:
    B, T = sizes[0], sizes[2]
    lengths = np.resize([T - 1, T], B).astype(np.int32)
    found = next(_found(ask, form, sizes, name, iter((lengths,))), None)
    right = Subject(fn, form).right(Probe(arrays(sizes), {}))
    behind = (np.arange(T) >= lengths[:, None])[:, None, :, None]
    if not found or distance((np.where(behind, 0, found[0]),), (np.where(behind, 0, right[0]),)) > TOLERANCE:
        return ""
    return "lengths of queries; what those behind get was not tested"


def _heads(fn: Function, ask: Ask, form: Form, sizes: tuple[int, ...], name: str) -> str:
    N = sizes[1]
    factors = (np.arange(N) % 2).astype(np.float32)
    found = next(
        _found(ask, form, sizes, name, iter((factors, factors[:, None, None], factors[None, :, None, None]))), None
    )
    right = Subject(fn, form).right(Probe(arrays(sizes), {}))[0] * factors[:, None, None]
    return "a factor for each head" if found and distance(found[:1], (right,)) <= TOLERANCE else ""
