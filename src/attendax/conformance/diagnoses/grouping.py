"""From faults to causes: known ones first, then hypotheses that explain the most, then what looks the same."""

import collections
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..adapters.implementation import OPTIONS, PROTOCOL_TRAITS, Implementation, Known, explains
from ..cases import CASES, named
from ..cases.case import FORWARD, SIZES, Case
from ..cases.how import How
from ..judge.judging import find
from ..judge.trial import Trial
from ..judge.verdicts import CHANGES, Verdict
from ..report.outcomes import Cause, Harm, Outcome
from . import by_numbers, by_probing, by_running, of_formulas, of_inputs, of_packs
from .hypothesis import GRADIENT, ON_TOP, Hypothesis

HYPOTHESES = (*of_inputs.HYPOTHESES, *of_formulas.HYPOTHESES, *of_packs.HYPOTHESES)
SMALL = 2**14  # pairs of queries and keys: larger cases are made smaller before anything is thought of
OF_GRADIENTS = r"gradient|grad |^dS|^delta|cotangent|derivative|race|not contiguous"  # in names that need no such word
OTHER_BITS = "the same call gives other bits the next time"
VAGUE = r"(the result|the gradient of \w+|lse) is "
BACKWARD = "in the backward, "
LEAK = "0 · NaN: what is masked is multiplied by its weight 0"
ORDER = list(Harm)
PLAINEST = {Harm.NUMBERS: "plain", Harm.GRADIENTS: "gradient: plain"}
WRONG = tuple(PLAINEST)
LARGE = 2**21  # pairs, from which what is right takes a second


def diagnosed(implementation: Implementation, outcomes: Sequence[Outcome], how: How) -> tuple[Cause, ...]:
    """The causes of the faults among all outcomes, the worst first; each fault is in one of them."""
    with by_running.patience(how.timeout):
        return _diagnosed(implementation, outcomes, how)


def _diagnosed(implementation: Implementation, outcomes: Sequence[Outcome], how: How) -> tuple[Cause, ...]:
    left, follow = _representatives([o for o in outcomes if o.verdict.fails and not o.known])
    causes = [_known(entry, left) for entry in implementation.known]
    trials = {o.case.name: _trial(implementation, o, how) for o in left if _has_numbers(o)}
    causes += _of_calls(left, trials, implementation, how)
    stand, beside = _small(left, trials)
    found = _explained(left, stand, _Passing(implementation, outcomes, how))
    while found:
        name, remedy, names = max(found, key=lambda entry: len(entry[2]))
        if not names:
            break
        taken = _take(left, names.union(*(beside[one] for one in names if one in beside)))
        causes.append(_cause(name, taken, len(names), remedy))
        found = [(n, r, names_ - names) for n, r, names_ in found]
    for name, remedy, names in _explained(left, stand, None, _on_top(causes)):
        if taken := _take(left, names):
            causes.append(_cause(name, taken, len(taken), remedy))
    causes += _seen(left, trials, outcomes)
    causes += _crashes(left)
    causes += _alike(left)
    folded = _folded(_joined(cause for cause in causes if cause is not None))
    merged = _joined(_described(cause, trials) for cause in folded)
    return tuple(sorted((_with(cause, follow) for cause in merged), key=_rank))


def _representatives(failures: Sequence[Outcome]) -> tuple[list[Outcome], dict[str, list[str]]]:
    """Of large cases of the same question as another only that one; and those that go with it."""
    found, follow = [], collections.defaultdict(list)
    asked: dict[Any, str] = {}
    for outcome in sorted(failures, key=lambda o: _size(o.case) > LARGE and _size(o.case)):
        first = asked.setdefault((_question(outcome.case), outcome.verdict), outcome.case.name)
        if _size(outcome.case) <= LARGE or first == outcome.case.name or not _has_numbers(outcome):
            found.append(outcome)
        else:
            follow[first].append(outcome.case.name)
    return found, follow


def _with(cause: Cause, follow: Mapping[str, Sequence[str]]) -> Cause:
    more = [name for one in cause.cases for name in follow.get(one, ())]
    return cause._replace(cases=cause.cases + tuple(more))


def _size(case: Case) -> int:
    """How many pairs of a query and a key it has."""
    sizes = SIZES | case.sizes
    return math.prod(sizes[axis] for axis in "BNTS")


def harm_of(outcome: Outcome) -> Harm:
    """What a fault does."""
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


