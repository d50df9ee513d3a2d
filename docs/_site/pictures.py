"""Masks and scores as small squares, drawn in the colours of the page."""

from html import escape
from typing import Any

import numpy as np

CELL = 12


class Pictures:
    """A row of arrays (T, S), or with axes of 1 before: booleans as filled squares, numbers by their size."""

    def __init__(self, **arrays: Any):
        flat = {name: np.reshape(array, np.shape(array)[-2:]) for name, array in arrays.items()}
        self.arrays = {name.replace("_", " "): array for name, array in flat.items()}

    def _repr_html_(self) -> str:
        return '<div class="pictures">' + "".join(_figure(*named) for named in self.arrays.items()) + "</div>"


def _figure(name: str, array: np.ndarray) -> str:
    T, S = array.shape
    finite = np.abs(array[np.isfinite(array)]).max(initial=0) or 1
    squares = []
    for (i, j), value in np.ndenumerate(array):
        kind = "no" if not np.isfinite(value) else "more" if value > 0 else "less"
        opacity = 1 if kind == "no" else abs(float(value)) / float(finite)
        place = f'x="{j * CELL}" y="{i * CELL}" width="{CELL - 1}" height="{CELL - 1}"'
        squares.append(f'<rect class="room" {place}/><rect class="{kind}" {place} opacity="{opacity:.3f}"/>')
    size = f'width="{S * CELL}" height="{T * CELL}" viewBox="0 0 {S * CELL} {T * CELL}"'
    label = escape(f"{name}: {T} queries, {S} keys")
    return (
        f'<figure><svg {size} role="img" aria-label="{label}">{"".join(squares)}</svg>'
        f"<figcaption>{escape(name)}</figcaption></figure>"
    )
