"""Causes, made of outcomes: their harm to users, how a name tells the way of calling, and which causes are one."""

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..adapters.implementation import Implementation
from ..cases import CASES, named
from ..cases.case import FORWARD, GRADIENT, HELD, SIZES, Case
from ..cases.how import How
from ..judge.trial import Trial
from ..judge.verdicts import WITHOUT, Verdict
from ..report.outcomes import Cause, Harm, Outcome
from .by_running import STRIDES
from .hypothesis import GRADIENT_WAYS

# in names that need no word for the way of calling
GRADIENT_WORDS = r"gradient(?! of the values alone)|grad |^dS|^delta|tangent|derivative|^second |race|not contiguous"
IN_BACKWARD = "in the backward, "
WAYS = (  # of calling, each with the words that a name gets where all of its cases are called so
    ({"vmap", "per example gradient"}, "under vmap, "),
    ({*GRADIENT_WAYS, "per example gradient"}, IN_BACKWARD),
    ({"jvp"}, "in forward mode, "),
)
VAGUE = r"(the result|the gradient of \w+|lse) is "
HARM_ORDER = list(Harm)
PLAIN_CASES = {Harm.NUMBERS: "plain", Harm.GRADIENTS: "gradient: plain"}
WRONG = tuple(PLAIN_CASES)
NUMBER_JUDGES = ("value", "after_others", "but_for_empty_rows", "held")  # judges of what one call gives


class Faults:
    """The faults of a function that have no cause yet, and the causes of the others."""

    def __init__(
        self, implementation: Implementation, how: How, left: Sequence[Outcome], outcomes: Sequence[Outcome]
    ) -> None:
        """``outcomes`` are all of the run."""
        self.implementation, self.how, self.left, self.outcomes = implementation, how, list(left), outcomes
        self.trials = {o.case.name: self.trial(o) for o in left if has_numbers(o)}  # those that have numbers
        self.causes: list[Cause] = []

    def seeded(self, outcome: Outcome) -> How:
        """Settings with the seed of an outcome's numbers."""
        return self.how if outcome.seed is None else self.how._replace(seed=outcome.seed)

    def trial(self, outcome: Outcome) -> Trial:
        """The trial of an outcome, of a case of several calls that of one, and what it gave."""
        case = outcome.case
        if case.judge == "held":  # as what is wrong at once
            case = case._replace(judge="value", direction=FORWARD if case.direction == HELD else GRADIENT)
        if case.judge == "after_others":  # as what is wrong in its last call
            case = case._replace(judge="value")
        trial = Trial(self.implementation, case, self.seeded(outcome))
        trial.got = dict(outcome.got)
        return trial

    def take(self, name: str, names: set[str], remedy: str = "", tried: int | None = None) -> list[Outcome]:
        """Give some faults, by their names, a cause; all of them were ``tried`` with it unless a number is given."""
        taken = [o for o in self.left if o.case.name in names]
        self.left = [o for o in self.left if o.case.name not in names]
        if taken:
            self.causes.append(cause_of(name, taken, len(taken) if tried is None else tried, remedy))
        return taken

    def of_numbers(self) -> dict[str, Trial]:
        """The trials of those that are left."""
        return {o.case.name: self.trials[o.case.name] for o in self.left if o.case.name in self.trials}


def has_numbers(outcome: Outcome) -> bool:
    """Tell whether a fault has numbers that a reason may explain."""
    return bool(outcome.got) and outcome.case.judge in NUMBER_JUDGES and outcome.verdict is not Verdict.LEAK


def harm_of(outcome: Outcome) -> Harm:
    """The harm that a fault does."""
    case = outcome.case
    if outcome.verdict in (Verdict.CRASH, Verdict.TIMEOUT):
        return Harm.CRASH
    if case.claim and outcome.verdict is Verdict.LEAK:
        return Harm.CLAIM
    if outcome.verdict is Verdict.OBSCURE:
        return Harm.CRASH
    if case.profile != "numbers":
        return Harm.ROBUSTNESS
    return Harm.NUMBERS if case.level == "forward" else Harm.GRADIENTS


def cause_of(name: str, taken: Sequence[Outcome], tried: int = 0, remedy: str = "") -> Cause:
    """A cause of some outcomes."""
    return Cause(name, min(map(harm_of, taken), key=HARM_ORDER.index), tuple(o.case.name for o in taken), tried, remedy)


def folded(
    causes: Iterable[Cause], *, cut: bool = False, can_change: Callable[[str, str], bool] = lambda _name, _case: True
) -> list[Cause]:
    """Faults without a reason of their own join a reason that may also be theirs; the worst first.

    The reason of a cause, by its name, has to be one that ``can_change`` each of their cases.

    Every call is made of the plainer ones; and where an option is read wrongly, its gradients are wrong as well. Those
    without a reason are first joined among themselves. Where the search was ``cut`` short, no reason was tried in vain.
    """
    every = [part for cause in causes for part in (_each(cause) if cause.name == WITHOUT else [cause])]
    vague = [cause for cause in every if re.match(VAGUE, cause.name)]
    rest = [cause for cause in every if cause not in vague]
    found = _folded([*rest, *_folded(vague, cut, can_change)], cut, can_change)
    dropout = joined(cause for cause in found if cause.name == WITHOUT)
    return sorted([*(cause for cause in found if cause.name != WITHOUT), *dropout], key=rank)


