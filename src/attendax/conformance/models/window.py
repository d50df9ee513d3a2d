"""What a window leaves out does not matter, and all that is in it does; also of first tokens, prefixes and blocks."""

import contextlib

import numpy as np

from ..worker.errors import Failed
from .blackbox import Model
from .influence import influence, nothing, something
from .law import Law
from .sees import fitting, told
from .trial import Found, Trial

LONGEST = 300  # tokens that are tried
MEASURED = 40  # tokens in which one measures what a model sees
TEXTS = 3  # times as many texts, in which a token that matters does


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    return [
        Law("window", "window: beyond", f"what {model.sees} leaves out does not matter", _beyond, ("window",)),
        Law("window", "window: within", f"all of {model.sees} does matter", _within, ("window",)),
    ]


def _length(model: Model) -> int:
    """Of a text in which not all is seen.

    Raises:
        NotImplementedError: there is none.
    """
    extent = model.visible.extent()
    wanted = (model.layers if "window" in model.sees else 2) * extent + extent * ("+" in model.sees) + 6
    return min(wanted, model.longest or LONGEST, LONGEST)


def _sources(model: Model, length: int) -> np.ndarray:
    """The first, the last, and those around where something ends."""
    extent = model.visible.extent()
    near = [0, 1, 2, extent - 1, extent, length // 2, length - 1]
    return np.unique([k for k in near if 0 <= k < length])


def _beyond(trial: Trial) -> Found:
    model = trial.model
    length = _length(model)
    sources = _sources(model, length)
    order = sources[:, None] <= np.arange(length)[None] if model.causal else True  # the rest is the future's
    forbidden = order & ~model.may(sources, length)
    if not forbidden.any():
        raise NotImplementedError(f"{model.sees} leaves nothing out in {length} tokens and layers: {model.layers}")
    table = influence(trial, length, sources=sources)
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
    return nothing(trial, table, forbidden, said, usual + hint(trial) if leaks.any() else "")


def _within(trial: Trial) -> Found:
    model = trial.model
    length = _length(model)
    sources = _sources(model, length)
    table = influence(trial, length, sources=sources)
    usual = "the window counts one too few, or its layers are fewer than said"
    found = something(trial, table, model.may(sources, length), f"not all of {model.sees} matters", usual)
    return found._replace(usual=usual + hint(trial)) if found.finding.verdict.fails else found


def measured(trial: Trial, chunks: tuple[int, ...] = (), length: int = MEASURED) -> np.ndarray:
    """Which token each position does see, (S, T): those that move it in any of some texts."""
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


def hint(trial: Trial) -> str:
    """What the model sees instead, where that can be declared."""
    words = fit(trial)
    return (
        f"; it sees {told(words, trial.model.causal)}: --sees {words}, if that is meant"
        if words not in ("", trial.model.sees)
        else ""
    )
