"""``attendax embed``: texts in; similarities, JSON, vectors, and pictures of the attention of the first text out."""

import argparse
import contextlib
import io
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from attendax import writing
from attendax.exits import FAILED, Refusal
from attendax.legible import columns, one_line, wrapped

if TYPE_CHECKING:
    from attendax.encoders.embedding import Embedding
    from attendax.encoders.sentences import SentenceEncoder

CHECK_LIMIT = 1e-5  # float32 through six layers; a wrong convention moves an embedding by 4e-5 at the very least
CELL = 8  # columns of a similarity
STREAM = "standard input is read in chunks of 1, 4, 16, 64, 256 and then 1,024 lines"
NEAREST = 3  # beyond that, how many neighbours of each text are listed
MARGIN = 20  # columns that a text leaves for numbers beside it
PICTURES = (".png", ".svg", ".pdf", ".jpg")
TITLE = 60  # columns of the text in the title of a picture
LONGEST = 2**20  # bytes of a line; models cut after a few hundred words
EVERY = 0.5  # seconds between two reports of progress
HEADER = 128  # bytes before the numbers; what NumPy writes, and room for any count


def add_arguments(embed: argparse.ArgumentParser) -> None:
    """The arguments of ``attendax embed``."""
    embed.description = f"{embed.description}: all-MiniLM-L6-v2 or another BERT checkpoint; {STREAM}"
    embed.add_argument("texts", nargs="*", metavar="TEXT", help="text; without one, or as -, lines of standard input")
    about = 'a JSON line for each text: {"text": ..., "embedding": [...]}'
    embed.add_argument("--json", action="store_true", help=about)
    embed.add_argument("--check", action="store_true", help="comparison with the NumPy specification")
    about = "picture of the attention heads of one layer, for the first text"
    embed.add_argument("--map", metavar="FILE.png", help=about)
    embed.add_argument("--page", metavar="FILE.html", help="page of all heads of all layers, for the first text")
    embed.add_argument("--layer", type=int, metavar="K", help="layer that --map draws, from 1 [the last]")
    embed.add_argument("--file", metavar="FILE", help="file of texts, one a line, UTF-8; - is standard input")
    about = "file for the embeddings, written as they come, in bounded memory"
    embed.add_argument("--output", metavar="FILE.npy", help=about)
    embed.add_argument("--packed", action="store_true", help="several texts in a row instead of padding")
    embed.add_argument("--weights", metavar="DIR", help="checkpoint [the installed all-MiniLM-L6-v2]")
    embed.add_argument("--pool", choices=("mean", "cls"), help="pooling of the tokens [the checkpoint's]")


def run(args: argparse.Namespace) -> int:
    """Embed every text; print the similarity matrix, or a line of JSON as soon as an embedding is there."""
    if args.layer is not None and args.map is None:
        raise Refusal("--layer chooses the layer that --map draws; --map FILE.png is missing")
    if args.file is not None and args.texts:
        raise Refusal("texts are both arguments and in --file; pass one of them")
    if args.json and args.output is not None:
        raise Refusal("--json prints the embeddings and --output writes them; choose one")
    vectors = None if args.output is None else VectorFile(args.output)
    encoder = _load(args)
    drawers = [drawer for drawer in (_map_drawer(encoder, args), _page_writer(encoder, args)) if drawer]
    _set_output(for_json=args.json)
    with vectors or contextlib.nullcontext():
        status = _embed_all(args, encoder, drawers, vectors)
    if vectors:
        print(f"attendax embed: wrote {vectors.count:,} embeddings to {args.output}", file=sys.stderr)
    return status


def _load(args: argparse.Namespace) -> "SentenceEncoder":
    """The checkpoint of the arguments; if it cannot be read, the refusal has one line."""
    from attendax.encoders import sentences

    try:
        weights = sentences.packaged_weights() if args.weights is None else args.weights
        encoder = sentences.load_sentence_encoder(weights)
    except (ImportError, OSError, ValueError, NotImplementedError) as error:
        raise Refusal(str(error)) from error
    return encoder if args.pool is None else encoder._replace(pooling=args.pool)