def _known(entry: Known, left: list[Outcome]) -> Cause | None:
    names = {o.case.name for o in left if explains(entry, o.case.name, o.finding.said)}
    if not names:
        return None
    taken = _take(left, names)
    worst = min((harm_of(o) for o in taken), key=ORDER.index)
    harm = worst if worst.kind == entry.kind else Harm(entry.kind)
    return Cause(entry.name, harm, _names(taken), 0, "", entry.where, entry.report, entry.script)


def _has_numbers(outcome: Outcome) -> bool:
    return bool(outcome.got) and outcome.case.judge in ("value", "merged") and outcome.verdict is not Verdict.LEAK


def _trial(implementation: Implementation, outcome: Outcome, how: How) -> Trial:
    trial = Trial(implementation, outcome.case, how if outcome.seed is None else how._replace(seed=outcome.seed))
    trial.got = dict(outcome.got)
    return trial


def _pairs(trial: Trial) -> int:
    arrays = trial.inputs.arrays
    return int(arrays["query"][..., 0].size * arrays["key"].shape[-2])


def _of_calls(left: list[Outcome], trials: dict[str, Trial], implementation: Implementation, how: How) -> list[Cause]:
    """What is seen by calling again, before anything else is thought of: a race fits many a reason for once."""
    causes = []
    for outcome in [o for o in left if o.case.judge == "unwritten" and o.finding.leaf]:
        name = f"writes to {outcome.finding.leaf}"
        causes.append(_cause(name, _take(left, {outcome.case.name}), 1))
    if taken := _take(left, {o.case.name for o in left if o.finding.message.startswith(CHANGES)}):
        causes.append(_cause(CHANGES, taken, len(taken)))
    for name, look, remedy in (
        (by_running.UNWRITTEN, by_running.is_unwritten, ""),
        (by_running.RACE, by_running.is_unsteady, ""),
        (by_running.STRIDES, by_running.is_cured_by_copies, ""),
        (by_running.COMPILED, by_running.is_wrong_when_compiled, by_running.ONCE),
    ):
        names = {o.case.name for o in left if o.case.name in trials and look(trials[o.case.name])}
        names |= {o.case.name for o in left if name == by_running.RACE and _is_judged_otherwise(o, implementation, how)}
        if taken := _take(left, names):
            causes.append(_cause(name, taken, len(taken), remedy))
    return causes


def _is_judged_otherwise(outcome: Outcome, implementation: Implementation, how: How) -> bool:
    """Whether the same numbers were red and green, or what more than one call is asked for is found otherwise."""
    if outcome.case.judge not in ("merged", "dropped"):
        return outcome.is_unsteady and outcome.case.judge == "value"
    again = find(implementation, outcome.case, how)[0]
    return not again.verdict.fails or again.message != outcome.finding.message


def _small(left: Sequence[Outcome], trials: Mapping[str, Trial]) -> tuple[dict[str, Trial], dict[str, set[str]]]:
    """Trials to think about, at sizes as small as show the fault; and which cases of the same options go with them."""
    groups = collections.defaultdict(list)
    for outcome in left:
        if outcome.case.name in trials:
            groups[_question(outcome.case)].append(outcome.case.name)
    stand: dict[str, Trial] = {}
    follow = {}
    for names in groups.values():
        first, *others = sorted(names, key=lambda name: _pairs(trials[name]))
        small = {name: trials[name] for name in (first, *others) if _pairs(trials[name]) <= SMALL}
        stand |= small or {first: by_running.smaller(trials[first])}
        follow[first] = set(names) - small.keys()
    return stand, follow


def _question(case: Case) -> tuple[Any, ...]:
    return case.judge, case.direction, case.dtype, frozenset(_options(case))


class _Passing:
    """The cases in which all is right: a reason that holds there would have made them wrong."""

    def __init__(self, implementation: Implementation, outcomes: Sequence[Outcome], how: How) -> None:
        self.implementation, self.how = implementation, how
        self.trials: dict[str, Trial] = {}
        self.cases = [o.case for o in outcomes if o.verdict is Verdict.OK and o.case.judge == "value"]
        self.cases = [case for case in self.cases if math.prod((SIZES | case.sizes).values()) <= 64 * SMALL]

    def refutes(self, hypothesis: Hypothesis, cases: Iterable[Case]) -> list[Case]:
        """Those plainer than one of some cases that the reason would have made wrong."""
        plainer = [one for one in self.cases if any(_is_plainer(one, case) for case in cases)]
        return [case for case in plainer if hypothesis.says(self._trial(case)) is False]

    def _trial(self, case: Case) -> Trial:
        if case.name not in self.trials:
            trial = Trial(self.implementation, case, self.how)
            trial.got = trial.expected()
            self.trials[case.name] = trial
        return self.trials[case.name]


