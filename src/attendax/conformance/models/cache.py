"""Step by step, through a cache, equals the whole."""

import numpy as np

from ..judge.verdicts import Verdict
from ..worker.errors import Failed
from .blackbox import Request
from .positions import counted
from .sees import fitting, told
from .trial import Found, Laws, Places, Trial, same
from .visible import measured

LENGTH = 9
PREFIX = (5, 1, 1, 1, 1)
WAYS = {  # chunks of the text
    "one at a time": (1,) * LENGTH,
    "a prefix, then one at a time": PREFIX,
    "chunks": (2, 4, 3),
    "the whole at once": (LENGTH,),
}
USUAL = (
    "the step is given the wrong position, its causal mask is aligned to the first key, the cache is written one off, "
    "or empty places of it are seen"
)
ELSEWHERE = (
    "through the cache it sees the same tokens, at other places: positions, or a bias by them, begin anew in a step or "
    "are one off"
)
AHEAD = "its causal mask lets it see what comes after"
OVERWRITTEN = "tokens of earlier steps are overwritten, or hidden by a mask that is aligned to the step"
laws = Laws("cache")


def _places(rows: int = 2, first: int = 0) -> Places:
    return [((b, t), (b, t)) for t in range(first, LENGTH) for b in range(rows)]


@laws.ask("cache: longer", "a cache with room for more changes nothing", "cache", of={"": {"room": LENGTH + 7}})
@laws.ask("cache: {}", "{}, as the whole without a cache", "cache", of={k: {"chunks": x} for k, x in WAYS.items()})
def _chunks(trial: Trial, chunks: tuple[int, ...] = PREFIX, room: int = LENGTH) -> Found:
    tokens = trial.texts(2, LENGTH)
    stepped = Request(tokens, chunks=chunks, room=room)
    said = f"through the cache, {' + '.join(map(str, chunks))} tokens, results differ from the whole"
    found = same(trial, Request(tokens), stepped, said, USUAL, _places())
    if found.finding.verdict is not Verdict.WRONG:
        return found
    return found._replace(usual=_reason(trial, stepped) or USUAL)


def _reason(trial: Trial, stepped: Request) -> str:
    """The cause of a wrong step: the tokens that it sees, or their places."""
    if "positions of steps" in trial.model.steps:
        told_where = same(trial, Request(stepped.tokens), stepped._replace(options=counted(2, LENGTH)), "", "")
        if not told_where.finding.verdict.fails:
            return "the step's own positions: given 0, 1, 2, ... it is right"
    try:
        through, whole = (measured(trial, chunks, LENGTH) for chunks in (stepped.chunks, ()))
    except (Failed, NotImplementedError):
        return ""
    if np.array_equal(through, whole):
        return ELSEWHERE
    words = fitting(through, trial.model.layers, trial.model.causal)
    ahead = (through & ~whole & (np.arange(LENGTH)[:, None] > np.arange(LENGTH)[None])).any()
    more, less = (through & ~whole).any(), (whole & ~through).any()
    seen = f"through the cache a position sees {told(words)}" if words else "through the cache it sees other tokens"
    why = [AHEAD if ahead else "a window, or a mask, is not passed on to the step"] * bool(more)
    return f"{seen}: " + ", and ".join(why + [OVERWRITTEN] * bool(less))


@laws.ask("cache: beams", "rows go on from other rows of the cache", "cache", "reordering")
def _beams(trial: Trial) -> Found:
    tokens = trial.texts(3, LENGTH)
    order = (2, 0, 0)
    whole = tokens.copy()
    whole[:, :5] = tokens[list(order), :5]
    stepped = Request(tokens, chunks=PREFIX, room=LENGTH, order=order)
    said = "rows that go on from other rows of the cache differ from their own whole texts"
    usual = "the cache is reordered in some layers only, or along the wrong axis"
    return same(trial, Request(whole), stepped, said, usual, _places(3, 5))


@laws.ask("cache: rewound", "a row goes back and writes again, beside one that goes on", "cache", "positions of steps")
def _rewound(trial: Trial) -> Found:
    tokens = trial.texts(2, LENGTH)
    back = tokens.copy()
    back[0, 5:] = tokens[0, 3:7]  # the first row writes the places 3 to 6 once more
    back[0, 3:5] = trial.others(tokens)[0, 3:5]
    at = counted(2, LENGTH)
    at["positions"][0, 5:] -= 2
    stepped = Request(back, at, chunks=PREFIX, room=LENGTH)
    pairs = [((0, 3 + t), (0, 5 + t)) for t in range(4)] + [((1, t), (1, t)) for t in range(5, LENGTH)]
    usual = "one offset for all rows, or places that were written before are still seen"
    said = "rows at different places of the cache differ from the whole"
    return same(trial, Request(tokens), stepped, said, usual, pairs)
