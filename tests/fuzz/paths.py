"""One case on the two paths of a CPU, native and in tiles: each against the definition, and where they are NaN."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from . import data, poison, rows
from .case import Case
from .program import Program

OFTEN = 3  # of so many cases one runs in tiles, too: compiling them takes most of the time


def has_function(tree: Any) -> bool:
    """Whether a mask or a modifier is a function, which the native path does not take."""
    return "'function'" in repr(tree)


def concerns(case: Case) -> bool:
    """Whether the native path computes the case, as the default or by name."""
    functions = has_function(case.mask) or has_function(case.modifier)
    return case.implementation in (None, "native", "triton") and not functions and not case.layers


def in_tiles(attention: Callable, case: Case, arrays: Any) -> Program | None:
    """The program of a case in tiles; None for most cases."""
    if case.seed % OFTEN or not concerns(case):
        return None
    return Program(attention, dataclasses.replace(case, implementation="blockwise"), arrays)


def other_rows(attention: Callable, case: Case, arrays: Any, got: Any) -> list[str]:
    """Where bits of a row depend on what else is in a call, or on how the call comes to be."""
    if not concerns(case):
        return []
    told, whole = rows.differences(attention, case, arrays)
    if whole is None or case.direction != "forward":
        return told
    first = (0,) * len(case.maps)
    for name, x in zip(("out", "lse"), whole, strict=False):
        if name in got and not rows._only_nan(got[name][first], x):
            told.append(f"{name}: other bits alone, step by step, than in the program of the case")
    return told


def other_not_finite(native: Program, tiles: Program, case: Case, arrays: Any, moves: Any) -> list[str]:
    """Where one path has NaN or infinity and the other not, of what is said about (L6)."""
    told = []
    if not case.poison or case.poison[1] == "big":
        return told
    for run in poison.spoilt(case, arrays, moves, native.known):
        one, other = native(*run.dirty), tiles(*run.dirty)
        for name in one:
            x, y = (found[name].astype(data.FINE) for found in (one, other))
            if data.group(name) != "mod" and (differ := np.isfinite(x) != np.isfinite(y)).any():
                told.append(f"{run.what}: {name}: {differ.sum()} of {differ.size} are finite on one path alone")
    return told
