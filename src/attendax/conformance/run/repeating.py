"""Cases again, among other cases: the same numbers, and others in between, so that a race or a stale cache shows."""

import time
from collections.abc import Callable, Iterable

from ..cases import Case
from ..cases.how import How
from ..judge.verdicts import Verdict
from ..report.outcomes import Outcome

TIMES = 3  # where it is cheap
CHEAP, DEAR = 0.1, 0.5  # seconds of a case that is right, and of a fault
SHARE, LEAST = 0.5, 1.0  # of the time that all cases took once, and seconds: so much more is taken unasked
AGAIN = (Verdict.OK, Verdict.WRONG, Verdict.LEAK, Verdict.NAN, Verdict.SILENT, Verdict.OBSCURE)
STEP = 7919  # between the seeds of the runs: no other draw of a case has one of these


def repeated(
    outcomes: Iterable[Outcome], how: How, judge: Callable[[Case, How], Outcome], end_of_time: float
) -> list[Outcome]:
    """The outcomes after more runs: the second, the fourth, ... of other numbers, the others of the same.

    Args:
        outcomes: of the first run.
        how: how they were judged; ``repeat`` says how often, three times where that is cheap unless given.
        judge: judges a case.
        end_of_time: when to stop, of ``time.monotonic``.
    """
    found = [outcome._replace(runs=(outcome.verdict.fails,)) for outcome in outcomes]
    if how.repeat is None:
        spent = sum(outcome.seconds for outcome in found)
        end_of_time = min(end_of_time, time.monotonic() + max(LEAST, SHARE * spent))
    for run in range(1, how.repeat or TIMES):
        order = range(len(found)) if run % 2 == 0 else range(len(found) - 1, -1, -1)
        seed = how.seed + STEP * ((run + 1) // 2) * (run % 2)
        for k in order:
            if _is_asked_again(found[k], how) and time.monotonic() < end_of_time:
                again = judge(found[k].case, how._replace(seed=seed))
                found[k] = _joined(found[k], again, seed) if again.verdict is not Verdict.NOT_JUDGED else found[k]
    return found


def _is_asked_again(outcome: Outcome, how: How) -> bool:
    cheap = outcome.seconds < CHEAP and "ladder: " not in outcome.case.name  # whose numbers are others each time
    asked = how.repeat is not None or (outcome.verdict.fails and outcome.seconds < DEAR) or cheap
    return asked and not outcome.known and outcome.verdict in AGAIN


def _joined(first: Outcome, again: Outcome, seed: int) -> Outcome:
    """What is told of both: the first fault."""
    runs = (*first.runs, again.verdict.fails)
    if first.verdict.fails or not again.verdict.fails:
        return first._replace(runs=runs)
    return again._replace(runs=runs, seed=seed, seconds=first.seconds, known=first.known)
