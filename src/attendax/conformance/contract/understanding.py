"""The use that `attendax check` makes of a contract: how it calls a function, its conventions, and what is open."""

import itertools
import operator
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from attendax.exits import Refusal
from attendax.legible import did_you_mean

from ..adapters.implementation import OPTIONS, Implementation
from ..against import options
from ..against.describing import SECOND
from ..against.dropout import OF_ALL_QUERIES
from ..against.forms import BY_LAW, Form
from ..against.remote import Function
from ..cases import Case
from ..cases.case import SIZES
from ..cases.kinds import RESULTS, directed
from ..cases.square import SQUARE
from ..conventions.table import ASKS, DEFECT, OF_GROUPS, OVERFLOWS, TABLE, UNUSUAL
from ..conventions.values import Conventions
from ..report import Report
from ..report.outcomes import Cause, Harm
from ..worker import foreign
from ..worker.calling import Subject, Worker
from ..worker.errors import Died, Failed
from . import docstrings, fitting, pinning
from .contract import AS_THE_LAWS, Contract, Meaning, of_width
from .describing import Describer

RATE = "dropout_rate"  # of dropout, by the kit's protocol
LIMITS = 2  # times the limit of ``describe``: a run has more time
UNREAD_WORDS = "{} is not understood: {}; --ignore {} accepts that"
IF_MEANT = '{}; --expect "{}={}" if it is meant'
NUMBER_HARMS = Harm.NUMBERS, Harm.GRADIENTS, Harm.CRASH  # that a defect may do


class Settled(NamedTuple):
    """Statements of the user about the meaning of a function."""

    expected: Mapping[str, str] = {}  # values that are meant, by axis
    pins: Mapping[str, str] = {}  # those that it must have
    ignored: Collection[str] = ()  # parameters
    file: str = ""  # of its contract
    pinned: Mapping[str, Mapping[str, Any]] = {}  # its tables

    @property
    def arrays(self) -> str:
        """The framework that the file names; empty if it names none."""
        return str(self.pinned.get("called", {}).get("arrays", ""))

    @property
    def lacks(self) -> dict[str, str]:
        """The traits that are not offered, by the file, and why."""
        return dict.fromkeys(self.pinned.get("called", {}).get(pinning.LACKS, ()), f"{self.file} says so")

    def settings(self, found: "Understood | None") -> dict[str, Any]:
        """The settings of ``implement`` by which a function is judged: as it was found, or else as is stated here."""
        given = found.settings() if found else {}
        if not (found and found.contract):
            means = {axis: x for axis, x in self.expected.items() if axis in TABLE}
            given |= {"means": dict(Conventions().but(**means).off)} if means else {}
            given |= {"arrays": self.arrays} if self.arrays else {}
        return given | ({"lacks": given.get("lacks", {}) | self.lacks} if self.lacks else {})

    @classmethod
    def by(cls, expected: Mapping[str, str], ignored: Collection[str], file: str = "") -> "Settled":
        """Read the file, if there is one; it confirms what it says."""
        pinned, pins = pinning.read(file) if file else {}, pinning.expected(expected)
        return cls({**pinned.get("means", {}), **pins}, pins, ignored, file, pinned)

    def refuse_unknown(self, names: Collection[str]) -> None:
        """Raise Refusal if a parameter that is to be ignored is none of these."""
        if unknown := [x for x in self.ignored if x not in names]:
            near = did_you_mean(unknown[0], names)
            raise Refusal(f"--ignore: {unknown[0]!r} is not a parameter; allowed: {', '.join(names)}{near}")


