"""Step by step, through a cache, equals the whole."""

from functools import partial

import numpy as np

from .blackbox import Model
from .equality import same
from .law import Law
from .request import Request
from .trial import Found, Trial

LENGTH = 9
WAYS = {  # chunks of the text
    "one at a time": (1,) * LENGTH,
    "a prefix, then one at a time": (5, 1, 1, 1, 1),
    "chunks": (2, 4, 3),
    "the whole at once": (LENGTH,),
}
USUAL = (
    "the step is given the wrong position, its causal mask is aligned to the first key, the cache is written one off, "
    "or empty places of it are seen"
)


def laws(model: Model) -> list[Law]:
    """The questions for a model."""
    chunks = [
        Law(
            "cache",
            f"cache: {name}",
            f"{name}, as the whole without a cache",
            partial(_chunks, chunks=sizes),
            ("cache",),
        )
        for name, sizes in WAYS.items()
    ]
    return [
        *chunks,
        Law("cache", "cache: longer", "a cache with room for more changes nothing", _longer, ("cache",)),
        Law("cache", "cache: beams", "rows go on from other rows of the cache", _beams, ("cache", "reordering")),
        Law("cache", "cache: rewound", "a row goes back and writes again, beside one that goes on", _rewound,
            ("cache", "positions of steps")),
    ]  # fmt: skip


def _places(rows: int = 2, first: int = 0) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return [((b, t), (b, t)) for t in range(first, LENGTH) for b in range(rows)]


def _chunks(trial: Trial, chunks: tuple[int, ...], room: int = LENGTH) -> Found:
    tokens = trial.texts(2, LENGTH)
    stepped = Request(tokens, chunks=chunks, room=room)
    said = f"through the cache, {' + '.join(map(str, chunks))} tokens, results differ from the whole"
    return same(trial, Request(tokens), stepped, _places(), said, USUAL)


def _longer(trial: Trial) -> Found:
    return _chunks(trial, WAYS["a prefix, then one at a time"], room=LENGTH + 7)


def _beams(trial: Trial) -> Found:
    tokens = trial.texts(3, LENGTH)
    order = (2, 0, 0)
    whole = tokens.copy()
    whole[:, :5] = tokens[list(order), :5]
    stepped = Request(tokens, chunks=(5, 1, 1, 1, 1), room=LENGTH, order=order)
    said = "rows that go on from other rows of the cache differ from their own whole texts"
    usual = "the cache is reordered in some layers only, or along the wrong axis"
    return same(trial, Request(whole), stepped, _places(3, 5), said, usual)


def _rewound(trial: Trial) -> Found:
    tokens = trial.texts(2, LENGTH)
    back = tokens.copy()
    back[0, 5:] = tokens[0, 3:7]  # the first row writes the places 3 to 6 once more
    back[0, 3:5] = trial.others(tokens)[0, 3:5]
    places = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (2, LENGTH)).copy()
    places[0, 5:] -= 2
    stepped = Request(back, {"positions": places}, chunks=(5, 1, 1, 1, 1), room=LENGTH)
    pairs = [((0, 3 + t), (0, 5 + t)) for t in range(4)] + [((1, t), (1, t)) for t in range(5, LENGTH)]
    usual = "one offset for all rows, or places that were written before are still seen"
    return same(
        trial, Request(tokens), stepped, pairs, "rows at different places of the cache differ from the whole", usual
    )
