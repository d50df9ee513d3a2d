"""The cases that a function is asked, and its way of taking them: of a whole run, and of a single case."""

import functools
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..adapters.implementation import Implementation
from ..cases import EXAMPLES, Case, asks_for_the_ladder, at_sizes, choose
from ..cases.case import FORWARD
from ..cases.how import How
from ..cases.ladder import ladder
from ..cases.pool import case_of
from ..cases.square import Form
from .forms import as_found, as_taken
from .judging import names, offers

WIDEST = tuple(
    case_of(FORWARD, "plain", "normal", {"B": 1, "N": N, "G": G, "T": 32, "S": 32, "D": D, "V": V})
    for N, G, D, V in ((1, 1, 576, 576), (1, 1, 16, 576), (64, 1, 16, 16), (128, 128, 16, 16))
)


class Asked(NamedTuple):
    """The questions of a run."""

    of: Implementation  # the function, with what it was found to lack and which calls it takes
    cases: list[Case]  # as it takes them
    left_out: tuple[str, ...]  # what the budget had no room for


def chosen(only: Iterable[str] | None, level: str, how: How, drawn: Iterable[Case] | None = None) -> list[Case]:
    """The cases of a run at its sizes; what cannot be asked is refused, as by ``choose`` and ``at_sizes``."""
    given = {} if drawn is None else {"drawn": drawn}
    return at_sizes(choose(only, level, how.profile, claims=how.claims, **given), how.sizes)


def asked(made: Implementation, only: Iterable[str] | None, level: str, how: How) -> Asked:
    """The questions to a function in a run, found by calling it."""
    made, cases = asked_of_list(made, only, level, how)
    drawn, left_out = asked_of_ladder(made, only, level, how)
    return Asked(made, cases + drawn, left_out)


def asked_of_list(
    made: Implementation, only: Iterable[str] | None, level: str, how: How
) -> tuple[Implementation, list[Case]]:
    """The function as it is found by calling it, and the cases that every run has."""
    cases = [case for case in choose(only, level, how.profile, claims=how.claims) if case not in EXAMPLES]
    cases = at_sizes(cases, how.sizes) if cases else []
    made = as_found(made, chosen(only, level, how), how)
    return made, as_taken(made, cases)


def asked_of_ladder(
    made: Implementation, only: Iterable[str] | None, level: str, how: How, *, refuses: bool = True
) -> tuple[list[Case], tuple[str, ...]]:
    """The cases at sizes that are drawn for a run, and what there was no room for.

    Unless it ``refuses`` something in a case that every run has, or at the widest sizes, it is not asked at small sizes
    what it offers.
    """
    if not asks_for_the_ladder(only):
        return [], ()

    def calls(case: Case) -> bool:
        return names(made, case, how) if time.monotonic() >= how.until else offers(made, case, how)

    refuses = refuses or made.form != Form() or not all(map(calls, WIDEST))
    asks = calls if refuses else functools.partial(names, made, how=how)
    found = ladder(how, level, asks, lambda case: not made.form.lacking(case), made.arrays)
    cases = as_taken(made, chosen(only, level, how, found.cases))
    return [case for case in cases if "ladder: " in case.name and case.name not in (only or ())], found.left_out


def alone(made: Implementation, cases: Sequence[Case], how: How) -> list[Case]:
    """Some cases as a function takes them that was found before; at the sizes of the run where they make sense."""
    return as_taken(made, [(how.sizes and case.sized(how.sizes)) or case for case in cases])
