"""Faults that may follow from a reason: it has to change what is right in their calls."""

import collections
from collections.abc import Mapping
from typing import Any

from ..cases.case import FORWARD, SIZES, Case
from ..judge.trial import Trial
from .by_running import without_each
from .explaining import MOST_PAIRS, question_of
from .hypothesis import Hypothesis

COMPUTED = ("value", "after_others", "but_for_empty_rows", "held")  # judges of what one call gives
SMALL = 2**14  # pairs of queries and keys: larger calls are answered by a smaller one of their kind, if there is one


class Reach:
    """The reasons that were found, and the calls that each of them changes."""

    def __init__(self, trials: Mapping[str, Trial]) -> None:
        """``trials`` are those of the faults, by the names of their cases."""
        self.trials = trials
        self.by_name = collections.defaultdict[str, list[Hypothesis]](list)
        self._of_kinds: dict[Any, bool] = {}

    def add(self, hypothesis: Hypothesis) -> None:
        """Keep a reason that a cause has."""
        self.by_name[hypothesis.name].append(hypothesis)

    def can_change(self, name: str, case: str) -> bool:
        """Tell whether a cause of a name may change what a case gives; True if that cannot be computed."""
        trial = _computed(self.trials[case]) if case in self.trials else None
        if name not in self.by_name or trial is None:
            return True
        kind = name, _kind(trial.case)
        if trial.case.pairs > SMALL and kind in self._of_kinds:
            return self._of_kinds[kind]
        if trial.case.pairs > MOST_PAIRS:
            return True
        calls = _with_its_result(trial)
        self._of_kinds[kind] = any(r.changes(call) is not False for r in self.by_name[name] for call in calls)
        return self._of_kinds[kind]

    def changed(self, name: str, *cases: set[str]) -> set[str]:
        """Those of some cases that a cause of a name may change."""
        return {case for case in set[str]().union(*cases) if self.can_change(name, case)}


def _computed(trial: Trial) -> Trial | None:
    """The trial of one call, without dropout, for which a reason can be computed."""
    case = trial.case
    if case.judge == "dropped":
        case = dict(without_each(case)).get("dropout_rate", case)._replace(judge="value")
        return Trial(trial.implementation, case, trial.how)
    return trial if case.judge in COMPUTED else None


def _with_its_result(trial: Trial) -> list[Trial]:
    """Give the trial of a derivative, and that of the result of the same call, from which it may follow."""
    case = trial.case._replace(direction=FORWARD, where={})
    return [trial] if trial.case.direction == FORWARD else [trial, Trial(trial.implementation, case, trial.how)]


def _kind(case: Case) -> tuple[Any, ...]:
    """Give the question of a case, and which of its sizes are equal, as far as reasons depend on that."""
    sizes = SIZES | case.sizes
    return question_of(case), sizes["N"] == sizes["G"], sizes["T"] == sizes["S"], sizes["T"] == 1
