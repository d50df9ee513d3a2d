"""Facts about other libraries: where they differ by design, and the causes of their faults that have a name.

They are data, a file of TOML for each family, and one for what several have. The keys of an entry are the attributes of
``Documented`` and ``Known``; it holds for the adapters of which it has a ``source`` or a ``where``. A script knows
nothing of attendax, and ends in an error.
"""

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from attendax.conformance.diagnoses.causes import harm_of
from attendax.conformance.report import Report
from attendax.conformance.report.outcomes import Cause, Harm


class Documented(NamedTuple):
    """A difference that the library's documentation or source states: no fault, and no pass either."""

    cases: tuple[str, ...]  # of the kit, as patterns of file names
    says: str  # the contract, in a sentence
    source: str  # the file and the lines, or the page, that state it
    found: str = ""  # a regular expression on "verdict: message"; another finding in the same case stays a fault


class Known(NamedTuple):
    """A cause of faults that somebody has read the source for."""

    name: str  # in a few words
    kind: str  # "wrong numbers", "crash" or "robustness gap"
    cases: tuple[str, ...]  # the faults that it explains, as patterns of file names
    found: str = ""  # a regular expression on "verdict: message", as in ``Documented``
    where: str = ""  # the file and the lines
    report: str = ""  # what to send to its maintainers, in Markdown
    script: str = ""  # ten lines that show it without attendax, and end in an error as long as it is there


DOCUMENTED: dict[str, tuple[Documented, ...]] = {}
KNOWN: dict[str, tuple[Known, ...]] = {}
for _file in sorted(Path(__file__).parent.glob("*.toml")):
    _told: dict[str, list[dict[str, Any]]] = tomllib.loads(_file.read_text("utf-8"))
    _kinds: Any = (("by_design", DOCUMENTED, Documented, "source"), ("fault", KNOWN, Known, "where"))
    for _kind, _facts, _made, _place in _kinds:
        for _entry in _told.get(_kind, ()):
            for _names, _text in _entry.pop(_place).items():
                _one = _made(**_entry | {"cases": tuple(_entry["cases"]), _place: _text})
                _facts |= {_name: (*_facts.get(_name, ()), _one) for _name in _names.split(", ")}
SCRIPTS = {one.name: one.script for faults in KNOWN.values() for one in faults if one.script}
FAULTS = {one.name: one for faults in KNOWN.values() for one in faults}
DESIGN = "by design: "  # how the words for a documented difference begin


def matches(patterns: tuple[str, ...], name: str) -> bool:
    """Tell whether a name fits one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def explains(entry: Documented | Known, case: str, said: str) -> bool:
    """Tell whether an entry explains the finding of a case: "verdict: message"."""
    return matches(entry.cases, case) and bool(re.search(entry.found, said))


def applied(report: Report, documented: tuple[Documented, ...], known: tuple[Known, ...]) -> Report:
    """The report with the facts of its library: what is documented is a known failure, what has a known cause is of it.

    Causes that the kit has found keep their other cases.
    """
    cases = []
    for o in report.cases:
        entry = next((x for x in documented if o.verdict.fails and explains(x, o.case.name, o.finding.said)), None)
        cases.append(o._replace(known=f"{DESIGN}{entry.says} ({entry.source})") if entry else o)
    left = {o.case.name: o for o in cases if o.verdict.fails and not o.known}
    causes = []
    for one in known:
        names = tuple(name for name, o in left.items() if explains(one, name, o.finding.said))
        if names:
            harm = min((harm_of(left.pop(name)) for name in names), key=list(Harm).index)
            harm = harm if harm.kind == one.kind else Harm(one.kind)
            causes.append(Cause(one.name, harm, names, script=one.script))
    for cause in report.causes:
        if names := tuple(name for name in cause.cases if name in left):
            causes.append(cause._replace(cases=names, tried=min(cause.tried, len(names))))
    causes.sort(key=lambda cause: list(Harm).index(cause.harm))
    return report._replace(cases=tuple(cases), causes=tuple(causes))
