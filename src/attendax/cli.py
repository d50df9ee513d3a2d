"""The command ``attendax``: ``demo``, ``check``, ``embed``, ``bench``. What one needs is imported when it runs."""

import argparse
import importlib
import importlib.metadata
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attendax import interrupts
from attendax.exits import FAILED, PIPE_CLOSED, REFUSED, Refusal
from attendax.legible import one_line

if TYPE_CHECKING:
    from attendax.encoders.embedding import Embedding
    from attendax.encoders.sentences import SentenceEncoder

CHECK_LIMIT = 1e-5  # float32 through six layers; a wrong convention moves an embedding by 4e-5 at the very least
MATRIX_LIMIT = 9  # texts whose similarity matrix still fits 80 columns
PICTURES = (".png", ".svg", ".pdf", ".jpg")
STREAM = "standard input is read 1, 4, 16, 64, 256, and from then on 1,024 lines at a time"
BLAS_REST = ("OPENBLAS_THREAD_TIMEOUT", "4")  # spin for 2^4 cycles, not 2^26
NEAREST = 3  # beyond that, how many neighbours of each text are listed
LABEL = 60  # columns for a text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0 well, 1 the check failed, 2 refused (said why on standard error).
    """
    argv = sys.argv[1:] if argv is None else argv
    args = _parser(argv).parse_args(argv)
    args.argv = argv
    try:
        if sys.stdout is None:
            raise Refusal("standard output is closed")
        if args.command in ("check", "bench"):  # folders and processes of theirs have to go first
            interrupts.raise_instead()
        status = args.run(args)
        sys.stdout.flush()
    except Refusal as refusal:
        print(f"attendax {args.command}: {one_line(str(refusal))}", file=sys.stderr)
        return REFUSED
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter flushes again and complains
        return PIPE_CLOSED
    except OSError as error:  # a full disk behind standard output; files that are read have their own errors
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"attendax {args.command}: cannot write the output: {error.strerror}", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return interrupts.STATUS
    return status


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attendax", description="Attention that keeps its word.")
    parser.add_argument("--version", action="version", version=f"attendax {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="scaled dot-product attention on small numbers, without and with a mask")
    demo.set_defaults(run=_demo)

    about = "judge an attention function, law by law, gradients included"
    check = commands.add_parser("check", help=about, description=about)
    if "check" in argv[:1]:  # the kit is imported by nothing else
        from attendax.conformance import command

        command.add_arguments(check)
        check.set_defaults(run=command.run)

    about = "embed sentences with all-MiniLM-L6-v2 or another BERT checkpoint"
    embed = commands.add_parser("embed", help=about, description=f"{about}; {STREAM}")
    embed.set_defaults(run=_embed)
    embed.add_argument("texts", nargs="*", metavar="TEXT", help="none, or a single -: one a line from standard input")
    embed.add_argument("--json", action="store_true", help='a line for each text: {"text": ..., "embedding": [...]}')
    embed.add_argument("--check", action="store_true", help="compare with the NumPy specification")
    embed.add_argument("--map", metavar="FILE.png", help="draw the attention heads of one layer for the first text")
    embed.add_argument("--layer", type=int, metavar="K", help="the layer to draw, from 1; the last unless given")
    embed.add_argument("--weights", metavar="DIR", help="checkpoint; the installed all-MiniLM-L6-v2 unless given")

    about = "time attention beside the other libraries that are installed"
    bench = commands.add_parser("bench", help=about, description=about)
    bench.set_defaults(run=_bench)
    size = bench.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true", help="the short grid, under two minutes; so unless given")
    size.add_argument("--full", action="store_true", help="every shape, direction and length; under twenty minutes")
    bench.add_argument("--shapes", nargs="+", metavar="NAME", help="these instead of those of the grid")
    bench.add_argument("--measures", nargs="+", metavar="NAME", help="of forward, backward, jvp, hvp")
    bench.add_argument("--contestants", nargs="+", metavar="NAME", help="these only")
    bench.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    bench.add_argument("--rounds", type=int, metavar="R", help="how often everyone has a turn, where time allows")
    bench.add_argument("--lengths", action="store_true", help="also the cost against the length (part of --full)")
    bench.add_argument("--encoders", action="store_true", help="also encoder blocks and sentences (part of --full)")
    about = "seconds to compile every shape instead, beside jax.nn; rounds: 3 unless given"
    bench.add_argument("--compile", action="store_true", help=about)
    bench.add_argument("--output", metavar="DIR", help="write results.json, results.md and the plots there")
    bench.add_argument("--against", metavar="REV", help="compare attendax with that of a commit instead")
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("attendax")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _demo(args: argparse.Namespace) -> int:
    """Print the demo: attention weights of two small sequences, then the same under a causal mask."""
    from attendax import spec

    rng = np.random.RandomState(42)  # the generator behind np.random.seed(42), without touching the global one
    Q, K, V = (rng.standard_normal((2, 4, 8)) * 0.1 for _ in range(3))
    output, weights = spec.scaled_dot_product_attention(Q, K, V)
    causal_mask = np.broadcast_to(spec.create_causal_mask(4), (2, 4, 4))
    _, causal_weights = spec.scaled_dot_product_attention(Q, K, V, mask=causal_mask)
    # NumPy's own defaults, said again: what is printed does not depend on what the user has set.
    layout = np.printoptions(threshold=1000, edgeitems=3, linewidth=75, formatter=None, legacy=False)
    digits = np.printoptions(precision=8, suppress=False, sign="-", floatmode="maxprec", formatter=None)
    with layout, digits:
        print("Batch size: 2\nSequence length: 4")
        print("Key/Query dimension (d_k): 8\nValue dimension (d_v): 8")
        print(f"Q shape: {Q.shape}\nK shape: {K.shape}\nV shape: {V.shape}")
        print(f"\n{'-' * 60}\nExample 1: Attention without mask")
        print(f"\nOutput shape: {output.shape}\nAttention weights shape: {weights.shape}")
        print(f"\nAttention weights (first batch):\n{weights[0]}\nRow sums: {weights[0].sum(axis=1)}")
        print(f"\nOutput (first batch, first sequence position):\n{output[0, 0]}")
        print(f"\n{'-' * 60}\nExample 2: Attention with causal mask")
        print("(Each position can only attend to itself and previous positions)")
        print(f"\nCausal mask (first batch):\n{causal_mask[0].astype(int)}")
        print(f"\nAttention weights with causal mask (first batch):\n{causal_weights[0]}")
        print("\nNote: Upper triangle is 0 (masked positions)")
    return 0


def _embed(args: argparse.Namespace) -> int:
    """Embed every text; print the similarity matrix, or a line of JSON as soon as an embedding is there."""
    if args.layer is not None and args.map is None:
        raise Refusal("--layer chooses the layer that --map draws; --map FILE.png is missing")
    encoder = _load(args.weights)
    draw = _map_drawer(encoder, args)
    _set_output(for_json=args.json)
    from attendax.encoders import embedding

    texts: Iterable[str] = _standard_input() if args.texts in ([], ["-"]) else _arguments(args.texts)
    if not args.json:  # nothing is printed before the last text: read them all, and run them in full windows
        texts = list(texts)
    results: list[Embedding] = []
    difference = np.float64(0.0)
    number = 0
    for number, result in enumerate(_embedded(encoder, texts), start=1):
        if not np.isfinite(result.vector).all():
            raise Refusal(f"the embedding of text {number} is not finite; are the weights damaged?")
        if result.tokens.truncated:
            _report_truncated(number, result, encoder.max_tokens)
        if number == 1 and draw:
            draw(result)
        if args.check:
            wanted = embedding.embed_by_specification(encoder, result.tokens)
            difference = np.maximum(difference, np.abs(result.vector - wanted).max())  # keeps a NaN, unlike max()
        if args.json:
            print(_json_line(result), flush=True)
        else:
            results.append(result)
    if number == 0 and (draw or args.check or not args.json):  # a check of nothing would pass
        raise Refusal("there is no text; give some as arguments, or one a line on standard input")
    if not args.json:
        _print_similarities(results)
    return _report_check(difference, args) if args.check else 0


def _embedded(encoder: "SentenceEncoder", texts: Iterable[str]) -> "Iterator[Embedding]":
    """Embed the texts; one that the checkpoint's tokenizer cannot split is the user's to know."""
    from attendax.encoders import embedding

    try:
        yield from embedding.embed(encoder, texts)
    except ValueError as error:
        raise Refusal(str(error)) from error


def _bench(args: argparse.Namespace) -> int:
    """Run ``benchmarks/bench.py``: beside ``src`` in a clone, inside the package in an installation.

    In a process of its own: NumPy's threads are told to sleep when they have nothing to do before NumPy is imported.
    Else they keep the cores from the next contestant: torch after NumPy took twice as long.
    """
    if BLAS_REST[0] not in os.environ:
        return _in_new_process(args.argv)
    from attendax.extras import require

    package = Path(__file__).resolve().parent
    folders = package / "benchmarks", package.parents[1] / "benchmarks"
    folder = next((place for place in folders if (place / "bench.py").is_file()), None)
    if folder is None:
        raise Refusal("the folder benchmarks is missing from this installation")
    try:
        for module in ("rich", "psutil", "matplotlib"):
            require(module, "bench", extra="bench")
    except ImportError as error:
        raise Refusal(str(error)) from error
    sys.path.insert(0, str(folder))
    bench = importlib.import_module("bench")
    try:
        return bench.main(args)
    except bench.BadRequest as error:
        raise Refusal(str(error)) from error


def _in_new_process(argv: Sequence[str]) -> int:
    """The same command with ``BLAS_REST`` in its environment; an interrupt is for the process to end on."""
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path} | dict([BLAS_REST])
    with subprocess.Popen([sys.executable, "-m", "attendax", *argv], env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue


def _load(weights: str | None) -> "SentenceEncoder":
    """The checkpoint that was asked for; whatever is wrong with it is the user's to know, on one line."""
    from attendax.encoders import sentences

    try:
        return sentences.load_sentence_encoder(weights if weights is not None else sentences.packaged_weights())
    except (ImportError, OSError, ValueError, NotImplementedError) as error:
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


