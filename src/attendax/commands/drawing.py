"""The pictures of ``attendax embed`` for its first text: the weights of one layer, or a page with all layers."""

import argparse
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attendax import writing
from attendax.exits import Refusal
from attendax.legible import one_line

if TYPE_CHECKING:
    from attendax.encoders.embedding import Embedding
    from attendax.encoders.sentences import SentenceEncoder

PICTURES = (".png", ".svg", ".pdf", ".jpg")
LABEL = 60  # columns for a text


def map_drawer(encoder: "SentenceEncoder", args: argparse.Namespace) -> "Callable[[Embedding], None] | None":
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
        weights = layer_attention(encoder.params, ids, config=encoder.config, layer=layer - 1)
        title = f"Layer {layer} of {num_layers}: {_shown(result)}"
        picture = io.BytesIO()
        figure = figures.attention_map(weights[0], result.tokens.pieces, title=title)
        figure.savefig(picture, format=kind[1:] if kind in PICTURES else "png")  # a stream may have any name
        _write("--map", args.map, picture.getvalue())
        print(f"attendax embed: wrote the attention of text 1, layer {layer}, to {args.map}", file=sys.stderr)

    return draw


def page_writer(encoder: "SentenceEncoder", args: argparse.Namespace) -> "Callable[[Embedding], None] | None":
    """The function that writes the page, or None; errors are raised now, before any text is embedded."""
    if args.page is None:
        return None
    from attendax import figures
    from attendax.encoders import attention_rows

    writing.check("--page", args.page, (".html", ".htm"), "a file that ends in .html")

    def write(result: "Embedding") -> None:
        rows = attention_rows(encoder.params, np.array([result.tokens.ids], np.int32), config=encoder.config)
        title = f"Attention: {_shown(result)}"
        text = figures.attention_page(rows, result.tokens.pieces, num_layers=encoder.config.num_layers, title=title)
        _write("--page", args.page, text)
        print(f"attendax embed: wrote the attention of text 1, all layers, to {args.page}", file=sys.stderr)

    return write


def _write(option: str, path: str, content: str | bytes) -> None:
    try:
        writing.write(path, content)
    except OSError as error:
        raise Refusal(f"{option} {path}: {error.strerror}") from error


def _shown(result: "Embedding") -> str:
    return one_line(result.tokens.text, LABEL) or "(empty)"
