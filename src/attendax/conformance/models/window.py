"""What a window leaves out does not matter, and all that is in it does."""

import numpy as np

from .blackbox import Model
from .influence import influence, nothing, seen, something
from .law import Law
from .trial import Found, Trial

LONGEST = 300  # tokens that are tried


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    reach = model.reach
    within = f"{reach} back" if reach is not None else "the window"
    return [
        Law("window", "window: beyond", f"what is further than {within} does not matter", _beyond, ("window",)),
        Law("window", "window: within", f"what is {within} does matter", _within, ("window",)),
    ]


def _sizes(model: Model) -> tuple[int, int]:
    """How far the window reaches, and a text that is longer.

    Raises:
        NotImplementedError: there is none.
    """
    reach = model.reach or 0
    length = min(reach + 6, model.longest or LONGEST, LONGEST)
    if length <= reach + 1:
        raise NotImplementedError(f"the window reaches {reach} back in {model.layers} layers, beyond {length} tokens")
    return reach, length


def _beyond(trial: Trial) -> Found:
    model = trial.model
    reach, length = _sizes(model)
    sources = np.unique([0, 1, 2, length // 2, length - 1])
    table = influence(trial, length, sources=sources)
    order = seen(model.causal, None, sources, length)
    forbidden = order & ~seen(model.causal, reach, sources, length)
    leaks = forbidden & (table.moved > table.allowed)
    steps = np.abs(sources[:, None] - np.arange(length)[None])[leaks]
    further = int(steps.max()) - reach if steps.size else 0
    usual = (
        "the window counts one too many (`<=` where `<` belongs, or w beside the token itself)"
        if 0 < further <= model.layers
        else "the window is not passed on, or is dropped beside another mask"
    )
    return nothing(trial, table, forbidden, f"a window of {model.window} sees up to {further} further", usual)


def _within(trial: Trial) -> Found:
    model = trial.model
    reach, length = _sizes(model)
    sources = np.unique([0, 1, 2, length // 2])
    table = influence(trial, length, sources=sources)
    expected = seen(model.causal, reach, sources, length)
    usual = "the window counts one too few, or its layers are fewer than said"
    return something(trial, table, expected, f"a window of {model.window} does not see all of it", usual)
