"""``attendax embed`` and ``attendax search``: texts in; similarities, JSON, vectors or the nearest lines out."""

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from attendax.exits import FAILED, Refusal
from attendax.legible import columns, one_line, wrapped

from . import drawing, search

if TYPE_CHECKING:
    from attendax.encoders.embedding import Embedding
    from attendax.encoders.sentences import SentenceEncoder

CHECK_LIMIT = 1e-5  # float32 through six layers; a wrong convention moves an embedding by 4e-5 at the very least
CELL = 8  # columns of a similarity
STREAM = "standard input is read 1, 4, 16, 64, 256, and from then on 1,024 lines at a time"
NEAREST = 3  # beyond that, how many neighbours of each text are listed
LEAST_BESIDE = 20  # columns left to what stands beside a text


def add_commands(commands: Any) -> None:
    """Add both commands, with their arguments."""
    about = "embed sentences with all-MiniLM-L6-v2 or another BERT checkpoint"
    embed = commands.add_parser("embed", help=about, description=f"{about}; {STREAM}")
    embed.set_defaults(run=_embed)
    embed.add_argument("texts", nargs="*", metavar="TEXT", help="none, or a single -: one a line from standard input")
    embed.add_argument("--json", action="store_true", help='a line for each text: {"text": ..., "embedding": [...]}')
    embed.add_argument("--check", action="store_true", help="compare with the NumPy specification")
    embed.add_argument("--map", metavar="FILE.png", help="draw the attention heads of one layer for the first text")
    embed.add_argument("--page", metavar="FILE.html", help="write a page of all heads of all layers for the first text")
    embed.add_argument("--layer", type=int, metavar="K", help="the layer to draw, from 1; the last unless given")
    embed.add_argument("--file", metavar="FILE", help="the texts, one a line, UTF-8; - is standard input")
    embed.add_argument(
        "--output", metavar="FILE.npy", help="write the embeddings there, as they come, in bounded memory"
    )
    embed.add_argument("--packed", action="store_true", help="several texts in a row instead of padding")

    about = "print the lines of a file that are nearest to a query"
    finder = commands.add_parser("search", help=about, description=about)
    search.add_arguments(finder)
    finder.set_defaults(run=_search)
    for reader in (embed, finder):
        reader.add_argument("--weights", metavar="DIR", help="checkpoint; the installed all-MiniLM-L6-v2 unless given")
        reader.add_argument(
            "--pool", choices=("mean", "cls"), help="of the tokens; what the checkpoint says unless given"
        )


def _embed(args: argparse.Namespace) -> int:
    """Embed every text; print the similarity matrix, or a line of JSON as soon as an embedding is there."""
    if args.layer is not None and args.map is None:
        raise Refusal("--layer chooses the layer that --map draws; --map FILE.png is missing")
    if args.file is not None and args.texts:
        raise Refusal("give texts as arguments or in --file, not both")
    if args.json and args.output is not None:
        raise Refusal("--json prints the embeddings and --output writes them; choose one")
    vectors = None if args.output is None else search.VectorFile(args.output)
    encoder = _load(args)
    drawers = [drawer for drawer in (drawing.map_drawer(encoder, args), drawing.page_writer(encoder, args)) if drawer]
    _set_output(for_json=args.json)
    with vectors or contextlib.nullcontext():
        status = _embed_all(args, encoder, drawers, vectors)
    if vectors:
        print(f"attendax embed: wrote {vectors.count:,} embeddings to {args.output}", file=sys.stderr)
    return status


def _texts(args: argparse.Namespace) -> Iterable[str]:
    if args.file not in (None, "-"):
        return search.Lines(args.file)
    if args.file is None and args.texts not in ([], ["-"]):
        return _arguments(args.texts)
    return iter(search.Lines("-"))  # which come one by one


def _embed_all(
    args: argparse.Namespace,
    encoder: "SentenceEncoder",
    drawers: "list[Callable[[Embedding], None]]",
    vectors: search.VectorFile | None,
) -> int:
    from attendax.encoders import embedding

    streams = args.json or vectors is not None
    texts = _texts(args)
    if not streams:  # nothing is printed before the last text: read them all, and run them in full windows
        texts = list(texts)
    results: list[Embedding] = []
    difference = np.float64(0.0)
    number = 0
    found = _embedded(encoder, texts, packed=args.packed)
    for number, result in enumerate(search.progress(found) if vectors else found, start=1):
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
        raise Refusal(
            f"{args.file} holds no line"
            if args.file not in (None, "-")
            else "there is no text; give some as arguments, or one a line on standard input"
        )
    if not streams:
        _print_similarities(results)
    return _report_check(difference, args) if args.check else 0


def _search(args: argparse.Namespace) -> int:
    """Print the lines of a file that are nearest to a query."""
    encoder = _load(args)
    _set_output(for_json=False)
    (query,) = _arguments([args.query])
    return search.run(args, encoder, _embedded, query)


def _embedded(encoder: "SentenceEncoder", texts: Iterable[str], *, packed: bool = False) -> "Iterator[Embedding]":
    """Embed the texts; one that the checkpoint's tokenizer cannot split is the user's to know."""
    from attendax.encoders import embedding

    windows = search.windows_of(texts, embedding.WINDOW) if isinstance(texts, search.Lines) else [texts]
    results = (result for window in windows for result in embedding.embed(encoder, window, packed=packed))
    try:
        for number, result in enumerate(results, start=1):
            if not np.isfinite(result.vector).all():
                raise Refusal(f"the embedding of text {number} is not finite; are the weights damaged?")
            yield result
    except ValueError as error:
        raise Refusal(str(error)) from error


def _load(args: argparse.Namespace) -> "SentenceEncoder":
    """The checkpoint that was asked for; whatever is wrong with it is the user's to know, on one line."""
    from attendax.encoders import sentences

    try:
        encoder = sentences.load_sentence_encoder(
            sentences.packaged_weights() if args.weights is None else args.weights
        )
    except (ImportError, OSError, ValueError, NotImplementedError) as error:
        raise Refusal(str(error)) from error
    return encoder if args.pool is None else encoder._replace(pooling=args.pool)


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
    labels = [_shown(result.tokens.text, max(LEAST_BESIDE, 2 * width + 12)) for result in results]
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


def _shown(text: str, beside: int = LEAST_BESIDE) -> str:
    return one_line(text, columns() - beside) or "(empty)"
