"""A cause, made of outcomes: what it does to users, how its name tells the way of calling, and which causes are one."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..cases import named
from ..cases.case import FORWARD, SIZES, Case
from ..judge.trial import Trial
from ..judge.verdicts import WITHOUT, Verdict
from ..report.outcomes import Cause, Harm, Outcome
from .hypothesis import GRADIENT

OF_GRADIENTS = r"gradient|grad |^dS|^delta|cotangent|derivative|race|not contiguous"  # in names that need no such word
BACKWARD = "in the backward, "
VAGUE = r"(the result|the gradient of \w+|lse) is "
ORDER = list(Harm)
PLAINEST = {Harm.NUMBERS: "plain", Harm.GRADIENTS: "gradient: plain"}
WRONG = tuple(PLAINEST)
COMPLETE = ("wrong for arrays that are not contiguous: strides are not read",)  # of which every case was called again
LARGE = 2**21  # pairs, from which what is right takes a second


def harm_of(outcome: Outcome) -> Harm:
    """The harm that a fault does."""
    case = outcome.case
    if outcome.verdict in (Verdict.CRASH, Verdict.TIMEOUT):
        return Harm.CRASH
    if case.judge == "refused":
        return Harm.ACCEPTED
    if case.claim and outcome.verdict is Verdict.LEAK:
        return Harm.CLAIM
    if outcome.verdict is Verdict.OBSCURE:
        return Harm.CRASH
    if case.profile != "numbers":
        return Harm.ROBUSTNESS
    return Harm.NUMBERS if case.level == "forward" else Harm.GRADIENTS


def worst_of(outcomes: Iterable[Outcome]) -> Harm:
    """The worst harm of some faults."""
    return min(map(harm_of, outcomes), key=ORDER.index)


def cause_of(name: str, taken: Sequence[Outcome], tried: int = 0, remedy: str = "") -> Cause:
    """A cause of some outcomes; where all are of one way of calling, its name says so."""
    harm = worst_of(taken)
    heads = {o.case.direction.partition(",")[0] for o in taken}
    for directions, words in (
        ({"vmap", "per example gradient"}, "under vmap, {}"),
        ({*GRADIENT, "per example gradient"}, BACKWARD + "{}"),
        ({"jvp"}, "in forward mode, {}"),
    ):
        if tried and heads <= directions and not re.search(OF_GRADIENTS, name):
            name = words.format(name)
            break
    return Cause(name, harm, names_of(taken), tried, remedy)


def names_of(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """The names of the cases."""
    return tuple(outcome.case.name for outcome in outcomes)


def take(left: list[Outcome], names: set[str]) -> list[Outcome]:
    """Some of what is left, by name; it is left no more."""
    taken = [o for o in left if o.case.name in names]
    left[:] = [o for o in left if o.case.name not in names]
    return taken


def options_of(case: Case) -> set[str]:
    """The keywords of its call."""
    return set(re.findall(r"(\w+)=", case.call))


def pairs_of(trial: Trial) -> int:
    """The number of pairs of a query and a key in its inputs."""
    arrays = trial.inputs.arrays
    return int(arrays["query"][..., 0].size * arrays["key"].shape[-2])


def folded(causes: Iterable[Cause]) -> list[Cause]:
    """Faults without a reason of their own go with one that may be theirs, too; the worst first.

    Every call is made of the plainest one; and where an option is read wrongly, its gradients are wrong as well. Those
    without a reason are first joined among themselves.
    """
    every = list(causes)
    vague = [cause for cause in every if re.match(VAGUE, cause.name)]
    return _folded([*(cause for cause in every if cause not in vague), *_folded(vague)])


def _folded(causes: Iterable[Cause]) -> list[Cause]:
    found, left = [], sorted(causes, key=lambda cause: (*rank(cause)[:-1], _fewest_options(cause), rank(cause)[-1]))
    while left:
        first, *left = left
        follow = [cause for cause in left if not (cause.tried or cause.where) and _may_follow(cause, first)]
        left = [cause for cause in left if cause not in follow]
        found.append(first._replace(cases=first.cases + tuple(name for cause in follow for name in cause.cases)))
    return sorted(found, key=rank)


def _is_of_call(gradient: str, result: str) -> bool:
    mine, other = named(gradient), named(result)
    if not mine or not other or mine.level == FORWARD or options_of(mine) != options_of(other):
        return False
    if other.judge == "refused":  # it has no right result
        return False
    return _length(gradient) >= _length(result) / 2


def _length(name: str) -> int:
    sizes = SIZES | getattr(named(name), "sizes", {})
    return max(sizes["T"], sizes["S"])


def _is_plainest(cause: Cause) -> bool:
    """Tell whether it is seen in the plainest call of all."""
    return PLAINEST.get(cause.harm) in cause.cases


def _may_follow(cause: Cause, first: Cause) -> bool:
    if cause.name == WITHOUT:
        return first.harm is Harm.NUMBERS and all(_shares_an_option(name, first.cases) for name in cause.cases)
    if first.harm not in WRONG or cause.harm not in WRONG or first.name in COMPLETE:
        return False
    if first.harm is Harm.NUMBERS and all(any(_is_of_call(name, one) for one in first.cases) for name in cause.cases):
        return True  # the gradients of a call whose result is wrong
    vague = bool(re.match(VAGUE, first.name))
    if first.tried and cause.harm is first.harm and _asked(first) & _asked(cause):
        return False  # the reason was tried on it, and does not give that
    if not (first.tried or vague or _is_plainest(first)):
        return False
    plain = [_length(name) for name in first.cases if not _all_options_of(name)]
    if first.harm is Harm.NUMBERS and plain and min(map(_length, cause.cases)) >= min(plain) / 2:
        return True  # a call of that length is made of the plain one
    alone = [options for options in map(_subject, first.cases) if len(options) == 1]
    explained = set().union(*alone)
    if vague and not _is_plainest(first):
        longer = min(map(_length, cause.cases)) >= min(map(_length, first.cases)) / 2
        mine = [_all_options_of(name) for name in first.cases]
        return longer and all(any(x <= _all_options_of(name) for x in mine) for name in cause.cases)
    return _is_plainest(first) or all(explained & _all_options_of(name) for name in cause.cases)


def _shares_an_option(name: str, others: Iterable[str]) -> bool:
    """Tell whether a case has an option of one of some others, or one of these has none."""
    return any(not _all_options_of(x) or _all_options_of(x) & _all_options_of(name) for x in others)


def _asked(cause: Cause) -> set[Any]:
    """The demands of its cases: the judge, the direction, the dtype and the options."""
    cases = filter(None, map(named, cause.cases))
    return {(x.judge, x.direction, x.dtype, frozenset(options_of(x))) for x in cases if x.judge == "value"}


def _fewest_options(cause: Cause) -> int:
    """The fewest options of a case, where it has no reason: the plainest comes first."""
    return min(len(_all_options_of(name)) for name in cause.cases) if re.match(VAGUE, cause.name) else 0


def _subject(name: str) -> set[str]:
    """The subject of a case: its lse where it has nothing else."""
    options = _all_options_of(name)
    return options - {"return_lse"} or options


def _all_options_of(name: str) -> set[str]:
    case = named(name)
    return options_of(case) - {"scale"} if case else set()


def rank(cause: Cause) -> tuple[int, bool, bool, int, int]:
    """The rank by harm; of one harm by the plainest call, then explained ones first."""
    vague = 2 if cause.name == WITHOUT else bool(re.match(VAGUE, cause.name))
    return ORDER.index(cause.harm), not _is_plainest(cause), not cause.tried, vague, -len(cause.cases)


def joined(causes: Iterable[Cause]) -> list[Cause]:
    """Causes of the same name are one; without a reason, whatever the numbers in it, the options and the direction."""
    found: dict[str, Cause] = {}
    for cause in sorted(causes, key=lambda cause: (cause.name.startswith(BACKWARD), len(cause.name))):
        key = cause.name if cause.tried else re.sub(r"\d+", "#", cause.name.partition(", with ")[0])
        key = key if key.removeprefix(BACKWARD) not in found else key.removeprefix(BACKWARD)
        if key in found:
            one = found[key]
            harm = min(one.harm, cause.harm, key=ORDER.index)
            cause = one._replace(harm=harm, cases=one.cases + cause.cases, tried=one.tried + cause.tried)
        found[key] = cause
    return list(found.values())


def with_followers(cause: Cause, follow: Mapping[str, Sequence[str]]) -> Cause:
    """The cause with the cases that go with its own."""
    more = [name for one in cause.cases for name in follow.get(one, ())]
    return cause._replace(cases=cause.cases + tuple(more))