def _on_top(causes: Sequence[Cause | None]) -> list[Hypothesis]:
    """What else may be wrong, on top of the reason that explains the most."""
    first = max((cause for cause in causes if cause), key=lambda cause: cause.tried, default=None)
    found = next((h for h in HYPOTHESES if first and h.change and h.name == first.name), None)
    return [h.after(found) for h in HYPOTHESES if h is not found] if found else []


def _explained(
    left: Iterable[Outcome],
    trials: Mapping[str, Trial],
    passing: _Passing | None,
    hypotheses: Sequence[Hypothesis] = HYPOTHESES,
) -> list[tuple[str, str, set[str]]]:
    """For each hypothesis, the cases in which it gives what was got: first it is tried on one of each question."""
    mine = {o.case.name: trials[o.case.name] for o in left if o.case.name in trials}
    first = {_question(trial.case): name for name, trial in reversed(mine.items())}.values()
    found = []
    for hypothesis in hypotheses:
        said = {name: hypothesis.says(mine[name]) for name in first}
        if any(said.values()):
            said |= {name: hypothesis.says(mine[name]) for name in mine.keys() - said.keys()}
            names = {name for name, given in said.items() if given}
            refuting = [mine[name].case for name, given in said.items() if given is False]
            refuting += passing.refutes(hypothesis, [mine[name].case for name in names]) if passing else []
            names = {n for n in names if not any(_is_plainer(case, mine[n].case) for case in refuting)}
            found.append((hypothesis.name, hypothesis.remedy, names))
    return found


def _is_plainer(case: Case, other: Case) -> bool:
    """Whether all that a case has the other has, too: a reason that holds there and not here is a coincidence."""
    return (
        case.judge == "value"  # of one call
        and case.direction == other.direction
        and case.dtype in (None, other.dtype)
        and case.leading in ("B", other.leading)
        and set(case.constants) <= set(other.constants)
        and _options(case) <= _options(other)
        and case.sizes.items() <= other.sizes.items()
    )


def _cause(name: str, taken: Sequence[Outcome], tried: int = 0, remedy: str = "") -> Cause:
    """A cause of some outcomes; where all are of one way of calling, its name says so."""
    harm = min((harm_of(o) for o in taken), key=ORDER.index)
    heads = {o.case.direction.partition(",")[0] for o in taken}
    for directions, words in (
        ({"vmap", "per example gradient"}, "under vmap, {}"),
        ({*GRADIENT, "per example gradient"}, BACKWARD + "{}"),
        ({"jvp"}, "in forward mode, {}"),
    ):
        if tried and heads <= directions and not re.search(OF_GRADIENTS, name):
            name = words.format(name)
            break
    return Cause(name, harm, _names(taken), tried, remedy)