def _standard_input() -> Iterator[str]:
    """The lines of standard input, read as they come; an empty line is an empty text."""
    if sys.stdin is None:
        raise Refusal("standard input is closed and there is no TEXT")
    if sys.stdin.isatty():
        print("attendax embed: one text a line, then end of file (Ctrl-D)", file=sys.stderr)
    try:
        for number, line in enumerate(sys.stdin.buffer, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                raise Refusal(f"line {number} of standard input is not valid UTF-8: {error.reason}") from None
    except OSError as error:
        raise Refusal(f"cannot read standard input: {error.strerror}") from error


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
    print(line, file=sys.stderr if args.json else sys.stdout)
    return 0 if passed else FAILED


def _print_similarities(results: "list[Embedding]") -> None:
    """The cosine of every pair as a matrix; of more texts than fit a line, the nearest neighbours of each."""
    vectors = np.stack([result.vector for result in results])
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(vectors.dtype).tiny)
    labels = [_shown(result.tokens.text) for result in results]
    width = len(str(len(labels)))
    if len(labels) <= MATRIX_LIMIT:
        for number, label in enumerate(labels, start=1):
            print(f"{number:>{width}}  {label}")
        print("\n" + " " * width + "".join(f"{number:8d}" for number in range(1, len(labels) + 1)))
        for number, vector in enumerate(vectors, start=1):
            print(f"{number:>{width}}" + "".join(f"{cosine:8.3f}" for cosine in vectors @ vector))
        return
    for number, (label, vector) in enumerate(zip(labels, vectors, strict=True), start=1):
        print(f"{number:>{width}}  {label}")
        cosines = vectors @ vector
        cosines[number - 1] = -np.inf  # not its own neighbour
        for other in np.argsort(-cosines, kind="stable")[:NEAREST]:
            print(f"{'':>{width}}  {cosines[other]:6.3f}  {other + 1:>{width}}  {labels[other]}")


