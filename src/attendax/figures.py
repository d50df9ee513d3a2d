"""Figures: attention maps, drawn with matplotlib (extra ``demo``) into files, and as a page to look around in."""

import base64
import html
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attendax import checks
from attendax.extras import require

PANEL_INCHES = (2.0, 4.5)  # the side of one head's square, from a few tokens to many
LABEL_INCHES = 0.14  # the height of a label; tokens closer than this are labelled every second, third, ...
FONT_SIZE = 7
FONT = "DejaVu Sans"  # comes with matplotlib
NO_GLYPH = "\u25a1"  # a white square, as text programs show it; the font has it
DOTS_PER_INCH = 150
PAGE = Path(__file__).with_name("attention_page.html")
BINS = 64  # the side of a square on a page, in cells
ROWS = 64  # queries whose weights are there at a time
PAIRS = 2**19  # pairs that a page contains: for each query the keys with the largest weights
LEAST = 4  # keys of a query, whatever the page's size
ROUNDING = 1e-3  # by which a weight of a narrow dtype may lie above 1
LONGEST = 2**16  # tokens; keys are stored in 16 bits


def attention_map(weights: np.ndarray, tokens: Sequence[str], *, title: str = "") -> Any:
    """Draw the attention weights of every head of one layer, a square each, tokens on both axes.

    A row is a token that looks, a column is a token that is looked at; all heads share one colour scale from 0. The
    colour follows the square root of a weight: of many tokens each gets a small one, and the map would look blank.
    Characters that matplotlib's own font lacks are drawn with installed fonts that have them. Where none has, a label
    shows the code point, such as U+6771, which tells tokens apart, and the title a white square.

    Args:
        weights: (N, T, T), one sentence.
        tokens: the T labels.
        title: one line above the heads.

    Returns:
        A ``matplotlib.figure.Figure``; ``figure.savefig(path)`` writes it.

    Raises:
        ValueError: shapes that do not fit.
        ModuleNotFoundError: matplotlib is not installed.
    """
    weights = np.asarray(weights)
    if weights.ndim != 3 or 0 in weights.shape or weights.shape[1:] != (len(tokens), len(tokens)):
        row = ("weights", str(weights.shape), f"(N, {len(tokens)}, {len(tokens)}), none of them 0")
        checks.fail(ValueError, "attention_map", f"weights do not fit {len(tokens)} tokens.", [row])
    num_heads, num_tokens, _ = weights.shape
    fonts = fonts_for("".join([title, *tokens]))
    labels = [drawable(token, fonts) for token in tokens]
    family = list(fonts)
    columns = math.ceil(math.sqrt(num_heads))
    rows = math.ceil(num_heads / columns)
    side = min(max(PANEL_INCHES[0], LABEL_INCHES * num_tokens), PANEL_INCHES[1])
    size = (columns * side + 1.6, rows * (side + 0.2) + 1.2)
    figure = require("matplotlib.figure", "attention_map").Figure(size, dpi=DOTS_PER_INCH, layout="constrained")
    scale = require("matplotlib.colors", "attention_map").PowerNorm(0.5, vmin=0.0, vmax=float(weights.max()))
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for panel in panels[num_heads:]:
        panel.remove()
    for head, panel in enumerate(panels[:num_heads]):
        image = panel.imshow(weights[head], cmap="Blues", norm=scale, interpolation="nearest")
        panel.set_title(f"head {head + 1}", fontsize=FONT_SIZE + 1)
        _label(panel, labels, side, family)
        # The lowest panel of each column and the first of each row carry the tokens; the others share them.
        panel.tick_params(labelbottom=head + columns >= num_heads, labelleft=head % columns == 0)
    shown = drawable(title, fonts, stand_in=NO_GLYPH)
    figure.suptitle(shown, fontsize=FONT_SIZE + 4, fontfamily=family, parse_math=False)
    figure.supxlabel("key: the token looked at", fontsize=FONT_SIZE + 2)
    figure.supylabel("query: the token that looks", fontsize=FONT_SIZE + 2)
    colorbar = figure.colorbar(image, ax=panels[:num_heads].tolist(), shrink=0.6, aspect=40)
    colorbar.ax.tick_params(labelsize=FONT_SIZE)
    colorbar.set_label("attention weight (colour: its square root)", fontsize=FONT_SIZE + 1)
    return figure


def fonts_for(text: str) -> dict[str, frozenset[str]]:
    """Font families that together have the characters of ``text``, as far as installed ones do; FONT comes first.

    Returns:
        Family -> the characters of ``text`` that it has.
    """
    font_manager = require("matplotlib.font_manager", "attention_map")
    plain = [font for font in font_manager.fontManager.ttflist if (font.style, font.weight) == ("normal", 400)]
    others = {font.name for font in plain if font.name != FONT and not font.name.startswith("Last Resort")}  # boxes
    missing, fonts = frozenset(text), {}
    for name in [FONT, *sorted(others)]:
        if missing:
            path = font_manager.findfont(font_manager.FontProperties(family=name))
            glyphs = font_manager.get_font(path).get_charmap()
            if covered := frozenset(character for character in missing if ord(character) in glyphs):
                fonts[name] = covered
                missing -= covered
    return fonts or {FONT: frozenset()}