class Understood(NamedTuple):
    """A function that was described in a process of its own, which goes on to be judged, or in this one."""

    subject: Subject
    contract: Contract | None  # None if no formula gives its results, and it is called by the protocol
    names: Collection[str] = ()  # of its parameters, and of what else may not be understood

    def settings(self) -> dict[str, Any]:
        """The settings of ``implement`` by which it is judged."""
        given: dict[str, Any] = {"worker": self.subject} if isinstance(self.subject, Worker) else {}
        if self.contract is None:
            return given
        form = self.contract.form
        given |= {"means": dict(self.contract.judged_by().off)}
        if text := self.contract.adapter():
            lacks = fitting.lacks(form, self.contract.alike)
            given |= {"fit": text, "layout": form.layout, "lacks": lacks, "arrays": form.arrays}
        inexact = {"NumPy's sums": form.arrays == "numpy", "distances of ALiBi": form.how["alibi"] != BY_LAW["alibi"]}
        inexact |= {"rotary positions": form.how["rotary"] != BY_LAW["rotary"]}
        why = next((f"{x} in {{}} are too inexact" for x, true in inexact.items() if true), "")
        more: dict[str, Any] = {x: why.format(x) for x in ("float16", "bfloat16") if why}
        of_sum = "return_lse" in form.options and form.how["lse"] not in ("base e", "base 2")
        shared = form.how["dropout"] == OF_ALL_QUERIES
        unjudged = {RATE: self.contract.dropout and (shared or RATE not in self.names), "return_lse": of_sum}
        more |= {option: "described, not judged" for option, true in unjudged.items() if true}
        more |= {ours: f"{x} is not understood" for x in self.contract.unread for ours in _left_to(x, form)}
        more |= {SQUARE: "it takes T = S only"} if self.contract.square else {}
        more |= {"V != D": "it takes V = D only"} if self.contract.widths else {}
        return given | ({"lacks": given.get("lacks", {}) | more} if more else {})

    def open_in(self, case: Case, settled: Settled) -> str:
        """Words for what is not settled and counts for a case; a parameter counts for calls without options alone."""
        if not (contract := self.contract):
            return ""
        unusual = (x for x in _unusual(contract, settled) if _asks(case, x))
        found = (IF_MEANT.format(x.words, x.axis, x.value) for x in unusual)
        of_call = () if case.options else (*_unread(contract, settled), *_unlike(contract, settled))
        return next(itertools.chain(found, of_call), "")

    def told(self, report: Report, settled: Settled) -> Report:
        """The report with its defects as causes, what is unsettled, and how it is called if not by the protocol."""
        if not (contract := self.contract):
            some = [x for x in (settled.file, *map("=".join, settled.pins.items())) if x]
            said = "no known formula gives its results, so it was not compared with {}"
            return report._replace(unsettled=(said.format(", ".join(some)),)) if some else report
        meanings = list(contract.meanings())
        for x in meanings:
            report = _with_defect(report, x, contract) if x.kind == DEFECT else report
        named = [cause.name for cause in report.causes]
        defects = tuple(x.words for x in meanings if x.kind == DEFECT and x.words not in named)
        causes = tuple(cause._replace(name=of_width(cause.name, contract.form)) for cause in report.causes)
        defects = tuple(of_width(words, contract.form) for words in defects)
        report = report._replace(unsettled=tuple(_unsettled(contract, report, settled)), defects=defects, causes=causes)
        otherwise = contract.adapter() or contract.unread or any(x.kind != DEFECT for x in meanings)
        lines = [x for x in contract.lines() if not (report.failures and x == AS_THE_LAWS)]
        return report._replace(called=tuple(lines) if otherwise else ())


def _left_to(name: str, form: Form) -> list[str]:
    """The options of the protocol that a parameter may be, and that no other parameter is."""
    return [x for x in options.named(name) if x in OPTIONS and x not in form.options]


def _with_defect(report: Report, defect: Meaning, contract: Contract) -> Report:
    """The report in which a defect that was described is one cause: of all cases with its option that have no other.

    A key mask is also called with key lengths. Faults of the lengths count as faults of the mask.
    """
    cases, by_mask = {outcome.case.name: outcome.case for outcome in report.cases}, False
    always = defect.axis in TABLE and not ASKS.get(defect.axis)  # then no derivative can be right
    if defect.axis == "mask":
        by_mask = "key_lengths" not in contract.form.options

    def is_of_it(cause: Cause) -> bool:
        mine, some = cause.harm in NUMBER_HARMS and not cause.tried, [cases[name] for name in cause.cases]
        of_lengths = [by_mask and "key_lengths" in case.options for case in some]
        asks = [_asks(case, defect) for case in some]
        if defect.axis == "large":
            return "NaN" in cause.name or cause.name == OVERFLOWS
        if always and all(directed(case) != RESULTS for case in some):
            return True
        return defect.words in cause.name or all(of_lengths) or (mine and all(map(operator.or_, asks, of_lengths)))

    mine = [cause for cause in report.causes if is_of_it(cause)]
    if not mine:
        return report
    first = max(mine, key=lambda cause: (defect.words in cause.name, cause.tried))
    names = dict.fromkeys(name for cause in (first, *mine) for name in cause.cases)
    harm = min((cause.harm for cause in mine), key=list(Harm).index)
    joined = first._replace(name=defect.words, harm=harm, cases=tuple(names), least=False)
    joined = joined._replace(remedy="") if joined.lacks_time else joined
    return report._replace(causes=(joined, *(cause for cause in report.causes if cause not in mine)))


