"""A model as its laws see it: what it takes and claims, what it is asked to compute, and one function that runs it."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from .sees import Sees

KEYWORDS = ("mask", "lengths", "segment_ids", "positions", "seed")  # what a model may take beside inputs
POSITIONS = ("absolute", "rotary", "relative", "none")


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


@dataclasses.dataclass(frozen=True)
class Model:
    """Facts about a model, and a function that runs it."""

    name: str  # for the report
    arrays: str
    # a ``Request`` to results (B, T, C), or to the gradient (B, T, M). Nothing else calls the model
    run: Callable[[Request], np.ndarray]
    inputs: str  # "tokens" or "vectors"
    known_tokens: np.ndarray  # those that texts are made of
    nan: int  # the token that stands for a vector of NaN
    sees: str  # which tokens a position sees in a layer, "causal", "window:5" (``sees.py``)
    causal: bool  # whether a position sees only what is before it and itself, but for a prefix
    padding: str | None  # "mask", "lengths" or None: how the model is told of padding
    accepts: frozenset[str]  # those of ``KEYWORDS`` that its call takes
    layers: int  # of attention
    positions: str | None  # one of ``POSITIONS``, or None where not declared
    longest: int | None  # the most tokens that it takes
    pad: int | None  # the token that stands for padding, where the model knows it by that
    steps: frozenset[str]  # what its cache offers: "cache", "reordering", "positions of steps"
    # other ways of running, by name, and what is asked of each: "results", "gradient"
    ways: Mapping[str, tuple[str, ...]]
    gradient: str  # why there is none; empty where there is one
    heads: str  # why the weights of its heads are not known; empty where they are
    lacks: Mapping[str, str]  # traits that it is said not to offer, and why
    # "bits": what does not matter changes no bit; "own positions": each text's are counted by itself; "mean of
    # dropout": it is on the weights of one layer of attention and on nothing else
    claims: frozenset[str]
    dtype: str = "float32"  # of its results
    process: str = ""  # why it is run in the process that judges; empty where it has one of its own
    # Python that makes the model and runs it, by name; for scripts
    lines: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def vectors(self, tokens: np.ndarray) -> np.ndarray:
        """The vectors (B, T, M) that tokens stand for."""
        return vectors(int(self.lines["width"]))[tokens]

    @property
    def bits(self) -> bool:
        """True where nothing that does not matter may change a bit."""
        return "bits" in self.claims

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
        if trait in self.lacks:
            return self.lacks[trait]
        given = "positions" in self.accepts
        free = given or self.positions not in (None, "absolute") or "own positions" in self.claims
        relative = self.positions in ("rotary", "relative")
        reasons = {
            "mask": (self.padding == "mask", "no argument mask"),
            "right padding": (self.padding is not None, "no argument mask or lengths"),
            "left padding": (self.padding == "mask", "no argument mask, which padding on the left needs"),
            "places of tokens": (free and not self.visible.moves, FROM_THE_FIRST if self.visible.moves else ABSOLUTE),
            "vectors": (self.inputs == "vectors", "inputs are tokens"),
            "segment_ids": ("segment_ids" in self.accepts, "no argument segment_ids"),
            "given positions": (given, "no argument positions"),
            "relative": (relative, "positions are not said to be rotary or relative"),
            "order": (self.positions not in (None, "none"), "positions are not said to be encoded"),
            "no order": (self.positions == "none" and self.sees == "all", "positions are not said to be none"),
            "window": (self.visible.limited, "nothing but causal is declared of what it sees"),
            "gradient": (not self.gradient, self.gradient),
            "heads": (not self.heads, self.heads),
            "dropout": ("seed" in self.accepts, "no argument seed"),
            "mean of dropout": ("mean of dropout" in self.claims, UNSAID),
            **{name: (name in self.steps, f"no {name} is given") for name in STEPS},
        }
        offered, why = reasons.get(trait, (True, ""))
        return "" if offered else why


FROM_THE_FIRST = "what a position sees is counted from the first place"
ABSOLUTE = "positions are absolute, or nobody said what they are, and there is no argument positions"
UNSAID = "not said to be on the weights of one layer of attention alone"
STEPS = ("cache", "reordering", "positions of steps")
TRAITS = (
    "batch", "mask", "right padding", "left padding", "places of tokens", "vectors", "segment_ids", "given positions",
    "relative", "order", "no order", "window", "gradient", "heads", "dropout", "mean of dropout", *STEPS,
)  # fmt: skip