def _shown(text: str) -> str:
    return one_line(text, LABEL) or "(empty)"


def _map_drawer(encoder: "SentenceEncoder", args: argparse.Namespace) -> "Callable[[Embedding], None] | None":
    """What draws the attention map, or None; what could stop it is looked at now, before any text is embedded."""
    if args.map is None:
        return None
    from attendax import figures
    from attendax.encoders import layer_attention
    from attendax.extras import require

    picture = Path(args.map)
    if picture.suffix.lower() not in PICTURES:  # matplotlib would add one, and write another file than the one named
        raise Refusal(f"--map {args.map}: name a picture file, such as heads.png ({', '.join(PICTURES)})")
    if picture.is_dir() or not picture.parent.is_dir():
        raise Refusal(f"--map {args.map}: there is no such folder, or this is one")
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
        weights = layer_attention(encoder.params, ids, config=encoder.config, layer=layer - 1)
        title = f"Layer {layer} of {num_layers}: {_shown(result.tokens.text)}"
        try:
            figures.attention_map(weights[0], result.tokens.pieces, title=title).savefig(args.map)
        except (OSError, ValueError) as error:  # no such folder, not writable, not a picture format
            raise Refusal(f"--map {args.map}: {error}") from error
        print(f"attendax embed: wrote the attention of text 1, layer {layer}, to {args.map}", file=sys.stderr)

    return draw
