"""Figures: attention maps. Drawn with matplotlib (extra ``demo``) into files; no window, no global state."""

import math
from collections.abc import Sequence
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
            if found := frozenset(character for character in missing if ord(character) in glyphs):
                fonts[name] = found
                missing -= found
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
