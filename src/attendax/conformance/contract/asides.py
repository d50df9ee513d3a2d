"""Words for parameters that no case of `attendax check` asks for: without effect, or of a meaning that is tried."""

import contextlib
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..against import forms, options
from ..against.asking import TOLERANCE, Answer, Candidate, Probe, arrays, distance
from ..against.caller import Caller
from ..against.forms import Form, Option
from ..against.options import INTO, LONGEST_NAMES, OPTIONS, PAST_PAIRS, QUERY_LENGTHS, is_dropout_mask
from ..against.reading import Reading
from ..against.weights import WEIGHTS, role_of
from ..conventions.table import DECLARED, EQUAL_LENGTHS
from .finer_reading import FinerReading
from .limit import OutOfTime

PASTS = *sum(PAST_PAIRS, ()), *options.PAST_IN_ONE
PAST = 2  # tokens of earlier calls
OF_THE_START, END = (DECLARED["start"], DECLARED["decode"], EQUAL_LENGTHS), DECLARED["end"]  # of causal
FAULT = "fault: "  # before words for a meaning that is a defect
OPEN = "open: "  # and for one that is right only if it is meant
SLOPES = "alibi_slopes", "slopes"
NORMS = "q_norm", "k_norm"  # functions or None, as of timm
ROTATIONS = *options.OPEN_ROTATIONS, "rope", "rotary", "rotary_emb", "freqs", "position_embeddings"  # arrays or None
HOOKS = (  # of xformers, Flax, JAX, Keras, MaxText, MLX and Informer
    "op", "module", "stream", "preferred_element_type", "flash_attention", "use_flash_attention", "use_flash", "config",
    "cfg", "kernel_options", "name", "seed", "tau", "delta", "rope_theta", "rope_base", "out",
)  # fmt: skip
LAYOUTS = "layout", "kv_layout", "input_layout", "qkv_layout", "tensor_layout", "data_format", "qkv_format"  # text
SCALED = "bias, scale, softcap, mask"  # the order of steps in which the scale is applied to a bias as well
Right = Callable[..., np.ndarray]  # the result by the law, with a bias or without; or its log-sum-exp
Tried = tuple[list[Any], Mapping[str, np.ndarray]]  # values that it may take; right results, by their words


def idle(reading: FinerReading, form: Form, name: str) -> str:
    """Words for a parameter that may have other values, by which its first result is the same; else nothing."""
    values, own = _values(reading, name), form.keeping(x for x in form.options if not form.options[x].name)
    if not values or name in OPTIONS["return_lse"].names or name in form.given or beside(reading, form, name):
        return ""
    probe, several, answers = reading.probe({}), reading.several, list[Answer]()
    right, reading.several = reading.right(form, probe), False
    with contextlib.suppress(OutOfTime):
        for x in values:
            other = dataclasses.replace(own, given={**form.given, name: x})
            answer = reading.answer(other, probe)
            if answer and answer[0].shape != right[0].shape:  # perhaps one array where there were several
                answer = reading.answer(dataclasses.replace(other, first=False), probe)
            answers.append(answer)
    always = form.first or "return_lse" in own.options  # gives several
    fewer, more = always and not reading.several, reading.several and not always
    reading.several = several
    if not any(answers) or any(distance(x[:1], right[:1]) > TOLERANCE for x in answers if x):
        return ""
    return "gives more results" if more else "gives its first result alone" if fewer else "changes nothing"


def beside(reading: Reading, form: Form, name: str) -> str:
    """Words for a parameter whose other values change no result except beside an option; else nothing."""
    with contextlib.suppress(OutOfTime):
        for ours in (x for x in form.options if x in OPTIONS and form.options[x].name):
            probe = next((probes[-1] for _, probes in reading.questions(form, ours)), reading.probe({}))
            both = probe, probe._replace(options={})
            before = [reading.answer(form, x)[:1] for x in both]
            for value in _values(reading, name)[-1:]:  # of JAX each is one more program
                other = dataclasses.replace(form, given={**form.given, name: value})
                after = [reading.answer(other, x)[:1] for x in both]
                if all(before) and all(after):
                    with_option, alone = map(distance, after, before)
                    if alone <= TOLERANCE < with_option:
                        return f"it changes results beside {form.options[ours].name}, by no known meaning"
    return ""


