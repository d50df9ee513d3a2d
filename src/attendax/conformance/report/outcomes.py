"""What was found, as data: the outcome of a case, of the cases of a law, and of all cases of an implementation."""

import collections
import enum
import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from ..cases import CASES, Case
from ..judge.verdicts import Finding, Verdict

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


class Harm(enum.StrEnum):
    """What a cause does to its users, the worst first."""

    NUMBERS = "wrong numbers"
    GRADIENTS = "wrong gradients"
    CRASH = "crash"
    ROBUSTNESS = "robustness gap"
    ACCEPTED = "mistake accepted"

    @property
    def kind(self) -> str:
        """As it is counted: wrong numbers (gradients, too), crash, or robustness gap."""
        return {Harm.GRADIENTS: "wrong numbers", Harm.ACCEPTED: "robustness gap"}.get(self, self.value)


KINDS = ("wrong numbers", "crash", "robustness gap")


class Cause(NamedTuple):
    """One reason for some faults.

    Attributes:
        name: what is wrong, in a sentence.
        harm: to users.
        cases: the names of the cases that show it, the plainest first.
        tried: how many of them were computed as if this were the reason, and agreed.
        remedy: a setting that declares it, or what to do.
        where: the file and the lines, where somebody has read them.
        report: what to send to the maintainers.
        script: what shows it without attendax.
    """

    name: str
    harm: Harm
    cases: tuple[str, ...]
    tried: int = 0
    remedy: str = ""
    where: str = ""
    report: str = ""
    script: str = ""


