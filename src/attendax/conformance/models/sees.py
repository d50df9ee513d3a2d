"""Tokens that a position sees in a layer, in the words of masks: "causal", "window:5", "prefix:3", "first:1+window:5".

A part is a line of Python on i, the position that sees, and j, the one that is seen; parts are joined by "or".
"""

import functools
from typing import NamedTuple

import numpy as np

LINES = {  # a word and how many numbers it has: the line, and the same in English
    ("all", 0): ("j >= 0", "all"),
    ("causal", 0): ("j <= i", "all before it"),
    ("window", 1): ("abs(i - j) < {0}", "the last {0} tokens"),
    ("window", 2): ("(j >= i - {0}) & (j <= i + {1})", "{0} before and {1} after it"),
    ("first", 1): ("j < {0}", "the first {0}"),
    ("prefix", 1): ("j < {0}", "the first {0}, also those after it"),
    ("blocks", 1): ("i // {0} == j // {0}", "its own block of {0}"),
}
AROUND = "what is less than {0} away"  # a window where it looks ahead, too
WORDS = "causal, all, window:W (W tokens, its own among them), window:LEFT,RIGHT, first:K, prefix:K, blocks:K"
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
        """The largest of its numbers."""
        return max((max(numbers) for _, numbers in _parts(self.words) if numbers), default=0)

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
    parts = _checked(words)
    ahead = any(word == "all" or (len(numbers) == 2 and numbers[1]) for word, numbers in parts)
    behind = any(word in ("causal", "prefix") for word, _ in parts)
    if causal is not None and (ahead if causal else behind):
        raise ValueError(f"check_model: sees got {words!r}, and causal {causal}: leave one of them out")
    return Sees(words, not ahead if causal is None else causal)


def _checked(words: str) -> list[tuple[str, tuple[int, ...]]]:
    try:
        parts = _parts(words)
    except (ValueError, AttributeError):
        parts = []
    least = {2: 0}  # of the numbers of a word that has so many; else 1
    known = ((word, len(numbers)) in LINES and min(numbers, default=1) >= least.get(len(numbers), 1)
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
