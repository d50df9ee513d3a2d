"""Laws of texts: rows of a batch, order, padding and other texts in a row matter as far as they should, no further."""

import contextlib
from typing import Any

import numpy as np

from ..cases.case import ROBUST
from ..judge.verdicts import Verdict
from ..worker.errors import Failed
from .blackbox import COUNT, Computation, Model, fitting, told
from .seen import Influence, influence, nothing, something
from .trial import FAINT, FINE, SIDES, SPACING, Answers, Found, Places, ask, distance, first, refuse_faint

TOKENS = 9
ORDER_TEXTS = 4  # texts, of which one has to show that order matters
REAL = (9, 5, 1, 7)  # tokens of each text, of 9
PACKINGS, SHORTER = ((5, 3, 4), (4, 3, 5)), ((5, 3), (4, 3))  # tokens of the texts that are packed into each row
NEAR_PLACE, MIDDLE_PLACE, FAR_PLACE = 11, 300, 4001  # places from which a text is counted
FURTHER_PLACES, PLACE_STEP = 1000, 37  # further places
ANGLES = 100  # times the spacing of angles in float32: products of places and frequencies are rounded
MIXED = "a norm over the batch, a reshape that mixes rows and heads, axes that are swapped, or a softmax over the batch"
USUAL = {
    "right": "the mask is not passed on, is inverted (True means drop elsewhere), or one off, or stands on the axis of "
    "queries",
    "left": "the mask is not passed on, is taken to be on the right, is one off, stands on the axis of queries, or "
    "leaves rows that see no key at all",
}
CHOSEN = "a mask that is left out, or made otherwise, by the size of the batch or by what the others are"
SIZE_OF = "a scale, a mean or a shape with the size of the batch in it, or a kernel that is chosen by it"
ANOTHER_ROW = "what another row of the batch is given is used"
UNTURNED = "the rotation of queries and keys differs, values are rotated, or it is added where it should turn"
DIGITS = "angles or positions are computed in bfloat16 or float16: compute both in float32, and round cosines and sines"
REPLACED = "the mask of texts is left out, or replaced, where there is one of padding; the two have to be combined"
BY_POSITIONS = "positions that begin anew are looked at only where no mask is given: give none, or one of each text"
PACKED = "segment ids are not passed on to every layer, or only compared with padding"


def _batch(trial: Answers) -> np.ndarray:
    return trial.texts(4, trial.model.lengths((TOKENS,))[0])


@ask("batch: a row alone", "a row is the same alone and with others", "batch")
def _row_alone(trial: Answers) -> Found:
    together, said = Computation(_batch(trial)), "a row depends on the size of its batch"

    def of_row(row: int) -> Found:
        places = [((0, t), (row, t)) for t in range(together.tokens.shape[1])]
        found = trial.same(together.row(row), together, said, SIZE_OF, places)
        return _of_batch(trial, found, said, (together.tokens[row : row + 1], 0), (together.tokens, row))

    return first(map(of_row, (0, 3)))


def _of_batch(trial: Answers, found: Found, said: str, *asked: tuple[np.ndarray, int]) -> Found:
    """A fault of batches with its reason: tokens of its own that a row sees in either batch, or those of the others."""
    if found.verdict is not Verdict.WRONG:
        return found
    (one, unseen), (other, unseen_too) = (_seen_beside(trial, *batch) for batch in asked)
    layers, causal = trial.model.layers, trial.model.causal
    words = [fitting(seen, layers, causal) or fitting(seen, layers, not causal) for seen in (~unseen, ~unseen_too)]
    if (one & unseen_too | other & unseen).any() and any(words):
        first, second = (told(x, causal) if x else "other tokens" for x in words)
        message = f"{said}: in one batch a position sees {first}, in another {second}"
        return found._replace(finding=found.finding._replace(message=message), usual=CHOSEN)
    (tokens, row), matter = asked[1], Computation(asked[1][0])
    changed = trial.others(tokens)
    changed[row] = tokens[row]
    apart = distance(trial.ask(matter)[row], trial.ask(Computation(changed))[row])
    return found._replace(usual=MIXED) if (apart > trial.allowed(trial.ask(matter))[row]).any() else found


