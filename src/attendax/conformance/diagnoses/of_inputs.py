"""Reasons that are other inputs: heads in another order, a scale forgotten, a bias read otherwise."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..cases.case import Inputs, Leaves
from ..judge.trial import Trial
from .hypothesis import KEY_BLOCKS, Change, Hypothesis, heads_of, lengths, other, scale_of, with_
from .of_pairs import first_of, of_change, saved, turned

LEFT_OUT = ("mask", "is_causal", "window", "key_lengths", "softcap", "scale", "offset", "query_segment_ids", "bias")


def _ignored(name: str) -> Hypothesis:
    """An option that the backward forgets; a forward that does so is seen by the judge."""

    def less(inputs: Inputs) -> Inputs | None:
        if name in inputs.arrays:
            return with_(inputs, **{name: np.zeros_like(inputs.arrays[name])})
        options = {k: x for k, x in inputs.options.items() if k != name}
        return inputs._replace(options=options) if name in inputs.options else None

    return Hypothesis(f"{name} is ignored", lambda trial: None, saved=saved(less))


def _scaled(factor: Callable[..., float]) -> Change:
    """Another scale where none is given; ``factor`` of the shapes of query, key and value."""

    def changed(inputs: Inputs) -> Inputs | None:
        if inputs.options.get("scale") is not None:
            return None
        shapes = (inputs.arrays[name].shape for name in ("query", "key", "value"))
        return with_(inputs, scale=float(factor(*shapes)))

    return changed


def _widths(of: Callable[..., int]) -> Change:
    """Scores of the first of the width only."""

    def changed(inputs: Inputs) -> Inputs | None:
        D = inputs.arrays["query"].shape[-1]
        query = np.where(np.arange(D) < of(D), inputs.arrays["query"], 0)
        return None if of(D) >= D else with_(inputs, query=query, scale=scale_of(inputs))

    return changed


def _padded(block: int) -> Any:
    """Keys and values of zeros up to a multiple of a block, which count."""

    def changed(inputs: Inputs) -> Inputs | None:
        more = -lengths(inputs)[1] % block
        if not more or inputs.options.keys() - {"scale", "softcap", "return_lse"} or "bias" in inputs.arrays:
            return None
        wide = {k: np.pad(inputs.arrays[k], [(0, 0)] * (inputs.arrays[k].ndim - 2) + [(0, more), (0, 0)])
                for k in ("key", "value")}  # fmt: skip
        return with_(inputs, **wide)

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
        N, G = heads_of(inputs)
        if G == 1 or N == G or "mapped" in inputs.extra:
            return None
        heads = np.minimum(which(np.arange(N), N, G), G - 1)
        per_head = {k: inputs.arrays[k].take(heads, axis=-3) for k in ("key", "value")}
        leaves = trial.expected(with_(inputs, **per_head))
        for leaf in ("grad key", "grad value"):
            if leaf in leaves:
                read = np.arange(G)[:, None] == heads
                leaves[leaf] = np.einsum("gn,...nsd->...gsd", read, leaves[leaf])
        return leaves

    return gives


def _bias_scaled(trial: Trial) -> Leaves | None:
    scale = scale_of(trial.inputs)
    inputs = other("bias", lambda x, _: np.asarray(x, np.float64) * scale)(trial.inputs)
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


def _times_default(scale: float, inputs: Inputs) -> float:
    return float(scale * inputs.arrays["query"].shape[-1] ** -0.5)


HYPOTHESES = [
    of_change("the bias is read with queries and keys swapped", other("bias", turned)),
    of_change("every batch gets the bias of the first", other("bias", first_of(0))),
    of_change("every head gets the bias of the first", other("bias", first_of(1))),
    of_change("the bias is subtracted", other("bias", lambda x, _: -x)),
    Hypothesis("the scale is applied to the bias, too", _bias_scaled),
    Hypothesis("key heads are tiled (n % G) instead of blocked (n // (N // G))", _heads(lambda n, N, G: n % G)),
    Hypothesis("key heads are read at n // G, where n // (N // G) is meant", _heads(lambda n, N, G: n // G)),
    Hypothesis("every query head reads the first key head", _heads(lambda n, N, G: 0 * n)),
    of_change("scores are not scaled", _scaled(lambda q, k, v: 1.0)),
    of_change("the scale is applied twice", lambda inputs: with_(inputs, scale=scale_of(inputs) ** 2)),
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
    of_change(
        "a given scale is multiplied by 1/√D",
        other("scale", _times_default),
    ),
    Hypothesis("the result is (.., T, N, V) reshaped to (.., N, T, V), where axes have to be swapped", _not_transposed),
    Hypothesis("lse is in base 2", _lse_in_base_2, "--lse-base 2"),
    *(_ignored(name) for name in LEFT_OUT),
    *(counted_padding(block) for block in KEY_BLOCKS[1:]),
]