def drawable(text: str, fonts: dict[str, frozenset[str]], *, stand_in: str | None = None) -> str:
    """The text with every character that none of ``fonts`` has replaced by ``stand_in``, or by its code point.

    Without this, it would be drawn as an empty box, with a warning.
    """
    known = frozenset().union(*fonts.values())
    return "".join(c if c in known else stand_in or f"U+{ord(c):04X}" for c in text)


def _label(panel: Any, labels: list[str], side: float, family: list[str]) -> None:
    """Put the tokens on both axes, as many as can be read."""
    step = math.ceil(len(labels) * LABEL_INCHES / side)
    places = range(0, len(labels), step)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_ticks(places, [labels[place] for place in places], fontsize=FONT_SIZE, parse_math=False)
        for label in axis.get_ticklabels():
            label.set_fontfamily(family)
    panel.tick_params(length=0)
    panel.tick_params(axis="x", labelrotation=90)


def attention_page(
    weights: np.ndarray | Callable[[int, int, int], np.ndarray],
    tokens: Sequence[str],
    *,
    num_layers: int | None = None,
    title: str = "",
) -> str:
    """One HTML page that needs nothing else: layers x heads as small squares, one of them large, pairs on pointing.

    For each query the page has the keys with the largest weights: all in a short text, at least four in a long one. If
    ``weights`` is a function, it is called for 64 rows at a time, and no T x T array is built.

    Args:
        weights: (L, N, T, T), one text; or a function that gives those of some queries, ``weights(layer, start, stop)``
            of shape (N, stop - start, T), such as ``encoders.attention_rows`` makes.
        tokens: the T labels.
        num_layers: L, where ``weights`` is a function.
        title: what the page is of.

    Returns:
        The page; ``Path("heads.html").write_text(page, encoding="utf-8")`` writes it.

    Raises:
        ValueError: shapes do not fit, numbers are not weights, or the number of tokens is not from 1 to 65,535.

    Example:
        >>> page = attention_page(np.full((1, 2, 3, 3), 1 / 3), ["a", "b", "c"])
        >>> page.startswith("<!doctype html>")
        True
    """
    T = len(tokens)
    if not 0 < T < LONGEST:
        checks.fail(ValueError, "attention_page", f"there must be 1 to {LONGEST - 1} tokens, got {T}.")
    if callable(weights):
        num_layers = checks.integer("attention_page", "num_layers", num_layers)
        rows = weights
    else:
        whole = np.asarray(weights)
        num_layers = len(whole) if whole.ndim == 4 else 0

        def rows(layer: int, start: int, stop: int) -> np.ndarray:
            return whole[layer, :, start:stop]

        if whole.ndim != 4 or 0 in whole.shape or whole.shape[2:] != (T, T):
            row = ("weights", str(whole.shape), f"(L, N, {T}, {T}), none of them 0")
            checks.fail(ValueError, "attention_page", f"weights do not fit {T} tokens.", [row])
    content = _page_content(rows, num_layers, T) | {"tokens": list(tokens), "layers": num_layers}
    data = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")  # so that no text ends the script
    values = {"title": html.escape(title or "Attention"), "data": data}
    return re.sub(r"\{\{(title|data)\}\}", lambda match: values[match[1]], PAGE.read_text("utf-8"))


def _page_content(rows: Callable[[int, int, int], np.ndarray], num_layers: int, T: int) -> dict[str, Any]:
    """The cells of the small squares, and of each query the keys with most weight; by blocks of queries."""
    num_heads = np.asarray(rows(0, 0, 1)).shape[0]
    bins, kept = min(T, BINS), min(T, max(LEAST, PAIRS // (num_layers * num_heads * T)))
    cells = np.zeros((num_layers, num_heads, bins, bins))
    keys = np.zeros((num_layers, num_heads, T, kept), "<u2")
    weights = np.zeros_like(keys)
    begin = -(-np.arange(bins) * T // bins)  # the first token of each cell
    for layer in range(num_layers):
        for start in range(0, T, ROWS):
            stop = min(T, start + ROWS)
            block = np.asarray(rows(layer, start, stop))
            if block.shape != (num_heads, stop - start, T):
                row = ("weights", str(block.shape), f"({num_heads}, {stop - start}, {T})")
                facts = f"weights of layer {layer}, queries {start} to {stop}, have another shape."
                checks.fail(ValueError, "attention_page", facts, [row])
            if not ((block >= 0) & (block <= 1 + ROUNDING)).all():  # nor NaN
                facts = f"weights of layer {layer}, queries {start} to {stop}, lie outside 0 to 1, or are NaN."
                checks.fail(ValueError, "attention_page", facts)
            columns = np.maximum.reduceat(block, begin, axis=2)
            for i, row_of in zip(range(start, stop), np.moveaxis(columns, 1, 0), strict=True):
                cell = i * bins // T
                cells[layer, :, cell] = np.maximum(cells[layer, :, cell], row_of)
            order = np.argsort(-block, axis=2, kind="stable")[..., :kept]
            keys[layer, :, start:stop] = order
            weights[layer, :, start:stop] = np.round(np.take_along_axis(block, order, axis=2).clip(0, 1) * 65535)
    levels = np.round(255 * np.sqrt(np.clip(cells, 0, 1))).astype(np.uint8)
    coded = {"small": levels, "keys": keys, "weights": weights}
    sizes = {"heads": num_heads, "bins": bins, "kept": kept}
    return sizes | {name: base64.b64encode(array.tobytes()).decode() for name, array in coded.items()}
