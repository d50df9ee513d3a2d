"""Causes of faults: first reasons that explain the most, then faults that look alike."""

import collections
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..adapters.implementation import Implementation
from ..cases.case import FORWARD, Case
from ..cases.how import How
from ..conventions.table import OVERFLOWS
from ..judge.judging import find
from ..judge.trial import Trial
from ..judge.verdicts import AGAIN, AN_ARRAY, CHANGES, WROTE, ZEROS, Verdict
from ..report.outcomes import NO_REASON, Cause, Harm, Outcome
from . import by_numbers, by_probing, by_running, unexplained
from .causes import NUMBER_JUDGES, VAGUE, WRONG, Faults, apart, folded, has_numbers, joined, rank
from .explaining import REFUTING_PAIRS, Reason, plainness, question_of, reasons, speaks
from .hypothesis import SLOW_PAIRS, Hypothesis, pairs_of
from .qualifiers import qualified

FOR_FOREIGN = ("--expect", "--precision")  # remedies that a program takes
FOR_FOLDERS = FOR_FOREIGN[:1]
MANY_FAULTS = 24  # faults
MORE_SECONDS = 4  # times the seconds of a run, if they were too few
# A first look: pairs of a case at most, cases, and cases that are called again.
LOOK_PAIRS, LOOK_CASES, LOOK_CALLS = 2**12, 8, 3
LOOKS = (*by_running.RERUNS, (OVERFLOWS, by_probing.overflows, "exp(s - max(s))"))
SMALL_PAIRS = 2**14  # pairs of queries and keys: larger cases are made smaller before anything is thought of


class Reach:
    """The reasons that were found, and the calls that each of them changes: other faults do not follow from it."""

    def __init__(self, trials: Mapping[str, Trial]) -> None:
        """``trials`` are those of the faults, by the names of their cases."""
        self.trials, self.by_name = trials, collections.defaultdict[str, list[Hypothesis]](list)
        self._known: dict[tuple[str, str], bool] = {}

    def can_change(self, name: str, case: str) -> bool:
        """Tell whether a cause of a name may change what a case gives, or its result; True if that is not computed."""
        trial = self.trials.get(case)
        if name not in self.by_name or trial is None or trial.case.pairs > REFUTING_PAIRS:
            return True
        if (name, case) not in self._known:
            calls = _computed(trial)
            changes = (reason.changes(call) for reason in self.by_name[name] for call in calls)
            self._known[name, case] = not calls or any(change is not False for change in changes)
        return self._known[name, case]

    def changed(self, name: str, *cases: set[str]) -> set[str]:
        """Those of some cases that a cause of a name may change."""
        return {case for case in set[str]().union(*cases) if self.can_change(name, case)}


def _computed(trial: Trial) -> list[Trial]:
    """The trial of one call without dropout, and that of its result, from which a derivative may follow."""
    case = trial.case
    if case.judge == "dropped":
        case = dict(by_running.without_each(case)).get("dropout_rate", case)._replace(judge="value")
    cases = [case] if case.direction == FORWARD else [case, case._replace(direction=FORWARD, where={})]
    return [Trial(trial.implementation, x, trial.how) for x in cases] if case.judge in NUMBER_JUDGES else []


def first_look(implementation: Implementation, outcomes: Sequence[Outcome], how: How) -> list[Reason]:
    """Reasons for the plainest faults among some outcomes, while a run goes on: its end may have no time for more."""
    plainest = _plainest(outcomes)
    with by_running.patience(how.patience, how.left), np.errstate(all="ignore"):
        faults = Faults(implementation, how, plainest, outcomes)
        faults.left = plainest[:LOOK_CALLS]
        with by_running.until_the_end_of("calls again"):
            _of_calls(faults)
        faults.left += plainest[LOOK_CALLS:]
        return reasons(faults, faults.of_numbers())


