"""A model as its laws see it: what it takes and claims, what it is asked to compute, and one function that runs it."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .sees import Sees

KEYWORDS = ("mask", "lengths", "segment_ids", "positions", "seed")  # what a model may take beside inputs
WEIGHTS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O", "num_heads")  # of a layer: (M, N·D), (N·D,), ...


class Request(NamedTuple):
    """One computation of a model.

    A model of vectors is asked about tokens, too: each stands for a vector of one fixed table (``vectors``).
    """

    tokens: np.ndarray  # integers (B, T)
    # keywords: ``mask`` (B, T), True = a real token; ``lengths`` (B,); ``segment_ids``, ``positions`` (B, T); ``seed``
    # (), of dropout, without which there is none
    options: Mapping[str, np.ndarray] = {}
    way: str = ""  # of running, one of those that the model has; the plain one unless given
    # (B, T); asks for the gradient of Σ weights · (results · ``direction``) with respect to the vectors
    weights: np.ndarray | None = None
    # so many tokens at a time, through the cache; the whole at once, without it, unless given
    chunks: tuple[int, ...] = ()
    room: int = 0  # of the cache, in tokens
    order: tuple[int, ...] = ()  # after the first chunk, which row of the cache each row goes on from
    # the name of a weight of a layer, which is asked for in place of results; none of it is an array without numbers
    read: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal requests."""
        arrays = {"tokens": self.tokens, "weights": self.weights, **self.options}
        told = tuple((k, x.shape, str(x.dtype), x.tobytes()) for k, x in sorted(arrays.items()) if x is not None)
        return told, self.way, self.chunks, self.room, self.order, self.read

    def row(self, index: int) -> "Request":
        """The request of one row."""
        options = {name: x[index : index + 1] if x.ndim else x for name, x in self.options.items()}
        weights = None if self.weights is None else self.weights[index : index + 1]
        return self._replace(tokens=self.tokens[index : index + 1], options=options, weights=weights)


COUNT, LONGER = 64, 48  # vectors in the table, and the first of those that are longer


def vectors(width: int) -> np.ndarray:
    """The table: a vector for each token, a quarter of them four times as long, and one more that is NaN."""
    table = np.random.default_rng(0).standard_normal((COUNT + 1, width))
    table[LONGER:] *= 4
    table[COUNT] = np.nan
    return table.astype(np.float32)


def direction(width: int) -> np.ndarray:
    """The sum of results at a position that a loss adds up."""
    return np.random.default_rng(1).standard_normal(width).astype(np.float32)


def weights_of(found: Any) -> dict[str, np.ndarray]:
    """The weights that a function ``heads`` gave, as arrays in float64; ValueError where they are none of a layer."""
    missing = [name for name in ("W_Q", "W_K", "W_V", "W_O", "num_heads") if found.get(name) is None]
    unknown = sorted(set(found) - set(WEIGHTS))
    if missing or unknown:
        said = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}"
        raise ValueError(f"check_model: heads gives a mapping that {said}, expected {', '.join(WEIGHTS)}")
    arrays = {name: np.asarray(x, np.float64) for name, x in found.items() if x is not None}
    count, of_out = int(arrays["num_heads"]), arrays["W_O"].shape
    queries, keys, values = (arrays[name].shape[-1] for name in ("W_Q", "W_K", "W_V"))
    size = queries // count if count > 0 else 0
    fits = size and queries % count == 0 and keys % size == 0 and count % (groups := keys // size) == 0
    if not fits or values % groups or of_out[0] != values // groups * count:
        shapes = ", ".join(f"{name} {arrays[name].shape}" for name in ("W_Q", "W_K", "W_V", "W_O"))
        raise ValueError(f"check_model: heads gives {shapes} for num_heads {count}, which do not fit each other")
    return arrays


@dataclasses.dataclass(frozen=True)
class Model:
    """Facts about a model, and a function that runs it."""

    name: str  # for the report
    arrays: str
    # a ``Request`` to results (B, T, C), or to the gradient (B, T, M). Nothing else calls the model
    run: Callable[[Request], np.ndarray]
    inputs: str  # "tokens" or "vectors"
    known_tokens: np.ndarray  # those that texts are made of
    sees: str  # which tokens a position sees in a layer, "causal", "window:5" (``sees.py``)
    causal: bool  # whether a position sees only what is before it and itself, but for a prefix
    padding: str | None  # "mask", "lengths" or None: how the model is told of padding
    accepts: frozenset[str]  # those of ``KEYWORDS`` that its call takes
    layers: int  # of attention
    longest: int | None  # the most tokens that it takes
    pad: int | None  # the token that stands for padding, where the model knows it by that
    # other ways of running, by name, and what is asked of each: "results", "gradient"
    ways: Mapping[str, tuple[str, ...]]
    lacks: Mapping[str, str]  # traits and laws that it does not offer, and why
    bits: bool  # whether nothing that does not matter may change a bit
    dtype: str = "float32"  # of its results
    process: str = ""  # why it is run in the process that judges; empty where it has one of its own
    # Python that makes the model and runs it, by name; for scripts
    lines: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def vectors(self, tokens: np.ndarray) -> np.ndarray:
        """The vectors (B, T, M) that tokens stand for."""
        return vectors(int(self.lines["width"]))[tokens]

    @property
    def visible(self) -> Sees:
        """The tokens that a position sees in a layer."""
        return Sees(self.sees, self.causal)

    def may(self, sources: np.ndarray, length: int) -> np.ndarray:
        """Pairs of a source and a position that may see it, directly or by way of others: (S, T)."""
        return self.visible.pairs(length, self.layers)[sources]

    def must(self, sources: np.ndarray, length: int) -> np.ndarray:
        """Pairs that are sure: of less than all, itself and its neighbours; the law of windows asks for the rest."""
        near = np.abs(sources[:, None] - np.arange(length)[None]) <= 1
        return self.visible.pairs(length)[sources] & (near if self.visible.limited else True)

    def lengths(self, wanted: Iterable[int]) -> list[int]:
        """Lengths that the model takes; its longest where it takes none."""
        longest = self.longest
        return [n for n in wanted if longest is None or n <= longest] or [longest or 1]

    def marked(self, mask: np.ndarray) -> dict[str, np.ndarray]:
        """The keyword that tells of padding, from a mask (B, T), True = a real token; none where it takes none."""
        if self.padding == "lengths":
            return {"lengths": mask.sum(1).astype(np.int32)}
        return {"mask": mask} if self.padding else {}

    def lacking(self, trait: str) -> str:
        """A reason why the model does not offer a trait; empty where it does."""
        return self.lacks.get(trait, "")
