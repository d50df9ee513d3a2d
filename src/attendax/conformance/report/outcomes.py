"""Outcomes as data: those of all cases of an implementation, or of a law."""

import collections
import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from ..judge.verdicts import Verdict
from .outcome import KINDS as KINDS
from .outcome import NO_REASON as NO_REASON
from .outcome import Cause as Cause
from .outcome import Coverage, coverage
from .outcome import Harm as Harm
from .outcome import Outcome as Outcome

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

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Read what ``to_dict`` gave, after JSON."""
        about = {k: found[k] for k in cls._fields if k in found and k not in ("cases", "causes")}
        causes = [{k: cause[k] for k in Cause._fields if k in cause} for cause in found.get("causes", ())]
        made = [Cause(**x | {"harm": Harm(x["harm"]), "cases": tuple(x["cases"])}) for x in causes]
        about |= {
            name: tuple(found.get(name, ())) for name in ("require", "left_out", "called", "unsettled", "defects")
        }
        return cls(cases=tuple(map(Outcome.from_dict, found["cases"])), **about, causes=tuple(made))


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