def _values(reading: Reading, name: str) -> tuple[Any, ...]:
    """Other values of a parameter whose default is a number, or that is the size of a part by its name."""
    default = reading.fn.defaults.get(name, ...)
    if default is None and re.search("slice|chunk|block|tile", name):
        return 1, 2
    if isinstance(default, bool):
        return (not default,)
    if isinstance(default, int):
        return (2, 3, 2 * default) if default > 1 else (1 - default, 2)
    if isinstance(default, float):
        return (0.5, 1.0) if -1 <= default <= 0 else (2 * default, default / 2)  # -1 is off, as 0 is
    return ()


def words(reading: FinerReading, form: Form, name: str) -> str:
    """Words for a parameter that no case asks for, or that it refuses by name whatever its value is; else nothing."""
    number = bool({"scale", "softcap", "window", "offset", "is_causal", "return_lse"} & {*options.named(name)})
    if number and name in reading.refusals and name not in reading.taken:
        return f"refused, {reading.refusals[name]!r}"
    with contextlib.suppress(OutOfTime):
        if _is_cap(reading, form, name):
            return "the cap of scores"
        known = name in ASIDES or name not in reading.fn.names
        twice = () if known else {"mask", "bias"} & form.options.keys() & {*options.named(name)}
        by_kind = (reading.beside_another(form, name, x) for x in sorted(twice, reverse=True))  # a mask may be numbers
        return next(filter(None, by_kind), "") if twice else _meaning(reading, form, name)
    return ""


def _is_cap(reading: Reading, form: Form, name: str) -> bool:
    """Tell whether a parameter is the number by which all scores are capped."""
    cap = reading.fn.defaults.get(name)
    if not isinstance(cap, int | float) or f"{cap:.4g}" != form.how["cap"]:
        return False
    twice = dataclasses.replace(form.but(cap=f"{2 * cap:.4g}"), given={**form.given, name: 2 * cap})
    return reading.settled([twice], [reading.probe({})]) is not None


def _meaning(caller: Caller, form: Form, name: str) -> str:
    """Words for the meaning of a parameter, that calls have confirmed; empty if none is known."""
    fn, sizes = caller.fn, caller.sizes
    default = fn.defaults.get(name, ...)
    left = name in (*HOOKS, *LONGEST_NAMES) or name.endswith("_dtype") or is_dropout_mask(name)
    if left or (name in (*NORMS, *ROTATIONS) and default is None) or (name in LAYOUTS and isinstance(default, str)):
        return "left as it is, not tested"
    if isinstance(default, bool) and (words := _switch(caller, form, name, value=not default)):
        return words
    if name in PASTS:
        return _past(caller, form, name)
    if "offset" in options.named(name) and name not in ASIDES:
        return _only_start(caller, form, name)
    if "(ND)" in form.layout and form.layout in WEIGHTS and role_of(name)[1] == "b":
        return _bias_of_projection(caller, form, name)
    if name not in ASIDES:
        return ""
    plain = form.keeping(x for x in form.options if not form.options[x].name)
    switch = form.options.get("is_causal")
    if name in options.OPEN_POSITIONS and switch and not form.how["always"]:  # which show in causal alone
        plain = dataclasses.replace(plain.but(always=form.how["causal"]), given={**form.given, switch.name: True})
    given = plain.offering(forms.PREFIX + name, Option(name))

    def right(*, lse: bool = False, order: str = forms.BY_LAW["order"], **options: Any) -> np.ndarray:
        asked = plain.but(order=order).offering("bias", Option("bias", "BNTS")) if options else plain
        asked = asked.but(alibi=forms.BY_LAW["alibi"]) if name in SLOPES else asked  # which are given
        asked = asked.offering("return_lse", Option("return_lse")) if lse else asked
        probe = Probe(arrays(sizes), options | dict.fromkeys(["return_lse"] * lse, True))
        return Candidate(fn, asked).right(probe)[lse]

    values, rights = ASIDES[name](right, *sizes[:4])
    answers = (caller.answer(given, Probe(arrays(sizes), {forms.PREFIX + name: x})) for x in values)
    pairs = itertools.product(filter(None, answers), rights.items())
    return next((x for found, (x, y) in pairs if distance(found[:1], (y,), some=True) <= TOLERANCE), "")


