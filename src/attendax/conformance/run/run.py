"""A run: cases in the order of what they find, until all are judged or its time is over; cheap ones again among others.

Between two runs of a case with the same numbers lies one with others, so that a race or a stale cache shows.
"""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence

from ..adapters.implementation import OPTIONS, Implementation
from ..cases import Case
from ..cases.case import SIZES
from ..cases.how import How, Left, by_finds
from ..cases.pool import EXAMPLES
from ..diagnoses import Reason, diagnosed, first_look
from ..judge.asking import asked_of_ladder, asked_of_list, chosen
from ..judge.judging import find, rule_of
from ..judge.verdicts import LEFT_OUT, NO_TIME, Finding, Verdict
from ..report import Report
from ..report.known_failures import KnownFailures
from ..report.outcomes import LONGER, Outcome, versions
from ..report.reproduction import reproduction
from ..worker.calling import subject_of
from ..worker.child import waited_by
from .budget import CASE_SHARE, FIRST_HANG_SECONDS, SAID, Budget, Patience, one_core

START_SECONDS = 1.0  # CPU seconds in which a process is there
LEAST_SHARE = 1 / 3  # of the sizes that were drawn: with fewer, the report says that there was too little time for them
CHEAP_RUNS = 3  # where it is cheap
RIGHT_SECONDS, FAULT_SECONDS = 0.1, 0.5  # seconds of a case that is right, and of a fault
# Of the time that all cases took once, and seconds: so much more is taken unasked.
REPEAT_SHARE, REPEAT_SECONDS = 0.5, 1.0
RETURNED = (Verdict.OK, Verdict.CONVENTION, Verdict.WRONG, Verdict.LEAK, Verdict.NAN, Verdict.SILENT)
ONCE_MORE = (Verdict.OK, Verdict.WRONG, Verdict.LEAK, Verdict.NAN, Verdict.SILENT, Verdict.OBSCURE)
SEARCH_CUT_SHORT = "looking for causes was cut short"
RUN_SEED_STEP = 7919  # between the seeds of the runs: no other draw of a case has one of these


class Telling:
    """Listener to a run, to whom it tells its course; ``before`` is told index, number and case before each."""

    def __init__(self, before: Callable[[int, int, Case], None] | None = None) -> None:
        self.before = before

    def begins(self, what: str, left: Callable[[], float] | None = None) -> None:
        """Another part of the run begins; ``left`` gives the seconds that it has."""

    def asks(self, index: int, number: int, case: Case) -> None:
        """A case is asked, one of so many."""
        if self.before:
            self.before(index, number, case)

    def found(self, outcome: Outcome) -> None:
        """A case was judged."""

    def stands(self, reason: str, cases: Sequence[str]) -> None:
        """A reason for some faults, by the names of their cases, is known before the run is over."""


