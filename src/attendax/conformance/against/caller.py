"""Calls of one function: each answer is kept, and compared with what a form gives."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ..worker.errors import Died, Failed
from .asking import GENERAL, TOLERANCE, Answer, Candidate, Probe, arrays, distance
from .forms import Form
from .remote import Function

MOST_DEATHS = 4  # of its process: before any answer, or with a keyword
ROUGH = 2.0**-8  # as a share of the largest number, of results of half precision


class Caller:
    """One function, all answers that it has given, and what is not understood of it."""

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.unknown: dict[str, str] = {}  # why, by names of parameters
        self.sizes: tuple[int, ...] = GENERAL  # of its plain call
        self.alike: list[str] = []  # options that it takes beside as many queries as keys alone
        self.plain_probes: dict[tuple[int, ...], Probe] = {}
        self.answers: dict[Any, tuple[Answer, Probe, Form]] = {}
        self.failing: dict[Any, Probe] = {}  # calls that raise, whatever axes the result would have
        self.rights: dict[Any, tuple[Answer, Probe]] = {}
        self.several, self.rough = False, False  # whether it gives several arrays, and is as exact as half precision
        self.taken, self.refusals = set[str](), dict[str, str]()  # keywords that it took; what it said of others
        self.first_error, self.raised = "", dict[str, Failed]()  # of all calls; with each keyword
        self.deaths = collections.Counter[str]()  # of its process, with each keyword; "" is every call
        self.failed: Failed | None = None  # the last error of the function itself

    def called(self, /, *values: Any, **keywords: Any) -> Answer:
        """A call of the function; whether it gives several arrays, and its error, are kept."""
        try:
            found = self.fn(*values, **keywords)
        except Failed as failed:
            self.failed = failed
            raise
        self.several |= len(found) > 1
        return found

    def answer(self, form: Form, probe: Probe) -> Answer:
        """The result; nothing where it refuses that."""
        key = repr(form.plain()), id(probe)
        call = repr(dataclasses.replace(form.plain(), returned="")), id(probe)
        if call in self.failing:
            return ()
        if key not in self.answers:
            names = {form.options[k].name for k in probe.options if k in form.options} - {""}
            if any(self.deaths[x] >= MOST_DEATHS for x in names - self.taken):
                return ()
            found = Candidate(self.called, form).answer(probe)
            if isinstance(found, Failed):
                self.deaths.update([*names, ""] * isinstance(found, Died))
                if self.deaths[""] == MOST_DEATHS and not any(x for x, *_ in self.answers.values()):
                    raise found
                self.refusals |= {x: found.said for x in names if found.refusal and x in found.said}
                if found is self.failed:  # and no error of the adapter
                    self.failing[call] = probe  # so that no other probe has its id
                    self.raised = dict.fromkeys(names, found) | self.raised
                self.first_error, found = self.first_error or str(found), ()
            self.taken |= {form.options[k].name for k in probe.options if found and k in form.options}
            self.answers[key] = found, probe, form  # so that no other probe has its id
        return self.answers[key][0]

    def answers_otherwise(self, ours: str) -> bool:
        """Tell whether a call with an option that had an answer before has another one now."""
        before = [x for x in self.answers.values() if x[0] and ours in x[1].options]
        after = ((found, Candidate(self.called, form).answer(probe)) for found, probe, form in before)
        return any(isinstance(now, tuple) and distance(now[:1], found[:1]) > ROUGH for found, now in after)

    def settled(self, variants: Iterable[Form], probes: list[Probe]) -> Form | None:
        """The first of the forms by which the function gives what the formula gives, for each probe."""

        def agrees(form: Form, probe: Probe) -> bool:
            found = self.answer(form, probe)
            return self.is_result(found, probe) and distance(found, self.right(form, probe)) <= self._tolerance(probe)

        return next((form for form in variants if all(agrees(form, probe) for probe in probes)), None)

    def is_nearly(self, form: Form, probe: Probe) -> bool:
        """Tell whether the function gives what the formula gives, except for queries without any key."""
        found, right = self.answer(form, probe), self.right(form.but(empty="NaN"), probe)
        return bool(found) and distance(found, right, some=True) <= self._tolerance(probe)

    def _tolerance(self, probe: Probe) -> float:
        return max(probe.tolerance, ROUGH) if self.rough else probe.tolerance

    def changes(self, form: Form, probes: list[Probe]) -> bool:
        """Tell whether the options of some calls change their results by a form: else no answer refutes it."""
        both = ((self.right(form, x), self.right(form, Probe(x.arrays, {}))) for x in probes)
        return any(distance(plain[:1], x[:1], some=True) > TOLERANCE for x, plain in both)

    def is_result(self, found: Answer, probe: Probe) -> bool:
        """Tell whether an answer has the shape of a result."""
        return bool(found) and found[0].shape == (*probe.arrays[0].shape[:3], probe.arrays[2].shape[-1])

    def right(self, form: Form, probe: Probe) -> Answer:
        """Right results by the conventions of a form, whatever its layout: they are computed once."""
        key = tuple(sorted(form.how.items())), id(probe)
        if key not in self.rights:
            self.rights[key] = Candidate(self.fn, form).right(probe), probe  # so that no other probe has its id
        return self.rights[key][0]

    def probe(self, values: Mapping[str, Any]) -> Probe:
        """Arrays of the sizes of its plain call, and options."""
        return Probe(arrays(self.sizes), values)

    def plain_probe(self, sizes: tuple[int, ...], groups: int = 0) -> Probe:
        """Arrays of some sizes, and no options: the same each time, so that no call is made again."""
        return self.plain_probes.setdefault((*sizes, groups), Probe(arrays(sizes, groups), {}))
