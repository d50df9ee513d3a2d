"""Findings about a function: the way it is called, and the conventions by which it computes. Each is tried."""

import dataclasses

from ..conventions.table import IGNORED, OF_GROUPS, TABLE
from ..worker.errors import Failed
from . import combinations, dropout, empty_rows, examples, extremes, options
from .asking import SQUARE, Candidate, Probe, arrays
from .forms import BY_LAW, Form, Option
from .options import AXIS, DROPOUT_NAMES, GROUPED_NAMES, OF_NO_OPTION, OPTIONS, WORD
from .plain_call import SHARED_DROPOUT
from .reading import Reading
from .remote import Function

NOT_TAKEN = "not taken, or none of the options that are known"
SECOND = "second result"
SEVERAL = "it always gives several arrays, of which the first is compared"
ONE_FOR_EACH = "one number for each query, and no log-sum-exp that is known"


class Describing(Reading):
    """All that is found out about a function, in order: its plain call, each keyword, what they do together."""

    asks_narrow = True  # whether it is called with narrow arrays, which cost more than all others

    def __init__(self, fn: Function) -> None:
        super().__init__(fn)
        self.form: Form | None = None  # as far as it is found
        self.refuting: dict[str, list[Probe]] = {}  # calls that refute what was found of an option
        self.remembers = False  # whether a call changes what the same call gives later

    def candidate(self) -> Candidate:
        """The function with all that is found out about it; raises Failed where it raises in every layout."""
        form = self._as_called()
        if not form:
            if not any(answer for answer, *_ in self.answers.values()):
                raise Failed(self.first_error)
            return Candidate(self.fn, Form(path=self.fn.path), known=False)
        self.form = form = dataclasses.replace(form, arrays=self.fn.kind(), container=self.fn.container())
        self.form = form = self._grouped(self._second(form) if self.several else form)
        free, left = self._free(), []
        self.form = form = self._turned(form, free) if form.has_one_key_head else form
        for name in sorted(free, key=_place):
            if "segments" in form.options and name == form.options["segments"].form:
                continue  # it was read with another
            offered = self._offered(form, name)
            self.form = form = offered or form
            left += [] if offered else [name]
        left = [name for name in left if "segments" not in form.options or name != form.options["segments"].form]
        form = empty_rows.read(self, combinations.ordered(self, combinations.joined(self, self._word(form))))
        form = extremes.taken(self, form)
        form = extremes.narrow(self, form) if self.asks_narrow else form
        for name in (x for x in free if x in left):
            if name in DROPOUT_NAMES:
                form = dropout.read(self, form, name)
                self.unknown[name] = "dropout is drawn at random; no adapter has it"
            elif name not in (*GROUPED_NAMES, *SHARED_DROPOUT) and (name in self.given or name not in form.given):
                self.unknown[name] = NOT_TAKEN
        return Candidate(self.fn, self._kept(form), True, self.unknown, self.sizes)

    def _free(self) -> list[str]:
        """Its keywords that may be options."""
        known = {name for row in OPTIONS.values() for name in (*row.names, *DROPOUT_NAMES)}
        parts = (x for x in self.fn.meant if x not in options.MEANT and not options.WEIGHT.fullmatch(x))
        known |= {x for x in parts if options.named(x)}  # by a part of its name
        unread = {*self.fn.required, *OF_NO_OPTION, *(self.fn.meant.keys() - known)}
        unread |= {*self.fn.meant} if any(x.startswith(options.CACHED) for x in self.fn.meant.values()) else set()
        return [x for x in self.fn.names if x not in unread or x in self.fn.stated]

    def _second(self, form: Form) -> Form:
        """The results beside its first: log-sum-exp, or others that are not compared."""
        (B, N, T), several = self.sizes[:3], dataclasses.replace(form, first=False)
        if with_lse := self.read(several, "", "return_lse"):
            return with_lse
        answers = (answer for answer, probe, _ in self.answers.values() if answer and "return_lse" in probe.options)
        is_one = any(second.shape in ((B, N, T), (B, T, N)) for second in next(answers, ())[1:2])
        self.unknown[SECOND] = ONE_FOR_EACH if is_one else SEVERAL
        return dataclasses.replace(form, first=True)

    def _grouped(self, form: Form) -> Form:
        """The form in which keys have fewer heads than queries, if the function takes that, right or wrong."""
        if form.pack not in ("", options.CACHED) or "N" not in form.layout or form.has_one_key_head:
            return form
        switch = {name: True for name in GROUPED_NAMES if name in self.fn.names}
        wide = dataclasses.replace(form, grouped=True, given={**form.given, **switch})
        probe = Probe(arrays(self.sizes, groups=2), {})
        ways = [{"heads": x} for x in TABLE["heads"]] + [{"join": OF_GROUPS}] * (form.how["join"] == BY_LAW["join"])
        if found := self.settled([wide.but(**way) for way in ways], [probe]):
            return found
        told = {*options.KEY_HEADS, *options.GROUP_NAMES, *GROUPED_NAMES} & {*self.fn.names}  # then they are a fault
        return wide if told and self.is_result(self.answer(wide, probe), probe) else form

    def _turned(self, form: Form, free: list[str]) -> Form:
        """The form of queries whose heads and tokens are alike: in its layout a mask has more axes, or it is causal."""
        turns = {"BNTD": "BTND", "BTND": "BNTD"}
        if form.layout not in turns or form.outcome not in turns:
            return form
        turned = dataclasses.replace(form, layout=turns[form.layout], returned=form.returned and turns[form.returned])
        if not self.settled([turned], [self.plain_probe(self.sizes)]):
            return form

        def axes(x: Form) -> int:
            asked = ((name, ours) for name in free for ours in options.named(name) if ours in ("mask", "is_causal"))
            found = (y.options[ours] for name, ours in asked if (y := self.read(x, name, ours)))
            return max((1 + len(y.form.partition("/")[0]) for y in found), default=0)

        return max(form, turned, key=axes)

    def _offered(self, form: Form, name: str) -> Form | None:
        """The form with a keyword as the option that it is; ignored is what is so as each that it may be."""
        default, stated = self.fn.defaults.get(name), self.fn.stated.get(name)
        is_text = isinstance(default, str) and default != "causal" and "is_causal" not in form.options
        if is_text and (found := self._by_word(form.offering("is_causal", Option(name, WORD)))):
            return found
        kinds = [ours for ours in ([stated] if stated else options.named(name)) if ours not in form.options]
        if isinstance(default, str) and not stated:
            kinds = []  # no other option is a word
        if isinstance(default, bool):
            kinds = [ours for ours in kinds if OPTIONS[ours].values == (True,)]
        if isinstance(default, float):  # such as the number that is written where it masks
            kinds = [ours for ours in kinds if ours not in (*options.MASKED - {"window"}, "bias")]
        causal = "is_causal" in form.options or form.how["always"]
        flag = not kinds and default is False and not causal  # of any name
        guesses = options.guesses(name, default) if name in self.fn.defaults and not stated else ()
        tried = kinds or ["is_causal"] * flag or [ours for ours in guesses if ours not in form.options]
        if found := next(filter(None, (self.read(form, name, ours) for ours in tried)), None):
            return found
        padding = self.as_lengths(form) if "mask" in options.named(name) else None  # which was read as a mask
        if padding and (found := self.read(padding, name, "mask")):
            return found
        second = "mask" in form.options and "mask" in options.named(name)  # which may be a mask beside another
        ignored = [self.read(form, name, ours, True) for ours in kinds if not second]
        return ignored[0] if ignored and all(ignored) else self._otherwise(form, name, kinds)

    def _otherwise(self, form: Form, name: str, kinds: list[str]) -> Form | None:
        """The form with a keyword that is none of the options as they are read."""
        return None

    def _kept(self, form: Form) -> Form:
        """The form without the options that other calls refute: with other values, in long texts, beside others."""
        for probe in examples.refuting(Candidate(self.called, form), self.sizes):
            apart = probe.arrays[0].shape[2] != probe.arrays[1].shape[2]
            self.alike += [x for x in probe.options if apart and self.sizes == SQUARE and x not in self.alike]
            if set(probe.options) <= set(form.options) and not (apart and {*self.alike} & set(probe.options)):
                name = next((x for x in probe.options if form.how[AXIS[x]] == IGNORED), next(iter(probe.options)))
                words = f"{form.how[AXIS[name]]} in some calls, and not for {examples.told(probe, form)}"
                self.unknown[form.options[name].name or name] = words
                self.remembers |= self.answers_otherwise(name)
                self.refuting.setdefault(name, []).append(probe)
                form = form.but(**{AXIS[name]: BY_LAW[AXIS[name]]}).keeping(x for x in form.options if x != name)
        return form


def _place(name: str) -> int:
    """The place of a keyword among those that are read: a window counts beside causal, and an offset beside both."""
    return next((k for k, ours in enumerate(("window", "offset"), start=1) if ours in options.named(name)), 0)
