"""Tokens that matter: a table of influence, and its laws: nothing after a position is seen, and all that is declared.

Most laws of models are statements about one table: change one token, and see which positions move. No position moves
when a later token changes; each moves when an earlier one does; none when padding does.
"""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..judge.verdicts import Verdict
from ..worker.errors import Failed
from .blackbox import Computation, Model, declaration, fitting, told
from .trial import (
    FAINT,
    FINE,
    Answers,
    Evidence,
    Found,
    Untold,
    ask,
    beside_rounding,
    distance,
    fault,
    measured,
    not_a_number,
    silent,
)

TEXTS = 3  # a token that matters may matter little in one text
ALONE_TOKENS = 100  # tokens of a text so long that one is asked at a time
MORE_TEXTS = 10  # times as many texts, until a token that has to matter does
# These and the last two: places around the sizes of blocks.
TRIED_PLACES = (0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128)
MOST_TOKENS = 300  # tokens that are tried
MEASURED_TOKENS = 40  # tokens in which one measures what a model sees
LITTLE = "a mean or variance over positions (norm, pooling), a softmax over queries, or a mask that adds a small number"
DROPPED = "the causal mask is not given, is replaced by the other mask, or is dropped by one way of running"
GIVEN_UP = "the causal mask is dropped if another mask is passed; combine the two"
DIAGONAL = "the triangle begins too far up (k=1 in place of 0), or `<=` stands where `<` belongs"
AROUND = (
    "a mask built for blocks or for another length, or inverted, heads that are joined by a reshape alone, or a layer "
    "that looks around itself (convolution, pooling, sorting)"
)
CUT = (
    "a mask that is inverted, cut off, or aligned to the wrong end; an argument that is not passed on; heads that are "
    "joined by a reshape alone"
)
OF_LENGTH = "a mean, a scale or frequencies of positions that depend on the number of all tokens"
ONE_MORE = "the window counts one too many (`<=` where `<` belongs, or w beside the token itself)"


