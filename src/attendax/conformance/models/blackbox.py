"""A model as its laws see it: what it takes and claims, what it is asked to compute, and one function that runs it.

Words of masks tell the tokens that a position sees in a layer: "causal", "window:5", "prefix:3", "first:1+window:5". A
part is a line of Python on i, the position that sees, and j, the one that is seen; parts are joined by "or".
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..worker.calling import WROTE, Subject
from ..worker.errors import Died

KEYWORDS = ("mask", "lengths", "segment_ids", "positions", "seed")  # what a model may take beside inputs
# Of a layer: (M, N·D), (N·D,), ...
WEIGHT_NAMES = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O", "num_heads")


class Computation(NamedTuple):
    """One computation of a model.

    A model of vectors is also asked about tokens: each stands for a vector of one fixed table (``vectors``).
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

    def row(self, index: int) -> "Computation":
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


def array_of(x: Any) -> np.ndarray:
    """An array or a parameter of any framework, as an array in float64."""
    x = x.get_value() if hasattr(x, "get_value") else x  # of flax nnx
    return np.asarray(x.detach().cpu().double() if hasattr(x, "detach") else x, np.float64)


def weights_of(found: Any) -> dict[str, np.ndarray]:
    """The weights that a function ``heads`` gave, as arrays in float64; ValueError where they are none of a layer."""
    missing = [name for name in ("W_Q", "W_K", "W_V", "W_O", "num_heads") if found.get(name) is None]
    unknown = sorted(set(found) - set(WEIGHT_NAMES))
    if missing or unknown:
        said = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}"
        raise ValueError(f"check_model: heads gives a mapping that {said}, expected {', '.join(WEIGHT_NAMES)}")
    arrays = {name: array_of(x) for name, x in found.items() if x is not None}
    count, of_out = int(arrays["num_heads"]), arrays["W_O"].shape
    queries, keys, values = (arrays[name].shape[-1] for name in ("W_Q", "W_K", "W_V"))
    size = queries // count if count > 0 else 0
    fits = size and queries % count == 0 and keys % size == 0 and count % (groups := keys // size) == 0
    if not fits or values % groups or of_out[0] != values // groups * count:
        shapes = ", ".join(f"{name} {arrays[name].shape}" for name in ("W_Q", "W_K", "W_V", "W_O"))
        raise ValueError(f"check_model: heads gives {shapes} for num_heads {count}, which do not fit each other")
    return arrays


LINES = {  # a word and how many numbers it has: the line, and the same in English
    ("all", 0): ("j >= 0", "all"),
    ("causal", 0): ("j <= i", "all before it"),
    ("window", 1): ("abs(i - j) < {0}", "the last {0} tokens"),
    ("window", 2): ("(j >= i - {0}) & (j <= i + {1})", "{0} before and {1} after it"),
    ("first", 1): ("j < {0}", "the first {0}"),
    ("prefix", 1): ("j < {0}", "the first {0}, also those after it"),
    ("blocks", 1): ("i // {0} == j // {0}", "its own block of {0}"),
    ("blocks", 2): ("(j // {0} <= i // {0}) & (j >= i // {0} * {0} - {1})", "its own block of {0} and {1} before it"),
}
AROUND = "what is less than {0} away"  # a window where it looks ahead, too
WORDS = "causal, all, window:W (W tokens, its own among them), window:LEFT,RIGHT, first:K, prefix:K, blocks:K or K,LEFT"
Pairs = np.ndarray  # boolean (S, T): which source each position sees


class Sees(NamedTuple):
    """Tokens that a position sees in each layer."""

    words: str  # as they are declared, "first:1+window:5"
    causal: bool  # whether a position sees nothing after it, but for a prefix

    @property
    def limited(self) -> bool:
        """True where it sees less than all, or than all before it."""
        return self.words not in ("causal", "all")

    @property
    def moves(self) -> bool:
        """True where it is counted from the first place of a row, so that padding on the left moves it."""
        return any(word in self.words for word in ("first", "prefix", "blocks"))

    def extent(self) -> int:
        """The largest of its numbers; of blocks with tokens before them, both together."""
        of = {"blocks": sum}
        return max((of.get(word, max)(numbers) for word, numbers in _parts(self.words) if numbers), default=0)

    def pairs(self, length: int, layers: int = 1) -> Pairs:
        """Pairs of a token and a position that sees it, directly or by way of others in several layers: (S, T)."""
        once = _once(self.words, self.causal, length)
        found = np.eye(length, dtype=bool)  # by the residual
        for _ in range(min(layers, length)):
            found = found | (found.astype(np.int32) @ once > 0)
        return found


@functools.lru_cache
def _once(words: str, causal: bool, length: int) -> Pairs:
    i, j = np.arange(length)[None, :], np.arange(length)[:, None]
    found = np.zeros((length, length), bool)
    parts = _parts(words)
    for word, numbers in parts:
        pairs = eval(LINES[word, len(numbers)][0].format(*numbers), {"i": i, "j": j, "abs": abs})
        found = found | (pairs if word == "prefix" or not causal else pairs & (j <= i))
    return found | (j <= i) if all(word == "prefix" for word, _ in parts) else found


def _parts(words: str) -> list[tuple[str, tuple[int, ...]]]:
    split = (part.partition(":") for part in words.split("+"))
    return [(word, tuple(int(x) for x in numbers.split(",") if numbers)) for word, _, numbers in split]


def sees(words: str | None, causal: bool | None, window: int | None = None) -> Sees:
    """Read a declaration: words, ``causal``, and ``window``, the number of tokens that are seen."""
    if window is not None and (not isinstance(window, int) or window < 1):
        raise ValueError(f"check_model: window got {window!r}, expected a whole number, 1 or more")
    if window is not None and words not in (None, f"window:{window}"):
        raise ValueError(f"check_model: sees got {words!r} beside window {window}: give one of them")
    words = f"window:{window}" if window is not None else words
    if words is None:
        if causal is None:
            told = "whether a position sees only what is before it"
            raise ValueError(f"check_model: give --causal or --no-causal (in Python causal=True or False): {told}")
        return Sees("causal" if causal else "all", causal)
    said = says_causal(words)
    if None not in (said, causal) and said is not causal:
        raise ValueError(f"check_model: sees got {words!r}, and causal {causal}: leave one of them out")
    if said is None and causal is None and "blocks" in words:
        told = "whether a position sees what comes after it in its block"
        raise ValueError(f"check_model: sees got {words!r}: give --causal or --no-causal beside it: {told}")
    return Sees(words, next((x for x in (said, causal) if x is not None), True))


def says_causal(words: str) -> bool | None:
    """Tell whether words of masks say that a position sees nothing after it; None where they leave it open."""
    parts = _checked(words)
    if any(word == "all" or (word == "window" and len(numbers) == 2 and numbers[1]) for word, numbers in parts):
        return False
    return True if any(word in ("causal", "prefix") for word, _ in parts) else None


def declaration(words: str, causal: bool) -> str:
    """Write the options that declare it; where words leave it open, whether a position sees what comes after it."""
    if says_causal(words) is not None or (causal and "blocks" not in words):
        return f"--sees {words}"
    return f"--sees {words} --{'' if causal else 'no-'}causal"


def _checked(words: str) -> list[tuple[str, tuple[int, ...]]]:
    try:
        parts = _parts(words)
    except (ValueError, AttributeError):
        parts = []
    least = {"window": (0, 0), "blocks": (1, 0)}  # of the two numbers of a word; else 1
    known = ((word, len(numbers)) in LINES and all(map(int.__ge__, numbers, least[word] if len(numbers) > 1 else (1,)))
             for word, numbers in parts)  # fmt: skip
    if not parts or not all(known):
        raise ValueError(f"check_model: sees got {words!r}, expected {WORDS}, or several joined by +")
    return parts


def fitting(seen: Pairs, layers: int, causal: bool) -> str:
    """The simplest words under which exactly these tokens (S, T) are seen through so many layers; empty without any."""
    length = len(seen)
    numbers = range(1, length - 2)
    tries = ["causal" if causal else "all", *(f"window:{w}" for w in numbers)]
    tries += [f"prefix:{k}" for k in numbers[1:] if causal] + [f"blocks:{k}" for k in numbers[1:]]
    tries += [f"window:{a},{b}" for a in range(9) for b in range(9) if a != b and not causal]
    tries += [f"blocks:{k},{left}" for k in numbers[1:] for left in numbers if k + left < length - 2]
    tries += [f"first:{k}+window:{w}" for k in range(1, 9) for w in numbers]
    tries += [f"prefix:{k}+window:{w}" for k in range(2, 9) for w in numbers if causal]
    return next((words for words in tries if np.array_equal(Sees(words, causal).pairs(length, layers), seen)), "")


def told(words: str, causal: bool = True) -> str:
    """Say in English what a position sees."""
    parts = _parts(words)
    said = [] if any(word != "prefix" for word, _ in parts) else ["all before it"]
    for word, numbers in parts:
        around = (word, len(numbers), causal) == ("window", 1, False)
        said.append((AROUND if around else LINES[word, len(numbers)][1]).format(*numbers))
    return " and ".join(said)


@dataclasses.dataclass(frozen=True)
class Model:
    """Facts about a model, and a function that runs it."""

    name: str  # for the report
    arrays: str
    subject: Subject  # which answers a ``Computation``. Nothing else calls the model
    inputs: str  # "tokens" or "vectors"
    known_tokens: np.ndarray  # those that texts are made of
    sees: str  # which tokens a position sees in a layer, "causal", "window:5"
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
    assumed: Mapping[str, str] = dataclasses.field(default_factory=dict)  # what nobody said, and is taken to be so
    process: str = ""  # why it is run in the process that judges; empty where it has one of its own
    # Python that makes the model and runs it, by name; for scripts
    lines: Mapping[str, str] = dataclasses.field(default_factory=dict)
    guessed: Iterable[str] = ()  # other frameworks whose arrays it may mean, where nobody said which

    def run(self, request: Computation) -> tuple[np.ndarray, list[str]]:
        """Results (B, T, C), the gradient (B, T, M), or a weight; and the names of the arrays that it wrote to."""
        found = self.subject.ask(request)
        wrote = [leaf for leaf in found if leaf.startswith(WROTE)]
        if found.keys() - set(wrote) != {"out"}:
            raise Died("answered what cannot be read: no out.npy")
        return found["out"], [leaf.removeprefix(WROTE) for leaf in wrote]

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
