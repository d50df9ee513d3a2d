"""The outcome of a case, a cause of faults, the coverage of a run, and what is expected to fail; as data."""

import collections
import enum
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Self

from ..cases import CASES, CLAIMS, Case, kinds, named
from ..cases.case import SIZES
from ..cases.pool import EXAMPLES
from ..judge.verdicts import LEFT_OUT, NO_TIME, Finding, Verdict


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
    ACCEPTED = "mistake accepted"

    @property
    def kind(self) -> str:
        """The kind under which it is counted: wrong numbers (also of gradients), crash, or robustness gap."""
        return {Harm.GRADIENTS: KINDS[0], Harm.CLAIM: KINDS[2], Harm.ACCEPTED: KINDS[2]}.get(self, self.value)


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

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Outcome":
        """Read what ``to_dict`` gave, after JSON."""
        case = named(found["name"]) or Case(found["name"], found["law"], found["about"])
        given = {k: found[k] for k in Finding._fields if k in found} | {"verdict": Verdict(found["verdict"])}
        numbers = {k: float(x) for k, x in given.items() if k in ("expected", "got", "error", "allowed", "dense_error")}
        index = {"index": tuple(given["index"])} if "index" in given else {}
        return cls(case, Finding(**given | numbers | index), found.get("seconds", 0.0), found.get("reproduction", ""),
                   found.get("known", ""), seed=found.get("seed"))  # fmt: skip


# At least this share of the sizes that were asked is judged; of so few sizes, any.
JUDGED_SHARE, FEW_SIZES = 1 / 3, 5
LEFT = (Verdict.NOT_OFFERED, Verdict.NOT_JUDGED)
NOT_JUDGED_WORDS = {
    NO_TIME: "No time was left", LEFT_OUT: "There was no time", "no results": "No results", "no folder": "No folder",
}  # a reason, in a sentence  # fmt: skip
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
        parts += [f"Cases not judged: {self._not_judged()}."] if self.left else []
        return " ".join([*parts, *(f"{gap}." for gap in self.gaps)])

    def _not_judged(self) -> str:
        """Kinds by reason: "the function has no such option (24 masks); the call raises ValueError (3 windows)"."""
        by_reason: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
        for (reason, kind), number in self.left.items():
            by_reason[reason].append((kind, number))
        ordered = sorted(by_reason.items(), key=lambda item: -sum(n for _, n in item[1]))
        told = []
        for reason, counts in ordered[:MOST_REASONS]:
            named = [_of_kind(n, kind) for kind, n in counts[:MOST_KINDS]]
            rest = sum(n for _, n in counts[MOST_KINDS:])
            told.append(f"{reason} ({', '.join([*named, *[f'{rest} others'] * bool(rest)])})")
        rest = sum(n for _, counts in ordered[MOST_REASONS:] for _, n in counts)
        return "; ".join([*told, *[f"other reasons ({rest})"] * bool(rest)])

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
    """Tell whether much was left out for want of time: most of the ladder, or a third of the other cases."""
    left = [o for o in outcomes if o.finding.message == LEFT_OUT]
    asked = [o for o in outcomes if o.verdict is not Verdict.NOT_OFFERED and "ladder: " not in o.case.name]
    return any("ladder: " in o.case.name for o in left) or len(left) > JUDGED_SHARE * len(asked)


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
    if lack or own == kinds.REFUSALS:
        return kinds.OF_OPTIONS.get(lack, lack) or own
    return own if own not in (kinds.RESULTS, kinds.GRADIENTS) else next(iter(kinds.options_of(outcome.case)), own)


def _reason(outcome: Outcome) -> str:
    """The reason why it is not judged, in few words."""
    finding = outcome.finding
    message = finding.message.removeprefix(f"{finding.lack}: ")
    if message.startswith("no argument"):
        _, never, names = message.partition("; never given: ")
        return f"the function has no such option{never}{names}"
    if finding.refused and not message.startswith("raises"):
        words = message.removeprefix("refused: ")
        message = f"refused with {re.sub(r'^[A-Za-z.]+(Error|Exception): ', '', words)!r}"
    subject = "the call " * message.startswith("raises")
    return subject + (message if len(message) <= 60 else f"{message[:59]}…")


def _of_kind(count: int, kind: str) -> str:
    """A number of a kind in words: 1 mask, 2 masks."""
    kind = {"lse": "log-sum-exps", "vmap": "vmap calls"}.get(kind, f"{kind} cases" if kind in kinds.DTYPES else kind)
    one = kind if kind == kinds.GROUPED else kind.removesuffix("es" if kind == "biases" else "s")
    return f"{count} {one if count == 1 else kind}"


class KnownFailures(NamedTuple):
    """Lines of ``skip CASES # why`` and ``xfail CASES # why``; CASES is a name, or a pattern with ``*``.

    A case that is skipped is not run. One that is expected to fail is run; its fault is told and not counted.
    """

    lines: tuple[tuple[str, str, str], ...] = ()  # skip or xfail, the pattern, why

    @classmethod
    def read(cls, file: str | None) -> Self:
        """Read a file; without one, nothing is known."""
        if file is None:
            return cls()
        try:
            with open(file, encoding="utf-8") as text:
                every = list(text)
        except OSError as error:
            raise ValueError(f"check: known_failures {file}: {error.strerror}") from error
        lines, names = [], [case.name for case in (*CASES, *EXAMPLES, *sum(CLAIMS.values(), ()))]
        for number, line in enumerate(every, start=1):
            words, why = (part.strip() for part in line.partition("#")[::2])
            how, pattern = (part.strip() for part in words.partition(" ")[::2])
            picks = named(pattern) or any(fnmatchcase(name, pattern) for name in names)
            if words and not (how in ("skip", "xfail") and picks):
                expected = "skip or xfail and the name of a case, or a pattern of some"
                raise ValueError(f"check: known_failures {file}, line {number}: got {words!r}, expected {expected}")
            lines += [(how, pattern, why or "known")] if words else []
        return cls(tuple(lines))

    def skipped(self, case: Case) -> Outcome | None:
        """The outcome of a case that is not run."""
        why = self._why("skip", case)
        return Outcome(case, Finding(Verdict.NOT_OFFERED, f"skipped: {why}"), 0.0, "") if why else None

    def marked(self, outcome: Outcome) -> Outcome:
        """Mark an outcome that is expected to fail with the reason."""
        return outcome._replace(known=self._why("xfail", outcome.case))

    def _why(self, how: str, case: Case) -> str:
        return next((why for kind, pattern, why in self.lines if kind == how and fnmatchcase(case.name, pattern)), "")
