"""Which cases a function is asked, and how it takes them: of a whole run, and of a single case."""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..adapters.implementation import Implementation
from ..cases import Case, asks_for_the_ladder, at_sizes, choose
from ..cases.how import How
from ..cases.ladder import ladder
from .forms import as_found, as_taken
from .judging import offers


class Asked(NamedTuple):
    """What a run asks.

    Attributes:
        of: the function, with what it was found to lack and which calls it takes.
        cases: as it takes them.
        left_out: what the budget had no room for.
    """

    of: Implementation
    cases: list[Case]
    left_out: tuple[str, ...]


def chosen(only: Iterable[str] | None, level: str, how: How, drawn: Iterable[Case] | None = None) -> list[Case]:
    """The cases of a run at its sizes; what cannot be asked is refused.

    Raises:
        ValueError: as ``choose`` and ``at_sizes``.
    """
    given = {} if drawn is None else {"drawn": drawn}
    return at_sizes(choose(only, level, how.profile, claims=how.claims, **given), how.sizes)


def asked(made: Implementation, only: Iterable[str] | None, level: str, how: How) -> Asked:
    """What a function is asked in a run, found by calling it."""
    made = as_found(made, chosen(only, level, how), how)
    found = ladder(
        how if asks_for_the_ladder(only) else how._replace(budget=0),
        level,
        functools.partial(offers, made, how=how),
        lambda case: not made.form.lacking(case),
        made.arrays,
    )
    return Asked(made, as_taken(made, chosen(only, level, how, found.cases)), found.left_out)


def alone(made: Implementation, cases: Sequence[Case], how: How) -> list[Case]:
    """Some cases as a function takes them that was found before; at the sizes of the run where they make sense."""
    return as_taken(made, [(how.sizes and case.sized(how.sizes)) or case for case in cases])