def _seen_beside(trial: Answers, tokens: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a token of a row and a position of it that it surely moves in that batch, and surely not: (S, T)."""
    plain, length = trial.ask(Computation(tokens)), tokens.shape[1]
    allowed, moved = trial.allowed(plain)[row], np.zeros((length, length))
    for source, salt in np.ndindex(length, 2):
        changed = tokens.copy()
        changed[row, source] = trial.others(tokens, salt=salt)[row, source]
        moved[source] = np.fmax(moved[source], distance(plain[row], trial.ask(Computation(changed))[row]))
    return (moved > allowed, moved == 0) if trial.narrow else (moved > FAINT * allowed, moved <= allowed)


@ask("batch: other neighbours", "a row is the same whatever the others are", "batch")
def _neighbours(trial: Answers) -> Found:
    tokens = _batch(trial)
    changed = trial.others(tokens)
    changed[1] = tokens[1]
    row, said = np.broadcast_to(np.arange(4)[:, None] == 1, tokens.shape), "a row depends on its neighbours"
    found = trial.same(Computation(tokens), Computation(changed), said, MIXED, row)
    return _of_batch(trial, found, said, (tokens, 1), (changed, 1))


@ask("batch: permuted", "rows in another order give results in that order", "batch")
def _permuted(trial: Answers) -> Found:
    tokens, order = _batch(trial), [2, 0, 3, 1]
    places = [((order[b], t), (b, t)) for b, t in np.ndindex(*tokens.shape)]
    said = "rows in another order give other results"
    found = trial.same(Computation(tokens), Computation(tokens[order]), said, MIXED, places)
    return _of_batch(trial, found, said, (tokens, order[0]), (tokens[order], 0))


def _swapped(tokens: np.ndarray, one: int = 1, other: int = 4) -> np.ndarray:
    found = tokens.copy()
    found[:, [one, other]] = tokens[:, [other, one]]
    return found


def _three(trial: Answers) -> tuple[int, int, int]:
    """Two tokens, and a position that sees both of them."""
    seen = trial.model.visible.pairs(TOKENS)
    tries = [(1, 4, 7), *((k, k + 1, t) for t in range(2, TOKENS) for k in range(t - 2, -1, -1))]
    found = next((x for x in tries if seen[x[0], x[2]] and seen[x[1], x[2]]), None)
    if found is None:
        raise NotImplementedError(f"no position sees two others within {trial.model.sees}")
    return found


def _shown(trial: Answers, tokens: np.ndarray, finer: float = 1.0) -> tuple[int, int, int]:
    """Ask the same three tokens, if other tokens at two of them move the third by much; if not, it cannot be told."""
    one, other, third = _three(trial)
    others = tokens.copy()
    others[:, [one, other]] = trial.others(tokens)[:, [one, other]]
    refuse_faint(trial.share(Computation(tokens), Computation(others), third) * finer)
    return one, other, third


@ask("positions: order", "swapping two tokens changes what is at others", "order")
def _order(trial: Answers) -> Found:
    tokens = trial.texts(ORDER_TEXTS, TOKENS)
    one, other, third = _shown(trial, tokens)
    tokens[:, other] = np.where(tokens[:, other] == tokens[:, one], trial.others(tokens)[:, other], tokens[:, other])
    said = "swapping two tokens changes nothing at a third: the order does not matter"
    usual = "the positional encoding is not added, is a constant, or is applied along the wrong axis"
    return trial.differ(Computation(tokens), Computation(_swapped(tokens, one, other)), said, usual, third)


@ask("positions: no order", "swapping two tokens swaps their results", "no order")
def _no_order(trial: Answers) -> Found:
    tokens = trial.texts(ORDER_TEXTS, TOKENS)
    order = [0, 4, 2, 3, 1, *range(5, TOKENS)]
    places = [((b, order[t]), (b, t)) for b in range(ORDER_TEXTS) for t in range(TOKENS)]
    said = "swapping two tokens does more than swap their results"
    usual = "a positional encoding, or a mask that depends on the place"
    return trial.same(Computation(tokens), Computation(_swapped(tokens)), said, usual, places)


def counted(rows: int, start: int = 0) -> dict[str, np.ndarray]:
    """The keyword of positions that count from a start on, (rows, TOKENS)."""
    return {"positions": np.tile(np.arange(start, start + TOKENS, dtype=np.int32), (rows, 1))}


@ask("positions: given", "the positions 0, 1, 2, ... are those without any", "given positions")
def _given(trial: Answers) -> Found:
    tokens = trial.texts(2, TOKENS)
    said = "positions 0, 1, 2, ... differ from the model's own"
    usual = "positions that begin at 1, or at the padding token"
    return trial.same(Computation(tokens), Computation(tokens, counted(2)), said, usual)


def _starts(model: Model) -> dict[str, Any]:
    """Places from which texts are counted, near and far, as far as the model knows such."""
    room = (model.longest or FAR_PLACE + TOKENS) - TOKENS
    found = {"shifted": min(NEAR_PLACE, room), "shifted far": min(FAR_PLACE, room)}
    least = {"shifted": 0, "shifted far": NEAR_PLACE}
    return {name: {"start": start} for name, start in found.items() if start > least[name]}


@ask("positions: {}", "positions from k on give the same", "given positions", "relative", of=_starts)
def _shifted(trial: Answers, start: int) -> Found:
    tokens = trial.texts(2, TOKENS)
    one, other = Computation(tokens, counted(2)), Computation(tokens, counted(2, start=start))
    said, far = f"positions that begin at {start:,} give other results", start > NEAR_PLACE
    if far and trial.model.longest is None:
        with contextlib.suppress(Failed):
            trial.ask(one)
            _refuse_ends(trial, other, start)
    of_angles = ANGLES * start * SPACING["float32"]
    found = trial.same(one, other, said, UNTURNED, slack=max(8, of_angles / trial.rounding) if trial.rounding else 1)
    return _of_digits(trial, found, one) if found.verdict is Verdict.WRONG else found


def _refuse_ends(trial: Answers, other: Computation, start: int) -> None:
    """Say that a model knows no positions so far: it raises, or gives all of them the same."""
    further = other._replace(options=counted(2, start=start + FURTHER_PLACES))
    try:
        here, there = trial.ask(other), trial.ask(further)
    except Failed as error:
        raise NotImplementedError(f"positions from {start:,} on: {error}; --longest says how many there are") from error
    if np.isnan(here).any() or np.array_equal(here, there):
        raise NotImplementedError(f"its positions end before {start:,}; --longest says how many there are")


def _of_digits(trial: Answers, found: Found, one: Computation) -> Found:
    """A fault of shifted positions with its reason: it grows with the shift, and not evenly, where digits are lost."""
    plain = trial.ask(one)

    def off(here: int, beside: np.ndarray) -> float:
        apart = distance(beside, trial.ask(Computation(one.tokens, counted(2, start=here))))
        return float((apart / np.abs(plain).max(-1)).max())

    last = max(x["start"] for x in _starts(trial.model).values())
    starts = [*(x for x in (NEAR_PLACE, MIDDLE_PLACE) if x < last), last]
    try:
        offs = {here: off(here, plain) for here in starts}
        jumps = off(last - PLACE_STEP, trial.ask(Computation(one.tokens, counted(2, start=last))))
    except Failed:
        return found
    if offs[last] < 4 * offs[starts[0]] or jumps < offs[last] / 5:
        return found
    parts = [f"{x:.1g} from {here:,} on" for here, x in offs.items()]
    message = f"positions lose digits: results are off by {', '.join(parts)}"
    return found._replace(finding=found.finding._replace(message=message), usual=DIGITS)


@ask("positions: not ignored", "positions in another order matter", "given positions", "order")
def _used(trial: Answers) -> Found:
    tokens = trial.texts(ORDER_TEXTS, TOKENS)
    one, other, third = _shown(trial, tokens, trial.finer)  # where positions are ignored, no bit changes
    plain = counted(ORDER_TEXTS)
    mixed = {"positions": _swapped(plain["positions"], one, other)}
    said, usual = "positions in another order change nothing: they are ignored", "the argument is not used"
    return trial.differ(Computation(tokens, plain), Computation(tokens, mixed), said, usual, third)


def padded(trial: Answers, side: str, real: tuple[int, ...], length: int = TOKENS) -> tuple[Computation, np.ndarray]:
    """Texts of so many real tokens, padded on one side; and where they are real (B, T)."""
    place, counts = np.arange(length)[None], np.array(real)[:, None]
    mask = place < counts if side == "right" else place >= length - counts
    tokens, options = trial.texts(*mask.shape, salt=2), trial.model.marked(mask)
    if "positions" in trial.model.accepts and side == "left":
        options["positions"] = np.maximum(mask.cumsum(1) - 1, 0).astype(np.int32)
    pad = trial.model.pad
    return Computation(tokens if pad is None else np.where(mask, tokens, pad).astype(np.int32), options), mask


@ask("padding, {}: content", "other tokens in the padding on the {} change nothing", "{} padding", of=SIDES)
def _content(trial: Answers, side: str) -> Found:
    if trial.model.pad is not None:
        return FINE  # the model knows padding by its token
    given, mask = padded(trial, side, (6,))
    table = influence(trial, TOKENS, sources=np.flatnonzero(~mask[0]), options=given.options)
    forbidden = np.broadcast_to(mask, (len(table.sources), TOKENS))
    return nothing(trial, table, forbidden, f"padding on the {side} matters", USUAL[side])


@ask("padding, {}: real tokens", "every real token still matters", "{} padding", of=SIDES)
def _real(trial: Answers, side: str) -> Found:
    given, mask = padded(trial, side, (6,))
    sources = np.flatnonzero(mask[0])
    table = influence(trial, TOKENS, sources=sources, options=given.options, base=given.tokens[0])
    expected = trial.model.must(sources, TOKENS) & mask
    if trial.model.visible.moves and side == "left":
        expected = expected & (table.steps == 0)
    said = f"beside padding on the {side} a real token does not matter"
    return something(trial, table, expected, said, USUAL[side])


@ask("padding, {}: alone", "a text equals itself without padding", "left padding", "places of tokens",
     of={"left": SIDES["left"]})  # fmt: skip
@ask("padding, {}: alone", "a text equals itself without padding", "right padding", of={"right": SIDES["right"]})
def _alone(trial: Answers, side: str) -> Found:
    request, mask = padded(trial, side, REAL)

    def of_row(row: int, count: int) -> Found:
        one = Computation(request.tokens[row : row + 1, mask[row]], trial.model.marked(np.ones((1, count), bool)))
        places = [((0, t), (row, int(at))) for t, at in enumerate(np.flatnonzero(mask[row]))]
        said = f"a text of {count} differs from itself with {TOKENS - count} of padding on the {side}"
        return _same_in_a_row(trial, one, request, said, USUAL[side], places)

    return first(of_row(row, count) for row, count in enumerate(REAL))


def _same_in_a_row(trial: Answers, one: Computation, rows: Computation, said: str, usual: str, places: Places) -> Found:
    """Hold a text alone against itself in a row of several; where it is right without the others, that is the cause."""
    found = trial.same(one, rows, said, usual, places)
    alone = [(at, (0, beside)) for at, (_, beside) in places]
    if found.verdict.fails and not trial.same(one, rows.row(places[0][1][0]), said, usual, alone).verdict.fails:
        return found._replace(usual=ANOTHER_ROW)
    return found


@ask("padding, {}: NaN", "NaN in the padding changes nothing", "{} padding", "vectors", of=SIDES, profile=ROBUST)
def _nan(trial: Answers, side: str) -> Found:
    plain, mask = padded(trial, side, (6, 3))
    spoiled = plain._replace(tokens=np.where(mask, plain.tokens, COUNT).astype(np.int32))
    usual = "0 * NaN is NaN: a weight of 0 does not keep what is not a number out; put zeros there first"
    return trial.same(plain, spoiled, f"NaN in padding on the {side} is seen", usual, mask)


@ask("padding: none", "a mask that says all tokens are real changes nothing", "mask")
def _none(trial: Answers) -> Found:
    tokens = trial.texts(2, TOKENS)
    given = Computation(tokens, trial.model.marked(np.ones((2, TOKENS), bool)))
    usual = "a mask that is inverted, or takes the place of another, or positions that are counted by it otherwise"
    return trial.same(Computation(tokens), given, "a mask without padding changes results", usual)


def _ids(counts: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """The text of each token in rows of several texts, from 1 on; 0 is padding at the end."""
    found = np.zeros((len(counts), sum(PACKINGS[0])), np.int32)
    for row, x in zip(found, counts, strict=True):
        row[: sum(x)] = np.repeat(np.arange(1, 1 + len(x)), x)
    return found


def _of_rows(trial: Answers, *counts: tuple[int, ...], marked: bool = False) -> dict[str, np.ndarray]:
    """The keywords of rows (B, T) of several texts each, of so many tokens; and of padding, where it is ``marked``."""
    ids, found = _ids(counts), {}
    if "segment_ids" in trial.model.accepts:
        found["segment_ids"] = ids
    if "positions" in trial.model.accepts:
        parts = [[np.arange(n) for n in (*row, ids.shape[1] - sum(row))] for row in counts]
        found["positions"] = np.array([np.concatenate(row) for row in parts], np.int32)
    return found | (trial.model.marked(ids > 0) if marked else {})


MARKED = {
    "with a mask": {"marked": True, "counts": PACKINGS},
    "padding at the end": {"marked": True, "counts": SHORTER},
}


@ask("packing: other texts, {}", "the same, {}", "segment_ids", "right padding", of=MARKED)
@ask("packing: other texts", "a change in one text changes nothing in another", "segment_ids")
def _others(trial: Answers, marked: bool = False, counts: tuple[tuple[int, ...], ...] = PACKINGS) -> Found:
    table, elsewhere = _of_packed(trial, _of_rows(trial, *counts[:1], marked=marked))
    said, usual = "a text sees its neighbour in the row", PACKED
    if marked and not nothing(trial, *_of_packed(trial, _of_rows(trial, PACKINGS[0])), said, usual).verdict.fails:
        said, usual = f"{said}, once a mask is given", REPLACED
    return nothing(trial, table, elsewhere, said, usual)


def _of_packed(trial: Answers, options: dict[str, np.ndarray]) -> tuple[Influence, np.ndarray]:
    """Change each token of a packed row; and the pairs of a token of one text and a position of another."""
    ids = _ids(PACKINGS[:1]) if "segment_ids" not in options else options["segment_ids"]
    real = np.flatnonzero(ids[0])
    return influence(trial, ids.shape[1], sources=real, options=options), (ids[0][real, None] != ids) & (ids > 0)


@ask("packing: by positions, {}", "texts that positions keep apart are kept apart, {}", "given positions",
     "packed by positions", "right padding", of={"with a mask": {}})  # fmt: skip
def _by_positions(trial: Answers) -> Found:
    """Ask it of a model that keeps texts apart whose positions begin anew, without a mask."""
    options = _of_rows(trial, PACKINGS[0])
    said = "texts that positions keep apart see each other, once a mask is given"
    if nothing(trial, *_of_packed(trial, options), said, "").verdict.fails:
        raise NotImplementedError("positions that begin anew do not keep texts apart")
    beside = _of_packed(trial, _of_rows(trial, PACKINGS[0], marked=True))
    return nothing(trial, *beside, said, BY_POSITIONS)


@ask("packing: alone, {}", "the same, {}", "segment_ids", "places of tokens", "right padding", of=MARKED)
@ask("packing: alone", "each text in a row equals itself alone", "segment_ids", "places of tokens")
def _packed(trial: Answers, marked: bool = False, counts: tuple[tuple[int, ...], ...] = PACKINGS) -> Found:
    options = _of_rows(trial, *counts, marked=marked)
    usual = "positions go on from the text before; they have to begin anew"
    tokens = trial.texts(2, sum(PACKINGS[0]))
    if marked and trial.model.pad is not None:
        tokens = np.where(options["segment_ids"] > 0, tokens, trial.model.pad).astype(np.int32)
    packed = Computation(tokens, options)

    def of_text(row: int, start: int, count: int) -> Found:
        alone = trial.model.marked(np.ones((1, count), bool)) if marked else {}
        one = Computation(tokens[row : row + 1, start : start + count], alone)
        places = [((0, t), (row, start + t)) for t in range(count)]
        said = f"a text that begins at {start} of its row differs from itself alone"
        return _same_in_a_row(trial, one, packed, said, usual, places)

    return first(of_text(row, sum(x[:k]), x[k]) for row, x in enumerate(counts) for k in range(len(x)))
