"""Masks and scores as small squares: text in a terminal, drawn in a notebook. Nothing has to be installed for it."""

from html import escape
from typing import Any

import numpy as np

from attendax import checks

__all__ = ["Pictures"]

CELL = 12  # pixels
LARGEST = 2**14  # squares in all


def __dir__() -> list[str]:
    return __all__


class Pictures:
    """A row of pictures: rows are queries, columns are keys.

    A notebook draws them: True as a filled square; a number by its size, blue above 0, red below; what is not finite
    not at all. A terminal prints them.

    Args:
        arrays: each (T, S) under its name, in which ``_`` is a space. With axes before these there is a picture for
            each index of them.

    Raises:
        ValueError: an array with fewer than two axes, or more than 16,384 squares in all.

    Example:
        >>> Pictures(causal=np.tri(3, dtype=bool))
        causal
        ■ · ·
        ■ ■ ·
        ■ ■ ■
    """

    def __init__(self, **arrays: Any):
        self.arrays: dict[str, np.ndarray] = {}
        for name, array in arrays.items():
            array, name = np.asarray(array), name.replace("_", " ")
            if array.ndim < 2:
                checks.fail(ValueError, "Pictures", f"{name} has shape {array.shape} but must end in (T, S).")
            for at in np.ndindex(array.shape[:-2]):
                alone = all(size == 1 for size in array.shape[:-2])
                self.arrays[name if alone else f"{name} [{', '.join(map(str, at))}]"] = array[at]
        squares = sum(array.size for array in self.arrays.values())
        if squares > LARGEST:
            facts = f"there are {squares:,} squares, and at most {LARGEST:,} are drawn."
            checks.fail(ValueError, "Pictures", facts, advice="Fewer tokens show the same rule: mask.show(16, 16).")

    def __repr__(self) -> str:
        return "\n\n".join(f"{name}\n{_text(array)}" for name, array in self.arrays.items())

    def _repr_html_(self) -> str:
        drawn = "".join(_figure(*named) for named in self.arrays.items())
        return f'<div class="pictures" style="display: flex; flex-wrap: wrap; gap: 1.5rem">{drawn}</div>'


def _text(array: np.ndarray) -> str:
    if array.dtype == bool:
        return "\n".join(" ".join("■" if allowed else "·" for allowed in row) for row in array)
    return "\n".join(" ".join(f"{float(value):6.2f}" for value in row) for row in array)


COLOURS = {  # of the page around it, where it has names for them
    "room": "var(--color-foreground-border, #8888)",
    "more": "var(--color-brand-primary, #2962ff)",
    "less": "#c2410c",
}


def _figure(name: str, array: np.ndarray) -> str:
    T, S = array.shape
    finite = np.abs(array[np.isfinite(array)]).max(initial=0) or 1
    squares = []
    for (i, j), value in np.ndenumerate(array):
        place = f'x="{j * CELL}" y="{i * CELL}" width="{CELL - 1}" height="{CELL - 1}"'
        squares.append(f'<rect {place} style="fill: {COLOURS["room"]}" opacity="0.25"/>')
        if np.isfinite(value) and value != 0:
            colour, opacity = COLOURS["more" if value > 0 else "less"], abs(float(value)) / float(finite)
            squares.append(f'<rect {place} style="fill: {colour}" opacity="{opacity:.3f}"/>')
    size = f'width="{S * CELL}" height="{T * CELL}" viewBox="0 0 {S * CELL} {T * CELL}"'
    label = escape(f"{name}: {T} queries, {S} keys")
    return (
        f'<figure style="margin: 0"><svg {size} style="max-width: 100%; height: auto" role="img" aria-label="{label}">'
        f"{''.join(squares)}</svg><figcaption>{escape(name)}</figcaption></figure>"
    )