def _switch(caller: Caller, form: Form, name: str, *, value: bool) -> str:
    """Words for a parameter that switches the scale on or off, or what a function does without being asked."""
    plain, probe = form.keeping(x for x in form.options if not form.options[x].name), caller.probe({})
    found = caller.answer(dataclasses.replace(plain, given={**form.given, name: value}), probe)
    scale = "1" if form.how["scale"] != "1" else forms.BY_LAW["scale"]
    ways = {f"the scale is {scale}": plain.but(scale=scale)} if "scale" in options.named(name) else {}
    ways |= {"1 is added to the sum of the softmax, as by a key of zeros": plain.but(weights="softmax, 1 added")}
    ways |= {"it is not causal": plain.but(always="")} if form.how["always"] else {}
    ways |= {"no ALiBi": plain.but(alibi=forms.BY_LAW["alibi"])} if form.how["alibi"] != forms.BY_LAW["alibi"] else {}
    rights = {words: Candidate(None, way).right(probe) for words, way in ways.items()}
    same = (words for words, x in rights.items() if found and distance(found[:1], x[:1]) <= TOLERANCE)
    return next((f"{value}: {words}" for words in same), "")


def _only_start(caller: Caller, form: Form, name: str) -> str:
    """Words for the position of the first query, if it raises unless that is the number of earlier tokens."""
    plain, probe = form.keeping(x for x in form.options if not form.options[x].name), caller.probe({})
    positions = (caller.sizes[3] - caller.sizes[2] + x for x in range(3))
    starts = (dataclasses.replace(plain, given={**form.given, name: x}) for x in positions)
    first, *others = (caller.answer(start, probe) for start in starts)
    same = first and distance(first[:1], Candidate(None, plain).right(probe)[:1]) <= TOLERANCE
    return "the number of earlier tokens, S - T: others raise" if same and not any(others) else ""


def _bias_of_projection(caller: Caller, form: Form, name: str) -> str:
    """Words for a vector that is added to the queries, keys or values that weights make, or to the result."""
    (_, N, _, _, D, V), (role, _), inputs = caller.sizes, role_of(name), list(arrays(caller.sizes))
    own = {x: np.linspace(-1, 1, N * width, dtype=np.float32) for x, width in zip("qkvo", (D, D, V, V), strict=True)}
    for k in (k for k, x in enumerate("qkv") if x in role):
        inputs[k] = inputs[k] + own["qkv"[k]].reshape(N, 1, -1)
    plain = form.keeping(x for x in form.options if not form.options[x].name)
    right = Candidate(None, plain).right(Probe(tuple(inputs), {}))[0]
    right = right + own["o"].reshape(N, 1, V) if role == "o" else right
    given = caller.probe({forms.PREFIX + name: np.concatenate([own[x] for x in role])})
    answer = caller.answer(plain.offering(forms.PREFIX + name, Option(name)), given)
    return "the bias of a projection" if answer and distance(answer[:1], (right,)) <= TOLERANCE else ""


def _past(caller: Caller, form: Form, name: str) -> str:
    """Words for keys and values of earlier calls, in two parameters or a pair: they are joined to those of the call."""
    fn, sizes = caller.fn, caller.sizes
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
    if form.how["always"] in OF_THE_START:  # each query sees all of them
        ways = {words: form.but(always=END), f"{FAULT}causal does not count the keys of earlier calls": form}
    whole = Probe((query, key, value), {})
    rights = {said: Candidate(fn, way).right(whole)[0][:, :, first:] for said, way in ways.items()}
    for into in dict.fromkeys((INTO[form.layout], "{x}")):
        past = [eval(into.format(x="x"), {"xp": np, "x": x[:, :, :PAST], "B": sizes[0]}) for x in (key, value)]
        given = dict(zip(names, past if len(names) > 1 else [tuple(past)], strict=True))
        rest = query[:, :, first:], key[:, :, PAST:], value[:, :, PAST:]
        found = caller.answer(plain, Probe(rest, {forms.PREFIX + x: y for x, y in given.items()}))
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
    for x in (x for x in biases if FAULT not in x):
        rights[f"{OPEN}{x}, then times the scale, as Falcon does"] = right(bias=biases[x], order=SCALED)
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
    words = "a score of each head, that takes a share of the softmax"
    return [sinks, np.tile(sinks, (B, 1))], {words: right() * shares[..., None]}


