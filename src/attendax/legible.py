"""Text for a terminal: on one line, without control characters; its width; and spelling suggestions."""

import difflib
import shutil
import textwrap
import unicodedata
from collections.abc import Iterable
from typing import Any

NARROWEST = 40  # columns that everything that is printed fits

# They reorder what stands beside them, up to the end of the line (UAX #9): embeddings, overrides, isolates.
_REORDERING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
_CONTROLS = ("Cc", "Cs")  # escape sequences begin with one; halves of surrogate pairs cannot be written
_JOINER = "\u200d"  # two of its neighbours are one picture, such as a family


def one_line(text: str, columns: int | None = None) -> str:
    r"""The text with its blanks joined, controls replaced by U+FFFD, its end cut where it is wider than ``columns``.

    Joiners and non-joiners stay: pictures are put together by them, and Persian words are spelled with them.

    Example:
        >>> one_line("a man\x07") == "a man\ufffd"
        True
        >>> one_line("東京 is far", 6)
        '東京 …'
    """
    line = "".join("\ufffd" if _is_control(character) else character for character in " ".join(text.split()))
    if columns is None or sum(map(_width, line)) <= columns:
        return line
    end, room = 0, columns - 1  # one for the ellipsis
    while _width(line[end]) <= room:
        room -= _width(line[end])
        end += 1
    while end and (_width(line[end]) == 0 or line[end - 1] == _JOINER):  # not in the middle of a picture or a letter
        end -= 1
    return line[:end] + "…"


def columns(otherwise: int = 80) -> int:
    """The width of a line, as COLUMNS or else the terminal says it, or ``otherwise``; 40 at least."""
    return max(NARROWEST, shutil.get_terminal_size((otherwise, 24)).columns)


def wrapped(text: str, indent: str = "") -> str:
    """The text in lines that fit; all but the first begin with ``indent``."""
    return textwrap.fill(text, columns(), subsequent_indent=indent, break_on_hyphens=False)


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """The nearest of the known words, as the end of a sentence; nothing where none is near.

    Example:
        >>> did_you_mean("jaxnn", ["jax.nn", "flax"])
        '; did you mean jax.nn?'
        >>> did_you_mean("torch", ["jax.nn", "flax"])
        ''
    """
    words = {str(name).lower().lstrip("-"): name for name in known}
    near = difflib.get_close_matches(str(word).lower().lstrip("-"), words, n=1, cutoff=0.5)
    return f"; did you mean {words[near[0]]}?" if near else ""


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in _CONTROLS or unicodedata.bidirectional(character) in _REORDERING


def _width(character: str) -> int:
    """The number of columns that a terminal gives a character."""
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
