"""What is known of a library: where it differs by design, and the named causes of its faults. Data of the adapters."""

import re
from fnmatch import fnmatchcase
from typing import NamedTuple

from .cases.case import Case
from .verdicts import Finding


class Documented(NamedTuple):
    """A difference that the library's documentation or source states: no fault, and no pass either.

    Attributes:
        cases: of the kit, as patterns of file names.
        says: the contract, in a sentence.
        source: the file and the lines, or the page, that state it.
        found: a regular expression on "verdict: message"; another finding in the same case stays a fault.
    """

    cases: tuple[str, ...]
    says: str
    source: str
    found: str = ""

    def fits(self, case: Case, finding: Finding) -> bool:
        """Whether it explains what was found."""
        return matches(self.cases, case.name) and bool(re.search(self.found, f"{finding.verdict}: {finding.message}"))


class Known(NamedTuple):
    """A cause of faults that somebody has read the source for.

    Attributes:
        name: in a few words.
        kind: "wrong numbers", "crash" or "robustness gap".
        cases: the faults that it explains, as patterns of file names.
        found: a regular expression on "verdict: message", as in ``Documented``.
        where: the file and the lines.
        report: what to send to its maintainers, in Markdown.
        script: ten lines that show it without attendax, and end in an error as long as it is there.
    """

    name: str
    kind: str
    cases: tuple[str, ...]
    found: str = ""
    where: str = ""
    report: str = ""
    script: str = ""

    def fits(self, case: Case, finding: Finding) -> bool:
        """Whether it explains what was found."""
        return matches(self.cases, case.name) and bool(re.search(self.found, f"{finding.verdict}: {finding.message}"))


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Whether a name fits one of the patterns; brackets are themselves."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