class Run:
    """A function that is judged, settings, a budget, and a listener."""

    def __init__(
        self, implementation: Implementation, how: How, budget: Budget, known: KnownFailures, tell: Telling
    ) -> None:
        self.implementation, self.how, self.budget, self.known, self.tell = implementation, how, budget, known, tell
        self.faults = 0
        self.is_confirmed = False  # whether a fault was there with all of XLA's optimizations as well
        self.patience = Patience()
        self.reasons: list[Reason] | None = None  # that are known, once the plainest faults were looked at
        self.of_start = subject_of(implementation).cores()
        budget.watch(implementation, how)

    def report(self, only: Iterable[str] | None, level: str) -> Report:
        """Ask all cases, the dearer ones after those of the ladder; again; and look for the causes of faults."""
        with one_core() if self.implementation.elsewhere else contextlib.nullcontext():
            return self._report(only, level)

    def _report(self, only: Iterable[str] | None, level: str) -> Report:
        how = self.how
        self.tell.begins("what it takes", self.budget.left)
        made, listed = asked_of_list(self.implementation, only, level, how._replace(left=self._of_case(how)))
        self.implementation = made
        cheap, dear = by_finds(listed)
        self.tell.begins("cases", self.budget.left)
        found = self._judged(cheap, len(listed), phase="list")
        self._look(found)
        self.tell.begins("drawing sizes as people run them", self.budget.left)
        drawn, left_out = self._drawn(only, level, refuses=any(o.finding.refused for o in found))
        number = len(listed) + len(drawn)
        of_ladder = self._judged(drawn, number, len(found))
        found += self._judged(dear, number, len(found) + len(drawn))
        place = {case.name: k for k, case in enumerate(listed)}
        found = sorted(found, key=lambda outcome: place[outcome.case.name]) + of_ladder
        self.tell.begins("cases again", self.budget.left)
        anew = self.of_start < START_SECONDS or not self.budget.limited
        if anew:  # the first calls of a process are looked at, too
            subject_of(made).stop()
        again, left = functools.partial(self._judge, phase="again"), functools.partial(self._left, "again")
        found = repeated(found, how, again, left)
        rule, causes, cut = self._causes(limited(found, how), "causes")
        if self._rest(found):
            rule, causes, cut = self._causes(limited(found, how), "causes of all")
        found = limited(found, how)
        of_ladder, missing = self._reached(found[len(listed) :])
        found[len(listed) :] = of_ladder
        return Report(
            made.name, made.version, made.arrays, tuple(found), how.dtype, how.seed, level, versions(made.arrays),
            how.profile, causes, rule, (*how.require, *how.claims), made.process, (*cut, *missing, *left_out),
        )  # fmt: skip

    def _drawn(self, only: Iterable[str] | None, level: str, *, refuses: bool) -> tuple[list[Case], tuple[str, ...]]:
        left = functools.partial(self._left, "cases")
        if left() <= 0:  # two stand for what would be drawn
            return [case for case in chosen(only, level, self.how) if case in EXAMPLES and self.how.budget != 0], ()
        few = self.patience.late and self.how.timeout is None  # it may hang here, too
        subject_of(self.implementation).allow(FIRST_HANG_SECONDS if few else self.how.patience, left)
        return asked_of_ladder(self.implementation, only, level, self.how._replace(left=left), refuses=refuses)

    def _rest(self, found: list[Outcome]) -> bool:
        """Ask what was left out, in the time that causes did not need; gives whether more is wrong now."""
        self.tell.begins("what was left out", self.budget.left)
        places, faults = [k for k, o in enumerate(found) if o.finding.message == LEFT_OUT], self.faults
        asked = self._judged([found[k].case for k in places], len(found), len(found) - len(places), "left out")
        for k, outcome in zip(places, asked, strict=True):
            found[k] = outcome._replace(runs=(outcome.verdict.fails,))
        return self.faults > faults

    def _judged(self, cases: Sequence[Case], number: int, first: int = 0, phase: str = "cases") -> list[Outcome]:
        found = []
        for index, case in enumerate(cases, start=first):
            self.tell.asks(index, number, case)
            found.append(self._judge(case, self.how, phase))
            self.faults += found[-1].verdict.fails and not found[-1].known
            self.tell.found(found[-1])
            if self._left("cases before the first look") <= 0:
                self._look(found)
        return found

    def _look(self, found: Sequence[Outcome]) -> None:
        """Look for reasons of the plainest faults, once, in a run that may end before all causes are found."""
        if self.reasons is not None or not self.faults or not self.budget.limited:
            return
        left = functools.partial(self._left, "first look")
        subject_of(self.implementation).allow(self.how.patience, left)
        self.reasons = first_look(self.implementation, found, self.how._replace(left=left))
        for reason in self.reasons:
            self.tell.stands(reason.hypothesis.name, sorted(reason.names, key=[o.case.name for o in found].index))

    def _judge(self, case: Case, how: How, phase: str = "cases") -> Outcome:
        """A case, unless there is no time for it; what is cut off at the end of the time is not judged."""
        if self._left(phase) <= 0:
            return self._not_judged(case)
        outcome = self.known.skipped(case) or self._judge_in_time(case, how._replace(left=self._of_case(how)))
        if outcome.finding.message == NO_TIME:
            return self._not_judged(case, outcome.seconds)
        return self.known.marked(outcome)

    def _judge_in_time(self, case: Case, how: How) -> Outcome:
        """A case that has the time that others suggest, where nobody gave a limit."""
        seconds = math.inf
        if self.budget.limited and how.timeout is None:
            most = min(self.budget.length * CASE_SHARE, self.budget.left())
            subject = subject_of(self.implementation)
            seconds = self.patience.of(case, subject.slowest, subject.starting, most)
        how = how if seconds == math.inf else how._replace(timeout=seconds)
        outcome = judge(self.implementation, case, how)
        if outcome.verdict.fails and not self.is_confirmed:
            self.implementation, outcome = confirmed(self.implementation, outcome, how)
            self.is_confirmed = outcome.verdict.fails
        if outcome.verdict is Verdict.TIMEOUT:
            self.patience.late += 1
            finding = outcome.finding
            return outcome._replace(finding=finding._replace(message=finding.message + SAID * (seconds < math.inf)))
        if outcome.verdict not in (Verdict.NOT_JUDGED, Verdict.NOT_OFFERED):
            self.patience.answered(case)
        return outcome

    def _not_judged(self, case: Case, seconds: float = 0.0) -> Outcome:
        if seconds == 0 and (lack := self.implementation.lack([x for x in OPTIONS if f"{x}=" in case.call])):
            return Outcome(case, Finding(Verdict.NOT_OFFERED, lack[1], lack=lack[0]), 0.0, "")
        why = LEFT_OUT if self.budget.limited and time.monotonic() < self.budget.total else NO_TIME
        return Outcome(case, Finding(Verdict.NOT_JUDGED, why), seconds, "")

    def _of_case(self, how: How) -> Left:
        """The seconds that are left for a question: no case takes more than a third of the run."""
        return self.budget.of_case() if how.timeout is None and self.budget.limited else self.budget.left

    def _left(self, phase: str) -> float:
        """Seconds until a part of the run is over."""
        return self.budget.left_of(phase, wrong=bool(self.faults))

    def _reached(self, found: list[Outcome]) -> tuple[list[Outcome], list[str]]:
        """Cases of the ladder that there was time for, and words for the others; all of them where that is few."""
        missed = [outcome for outcome in found if outcome.finding.message == LEFT_OUT]
        if not missed or len(found) - len(missed) < LEAST_SHARE * len(found):
            return found, []
        said = f"{len(missed)} of {len(found)} sizes as people run them"
        return [outcome for outcome in found if outcome not in missed], [said]

    def _causes(self, found: list[Outcome], phase: str) -> tuple[str, tuple, list[str]]:
        """Find why gradients are asked for, and the causes of the faults; tell if looking for them was cut short."""
        faults, patience = sum(outcome.verdict.fails for outcome in found), self.how.patience
        self.tell.begins("the causes of the faults" if faults else "the report", self.budget.left)
        subject_of(self.implementation).allow(patience * max(1, faults), self.budget.left)
        rule, left = rule_of(self.implementation, self.how), functools.partial(self._left, phase)
        self.reasons = self.reasons or []
        causes = diagnosed(self.implementation, found, self.how._replace(left=left), self.reasons)
        return rule, causes, [SEARCH_CUT_SHORT] * any(cause.lacks_time for cause in causes)


