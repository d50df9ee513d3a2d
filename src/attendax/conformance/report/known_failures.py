"""Faults that a list of the user expects: ``skip CASES # why`` and ``xfail CASES # why``."""

from fnmatch import fnmatchcase
from typing import NamedTuple, Self

from ..cases import CASES, CLAIMS, Case, named
from ..cases.pool import EXAMPLES
from ..judge.verdicts import Finding, Verdict
from .outcomes import Outcome


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
