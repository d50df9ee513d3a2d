"""Causes of what no reason explains: what is seen in the numbers, errors of the same words, and what looks the same."""

import collections
import re
from collections.abc import Sequence

import numpy as np

from ..adapters.implementation import OPTIONS, PROTOCOL_TRAITS
from ..cases import CASES
from ..cases.case import ARRAYS, FORWARD, Case, Leaves
from ..cases.invariance import broken
from ..judge.judges import without
from ..judge.judging import find
from ..judge.trial import Trial
from ..judge.verdicts import ZEROS, Verdict
from ..report.outcomes import Cause, Harm, Outcome
from . import by_numbers, by_probing, by_running, qualifiers
from .causes import VAGUE, WRONG, Faults, harm_of
from .explaining import varied
from .hypothesis import SLOW_PAIRS, is_near, pairs_of

LACKS_REMEDY = 'lacks = ["{}"] in a contract file'  # a remedy
OTHER_BITS = "the same call gives other bits the next time"
SHORT = 64  # queries and keys
IGNORED_NAME = "as if (.*) were not given"
NO_GRADIENT = r"(grad|tangent|second) \w+ is all zeros"
LEAK = "0 · NaN: what is masked is multiplied by its weight 0"
WEIGHED = "what is masked has a weight that is not 0"
COUNTS = "what is masked counts where it is NaN or huge"
OF_STATE = by_running.RACE, by_running.ANEW  # causes; the first of them is true of both
LEAKS = LEAK, WEIGHED, COUNTS, "what is masked changes the result"  # the last where there is no time to ask more


def see(faults: Faults) -> None:
    """Take what has no reason: first what is seen in the numbers, then what raises, or looks the same."""
    _ignored(faults)
    _leaks(faults)
    by_numbers.see(faults)
    _crashes(faults)
    _alike(faults)


def _ignored(faults: Faults) -> None:
    """Options that are ignored, and gradients of zeros, as the judge found them."""
    groups = collections.defaultdict(set)
    for outcome in faults.left:
        ignored = re.search(f"{IGNORED_NAME}|{NO_GRADIENT}", outcome.finding.message)
        if outcome.verdict is Verdict.SILENT and ignored:
            groups[ignored[1] or "", f"{ignored[1]} is ignored" if ignored[1] else ignored[0]].add(outcome.case.name)
    for (option, name), names in groups.items():
        mine = [faults.trials[name] for name in names if name in faults.trials]
        if option == "key_lengths" and mine and (rounded := by_probing.lengths_seen(min(mine, key=pairs_of))):
            faults.take(rounded, names)
        elif not option or not _speaks_against(option, names, faults.left):
            if option and mine and by_running.is_right_anew(min(mine, key=pairs_of)):
                faults.take(by_running.ANEW, names, tried=1)
                continue
            cases = [o.case for o in faults.left if o.case.name in names]
            limits = _limits(option, cases, faults) if option else _of_all(name, faults)
            remedy = "" if limits else _lacking(names, faults)
            faults.take(f"{name}{limits}", names, remedy, None if option else 0)


def _of_all(name: str, faults: Faults) -> str:
    """The number of calls in which a gradient is zeros, of all that have it, if some that has it is right."""
    leaf = name.removesuffix(" is all zeros")
    array = leaf.split()[1]
    zeros = [o.case for o in faults.outcomes if o.verdict is Verdict.SILENT and name in o.finding.message]
    ways = {case.direction for case in zeros}
    right = [o.case for o in faults.outcomes if o.verdict is Verdict.OK and o.case.judge == "value"]
    right = [x for x in right if x.direction in ways and array in (*ARRAYS[:3], *x.options)]
    trial = next((faults.trials[x.name] for x in zeros if x.name in faults.trials), None)
    if trial is not None:  # of some the right one is zeros
        others = (Trial(trial.implementation, x, trial.how) for x in right if x.pairs <= SLOW_PAIRS)
        right = [x.case for x in others if not np.allclose(x.expected().get(leaf, 0), 0, atol=1e-6)]
    return f" in {len(zeros)} of {len(zeros) + len(right)} calls" * bool(right)


def _leaks(faults: Faults) -> None:
    """Results that something masked changes (L6); of a function with a race more calls have to agree."""
    groups = collections.defaultdict(set)
    times = 8 if any(by_running.RACE in cause.name for cause in faults.causes) else 2
    for case in (o.case for o in faults.left if o.verdict is Verdict.LEAK and o.case.law == "L6"):
        groups[_leak(case, faults, times)].add(case.name)
    for name, names in groups.items():
        faults.take(name, names, tried=0)


def _leak(case: Case, faults: Faults, times: int) -> str:
    """Tell how something masked changes a result, by calls in which it is as it was, so often, and a finite number."""

    def leaks(changed: str) -> bool:
        return find(faults.implementation, case._replace(changed=changed), faults.how)[0].verdict is Verdict.LEAK

    if by_running.is_late():
        return LEAKS[-1]
    array, place = case.changed.split()[0], case.changed.rpartition(" = ")[0]
    if any(leaks(f"{array} = {array}.copy()") for _ in range(times)):
        return OTHER_BITS
    huge = 6e4 if (case.dtype or faults.how.dtype) == "float16" else 1e30
    if leaks(f"{place} = {huge if array == 'value' else 1.5}"):
        return WEIGHED
    return LEAK if array == "value" else COUNTS