def judge(implementation: Implementation, case: Case, how: How | None = None) -> Outcome:
    """One case: the verdict, and where it is a fault how to see it."""
    how, subject = how or How(), subject_of(implementation)
    start, before = time.perf_counter(), waited_by("self") + subject.waited()
    if how.left() <= 0:
        return Outcome(case, Finding(Verdict.NOT_JUDGED, NO_TIME), 0.0, "")
    subject.allow(how.patience, how.left)
    finding, got = find(implementation, case, how)
    seconds = max(time.perf_counter() - start - (waited_by("self") + subject.waited() - before), 0.0)
    if not finding.verdict.fails:
        return Outcome(case, finding, seconds, "")
    return Outcome(case, finding, seconds, reproduction(implementation, case, finding, how), got=got)


def confirmed(made: Implementation, outcome: Outcome, how: How) -> tuple[Implementation, Outcome]:
    """A fault of a JAX function, judged again with all of XLA's optimizations; these stay on if they make it right."""
    if made.arrays != "jax" or made.optimized or not outcome.verdict.fails:
        return made, outcome
    optimized = dataclasses.replace(made, optimized=True)
    outcome = judge(optimized, outcome.case, how)
    return (made if outcome.verdict.fails else optimized), outcome


def repeated(outcomes: Iterable[Outcome], how: How, judge: Callable[[Case, How], Outcome], left: Left) -> list[Outcome]:
    """The outcomes after more runs: the second, the fourth, ... of other numbers, the others of the same.

    ``repeat`` says how often, three times where that is cheap unless given, as long as any time is left.
    """
    found = [outcome._replace(runs=(outcome.verdict.fails,)) for outcome in outcomes]
    budget = math.inf if how.repeat else max(REPEAT_SECONDS, REPEAT_SHARE * sum(outcome.seconds for outcome in found))
    order = range(len(found))
    plan = [(k, run) for run in range(1, how.repeat or CHEAP_RUNS) for k in order[:: -1 if run % 2 else 1]]
    for k, run in sorted(plan, key=lambda one: one[0] > 0):  # the first calls of a process are of the plainest case
        seed = how.seed + RUN_SEED_STEP * ((run + 1) // 2) * (run % 2)
        if _is_asked_again(found[k], how) and budget > 0 and left() > 0:
            again = judge(found[k].case, how._replace(seed=seed))
            budget -= again.seconds
            found[k] = _joined(found[k], again, seed) if again.verdict is not Verdict.NOT_JUDGED else found[k]
    return found


def limited(outcomes: list[Outcome], how: How) -> list[Outcome]:
    """The outcomes; calls of more tokens than any call that returned are not offered, if each of them raises.

    A mask that is made once for the longest text has such a limit. The profile "law" asks for texts of any length.
    """
    raised = [o for o in outcomes if o.verdict is Verdict.OBSCURE]
    returned = [_tokens(o.case) for o in outcomes if o.verdict in RETURNED]
    longest = max(returned, default=0)
    if how.strict or not returned or any(_tokens(o.case) <= longest for o in raised):
        return outcomes
    lack = f"{LONGER}{longest}"
    offers_none = Finding(Verdict.NOT_OFFERED, lack=lack, refused=True)
    findings = {o.case.name: offers_none._replace(message=f"raises {o.finding.message}") for o in raised}
    return [o._replace(finding=findings.get(o.case.name, o.finding)) for o in outcomes]


def _tokens(case: Case) -> int:
    sizes = SIZES | case.sizes
    return max(sizes["T"], sizes["S"])


def _is_asked_again(outcome: Outcome, how: How) -> bool:
    # The numbers of a ladder are others each time.
    cheap = outcome.seconds < RIGHT_SECONDS and "ladder: " not in outcome.case.name
    asked = how.repeat is not None or (outcome.verdict.fails and outcome.seconds < FAULT_SECONDS) or cheap
    return asked and not outcome.known and outcome.verdict in ONCE_MORE


def _joined(first: Outcome, again: Outcome, seed: int) -> Outcome:
    runs = (*first.runs, again.verdict.fails)
    if first.verdict.fails or not again.verdict.fails:
        return first._replace(runs=runs)
    return again._replace(runs=runs, seed=seed, seconds=first.seconds, known=first.known)
