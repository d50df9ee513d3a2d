"""Reasons that are held against every result: what explains some red ones, and is refuted by none, green or red."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cases.case import EVERYTHING, FORWARD, Case
from ..conventions import formula
from ..conventions.search import Change, fitting
from ..conventions.table import ASKS
from ..judge.comparing import Tolerance
from ..judge.trial import Trial
from ..judge.verdicts import RIGHT
from . import by_probing
from .by_running import is_called_once, is_late, until_the_end_of, with_case
from .causes import Faults
from .hypothesis import OF_PACKS, Hypothesis, is_right, loosely, of_table, pairs_of

MOST_LEVELS = 3  # reasons that come on top of each other
REFUTING_PAIRS = 2**20  # of a green case that may refute, and of a call that is tried with two values at once
OPTION_CALLS = 12  # calls with options that are tried with two values at once, beside all plain ones
LOW_SCORES = """query = (-200 * np.clip(abs(query), 0, 3)).astype(dtype)
key = np.clip(abs(key), 0, 3)"""  # what is written where masked is above these scores
MOST_NAMES = 3  # of reasons that nothing tells apart
MOST_CALLS = 6  # that tell reasons apart
VARIED: tuple[dict[str, int], ...] = (
    {"T": 7, "S": 7}, {"T": 5, "S": 12}, {"T": 9, "S": 4}, {"N": 5, "G": 5, "D": 9, "V": 9}, {"T": 1},
    {"B": 3, "N": 6, "G": 2}, {"T": 40, "S": 40},
)  # fmt: skip


class Reason(NamedTuple):
    """Reasons that explain some cases, by their names."""

    hypothesis: Hypothesis
    names: set[str]


class Greens:
    """The cases in which all is right, also by declared conventions: a reason that holds would make them wrong.

    Without them an offset that one option hides would be called ignored.
    """

    def __init__(self, faults: Faults) -> None:
        self.implementation, self.how = faults.implementation, faults.how
        self.trials: dict[str, Trial] = {}
        greens = [o for o in faults.outcomes if o.verdict in RIGHT and o.case.judge == "value"]
        self.cases = sorted((o.case for o in greens if o.case.pairs <= REFUTING_PAIRS), key=lambda case: case.pairs)
        self.allowed = {o.case.name: o.finding.allowed or 0.0 for o in greens}

    def refute(self, hypothesis: Hypothesis, way: tuple[Any, ...]) -> bool:
        """Tell whether some case that is asked in a way would have been wrong; if time runs out, it means nothing.

        Cases of no dtype of their own are asked in that of the run. A result is wrong if it differs from the right one
        by more than twice what the judge allowed.
        """
        dtypes = {None, self.how.dtype} if way[1] in (None, self.how.dtype) else {way[1]}
        kept = {(way[0], dtype, *way[2:]) for dtype in dtypes}
        asked = (case for case in self.cases if way_of(case) in kept)
        said = (hypothesis.differences(self._trial(case)) for case in asked if not is_late())
        return any(some and all(some) for some in said)

    def _trial(self, case: Case) -> Trial:
        if case.name not in self.trials:
            trial = Trial(self.implementation, case, self.how)
            trial.got, least = trial.by_convention(), 2 * self.allowed[case.name]
            trial.loose |= {leaf: Tolerance(max(x.allowed, least)) for leaf, x in loosely(trial, trial.got).items()}
            self.trials[case.name] = trial
        return self.trials[case.name]


def way_of(case: Case) -> tuple[Any, ...]:
    """The way in which the function is called: a function that is right in one may be wrong in another."""
    return case.direction, case.dtype, case.leading, tuple(sorted(case.constants))


def plainness(trial: Trial) -> tuple[int, int]:
    """The plainer call comes first: that of fewer options, then the smaller one."""
    return len(trial.case.options), pairs_of(trial)


def reasons(faults: Faults, trials: Mapping[str, Trial], known: Sequence[Reason] = ()) -> list[Reason]:
    """Reasons for red results, each with the cases that it explains; ``faults`` also has those of other causes.

    First those that an earlier look found, then each value of each axis; where plain calls have no reason by that, two
    values at once.
    """
    table, greens = of_table(_numbers(trials.values())) if trials else [], Greens(faults)
    found = _confirmed(known, trials, greens)
    every, left = _by_one_value(found, table, trials, greens), _without_reason(trials, found)
    plain = {name for name, trial in left.items() if _is_asked_once(trial) and not trial.case.options}
    if plain.difference(*(names for _, names in every)):
        with until_the_end_of("search"):
            both = _two_of(table, left)
        if pairs := list(_of_level(left, both, greens)):
            every = _by_one_value([*found, *pairs], table, trials, greens)
    return _standing(every, trials, faults.trials)


def _without_reason(trials: Mapping[str, Trial], found: Iterable[Reason]) -> dict[str, Trial]:
    explained = set().union(*(names for _, names in found))
    return {name: trial for name, trial in trials.items() if name not in explained}


def _confirmed(known: Iterable[Reason], trials: Mapping[str, Trial], greens: Greens) -> list[Reason]:
    """Reasons that are known, with all cases that they explain; with those that are known if there is no time."""
    found = list[Reason]()
    for hypothesis, names in known:
        left, late = _without_reason(trials, found), is_late()
        reason = None if late else _explained(hypothesis, left, greens)
        names = reason.names if reason else names & left.keys() if late or is_late() else set()
        found += [Reason(hypothesis, names)] * bool(names)
    return found


def _by_one_value(
    found: Sequence[Reason], table: Sequence[Hypothesis], trials: Mapping[str, Trial], greens: Greens
) -> list[Reason]:
    """Add reasons for the cases that have none, of one value; then of what comes on top of the first of all reasons."""
    every, left = list(found), _without_reason(trials, found)
    first = next((hypothesis for hypothesis, _ in found if hypothesis.values), None)
    hypotheses: list[Hypothesis] = [*table, *OF_PACKS]
    for level in range(MOST_LEVELS):
        first = None if level else first
        for hypothesis, names in _of_level(left, hypotheses, greens):
            told = {name for name in names if not hypothesis.is_ignored(left[name])}
            every += [Reason(hypothesis, told)] * bool(told)
            left = {name: trial for name, trial in left.items() if name not in names}
            first = first or (hypothesis if hypothesis.values and told else None)
        if not left or first is None:
            break
        hypotheses = [h.after(first) for h in table if h.axes.isdisjoint(first.axes)]
    return _one_value_each(every, trials)


def _one_value_each(found: list[Reason], trials: Mapping[str, Trial]) -> list[Reason]:
    """Keep of two values of one axis, where one explains all that the other does, that one alone.

    Without this a function could have two scales.
    """
    by_size = sorted(found, key=lambda reason: -len(reason.names))
    for one, other in itertools.permutations(by_size, 2):
        mine, others = dict(one.hypothesis.values), dict(other.hypothesis.values)
        if all(mine[axis] == others[axis] for axis in mine.keys() & others.keys()):
            continue
        rest = [r.hypothesis for r in found if r.hypothesis.values and r.hypothesis.axes.isdisjoint(mine)]
        ways = [one.hypothesis, *(one.hypothesis.beside(beside) for beside in rest)]
        if all(any(way.says(trials[name]) for way in ways) for name in other.names):
            joined = one._replace(names=one.names | other.names)
            kept = [joined if reason is one else reason for reason in found if reason is not other]
            return _one_value_each(kept, trials)
    return found


def _standing(found: list[Reason], trials: Mapping[str, Trial], reds: Mapping[str, Trial]) -> list[Reason]:
    """Drop reasons against which a wrong call speaks that asks for no more, and has no reason itself.

    That is a plain call that is not larger: any of results for which the reason gives something else; and, for a
    reason of an option, one that was tried in the same way. Or a call of that option that was tried. Without this
    causal would be called ignored for one call in which it hides nothing, while others are wrong for no known reason.
    """
    left = _without_reason({**reds, **trials}, found)
    left = {name: trial for name, trial in left.items() if trial.case.judge == "value"}

    def stands(reason: Reason) -> bool:
        mine, axes = [trials[name] for name in reason.names], reason.hypothesis.axes
        options = set().union(*(ASKS.get(axis, ()) for axis in axes)) if all(map(ASKS.get, axes)) else set[str]()
        least, ways = min(map(pairs_of, mine)), {way_of(trial.case) for trial in mine}
        plain = {name: one for name, one in left.items() if not one.case.options and pairs_of(one) <= least}
        of_option = [one.case for name, one in left.items() if name in trials and options & one.case.options]
        return not (
            any(one.case.direction == FORWARD and reason.hypothesis.says(one) is False for one in plain.values())
            or any(options and name in trials and way_of(one.case) in ways for name, one in plain.items())
            or any(speaks(case, trial.case) for case in of_option for trial in mine)
        )

    return list(filter(stands, found))


def _two_of(table: Sequence[Hypothesis], trials: Mapping[str, Trial]) -> list[Hypothesis]:
    """Two values at once that give what all calls gave, or the plainest, which one alone does not."""
    asked = [t for t in trials.values() if _is_asked_once(t) and _is_finite(t) and pairs_of(t) <= REFUTING_PAIRS]
    plain = [t for t in asked if not t.case.options]
    asked = sorted([*asked, *varied(plain)], key=plainness)
    by_value = {hypothesis.values: hypothesis for hypothesis in table}

    def both(changes: frozenset[Change]) -> Hypothesis:
        first, *more = (by_value[change,] for change in sorted(changes))
        return functools.reduce(Hypothesis.beside, more, first)

    def explain(changes: frozenset[Change], trial: Trial) -> bool:
        said = both(changes).says(trial) if changes and not is_late() else False
        return is_right(trial, trial.got) if said is None else said

    def here(trial: Trial) -> list[Change]:
        return [values[0] for values in by_value if by_value[values].matters(trial)]

    ways = (fitting(some, here, explain, 2) for some in (asked, asked[: len(plain) + OPTION_CALLS]) if some)
    return next(filter(None, ([both(x) for x in found if len(x) > 1] for found in ways)), [])


def _is_asked_once(trial: Trial) -> bool:
    return is_called_once(trial) and trial.case.direction == FORWARD


def _is_finite(trial: Trial) -> bool:
    return all(np.isfinite(x).all() for x in trial.inputs.arrays.values())


def _numbers(trials: Iterable[Trial]) -> dict[str, str]:
    """Numbers that are solved for, by axis, where the scale, a bias or causal may be wrong."""
    mine = [trial for trial in trials if _is_asked_once(trial) and not trial.implementation.recorded]
    found: dict[str, str] = {}
    for calls, look in by_probing.PROBES:
        asked = [trial for trial in mine if trial.case.options in calls]
        found |= look(min(asked, key=pairs_of)) if asked else {}
    return found


def _of_level(left: Mapping[str, Trial], hypotheses: Sequence[Hypothesis], greens: Greens) -> Iterator[Reason]:
    """Order reasons: those that explain the most first; of several that explain one thing, those that calls leave.

    Those that explain the plainest call are tried before all others: there may be no time for these.
    """
    with until_the_end_of("search"):
        plainest = min(left.values(), key=plainness, default=None)
        near = [h for h in hypotheses if plainest and not is_late() and h.says(plainest)]
        ordered = [*near, *(h for h in hypotheses if h not in near)]
        found = [reason for h in ordered if not is_late() and (reason := _explained(h, left, greens))]
    while found := [reason for reason in found if reason.names]:
        names = max((reason.names for reason in found), key=len)
        rivals = [reason for reason in found if reason.names == names]
        best = _settled([r.hypothesis for r in rivals], [left[name] for name in names])
        if best is None:
            found = [reason for reason in found if reason not in rivals]
            continue
        yield Reason(best, names)
        found = [Reason(h, others - names) for h, others in found]


def _explained(hypothesis: Hypothesis, trials: Mapping[str, Trial], greens: Greens) -> Reason | None:
    """The cases in which it gives what was got, unless others refute it.

    It is tried on one of each question first, the plainest before all others: what is refuted there is not asked more.
    """
    order = sorted(trials, key=lambda name: plainness(trials[name]))
    said: dict[str, bool | None] = {}
    against: list[Case] = []

    def ask(names: Iterable[str]) -> None:
        for name in names:
            case = trials[name].case
            if name not in said and not any(speaks(one, case) for one in against):
                said[name] = hypothesis.says(trials[name])
                against.extend([case] * (said[name] is False and case.judge == "value"))  # of one call

    plainest: dict[Any, str] = {}
    for name in order:
        plainest.setdefault(question_of(trials[name].case), name)
    cheap = [name for name in plainest.values() if trials[name].case.level != EVERYTHING]
    ask(cheap)
    ask(plainest.values() if not cheap or any(said.values()) else ())  # second derivatives take the most time
    ask(order if any(said.values()) else ())
    cases = {name: trials[name].case for name, given in said.items() if given}
    cases = {name: case for name, case in cases.items() if not any(speaks(one, case) for one in against)}
    ways = {way for way in set(map(way_of, cases.values())) if not greens.refute(hypothesis, way)}
    if is_late():  # a part of the cases would be a false limit of the reason
        return None
    names = {name for name, case in cases.items() if way_of(case) in ways}
    told = hypothesis.gives or any(_has_numbers(trials[name]) for name in names)
    return Reason(hypothesis, names) if names and told else None


def _has_numbers(trial: Trial) -> bool:
    """Tell whether there is a number, or no key for any query: NaN everywhere, or 0, is like any other."""
    some = any(np.nan_to_num(x).any() for x in trial.got.values())
    return some or not formula.Steps(trial.inputs, trial.declared).seen.any()


def question_of(case: Case) -> tuple[Any, ...]:
    """All but its sizes."""
    return case.judge, case.direction, case.dtype, frozenset(case.options)


def speaks(case: Case, other: Case) -> bool:
    """Tell whether what is found in a case must hold in another: it is asked in the same way, and for no more.

    A reason that float32 refutes may pass in a narrower dtype, whose tolerances are wider: 1/(D + 1) is near 1/D.
    """
    alike = case if case.dtype is not None else case._replace(dtype=other.dtype)
    return way_of(alike) == way_of(other) and case.options <= other.options


def _settled(rivals: list[Hypothesis], trials: list[Trial]) -> Hypothesis | None:
    """Reasons that further calls, at other sizes, leave of some that explain one thing; None if they refute all.

    Where nothing that the function offers tells some of them apart, each is said.
    """
    once = _called_once(trials)
    for other in varied(once):
        rivals = _left_by(other, rivals)
    if is_late():
        return None
    for trial in once[:MOST_NAMES] if len(rivals) > 1 else ():
        low = with_case(trial, trial.case._replace(lines=f"{trial.case.lines}\n{LOW_SCORES}"))
        rivals = (_left_by(low, rivals) if low else []) or rivals
    plainest = min(trials, key=plainness)
    rivals = [hypothesis for hypothesis in rivals if hypothesis.says(plainest, whole=True)] or rivals
    names = dict.fromkeys(hypothesis.name for hypothesis in rivals)
    if not 0 < len(names) <= MOST_NAMES:
        return None
    flags = {hypothesis.remedy for hypothesis in rivals} if len(names) > 1 else {rivals[0].remedy}
    return rivals[0]._replace(name=", or ".join(names), remedy=flags.pop() if len(flags) == 1 else "")


def varied(trials: Iterable[Trial]) -> Iterator[Trial]:
    """Yield the plainest call at other sizes."""
    once = _called_once(trials)
    made = (with_case(once[0], once[0].case._replace(sizes=once[0].case.sizes | sizes)) for sizes in VARIED if once)
    return itertools.islice(filter(None, made), MOST_CALLS)


def _called_once(trials: Iterable[Trial]) -> list[Trial]:
    once = [trial for trial in trials if is_called_once(trial) and not trial.implementation.recorded]
    return sorted(once, key=plainness)


def _left_by(trial: Trial, rivals: list[Hypothesis]) -> list[Hypothesis]:
    """Reasons that give what was got, where some do; else those for which that is right."""
    said = [hypothesis.says(trial) for hypothesis in rivals]
    best = True if any(said) else None
    return [hypothesis for hypothesis, given in zip(rivals, said, strict=True) if given is best]
