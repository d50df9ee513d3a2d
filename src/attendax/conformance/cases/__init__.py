"""Every case, from the plain to the special."""

from collections.abc import Iterable

from . import biases, blocks, conduct, contexts, gradients, leaks, masks, values
from .case import LEVELS, Case, Inputs, Leaves

CASES: tuple[Case, ...] = (
    *values.CASES,
    *masks.CASES,
    *biases.CASES,
    *gradients.CASES,
    *leaks.CASES,
    *conduct.CASES,
    *blocks.CASES,
    *contexts.CASES,
)
__all__ = ["CASES", "LEVELS", "Case", "Inputs", "Leaves", "choose"]


def choose(only: Iterable[str] = (), level: str = "everything") -> list[Case]:
    """The cases of a level that a law or a part of a name picks.

    Raises:
        ValueError: no such level, or something picks no case.
    """
    if level not in LEVELS:
        raise ValueError(f"check: level got {level!r}, expected one of {', '.join(LEVELS)}")
    cases = [case for case in CASES if LEVELS.index(case.level) <= LEVELS.index(level)]
    only = [only] if isinstance(only, str) else list(only)
    for words in only:
        if not any(_picks(words, case) for case in cases):
            raise ValueError(
                f"check: only got {words!r}, which picks no case of level {level}; "
                "expected a law such as L6, or a part of a name"
            )
    return [case for case in cases if not only or any(_picks(words, case) for words in only)]


def _picks(words: str, case: Case) -> bool:
    if words[:1] in "Ll" and words[1:].isdigit():
        return words.upper() == case.law
    return words.lower() in case.name.lower()
