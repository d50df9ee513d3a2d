"""Qualifiers of a cause, such as "in float16": one is said only if the same call without it was run and passed.

The names of causes have none before. A property that all calls of a cause have may be chance, so it is not said
unless it is tried. A mistake that is there without it as well is one cause.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence

from ..cases.case import FORWARD, GRADIENT_HELD, SIZES, Case
from ..cases.how import forever
from ..judge.judging import find
from ..judge.trial import Trial
from ..judge.verdicts import ZEROS, Verdict
from ..report.outcomes import Cause, Harm, Outcome
from ..worker.calling import subject_of
from . import by_running
from .causes import GRADIENT_WORDS, IN_BACKWARD, VAGUE, WAYS, Faults
from .hypothesis import GRADIENT_WAYS

NEVER_SAID = {"scale", "return_lse", "dropout_rng"}  # options of which nothing is said
NO_OPTIONS = rf"{ZEROS}|is all zeros| times what is right"  # in names that no options are added to
PASSING_DRAWS = 2  # of the numbers of a call that has to pass
CLEARLY = 0.5  # of the error over the allowed one: a call passes that has at most so much of what the wrong one has
# Calls of a cause of gradients whose results are looked at; seconds for one if none are left.
FORWARDS, SPARE_SECONDS = 3, 5.0
DERIVED = {*GRADIENT_WAYS, GRADIENT_HELD, "jvp", "second"}  # directions whose forward is the same call
ONE_CALL_JUDGES = ("value", "held", "after_others")  # judges of the results of one call
# Traits, each with two axes that are equal without it.
SIZE_TRAITS = {"grouped heads": ("N", "G"), "V != D": ("V", "D")}
OF_BACKWARD = rf"{IN_BACKWARD}|is all zeros"  # in names that were said of more than the error of a gradient
OF_A_GRADIENT = r"(the gradient of|tangent|second) \w+ is \w+"
NUMBER_VERDICTS = (Verdict.WRONG, Verdict.NAN, Verdict.SILENT)
QUALIFIED = (Harm.NUMBERS, Harm.GRADIENTS, Harm.ROBUSTNESS)


def qualified(cause: Cause, faults: Faults) -> Cause:
    """The cause with its qualifiers, each of which was tried."""
    mine, how = [o for o in faults.outcomes if o.case.name in cause.cases], faults.how
    if cause.harm not in QUALIFIED or not mine or faults.implementation.recorded:
        return cause
    mine.sort(key=lambda o: (o.case.judge != "value", o.case.pairs, len(o.case.options)))
    plainest = mine[0]
    if cause.harm is Harm.GRADIENTS or re.match(OF_A_GRADIENT, cause.name):
        cause, plainest = _of_results(cause, mine, faults)

    def is_earned(without: Case) -> bool:
        return passes(without, plainest, faults)

    name, vague = cause.name, bool(re.match(VAGUE, cause.name))
    options = [option for option, without in _without_options(cause, mine, plainest) if is_earned(without)]
    for trait, (one, other) in SIZE_TRAITS.items() if vague and not cause.tried else ():
        sizes = [SIZES | o.case.sizes for o in mine]
        apart = plainest.case.judge == "value" and all(x[one] != x[other] for x in sizes)
        options += [trait] * (apart and bool(passes_without(trait, plainest, faults)))
    name += f"{' ' if vague else ', '}with {', '.join(options)}" * bool(options)
    dtypes = {o.case.dtype or how.dtype for o in mine}
    if how.dtype not in dtypes and "float" not in name and is_earned(plainest.case._replace(dtype=None)):
        words = f"in {' and '.join(sorted(dtypes))}"
        name = f"{name} {words}" if vague else f"{words}, {name}"
    return cause._replace(name=_way(name, mine, plainest, faults, is_earned) + name)


def _of_results(cause: Cause, mine: Sequence[Outcome], faults: Faults) -> tuple[Cause, Outcome]:
    """A cause of gradients, and the plainest call that shows it: one of results if those of the same calls are wrong.

    Wrong gradients follow from a wrong result. They are a mistake of their own only in a call whose result is right.
    """
    asked = [o for o in mine if o.case.judge in ONE_CALL_JUDGES and o.case.direction.partition(",")[0] in DERIVED]
    if not asked or re.search(OF_BACKWARD, cause.name) or (cause.tried and re.search(GRADIENT_WORDS, cause.name)):
        return cause, mine[0]
    wrong, late = list[Outcome](), by_running.is_late()
    if late:  # one call has to be made, or it is not known what is wrong
        subject_of(faults.implementation).allow(SPARE_SECONDS, forever)
    for outcome in asked[: 1 if late else FORWARDS]:
        judge = "value" if outcome.case.judge == "held" else outcome.case.judge
        case = outcome.case._replace(direction=FORWARD, where={}, judge=judge)
        finding = find(faults.implementation, case, faults.seeded(outcome))[0]
        if finding.verdict not in NUMBER_VERDICTS:
            names = sorted(cause.cases, key=lambda name: name != outcome.case.name)
            return cause._replace(cases=tuple(names)), outcome
        wrong.append(Outcome(case, finding, 0.0, "", seed=outcome.seed))
    subject = "lse" if wrong[0].finding.leaf == "lse" else "the result"
    found = Verdict.NAN if wrong[0].verdict is Verdict.NAN else Verdict.WRONG
    name = re.sub(f"^{OF_A_GRADIENT}", f"{subject} is {found}", cause.name)
    harm = Harm.NUMBERS if cause.harm is Harm.GRADIENTS else cause.harm
    return cause._replace(name=name, harm=harm), wrong[0]


def _way(
    name: str, mine: Sequence[Outcome], plainest: Outcome, faults: Faults, is_earned: Callable[[Case], bool]
) -> str:
    """The way of calling, such as the backward, in words."""
    heads = {o.case.direction.partition(",")[0] for o in mine}
    words = next((words for ways, words in WAYS if heads <= ways), "")
    if not words or re.search(GRADIENT_WORDS, name) or plainest.case.judge != "value":
        return ""
    if words == IN_BACKWARD or "jvp" in heads:
        return words * bool(is_earned(plainest.case._replace(direction=FORWARD, where={})))
    asked = plainest.case.options  # an axis of vmap is no axis of a call: another call asks the same
    passed = [o for o in faults.outcomes if o.case.direction == FORWARD and o.verdict is Verdict.OK]
    return words * any(o.case.options == asked and o.case.dtype == plainest.case.dtype for o in passed)


def _without_options(cause: Cause, mine: Sequence[Outcome], plainest: Outcome) -> Iterator[tuple[str, Case]]:
    """Each option that all calls of a cause without a reason have, and the plainest call without it."""
    shared = set.intersection(*(o.case.options for o in mine)) - NEVER_SAID
    if cause.tried or re.search(NO_OPTIONS, cause.name) or plainest.case.judge != "value":
        return
    for option, case in by_running.without_each(plainest.case):
        if option in shared and f"gradient of {option}" not in cause.name:
            yield option, case


def passes_without(trait: str, wrong: Outcome, faults: Faults) -> bool | None:
    """Tell whether a wrong call passes without an option, or a property of its sizes; None for other traits.

    At other sizes its numbers are as large: of fewer that are drawn the largest is smaller, and that may be why.
    """
    case, less = wrong.case, dict(by_running.without_each(wrong.case)).get(trait)
    if trait in SIZE_TRAITS:
        axis, other = SIZE_TRAITS[trait]
        case = by_running.reaching(Trial(faults.implementation, case, faults.seeded(wrong))).case
        less = case._replace(sizes=case.sizes | {axis: (SIZES | case.sizes)[other]})
    return None if less is None else passes(less, wrong, faults)


def passes(case: Case, wrong: Outcome, faults: Faults) -> bool:
    """Tell whether a call was run and passed, of several draws, by much more than a wrong one fails."""
    most, how = math.inf if wrong.multiple is None else CLEARLY * wrong.multiple, faults.seeded(wrong)
    for draw in range(PASSING_DRAWS):
        if by_running.is_late():
            return False
        try:
            finding = find(faults.implementation, case, how._replace(seed=how.seed + draw * by_running.SEED_STEP))[0]
        except (IndexError, ValueError, KeyError):  # such a call makes no sense
            return False
        found = Outcome(case, finding, 0.0, "")
        if finding.verdict is not Verdict.OK or (found.multiple or 0.0) > most:
            return False
    return True
