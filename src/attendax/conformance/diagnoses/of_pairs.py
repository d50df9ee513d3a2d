"""Reasons that are other pairs of a query and a key: causal, masks, windows, lengths and ids read otherwise."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..cases.case import Inputs, Leaves
from ..judge.judges import ONE_QUERY
from ..judge.parts import MASKS
from ..judge.trial import Trial
from . import by_hand
from .hypothesis import KEY_BLOCKS, Change, Hypothesis, allowed, heads_of, lengths, of_inputs, other, with_


def of_change(name: str, change: Change, remedy: str = "", *, filled: bool = True) -> Hypothesis:
    """A reason that is other inputs."""
    return Hypothesis(name, of_inputs(change), remedy, change, filled, saved(change))


def saved(change: Change) -> Any:
    """The gradients of other inputs by a backward that has lse and delta of a right forward."""

    def gives(trial: Trial) -> Leaves | None:
        inputs = change(trial.inputs)
        return None if inputs is None else by_hand.backward(inputs, saved=trial.inputs)

    return gives


def _causal(offset: Any) -> Change:
    def changed(inputs: Inputs) -> Inputs | None:
        if not inputs.options.get("is_causal"):
            return None
        begins = inputs.options.get("offset", 0)
        moved = np.asarray(offset(begins, *lengths(inputs)))
        return with_(inputs, offset=moved)

    return changed


def _from_the_start(inputs: Inputs) -> Inputs | None:
    """It is right unless the end is declared."""
    if not inputs.options.get("is_causal") or inputs.options.get("offset") is not None:
        return None
    return with_(inputs, offset=np.asarray(0))


def _only(inputs: Inputs, seen: np.ndarray, *less: str) -> Inputs:
    """These pairs alone, of those that a mask leaves; without some options."""
    (T, S), query, mask = lengths(inputs), inputs.arrays["query"], inputs.options.get("mask")
    seen = seen if mask is None else seen & mask
    options = {k: x for k, x in inputs.options.items() if k not in less}
    return inputs._replace(options=options | {"mask": np.broadcast_to(seen, (*query.shape[:-2], T, S))})


def _causal_as(seen: Callable[..., np.ndarray]) -> Change:
    """Other pairs in place of causal's: of the positions of queries among the keys, those of keys, and the inputs."""

    def changed(inputs: Inputs) -> Inputs | None:
        if not inputs.options.get("is_causal"):
            return None
        (T, S), begins = lengths(inputs), np.asarray(inputs.options.get("offset", 0))
        begins = begins[..., None, None, None] if begins.ndim else begins
        return _only(inputs, seen(np.arange(T)[:, None] + begins, np.arange(S), inputs), "is_causal", "offset")

    return changed


