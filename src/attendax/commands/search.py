"""``attendax search``: the lines of a file that are nearest to a question."""

import argparse
import collections
import heapq
import itertools
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attendax.exits import Refusal
from attendax.legible import columns, one_line

from . import texts
from .texts import Lines

if TYPE_CHECKING:
    from attendax.encoders.sentences import SentenceEncoder

LABEL = 100  # columns for a line that was found, where nothing says how wide the terminal is
BLOCK = 4096  # vectors of a file that are compared at a time
UNITS = ("line", "paragraph", "file")


def add_command(commands: Any) -> None:
    """Add the command, with its arguments."""
    about = "print the lines of a file that are nearest to a query"
    search = commands.add_parser("search", help=about, description=about)
    search.set_defaults(run=_search)
    about = "texts, one a line, UTF-8; - is standard input; or a folder, with all texts that lie in it"
    search.add_argument("file", metavar="FILE", help=about)
    search.add_argument("query", metavar="QUERY", help="what to look for")
    about = "what is looked for: a line, unless given; a paragraph, up to the next blank line; or a whole file"
    search.add_argument("--unit", choices=UNITS, default="line", help=about)
    search.add_argument("--top", type=int, default=5, metavar="K", help="how many lines to print; 5 unless given")
    about = "embeddings of the file, written by: attendax embed --file FILE --output VECTORS.npy"
    search.add_argument("--vectors", metavar="VECTORS.npy", help=about)
    texts.add_shared_arguments(search)


def _search(args: argparse.Namespace) -> int:
    """Print the nearest lines, the nearest first: cosine, number of the line, line."""
    encoder = texts.load(args)
    texts.set_output(for_json=False)
    if args.top < 1:
        raise Refusal(f"--top {args.top}: at least 1 line")
    (asked,) = texts.embedded(encoder, texts.arguments([args.query]))
    direction = _unit(asked.vector[None])[0]
    folder = args.file != "-" and os.path.isdir(args.file)
    if args.vectors is None and (folder or args.unit != "line"):
        return _of_units(args, encoder, direction)
    if folder or args.unit != "line":
        raise Refusal("--vectors goes with the lines of one file: without --unit, and not with a folder")
    stored = args.vectors is not None
    pairs = _stored(args.vectors, args.file, len(direction)) if stored else _embedded(encoder, args.file)
    scored = ((float(vector @ direction), -number, text) for number, text, vector in pairs)
    nearest = heapq.nlargest(args.top, scored)
    if not nearest:
        raise Refusal(f"{texts.named(args.file)} holds no line that is not blank")
    width = len(str(max(-number for _, number, _ in nearest)))
    before = len(f"{0:6.3f}  {0:>{width}}  ")
    room = columns(before + LABEL) - before
    for cosine, number, text in nearest:
        print(f"{cosine:6.3f}  {-number:>{width}}  {one_line(text, room)}")
    return 0


def _of_units(args: argparse.Namespace, encoder: "SentenceEncoder", direction: np.ndarray) -> int:
    """Print the nearest lines, paragraphs or files: cosine, file and number of the first line, text."""
    units = Units(args.file, args.unit)
    found = texts.progress(texts.embedded(encoder, units))
    pairs = ((_unit(result.vector[None])[0], units.places.popleft(), result.tokens.text) for result in found)
    scored = ((float(vector @ direction), -k, place, text) for k, (vector, place, text) in enumerate(pairs))
    nearest = heapq.nlargest(args.top, scored)
    if units.skipped:
        print(f"attendax: {units.skipped} files are not UTF-8 text and were left out", file=sys.stderr)
    if not nearest:
        raise Refusal(f"{texts.named(args.file)} holds no text that is not blank")
    width = max(len(place) for _, _, place, _ in nearest)
    before = len(f"{0:6.3f}  {'':>{width}}  ")
    room = max(20, columns(before + LABEL) - before)
    for cosine, _, place, text in nearest:
        print(f"{cosine:6.3f}  {place:>{width}}  {one_line(text, room)}")
    return 0


def _embedded(encoder: "SentenceEncoder", file: str) -> Iterator[tuple[int, str, np.ndarray]]:
    """Number, text and vector of the lines that are not blank."""
    lines = Written(file)
    for result in texts.progress(texts.embedded(encoder, lines)):
        yield lines.numbers.popleft(), result.tokens.text, _unit(result.vector[None])[0]


def _stored(vectors: str, file: str, width: int) -> Iterator[tuple[int, str, np.ndarray]]:
    """Search stored vectors of all lines, which are memory-mapped and read block by block."""
    try:
        found = np.load(vectors, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Refusal(f"--vectors {vectors}: {error}") from None
    if not isinstance(found, np.ndarray):
        raise Refusal(f"--vectors {vectors}: holds several arrays (.npz), expected one, as embed --output writes it")
    if found.ndim != 2 or found.shape[1] != width or found.dtype != np.float32:
        facts = f"{found.dtype} {found.shape}, expected float32 (lines, {width})"
        raise Refusal(f"--vectors {vectors}: holds {facts}; was it written with other weights?")
    lines, count = iter(Lines(file)), 0
    for start in range(0, len(found), BLOCK):
        block = np.asarray(found[start : start + BLOCK])
        if not (fine := np.isfinite(block).all(axis=1)).all():
            raise Refusal(f"--vectors {vectors}: the vector of line {start + int(fine.argmin()) + 1} is not finite")
        block = _unit(block)
        for text, vector in zip(itertools.islice(lines, len(block)), block, strict=False):
            count += 1
            if text.strip():
                yield count, text, vector
    count += sum(1 for _ in lines)
    if count != len(found):
        raise Refusal(f"--vectors {vectors}: holds {len(found)} vectors, but {texts.named(file)} has {count} lines")


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1; of no length, they are near to nothing."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(vectors.dtype).tiny)


class Written(Lines):
    """The lines that are not blank, and the numbers of those that were read."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.numbers: collections.deque[int] = collections.deque()

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(super().__iter__(), start=1):
            if line.strip():
                self.numbers.append(number)
                yield line


class Units(Lines):
    """The lines, paragraphs or whole texts of a file, or of the files of a folder, that are not blank.

    ``places`` has file and first line of those that were read; ``skipped`` counts files of a folder that are no text.
    """

    def __init__(self, file: str, unit: str) -> None:
        super().__init__(file)
        self.unit, self.skipped = unit, 0
        self.places: collections.deque[str] = collections.deque()

    def __iter__(self) -> Iterator[str]:
        if self.file == "-" or not os.path.isdir(self.file):
            yield from self._of_lines(super().__iter__(), "")
            return
        for path in sorted(Path(self.file).rglob("*")):
            parts = path.relative_to(self.file).parts
            if not path.is_file() or any(part.startswith(".") for part in parts):
                continue
            try:
                lines = list(Lines(str(path)))
            except Refusal:
                self.skipped += 1
                continue
            yield from self._of_lines(lines, "/".join(parts))

    def _of_lines(self, lines: Iterable[str], name: str) -> Iterator[str]:
        first, unit = 1, list[str]()
        for number, line in enumerate(itertools.chain(lines, [None]), start=1):
            ends = line is None or (self.unit == "paragraph" and not line.strip())
            if line is not None and not ends:
                first = number if not unit else first
                unit.append(line)
            if (ends or self.unit == "line") and any(text.strip() for text in unit):
                self.places.append(f"{name}:{first}" if name else str(first))
                yield "\n".join(unit).strip()
            if ends or self.unit == "line":
                unit = []
