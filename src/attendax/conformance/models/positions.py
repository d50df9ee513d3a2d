"""Order matters, and where a text begins does not, as the model encodes positions."""

import numpy as np

from .blackbox import Request
from .trial import FINE, Found, Laws, Trial, distance, same, silent

TRIES = 4
LENGTH = 9
laws = Laws("positions")


def _swapped(tokens: np.ndarray, one: int = 1, other: int = 4) -> np.ndarray:
    found = tokens.copy()
    found[:, [one, other]] = tokens[:, [other, one]]
    return found


@laws.ask("positions: order", "swapping two tokens changes what is at others", "order")
def _order(trial: Trial) -> Found:
    tokens = trial.texts(TRIES, LENGTH)
    one, other, third = _three(trial)
    tokens[:, other] = np.where(tokens[:, other] == tokens[:, one], trial.others(tokens)[:, other], tokens[:, other])
    said = "swapping two tokens changes nothing at a third: the order does not matter"
    usual = "the positional encoding is not added, is a constant, or is applied along the wrong axis"
    return _differs(trial, Request(tokens), Request(_swapped(tokens, one, other)), third, said, usual)


def _three(trial: Trial) -> tuple[int, int, int]:
    """Two tokens, and a position that sees both of them."""
    seen = trial.model.visible.pairs(LENGTH)
    tries = [(1, 4, 7), *((k, k + 1, t) for t in range(2, LENGTH) for k in range(t - 2, -1, -1))]
    found = next((x for x in tries if seen[x[0], x[2]] and seen[x[1], x[2]]), None)
    if found is None:
        raise NotImplementedError(f"no position sees two others within {trial.model.sees}")
    return found


def _differs(trial: Trial, one: Request, other: Request, position: int, said: str, usual: str) -> Found:
    """Find a difference at a position, in one of the rows at least."""
    before, after = trial.ask(one)[:, position], trial.ask(other)[:, position]
    if (distance(before, after) > trial.allowed(before)).any():
        return FINE
    return silent(said, one.row(0), other.row(0), (0, position), float(trial.allowed(before)[0]), usual)


@laws.ask("positions: no order", "swapping two tokens swaps their results", "no order")
def _no_order(trial: Trial) -> Found:
    tokens = trial.texts(TRIES, LENGTH)
    order = [0, 4, 2, 3, 1, *range(5, LENGTH)]
    places = [((b, order[t]), (b, t)) for b in range(TRIES) for t in range(LENGTH)]
    said = "swapping two tokens does more than swap their results"
    usual = "a positional encoding, or a mask that depends on the place"
    return same(trial, Request(tokens), Request(_swapped(tokens)), said, usual, places)


def counted(rows: int, length: int, start: int = 0) -> dict[str, np.ndarray]:
    """The keyword of positions that count from a start on, (rows, length)."""
    return {"positions": np.tile(np.arange(start, start + length, dtype=np.int32), (rows, 1))}


@laws.ask("positions: given", "the positions 0, 1, 2, ... are those without any", "given positions")
def _given(trial: Trial) -> Found:
    tokens = trial.texts(2, LENGTH)
    said = "positions 0, 1, 2, ... differ from the model's own"
    usual = "positions that begin at 1, or at the padding token"
    return same(trial, Request(tokens), Request(tokens, counted(2, LENGTH)), said, usual)


@laws.ask("positions: shifted", "positions from k on give the same", "given positions", "relative")
def _shifted(trial: Trial) -> Found:
    tokens = trial.texts(2, LENGTH)
    one, other = Request(tokens, counted(2, LENGTH)), Request(tokens, counted(2, LENGTH, 11))
    said = "positions that begin at 11 give other results"
    usual = "the rotation of queries and keys differs, values are rotated, or it is added where it should turn"
    return same(trial, one, other, said, usual, slack=8)


@laws.ask("positions: not ignored", "positions in another order matter", "given positions", "order")
def _used(trial: Trial) -> Found:
    tokens = trial.texts(TRIES, LENGTH)
    one, other, third = _three(trial)
    plain = counted(TRIES, LENGTH)
    mixed = {"positions": _swapped(plain["positions"], one, other)}
    said, usual = "positions in another order change nothing: they are ignored", "the argument is not used"
    return _differs(trial, Request(tokens, plain), Request(tokens, mixed), third, said, usual)