def _each(cause: Cause) -> list[Cause]:
    """A cause for each case: beside dropout, each may follow from another cause."""
    return [cause._replace(cases=(name,)) for name in cause.cases]


def _folded(causes: Iterable[Cause], cut: bool, can_change: Callable[[str, str], bool]) -> list[Cause]:
    found, left = [], sorted(causes, key=lambda cause: (*rank(cause)[:-1], _fewest_options(cause), rank(cause)[-1]))
    while left:
        first, *left = left
        vague = [cause for cause in left if not cause.tried and _may_follow(cause, first, cut)]
        follow = [cause for cause in vague if all(can_change(first.name, name) for name in cause.cases)]
        left = [cause for cause in left if cause not in follow]
        found.append(first._replace(cases=first.cases + tuple(name for cause in follow for name in cause.cases)))
    return sorted(found, key=rank)


def _may_follow(cause: Cause, first: Cause, cut: bool) -> bool:
    """Tell whether each of its cases holds one of another cause, whose reason was not tried on such a one in vain."""
    if cause.name == WITHOUT:  # an option of one of them, or of a plain one, is enough
        mine, others = ([_case(name).options - {"scale"} for name in x.cases] for x in (cause, first))
        return first.harm is Harm.NUMBERS and all(any(not y or x & y for y in others) for x in mine)
    if not {cause.harm, first.harm} <= set(WRONG) or first.name == STRIDES:  # for which all were called again
        return False
    if not cut and first.tried and cause.harm is first.harm and _asked(first) & _asked(cause):
        return False
    if "--precision" in first.remedy:  # every case was tried, and it clears all of the cause
        return False
    of_gradients = first.harm is Harm.NUMBERS and all(_case(name).level != FORWARD for name in cause.cases)
    if not (first.tried or re.match(VAGUE, first.name) or PLAIN_CASES.get(first.harm) in first.cases or of_gradients):
        return False
    return all(any(_holds(name, one) for one in first.cases) for name in cause.cases)


def _holds(name: str, one: str) -> bool:
    """Tell whether a case asks all that another asks, at no much smaller length.

    An lse counts where nothing else is asked.
    """
    mine, other = _case(name), _case(one)
    subject = other.options - {"scale", "return_lse"} or other.options - {"scale"}
    long, least = (max((SIZES | case.sizes)[axis] for axis in "TS") for case in (mine, other))
    return subject <= mine.options - {"scale"} and long >= least / 2


@functools.lru_cache(maxsize=4096)
def _case(name: str) -> Case:
    """The case of a name; one at the sizes of a run counts as the plainest."""
    return named(name) or CASES[0]


def _asked(cause: Cause) -> set[Any]:
    """The demands of its cases: the judge, the direction, the dtype and the options."""
    cases = filter(None, map(named, cause.cases))
    return {(x.judge, x.direction, x.dtype, frozenset(x.options)) for x in cases if x.judge == "value"}


def _fewest_options(cause: Cause) -> int:
    """The fewest options of a case, where it has no reason: the plainest comes first."""
    return min(len(_case(name).options - {"scale"}) for name in cause.cases) if re.match(VAGUE, cause.name) else 0


def rank(cause: Cause) -> tuple[int, bool, bool, int, int]:
    """The rank by harm; of one harm by the plainest call, then explained ones first."""
    vague = 2 if cause.name == WITHOUT else bool(re.match(VAGUE, cause.name))
    special = PLAIN_CASES.get(cause.harm) not in cause.cases
    return HARM_ORDER.index(cause.harm), special, not cause.tried, vague, -len(cause.cases)


def apart(cause: Cause) -> tuple[Any, ...]:
    """The options and the dtypes of the calls of a cause that has no reason: two such causes may be of two mistakes."""
    cases = [_case(name) for name in cause.cases] if re.match(VAGUE, cause.name) else []
    return tuple(sorted({(*sorted(case.options - {"scale"}), str(case.dtype)) for case in cases}))


def joined(causes: Iterable[Cause], apart: Callable[[Cause], tuple[Any, ...]] = lambda _: ()) -> list[Cause]:
    """Causes of the same name are one, unless they are kept apart.

    Without a reason it is the same whatever the numbers in it, the options and the direction.
    """
    found: dict[Any, Cause] = {}
    for cause in sorted(causes, key=lambda cause: (cause.name.startswith(IN_BACKWARD), len(cause.name))):
        name = cause.name if cause.tried else re.sub(r"\d+", "#", cause.name.partition(", with ")[0])
        plain, key = ((x, *apart(cause)) for x in (name.removeprefix(IN_BACKWARD), name))
        key = plain if plain in found else key
        if one := found.get(key):
            harm = min(one.harm, cause.harm, key=HARM_ORDER.index)
            cause = one._replace(harm=harm, cases=one.cases + cause.cases, tried=one.tried + cause.tried)
        found[key] = cause
    return list(found.values())