def _asks(case: Case, meaning: Meaning) -> bool:
    """Tell whether a value of an axis may make a difference to a case."""
    axis = meaning.axis
    if axis == "heads" or meaning.value == OF_GROUPS:
        sizes = SIZES | case.sizes
        return sizes["N"] != sizes["G"]
    asks = ASKS.get(axis)
    return not asks or bool({*asks} & {*case.options})


def _unsettled(contract: Contract, report: Report, settled: Settled) -> Iterator[str]:
    """Reasons for status 1 beside the cases: an unusual meaning, a parameter that is not known."""
    yield from (IF_MEANT.format(x.words, x.axis, x.value) for x in _unusual(contract, settled))
    if not report.failures:  # what is wrong comes first: it may be the reason why nobody knows what the others mean
        yield from _unread(contract, settled)
    yield from _unlike(contract, settled)


def _unusual(contract: Contract, settled: Settled) -> list[Meaning]:
    """Its unusual meanings that nobody has confirmed."""
    meanings = list(contract.meanings())
    twice = any((x.axis, x.value) == ("given_scale", "squared") for x in meanings)
    unusual = (x for x in meanings if x.kind == UNUSUAL and settled.expected.get(x.axis) != x.value)
    return [x for x in unusual if not (twice and x.axis == "scale")]


def _unread(contract: Contract, settled: Settled) -> Iterator[str]:
    """Its parameters of which no meaning is known."""
    ignored = {*settled.ignored, *settled.pinned.get("unread", ())}
    unread = {x: why for x, why in contract.unread.items() if x in (*contract.names, SECOND) and x not in ignored}
    yield from (UNREAD_WORDS.format(x, why, f'"{x}"' if " " in x else x) for x, why in unread.items())


def _unlike(contract: Contract, settled: Settled) -> Iterator[str]:
    """Differences from what the user has pinned."""
    meant = [(x.axis, x.value) for x in contract.meanings()]
    for axis, value in (pin for pin in settled.pins.items() if pin not in meant):
        mine = contract.conventions.value(axis) if axis in TABLE else contract.tables()["means"].get(axis, "")
        if mine != value:
            yield f"{axis} is {mine!r}, and {value!r} is expected"
    if settled.file:
        yield from pinning.differences(contract, settled.pinned, settled.file)


def is_described(fn: Any) -> bool:
    """Tell whether a function is described: not if it is an ``Implementation``, or is not a Python function."""
    return not isinstance(fn, Implementation) and not foreign.is_path(fn)


def understood(fn: Any, settled: Settled, *, in_process: bool = False) -> Understood | None:
    """Describe a function, or that of a path; None if it cannot be imported, as whoever imports it next tells.

    If no formula gives its results, it is called as its contract file says, or by the protocol. Raises Refusal if it
    has no such file, and the protocol is not its own, or its source names a formula that is perhaps not known.
    """
    if not is_described(fn):
        if settled.ignored:
            raise ValueError("check: ignore is of a Python function, which is described first")
        return None
    try:
        keywords = pinning.options_of(settled.pinned)
        function = Function(fn, in_process=in_process, arrays=settled.arrays, stated=keywords)
    except (Exception, SystemExit):
        return None
    describer = Describer(function, times=LIMITS)
    try:
        contract = describer.contract()
        return Understood(function.subject, contract, tuple(dict.fromkeys((*function.names, *contract.unread))))
    except Refusal as refusal:
        if settled.pinned.get("called", {}).get("layout"):
            contract = pinning.stated(function, settled.pinned)
            return Understood(function.subject, contract, tuple(function.names))
        of_protocol = len(function.required) == 3 and set(function.names[3:]) <= {*OPTIONS} and not function.meant
        of_protocol = of_protocol and not re.search(docstrings.OTHER_FORMULAS, function.source, re.IGNORECASE)
        cause = refusal.__cause__  # of sizes that it does not take, perhaps
        hangs = isinstance(cause, Died) and cause.how == "timeout"
        answers = isinstance(cause, Failed) and not (hangs or cause.said.startswith("it gives"))
        if of_protocol and (answers or getattr(refusal, "layout", "") == "BNTD"):
            return Understood(function.subject, None, tuple(function.names))
        function.subject.close()
        raise
    except BaseException:
        function.subject.close()
        raise
