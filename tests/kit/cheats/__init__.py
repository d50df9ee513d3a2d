"""Candidates that are wrong as public ones were: none may pass."""

from . import deaths, forgeries, inputs, judges, memory, precision, refusals, results, sizes, state
from .cheat import Cheat as Cheat

CHEATS: list[Cheat] = [
    cheat
    for group in (sizes, inputs, precision, state, memory, judges, results, refusals, deaths, forgeries)
    for cheat in group.CHEATS
]
