"""What `attendax check` makes of a contract: how it calls a function, under which conventions, and what is left open."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from attendax.exits import Refusal

from ..adapters import ADAPTERS, adapter_for
from ..adapters.implementation import OPTIONS, Implementation
from ..against.remote import Function
from ..conventions.table import DECLARED, DEFECT, UNUSUAL
from ..worker import foreign
from ..worker.calling import Worker
from ..worker.place import path_in_other_process
from . import fitting, pinning
from .contract import Contract
from .describing import Describer

TOLD = {"causal": "causal", "empty": "empty_rows"}  # axes: settings of an implementation
UNREAD = "{0} was never given another value than its default: what it means is not known; --ignore {0} accepts that"
IF_MEANT = '{}; --expect "{}={}" if it is meant'


class Settled(NamedTuple):
    """What the user said of the meaning of a function."""

    expected: Mapping[str, str] = {}  # values that are meant, by axis
    ignored: Collection[str] = ()  # parameters
    file: str = ""  # of its contract
    pinned: Mapping[str, Mapping[str, Any]] = {}  # its tables

    @classmethod
    def by(cls, expected: Mapping[str, str], ignored: Collection[str], file: str = "") -> "Settled":
        """Read the file, if there is one; it confirms what it says."""
        pinned = pinning.read(file) if file else {}
        return cls({**pinned.get("means", {}), **expected}, ignored, file, pinned)


class Understood(NamedTuple):
    """A function that was described in a process of its own, which goes on to be judged."""

    worker: Worker
    contract: Contract | None  # None if it is called by the protocol of `attendax check` and no formula gives its results

    def settings(self) -> dict[str, Any]:
        """The settings of ``implement`` by which it is judged."""
        given: dict[str, Any] = {"worker": self.worker}
        if self.contract is None:
            return given
        form, means = self.contract.form, self.contract.judged_by()
        declared = {value: name for name, value in DECLARED.items()}
        for axis, setting in TOLD.items():
            if name := declared.get(means.value(axis)):
                given[setting], means = name, means.but(**{axis: DECLARED["start" if axis == "causal" else "zero"]})
        if text := self.contract.adapter():
            given |= {"fit": text, "lacks": fitting.lacks(form), "arrays": form.arrays}
        return given | {"means": means}

    def unsettled(self, settled: "Settled") -> Iterator[str]:
        """What makes the status 1 whatever the cases say: an unusual meaning, a defect, a parameter that is not known."""
        if not (contract := self.contract):
            return
        meanings = list(contract.meanings())
        twice = any((x.axis, x.value) == ("given_scale", "squared") for x in meanings)
        for x in meanings:
            if x.kind == DEFECT:
                yield x.words
            elif x.kind == UNUSUAL and settled.expected.get(x.axis) != x.value and not (twice and x.axis == "scale"):
                yield IF_MEANT.format(x.words, x.axis, x.value)
        ignored = {*settled.ignored, *settled.pinned.get("unread", ())}
        yield from (UNREAD.format(x) for x in contract.unread if x in contract.names and x not in ignored)
        if settled.file:
            yield from pinning.differences(contract, settled.pinned, settled.file)


def path_of(fn: Any) -> str:
    """The path by which a function is described; empty if it has an adapter, or no other process can import it."""
    if isinstance(fn, Implementation) or (isinstance(fn, str) and (fn in ADAPTERS or foreign.is_path(fn))):
        return ""
    path = path_in_other_process(fn, "the function")[0]
    return "" if path in ADAPTERS or adapter_for(path) else path


def understood(path: str) -> Understood | None:
    """Describe the function of a path; None if it cannot be imported, as whoever imports it next tells.

    Raises Refusal if no formula gives its results, and it is not called by the protocol.
    """
    try:
        function = Function(path)
    except Refusal:
        return None
    assert isinstance(function.subject, Worker)
    describer = Describer(function)
    try:
        return Understood(function.subject, describer.contract())
    except Refusal:
        if len(function.required) == 3 and set(function.names[3:]) <= {*OPTIONS} and not function.meant:
            return Understood(function.subject, None)
        function.subject.close()
        raise
    except BaseException:
        function.subject.close()
        raise
