"""Calls of large and of low scores, and of narrow arrays, and how a function takes them."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .asking import Candidate, Probe, arrays, distance, narrowed
from .caller import Caller
from .forms import LARGE_VALUES, SOFTMAX, UNKNOWN, Form, clips, text_of
from .options import MASKED, drawn

FAR_SCORE, LOW_SCORE, CLIPPED_SCORE = 800.0, -200.0, 3000.0  # scores; the exponential of 800 overflows in float64
FLAGS = "is_causal", "return_lse"
BOUND_STEP, VISIBLE_GAP = 50.0, 60.0  # between bounds that are tried; how far below others a score is seen in float32
GARBAGE = 0.3  # a share of the largest number that no rounding moves


def near(sizes: tuple[int, ...], *around: float, options: Mapping[str, Any] | None = None) -> Probe:
    """Arrays whose scores lie within about 3 of some number; of several numbers, the queries have them in turn.

    Products of queries and keys are whole numbers, which float32 holds.
    """
    query, key, value = arrays(sizes, seed=1)
    rng, D = np.random.default_rng(sizes), sizes[4]
    query[:], key[:] = rng.integers(-1, 2, query.shape), rng.integers(-1, 2, key.shape)
    key[..., 0] = round(around[0] * D**0.5 / 8)
    query[..., 0] = 8
    for k, x in enumerate(around):
        query[..., k :: len(around), 0] = 8 * np.sign(x) * np.sign(around[0])
    return Probe((query, key, value), options or {}, around)


def beside(ours: str, kind: str, sizes: tuple[int, ...]) -> Any:
    """A value of an option by which many keys side by side are hidden; each query sees some."""
    B, _, T, S = sizes[:4]
    if ours == "mask":
        mask = (np.arange(S) <= S // 2)[None] if kind.startswith("BS") else np.tri(T, S, dtype=bool)
        return mask[None, None]
    return np.full(B, S // 2, np.int32) if ours == "key_lengths" else drawn(ours, kind, sizes)


def cases(form: Form, long: tuple[int, ...], longer: tuple[int, ...]) -> Iterator[Probe]:
    """Calls of long texts: all scores low, alone and beside each option by which keys are hidden; and large ones."""
    heard = (x for x, option in form.options.items() if option.name and x in (*MASKED, "return_lse"))
    some: list[dict[str, Any]] = [{}]
    some += [{x: True if x in FLAGS else form.options[x].form} for x in heard]
    for sizes, at in ((long, -FAR_SCORE), (longer, LOW_SCORE)):
        for asked in some if sizes else ():
            options = {x: kind if isinstance(kind, bool) else beside(x, kind, sizes) for x, kind in asked.items()}
            yield near(sizes, at, options=options)
    yield near(long, FAR_SCORE, -FAR_SCORE)


def small(probes: Iterable[Probe]) -> Iterator[Probe]:
    """Small inputs with large queries."""
    for probe in probes:
        for times in (8, 64, 512):
            yield probe._replace(arrays=(times * probe.arrays[0], *probe.arrays[1:]))


def taken(caller: Caller, form: Form) -> Form:
    """The form with what the function does with large scores, if that is known."""
    probes = [near(caller.sizes, *x) for x in ((FAR_SCORE, -FAR_SCORE), (-FAR_SCORE,), (FAR_SCORE,))]
    if found := caller.settled((form.but(large=x) for x in LARGE_VALUES), probes):
        return found
    low, high = (_bound(caller, form, sign) for sign in (-1, 1))
    clipped = [form.but(large=clips(low, high))] * (low > -math.inf or high < math.inf)
    return caller.settled(clipped, probes) or form


def narrow(caller: Caller, form: Form) -> Form:
    """The form with the dtypes in which it computes and answers, by calls in bfloat16."""
    form = form.but(softmax=UNKNOWN, out=UNKNOWN)
    probes = [narrowed(caller.sizes, seed, times=8) for seed in range(3)]
    answers = [caller.answer(dataclasses.replace(form, options={}), probe) for probe in probes]
    if not all(answers):
        return form
    pairs = list(zip(answers, probes, strict=True))
    ways = {way: Candidate(caller.fn, form.but(softmax=way)) for way in SOFTMAX}
    apart = {way: max(distance(x, by.right(probe)) for x, probe in pairs) for way, by in ways.items()}
    nearest = min(SOFTMAX, key=lambda way: apart[way])
    if apart[nearest] > GARBAGE:
        caller.unknown["bfloat16 arrays"] = "of large numbers they give no attention by any known rounding"
        return form
    clear = nearest == SOFTMAX[0] or 2 * apart[nearest] < apart[SOFTMAX[0]]
    out = str(answers[0][0].dtype)
    return form.but(out="of the query" if out == "bfloat16" else out, softmax=nearest if clear else UNKNOWN)


def _bound(caller: Caller, form: Form, sign: int) -> float:
    """The number to which scores beyond it are clipped, by the share of all keys but the first; else inf."""
    B, N, T, S, D, V = caller.sizes
    scale = eval(text_of("scale", form.how["scale"]), dict(np=np, B=B, N=N, T=T, S=S, D=D, V=V))

    def ratio(first: float, others: float) -> float | None:
        query, key, value = (0 * x for x in arrays(caller.sizes))
        query[..., 0], key[..., 0], key[..., 0, 0] = 1, others / scale, first / scale
        value[..., 1:, :] = 1
        found = caller.answer(form, Probe((query, key, value), {}))
        share = float(found[0][0, 0, -1, 0]) if found and found[0].shape == (B, N, T, V) else 0
        return math.log(share / (1 - share)) if 0 < share < 1 else None

    alike = ratio(0, 0)
    for at in np.arange(0, FAR_SCORE + BOUND_STEP, BOUND_STEP) * (alike is not None):
        apart = ratio(CLIPPED_SCORE, at) if sign > 0 else ratio(-at, -CLIPPED_SCORE)
        if alike is not None and apart is not None and apart - alike > -VISIBLE_GAP:
            return float(sign * (at - (apart - alike)))
    return sign * math.inf
