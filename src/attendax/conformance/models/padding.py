"""Padding does not matter: what stands in it, or whether it is there."""

from functools import partial

import numpy as np

from ..cases.case import ROBUST
from .blackbox import Model
from .equality import same
from .influence import influence, nothing, something
from .law import Law
from .request import Request
from .trial import FINE, Found, Trial

REAL = (9, 5, 1, 7)  # tokens of each text, of 9
USUAL = {
    "right": "the mask is not passed on, is inverted (True means drop elsewhere), or stands on the axis of queries",
    "left": "the mask is not passed on, is taken to be on the right, or leaves rows that see no key at all",
}


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    found = []
    for side in ("right", "left"):
        trait = f"{side} padding"
        about = f"other tokens in the padding on the {side} change nothing"
        found.append(Law("padding", f"padding, {side}: content", about, partial(_content, side=side), (trait,)))
        about = "every real token still matters"
        found.append(Law("padding", f"padding, {side}: real tokens", about, partial(_real, side=side), (trait,)))
        about = "a text equals itself without padding"
        needs = (trait, "places of tokens") if side == "left" else (trait,)
        found.append(Law("padding", f"padding, {side}: alone", about, partial(_alone, side=side), needs))
        about = "NaN in the padding changes nothing"
        needs = (trait, "vectors")
        nan = partial(_nan, side=side)
        found.append(Law("padding", f"padding, {side}: NaN", about, nan, needs, profile=ROBUST))
    about = "a mask that says all tokens are real changes nothing"
    found.append(Law("padding", "padding: none", about, _none, ("mask",)))
    return found


def _mask(side: str, real: np.ndarray, length: int) -> np.ndarray:
    """(B, T), True = a real token."""
    place = np.arange(length)[None]
    return place < real[:, None] if side == "right" else place >= length - real[:, None]


def _options(trial: Trial, side: str, mask: np.ndarray) -> dict[str, np.ndarray]:
    found = trial.model.marked(mask)
    if "positions" in trial.model.accepts and side == "left":
        found["positions"] = np.maximum(mask.cumsum(1) - 1, 0).astype(np.int32)
    return found


def _content(trial: Trial, side: str) -> Found:
    if trial.model.pad is not None:
        return FINE  # the model knows padding by its token
    mask = _mask(side, np.array([6]), 9)
    table = influence(trial, 9, sources=np.flatnonzero(~mask[0]), options=_options(trial, side, mask))
    forbidden = np.broadcast_to(mask, (len(table.sources), 9))
    return nothing(trial, table, forbidden, f"padding on the {side} matters", USUAL[side])


def _real(trial: Trial, side: str) -> Found:
    mask = _mask(side, np.array([6]), 9)
    base = _padded(trial, mask)[0]
    sources = np.flatnonzero(mask[0])
    table = influence(trial, 9, sources=sources, options=_options(trial, side, mask), base=base)
    expected = trial.model.must(sources, 9) & mask
    if trial.model.visible.moves and side == "left":
        expected = expected & (sources[:, None] == np.arange(9)[None])
    said = f"beside padding on the {side} a real token does not matter"
    return something(trial, table, expected, said, USUAL[side])


def _padded(trial: Trial, mask: np.ndarray, token: int | None = None) -> np.ndarray:
    tokens = trial.texts(*mask.shape, salt=2)
    token = trial.model.pad if token is None else token
    return tokens if token is None else np.where(mask, tokens, token).astype(np.int32)


def padded_request(trial: Trial, side: str, real: tuple[int, ...]) -> tuple[Request, np.ndarray]:
    """Texts of so many real tokens, padded on one side to the longest; and where they are real (B, T)."""
    mask = _mask(side, np.array(real), max(real))
    return Request(_padded(trial, mask), _options(trial, side, mask)), mask


def _alone(trial: Trial, side: str) -> Found:
    padded, mask = padded_request(trial, side, REAL)
    tokens = padded.tokens
    found = FINE
    for row, count in enumerate(REAL):
        one = Request(tokens[row : row + 1, mask[row]], trial.model.marked(np.ones((1, count), bool)))
        places = [((0, t), (row, int(at))) for t, at in enumerate(np.flatnonzero(mask[row]))]
        said = f"a text of {count} differs from itself with {9 - count} of padding on the {side}"
        found = same(trial, one, padded, places, said, USUAL[side])
        if found.finding.verdict.fails:
            break
    return found


def _nan(trial: Trial, side: str) -> Found:
    mask = _mask(side, np.array([6, 3]), 9)
    tokens = _padded(trial, mask)
    options = _options(trial, side, mask)
    spoiled = Request(np.where(mask, tokens, trial.model.nan).astype(np.int32), options)
    places = [((int(b), int(t)), (int(b), int(t))) for b, t in np.argwhere(mask)]
    usual = "0 * NaN is NaN: a weight of 0 does not keep what is not a number out; put zeros there first"
    return same(trial, Request(tokens, options), spoiled, places, f"NaN in padding on the {side} is seen", usual)


def _none(trial: Trial) -> Found:
    tokens = trial.texts(2, 9)
    given = Request(tokens, trial.model.marked(np.ones((2, 9), bool)))
    places = [((b, t), (b, t)) for b in range(2) for t in range(9)]
    usual = "a mask that is inverted, or takes the place of another"
    return same(trial, Request(tokens), given, places, "a mask without padding changes results", usual)
