"""The outcome of a case, and a cause of faults, as data."""

import enum
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..cases import Case, named
from ..judge.verdicts import Finding, Verdict


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
        """The kind under which it is counted: wrong numbers (gradients, too), crash, or robustness gap."""
        return {Harm.GRADIENTS: KINDS[0], Harm.CLAIM: KINDS[2], Harm.ACCEPTED: KINDS[2]}.get(self, self.value)


KINDS = ("wrong numbers", "crash", "robustness gap")


class Cause(NamedTuple):
    """One reason for some faults."""

    name: str  # what is wrong, in a sentence
    harm: Harm  # to users
    cases: tuple[str, ...]  # the names of the cases that show it, the plainest first
    tried: int = 0  # how many of them were computed as if this were the reason, and agreed
    remedy: str = ""  # a setting that declares it, or what to do
    where: str = ""  # the file and the lines, where somebody has read them
    report: str = ""  # what to send to the maintainers
    script: str = ""  # what shows it without attendax

    def facts(self) -> dict[str, str]:
        """The cases, where it is, what was tried and what to do."""
        number = len(self.cases)
        texts = {number_of(number, "case"): "; ".join(self.cases[:6]) + "; ..." * (number > 6), "where": self.where}
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
        finding = {k: x for k, x in self.finding._asdict().items() if x not in (None, "", False)}
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
