"""Rows of a batch do not know of each other."""

import numpy as np

from .blackbox import Model
from .equality import same
from .law import Law
from .request import Request
from .trial import Found, Trial

USUAL = "a norm over the batch, a reshape that mixes rows and heads, axes that are swapped, or a softmax over the batch"


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    return [
        Law("batch", "batch: a row alone", "a row is the same alone and with others", _alone, ("batch",)),
        Law("batch", "batch: other neighbours", "a row is the same whatever the others are", _neighbours, ("batch",)),
        Law("batch", "batch: permuted", "rows in another order give results in that order", _permuted, ("batch",)),
    ]


def _length(trial: Trial) -> int:
    return trial.model.lengths((9,))[0]


def _alone(trial: Trial) -> Found:
    length = _length(trial)
    tokens = trial.texts(4, length)
    together = Request(tokens)
    for row in (0, 3):
        places = [((0, t), (row, t)) for t in range(length)]
        found = same(trial, together.row(row), together, places, "a row depends on the size of its batch", USUAL)
        if found.finding.verdict.fails:
            break
    return found


def _neighbours(trial: Trial) -> Found:
    length = _length(trial)
    tokens = trial.texts(4, length)
    changed = trial.others(tokens)
    changed[1] = tokens[1]
    places = [((1, t), (1, t)) for t in range(length)]
    return same(trial, Request(tokens), Request(changed), places, "a row depends on its neighbours", USUAL)


def _permuted(trial: Trial) -> Found:
    length = _length(trial)
    tokens = trial.texts(4, length)
    order = np.array([2, 0, 3, 1])
    places = [((int(order[b]), t), (b, t)) for b in range(4) for t in range(length)]
    said = "rows in another order give other results"
    return same(trial, Request(tokens), Request(tokens[order]), places, said, USUAL)
