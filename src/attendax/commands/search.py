"""``attendax search``: the lines of a file that are nearest to a question; and vectors in files, in bounded memory."""

import argparse
import collections
import contextlib
import heapq
import io
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attendax import writing
from attendax.exits import Refusal
from attendax.legible import columns, one_line

if TYPE_CHECKING:
    from attendax.encoders.sentences import SentenceEncoder

LABEL = 100  # columns for a line that was found, where nothing says how wide the terminal is
BLOCK = 4096  # vectors of a file that are compared at a time
LONGEST = 2**20  # bytes of a line; models cut after a few hundred words
HEADER = 128  # bytes before the numbers; what NumPy writes, and room for any count
UNITS = ("line", "paragraph", "file")
EVERY = 0.5  # seconds between two reports of progress
Embed = Callable[["SentenceEncoder", Iterable[str]], Iterator[Any]]


def add_arguments(search: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    about = "texts, one a line, UTF-8; - is standard input; or a folder, with all texts that lie in it"
    search.add_argument("file", metavar="FILE", help=about)
    search.add_argument("query", metavar="QUERY", help="what to look for")
    about = "what is looked for: a line, unless given; a paragraph, up to the next blank line; or a whole file"
    search.add_argument("--unit", choices=UNITS, default="line", help=about)
    search.add_argument("--top", type=int, default=5, metavar="K", help="how many lines to print; 5 unless given")
    about = "embeddings of the file, written by: attendax embed --file FILE --output VECTORS.npy"
    search.add_argument("--vectors", metavar="VECTORS.npy", help=about)


def run(args: argparse.Namespace, encoder: "SentenceEncoder", embed: Embed, query: str) -> int:
    """Print the nearest lines, the nearest first: cosine, number of the line, line."""
    if args.top < 1:
        raise Refusal(f"--top {args.top}: at least 1 line")
    (asked,) = embed(encoder, [query])
    direction = _unit(asked.vector[None])[0]
    folder = args.file != "-" and os.path.isdir(args.file)
    if args.vectors is None and (folder or args.unit != "line"):
        return _of_units(args, encoder, embed, direction)
    if folder or args.unit != "line":
        raise Refusal("--vectors goes with the lines of one file: without --unit, and not with a folder")
    if args.vectors is None:
        pairs = _embedded(encoder, embed, args.file)
    else:
        pairs = _stored(args.vectors, args.file, len(direction))
    scored = ((float(vector @ direction), -number, text) for number, text, vector in pairs)
    nearest = heapq.nlargest(args.top, scored)
    if not nearest:
        raise Refusal(f"{_named(args.file)} holds no line that is not blank")
    width = len(str(max(-number for _, number, _ in nearest)))
    before = len(f"{0:6.3f}  {0:>{width}}  ")
    room = columns(before + LABEL) - before
    for cosine, number, text in nearest:
        print(f"{cosine:6.3f}  {-number:>{width}}  {one_line(text, room)}")
    return 0


def _of_units(args: argparse.Namespace, encoder: "SentenceEncoder", embed: Embed, direction: np.ndarray) -> int:
    """Print the nearest lines, paragraphs or files: cosine, file and number of the first line, text."""
    units = Units(args.file, args.unit)
    found = progress(embed(encoder, units))
    pairs = ((_unit(result.vector[None])[0], units.places.popleft(), result.tokens.text) for result in found)
    scored = ((float(vector @ direction), -k, place, text) for k, (vector, place, text) in enumerate(pairs))
    nearest = heapq.nlargest(args.top, scored)
    if units.skipped:
        print(f"attendax: {units.skipped} files are not UTF-8 text and were left out", file=sys.stderr)
    if not nearest:
        raise Refusal(f"{_named(args.file)} holds no text that is not blank")
    width = max(len(place) for _, _, place, _ in nearest)
    before = len(f"{0:6.3f}  {'':>{width}}  ")
    room = max(20, columns(before + LABEL) - before)
    for cosine, _, place, text in nearest:
        print(f"{cosine:6.3f}  {place:>{width}}  {one_line(text, room)}")
    return 0


def _embedded(encoder: "SentenceEncoder", embed: Embed, file: str) -> Iterator[tuple[int, str, np.ndarray]]:
    """Number, text and vector of the lines that are not blank."""
    lines = Written(file)
    for result in progress(embed(encoder, lines)):
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
        raise Refusal(f"--vectors {vectors}: holds {len(found)} vectors, but {_named(file)} has {count} lines")


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1; of no length, they are near to nothing."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(vectors.dtype).tiny)


class Lines:
    """The lines of a file, or of standard input (``-``), read as they are asked for."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __iter__(self) -> Iterator[str]:
        if self.file == "-" and sys.stdin is None:
            raise Refusal("standard input is closed")
        if self.file == "-" and sys.stdin.isatty():
            print("attendax: one text a line, then end of file (Ctrl-D)", file=sys.stderr)
        try:
            with open(self.file, "rb") if self.file != "-" else contextlib.nullcontext(sys.stdin.buffer) as stream:
                yield from decoded(stream, _named(self.file))
        except OSError as error:
            raise Refusal(f"cannot read {_named(self.file)}: {error.strerror}") from None


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


def _named(file: str) -> str:
    return "standard input" if file == "-" else file


def windows_of(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Cut a stream of lines into windows of so many."""
    stream = iter(lines)
    while window := list(itertools.islice(stream, size)):
        yield window


def decoded(stream: Any, name: str) -> Iterator[str]:
    """The lines of a stream of bytes, without their ends; an empty line is an empty text."""
    for number in itertools.count(1):
        if not (line := stream.readline(LONGEST + 1)):
            return
        if len(line) > LONGEST:
            raise Refusal(f"line {number} of {name} has more than {LONGEST:,} bytes; is it text?")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise Refusal(f"line {number} of {name} is not valid UTF-8: {error.reason}") from None


def progress(results: Iterable[Any], clock: Callable[[], float] = time.monotonic) -> Iterator[Any]:
    """The results, and on a terminal how many there are, and how many come in a second."""
    shown = isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr.isatty()
    start = last = clock()
    number = 0
    for number, result in enumerate(results, start=1):
        yield result
        if shown and clock() - last >= EVERY:
            last = clock()
            print(f"\r{number:,} texts, {number / (last - start):,.0f} a second", end="", file=sys.stderr, flush=True)
    if last > start:
        print(f"\r{number:,} texts, {number / max(clock() - start, 1e-9):,.0f} a second", file=sys.stderr)


class VectorFile:
    """A ``.npy`` file of vectors (count, width), float32, written one by one: how many there will be is not known.

    Used as a context; the header is written anew at the end, and only then is the file where it belongs.
    """

    def __init__(self, path: str) -> None:
        self.path, self.count, self.width = path, 0, 0
        writing.check("--output", path, (".npy",), "a file that ends in .npy")
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "VectorFile":
        with self._refusing():
            self._file = self._open.enter_context(writing.whole(self.path))
            self._file.write(b" " * HEADER)
        return self

    def add(self, vector: np.ndarray) -> None:
        """Write one more."""
        self.width = len(vector)
        with self._refusing():
            self._file.write(np.asarray(vector, "<f4").tobytes())
        self.count += 1

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._open.__exit__(kind, error, trace)
            return
        with self._refusing(), self._open:
            text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({self.count}, {self.width}), }}"
            self._file.seek(0)
            self._file.write(b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little"))
            self._file.write(text.ljust(HEADER - 11).encode() + b"\n")

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Refusal(f"--output {self.path}: {error.strerror}") from None
