"""From faults to causes: known ones first, then hypotheses that explain the most, then what looks the same."""

import collections
import re
from collections.abc import Iterable, Sequence

from ..adapters.implementation import OPTIONS, PROTOCOL_TRAITS, Implementation, Known, explains
from ..cases import CASES
from ..cases.case import Case
from ..cases.how import How
from ..judge.trial import Trial
from ..judge.verdicts import Verdict
from ..report.outcomes import Cause, Harm, Outcome
from . import by_running, of_formulas, of_inputs, of_packs
from .hypothesis import ON_TOP, Hypothesis

HYPOTHESES = (*of_inputs.HYPOTHESES, *of_formulas.HYPOTHESES, *of_packs.HYPOTHESES)
SMALL = 2**14  # pairs of queries and keys: larger cases are tried only where a small one agrees
OTHER_BITS = "the same call gives other bits the next time"
LEAK = "0 · NaN: what is masked is multiplied by its weight 0"
ORDER = list(Harm)
PLAINEST = {Harm.NUMBERS: "plain", Harm.GRADIENTS: "gradient: plain"}
WRONG = tuple(PLAINEST)
BY_NAME = {case.name: case for case in CASES}


def diagnosed(implementation: Implementation, failures: Sequence[Outcome], how: How) -> tuple[Cause, ...]:
    """The causes of the faults, the worst first; each fault is in one of them."""
    left = list(failures)
    causes = [_known(entry, left) for entry in implementation.known]
    trials = {o.case.name: _trial(implementation, o, how) for o in left if _has_numbers(o)}
    found = _explained(left, trials)
    while found:
        name, remedy, names = max(found, key=lambda entry: len(entry[2]))
        if not names:
            break
        causes.append(_cause(name, _take(left, names), len(names), remedy))
        found = [(n, r, names_ - names) for n, r, names_ in found]
    for name, remedy, names in _explained(left, trials, _on_top(causes)):
        if taken := _take(left, names):
            causes.append(_cause(name, taken, len(taken), remedy))
    causes += _seen(left, trials)
    causes += _crashes(left)
    causes += _alike(left)
    merged = _joined([cause for cause in causes if cause is not None])
    return tuple(_folded(merged))


def harm_of(outcome: Outcome) -> Harm:
    """What a fault does."""
    case = outcome.case
    if outcome.verdict in (Verdict.CRASH, Verdict.TIMEOUT):
        return Harm.CRASH
    if case.judge == "refused":
        return Harm.ACCEPTED
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


def _on_top(causes: Sequence[Cause | None]) -> list[Hypothesis]:
    """What else may be wrong, on top of the reason that explains the most."""
    first = max((cause for cause in causes if cause), key=lambda cause: cause.tried, default=None)
    found = next((h for h in HYPOTHESES if first and h.change and h.name == first.name), None)
    return [h.after(found) for h in HYPOTHESES if h is not found] if found else []


def _explained(
    left: Iterable[Outcome], trials: dict[str, Trial], hypotheses: Sequence[Hypothesis] = HYPOTHESES
) -> list[tuple[str, str, set[str]]]:
    """For each hypothesis, the cases in which it gives what was got."""
    mine = {o.case.name: trials[o.case.name] for o in left if o.case.name in trials}
    small = {name: trial for name, trial in mine.items() if _pairs(trial) <= SMALL} or mine
    found = []
    for hypothesis in hypotheses:
        said = {name: hypothesis.says(trial) for name, trial in small.items()}
        if any(said.values()):
            said |= {name: hypothesis.says(mine[name]) for name in mine.keys() - small.keys()}
            refuting = [BY_NAME[name] for name, given in said.items() if given is False]
            explained = {name for name, given in said.items() if given}
            names = {name for name in explained if not any(_is_plainer(case, BY_NAME[name]) for case in refuting)}
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
        ({"vmap", "per example gradient"}, "under vmap"),
        ({"gradient", "gradient of a loss", "per example gradient"}, "in the gradient"),
        ({"jvp"}, "in forward mode"),
    ):
        if tried and heads <= directions and not re.search(r"gradient|grad |^dS", name):
            name = f"{name}, {words} only"
            break
    return Cause(name, harm, _names(taken), tried, remedy)