def _speaks_against(option: str, names: set[str], left: Sequence[Outcome]) -> bool:
    """Tell whether a plainer call with the option is wrong, and not as if it were not given."""
    mine = [o.case for o in left if o.case.name in names]
    wrong = [o.case for o in left if o.verdict is Verdict.WRONG and o.case.judge == "value"]
    others = [(x.direction, x.options) for x in wrong if x.name not in names and option in x.options]
    return any(way == case.direction and asked <= case.options for way, asked in others for case in mine)


def _limits(option: str, cases: Sequence[Case], faults: Faults) -> str:
    """Limits of an option that is ignored, if others are right with it: another option, some sizes, or some calls."""
    ways = {case.direction for case in cases}
    right = [o.case for o in faults.outcomes if o.verdict is Verdict.OK and o.case.direction in ways]
    right = [case for case in right if option in case.options]
    mine = [faults.trials[case.name] for case in cases if case.name in faults.trials]
    right = [case for case in right if not mine or _shows(option, Trial(mine[0].implementation, case, mine[0].how))]
    wrong = min((o for o in faults.left if o.case in cases), key=lambda o: o.case.pairs)
    trial = faults.trials.get(wrong.case.name)
    beside = _beside(option, cases, right)
    beside = [x for x in beside if trial and qualifiers.passes_without(x, wrong, faults)]
    if beside and all(_shows(option, x, x.got) for x in varied(mine)):
        return f" if {' and '.join(beside)} {'are' if len(beside) > 1 else 'is'} given"
    if not right:
        return ""
    where = ""
    if mine and len(right) >= len(cases):
        where = by_running.where_wrong(by_running.smaller(min(mine, key=pairs_of)))
    return f" where {where}" if where else f" in {len(cases)} of {len(cases) + len(right)} calls with it"


def _shows(option: str, trial: Trial, got: Leaves | None = None) -> bool:
    """Tell whether a right result, or what was got, differs from the right one by the lack of an option.

    A length may hide nothing beside a cache's end.
    """
    if trial.case.judge != "value":  # of no right result
        return False
    less = dict(without(trial.inputs)).get(option)
    if less is None or trial.case.pairs > SLOW_PAIRS:
        return True
    wanted, other = trial.expected(), trial.expected(less)
    if got is not None:
        return is_near(trial, got, other)
    return any(not np.allclose(x, other.get(leaf, np.nan), equal_nan=True) for leaf, x in wanted.items())


def _beside(option: str, cases: Sequence[Case], right: Sequence[Case]) -> list[str]:
    """The options that all of the cases have besides the one, and none which is right has; some have to be right."""
    shared = set.intersection(*(case.options for case in cases)) if right else set()
    alone = {o for case in CASES if option in case.options for o in OPTIONS if o not in case.options}
    return sorted((shared & alone).difference(*(case.options for case in right)))


def _lacking(names: set[str], faults: Faults) -> str:
    """The narrowest trait of all of some cases, as what is not offered: no other fault and few others have it."""
    shared = _shared([o.case for o in faults.left if o.case.name in names])
    others = [o for o in faults.outcomes if o.case.name not in names]
    ends = [(o.verdict, _traits(o.case)) for o in others]
    by_trait = {trait: [verdict for verdict, has in ends if trait in has] for trait in shared}
    right = {trait: x.count(Verdict.OK) for trait, x in by_trait.items() if not any(verdict.fails for verdict in x)}
    lacks = [trait for trait, number in right.items() if number <= len(names)]
    lack = min(lacks, key=lambda trait: (right[trait], trait in OPTIONS, trait), default="")
    return LACKS_REMEDY.format(lack) if lack else ""


def _crashes(faults: Faults) -> None:
    """Crashes of one error: what all of their calls have in common, and no right one has, is what is not offered."""
    groups = collections.defaultdict(list)
    for outcome in faults.left:
        if harm_of(outcome) is Harm.CRASH:
            groups[re.sub(r"\d+", "#", outcome.finding.message)].append(outcome)
    passed = [o.case for o in faults.outcomes if o.verdict is Verdict.OK] if groups else []
    right = set[str]().union(*map(_traits, passed))
    for outcomes in groups.values():
        lack = min(_shared([o.case for o in outcomes]) - right, key=lambda trait: (trait in OPTIONS, trait), default="")
        lack = lack if lack and _raises_when_short(outcomes, faults) else ""
        plainest = min(outcomes, key=lambda outcome: outcome.case.pairs)
        if lack and qualifiers.passes_without(lack, plainest, faults) is False:
            lack = ""
        remedy, asked = (LACKS_REMEDY.format(lack), f" with {lack}") if lack else ("", "")
        finding, ends = outcomes[0].finding, "raises"
        if finding.verdict is not Verdict.OBSCURE:  # no adapter declares a clear error lacking
            ends, remedy = "fails:", ""
        remedy = "; or ".join(filter(None, (remedy, faults.implementation.guess)))
        words = f"a legal call{asked} {ends} {finding.message}"
        faults.take(words, {o.case.name for o in outcomes}, remedy, tried=0)


