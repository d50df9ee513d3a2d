"""Every way of running a model gives the same numbers."""

from functools import partial

import numpy as np

from ..cases.case import GRADIENT
from .blackbox import Model
from .causes import AGAIN
from .equality import SLACK, Places, same
from .law import Law
from .padding import padded_request
from .request import Request
from .trial import Found, Trial

USUAL = "one of the two drops a mask or an option, or runs another formula"

TRAINED = ("training mode", "gradient checkpointing of layers")  # without dropout, as far as its rates are found


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    found = [Law("ways", AGAIN, "the same call twice", _again)]
    for way, asked in model.ways.items():
        about = f"{way} as the plain way"
        padded = f"{about}, beside padding"
        if "results" in asked:
            found.append(Law("ways", f"ways: {way}", about, partial(_way, way=way)))
            found.append(Law("ways", f"ways: {way}, padded", padded, partial(_padded, way=way), ("right padding",)))
        if "gradient" in asked:
            pulled = partial(_way, way=way, gradient=True)
            found.append(Law("ways", f"ways: {way}, gradient", about, pulled, ("gradient",), GRADIENT))
            pulled = partial(_padded, way=way, gradient=True)
            needs = ("gradient", "right padding")
            found.append(Law("ways", f"ways: {way}, gradient, padded", padded, pulled, needs, GRADIENT))
    return found


def _again(trial: Trial) -> Found:
    tokens = trial.texts(2, trial.model.lengths((17,))[-1])
    one = Request(tokens)
    again = one._replace(room=1)  # room asks nothing of a call without a cache
    places = [((b, t), (b, t)) for b, t in np.ndindex(*tokens.shape)]
    usual = "dropout that is on, or a state that a call changes"
    return same(trial, one, again, places, "the same call again gives other results", usual)


def _way(trial: Trial, way: str, gradient: bool = False) -> Found:
    tokens = trial.texts(2, trial.model.lengths((17,))[-1])
    weights = np.ones(tokens.shape, np.float32) if gradient else None
    one = Request(tokens, weights=weights)
    places = [((b, t), (b, t)) for b, t in np.ndindex(*tokens.shape)]
    return _judged(trial, one, way, places, f"{way} gives {'another gradient' if gradient else 'other results'}")


def _padded(trial: Trial, way: str, gradient: bool = False) -> Found:
    request, mask = padded_request(trial, "right", (9, 5, 1, 7))
    request = request._replace(weights=mask.astype(np.float32)) if gradient else request
    places = [((int(b), int(t)), (int(b), int(t))) for b, t in np.argwhere(mask)]
    said = f"{way} gives {'another gradient' if gradient else 'other results'} beside padding"
    return _judged(trial, request, way, places, said)


def _judged(trial: Trial, request: Request, way: str, places: Places, said: str) -> Found:
    other = request._replace(way=way)
    found = same(trial, request, other, places, said, USUAL, slack=SLACK)
    if found.finding.verdict.fails and way in TRAINED:
        again = same(trial, other, other._replace(room=1), places, said, USUAL, slack=SLACK)
        if again.finding.verdict.fails:
            raise NotImplementedError("in training it still draws: its rate of dropout was not found")
    return found