def _names(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    return tuple(outcome.case.name for outcome in outcomes)


def _take(left: list[Outcome], names: set[str]) -> list[Outcome]:
    taken = [o for o in left if o.case.name in names]
    left[:] = [o for o in left if o.case.name not in names]
    return taken


def _seen(left: list[Outcome], trials: dict[str, Trial]) -> list[Cause]:
    """What is seen in the numbers, the same words together."""
    groups: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for outcome in left:
        ignored = re.search(
            r"as if (.*) were not given|(grad|tangent|second) \w+ is all zeros", outcome.finding.message
        )
        if outcome.verdict is Verdict.SILENT and ignored:
            name = f"{ignored[1]} is ignored" if ignored[1] else ignored[0]
            groups[name, f'--lacks "{ignored[1]}"' if ignored[1] in PROTOCOL_TRAITS else ""].add(outcome.case.name)
        elif outcome.case.name in trials and (told := by_running.told(trials[outcome.case.name]))[0]:
            groups[told].add(outcome.case.name)
    coarse = sorted((told for told in groups if told[1].startswith("--precision")), key=lambda told: told[1])
    for finer in coarse[1:]:  # some numbers of the coarser one are as good by chance
        groups[coarse[0]] |= groups.pop(finer)
    causes = []
    for (name, remedy), names in groups.items():
        taken = _take(left, names)
        if beside := _beside(name.removesuffix(" is ignored"), [o.case for o in taken]):
            name, remedy = f"{name} where {beside} is given", ""
        tried = 0 if name.endswith(by_running.SEEN) else len(taken)
        causes.append(_cause(name, taken, tried, remedy))
    return causes


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
        shared = set.intersection(*(set(o.case.traits(o.case.inputs(0, "float32"))) for o in outcomes))
        shared &= set(PROTOCOL_TRAITS) - {"return_lse", "dropout_rng", "float32"}
        lack = min(shared, key=lambda trait: (trait in OPTIONS, trait), default="")  # the narrowest
        remedy, asked = (f'--lacks "{lack}"', f" with {lack}") if lack else ("", "")
        _take(left, {o.case.name for o in outcomes})
        finding, ends = outcomes[0].finding, "raises"
        if finding.verdict is not Verdict.OBSCURE:  # which nobody declares to lack
            ends, remedy = f"ends in a {finding.verdict}:", ""
        causes.append(_cause(f"a legal call{asked} {ends} {finding.message}", outcomes, 0, remedy))
    return causes


def _alike(left: list[Outcome]) -> list[Cause]:
    """What nobody explains: by harm, options and what was found."""
    groups = collections.defaultdict(list)
    for outcome in left:
        groups[_signature(outcome)].append(outcome)
    remedies = {OTHER_BITS: '--lacks "determinism"'}
    return [_cause(name, outcomes, 0, remedies.get(name, "")) for name, outcomes in groups.items()]


def _signature(outcome: Outcome) -> str:
    case, harm = outcome.case, harm_of(outcome)
    if outcome.verdict is Verdict.LEAK and "determinism" in case.needs:
        return OTHER_BITS
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


def _is_plainest(cause: Cause) -> bool:
    """Whether it is seen in the plainest call of all."""
    return PLAINEST.get(cause.harm) in cause.cases


def _may_follow(cause: Cause, first: Cause) -> bool:
    if first.harm not in WRONG or cause.harm not in WRONG or not (first.tried or _is_plainest(first)):
        return False
    alone = [options for options in map(_options_of, first.cases) if len(options) == 1]
    explained = set().union(*alone)
    return _is_plainest(first) or all(explained & _all_options_of(name) for name in cause.cases)


def _options_of(name: str) -> set[str]:
    """What a case is about: its lse where it has nothing else."""
    options = _all_options_of(name)
    return options - {"return_lse"} or options


def _all_options_of(name: str) -> set[str]:
    return _options(BY_NAME[name]) - {"scale"} if name in BY_NAME else set()


def _rank(cause: Cause) -> tuple[int, bool, bool, bool, int]:
    """By harm; of the same harm what has the plainest call, then what is explained, and what comes on top of it."""
    unexplained, on_top = not cause.tried, cause.name.startswith(ON_TOP)
    return ORDER.index(cause.harm), not _is_plainest(cause), unexplained, on_top, -len(cause.cases)


def _joined(causes: Iterable[Cause]) -> list[Cause]:
    """Causes of the same name are one."""
    found: dict[str, Cause] = {}
    for cause in causes:
        if cause.name in found:
            one = found[cause.name]
            harm = min(one.harm, cause.harm, key=ORDER.index)
            cause = one._replace(harm=harm, cases=one.cases + cause.cases, tried=one.tried + cause.tried)
        found[cause.name] = cause
    return list(found.values())
