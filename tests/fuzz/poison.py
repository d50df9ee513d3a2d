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

NUMBERS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "big": 3e38}
ROWS = {"query": "query", "key": "key", "value": "key", "cotangent_out": "query", "cotangent_lse": "query"}
Arrays = dict[str, np.ndarray]


class Spoilt(NamedTuple):
    """Arrays with what is written into them, and what must be true of the results: masks that broadcast to each."""

    what: str
    clean: tuple[Arrays, Arrays]  # arrays and moves
    dirty: tuple[Arrays, Arrays]
    same: dict[str, np.ndarray]
    lost: dict[str, np.ndarray]


def pairs_of(case: Case, arrays: Arrays) -> dict[tuple[int, ...], np.ndarray]:
    """The pairs that are allowed in each call, by mask or bias."""
    calls = {index: data.of_call(case, arrays, index) for index in np.ndindex(*case.mapped)}
    return {index: data.allowed(case, part) & (part.get("bias", 0) != -np.inf) for index, part in calls.items()}


def spread(case: Case, name: str, of: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Where pairs touch an array of one call: each entry of the bias, else each row of query or key (…, rows)."""
    if name == "bias":
        of = of[0] if case.one_head else of
        of = of.any(tuple(range(of.ndim - len(shape))))
        return of.any(tuple(axis for axis, n in enumerate(shape) if n == 1), keepdims=True)
    rows = of.any(-1)
    if ROWS[name] == "key":
        rows = of.any(-2)
        rows = rows.reshape(*rows.shape[:-2], case.G, case.N // case.G, case.S).any(-2)
    return rows[0] if case.one_head else rows


def touched(case: Case, name: str, pairs: dict[tuple[int, ...], np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Where pairs of all calls touch an array: of the shape of the bias, or without the last axis of any other."""
    per_call = shape[len(data.outer(case, name)) :]
    found = np.zeros(shape if name == "bias" or name == "cotangent_lse" else shape[:-1], bool)
    for index, of in pairs.items():
        found[data.place(case, name, index)] |= spread(case, name, of, per_call)
    return found


def as_columns(name: str, rows: np.ndarray) -> np.ndarray:
    return rows if name in ("bias", "cotangent_lse", "lse") else rows[..., None]


def unseen(case: Case, arrays: Arrays, moves: Arrays, known: Any) -> Iterator[Spoilt]:
    """A number in all places of all arrays where nothing can matter."""
    pairs, number = pairs_of(case, arrays), NUMBERS[case.poison[1]]
    places = {}
    for name in (*ROWS, "bias"):
        of_rows = case.loss == "weighted" or not name.startswith("cotangent")  # else a loss may take them for all rows
        if name in arrays and name not in known and of_rows:
            places[name] = ~as_columns(name, touched(case, name, pairs, arrays[name].shape))
    if "bias" in places:
        places["bias"] &= arrays["bias"] != -np.inf
    dirty = arrays | {name: np.where(place, number, arrays[name]) for name, place in places.items()}
    moved = {name: np.where(places[name], number, moves[name]) for name in moves if name in places}
    yield Spoilt("unseen", (arrays, moves), (dirty, moves | moved), {}, {})


def seen(case: Case, arrays: Arrays, moves: Arrays) -> Iterator[Spoilt]:
    """A number in one place of one array, read by rows that are left out of the loss, and by rows that are not."""
    kind, name = case.poison[1:]
    of, number = name.removeprefix("move "), NUMBERS[kind]
    pairs = pairs_of(case, arrays)
    place = one_place(case, arrays[of], touched(case, of, pairs, arrays[of].shape), of)
    dirty = {of: np.where(place, number, moves[of] if name.startswith("move") else arrays[of])}
    dirty = (arrays, moves | dirty) if name.startswith("move") else (arrays | dirty, moves)
    spoiled = {index: spoiled_pairs(case, of, here, place[data.place(case, of, index)])
               for index, here in pairs.items()}  # fmt: skip
    first = case.direction in ("forward", "jvp")
    if not first and not name.startswith("cotangent"):  # rows that nothing reads
        out_of_loss = {x: touched(case, x, spoiled, arrays[x].shape) for x in ("cotangent_out", "cotangent_lse")}
        quiet = {x: np.where(as_columns(x, rows), 0, arrays[x]) for x, rows in out_of_loss.items()}
        clean = arrays | quiet, moves
        yield Spoilt(f"{name}, read by nothing", clean, (dirty[0] | quiet, dirty[1]), {}, {})
    same, lost = expected(case, arrays, spoiled)
    if kind == "big" or case.dropout == 1:
        lost = {}
    yield Spoilt(name, (arrays, moves), dirty, same, lost)


def one_place(case: Case, array: np.ndarray, used: np.ndarray, name: str) -> np.ndarray:
    """One entry of an array, of a row that something may look at where there is any."""
    place = np.zeros(array.shape, bool)
    if used.ndim < array.ndim:
        used = np.broadcast_to(used[..., None], array.shape)
    choices = np.flatnonzero(used & (array != -np.inf))
    if choices.size:
        place.flat[data.generator(case, f"poison {name}").choice(choices)] = True
    return place


def spoiled_pairs(case: Case, name: str, pairs: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The allowed pairs of all queries of one call that look at a place, or are it."""
    if name == "bias":
        rows = (pairs & place).any(-1)
    else:
        here = place if name == "cotangent_lse" else place.any(-1)
        here = here[None] if case.one_head else here
        if ROWS[name] == "key":
            here = (pairs & np.repeat(here, case.N // case.G, axis=-2)[..., None, :]).any(-1)
        rows = here
    return pairs & rows[..., None]


def expected(case: Case, arrays: Arrays, spoiled: Any) -> tuple[Arrays, Arrays]:
    """The entries of each result that must keep their bits, and those that must be NaN, where all rows are read."""
    if case.direction in ("forward", "jvp"):
        rows = touched(case, "cotangent_lse", spoiled, arrays["cotangent_lse"].shape)
        lost = {"out": rows[..., None], "lse": rows}
        same = {name: ~x for name, x in lost.items()}
        moved = set(case.wanted) - {"mod"}
        if case.direction == "jvp" and not moved:
            lost = {}  # a modifier's own move may be 0
        elif case.direction == "jvp" and moved == {"value"}:
            lost = {"out": lost["out"]}  # lse does not move
        return same, lost
    lost = {name: each(case, name, arrays[name], spoiled)
            for name in data.wanted(case, arrays) if data.group(name) != "mod"}  # fmt: skip
    some = any(x.any() for x in spoiled.values())
    same = {name: np.array(not some) for name in data.wanted(case, arrays)} | {name: ~x for name, x in lost.items()}
    name, moved = case.poison[2], {*case.wanted} if case.direction == "fr" else {"query"}
    if case.lse or name == "cotangent_lse" or not moved & {"query", "key", "bias"}:
        lost.pop("value", None)
    if (case.direction == "fr" and name == "move value" and case.lse) or moved <= {"mod"}:
        lost = {}
    return same, lost


def each(case: Case, name: str, array: np.ndarray, spoiled: Any) -> np.ndarray:
    """Where the gradient of an array reads spoiled rows."""
    if not case.inside:
        return as_columns(name, touched(case, name, spoiled, array.shape))
    per_call = array.shape[len(data.outer(case, name)) :]
    rows = np.stack([spread(case, name, of, per_call) for of in spoiled.values()])
    return as_columns(name, rows.reshape(*case.mapped, *rows.shape[1:]))


def spoilt(case: Case, arrays: Arrays, moves: Arrays, known: Any) -> Iterator[Spoilt]:
    """What to run for the poison of a case."""
    if case.poison:
        yield from unseen(case, arrays, moves, known) if case.poison[0] == "unseen" else seen(case, arrays, moves)
