"""Outcomes as data: of a case, of all cases of an implementation, or of a law; causes of faults, and the coverage."""

import collections
import enum
import importlib.metadata
import json
import math
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from ..cases import Case, kinds
from ..cases.case import SIZES
from ..judge.verdicts import LEFT_OUT, NO_TIME, Finding, Verdict

SCHEMA_VERSION = 1  # of the JSON, as report.schema.json describes it
LAWS = {
    "L1": "axes, grouped heads",
    "L2": "the formula",
    "L3": "masks",
    "L4": "causal, windows",
    "L5": "queries without keys",
    "L6": "the masked cannot matter",
    "L7": "finite in, finite out",
    "L8": "precision, dtypes",
    "L9": "log-sum-exp",
    "L10": "dropout",
    "L11": "any sizes",
    "L12": "transformations",
    "L13": "gradients",
    "L14": "clear errors",
    "L15": "same inputs, same bits",
    "L17": "any context",
}
MODEL_LAWS = {  # of whole models; from the faults of one, faults of those after it may follow
    "batch": "rows do not know of each other",
    "future": "nothing after a position matters to it",
    "past": "everything before a position matters to it",
    "window": "what a window leaves out does not matter",
    "positions": "order matters, and where a text begins does not",
    "padding": "padding does not matter",
    "packing": "texts in one row do not know of each other",
    "cache": "step by step equals the whole",
    "ways": "every way of running gives the same",
    "heads": "the heads are attention, by its definition",
    "gradient": "gradients come from where results do",
}
LAWS |= MODEL_LAWS


def number_of(count: int, of: str) -> str:
    """A number of things in words: 1 case, 2 cases."""
    return f"{count} {of}{'' if count == 1 else 's'}"


def times(multiple: float) -> str:
    """A multiple of what is allowed, in at most seven characters."""
    return f"{multiple:.2f} x" if multiple < 99.995 else f"{multiple:.0e} x".replace("e+0", "e").replace("e+", "e")


class Harm(enum.StrEnum):
    """Harm of a cause to users, the worst first."""

    NUMBERS = "wrong numbers"
    GRADIENTS = "wrong gradients"
    CRASH = "crash"
    ROBUSTNESS = "robustness gap"
    CLAIM = "claim that does not hold"

    @property
    def kind(self) -> str:
        """The kind under which it is counted: wrong numbers (also of gradients), crash, or robustness gap."""
        return {Harm.GRADIENTS: KINDS[0], Harm.CLAIM: KINDS[2]}.get(self, self.value)


NO_REASON = "there was no time to find the reason: add --budget {:.0f}"  # to a cause, in place of a remedy
KINDS = ("wrong numbers", "crash", "robustness gap")


class Cause(NamedTuple):
    """One reason for some faults."""

    name: str  # what is wrong, in a sentence
    harm: Harm  # to users
    cases: tuple[str, ...]  # the names of the cases that show it, the plainest first
    tried: int = 0  # how many of them were computed as if this were the reason, and agreed
    remedy: str = ""  # a setting that declares it, or what to do
    script: str = ""  # what shows it without attendax
    least: bool = False  # whether its cases may have several causes: they were put together and no reason is known

    @property
    def lacks_time(self) -> bool:
        """True if there was no time to look for its reason."""
        return self.remedy.startswith(NO_REASON.partition(":")[0])

    def facts(self) -> dict[str, str]:
        """The cases, what was tried and what to do."""
        number = len(self.cases)
        texts = {number_of(number, "case"): "; ".join(self.cases[:6]) + "; ..." * (number > 6)}
        texts["tried"] = f"{self.tried} of them computed as if it were so, and equal" if self.tried else ""
        return {name: text for name, text in (texts | {"remedy": self.remedy}).items() if text}


