"""Causes of faults: known ones first, then hypotheses that explain the most, then faults that look alike."""

import collections
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..adapters.implementation import Implementation, Known, explains
from ..cases.case import FORWARD, GRADIENT, HELD, Case
from ..cases.how import How
from ..judge.judging import find
from ..judge.trial import Trial
from ..judge.verdicts import AGAIN, CHANGES, WROTE, ZEROS, Verdict
from ..report.outcomes import Cause, Harm, Outcome
from . import by_numbers, by_running
from .causes import (
    LARGE,
    cause_of,
    folded,
    joined,
    names_of,
    options_of,
    pairs_of,
    rank,
    take,
    with_followers,
    worst_of,
)
from .explaining import Greens, Reason, confirmed, plainness, question_of, reasons, speaks
from .unexplained import alike, crashes, described, of_a_trait, seen

FOR_FOREIGN = ("--causal", "--empty-rows", "--lacks", "--precision")  # remedies that a program takes
FOR_FOLDERS = FOR_FOREIGN[:2]
MANY = 24  # faults
PLAIN, FEW, CALLED = 2**12, 8, 3  # pairs of a case that a first look is at, how many cases, and how many called again
CALLS, REASONS = 0.4, 0.8  # of the time that is left, for what calling again shows, and then for reasons
OF_NUMBERS = ("value", "but_for_empty_rows", "held", "merged")  # judges
SMALL = 2**14  # pairs of queries and keys: larger cases are made smaller before anything is thought of


def first_look(implementation: Implementation, outcomes: Sequence[Outcome], how: How) -> tuple[Reason, ...]:
    """Reasons for the plainest faults among some outcomes, while a run goes on: its end may have no time for more."""
    left = _plainest(outcomes)
    with by_running.patience(how.patience, how.until):
        trials = {o.case.name: _trial(implementation, o, how) for o in left}
        again = left[:CALLED]
        with by_running.share(CALLS):
            _of_calls(again, trials, implementation, how)
        stand = {o.case.name: trials[o.case.name] for o in (*again, *left[CALLED:])}
        return tuple(reasons(stand, Greens(implementation, outcomes, how)))


