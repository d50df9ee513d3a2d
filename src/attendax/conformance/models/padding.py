"""Padding does not matter, whatever stands in it; texts that are packed into one row do not know of each other."""

import numpy as np

from ..cases.case import ROBUST
from .blackbox import Request
from .influence import influence, nothing, something
from .trial import FINE, SIDES, Found, Laws, Trial, same

REAL = (9, 5, 1, 7)  # tokens of each text, of 9
COUNTS, STARTS = (5, 3, 4), (0, 5, 8)  # of the texts that are packed into one row
USUAL = {
    "right": "the mask is not passed on, is inverted (True means drop elsewhere), or stands on the axis of queries",
    "left": "the mask is not passed on, is taken to be on the right, or leaves rows that see no key at all",
}
PACKED = "segment ids are not passed on to every layer, or only compared with padding"
ALONE = "padding, {}: alone"
laws = Laws("padding")


def _mask(side: str, real: np.ndarray, length: int) -> np.ndarray:
    place = np.arange(length)[None]
    return place < real[:, None] if side == "right" else place >= length - real[:, None]


def _options(trial: Trial, side: str, mask: np.ndarray) -> dict[str, np.ndarray]:
    found = trial.model.marked(mask)
    if "positions" in trial.model.accepts and side == "left":
        found["positions"] = np.maximum(mask.cumsum(1) - 1, 0).astype(np.int32)
    return found


@laws.ask("padding, {}: content", "other tokens in the padding on the {} change nothing", "{} padding", of=SIDES)
def _content(trial: Trial, side: str) -> Found:
    if trial.model.pad is not None:
        return FINE  # the model knows padding by its token
    mask = _mask(side, np.array([6]), 9)
    table = influence(trial, 9, sources=np.flatnonzero(~mask[0]), options=_options(trial, side, mask))
    forbidden = np.broadcast_to(mask, (len(table.sources), 9))
    return nothing(trial, table, forbidden, f"padding on the {side} matters", USUAL[side])


@laws.ask("padding, {}: real tokens", "every real token still matters", "{} padding", of=SIDES)
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


@laws.ask(ALONE, "a text equals itself without padding", "left padding", "places of tokens", of={"left": SIDES["left"]})
@laws.ask(ALONE, "a text equals itself without padding", "right padding", of={"right": SIDES["right"]})
def _alone(trial: Trial, side: str) -> Found:
    padded, mask = padded_request(trial, side, REAL)
    tokens, found = padded.tokens, FINE
    for row, count in enumerate(REAL):
        one = Request(tokens[row : row + 1, mask[row]], trial.model.marked(np.ones((1, count), bool)))
        places = [((0, t), (row, int(at))) for t, at in enumerate(np.flatnonzero(mask[row]))]
        said = f"a text of {count} differs from itself with {9 - count} of padding on the {side}"
        found = same(trial, one, padded, said, USUAL[side], places)
        if found.finding.verdict.fails:
            break
    return found


@laws.ask("padding, {}: NaN", "NaN in the padding changes nothing", "{} padding", "vectors", of=SIDES, profile=ROBUST)
def _nan(trial: Trial, side: str) -> Found:
    mask = _mask(side, np.array([6, 3]), 9)
    tokens = _padded(trial, mask)
    options = _options(trial, side, mask)
    spoiled = Request(np.where(mask, tokens, trial.model.nan).astype(np.int32), options)
    usual = "0 * NaN is NaN: a weight of 0 does not keep what is not a number out; put zeros there first"
    return same(trial, Request(tokens, options), spoiled, f"NaN in padding on the {side} is seen", usual, mask)


@laws.ask("padding: none", "a mask that says all tokens are real changes nothing", "mask")
def _none(trial: Trial) -> Found:
    tokens = trial.texts(2, 9)
    given = Request(tokens, trial.model.marked(np.ones((2, 9), bool)))
    usual = "a mask that is inverted, or takes the place of another"
    return same(trial, Request(tokens), given, "a mask without padding changes results", usual)


def _of_rows(trial: Trial) -> dict[str, np.ndarray]:
    ids = np.repeat(np.arange(1, 4), COUNTS)[None].astype(np.int32)
    found = {"segment_ids": ids}
    if "positions" in trial.model.accepts:
        found["positions"] = np.concatenate([np.arange(n) for n in COUNTS])[None].astype(np.int32)
    return found


@laws.ask("packing: other texts", "a change in one text changes nothing in another", "segment_ids", law="packing")
def _others(trial: Trial) -> Found:
    options = _of_rows(trial)
    ids = options["segment_ids"][0]
    table = influence(trial, sum(COUNTS), options=options)
    return nothing(trial, table, ids[:, None] != ids, "a text sees its neighbour in the row", PACKED)


@laws.ask("packing: alone", "each text in a row equals itself alone", "segment_ids", "places of tokens", law="packing")
def _packed(trial: Trial) -> Found:
    tokens = trial.texts(2, sum(COUNTS))
    packed = Request(tokens, {name: np.repeat(x, 2, axis=0) for name, x in _of_rows(trial).items()})
    found = FINE
    for start, count in zip(STARTS, COUNTS, strict=True):
        one = Request(tokens[:, start : start + count])
        places = [((b, t), (b, start + t)) for b in range(2) for t in range(count)]
        said = f"a text that begins at {start} of its row differs from itself alone"
        found = same(trial, one, packed, said, "positions go on from the text before; they have to begin anew", places)
        if found.finding.verdict.fails:
            break
    return found
