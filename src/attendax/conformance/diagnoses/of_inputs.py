"""Reasons that are other inputs: a mask read the other way round, heads in another order, a scale forgotten."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..cases.case import Inputs, Leaves
from ..judge.judges import ONE_QUERY
from ..judge.trial import Trial
from . import by_hand
from .hypothesis import KEY_BLOCKS, Change, Hypothesis, array, lengths, of_inputs, option

LEFT_OUT = ("mask", "is_causal", "window", "key_lengths", "softcap", "scale", "offset", "query_segment_ids", "bias")


def of_change(name: str, change: Change, remedy: str = "", *, filled: bool = True) -> Hypothesis:
    """A reason that is other inputs."""
    return Hypothesis(name, of_inputs(change), remedy, change, filled, _saved(change))


def _saved(change: Change) -> Any:
    """The gradients of other inputs by a backward that has lse and delta of a right forward."""

    def gives(trial: Trial) -> Leaves | None:
        inputs = change(trial.inputs)
        return None if inputs is None else by_hand.backward(inputs, saved=trial.inputs)

    return gives


def _ignored(name: str) -> Hypothesis:
    """An option that the backward forgets; a forward that does so is seen by the judge."""

    def less(inputs: Inputs) -> Inputs | None:
        if name in inputs.arrays:
            arrays = inputs.arrays | {"bias": 0 * np.where(np.isfinite(inputs.arrays[name]), inputs.arrays[name], 0)}
            return inputs._replace(arrays=arrays)
        options = {k: x for k, x in inputs.options.items() if k != name}
        return inputs._replace(options=options) if name in inputs.options else None

    return Hypothesis(f"{name} is ignored", lambda trial: None, saved=_saved(less))


def _scaled(factor: Callable[..., float]) -> Change:
    """Another scale where none is given; ``factor`` of the shapes of query, key and value."""

    def changed(inputs: Inputs) -> Inputs | None:
        if inputs.options.get("scale") is not None:
            return None
        shapes = (inputs.arrays[name].shape for name in ("query", "key", "value"))
        return inputs._replace(options=inputs.options | {"scale": float(factor(*shapes))})

    return changed


def _scale_squared(inputs: Inputs) -> Inputs:
    scale = inputs.options.get("scale", inputs.arrays["query"].shape[-1] ** -0.5)
    return inputs._replace(options=inputs.options | {"scale": float(scale**2)})


def _causal(offset: Any) -> Change:
    def changed(inputs: Inputs) -> Inputs | None:
        if not inputs.options.get("is_causal"):
            return None
        begins = inputs.options.get("offset", 0)
        moved = np.asarray(offset(begins, *lengths(inputs)))
        return inputs._replace(options=inputs.options | {"offset": moved})

    return changed


def _from_the_start(inputs: Inputs) -> Inputs | None:
    """It is right unless the end is declared."""
    if not inputs.options.get("is_causal") or inputs.options.get("offset") is not None:
        return None
    return inputs._replace(options=inputs.options | {"offset": np.asarray(0)})


def _at_the_end(begins: Any, T: int, S: int) -> Any:
    return S - T


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


def _group(inputs: Inputs) -> int:
    """How many query heads read a key head."""
    return inputs.arrays["query"].shape[-3] // inputs.arrays["key"].shape[-3]


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


def _widths(of: Callable[..., int]) -> Change:
    """Scores of the first of the width only."""

    def changed(inputs: Inputs) -> Inputs | None:
        D = inputs.arrays["query"].shape[-1]
        query = np.where(np.arange(D) < of(D), inputs.arrays["query"], 0)
        scale = inputs.options.get("scale", D**-0.5)
        if of(D) >= D:
            return None
        return inputs._replace(arrays=inputs.arrays | {"query": query}, options=inputs.options | {"scale": scale})

    return changed


def _first_of(axis: int) -> Any:
    """Of a mask or a bias of rank 4, only the first along an axis."""

    def first(x: np.ndarray, inputs: Inputs) -> np.ndarray | None:
        if x.ndim != 4 or x.shape[axis] == 1:
            return None
        return np.broadcast_to(x.take([0], axis), x.shape)

    return first


def _turned(x: np.ndarray, inputs: Inputs) -> np.ndarray | None:
    T, S = lengths(inputs)
    return x.swapaxes(-1, -2) if T == S and x.ndim > 1 else None


def _ids_swapped(inputs: Inputs) -> Inputs | None:
    if "query_segment_ids" not in inputs.options:
        return None
    ids = (inputs.options[f"{name}_segment_ids"] for name in ("key", "query"))
    given = dict(zip(("query_segment_ids", "key_segment_ids"), ids, strict=True))
    return inputs._replace(options=inputs.options | given)


def _key_ids_for_both(inputs: Inputs) -> Inputs | None:
    T, S = lengths(inputs)
    if "query_segment_ids" not in inputs.options or T != S:
        return None
    return inputs._replace(options=inputs.options | {"query_segment_ids": inputs.options["key_segment_ids"]})


def _padded(block: int) -> Any:
    """Keys and values of zeros up to a multiple of a block, which count."""

    def changed(inputs: Inputs) -> Inputs | None:
        more = -lengths(inputs)[1] % block
        if not more or inputs.options.keys() - {"scale", "softcap", "return_lse"} or "bias" in inputs.arrays:
            return None
        wide = {k: np.pad(inputs.arrays[k], [(0, 0)] * (inputs.arrays[k].ndim - 2) + [(0, more), (0, 0)])
                for k in ("key", "value")}  # fmt: skip
        return inputs._replace(arrays=inputs.arrays | wide)

    return changed


def _cut(leaves: Leaves, inputs: Inputs) -> Leaves:
    S = lengths(inputs)[1]
    return {leaf: x[..., :S, :] if leaf in ("grad key", "grad value") else x for leaf, x in leaves.items()}


def counted_padding(block: int) -> Hypothesis:
    """Zeros behind the keys, up to a multiple of the block, are counted."""

    def gives(trial: Trial) -> Leaves | None:
        inputs = _padded(block)(trial.inputs)
        return None if inputs is None else _cut(trial.expected(inputs), trial.inputs)

    return Hypothesis(
        f"keys of zeros that fill the last block of {block} are counted", gives, "mask what lies beyond S"
    )


def _heads(which: Callable[[np.ndarray, int, int], np.ndarray]) -> Callable[[Trial], Leaves | None]:
    """Query heads read other key heads: of the indices of the query heads, N and G."""

    def gives(trial: Trial) -> Leaves | None:
        inputs = trial.inputs
        N, G = (inputs.arrays[name].shape[-3] if inputs.arrays[name].ndim > 2 else 1 for name in ("query", "key"))
        if G == 1 or N == G or "mapped" in inputs.extra:
            return None
        heads = np.minimum(which(np.arange(N), N, G), G - 1)
        per_head = {k: inputs.arrays[k].take(heads, axis=-3) for k in ("key", "value")}
        leaves = trial.expected(inputs._replace(arrays=inputs.arrays | per_head))
        for leaf in ("grad key", "grad value"):
            if leaf in leaves:
                read = np.arange(G)[:, None] == heads
                leaves[leaf] = np.einsum("gn,...nsd->...gsd", read, leaves[leaf])
        return leaves

    return gives


def _bias_scaled(trial: Trial) -> Leaves | None:
    query = trial.inputs.arrays["query"]
    scale = trial.inputs.options.get("scale", query.shape[-1] ** -0.5)
    inputs = array("bias", lambda x, _: np.asarray(x, np.float64) * scale)(trial.inputs)
    if inputs is None:
        return None
    leaves = trial.expected(inputs)
    return leaves | ({"grad bias": scale * leaves["grad bias"]} if "grad bias" in leaves else {})


def _not_transposed(trial: Trial) -> Leaves | None:
    """(.., T, N, V) read as (.., N, T, V), as without a transposition back."""
    leaves = trial.expected()
    if trial.case.direction not in ("forward", "eager") or leaves["out"].ndim < 3:
        return None
    out = leaves["out"]
    return leaves | {"out": out.swapaxes(-2, -3).reshape(out.shape)}


def _lse_in_base_2(trial: Trial) -> Leaves | None:
    leaves = trial.expected()
    return leaves | {"lse": leaves["lse"] / np.log(2)} if "lse" in leaves else None


def _moved(by: int) -> Any:
    return lambda x, inputs: np.clip(np.asarray(x) + by, 0, lengths(inputs)[1])


def _sides(left: int, right: int) -> Any:
    return lambda sides, _: tuple(None if s is None else s + d for s, d in zip(sides, (left, right), strict=True))


def _first_of_batch(x: np.ndarray, inputs: Inputs) -> np.ndarray | None:
    return np.broadcast_to(x[:1], x.shape) if np.ndim(x) else None


def _given_times_default(scale: float, inputs: Inputs) -> float:
    return float(scale * inputs.arrays["query"].shape[-1] ** -0.5)


HYPOTHESES = [
    of_change("causal is aligned to the end of the keys", _causal(_at_the_end), "--causal end", filled=False),
    of_change("causal is aligned to the start of the keys", _from_the_start, "--causal start", filled=False),
    of_change("causal leaves out a query's own key (j < i)", _causal(lambda b, T, S: b - 1)),
    of_change("causal lets a query see one key ahead (j <= i + 1)", _causal(lambda b, T, S: b + 1)),
    of_change(
        "causal is turned round: a query sees its own key and those after it (j >= i)",
        _causal_as(lambda i, j, inputs: j >= i),
    ),
    of_change(
        "causal divides the position of a query by the heads of a group",
        _causal_as(lambda i, j, inputs: j <= i // _group(inputs)),
    ),
    *(
        of_change("causal skips the block of the diagonal", _causal_as(lambda i, j, _, b=b: j < i // b * b))
        for b in KEY_BLOCKS[2:]
    ),
    of_change("it is causal, which is not asked", _causal_unasked),
    of_change(f"{ONE_QUERY}: causal is left out there", _causal_in_one_row, "--causal decode"),
    of_change("the offset of a cache is not added", option("offset", lambda x, _: 0 * x)),
    of_change("the offset of a cache is added twice", option("offset", lambda x, _: 2 * np.asarray(x))),
    of_change("every batch gets the offset of the first", option("offset", _first_of_batch)),
    of_change("True in a mask means drop", option("mask", lambda x, _: ~x), "--mask-true drop"),
    of_change("the mask is read with queries and keys swapped", option("mask", _turned)),
    of_change("every batch gets the mask of the first", option("mask", _first_of(0))),
    of_change("every head gets the mask of the first", option("mask", _first_of(1))),
    of_change("the bias is read with queries and keys swapped", array("bias", _turned)),
    of_change("every batch gets the bias of the first", array("bias", _first_of(0))),
    of_change("every head gets the bias of the first", array("bias", _first_of(1))),
    of_change("the bias is subtracted", array("bias", lambda x, _: -x)),
    Hypothesis("the scale is applied to the bias, too", _bias_scaled),
    Hypothesis("key heads are tiled (n % G) instead of blocked (n // (N // G))", _heads(lambda n, N, G: n % G)),
    Hypothesis("key heads are read at n // G, where n // (N // G) is meant", _heads(lambda n, N, G: n // G)),
    Hypothesis("every query head reads the first key head", _heads(lambda n, N, G: 0 * n)),
    of_change("scores are not scaled", _scaled(lambda q, k, v: 1.0)),
    of_change("the scale is applied twice", _scale_squared),
    of_change("the scale is 1/√(N · D), of the width of all heads", _scaled(lambda q, k, v: (q[-3] * q[-1]) ** -0.5)),
    of_change("the scale is 1/√N, of the number of heads", _scaled(lambda q, k, v: q[-3] ** -0.5)),
    of_change("the scale is 1/√T, of the number of queries", _scaled(lambda q, k, v: q[-2] ** -0.5)),
    of_change("the scale is 1/√S, of the number of keys", _scaled(lambda q, k, v: k[-2] ** -0.5)),
    of_change("scores are multiplied by √D", _scaled(lambda q, k, v: q[-1] ** 0.5)),
    of_change("the scale is 1/√V, of the values' width", _scaled(lambda q, k, v: v[-1] ** -0.5)),
    *(
        of_change(f"the scale is 1/√{width}, whatever D is", _scaled(lambda q, k, v, w=width: w**-0.5))
        for width in (4, 64, 128)
    ),
    *(
        of_change(f"only the first {width} of D count in the scores", _widths(lambda D, w=width: w))
        for width in (32, 64, 128)
    ),
    *(
        of_change("the last part of D is left out of the scores", _widths(lambda D, b=block: D // b * b or D))
        for block in KEY_BLOCKS[1:6]
    ),
    of_change("a given scale is multiplied by 1/√D", option("scale", _given_times_default)),
    of_change("key lengths are off by one, too short", option("key_lengths", _moved(-1))),
    of_change("key lengths are off by one, too long", option("key_lengths", _moved(1))),
    of_change("key lengths hide queries, and no keys", _lengths_of_queries),
    of_change(
        "every batch gets the key length of the first",
        option("key_lengths", _first_of_batch),
    ),
    of_change("segment ids of queries and keys are swapped", _ids_swapped),
    of_change("queries are given the keys' segment ids", _key_ids_for_both),
    of_change("a window counts one key less to the left", option("window", _sides(-1, 0))),
    of_change("a window counts one key more to the left", option("window", _sides(1, 0))),
    of_change("a window counts one key less to the right", option("window", _sides(0, -1))),
    of_change("a window counts one key more to the right", option("window", _sides(0, 1))),
    of_change("a window counts one key less on both sides", option("window", _sides(-1, -1))),
    of_change("a window counts one key more on both sides", option("window", _sides(1, 1))),
    Hypothesis("the result is (.., T, N, V) reshaped to (.., N, T, V), where axes have to be swapped", _not_transposed),
    Hypothesis("lse is in base 2", _lse_in_base_2, "--lse-base 2"),
    *(
        of_change(name, _keys(seen, block))
        for name, seen in (
            ("keys behind the last whole block are left out", lambda S, b: slice(S // b * b)),
            ("keys behind the last whole block are left out", lambda S, b: slice(S // b * b or S)),
            ("only the last block of keys counts", lambda S, b: slice((S - 1) // b * b, None)),
        )
        for block in KEY_BLOCKS
    ),
    *(_ignored(name) for name in LEFT_OUT),
    *(counted_padding(block) for block in KEY_BLOCKS[1:]),
]
