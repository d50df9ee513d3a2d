"""`{shapes} Q (T, D) @ Kᵀ (D, S) = scores (T, S)`: the arrays of a line, drawn as squares.

The last two axes are rows and columns; axes before them lie behind each other. Colours are those of the theme.
"""

import re
from html import escape

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SIZES = {"B": 2, "N": 2, "T": 3, "S": 5, "D": 2, "V": 2, "M": 4, "F": 6, "P": 5, "1": 1}
CELL, BEHIND, GAP, ABOVE = 14, 5, 12, 44
ARRAY = re.compile(r"([^\s(]+) \(([^)]*)\)")
TEXT = "fill: var(--color-foreground-primary, currentColor)"
FAINT = "fill: var(--color-foreground-secondary, currentColor)"
SQUARE = "fill: var(--color-brand-primary, #2962ff); stroke: var(--color-background-primary, white)"


class Shapes(SphinxDirective):
    """The argument is the line."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """The picture."""
        return [nodes.raw("", f'<div class="shapes">{drawn(self.arguments[0])}</div>', format="html")]


def drawn(line: str) -> str:
    """The line as SVG.

    Raises:
        KeyError: an axis that has no size here.
    """
    line = " ".join(line.split())
    boxes, x, tallest, at = [], 4.0, 0, 0
    for found in ARRAY.finditer(line):
        x = _word(line[at : found.start()].strip(), x, boxes)
        axes = [axis.strip() for axis in found[2].split(",")]
        x, height = _array(found[1], axes, x, boxes)
        tallest, at = max(tallest, height), found.end()
    x = _word(line[at:].strip(), x, boxes)
    size = f'width="{x + 4:.0f}" height="{ABOVE + tallest + 6}" viewBox="0 0 {x + 4:.0f} {ABOVE + tallest + 6}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(line)}">{"".join(boxes)}</svg>'
    )


def _word(word: str, x: float, boxes: list[str]) -> float:
    if not word:
        return x
    boxes.append(f'<text x="{x + 4:.0f}" y="{ABOVE + 16}" font-size="14" style="{TEXT}">{escape(word)}</text>')
    return x + 8 * len(word) + 8 + GAP


def _array(name: str, axes: list[str], x: float, boxes: list[str]) -> tuple[float, int]:
    """One array; returns where the next begins, and how high it is."""
    *leading, rows, columns = ["1", *axes] if len(axes) == 1 else axes
    layers = 1
    for axis in leading:
        layers *= SIZES[axis]
    left, down, across = x + 14, SIZES[rows], SIZES[columns]
    for layer in reversed(range(layers)):
        for i in range(down):
            for j in range(across):
                place = f'x="{left + j * CELL + layer * BEHIND:.0f}" y="{ABOVE + i * CELL - layer * BEHIND}"'
                size = f'width="{CELL}" height="{CELL}"'
                boxes.append(f'<rect {place} {size} opacity="{1 - 0.25 * layer:.2f}" style="{SQUARE}"/>')
    wide = max(across * CELL + (layers - 1) * BEHIND, 7 * len(name))
    boxes.append(f'<text x="{left:.0f}" y="14" font-size="13" style="{TEXT}">{escape(name)}</text>')
    if rows != "1":
        boxes.append(f'<text x="{x:.0f}" y="{ABOVE + 12}" font-size="11" style="{FAINT}">{rows}</text>')
    more = f" (x {', '.join(leading)})" if leading else ""
    label = f"{columns}{more}"
    boxes.append(f'<text x="{left:.0f}" y="27" font-size="11" style="{FAINT}">{label}</text>')
    return left + max(wide, 6 * len(label)) + GAP, down * CELL


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("shapes", Shapes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