def _embedded(encoder: "SentenceEncoder", texts: Iterable[str], *, packed: bool = False) -> "Iterator[Embedding]":
    """Embed the texts; one that the checkpoint's tokenizer cannot split is the user's to know."""
    from attendax.encoders import embedding

    stream, windows = iter(texts), iter([texts])
    if isinstance(texts, Lines):  # a file is read in full windows from the start
        windows = iter(lambda: list(itertools.islice(stream, embedding.WINDOW)), [])
    results = (result for window in windows for result in embedding.embed(encoder, window, packed=packed))
    try:
        for number, result in enumerate(results, start=1):
            if not np.isfinite(result.vector).all():
                raise Refusal(f"the embedding of text {number} is not finite; are the weights damaged?")
            yield result
    except ValueError as error:
        raise Refusal(str(error)) from error


def _set_output(*, for_json: bool) -> None:
    """JSON is UTF-8 (RFC 8259) whatever the terminal's encoding; text shows ? for what the encoding lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        if for_json:
            sys.stdout.reconfigure(encoding="utf-8")
        else:
            sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")


def _arguments(texts: list[str]) -> list[str]:
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
                yield from _lines_of(stream, _named(self.file))
        except OSError as error:
            raise Refusal(f"cannot read {_named(self.file)}: {error.strerror}") from None


def _named(file: str) -> str:
    return "standard input" if file == "-" else file


def _lines_of(stream: Any, name: str) -> Iterator[str]:
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


def _texts(args: argparse.Namespace) -> Iterable[str]:
    if args.file not in (None, "-"):
        return Lines(args.file)
    if args.file is None and args.texts not in ([], ["-"]):
        return _arguments(args.texts)
    return iter(Lines("-"))  # which come one by one


def _embed_all(
    args: argparse.Namespace,
    encoder: "SentenceEncoder",
    drawers: "list[Callable[[Embedding], None]]",
    vectors: "VectorFile | None",
) -> int:
    from attendax.encoders import embedding

    streams = args.json or vectors is not None
    inputs = _texts(args)
    if not streams:  # nothing is printed before the last text: read them all, and run them in full windows
        inputs = list(inputs)
    results: list[Embedding] = []
    difference = np.float64(0.0)
    number = 0
    embeddings = _embedded(encoder, inputs, packed=args.packed)
    for number, result in enumerate(progress(embeddings) if vectors else embeddings, start=1):
        if result.tokens.truncated:
            _report_truncated(number, result, encoder.max_tokens)
        for draw in drawers if number == 1 else []:
            draw(result)
        if args.check:
            wanted = embedding.embed_by_specification(encoder, result.tokens)
            difference = np.maximum(difference, np.abs(result.vector - wanted).max())  # keeps a NaN, unlike max()
        if args.json:
            print(_json_line(result), flush=True)
        elif vectors:
            vectors.add(result.vector)
        else:
            results.append(result)
    if number == 0 and (drawers or args.check or not args.json):  # a check of nothing would pass
        none = "no text; pass texts as arguments, or one a line on standard input"
        raise Refusal(none if args.file in (None, "-") else f"{args.file} is empty, expected one text a line")
    if not streams:
        _print_similarities(results)
    return _report_check(difference, args) if args.check else 0


def _report_truncated(number: int, result: "Embedding", limit: int) -> None:
    tokens = result.tokens
    facts = f"has {tokens.num_tokens} tokens, cut to the model's {limit}"
    print(f"attendax embed: text {number} {facts}: {_shown(tokens.text)}", file=sys.stderr)


def _json_line(result: "Embedding") -> str:
    """The text and its embedding; nine digits hold a float32 exactly."""
    embedding = [float(f"{value:.9g}") for value in result.vector.tolist()]
    line: dict[str, object] = {"text": result.tokens.text, "embedding": embedding}
    if result.tokens.truncated:
        line["truncated"] = True
    return json.dumps(line, ensure_ascii=False, allow_nan=False)


def _report_check(difference: np.float64, args: argparse.Namespace) -> int:
    passed = bool(difference <= CHECK_LIMIT)
    verdict = "within" if passed else "ABOVE"
    line = f"largest difference to the NumPy specification: {difference:.1e} ({verdict} {CHECK_LIMIT:.0e})"
    print(line if args.json else wrapped(line), file=sys.stderr if args.json else sys.stdout)
    return 0 if passed else FAILED


def _print_similarities(results: "list[Embedding]") -> None:
    """The cosine of every pair as a matrix; of more texts than fit a line, the nearest neighbours of each."""
    vectors = np.stack([result.vector for result in results])
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(vectors.dtype).tiny)
    width, room = len(str(len(results))), columns()
    labels = [_shown(result.tokens.text, max(MARGIN, 2 * width + 12)) for result in results]
    if width + CELL * len(labels) <= room:
        for number, label in enumerate(labels, start=1):
            print(f"{number:>{width}}  {label}")
        print("\n" + " " * width + "".join(f"{number:{CELL}d}" for number in range(1, len(labels) + 1)))
        for number, vector in enumerate(vectors, start=1):
            print(f"{number:>{width}}" + "".join(f"{cosine:{CELL}.3f}" for cosine in vectors @ vector))
        return
    for number, (label, vector) in enumerate(zip(labels, vectors, strict=True), start=1):
        print(f"{number:>{width}}  {label}")
        cosines = vectors @ vector
        cosines[number - 1] = -np.inf  # not its own neighbour
        for other in np.argsort(-cosines, kind="stable")[:NEAREST]:
            print(f"{'':>{width}}  {cosines[other]:6.3f}  {other + 1:>{width}}  {labels[other]}")


def _shown(text: str, margin: int = MARGIN) -> str:
    return one_line(text, columns() - margin) or "(empty)"


def _map_drawer(encoder: "SentenceEncoder", args: argparse.Namespace) -> "Callable[[Embedding], None] | None":
    """The function that draws the attention map, or None; errors are raised now, before any text is embedded."""
    if args.map is None:
        return None
    from attendax import figures
    from attendax.encoders import layer_attention
    from attendax.extras import require

    writing.check("--map", args.map, PICTURES, f"a picture file, such as heads.png ({', '.join(PICTURES)})")
    kind = os.path.splitext(args.map)[1].lower()
    num_layers = encoder.config.num_layers
    layer = num_layers if args.layer is None else args.layer
    if not 1 <= layer <= num_layers:
        raise Refusal(f"--layer {layer}: the model has layers 1 to {num_layers}")
    try:
        require("matplotlib", "--map")
    except ImportError as error:
        raise Refusal(str(error)) from error

    def draw(result: "Embedding") -> None:
        ids = np.array([result.tokens.ids], np.int32)
        weights = layer_attention(ids, encoder.params, config=encoder.config, layer=layer - 1)
        title = f"Layer {layer} of {num_layers}: {_title_of(result)}"
        picture = io.BytesIO()
        figure = figures.attention_map(weights[0], result.tokens.pieces, title=title)
        figure.savefig(picture, format=kind[1:] if kind in PICTURES else "png")  # a stream may have any name
        _write("--map", args.map, picture.getvalue())
        print(f"attendax embed: wrote the attention of text 1, layer {layer}, to {args.map}", file=sys.stderr)

    return draw


def _page_writer(encoder: "SentenceEncoder", args: argparse.Namespace) -> "Callable[[Embedding], None] | None":
    """The function that writes the page, or None; errors are raised now, before any text is embedded."""
    if args.page is None:
        return None
    from attendax import figures
    from attendax.encoders import attention_rows

    writing.check("--page", args.page, (".html", ".htm"), "a file that ends in .html")

    def write(result: "Embedding") -> None:
        rows = attention_rows(np.array([result.tokens.ids], np.int32), encoder.params, config=encoder.config)
        title = f"Attention: {_title_of(result)}"
        text = figures.attention_page(rows, result.tokens.pieces, num_layers=encoder.config.num_layers, title=title)
        _write("--page", args.page, text)
        print(f"attendax embed: wrote the attention of text 1, all layers, to {args.page}", file=sys.stderr)

    return write


def _write(option: str, path: str, content: str | bytes) -> None:
    try:
        writing.write(path, content)
    except OSError as error:
        raise Refusal(f"{option} {path}: {error.strerror}") from error


def _title_of(result: "Embedding") -> str:
    return one_line(result.tokens.text, TITLE) or "(empty)"


class VectorFile:
    """A ``.npy`` file of vectors (count, width), float32, written one by one: how many there will be is not known.

    Used as a context. At the end the header is written again, and the file moves to its place.
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