class Outcome(NamedTuple):
    """One case of one implementation."""

    case: Case
    finding: Finding
    seconds: float
    reproduction: str  # empty where nothing is wrong
    known: str = ""  # why it is expected to fail, where a list of known failures says so
    got: Mapping[str, Any] = {}  # what a call gave, of a fault; not written anywhere
    seed: int | None = None  # of its numbers, where they are not those of the run
    runs: tuple[bool, ...] = ()  # whether each run was red; the second, the fourth, ... were of other numbers

    @property
    def verdict(self) -> Verdict:
        """The verdict of its finding."""
        return self.finding.verdict

    @property
    def red(self) -> str:
        """The number of its red runs: "1 of 3"; empty where it ran once."""
        return f"{sum(self.runs)} of {len(self.runs)}" if len(self.runs) > 1 else ""

    @property
    def is_unsteady(self) -> bool:
        """True where equal numbers were red and green: a race, or something is kept between calls."""
        return len(set(self.runs[::2])) > 1

    @property
    def multiple(self) -> float | None:
        """The measured error over the allowed one; None where nothing was measured."""
        error, allowed = self.finding.error, self.finding.allowed
        if error is None or allowed is None or math.isnan(error):
            return None
        return error / allowed if allowed else math.inf if error else 0.0

    def facts(self) -> dict[str, str]:
        """The worst place, the number expected there and the one that came; the error beside the allowed one."""
        found, texts = self.finding, {}
        if found.leaf and found.index is not None:
            texts["where"] = f"{found.leaf}{list(found.index)}"
        if found.expected is not None and found.got is not None:
            digits = 7 if abs(found.expected - found.got) > 1e-6 * abs(found.expected) else 17
            texts |= {"expected": f"{found.expected:.{digits}g}", "got": f"{found.got:.{digits}g}"}
        unit = " standard deviations" if self.case.judge == "dropped" and (found.allowed or 0) > 1 else ""
        for name, x in (("error", found.error), ("allowed", found.allowed), ("dense formula", found.dense_error)):
            texts |= {name: f"{x:.2g}{unit}"} if x is not None else {}
        return texts | ({"of allowed": times(self.multiple)} if self.multiple is not None else {})

    def told(self) -> str:
        """The verdict, the message and the facts, on one line."""
        facts = self.facts()
        place = "; ".join(f"{k} {facts[k]}" for k in ("where", "expected", "got") if k in facts)
        error = f"error {facts['error']}, allowed {facts['allowed']}" if {"error", "allowed"} <= facts.keys() else ""
        parts = filter(None, (self.finding.message, place.replace("where ", "at "), error))
        return f"{self.verdict}: {'; '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, in the types of JSON."""
        finding = {k: x for k, x in self.finding._asdict().items() if k != "off" and x not in (None, "", False)}
        case = {"name": self.case.name, "law": self.case.law, "about": self.case.about}
        case |= {"known": self.known} if self.known else {}
        case |= {"red": self.red} if self.red and self.verdict.fails else {}
        own = {"seed": self.seed} if self.seed is not None else {}
        return case | own | finding | {"seconds": round(self.seconds, 3), "reproduction": self.reproduction}


# At least this share of the sizes that were asked is judged; of so few sizes, any.
JUDGED_SHARE, FEW_SIZES = 1 / 3, 5
LEFT = (Verdict.NOT_OFFERED, Verdict.NOT_JUDGED)
NOT_JUDGED_WORDS = {
    NO_TIME: "No time was left", LEFT_OUT: "There was no time", "no results": "No results", "no folder": "No folder",
}  # a reason, in a sentence  # fmt: skip
LONGER = "T or S > "  # and a number: a trait of texts that are longer than any that the function took
MOST_KINDS, MOST_REASONS = 6, 4  # that a line names


class Coverage(NamedTuple):
    """The coverage of a run."""

    judged: dict[str, tuple[int, int]]  # for each kind, how many cases were judged, and how many of them are right
    left: dict[tuple[str, str], int]  # for each reason and kind, how many cases were not judged
    gaps: tuple[str, ...]  # sentences, each a reason why nothing is shown, whatever was judged

    def __str__(self) -> str:
        """A sentence of what was judged, one of what was not, and the gaps."""
        numbers = [(kind, *self.judged[kind]) for kind in kinds.BY_DIRECTION if kind in self.judged]
        fails = any(right < n for _, n, right in numbers)
        words = [f"{right} of " * fails + _of_kind(n, kind) for kind, n, right in numbers]
        first = " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
        are = "is" if [right if fails else n for _, n, right in numbers] == [1] else "are"
        parts = [f"{first} {are} right."] if first else []
        parts += [f"{self._not_judged()}."] if self.left else []
        return " ".join([*parts, *(f"{gap}." for gap in self.gaps)])

    def _not_judged(self) -> str:
        """The cases that were not judged, their kinds by reason.

        "27 more cases were not judged: 24 masks (the function lacks these options); 3 windows (raises ValueError)"
        """
        by_reason: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
        for (reason, kind), number in self.left.items():
            by_reason[reason].append((kind, number))
        by_number = sorted(by_reason.items(), key=lambda item: -sum(n for _, n in item[1]))
        ordered = sorted(by_number, key=lambda item: not item[1][0][0].startswith(LONGER))  # what limits it comes first
        told = []
        for reason, counts in ordered[:MOST_REASONS]:
            named = [_of_kind(n, kind) for kind, n in counts[:MOST_KINDS]]
            rest = sum(n for _, n in counts[MOST_KINDS:])
            told.append(f"{', '.join([*named, *[f'{rest} others'] * bool(rest)])} ({reason})")
        rest = sum(n for _, counts in ordered[MOST_REASONS:] for _, n in counts)
        number, more = sum(self.left.values()), "more " * bool(self.judged)
        cases = f"{number} {more}case was" if number == 1 else f"{number} {more}cases were"
        return f"{cases} not judged: {'; '.join([*told, *[f'other reasons ({rest})'] * bool(rest)])}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, in the types of JSON."""
        judged = {kind: {"judged": judged, "right": right} for kind, (judged, right) in self.judged.items()}
        left = [{"reason": reason, "kind": kind, "cases": n} for (reason, kind), n in self.left.items()]
        return {"judged": judged, "not_judged": left, "gaps": list(self.gaps), "said": str(self)}