def _names(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    return tuple(outcome.case.name for outcome in outcomes)


def _take(left: list[Outcome], names: set[str]) -> list[Outcome]:
    taken = [o for o in left if o.case.name in names]
    left[:] = [o for o in left if o.case.name not in names]
    return taken


def _seen(left: list[Outcome], trials: Mapping[str, Trial], outcomes: Sequence[Outcome]) -> list[Cause]:
    """What is seen in the numbers, the same words together."""
    causes, groups = [], collections.defaultdict(set)
    for outcome in left:
        ignored = re.search(
            r"as if (.*) were not given|(grad|tangent|second) \w+ is all zeros", outcome.finding.message
        )
        if outcome.verdict is Verdict.SILENT and ignored:
            groups[ignored[1] or "", f"{ignored[1]} is ignored" if ignored[1] else ignored[0]].add(outcome.case.name)
    for (option, name), names in groups.items():
        taken = _take(left, names)
        limits = _limits(option, taken, trials, outcomes)
        remedy = "" if limits else _lacking(taken, outcomes)
        causes.append(_cause(f"{name}{limits}", taken, len(taken) if option else 0, remedy))
    remaining = {o.case.name: trials[o.case.name] for o in left if o.case.name in trials}
    for seen in by_numbers.seen(remaining, outcomes):
        if taken := _take(left, seen.names):
            causes.append(_cause(seen.name, taken, len(taken) * seen.is_reason, seen.remedy))
    return causes


def _limits(option: str, taken: Sequence[Outcome], trials: Mapping[str, Trial], outcomes: Sequence[Outcome]) -> str:
    """Where an option is ignored, if others are right with it: beside another one, or at some sizes."""
    cases = [o.case for o in taken]
    if beside := _beside(option, cases):
        return f" where {beside} is given"
    others = [o for o in outcomes if o.verdict is Verdict.OK and option in _options(o.case)]
    mine = [trials[case.name] for case in cases if case.name in trials]
    if not option or len(others) < len(taken) or not mine:
        return ""
    where = by_running.where_wrong(min(mine, key=_pairs))
    return f" where {where}" if where else ""


def _lacking(taken: Sequence[Outcome], outcomes: Sequence[Outcome]) -> str:
    """The narrowest trait of all of some cases, as what is not offered: no other fault and few others have it."""
    names = {o.case.name for o in taken}
    shared = set.intersection(*(_traits(o.case) for o in taken)) & set(PROTOCOL_TRAITS)
    shared -= {"return_lse", "dropout_rng", "float32"}
    others = [(o, _traits(o.case)) for o in outcomes if o.case.name not in names and o.case.judge != "refused"]
    number = {t: sum(o.verdict is Verdict.OK for o, has in others if t in has) for t in shared}
    hides = {t for o, has in others if o.verdict.fails for t in shared & has}
    lacks = [t for t in shared - hides if number[t] <= len(taken)]
    lack = min(lacks, key=lambda t: (number[t], t in OPTIONS, t), default="")
    return f'--lacks "{lack}"' if lack else ""


def _traits(case: Case) -> set[str]:
    short = {axis: min(size, 64) for axis, size in case.sizes.items() if axis in "TS"} if _size(case) > LARGE else {}
    return set(case.traits(case._replace(sizes=case.sizes | short).inputs(0, "float32")))


def _beside(option: str, cases: Sequence[Case]) -> str:
    """The option that all of the cases have besides the one, where others have the one without it."""
    if len(cases) == 1:
        return ""
    alone = {o for case in CASES if option in _options(case) for o in OPTIONS if o not in _options(case)}
    return min(set.intersection(*map(_options, cases)) & alone, default="")


def _options(case: Case) -> set[str]:
    return set(re.findall(r"(\w+)=", case.call))


def _crashes(left: list[Outcome]) -> list[Cause]:
    """Crashes of one error: what all of their calls have in common is what is not offered."""
    groups = collections.defaultdict(list)
    for outcome in left:
        if harm_of(outcome) is Harm.CRASH:
            groups[re.sub(r"\d+", "#", outcome.finding.message)].append(outcome)
    causes = []
    for outcomes in groups.values():
        shared = set.intersection(*(_traits(o.case) for o in outcomes))
        shared &= set(PROTOCOL_TRAITS) - {"return_lse", "dropout_rng", "float32"}
        lack = min(shared, key=lambda trait: (trait in OPTIONS, trait), default="")  # the narrowest
        remedy, asked = (f'--lacks "{lack}"', f" with {lack}") if lack else ("", "")
        _take(left, {o.case.name for o in outcomes})
        finding, ends = outcomes[0].finding, "raises"
        if finding.verdict is not Verdict.OBSCURE:  # no adapter declares a clear error lacking
            ends, remedy = f"ends in a {finding.verdict}:", ""
        causes.append(_cause(f"a legal call{asked} {ends} {finding.message}", outcomes, 0, remedy))
    return causes


def _alike(left: list[Outcome]) -> list[Cause]:
    """Faults without a cause, grouped by harm, options and finding."""
    groups = collections.defaultdict(list)
    for outcome in left:
        groups[_signature(outcome)].append(outcome)
    remedies = {OTHER_BITS: '--lacks "determinism"'}
    return [_cause(name, outcomes, 0, remedies.get(name, "")) for name, outcomes in groups.items()]


def _described(cause: Cause, trials: Mapping[str, Trial]) -> Cause:
    """A cause without a reason: what its weights show, or at which sizes it is wrong."""
    mine = [trials[name] for name in cause.cases if name in trials]
    if cause.tried or cause.where or cause.harm not in WRONG or not mine:
        return cause
    trial = min(mine, key=_pairs)
    if by_running.is_right_anew(trial):
        return cause._replace(name=by_running.ANEW, remedy="", tried=1)
    trial = by_running.smaller(trial)
    name = by_probing.told(trial) or by_numbers.from_a_block_on(trial)
    if not name and (where := by_running.where_wrong(trial)):
        name = f"wrong only where {where}"
    options = ", ".join(sorted(_options(trial.case)))
    name += f", with {options}" * bool(name and options)
    return cause._replace(name=BACKWARD * (trial.case.level != FORWARD) + name) if name else cause


def _signature(outcome: Outcome) -> str:
    case, harm = outcome.case, harm_of(outcome)
    if harm is Harm.CLAIM:
        return f"{case.claim}: {case.about.replace('stay', 'change')}"
    if outcome.verdict is Verdict.LEAK and "determinism" in case.needs:
        one, other = outcome.finding.expected or 0.0, outcome.finding.got or 0.0
        return OTHER_BITS if abs(one - other) <= 1e-4 * max(abs(one), abs(other)) + 1e-6 else by_running.RACE
    if harm is Harm.ACCEPTED:
        return f"accepts or is unclear about: {case.name.removeprefix('refused: ')}"
    if outcome.verdict is Verdict.LEAK and case.law == "L6":
        return LEAK
    if case.judge == "dropped" and outcome.finding.index is None:
        return outcome.finding.message.partition(":")[0]
    options = re.findall(r"(\w+)=", case.call)
    where = f" with {', '.join(options)}" if options else ""
    leaf = (outcome.finding.leaf or "the result").replace("grad ", "the gradient of ")
    return f"{leaf} is {outcome.verdict}{where}" if leaf != "out" else f"the result is {outcome.verdict}{where}"


def _folded(causes: Iterable[Cause]) -> list[Cause]:
    """Faults without a reason of their own go with one that may be theirs, too; the worst first.

    Every call is made of the plainest one; and where an option is read wrongly, its gradients are wrong as well.
    """
    found, left = [], sorted(causes, key=_rank)
    while left:
        first, *left = left
        follow = [cause for cause in left if not (cause.tried or cause.where) and _may_follow(cause, first)]
        left = [cause for cause in left if cause not in follow]
        found.append(first._replace(cases=first.cases + tuple(name for cause in follow for name in cause.cases)))
    return sorted(found, key=_rank)


def _is_of_call(gradient: str, result: str) -> bool:
    mine, other = named(gradient), named(result)
    if not mine or not other or mine.level == FORWARD or _options(mine) != _options(other):
        return False
    return _length(gradient) >= _length(result) / 2


def _length(name: str) -> int:
    sizes = SIZES | getattr(named(name), "sizes", {})
    return max(sizes["T"], sizes["S"])


def _is_plainest(cause: Cause) -> bool:
    """Whether it is seen in the plainest call of all."""
    return PLAINEST.get(cause.harm) in cause.cases


def _may_follow(cause: Cause, first: Cause) -> bool:
    if first.harm not in WRONG or cause.harm not in WRONG:
        return False
    if first.harm is Harm.NUMBERS and all(any(_is_of_call(name, one) for one in first.cases) for name in cause.cases):
        return True  # the gradients of a call whose result is wrong
    if not (first.tried or _is_plainest(first)):
        return False
    plain = [_length(name) for name in first.cases if not _all_options_of(name)]
    if first.harm is Harm.NUMBERS and plain and min(map(_length, cause.cases)) >= min(plain) / 2:
        return True  # a call of that length is made of the plain one
    alone = [options for options in map(_options_of, first.cases) if len(options) == 1]
    explained = set().union(*alone)
    return _is_plainest(first) or all(explained & _all_options_of(name) for name in cause.cases)


def _options_of(name: str) -> set[str]:
    """What a case is about: its lse where it has nothing else."""
    options = _all_options_of(name)
    return options - {"return_lse"} or options


def _all_options_of(name: str) -> set[str]:
    case = named(name)
    return _options(case) - {"scale"} if case else set()


def _rank(cause: Cause) -> tuple[int, bool, bool, bool, bool, int]:
    """By harm; of the same harm what has the plainest call, then what is explained, and what comes on top of it."""
    unexplained, on_top = not cause.tried, cause.name.startswith(ON_TOP)
    vague = bool(re.match(VAGUE, cause.name))
    return ORDER.index(cause.harm), not _is_plainest(cause), unexplained, vague, on_top, -len(cause.cases)


def _joined(causes: Iterable[Cause]) -> list[Cause]:
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
