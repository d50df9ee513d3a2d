"""Rows of a batch do not know of each other."""

import numpy as np

from .blackbox import Request
from .trial import Found, Laws, Trial, same

USUAL = "a norm over the batch, a reshape that mixes rows and heads, axes that are swapped, or a softmax over the batch"
laws = Laws("batch")


def _texts(trial: Trial) -> np.ndarray:
    return trial.texts(4, trial.model.lengths((9,))[0])


@laws.ask("batch: a row alone", "a row is the same alone and with others", "batch")
def _alone(trial: Trial) -> Found:
    together = Request(_texts(trial))
    for row in (0, 3):
        places = [((0, t), (row, t)) for t in range(together.tokens.shape[1])]
        found = same(trial, together.row(row), together, "a row depends on the size of its batch", USUAL, places)
        if found.finding.verdict.fails:
            break
    return found


@laws.ask("batch: other neighbours", "a row is the same whatever the others are", "batch")
def _neighbours(trial: Trial) -> Found:
    tokens = _texts(trial)
    changed = trial.others(tokens)
    changed[1] = tokens[1]
    row = np.broadcast_to(np.arange(4)[:, None] == 1, tokens.shape)
    return same(trial, Request(tokens), Request(changed), "a row depends on its neighbours", USUAL, row)


@laws.ask("batch: permuted", "rows in another order give results in that order", "batch")
def _permuted(trial: Trial) -> Found:
    tokens, order = _texts(trial), [2, 0, 3, 1]
    places = [((order[b], t), (b, t)) for b, t in np.ndindex(*tokens.shape)]
    said = "rows in another order give other results"
    return same(trial, Request(tokens), Request(tokens[order]), said, USUAL, places)