class Outcome(NamedTuple):
    """One case of one implementation."""

    case: Case
    finding: Finding
    seconds: float
    reproduction: str  # empty where nothing is wrong
    known: str = ""  # why it is expected to fail, where a list of known failures says so
    got: Mapping[str, Any] = {}  # what a call gave, of a fault; not written anywhere

    @property
    def verdict(self) -> Verdict:
        """How it ended."""
        return self.finding.verdict

    @property
    def multiple(self) -> float | None:
        """The measured error over the allowed one; None where nothing was measured."""
        error, allowed = self.finding.error, self.finding.allowed
        if error is None or allowed is None or math.isnan(error):
            return None
        return error / allowed if allowed else math.inf if error else 0.0

    def facts(self) -> dict[str, str]:
        """Where it is worst, what is expected there and what came; the error beside the allowed one."""
        found, texts = self.finding, {}
        if found.leaf and found.index is not None:
            texts["where"] = f"{found.leaf}{list(found.index)}"
        if found.expected is not None and found.got is not None:
            digits = 7 if abs(found.expected - found.got) > 1e-6 * abs(found.expected) else 17
            texts |= {"expected": f"{found.expected:.{digits}g}", "got": f"{found.got:.{digits}g}"}
        unit = " standard deviations" if self.case.judge == "dropped" and (found.allowed or 0) > 1 else ""
        for name, x in (("error", found.error), ("allowed", found.allowed), ("dense formula", found.dense_error)):
            texts |= {name: f"{x:.2g}{unit}"} if x is not None else {}
        return texts

    def told(self) -> str:
        """The verdict, the message and the facts, on one line."""
        facts = self.facts()
        place = "; ".join(f"{k} {facts[k]}" for k in ("where", "expected", "got") if k in facts)
        error = f"error {facts['error']}, allowed {facts['allowed']}" if {"error", "allowed"} <= facts.keys() else ""
        return f"{self.verdict}: " + "; ".join(
            filter(None, (self.finding.message, place.replace("where ", "at "), error))
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything, in the types of JSON."""
        finding = {k: x for k, x in self.finding._asdict().items() if x not in (None, "")}
        case = {"name": self.case.name, "law": self.case.law, "about": self.case.about}
        case |= {"known": self.known} if self.known else {}
        return case | finding | {"seconds": round(self.seconds, 3), "reproduction": self.reproduction}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Outcome":
        """What ``to_dict`` gave, after JSON."""
        case = next((case for case in CASES if case.name == found["name"]), None)
        case = case or Case(found["name"], found["law"], found["about"])
        given = {k: found[k] for k in Finding._fields if k in found} | {"verdict": Verdict(found["verdict"])}
        numbers = {k: float(x) for k, x in given.items() if k in ("expected", "got", "error", "allowed", "dense_error")}
        index = {"index": tuple(given["index"])} if "index" in given else {}
        return cls(case, Finding(**given | numbers | index), found.get("seconds", 0.0), found["reproduction"],
                   found.get("known", ""))  # fmt: skip


class Tally(NamedTuple):
    """The cases of one law: how many ended how, and the one that came nearest to what is allowed, or beyond."""

    outcomes: tuple[Outcome, ...]

    def number(self, verdict: Verdict) -> int:
        """How many ended so."""
        return sum(outcome.verdict is verdict for outcome in self.outcomes)

    @property
    def failed(self) -> int:
        """How many are wrong in some way."""
        return sum(outcome.verdict.fails for outcome in self.outcomes)

    @property
    def judged(self) -> int:
        """How many were offered."""
        return len(self.outcomes) - self.number(Verdict.NOT_OFFERED)

    @property
    def worst(self) -> Outcome | None:
        """The case whose error is the largest multiple of the allowed one; None where none was measured."""
        measured = [outcome for outcome in self.outcomes if outcome.multiple is not None]
        return max(measured, key=lambda outcome: outcome.multiple or 0.0, default=None)


class Outcomes(NamedTuple):
    """The outcomes of all cases of one implementation, and how it was judged.

    Attributes:
        name, version, arrays: what was judged, and the framework of its arrays.
        cases: an ``Outcome`` for each case, in order.
        dtype, seed, level, profile: how.
        causes: of the faults, the worst first.
        versions: of Python, attendax, NumPy and the framework.
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

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong and something was judged."""
        judged = any(outcome.verdict in (Verdict.OK, Verdict.CONVENTION) for outcome in self.cases)
        return judged and not self.failures

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """The cases with a fault that no list of known failures has."""
        return tuple(outcome for outcome in self.cases if outcome.verdict.fails and not outcome.known)

    @property
    def by_design(self) -> tuple[Outcome, ...]:
        """The cases in which it differs by design."""
        return tuple(outcome for outcome in self.cases if outcome.verdict is Verdict.BY_DESIGN)

    def number(self, verdict: Verdict) -> int:
        """How many cases ended so."""
        return sum(outcome.verdict is verdict for outcome in self.cases)

    def kinds(self) -> dict[str, int]:
        """How many causes there are of each kind."""
        return {kind: sum(cause.harm.kind == kind for cause in self.causes) for kind in KINDS}

    def counts(self) -> dict[str, int]:
        """How many cases ended how, in the order of ``Verdict``."""
        found = collections.Counter(outcome.verdict for outcome in self.cases)
        return {verdict.value: found[verdict] for verdict in Verdict if found[verdict]}

    def laws(self) -> dict[str, Tally]:
        """The cases by law, in the order of the laws."""
        by_law = collections.defaultdict(list)
        for outcome in self.cases:
            by_law[outcome.case.law].append(outcome)
        return {law: Tally(tuple(by_law[law])) for law in sorted(by_law, key=lambda law: (len(law), law))}

    def to_dict(self) -> dict[str, Any]:
        """Everything, in the types of JSON."""
        about = {"schema_version": SCHEMA_VERSION} | {k: x for k, x in self._asdict().items() if k != "cases"}
        about |= {"versions": dict(self.versions), "ok": self.ok, "counts": self.counts()}
        about |= {"causes": [cause._asdict() | {"kind": cause.harm.kind} for cause in self.causes]}
        return about | {"cases": [outcome.to_dict() for outcome in self.cases]}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """What ``to_dict`` gave, after JSON."""
        about = {k: found[k] for k in cls._fields if k in found and k not in ("cases", "causes")}
        causes = tuple(_cause(cause) for cause in found.get("causes", ()))
        return cls(cases=tuple(map(Outcome.from_dict, found["cases"])), **about, causes=causes)


def _cause(found: Mapping[str, Any]) -> Cause:
    given = {k: found[k] for k in Cause._fields if k in found}
    return Cause(**given | {"harm": Harm(found["harm"]), "cases": tuple(found["cases"])})


def versions(arrays: str) -> dict[str, str]:
    """Of Python, attendax, NumPy and the framework, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in dict.fromkeys(("attendax", "numpy", arrays)):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def to_json(x: Any) -> str:
    """As ``json.dumps``; a number that is not finite is the string "nan", "inf" or "-inf"."""
    return json.dumps(_finite(x), indent=1, allow_nan=False)


def _finite(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {k: _finite(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_finite(v) for v in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x