def coverage(outcomes: Sequence[Outcome], dtype: str, gradients: str = "", require: Iterable[str] = ()) -> Coverage:
    """Count the cases that were judged.

    ``gradients`` says why they are asked for, where the function has a rule of its own; kinds of ``require`` have to be
    among those that were judged.
    """
    found = [(kinds.kinds_of(o.case, dtype), not o.verdict.fails) for o in outcomes if o.verdict not in LEFT]
    numbers = ((kind, [right for of, right in found if kind in of]) for kind in kinds.KINDS)
    judged = {kind: (len(rights), sum(rights)) for kind, rights in numbers if rights}
    left = collections.Counter((_reason(o), _kind_left(o)) for o in outcomes if o.verdict in LEFT)
    asked = [o for o in outcomes if kinds.directed(o.case) == kinds.GRADIENTS and o.finding.lack != kinds.GRADIENTS]
    gaps = []
    if gradients and asked and kinds.GRADIENTS not in judged:
        gaps.append(f"Gradients were requested ({gradients}), but none was judged")
    reasons = collections.Counter(o.finding.message for o in outcomes if o.verdict is Verdict.NOT_JUDGED)
    if not _is_much(outcomes):
        reasons.pop(LEFT_OUT, None)
    gaps += [f"{NOT_JUDGED_WORDS.get(why, why)} for {n} of {len(outcomes)} cases" for why, n in reasons.items()]
    gaps += [f"Required and not judged: {kind}" for kind in require if kind not in judged]
    gaps += [gap for kind in (kinds.RESULTS, kinds.GRADIENTS) if (gap := _hardly(outcomes, kind))]
    return Coverage(judged, dict(left.most_common()), tuple(gaps))