def _gates(right: Right, B: int, N: int, T: int, S: int) -> Tried:
    out = right()
    logits = np.linspace(-2, 2, out.size, dtype=np.float32).reshape(out.shape)
    shapes = [logits, logits.swapaxes(1, 2), logits.swapaxes(1, 2).reshape(B, T, -1)]
    gated = out / (1 + np.exp(-logits))
    return shapes, {"logits of gates: the result is multiplied by their sigmoid": gated, "gates": out * logits}


def _scores(right: Right, B: int, N: int, T: int, S: int) -> np.ndarray:
    """The scores (B, N, T, S): each is the log-sum-exp of its key alone."""
    alone = np.where(np.eye(S, dtype=bool), 0, -np.inf).astype(np.float32)
    return np.stack([right(lse=True, bias=np.broadcast_to(x, (B, N, T, S)).copy()) for x in alone], axis=-1)


def _top_k(right: Right, B: int, N: int, T: int, S: int) -> Tried:
    scores = _scores(right, B, N, T, S)
    rest = np.where(scores >= np.sort(scores, axis=-1)[..., -2, None], 0, -np.inf).astype(np.float32)
    return [2], {"the number of largest scores that each query keeps": right(bias=rest)}


def _layers(right: Right, B: int, N: int, T: int, S: int) -> Tried:
    scores = _scores(right, B, N, T, S)
    less = np.where(np.isfinite(scores), -2 / 3 * scores, 0).astype(np.float32)
    return [2], {"the index of a layer: scores are divided by it plus 1": right(bias=less)}


def _under_the_sigmoid(right: Right, B: int, N: int, T: int, S: int) -> Tried:
    added = np.full((B, N, T, S), math.log(S) - 1, np.float32)
    return [-1.0], {"a number that is added to the scores in place of -log S": right(bias=added)}


def _positions(right: Right, B: int, N: int, T: int, S: int, *, of_queries: bool) -> Tried:
    """Positions by which each query sees fewer keys: of keys, all but the first come after the queries."""
    moved = np.maximum(np.arange(T) - 1, 0) if of_queries else np.where(np.arange(S), np.arange(S) + T + S, 0)
    seen = np.arange(S) <= moved[:, None] if of_queries else np.tile(np.arange(S) == 0, (T, 1))
    bias = np.broadcast_to(np.where(seen, 0, -np.inf).astype(np.float32), (B, N, T, S))
    moved = moved.astype(np.int32)
    return [moved, np.tile(moved, (B, 1))], {f"positions of {'queries' if of_queries else 'keys'}": right(bias=bias)}


def _filled(right: Right, B: int, N: int, T: int, S: int) -> Tried:
    lengths = np.resize([S - 1, S], B).astype(np.int32)
    seen = np.arange(S) <= lengths[:, None, None] - T + np.arange(T)[:, None]
    bias = np.where(np.broadcast_to(seen[:, None], (B, N, T, S)), 0, -np.inf).astype(np.float32)
    return [lengths], {"the number of keys in a cache, those of the queries among them": right(bias=bias)}


ASIDES: dict[str, Callable[..., Tried]] = {
    **dict.fromkeys(SLOPES, _slopes),
    **dict.fromkeys(QUERY_LENGTHS, _lengths),
    **dict.fromkeys(("query_padding_mask", "q_padding_mask", "query_mask", "q_mask"), _query_masks),
    **dict.fromkeys(("head_mask", "layer_head_mask"), _factors),
    **dict.fromkeys(("sinks", "S"), _sinks),
    **dict.fromkeys(("topk", "top_k", "k_top"), _top_k),
    **dict.fromkeys(("layer_idx", "layer_number"), _layers),
    "sigmoid_bias": _under_the_sigmoid,
    "cache_len": _filled,
    **dict.fromkeys(("gate", "gates", "gating", "gate_logits"), _gates),
    **{x: functools.partial(_positions, of_queries=x in options.OF_QUERIES) for x in options.OPEN_POSITIONS},
}