def _plainest(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """A few faults of small calls, each of another question, the plainest first."""
    mine = [o for o in outcomes if o.verdict.fails and not o.known and _has_numbers(o) and o.case.pairs <= PLAIN]
    mine = [o for o in mine if o.case.judge == "value"]
    mine.sort(key=lambda o: (len(options_of(o.case)), o.case.level != FORWARD, bool(o.case.sizes), o.case.pairs))
    return list({question_of(o.case): o for o in reversed(mine)}.values())[::-1][:FEW]


def diagnosed(
    implementation: Implementation, outcomes: Sequence[Outcome], how: How, known: Sequence[Reason] = ()
) -> tuple[Cause, ...]:
    """The causes of the faults among all outcomes, the worst first; each fault is in one of them.

    They are looked for until the time of ``how``; ``known`` are those that a first look found.
    """
    with by_running.patience(how.patience, how.until):
        left, follow = _representatives([o for o in outcomes if o.verdict.fails and not o.known])
        causes = [_known(entry, left) for entry in implementation.known]
        trials = {o.case.name: _trial(implementation, o, how) for o in left if _has_numbers(o)}
        with by_running.share(CALLS):
            causes += _of_calls(left, trials, implementation, how)
        greens = Greens(implementation, outcomes, how)
        with by_running.share(REASONS):
            causes += _of_first_look(left, trials, greens, known)
            stand, beside = _small(left, trials)
            for hypothesis, names in reasons(stand, greens):
                taken = take(left, names.union(*(beside[one] for one in names if one in beside)))
                causes.append(cause_of(hypothesis.name, taken, len(names), hypothesis.remedy))
        causes += seen(left, trials, outcomes)
        causes += crashes(left)
        causes += of_a_trait(left, outcomes)
        causes += alike(left)
        few = folded(joined(cause for cause in causes if cause is not None))
        merged = [_with_remedy(cause, implementation) for cause in joined(described(cause, trials) for cause in few)]
        return tuple(sorted((with_followers(cause, follow) for cause in merged), key=rank))


def _of_first_look(
    left: list[Outcome], trials: Mapping[str, Trial], greens: Greens, known: Sequence[Reason]
) -> Iterator[Cause]:
    """Causes that a first look found, with all they explain: small calls, and larger ones that ask the same.

    After each reason alone, two of them at once, which have the name of the second.
    """
    pairs = [(one.hypothesis, other.hypothesis) for one, other in itertools.combinations(known, 2)]
    both = [Reason(other.after(one), set()) for one, other in pairs if one.axes and other.axes]
    for hypothesis, names in (*known, *both):
        small = {o.case.name: trials[o.case.name] for o in left if o.case.name in trials and o.case.pairs <= SMALL}
        explained = confirmed(hypothesis, names & small.keys(), small, greens)
        asked = {question_of(small[name].case) for name in explained}
        more = {o.case.name for o in left if o.case.pairs > SMALL and question_of(o.case) in asked}
        if taken := take(left, explained | more):
            yield cause_of(hypothesis.name, taken, len(explained), hypothesis.remedy)


def _with_remedy(cause: Cause, implementation: Implementation) -> Cause:
    """Drop a remedy that the command refuses: a program or a library has no layout and no names of keywords."""
    kinds = FOR_FOLDERS if implementation.recorded else FOR_FOREIGN
    flags = re.findall(r"(?:^| )(--[a-z-]+)", cause.remedy)
    return cause._replace(remedy="") if implementation.foreign and set(flags) - set(kinds) else cause


def _representatives(failures: Sequence[Outcome]) -> tuple[list[Outcome], dict[str, list[str]]]:
    """Keep of large cases of one question only one; and those that go with it.

    Where there are many faults, a case is soon large: a hundred of one kind are one question.
    """
    found, follow = [], collections.defaultdict(list)
    asked: dict[Any, list[str]] = collections.defaultdict(list)
    large = LARGE if len(failures) <= MANY else SMALL
    for outcome in sorted(failures, key=lambda o: o.case.pairs > large and o.case.pairs):
        mine = asked[question_of(outcome.case), outcome.verdict]
        few = not mine or (len(mine) < 2 and outcome.case.pairs <= LARGE)
        if outcome.case.pairs <= large or few or not _has_numbers(outcome):
            found.append(outcome)
            mine.append(outcome.case.name)
        else:
            follow[mine[0]].append(outcome.case.name)
    return found, follow


def _known(entry: Known, left: list[Outcome]) -> Cause | None:
    names = {o.case.name for o in left if explains(entry, o.case.name, o.finding.said)}
    if not names:
        return None
    taken = take(left, names)
    worst = worst_of(taken)
    harm = worst if worst.kind == entry.kind else Harm(entry.kind)
    return Cause(entry.name, harm, names_of(taken), 0, "", entry.where, entry.report, entry.script)


def _has_numbers(outcome: Outcome) -> bool:
    return bool(outcome.got) and outcome.case.judge in OF_NUMBERS and outcome.verdict is not Verdict.LEAK


def _trial(implementation: Implementation, outcome: Outcome, how: How) -> Trial:
    case = outcome.case
    if case.judge == "held":  # as what is wrong at once
        case = case._replace(judge="value", direction=FORWARD if case.direction == HELD else GRADIENT)
    trial = Trial(implementation, case, how if outcome.seed is None else how._replace(seed=outcome.seed))
    trial.got = dict(outcome.got)
    return trial


def _of_calls(left: list[Outcome], trials: dict[str, Trial], implementation: Implementation, how: How) -> list[Cause]:
    """Causes seen by calling again, before anything else is thought of: a race fits many a reason for once."""
    causes = []
    wrote = [o for o in left if o.finding.message.startswith(WROTE)]
    for leaf in sorted({str(o.finding.leaf) for o in wrote}):
        names = {o.case.name for o in wrote if o.finding.leaf == leaf}
        causes.append(cause_of(f"writes to {leaf}", take(left, names), len(names)))
    for words in (CHANGES, AGAIN):
        if taken := take(left, {o.case.name for o in left if o.finding.message.startswith(words)}):
            causes.append(cause_of(words, taken, len(taken)))
    zeros = {o.case.name for o in left if o.finding.leaf == "out" and by_numbers.gives_zeros(o.got)}
    if zeros and zeros == {name for name, trial in trials.items() if "out" in trial.got}:  # every result that is wrong
        dropped = {o.case.name for o in left if o.finding.message == ZEROS}
        causes.append(cause_of(ZEROS, take(left, zeros | dropped)))
    if taken := take(left, {name for name, trial in trials.items() if by_numbers.is_rounded(trial)}):
        causes.append(cause_of(by_numbers.ROUNDED, taken, len(taken))._replace(harm=Harm.ROBUSTNESS))
    for name, look, remedy in (
        (by_running.UNWRITTEN, by_running.is_unwritten, ""),
        (by_running.RACE, by_running.is_unsteady, ""),
        (by_running.STRIDES, by_running.is_cured_by_copies, ""),
        (by_running.COMPILED, by_running.is_wrong_when_compiled, by_running.ONCE),
    ):
        mine = {o.case.name: trials[o.case.name] for o in left if o.case.name in trials}
        mine = dict(sorted(mine.items(), key=lambda item: plainness(item[1])))
        compiled = name == by_running.COMPILED
        names = _seen_from_the_plainest(mine, look) if compiled else {n for n, trial in mine.items() if look(trial)}
        names |= {o.case.name for o in left if name == by_running.RACE and _is_judged_otherwise(o, implementation, how)}
        if taken := take(left, names):
            causes.append(cause_of(name, taken, len(taken), remedy))
    return causes


def _seen_from_the_plainest(trials: Mapping[str, Trial], look: Callable[[Trial], bool]) -> set[str]:
    """Cases where a long look sees something, the plainest first; not where it sees nothing in a plainer call."""
    names, without = set[str](), list[Case]()
    for name, trial in trials.items():
        if any(speaks(case, trial.case) and case.sizes.items() <= trial.case.sizes.items() for case in without):
            continue
        if look(trial):
            names.add(name)
        elif trial.case.judge == "value":  # of one call
            without.append(trial.case)
    return names


def _is_judged_otherwise(outcome: Outcome, implementation: Implementation, how: How) -> bool:
    """Tell whether the same numbers were red and green, or what more than one call is asked for is found otherwise."""
    if outcome.case.judge not in ("merged", "dropped") or by_running.is_late():
        return outcome.is_unsteady and outcome.case.judge == "value"
    seeded = how if outcome.seed is None else how._replace(seed=outcome.seed)
    again = find(implementation, outcome.case, seeded)[0]
    if again.verdict in (Verdict.TIMEOUT, Verdict.CRASH):
        return False
    return not again.verdict.fails or again.message != outcome.finding.message


def _small(left: Sequence[Outcome], trials: Mapping[str, Trial]) -> tuple[dict[str, Trial], dict[str, set[str]]]:
    """Trials to think about, at sizes as small as show the fault; and which cases of the same options go with them."""
    groups = collections.defaultdict(list)
    for outcome in left:
        if outcome.case.name in trials:
            groups[question_of(outcome.case)].append(outcome.case.name)
    stand: dict[str, Trial] = {}
    follow = {}
    for names in groups.values():
        first, *others = sorted(names, key=lambda name: pairs_of(trials[name]))
        small = {name: trials[name] for name in (first, *others) if pairs_of(trials[name]) <= SMALL}
        stand |= small or {first: by_running.smaller(trials[first])}
        follow[first] = set(names) - small.keys()
    return stand, follow
