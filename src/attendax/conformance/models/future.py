"""What comes after a position does not matter to it; what comes before does."""

from functools import partial

import numpy as np

from .blackbox import Model
from .influence import Influence, influence, nothing, something
from .law import Law
from .trial import Found, Trial
from .window import hint

PLACES = (0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128)  # and the last two; around the sizes of blocks


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    found = []
    for length in model.lengths((6, 13, 40, 130)):
        how = "one text at a time" if length == 6 else f"{length} tokens"
        if model.causal:
            about = "a change of one token changes nothing before it"
            found.append(Law("future", f"future: {how}", about, partial(_future, length=length)))
        about = "a change of one token changes what comes after it" if model.causal else "every token matters to all"
        found.append(Law("past", f"past: {how}", about, partial(_past, length=length)))
    if model.causal:
        about = "the same where a mask says that all tokens are real"
        length = model.lengths((13,))[-1]
        found.append(Law("future", "future: with a mask", about, partial(_future, length=length, mask=True), ("mask",)))
    return found


def places(length: int) -> np.ndarray:
    """Where tokens are changed: everywhere in a short text."""
    if length <= 13:
        return np.arange(length)
    return np.array(sorted({*(k for k in PLACES if k < length), length - 2, length - 1}))


def _table(trial: Trial, length: int, mask: bool) -> Influence:
    options = trial.model.marked(np.ones((1, length), bool)) if mask else {}
    return influence(trial, length, sources=places(length), options=options, alone=length == 6)


def _future(trial: Trial, length: int, mask: bool = False) -> Found:
    table = _table(trial, length, mask)
    forbidden = ~trial.model.may(table.sources, length) & (table.sources[:, None] > np.arange(length)[None])
    found = nothing(trial, table, forbidden, *_words(table, forbidden, mask))
    return found._replace(usual=found.usual + hint(trial)) if found.finding.verdict.fails and not mask else found


def _words(table: Influence, forbidden: np.ndarray, mask: bool) -> tuple[str, str]:
    """What kind of leak it is, and what usually causes it."""
    leaks = forbidden & (table.moved > table.allowed)
    ahead = (table.sources[:, None] - np.arange(leaks.shape[1])[None, :])[leaks]
    if not ahead.size:
        return "", ""
    if ahead.size == forbidden.sum():
        small = np.median(table.moved[leaks] / np.maximum(table.allowed[leaks], 1e-300)) < 1e4
        if small:
            return (
                "every position is moved a little by all that comes after",
                "a mean or variance over positions (a norm, pooling), or a mask that adds too small a number",
            )
        return (
            f"every position sees all that comes after{', once a mask is given' if mask else ''}",
            "the causal mask is not given, is replaced by the other mask, or is dropped by one way of running"
            if not mask
            else "is_causal is given up once there is another mask; the two have to be combined",
        )
    if (furthest := int(ahead.max())) == int(ahead.min()):
        return (
            f"positions see {furthest} ahead",
            "the triangle begins one diagonal too far (k=1), or `<=` stands where `<` belongs",
        )
    return (
        f"some positions see up to {furthest} ahead",
        "a mask built for blocks or for another length, or inverted, or a layer that looks around itself (convolution, "
        "pooling, sorting)",
    )


def _past(trial: Trial, length: int) -> Found:
    model = trial.model
    table = _table(trial, length, mask=False)
    expected = model.must(table.sources, length)
    usual = "a mask that is inverted, cut off, or aligned to the wrong end; an argument that is not passed on"
    said = "what comes before does not matter" if model.causal else "not every token matters"
    found = something(trial, table, expected, said, usual)
    return found._replace(usual=usual + hint(trial)) if found.finding.verdict.fails else found
