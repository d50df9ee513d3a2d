"""A table of influence: change one token, and see which positions move.

Most laws of models are statements about this one table: no position moves when a later token changes; each moves when
an earlier one does; none when padding does.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from ..judge.verdicts import Finding, Verdict
from .blackbox import Request
from .trial import FINE, Evidence, Found, Trial, beside_rounding, distance, measure_of, measured, not_a_number, silent

TEXTS = 3  # a token that matters may matter little in one text
LONG = 100  # tokens of a text so long that one is asked at a time
TRIES = 5  # times as many texts, until a token that has to matter does


class Influence(NamedTuple):
    """Movements of each position when one token changes."""

    sources: np.ndarray  # the positions whose token was changed (S,)
    moved: np.ndarray  # the largest movement of each position (S, T)
    allowed: np.ndarray  # of it by rounding (S, T)
    whole: Request  # all that was asked, in one batch: each text, then it with each change
    base: tuple[Request, ...]  # its rows before the change, by text
    changed: tuple[tuple[Request, ...], ...]  # and after it, by text and source
    by_text: np.ndarray  # how far each position moves, (texts, S, T)
    results: np.ndarray  # before the change, (texts, T, C)
    again: Callable[..., "Influence"]  # gives the table of other texts, of ``sources`` and ``salt``


def influence(
    trial: Trial, length: int, *, sources: np.ndarray | None = None, options: Mapping[str, np.ndarray] | None = None,
    alone: bool = False, base: np.ndarray | None = None, salt: int = 0, chunks: tuple[int, ...] = (),
) -> Influence:  # fmt: skip
    """Change one token of a text at a time: all of them, or ``sources``; ``options`` are of one text, (1, T) or (1,).

    All texts, changed and not, are rows of one batch, unless each is asked ``alone``. They are random unless ``base``
    (T,) is given; with a salt they are of vectors of one length alone, where attention is less sharp.
    """
    again = partial(influence, trial, length, options=options, alone=alone, base=base, chunks=chunks)
    sources = np.arange(length) if sources is None else sources
    count = 1 if alone else TEXTS if length < LONG else 1
    texts = trial.texts(count, length, salt=salt) if base is None else np.broadcast_to(base, (count, length))
    others = np.stack([trial.others(text, salt=k + count * salt) for k, text in enumerate(texts)])
    rows = np.repeat(texts[:, None], 1 + len(sources), axis=1)
    for k, source in enumerate(sources):
        rows[:, k + 1, source] = others[:, source]
    flat = rows.reshape(-1, length)
    given = {name: np.repeat(x, len(flat), axis=0) for name, x in (options or {}).items()}
    whole = Request(flat, given, chunks=chunks, room=length if chunks else 0)
    asked = [whole.row(k) for k in range(len(flat))] if alone else [whole]
    found = np.concatenate([trial.ask(request) for request in asked])
    found = found.reshape(count, 1 + len(sources), length, -1)
    by_text = distance(found[:, :1], found[:, 1:])
    ones = [whole.row(k) for k in range(len(flat))]
    step = 1 + len(sources)
    changed = tuple(tuple(ones[k * step + 1 : (k + 1) * step]) for k in range(count))
    allowed = np.broadcast_to(trial.allowed(found[:, 0])[:, None], by_text.shape).max(0)
    return Influence(sources, by_text.max(0), allowed, whole, tuple(ones[::step]), changed, by_text, found[:, 0], again)


def nothing(trial: Trial, table: Influence, forbidden: np.ndarray, said: str, usual: str) -> Found:
    """No token may move a position where ``forbidden`` (S, T) says so.

    ``said`` and ``usual`` as ``words`` makes them; the finding is the leak that is nearest.
    """
    real = ~np.isnan(table.results).any(-1)
    if not real.all() and (missing := ~real & forbidden.any(0)).any():
        text, position = np.argwhere(missing)[0]
        return not_a_number(table.base[text], (0, int(position)))
    leaks = forbidden & (table.moved > table.allowed)
    if not leaks.any():
        return measured(table.moved[forbidden], table.allowed[forbidden])
    pairs = np.argwhere(leaks)
    steps = np.abs(table.sources[pairs[:, 0]] - pairs[:, 1])
    index, position = pairs[np.lexsort((-table.moved[leaks], steps))[0]]
    source, text = int(table.sources[index]), int(table.by_text[:, index, position].argmax())
    one, other = table.base[text], table.changed[text][index]
    moved, allowed = float(table.moved[index, position]), float(table.allowed[index, position])
    verdict = Verdict.LEAK if np.isfinite(moved) else Verdict.NAN
    told = f"{said}: another token at {source} moves position {position} by {moved:.2g}"
    told += f", {beside_rounding(moved, allowed)}"
    place = (0, int(position))
    evidence = Evidence(one, other, place, place, allowed)
    if not distance(trial.ask(one)[0, position], trial.ask(other)[0, position]) > allowed:  # it takes the whole batch
        first = text * (1 + len(table.sources))
        before, after = ((first + k, int(position)) for k in (0, int(index) + 1))
        evidence = Evidence(table.whole, table.whole, before, after, allowed)
    finding = measure_of(Finding(verdict, told), table.results[text, position], moved, allowed, place)
    return Found(finding, evidence, usual)


def something(trial: Trial, table: Influence, expected: np.ndarray, said: str, usual: str) -> Found:
    """Each token has to move a position where ``expected`` (S, T) says so, in one of the texts at least."""
    blind = expected & ~(table.moved > table.allowed)
    for salt in range(1, TRIES + 1):
        left = np.flatnonzero(blind.any(1))
        if left.size:
            other = table.again(sources=table.sources[left], salt=salt)
            blind[left] &= ~(other.moved > other.allowed)
    if not blind.any():
        return FINE
    pairs = np.argwhere(blind)
    steps = np.abs(table.sources[pairs[:, 0]] - pairs[:, 1])
    index, position = pairs[steps.argmin()]
    source = int(table.sources[index])
    share = blind.sum() / expected.sum()
    count = "no position sees any" if share == 1 else f"{blind.sum()} of {expected.sum()} pairs are blind"
    told = f"{said}: another token at {source} does not move position {position} ({count})"
    place, allowed = (0, int(position)), float(table.allowed[index, position])
    return silent(told, table.base[0], table.changed[0][index], place, allowed, usual)
