"""The fewest values of the table that explain results: those that the plainest one that is wrong needs, and so on."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TypeVar

Change = tuple[str, str]  # of an axis to a value
Result = TypeVar("Result")


def fitting(
    results: Sequence[Result],
    changes: Callable[[Result], Sequence[Change]],
    explain: Callable[[frozenset[Change], Result], bool],
    count: int,
    first: frozenset[Change] = frozenset(),
) -> Iterator[frozenset[Change]]:
    """Each way to change values, at most so many beside the ``first``, by which every result is explained.

    Args:
        results: the plainest first.
        changes: those that may make a difference to a result.
        explain: whether a result is what some changes give.
        count: of changes.
        first: changes that are made in any case.
    """
    wrong = next((result for result in results if not explain(first, result)), None)
    if wrong is None:
        yield first
    if wrong is None or not count:
        return
    taken, seen = {axis for axis, _ in first}, set[frozenset[Change]]()
    here = [change for change in changes(wrong) if change[0] not in taken]
    alone = [change for change in here if explain(first | {change}, wrong)]
    together = combinations([change for change in here if change not in alone], count) if count > 1 else ()
    ways = [*((change,) for change in alone), *(some for some in together if len(dict(some)) == count)]
    for some in ways:
        tried = first.union(some)
        if len(some) == 1 or explain(tried, wrong):
            for found in fitting(results, changes, explain, count - len(some), tried):
                if found not in seen:
                    seen.add(found)
                    yield found
