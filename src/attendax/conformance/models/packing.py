"""Texts that are packed into one row do not know of each other."""

import numpy as np

from .blackbox import Model
from .equality import same
from .influence import influence, nothing
from .law import Law
from .request import Request
from .trial import FINE, Found, Trial

COUNTS = (5, 3, 4)  # tokens of the texts in one row
STARTS = (0, 5, 8)
USUAL = "segment ids are not passed on to every layer, or only compared with padding"


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    about = "a change in one text changes nothing in another"
    alone = "each text in a row equals itself alone"
    return [
        Law("packing", "packing: other texts", about, _others, ("segment_ids",)),
        Law("packing", "packing: alone", alone, _alone, ("segment_ids", "places of tokens")),
    ]


def _options(trial: Trial) -> dict[str, np.ndarray]:
    ids = np.repeat(np.arange(1, 4), COUNTS)[None].astype(np.int32)
    found = {"segment_ids": ids}
    if "positions" in trial.model.accepts:
        found["positions"] = np.concatenate([np.arange(n) for n in COUNTS])[None].astype(np.int32)
    return found


def _others(trial: Trial) -> Found:
    options = _options(trial)
    table = influence(trial, sum(COUNTS), options=options)
    ids = options["segment_ids"][0]
    forbidden = ids[:, None] != ids[None, :]
    return nothing(trial, table, forbidden, "a text sees its neighbour in the row", USUAL)


def _alone(trial: Trial) -> Found:
    tokens = trial.texts(2, sum(COUNTS))
    packed = Request(tokens, {name: np.repeat(x, 2, axis=0) for name, x in _options(trial).items()})
    found = FINE
    for start, count in zip(STARTS, COUNTS, strict=True):
        one = Request(tokens[:, start : start + count])
        places = [((b, t), (b, start + t)) for b in range(2) for t in range(count)]
        said = f"a text that begins at {start} of its row differs from itself alone"
        found = same(trial, one, packed, places, said, "positions go on from the text before; they have to begin anew")
        if found.finding.verdict.fails:
            break
    return found
