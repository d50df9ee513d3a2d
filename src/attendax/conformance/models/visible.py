"""A position sees nothing after it and all before it, or as much of either as a window, a prefix or blocks leave."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ..judge.verdicts import Verdict
from ..worker.errors import Failed
from .blackbox import Model
from .influence import Influence, influence, nothing, something
from .sees import fitting, told
from .trial import Found, Laws, Trial

PLACES = (0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128)  # and the last two; around the sizes of blocks
LONGEST = 300  # tokens that are tried
MEASURED = 40  # tokens in which one measures what a model sees
TEXTS = 3  # times as many texts, in which a token that matters does
LITTLE = "a mean or variance over positions (a norm, pooling), or a mask that adds too small a number"
DROPPED = "the causal mask is not given, is replaced by the other mask, or is dropped by one way of running"
GIVEN_UP = "is_causal is given up once there is another mask; the two have to be combined"
DIAGONAL = "the triangle begins one diagonal too far (k=1), or `<=` stands where `<` belongs"
AROUND = (
    "a mask built for blocks or for another length, or inverted, or a layer that looks around itself (convolution, "
    "pooling, sorting)"
)
laws = Laws("future")


def _lengths(causal: bool) -> Callable[[Model], dict[str, Any]]:
    """Lengths of the texts for models in which a position sees nothing after it, or for the others."""

    def of(model: Model) -> dict[str, Any]:
        named = {"one text at a time" if n == 6 else f"{n} tokens": n for n in model.lengths((6, 13, 40, 130))}
        return {how: {"length": n} for how, n in named.items() if causal == model.causal}

    return of


def _table(trial: Trial, length: int, mask: bool) -> Influence:
    """Change every token of a short text, and some of a long one."""
    options = trial.model.marked(np.ones((1, length), bool)) if mask else {}
    places = range(length) if length <= 13 else {*(k for k in PLACES if k < length), length - 2, length - 1}
    return influence(trial, length, sources=np.array(sorted(places)), options=options, alone=length == 6)


@laws.ask(
    "future: with a mask", "the same where a mask says that all tokens are real", "mask",
    of=lambda model: {"": {"length": model.lengths((13,))[-1], "mask": True}} if model.causal else {},
)  # fmt: skip
@laws.ask("future: {}", "a change of one token changes nothing before it", of=_lengths(True))
def _future(trial: Trial, length: int, mask: bool = False) -> Found:
    table = _table(trial, length, mask)
    forbidden = ~trial.model.may(table.sources, length) & (table.sources[:, None] > np.arange(length)[None])
    found = nothing(trial, table, forbidden, *_words(table, forbidden, mask))
    return found if mask else _hinted(trial, found)


def _words(table: Influence, forbidden: np.ndarray, mask: bool) -> tuple[str, str]:
    """The kind of a leak, and its usual cause."""
    leaks = forbidden & (table.moved > table.allowed)
    ahead = (table.sources[:, None] - np.arange(leaks.shape[1])[None, :])[leaks]
    if not ahead.size:
        return "", ""
    if ahead.size == forbidden.sum():
        if np.median(table.moved[leaks] / np.maximum(table.allowed[leaks], 1e-300)) < 1e4:
            return "every position is moved a little by all that comes after", LITTLE
        if mask:
            return "every position sees all that comes after, once a mask is given", GIVEN_UP
        return "every position sees all that comes after", DROPPED
    if (furthest := int(ahead.max())) == int(ahead.min()):
        return f"positions see {furthest} ahead", DIAGONAL
    return f"some positions see up to {furthest} ahead", AROUND


@laws.ask("past: {}", "every token matters to all", of=_lengths(False), law="past")
@laws.ask("past: {}", "a change of one token changes what comes after it", of=_lengths(True), law="past")
def _past(trial: Trial, length: int) -> Found:
    model = trial.model
    table = _table(trial, length, mask=False)
    expected = model.must(table.sources, length)
    usual = "a mask that is inverted, cut off, or aligned to the wrong end; an argument that is not passed on"
    said = "what comes before does not matter" if model.causal else "not every token matters"
    return _hinted(trial, something(trial, table, expected, said, usual))


def _edges(trial: Trial) -> Influence:
    """Change the first and last tokens of a text in which not all is seen, and those around the end of a part."""
    model, extent = trial.model, trial.model.visible.extent()
    wanted = (model.layers if "window" in model.sees else 2) * extent + extent * ("+" in model.sees) + 6
    length = min(wanted, model.longest or LONGEST, LONGEST)
    near = (0, 1, 2, extent - 1, extent, length // 2, length - 1)
    return influence(trial, length, sources=np.unique([k for k in near if 0 <= k < length]))


@laws.ask("window: beyond", "what {model.sees} leaves out does not matter", "window", law="window")
def _beyond(trial: Trial) -> Found:
    model, table = trial.model, _edges(trial)
    sources, length = table.sources, table.moved.shape[1]
    order = sources[:, None] <= np.arange(length)[None] if model.causal else True  # the rest is the future's
    forbidden = order & ~model.may(sources, length)
    if not forbidden.any():
        raise NotImplementedError(f"{model.sees} leaves nothing out in {length} tokens and layers: {model.layers}")
    leaks = forbidden & (table.moved > table.allowed)
    steps = np.abs(sources[:, None] - np.arange(length)[None])
    inside = steps[model.may(sources, length)].max()
    further = int(steps[leaks].max() - inside) if leaks.any() else 0
    usual = (
        "the window counts one too many (`<=` where `<` belongs, or w beside the token itself)"
        if 0 < further <= model.layers
        else "the window is not passed on, or is dropped beside another mask"
    )
    said = f"{model.sees} leaves tokens out that matter" + f", up to {further} further" * (further > 0)
    return _hinted(trial, nothing(trial, table, forbidden, said, usual))


@laws.ask("window: within", "all of {model.sees} does matter", "window", law="window")
def _within(trial: Trial) -> Found:
    model, table = trial.model, _edges(trial)
    expected = model.may(table.sources, table.moved.shape[1])
    usual = "the window counts one too few, or its layers are fewer than said"
    return _hinted(trial, something(trial, table, expected, f"not all of {model.sees} matters", usual))


def measured(trial: Trial, chunks: tuple[int, ...] = (), length: int = MEASURED) -> np.ndarray:
    """Pairs of a token and a position that it moves in any of some texts: (S, T)."""
    length = trial.model.lengths((length,))[-1]
    table = influence(trial, length, chunks=chunks)
    seen = table.moved > table.allowed
    for salt in range(1, TEXTS):
        other = table.again(salt=salt)
        seen = seen | (other.moved > other.allowed)
    return seen


def fit(trial: Trial) -> str:
    """The declaration under which a model sees what it does see; empty where none that is known fits."""
    if trial.fit is None:
        layers, causal, trial.fit = trial.model.layers, trial.model.causal, ""
        with contextlib.suppress(Failed, NotImplementedError):  # at that length
            seen = measured(trial)
            trial.fit = fitting(seen, layers, causal) or ("" if causal else fitting(seen, layers, True))
    return trial.fit


def _hinted(trial: Trial, found: Found) -> Found:
    """A fault with the declaration that the model would keep, where there is one."""
    words = fit(trial) if found.finding.verdict in (Verdict.LEAK, Verdict.SILENT) else ""
    if words in ("", trial.model.sees):
        return found
    said = f"; it sees {told(words, trial.model.causal)}: --sees {words}, if that is meant"
    return found._replace(usual=found.usual + said)
