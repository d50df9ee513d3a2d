"""Texts of ``attendax embed``: read as UTF-8, line by line, and embedded by a checkpoint."""

import argparse
import contextlib
import io
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from attendax.exits import Refusal

if TYPE_CHECKING:
    from attendax.encoders.embedding import Embedding
    from attendax.encoders.sentences import SentenceEncoder

LONGEST = 2**20  # bytes of a line; models cut after a few hundred words
EVERY = 0.5  # seconds between two reports of progress


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say by which checkpoint."""
    parser.add_argument("--weights", metavar="DIR", help="checkpoint [the installed all-MiniLM-L6-v2]")
    parser.add_argument("--pool", choices=("mean", "cls"), help="pooling of the tokens [the checkpoint's]")


def load(args: argparse.Namespace) -> "SentenceEncoder":
    """The checkpoint of the arguments; if it cannot be read, the refusal has one line."""
    from attendax.encoders import sentences

    try:
        weights = sentences.packaged_weights() if args.weights is None else args.weights
        encoder = sentences.load_sentence_encoder(weights)
    except (ImportError, OSError, ValueError, NotImplementedError) as error:
        raise Refusal(str(error)) from error
    return encoder if args.pool is None else encoder._replace(pooling=args.pool)


def embedded(encoder: "SentenceEncoder", texts: Iterable[str], *, packed: bool = False) -> "Iterator[Embedding]":
    """Embed the texts; one that the checkpoint's tokenizer cannot split is the user's to know."""
    from attendax.encoders import embedding

    windows = windows_of(texts, embedding.WINDOW) if isinstance(texts, Lines) else [texts]
    results = (result for window in windows for result in embedding.embed(encoder, window, packed=packed))
    try:
        for number, result in enumerate(results, start=1):
            if not np.isfinite(result.vector).all():
                raise Refusal(f"the embedding of text {number} is not finite; are the weights damaged?")
            yield result
    except ValueError as error:
        raise Refusal(str(error)) from error


def set_output(*, for_json: bool) -> None:
    """JSON is UTF-8 (RFC 8259) whatever the terminal's encoding; text shows ? for what the encoding lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        if for_json:
            sys.stdout.reconfigure(encoding="utf-8")
        else:
            sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")


def arguments(texts: list[str]) -> list[str]:
    """The arguments as the UTF-8 that was typed, whatever encoding the locale made Python read them in."""
    decoded = []
    for number, text in enumerate(texts, start=1):
        try:
            decoded.append(os.fsencode(text).decode("utf-8"))
        except UnicodeError:
            raise Refusal(f"text {number} is not valid UTF-8") from None
    return decoded


class Lines:
    """The lines of a file, or of standard input (``-``), read one by one on demand."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __iter__(self) -> Iterator[str]:
        if self.file == "-" and sys.stdin is None:
            raise Refusal("standard input is closed")
        if self.file == "-" and sys.stdin.isatty():
            print("attendax: one text a line, then end of file (Ctrl-D)", file=sys.stderr)
        try:
            with open(self.file, "rb") if self.file != "-" else contextlib.nullcontext(sys.stdin.buffer) as stream:
                yield from decoded(stream, named(self.file))
        except OSError as error:
            raise Refusal(f"cannot read {named(self.file)}: {error.strerror}") from None


def named(file: str) -> str:
    """The name of a file as a message shows it."""
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