def _is_much(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether much was left out for want of time: most of the ladder, or half of the other cases."""
    left = [o for o in outcomes if o.finding.message == LEFT_OUT]
    asked = [o for o in outcomes if o.verdict is not Verdict.NOT_OFFERED and "ladder: " not in o.case.name]
    return any("ladder: " in o.case.name for o in left) or 2 * len(left) >= max(len(asked), 1)


def _hardly(outcomes: Sequence[Outcome], kind: str) -> str:
    """Say that it refused most of the sizes of the cases whose keywords it offers and whose traits are not lacking."""
    asked = [o for o in outcomes if kinds.directed(o.case) == kind and (o.verdict not in LEFT or o.finding.refused)]
    sizes = {tuple((SIZES | o.case.sizes).values()) for o in asked}
    judged = {tuple((SIZES | o.case.sizes).values()) for o in asked if o.verdict not in LEFT}
    if not judged or len(sizes) <= FEW_SIZES or len(judged) >= JUDGED_SHARE * len(sizes):
        return ""
    return f"Hardly judged: {kind} at {len(judged)} of {len(sizes)} sizes; the function refused the others"


def _kind_left(outcome: Outcome) -> str:
    """The kind of a case that is not judged: the trait that is lacking, or the rarest of its keywords."""
    lack, own = outcome.finding.lack, kinds.directed(outcome.case)
    if lack:
        return kinds.OF_OPTIONS.get(lack, lack) or own
    return own if own not in (kinds.RESULTS, kinds.GRADIENTS) else next(iter(kinds.options_of(outcome.case)), own)


def _reason(outcome: Outcome) -> str:
    """The reason why it is not judged, in few words."""
    finding = outcome.finding
    message = finding.message.removeprefix(f"{finding.lack}: ")
    if message.startswith("no argument"):
        _, never, names = message.partition("; never given: ")
        lacks = "the function lacks these options" if finding.lack else "they need a parameter that the model lacks"
        return f"{lacks}{never}{names}"
    if finding.refused and not message.startswith("raises"):
        words = message.removeprefix("refused: ")
        message = f"refused with {re.sub(r'^[A-Za-z.]+(Error|Exception): ', '', words)!r}"
    subject = "the call " * message.startswith("raises")
    return subject + (message if len(message) <= 60 else f"{message[:59]}…")


def _of_kind(count: int, kind: str) -> str:
    """A number of a kind in words: 1 mask, 2 masks."""
    named = {"lse": "log-sum-exps", "vmap": "vmap calls", "eager": "eager calls"}
    kind = named.get(kind, f"{kind} cases" if kind in kinds.DTYPES else kind)
    one = kind if kind == kinds.GROUPED else kind.removesuffix("es" if kind == "biases" else "s")
    return f"{count} {one if count == 1 else kind}"


class Outcomes(NamedTuple):
    """The outcomes of all cases of one implementation, and how it was judged.

    Attributes:
        name, version, arrays: what was judged, and the framework of its arrays.
        cases: an ``Outcome`` for each case, in order.
        dtype, seed, level, profile: how.
        causes: of the faults, the worst first.
        versions: of Python, attendax, NumPy and the framework.
        gradients: why gradients are asked for, where the function has a rule of its own.
        require: kinds that must have been judged.
        process: why the function was called in the process that judges; empty where it had one of its own.
        left_out: what the budget had no room for.
        called: how it is called and what it means, line by line, if it was described.
        unsettled: what is open about that: unusual meanings, and parameters of which no meaning is known.
        defects: those that its description shows and no case tests.
    """

    name: str
    version: str
    arrays: str
    cases: tuple[Outcome, ...]
    dtype: str = "float32"
    seed: int = 0
    level: str = "everything"
    versions: Mapping[str, str] = {}
    profile: str = "law"
    causes: tuple[Cause, ...] = ()
    gradients: str = ""
    require: tuple[str, ...] = ()
    process: str = ""
    left_out: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    unsettled: tuple[str, ...] = ()
    defects: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing is wrong or unsettled, something was judged, and all that had to be."""
        wrong = self.failures or self.defects
        return self.judged and not wrong and not self.unsettled and not self.coverage.gaps

    @property
    def judged(self) -> bool:
        """True where anything was judged."""
        return any(outcome.verdict in (Verdict.OK, Verdict.CONVENTION) for outcome in self.cases)

    @property
    def coverage(self) -> Coverage:
        """Numbers of cases that were judged and that were not."""
        return coverage(self.cases, self.dtype, self.gradients, self.require)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The cases with a fault that no list of known failures has."""
        return tuple(outcome for outcome in self.cases if outcome.verdict.fails and not outcome.known)

    def of(self, verdict: Verdict) -> tuple[Outcome, ...]:
        """The cases that ended so."""
        return tuple(outcome for outcome in self.cases if outcome.verdict is verdict)

    def number(self, verdict: Verdict) -> int:
        """Count the cases that ended so."""
        return len(self.of(verdict))

    @property
    def worst(self) -> Outcome | None:
        """The case whose error is the largest multiple of the allowed one; None where none was measured."""
        measured = [outcome for outcome in self.cases if outcome.multiple is not None]
        return max(measured, key=lambda outcome: outcome.multiple or 0.0, default=None)

    def counts(self) -> dict[str, int]:
        """Count the cases by verdict, in the order of ``Verdict``."""
        found = collections.Counter(outcome.verdict for outcome in self.cases)
        return {verdict.value: found[verdict] for verdict in Verdict if found[verdict]}

    def laws(self) -> dict[str, Self]:
        """The report on the cases of each law, in the order of the laws."""
        found = {law: tuple(o for o in self.cases if o.case.law == law) for law in LAWS}
        return {law: self._replace(cases=cases) for law, cases in found.items() if cases}

    def to_dict(self) -> dict[str, Any]:
        """Everything, in the types of JSON."""
        about = {"schema_version": SCHEMA_VERSION} | {k: x for k, x in self._asdict().items() if k != "cases"}
        about |= {"versions": dict(self.versions), "ok": self.ok, "counts": self.counts()}
        causes = [cause._asdict() | {"kind": cause.harm.kind} for cause in self.causes]
        about |= {"coverage": self.coverage.to_dict(), "causes": causes}
        return about | {"cases": [outcome.to_dict() for outcome in self.cases]}


def versions(arrays: str) -> dict[str, str]:
    """Versions of Python, attendax, NumPy and the framework, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in dict.fromkeys(("attendax", "numpy", arrays)):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def to_json(x: Any) -> str:
    """Write JSON; a number that is not finite is the string "nan", "inf" or "-inf"."""
    return json.dumps(_finite(x), indent=1, allow_nan=False)


def _finite(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_finite(v) for v in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x