def _shared(cases: Sequence[Case]) -> set[str]:
    """The traits of all of some cases that a function may lack."""
    traits = set.intersection(*map(_traits, cases)) & set(PROTOCOL_TRAITS)
    return traits - {"return_lse", "dropout_rng", "float32"}


def _raises_when_short(outcomes: Sequence[Outcome], faults: Faults) -> bool:
    """Tell whether the least of some calls also raises at few queries and keys, so that their number is not why."""
    outcome = min(outcomes, key=lambda outcome: outcome.case.pairs)
    if (short := _short(outcome.case)) == outcome.case:
        return True
    return not by_running.is_late() and find(faults.implementation, short, faults.how)[0].verdict is outcome.verdict


def _short(case: Case) -> Case:
    return case._replace(sizes={axis: min(size, SHORT) if axis in "TS" else size for axis, size in case.sizes.items()})


def _traits(case: Case) -> set[str]:
    short = _short(case) if case.pairs > SLOW_PAIRS else case
    return set(short.traits(short.inputs(0, "float32")))


def _alike(faults: Faults) -> None:
    """Faults without a cause, grouped by harm, options and finding."""
    groups = collections.defaultdict(set)
    claims = [outcome.case.name for outcome in faults.left if harm_of(outcome) is Harm.CLAIM]
    for outcome in faults.left:
        name = broken(claims) if harm_of(outcome) is Harm.CLAIM else _signature(outcome)
        asked = (*sorted(outcome.case.options), outcome.case.dtype) if re.match(VAGUE, name) else ()
        groups[name, asked].add(outcome.case.name)
    for (name, _), names in groups.items():
        faults.take(name, names, LACKS_REMEDY.format("determinism") if name == OTHER_BITS else "", tried=0)


def _signature(outcome: Outcome) -> str:
    case = outcome.case
    if outcome.verdict is Verdict.LEAK and "determinism" in case.needs:
        one, other = outcome.finding.expected or 0.0, outcome.finding.got or 0.0
        return OTHER_BITS if abs(one - other) <= 1e-4 * max(abs(one), abs(other)) + 1e-6 else by_running.RACE
    ignored = re.search(IGNORED_NAME, outcome.finding.message)  # which others speak against, else it had a cause
    of_all = case.judge == "dropped" and outcome.finding.index is None
    if of_all or (outcome.verdict is Verdict.SILENT and not ignored):
        return outcome.finding.message.partition(":")[0]
    leaf = (outcome.finding.leaf or "the result").replace("grad ", "the gradient of ")
    return f"{leaf if leaf != 'out' else 'the result'} is {Verdict.WRONG if ignored else outcome.verdict}"


def described(cause: Cause, faults: Faults) -> Cause:
    """A cause without a reason: what its weights show, or at which sizes it is wrong."""
    mine = [faults.trials[name] for name in cause.cases if name in faults.trials]
    if cause.tried or cause.harm not in WRONG or not mine or by_running.is_late():
        return cause
    if re.match(NO_GRADIENT, cause.name):
        return cause
    trial = min(mine, key=lambda x: (x.case.level != FORWARD, x.case.dtype is not None, pairs_of(x)))
    if by_running.is_right_anew(trial):
        return cause._replace(name=by_running.ANEW, remedy="", tried=1)
    every = all(by_numbers.gives_zeros(one.got) for one in mine if "out" in one.got)
    trial = by_running.smaller(trial)
    zeros = ZEROS * (every and by_numbers.gives_zeros(trial.got) and bool(np.any(trial.expected().get("out", 0))))
    name = zeros or by_probing.told(trial) or by_numbers.from_a_block_on(trial)
    if (zeros or not name) and (where := by_running.where_wrong(trial)):
        name = f"{zeros or 'wrong only'} where {where}"
    return cause._replace(name=name) if name else cause


def of_state(causes: Sequence[Cause], faults: Faults) -> list[Cause]:
    """Put causes of calls that are right in a new process under the state that another cause says is kept."""
    kept = [cause.name for cause in causes if cause.name in OF_STATE]
    if not kept:
        return list(causes)
    name, found = min(kept, key=OF_STATE.index), list[Cause]()
    for cause in causes:
        mine = [faults.trials[case] for case in cause.cases if case in faults.trials]
        asked = cause.harm in WRONG and mine
        if cause.name in OF_STATE or (asked and by_running.is_right_anew(min(mine, key=pairs_of))):
            cause = cause._replace(name=name, remedy="", tried=cause.tried if cause.name in OF_STATE else 1)
        found.append(cause)
    return found