class Influence(NamedTuple):
    """Movements of each position when one token changes."""

    sources: np.ndarray  # the positions whose token was changed (S,)
    by_text: np.ndarray  # how far each position moves, (texts, S, T)
    allowed: np.ndarray  # of it by rounding (S, T)
    results: np.ndarray  # before the change, (texts, T, C)
    whole: Computation  # all that was asked, in one batch: each text, then it with each change
    again: Callable[..., "Influence"]  # gives the table of other texts, of ``sources`` and ``salt``
    finer: float  # how many times less than rounding shows that a token is seen: in a narrow dtype, each bit

    @property
    def moved(self) -> np.ndarray:
        """The largest movement of each position (S, T)."""
        return self.by_text.max(0)

    @property
    def share(self) -> np.ndarray:
        """The largest movement of each position beside rounding (S, T)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.moved / self.allowed

    @property
    def shown(self) -> np.ndarray:
        """The largest movement of each position beside what shows that a token is seen, more than 1 (S, T)."""
        share = self.share * self.finer
        return np.where((self.moved > 0) & (self.finer > 1), np.fmax(share, 1.01), share)

    @property
    def moves(self) -> np.ndarray:
        """True where a position moves by more than rounding (S, T)."""
        return self.moved > self.allowed

    @property
    def steps(self) -> np.ndarray:
        """Steps from each source to each position (S, T): more than 0 where the source comes later."""
        return self.sources[:, None] - np.arange(self.by_text.shape[2])[None]

    def row(self, text: int, change: int = 0) -> int:
        """The row of the batch that has a text before its changes, or with one of them, counted from 1."""
        return text * (1 + len(self.sources)) + change


def influence(
    trial: Answers, length: int, *, sources: np.ndarray | None = None, options: Mapping[str, np.ndarray] | None = None,
    alone: bool = False, base: np.ndarray | None = None, salt: int = 0, chunks: tuple[int, ...] = (),
) -> Influence:  # fmt: skip
    """Change one token of a text at a time: all of them, or ``sources``; ``options`` are of one text, (1, T) or (1,).

    All texts, changed and not, are rows of one batch, unless each is asked ``alone``. They are random unless ``base``
    (T,) is given; with a salt they are of vectors of one length alone, where attention is less sharp, and from the
    second on each repeats a token: no other one is there that sharp attention would look at instead.
    """
    again = partial(influence, trial, length, options=options, alone=alone, base=base, chunks=chunks)
    sources = np.arange(length) if sources is None else sources
    count = TEXTS if length < ALONE_TOKENS and not alone else 1
    texts = trial.texts(count, length, salt=salt) if base is None else np.broadcast_to(base, (count, length))
    texts = texts if salt < 2 else np.repeat(texts[:, :1], length, axis=1)
    rows = np.repeat(texts[:, None], 1 + len(sources), axis=1)
    for k, text in enumerate(texts):
        others = trial.others(text, salt=k + count * salt)
        rows[k, np.arange(1, 1 + len(sources)), sources] = others[sources]
    flat = rows.reshape(-1, length)
    given = {name: np.repeat(x, len(flat), axis=0) for name, x in (options or {}).items()}
    whole = Computation(flat, given, chunks=chunks, room=length if chunks else 0)
    asked = [whole.row(k) for k in range(len(flat))] if alone else [whole]
    found = np.concatenate([trial.ask(request) for request in asked]).reshape(*rows.shape, -1)
    by_text = distance(found[:, :1], found[:, 1:])
    allowed = np.broadcast_to(trial.allowed(found[:, 0])[:, None], by_text.shape).max(0)
    return Influence(sources, by_text, allowed, found[:, 0], whole, again, trial.finer)


def nothing(trial: Answers, table: Influence, forbidden: np.ndarray, said: str, usual: str) -> Found:
    """No token may move a position where ``forbidden`` (S, T) says so; the finding is the leak that is nearest."""
    missing = np.isnan(table.results).any(-1) & forbidden.any(0)
    if missing.any():
        text, position = np.argwhere(missing)[0]
        return not_a_number(table.whole.row(table.row(text)), (0, int(position)))
    leaks = forbidden & table.moves
    if not leaks.any():
        if trial.narrow and (forbidden & (table.moved > 0)).any():
            raise Untold(f"in {trial.dtype} it cannot be told: what moves is within rounding")
        return measured(table.moved[forbidden], table.allowed[forbidden])
    pairs = np.argwhere(leaks)
    k, position = map(int, pairs[np.lexsort((-table.moved[leaks], np.abs(table.steps[leaks])))[0]])
    moved, allowed = float(table.moved[k, position]), float(table.allowed[k, position])
    text = int(table.by_text[:, k, position].argmax())
    before, after, place = table.row(text), table.row(text, k + 1), (0, position)
    one, other = table.whole.row(before), table.whole.row(after)
    evidence = Evidence(one, other, place, place, allowed)
    if not distance(trial.ask(one)[place], trial.ask(other)[place]) > allowed:  # it takes the whole batch
        evidence = Evidence(table.whole, table.whole, (before, position), (after, position), allowed)
    told = f"{said}: changing the token at position {table.sources[k]} moves position {position} by {moved:.2g}"
    if not trial.way:  # a copy in float64 is held to the rounding of float32, so the factor would be of neither
        told += f", {beside_rounding(moved, allowed)}"
    verdict = Verdict.LEAK if np.isfinite(moved) else Verdict.NAN
    return fault(verdict, told, usual, evidence, moved, table.results[text, position])


def something(trial: Answers, table: Influence, expected: np.ndarray, said: str, usual: str) -> Found:
    """Each token has to move a position where ``expected`` (S, T) says so, in one of the texts at least.

    Where it moves the positions before that less and less, down to rounding, nothing tells whether it is seen; nor
    where tokens that are seen move that position by no more than rounding hides.
    """
    share = table.shown
    for salt in range(1, MORE_TEXTS + 1):
        blind = expected & ~(share > 1) & ~_faded(share, table.sources)
        if not (left := np.flatnonzero(blind.any(1))).size:
            return FINE
        if salt < MORE_TEXTS:
            share[left] = np.fmax(share[left], table.again(sources=table.sources[left], salt=salt).shown)
    pairs = np.argwhere(blind)[np.abs(table.steps[blind]).argsort(kind="stable")]
    k, position = _surely_blind(trial, share, expected & (table.steps != 0), pairs)
    none, part = blind.sum() == expected.sum(), f"{blind.sum()} of {expected.sum()} pairs are blind"
    told = f"{said}: changing the token at position {table.sources[k]} does not move position {position} "
    told += f"({'no position sees any' if none else part})"
    one, other = (table.whole.row(table.row(0, change)) for change in (0, k + 1))
    return silent(told, one, other, (0, position), float(table.allowed[k, position]), usual)


def _surely_blind(trial: Answers, share: np.ndarray, others: np.ndarray, pairs: np.ndarray) -> tuple[int, int]:
    """The first of the pairs that are blind beside others that are seen so well that this one would show.

    The gap below the weakest of those has to be wider than all between it and the strongest.
    """
    length, known = share.shape[1], share[others & (share > 1)]
    if not known.size and not (trial.narrow and _any_seen(trial)):
        return int(pairs[0][0]), int(pairs[0][1])
    for k, position in pairs:
        there = share[:, position][others[:, position] & (share[:, position] > 1)]
        there = known if there.size < 2 else there
        if there.size and there.min() >= max(FAINT, there.max() ** 0.5):
            return int(k), int(position)
    little = f"some move other positions by less than {'a bit' if trial.narrow else 'rounding'}"
    raise Untold(f"in {trial.dtype} it cannot be told of {length} tokens: {little}")


def _any_seen(trial: Answers) -> bool:
    """Tell whether a token moves another position in a short text."""
    table = influence(trial, trial.model.lengths((3,))[0])
    return bool((table.shown > 1)[table.steps != 0].any())


def _faded(share: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """True where rounding may hide that a token is seen, as it moves less and less on the way there (S, T).

    From its own place to the last that it moves, ``share`` falls by a factor for each step; that is carried on.
    """
    found = np.zeros(share.shape, bool)
    for k, source in enumerate(sources):
        for side in (slice(source, None), slice(source, None, -1)):
            moved, steps = share[k, side], np.arange(share[k, side].size)
            last = np.maximum.accumulate(np.where(moved > 1, steps, 0))
            with np.errstate(all="ignore"):
                there = moved[0] * (moved[last] / moved[0]) ** (steps / last)
            found[k, side] |= (moved[0] > 1) & (there < moved[0] ** (1 / 3))
    return found


def _lengths(causal: bool) -> Callable[[Model], dict[str, Any]]:
    """Lengths of the texts for models in which a position sees nothing after it, or for the others."""

    def of(model: Model) -> dict[str, Any]:
        named = {"one text at a time" if n == 6 else f"{n} tokens": n for n in model.lengths((6, 13, 40, 130))}
        return {how: {"length": n} for how, n in named.items() if causal == model.causal}

    return of


def _table(trial: Answers, length: int, mask: bool = False) -> Influence:
    """Change every token of a short text, and some of a long one."""
    options = trial.model.marked(np.ones((1, length), bool)) if mask else {}
    places = range(length) if length <= 13 else {*(k for k in TRIED_PLACES if k < length), length - 2, length - 1}
    return influence(trial, length, sources=np.array(sorted(places)), options=options, alone=length == 6)


@ask(
    "future: with a mask", "the same where a mask says that all tokens are real", "mask",
    of=lambda model: {"": {"length": model.lengths((13,))[-1], "mask": True}} if model.causal else {},
)  # fmt: skip
@ask("future: {}", "a change of one token changes nothing before it", of=_lengths(True))
def _future(trial: Answers, length: int, mask: bool = False) -> Found:
    table, forbidden, said = _ahead(trial, length, mask)
    if length < MEASURED_TOKENS and (table.moves | ~forbidden).all():
        with contextlib.suppress(Failed, NotImplementedError):  # all of a short text may be a block, or a few ahead
            longer, beyond, words = _ahead(trial, trial.model.lengths((MEASURED_TOKENS,))[-1], mask)
            said = said if (longer.moves | ~beyond).all() or not words[0] else words
    found = nothing(trial, table, forbidden, *said)
    return found if mask else _hinted(trial, found)


def _parts(model: Model) -> dict[str, Any]:
    """The lengths of a text and of its beginning, a short and a long one."""
    pairs = [x for x in ((6, 13), (13, 40), (40, 130)) if model.lengths(x) == list(x)]
    return {f"{few} of {all_} tokens": {"few": few, "length": all_} for few, all_ in pairs[:: max(1, len(pairs) - 1)]}


@ask("future: {}", "the beginning of a text is the same alone", "beginnings", of=_parts)
def _beginning(trial: Answers, few: int, length: int) -> Found:
    tokens = trial.texts(2, length)
    places = [((b, t), (b, t)) for t in range(few) for b in range(2)]
    said = f"the first {few} tokens alone give other results than with {length - few} more behind them"
    return trial.same(Computation(tokens[:, :few]), Computation(tokens), said, OF_LENGTH, places)


def _ahead(trial: Answers, length: int, mask: bool) -> tuple[Influence, np.ndarray, tuple[str, str]]:
    """The table of a length, what may not be seen in it, and the words for what is."""
    table = _table(trial, length, mask)
    forbidden = ~trial.model.may(table.sources, length) & (table.steps > 0)
    return table, forbidden, _words(table, forbidden, mask)


def _words(table: Influence, forbidden: np.ndarray, mask: bool) -> tuple[str, str]:
    """The kind of a leak, and its usual cause."""
    if not (forbidden & table.moves).any():
        return "", ""
    leaks = forbidden & (table.shown > 1)
    ahead = table.steps[leaks]
    if ahead.size == forbidden.sum():
        before = table.shown[(table.steps < 0) & (table.shown > 1)]  # what tokens before a position do
        least = np.median(before) / 4 if before.size else np.inf
        of_narrow = np.inf if before.size else 0.0  # a narrow dtype has no such small ones
        of_rounding = 1e4 if table.finer == 1 else of_narrow
        if np.median(table.shown[leaks]) < min(of_rounding, least):
            return "every position is moved a little by all that comes after", LITTLE
        said = "every position sees all that comes after"
        return (f"{said}, once a mask is given", GIVEN_UP) if mask else (said, DROPPED)
    furthest = int(ahead.max())
    if np.array_equal(leaks, forbidden & (table.steps <= furthest)):
        return f"positions see {furthest} ahead", DIAGONAL
    return f"some positions see up to {furthest} ahead", AROUND


@ask("past: {}", "every token matters to all", of=_lengths(False))
@ask("past: {}", "a change of one token changes what comes after it", of=_lengths(True))
def _past(trial: Answers, length: int) -> Found:
    table = _table(trial, length)
    said = "not all that comes before matters" if trial.model.causal else "not every token matters"
    return _hinted(trial, something(trial, table, trial.model.must(table.sources, length), said, CUT))


def _edges(trial: Answers) -> Influence:
    """Change the first and last tokens of a text in which not all is seen, and those around the end of a part."""
    model, extent = trial.model, trial.model.visible.extent()
    wanted = (model.layers if "window" in model.sees else 2) * extent + extent * ("+" in model.sees) + 6
    length = min(wanted, model.longest or MOST_TOKENS, MOST_TOKENS)
    near = (0, 1, 2, extent - 1, extent, length // 2, length - 1)
    return influence(trial, length, sources=np.unique([k for k in near if 0 <= k < length]))


@ask("window: beyond", "what {model.sees} leaves out does not matter", "window")
def _beyond(trial: Answers) -> Found:
    model, table = trial.model, _edges(trial)
    may = model.may(table.sources, length := table.moved.shape[1])
    forbidden = ~may & (table.steps <= 0) if model.causal else ~may  # the rest is the future's
    if not forbidden.any():
        raise NotImplementedError(f"{model.sees} leaves nothing out in {length} tokens and layers: {model.layers}")
    steps = np.abs(table.steps)
    further = int(steps[forbidden & table.moves].max(initial=0) - steps[may].max())
    usual = "the window is not passed on, or is dropped beside another mask"
    said = f"{model.sees} leaves tokens out that matter" + f", up to {further} further" * (further > 0)
    return _hinted(trial, nothing(trial, table, forbidden, said, ONE_MORE if 0 < further <= model.layers else usual))


@ask("window: within", "all of {model.sees} does matter", "window")
def _within(trial: Answers) -> Found:
    model, table = trial.model, _edges(trial)
    expected = model.may(table.sources, table.moved.shape[1])
    usual = "the window counts one too few, or its layers are fewer than said"
    return _hinted(trial, something(trial, table, expected, f"not all of {model.sees} matters", usual))


def pairs_seen(trial: Answers, chunks: tuple[int, ...] = (), length: int = MEASURED_TOKENS) -> np.ndarray:
    """Pairs of a token and a position that it moves in any of some texts: (S, T)."""
    table = influence(trial, trial.model.lengths((length,))[-1], chunks=chunks)
    return np.any([table.shown > 1, *(table.again(salt=salt).shown > 1 for salt in range(1, TEXTS))], axis=0)


def fit(trial: Answers) -> tuple[str, bool]:
    """The words under which a model sees what it does see, and causal beside them; empty words where none fit."""
    if trial.fit is None:
        layers, causal = trial.model.layers, trial.model.causal
        trial.fit = "", causal
        with contextlib.suppress(Failed, NotImplementedError):  # at that length
            seen = pairs_seen(trial.wide or trial)
            fits = ((fitting(seen, layers, x), x) for x in (causal, not causal))
            trial.fit = next((found for found in fits if found[0] not in ("", "all")), trial.fit)
    return trial.fit


def _hinted(trial: Answers, found: Found) -> Found:
    """A fault with the declaration that the model would keep, if any."""
    words, causal = fit(trial) if found.verdict in (Verdict.LEAK, Verdict.SILENT) else ("", True)
    if not words or (words, causal) == (trial.model.sees, trial.model.causal):
        return found
    said = f"; it sees {told(words, causal)}: {declaration(words, causal)}, if that is meant"
    return found._replace(usual=found.usual + said)