def _by_the_group(inputs: Inputs) -> Inputs | None:
    N, G = heads_of(inputs)
    return _causal_as(lambda i, j, _: j <= i // (N // G))(inputs) if N > G else None


def _swapped(inputs: Inputs) -> Inputs | None:
    """What every mask and bound together forbid is seen, and nothing else."""
    less = [k for k in MASKS if inputs.options.get(k) is not None]
    return _only(inputs._replace(options={**inputs.options, "mask": None}), ~allowed(inputs), *less) if less else None


def _causal_unasked(inputs: Inputs) -> Inputs | None:
    T, S = lengths(inputs)
    return None if inputs.options.get("is_causal") else _only(inputs, np.tri(T, S, dtype=bool))


def _causal_in_one_row(inputs: Inputs) -> Inputs | None:
    T, S = lengths(inputs)
    if T > 1 or not inputs.options.get("is_causal"):
        return None
    return _only(inputs, np.ones((T, S), bool), "is_causal", "offset")


def _lengths_of_queries(inputs: Inputs) -> Inputs | None:
    if inputs.options.get("key_lengths") is None:
        return None
    T, ends = lengths(inputs)[0], np.asarray(inputs.options["key_lengths"])[..., None, None, None]
    return _only(inputs, np.arange(T)[:, None] < ends, "key_lengths")


def _keys(seen: Callable[[int, int], slice], block: int) -> Change:
    """Some of the keys only, of their number and a block."""

    def changed(inputs: Inputs) -> Inputs | None:
        S = lengths(inputs)[1]
        some = np.isin(np.arange(S), np.arange(S)[seen(S, block)])
        return None if some.all() else _only(inputs, some)

    return changed


def _tiles_by_their_first_query(rows: int, keys: int) -> Change:
    """Of a mask, what lies in a block of queries and keys of which the first query sees something."""

    def changed(inputs: Inputs) -> Inputs | None:
        (T, S), mask = lengths(inputs), inputs.options.get("mask")
        if mask is None or mask.ndim < 2 or mask.shape[-2] < T or T == 1:
            return None
        first = np.broadcast_to(mask, (*mask.shape[:-1], S))[..., ::rows, :]
        counts = np.logical_or.reduceat(first, np.arange(0, S, keys), axis=-1)
        return _only(inputs, counts.repeat(rows, axis=-2)[..., :T, :].repeat(keys, axis=-1)[..., :S])

    return changed


def first_of(axis: int) -> Any:
    """Of a mask or a bias of rank 4, only the first along an axis."""

    def first(x: np.ndarray, inputs: Inputs) -> np.ndarray | None:
        if x.ndim != 4 or x.shape[axis] == 1:
            return None
        return np.broadcast_to(x.take([0], axis), x.shape)

    return first


def turned(x: np.ndarray, inputs: Inputs) -> np.ndarray | None:
    """A mask or a bias with queries and keys swapped."""
    T, S = lengths(inputs)
    return x.swapaxes(-1, -2) if T == S and x.ndim > 1 else None


def first_of_batch(x: np.ndarray, inputs: Inputs) -> np.ndarray | None:
    """What the first batch has, for all."""
    return np.broadcast_to(x[:1], x.shape) if np.ndim(x) else None


def _ids_swapped(inputs: Inputs) -> Inputs | None:
    of_queries, of_keys = (inputs.options.get(f"{name}_segment_ids") for name in ("query", "key"))
    return None if of_keys is None else with_(inputs, query_segment_ids=of_keys, key_segment_ids=of_queries)


def _key_ids(ids: np.ndarray, inputs: Inputs) -> np.ndarray | None:
    of_keys: np.ndarray = inputs.options["key_segment_ids"]
    return of_keys if of_keys.shape == ids.shape else None


def _moved(by: int) -> Any:
    return lambda x, inputs: np.clip(np.asarray(x) + by, 0, lengths(inputs)[1])


def _sides(left: int, right: int) -> Any:
    return lambda sides, _: tuple(None if s is None else s + d for s, d in zip(sides, (left, right), strict=True))


HYPOTHESES = [
    of_change("causal is aligned to the end of the keys", _causal(lambda b, T, S: S - T), "--causal end", filled=False),
    of_change("causal is aligned to the start of the keys", _from_the_start, "--causal start", filled=False),
    of_change("causal leaves out a query's own key (j < i)", _causal(lambda b, T, S: b - 1)),
    of_change("causal lets a query see one key ahead (j <= i + 1)", _causal(lambda b, T, S: b + 1)),
    of_change(
        "causal is turned round: a query sees its own key and those after it (j >= i)",
        _causal_as(lambda i, j, inputs: j >= i),
    ),
    of_change("causal divides the position of a query by the heads of a group", _by_the_group),
    *(
        of_change("causal skips the block of the diagonal", _causal_as(lambda i, j, _, b=b: j < i // b * b))
        for b in KEY_BLOCKS[2:]
    ),
    of_change("it is causal, which is not asked", _causal_unasked),
    of_change(f"{ONE_QUERY}: causal is left out there", _causal_in_one_row, "--causal decode"),
    of_change("the offset of a cache is not added", other("offset", lambda x, _: 0 * x)),
    of_change("the offset of a cache is added twice", other("offset", lambda x, _: 2 * np.asarray(x))),
    of_change("every batch gets the offset of the first", other("offset", first_of_batch)),
    of_change("True in a mask means drop", other("mask", lambda x, _: ~x), "--mask-true drop"),
    of_change("the pairs that are allowed and those that are not are swapped", _swapped),
    of_change("the mask is read with queries and keys swapped", other("mask", turned)),
    of_change("every batch gets the mask of the first", other("mask", first_of(0))),
    of_change("every head gets the mask of the first", other("mask", first_of(1))),
    *(
        of_change("a block is skipped where the mask hides it from its first query", by_the_first)
        for by_the_first in (_tiles_by_their_first_query(n * b, b) for b in KEY_BLOCKS for n in (1, 2))
    ),
    of_change("key lengths are off by one, too short", other("key_lengths", _moved(-1))),
    of_change("key lengths are off by one, too long", other("key_lengths", _moved(1))),
    of_change("key lengths hide queries, and no keys", _lengths_of_queries),
    of_change("every batch gets the key length of the first", other("key_lengths", first_of_batch)),
    of_change("segment ids of queries and keys are swapped", _ids_swapped),
    of_change("queries are given the keys' segment ids", other("query_segment_ids", _key_ids)),
    *(
        of_change(f"a window counts one key {number} {side}", other("window", _sides(by * left, by * right)))
        for side, left, right in (("to the left", 1, 0), ("to the right", 0, 1), ("on both sides", 1, 1))
        for number, by in (("less", -1), ("more", 1))
    ),
    *(
        of_change(name, _keys(seen, block))
        for name, seen in (
            ("keys behind the last whole block are left out", lambda S, b: slice(S // b * b)),
            ("keys behind the last whole block are left out", lambda S, b: slice(S // b * b or S)),
            ("only the last block of keys counts", lambda S, b: slice((S - 1) // b * b, None)),
        )
        for block in KEY_BLOCKS
    ),
]
