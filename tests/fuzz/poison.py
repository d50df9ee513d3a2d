"""L6: what is masked cannot matter, and what is not finite and seen counts as NaN.

A number that is not finite is written where nothing can see it, into all arrays at once; or one number into one array
where something may see it. Then each result has entries that must keep their bits, since they do not see it; entries
that must be NaN; and entries of which nothing is said here:

- where what is written is finite, 3e38: whoever sees it gets large numbers, or NaN where they overflow;
- where dropout leaves nothing, which is 0 (L10);
- the gradients of a modifier's arrays, to which all rows add;
- what no row depends on: gradients of the value where the loss reads lse alone, their derivatives along a value alone;
- the gradient of the value where one number of the cotangent of lse is not finite.

The rows of a spoiled query are read twice: with a cotangent of 0, which must keep all gradients as they are, and as the
case has it, which must make them NaN.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from . import data
from .case import Case
from .data import Arrays

NUMBERS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "big": 3e38}
OPERANDS = ("query", "key", "value", "cotangent_out", "cotangent_lse", "bias")


class Spoilt(NamedTuple):
    """Arrays with what is written into them, and what must be true of the results: masks that broadcast to each."""

    what: str
    clean: tuple[Arrays, Arrays]  # arrays and moves
    dirty: tuple[Arrays, Arrays]
    same: dict[str, np.ndarray]
    lost: dict[str, np.ndarray]


def pairs_of(case: Case, arrays: Arrays) -> np.ndarray:
    """The pairs that are allowed in each call, by mask or bias: (maps, scores)."""
    found = np.zeros((*case.mapped, *case.scores), bool)
    for index in np.ndindex(*case.mapped):
        part = data.of_call(case, arrays, index)
        found[index] = data.allowed(case, part) & (part.get("bias", 0) != -np.inf)
    return found


def in_rows(name: str, x: np.ndarray) -> np.ndarray:
    """Whether something is true of an entry of each row; a row of a bias or of lse is one entry."""
    return x if name in ("bias", "cotangent_lse", "lse") else x.any(-1)


def in_columns(name: str, rows: np.ndarray) -> np.ndarray:
    return rows if name in ("bias", "cotangent_lse", "lse") else rows[..., None]


def rows_of(case: Case, name: str, inside: bool = False) -> tuple[np.ndarray, tuple[int, ...]]:
    """For all pairs of all calls the number of the row of an array that they read, and the shape of these rows.

    ``inside``: of its gradient in each call alone, which is shared by none.
    """
    own = data.axes(case)[name]
    own = own if name in ("bias", "cotangent_lse") else own[:-1]
    sizes = data.shape(case, name, own)[len(data.outer(case, name)) :]
    maps = [1 if case.is_shared(name, level) and not inside else n for level, n in enumerate(case.mapped)]
    most = len(case.scores) - (name != "bias")
    rows = np.arange(np.prod((*maps, *sizes), dtype=int)).reshape(*maps, *(1,) * (most - len(sizes)), *sizes)
    if name in ("key", "value"):
        rows = np.repeat(rows, case.N // case.G, axis=-2)[..., None, :]
    elif name != "bias":
        rows = rows[..., None]
    outer = case.mapped if inside else data.outer(case, name)
    return np.broadcast_to(rows, (*case.mapped, *case.scores)), (*outer, *sizes)


def touched(case: Case, name: str, pairs: np.ndarray, inside: bool = False) -> np.ndarray:
    """The rows of an array that some of the pairs read."""
    rows, shape = rows_of(case, name, inside)
    found = np.zeros(shape, bool)
    found.flat[rows[pairs]] = True
    return found


def unseen(case: Case, arrays: Arrays, moves: Arrays, known: Any) -> Iterator[Spoilt]:
    """A number in all places of all arrays where nothing can matter."""
    pairs, number = pairs_of(case, arrays), NUMBERS[case.poison[1]]
    places = {}
    for name in OPERANDS:
        of_rows = case.loss == "weighted" or not name.startswith("cotangent")  # else a loss may take them for all rows
        if name in arrays and name not in known and of_rows:
            places[name] = ~in_columns(name, touched(case, name, pairs))
    if "bias" in places:
        places["bias"] &= arrays["bias"] != -np.inf
    dirty, moved = ({name: np.where(place, number, x[name]) for name, place in places.items() if name in x}
                    for x in (arrays, moves))  # fmt: skip
    yield Spoilt("unseen", (arrays, moves), (arrays | dirty, moves | moved), {}, {})


def seen(case: Case, arrays: Arrays, moves: Arrays) -> Iterator[Spoilt]:
    """A number in one place of one array, read by rows that are left out of the loss, and by rows that are not."""
    kind, name = case.poison[1:]
    of, pairs = name.removeprefix("move "), pairs_of(case, arrays)
    place, used = np.zeros(arrays[of].shape, bool), in_columns(of, touched(case, of, pairs))
    choices = np.flatnonzero(used & (arrays[of] != -np.inf))
    if choices.size:
        place.flat[data.generator(case, f"poison {of}").choice(choices)] = True
    dirty = {of: np.where(place, NUMBERS[kind], (moves if name.startswith("move") else arrays)[of])}
    dirty = (arrays, moves | dirty) if name.startswith("move") else (arrays | dirty, moves)
    spoiled = pairs & (pairs & in_rows(of, place).flat[rows_of(case, of)[0]]).any(-1, keepdims=True)
    if case.direction not in ("forward", "jvp") and not name.startswith("cotangent"):  # rows that nothing reads
        quiet = {x: np.where(in_columns(x, touched(case, x, spoiled)), 0, arrays[x])
                 for x in ("cotangent_out", "cotangent_lse")}  # fmt: skip
        yield Spoilt(f"{name}, read by nothing", (arrays | quiet, moves), (dirty[0] | quiet, dirty[1]), {}, {})
    same, lost = expected(case, arrays, spoiled)
    yield Spoilt(name, (arrays, moves), dirty, same, {} if kind == "big" or case.dropout == 1 else lost)


def expected(case: Case, arrays: Arrays, spoiled: np.ndarray) -> tuple[Arrays, Arrays]:
    """The entries of each result that must keep their bits, and those that must be NaN, where all rows are read."""
    if case.direction in ("forward", "jvp"):
        rows = touched(case, "cotangent_lse", spoiled)
        lost = {"out": rows[..., None], "lse": rows}
        same = {name: ~x for name, x in lost.items()}
        moved = set(case.wanted) - {"mod"}
        if case.direction == "jvp" and moved <= {"value"}:  # lse does not move, and a modifier's own move may be 0
            lost = {"out": lost["out"]} if moved else {}
        return same, lost
    wanted, name = data.wanted(case, arrays), case.poison[2]
    lost = {x: in_columns(x, touched(case, x, spoiled, case.inside)) for x in wanted if data.group(x) != "mod"}
    same = {x: np.array(not spoiled.any()) for x in wanted} | {x: ~rows for x, rows in lost.items()}
    moved = {*case.wanted} if case.direction == "fr" else {"query"}
    if case.lse or name == "cotangent_lse" or not moved & {"query", "key", "bias"}:
        lost.pop("value", None)
    if (case.direction == "fr" and name == "move value" and case.lse) or moved <= {"mod"}:
        lost = {}
    return same, lost


def spoilt(case: Case, arrays: Arrays, moves: Arrays, known: Any) -> Iterator[Spoilt]:
    """What to run for the poison of a case."""
    if case.poison:
        yield from unseen(case, arrays, moves, known) if case.poison[0] == "unseen" else seen(case, arrays, moves)