def _plainest(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """A few faults of small calls, each of another question, the plainest first."""
    mine = [o for o in outcomes if o.verdict.fails and not o.known and has_numbers(o) and o.case.pairs <= LOOK_PAIRS]
    mine = [o for o in mine if o.case.judge == "value"]
    mine.sort(key=lambda o: (len(o.case.options), o.case.level != FORWARD, bool(o.case.sizes), o.case.pairs))
    return list({question_of(o.case): o for o in reversed(mine)}.values())[::-1][:LOOK_CASES]


def diagnosed(
    implementation: Implementation, outcomes: Sequence[Outcome], how: How, known: list[Reason] | None = None
) -> tuple[Cause, ...]:
    """The causes of the faults among all outcomes, the worst first; each fault is in one of them.

    They are looked for in the time of ``how``. ``known`` has the reasons of an earlier look; then those that are found.
    """
    known = [] if known is None else known
    with by_running.patience(how.patience, how.left), np.errstate(all="ignore"):
        left, follow = _representatives([o for o in outcomes if o.verdict.fails and not o.known])
        faults = Faults(implementation, how, left, outcomes)
        with by_running.until_the_end_of("calls again"):
            _of_calls(faults)
        dropped = {o.case.name: faults.trial(o) for o in left if o.case.judge == "dropped"}
        reach = Reach(dropped | dict(faults.trials))
        with by_running.until_the_end_of("telling apart"):
            stand, beside = _small(faults)
            known[:] = reasons(faults, stand, known)
            for hypothesis, names in known:
                reach.by_name[hypothesis.name].append(hypothesis)
                more = reach.changed(hypothesis.name, *(beside[one] for one in names if one in beside))
                faults.take(hypothesis.name, names | more, hypothesis.remedy, len(names))
            cut = by_running.is_late() or by_running.was_cut_short()
        unexplained.see(faults)
        cut = cut or by_running.is_late()
        few = folded(joined(faults.causes, apart), cut=cut, can_change=reach.can_change)
        described = [unexplained.described(cause, faults) for cause in few]
        named = joined(unexplained.of_state(described, faults), apart)
        merged = joined(qualified(cause, faults) for cause in named)
    causes, taken = [], set(FOR_FOLDERS if implementation.recorded else FOR_FOREIGN)
    for cause in merged:
        followers = tuple(name for one in cause.cases for name in follow.get(one, ()))
        flags = set(re.findall(r"(?:^| )(--[a-z-]+)", cause.remedy))
        remedy = cause.remedy if not implementation.foreign or flags <= taken else ""
        if cut and not cause.tried and cause.harm in WRONG:
            remedy = NO_REASON.format(MORE_SECONDS * how.seconds(implementation.arrays))
        cause = cause._replace(cases=cause.cases + followers, remedy=remedy)
        unknown = not cause.tried and (cause.harm in WRONG or re.match(VAGUE, cause.name))
        causes.append(cause._replace(least=bool(unknown) and len(cause.cases) > 1))
    return tuple(sorted(causes, key=rank))


def _representatives(failures: Sequence[Outcome]) -> tuple[list[Outcome], dict[str, list[str]]]:
    """Keep of large cases of one question only one; and those that go with it.

    Where there are many faults, a case is soon large: a hundred of one kind are one question.
    """
    found, follow = [], collections.defaultdict(list)
    asked: dict[Any, list[str]] = collections.defaultdict(list)
    large = SLOW_PAIRS if len(failures) <= MANY_FAULTS else SMALL_PAIRS
    for outcome in sorted(failures, key=lambda o: o.case.pairs > large and o.case.pairs):
        mine = asked[question_of(outcome.case), outcome.verdict]
        few = not mine or (len(mine) < 2 and outcome.case.pairs <= SLOW_PAIRS)
        if outcome.case.pairs <= large or few or not has_numbers(outcome):
            found.append(outcome)
            mine.append(outcome.case.name)
        else:
            follow[mine[0]].append(outcome.case.name)
    return found, follow


def _of_calls(faults: Faults) -> None:
    """Find causes by calling again, before anything else is thought of: a race fits many a reason for once."""
    said: dict[str, set[str]] = collections.defaultdict(set)
    for o in faults.left:
        for words, name in ((WROTE, f"writes to {o.finding.leaf}"), (CHANGES, CHANGES), (AGAIN, AGAIN)):
            said[name] |= {o.case.name} if o.finding.message.startswith(words) else set()
    some = f"writes to {AN_ARRAY}"
    if known := next((name for name, names in said.items() if names and "writes to" in name and name != some), ""):
        said[known] |= said.pop(some, set())
    for name, names in said.items():
        faults.take(name, names)
    zeros = {o.case.name for o in faults.left if o.finding.leaf == "out" and by_numbers.gives_zeros(o.got)}
    if zeros and zeros == {name for name, x in faults.trials.items() if "out" in x.got}:  # every result that is wrong
        faults.take(ZEROS, zeros | {o.case.name for o in faults.left if o.finding.message == ZEROS}, tried=0)
    if faults.take(by_numbers.ROUNDED, {name for name, x in faults.of_numbers().items() if by_numbers.is_rounded(x)}):
        faults.causes[-1] = faults.causes[-1]._replace(harm=Harm.ROBUSTNESS)
    for name, look, remedy in LOOKS:
        mine = dict(sorted(faults.of_numbers().items(), key=lambda item: plainness(item[1])))
        names = _seen_from_the_plainest(mine, look, once=name == by_running.COMPILED)
        if name == by_running.RACE:
            names |= {o.case.name for o in faults.left if _is_judged_otherwise(o, faults)}
        faults.take(name, names, remedy)


def _seen_from_the_plainest(trials: Mapping[str, Trial], look: Callable[[Trial], bool], *, once: bool) -> set[str]:
    """Cases where a look sees something; where ``once`` is enough, not those of which a plainer call shows nothing."""
    names, without = set[str](), list[Case]()
    for name, trial in trials.items():
        if any(speaks(case, trial.case) and case.sizes.items() <= trial.case.sizes.items() for case in without):
            continue
        if look(trial):
            names.add(name)
        elif once and trial.case.judge == "value":  # of one call
            without.append(trial.case)
    return names


def _is_judged_otherwise(outcome: Outcome, faults: Faults) -> bool:
    """Tell whether the same numbers were red and green, or what more than one call is asked for is found otherwise."""
    if outcome.case.judge != "dropped" or by_running.is_late():
        return outcome.is_unsteady and outcome.case.judge == "value"
    again = find(faults.implementation, outcome.case, faults.seeded(outcome))[0]
    if again.verdict in (Verdict.TIMEOUT, Verdict.CRASH):
        return False
    return not again.verdict.fails or again.message != outcome.finding.message


def _small(faults: Faults) -> tuple[dict[str, Trial], dict[str, set[str]]]:
    """Trials to think about, at sizes as small as show the fault; and which cases of the same options go with them."""
    groups, stand, follow = collections.defaultdict(list), dict[str, Trial](), {}
    for outcome in faults.left:
        if trial := faults.trials.get(outcome.case.name):
            groups[question_of(outcome.case)].append(trial)
    for trials in groups.values():
        first = min(trials, key=pairs_of)
        small = [trial for trial in trials if pairs_of(trial) <= SMALL_PAIRS] or [by_running.smaller(first)]
        stand |= {trial.case.name: trial for trial in small}
        follow[first.case.name] = {trial.case.name for trial in trials} - stand.keys()
    return stand, follow
