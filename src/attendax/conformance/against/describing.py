"""Findings about a function: the way it is called, and the conventions by which it computes. Each is tried."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..conventions.table import (
    ADDED_INSTEAD,
    DECLARED,
    EQUAL_LENGTHS,
    IGNORED,
    INSTEAD,
    NOT_GIVEN,
    OF_GROUPS,
    OF_ROOTS,
    OF_VALID,
    SEES_ALL,
    SEES_LATER,
    TABLE,
)  # fmt: skip
from ..conventions.values import factor_of, scale_of_first, solved
from ..worker.errors import Died, Failed
from . import examples, extremes, forms, options
from .asking import ALIKE, GENERAL, SQUARE, TOLERANCE, Answer, Candidate, Probe, arrays, distance, narrowed
from .forms import BY_LAW, SOFTMAX, UNKNOWN, Form, Option
from .options import (
    AXIS,
    DROPOUT_NAMES,
    GROUPED_NAMES,
    HEAD_NAMES,
    KEY_HEADS,
    NO_LIMIT,
    NUMBER,
    NUMBERED,
    OF_BATCH,
    OF_KEYS,
    ONE_HEAD,
    ONE_QUERY,
    OPEN_LENGTHS,
    OPEN_MASKS,
    OPEN_POSITIONS,
    OPEN_SEGMENTS,
    OPEN_WINDOWS,
    OPTIONS,
    PAIR,
    READ,
    RULES,
    UNREAD_NAMES,
    WIDE,
    WINDOWS,
    WITH_CAUSAL,
    WORD,
    ZERO_BIASES,
)  # fmt: skip
from .remote import Function

OTHER_SIZES: dict[tuple[int, ...], tuple[int, ...]] = {  # sizes at which a scale is another
    GENERAL: (1, 2, 4, 7, 6, 5), ALIKE: (1, 2, 4, 7, 6, 6), SQUARE: (1, 2, 7, 7, 6, 6),
}  # fmt: skip
MOST_DEATHS = 4  # of its process: before any answer, or with a keyword
DROPOUT_KEYS = 64  # keys, of which half are dropped
OF_PLAIN = "heads", "split", "join", "pairs", "width", "norm", "weights"  # axes that count in a plain call
OF_SCORES = "norm", "weights"  # beside which scores may not be scaled
SHARED_DROPOUT = ("broadcast_dropout",)  # by which heads drop the same weights, as of flax unless it is False
MODES = {"training": True, "train": True, "deterministic": False}
END = DECLARED["end"]  # of causal
WRAP = "wrap it in a function of query, key and value that gives {}"
NOT_TAKEN = "not taken, or none of the options that are known"
SECOND = "second result"
COMBINATION = "combination of"  # two options or more, each of which alone is known
SEVERAL = "it always gives several arrays, of which the first is compared"
ON_BOTH_SIDES = "no limit, if both are"  # of a negative side of a window; one alone is a number
IDENTITY = "lambda x: x"  # a dropout that is a function
NO_END = 2**20  # a window that has all keys
FILL = 1e4  # added where masked, by many functions: scores near it are rounded
LOW = 1e4  # of numbers whose products no cap leaves as they are
GARBAGE = 0.3  # a share of the largest number that no rounding moves
# of dropout, at a rate at which each gives another mean
UNSCALED, DIVIDED, OTHER_MEAN = "does not scale what is kept", "divides what is kept by the rate", "has another mean"
BEFORE, AFTER, RATE = "drops scores before the softmax", "drops numbers of the result", 0.25
IN_INFERENCE = "acts in inference as well"
ROUGH = 2.0**-8  # as a share of the largest number, of results of half precision
OF_ONE_QUERY = "mask", "bias", "scale", "softcap", "key_lengths"  # options that one query alone has
HIDING = "mask", "key_lengths", "segments", "window"  # options that hide keys, and may hide none
INSTEAD_OF = {"mask": INSTEAD, "bias": ADDED_INSTEAD}  # options that may take the place of causal
SCORE_STEPS = ("softcap", "scale", "bias", "is_causal", "window", "mask")


def _stem(name: str) -> str:
    """A name without what says that it is of queries or of keys."""
    return re.sub(r"^(query|key|q|kv?)_|_(q|kv?)$", "", name)


def _place(name: str) -> int:
    """The place of a keyword among those that are read: a window counts beside causal, and an offset beside both."""
    return next((k for k, ours in enumerate(("window", "offset"), start=1) if ours in options.named(name)), 0)


class Describing:
    """One function, as far as it is known: every convention is tried."""

    asks_beside_causal = False  # whether a window may count with causal alone, which no adapter of ``diff`` has

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.unknown: dict[str, str] = {}
        self.sizes: tuple[int, ...] = GENERAL
        self.plain_probes: dict[tuple[int, ...], Probe] = {}
        self.in_order = True  # whether its arrays are in the order of their names
        self.answers: dict[Any, Any] = {}
        self.rights: dict[Any, tuple[Answer, Probe]] = {}
        self.refuting: dict[str, list[Probe]] = {}  # calls that refute what was found of an option
        self.said, self.several, self.rough = "", False, False
        self.taken, self.refusals = set[str](), dict[str, str]()  # keywords that it took; what it said of others
        self.raised: dict[str, Failed] = {}  # the first error with each keyword
        self.deaths = collections.Counter[str]()  # of its process, with each keyword; "" is every call
        self.failed: Failed | None = None  # the last error of the function itself
        self.form: Form | None = None  # as far as it is found
        self.remembers = False  # whether a call changes what the same call gives later
        self.alike: list[str] = []  # options that it takes beside as many queries as keys alone
        causal = [x for x in OPTIONS["is_causal"].names if fn.defaults.get(x) == 1]  # it is asked without first
        drops = [x for x in DROPOUT_NAMES if isinstance(rate := fn.defaults.get(x), float) and rate > 0]
        caps = [x for x in OPTIONS["softcap"].names if isinstance(cap := fn.defaults.get(x), int | float) and cap > 0]
        numbers = [x for x, value in fn.defaults.items() if type(value) is int and value > 0]
        narrow = [x for x in numbers if options.named(x) == ["window"]]
        self.given: dict[str, Any] = dict.fromkeys(causal, False) | dict.fromkeys(drops, 0.0)
        self.given |= dict.fromkeys(caps) | dict.fromkeys(narrow, NO_END)
        self.given |= {x: False for x in SHARED_DROPOUT if fn.defaults.get(x) is True}

    def candidate(self) -> Candidate:
        """The function with all that is found out about it; raises Failed where it raises in every layout."""
        form = self._as_called()
        if not form:
            if not self._answers():
                raise Failed(self.said)
            return Candidate(self.fn, Form(path=self.fn.path), known=False)
        self.form = form = dataclasses.replace(form, arrays=self.fn.kind(), container=self.fn.container())
        self.form = form = self._grouped(self._second(form) if self.several else form)
        free, left = self._free(), []
        for name in sorted(free, key=_place):
            offered = self._offered(form, name)
            self.form = form = offered or form
            left += [] if offered else [name]
        left = [name for name in left if "segments" not in form.options or name != form.options["segments"].form]
        form = self._empty_lse(*self._empty(self._order(self._joined(self._word(form)))))
        form = self._dtypes(extremes.taken(self.answer, self._settled, form, self.sizes))
        for name in (x for x in free if x in left):
            if name in DROPOUT_NAMES:
                form = self._dropout(form, name)
                self.unknown[name] = "dropout is drawn at random; no adapter has it"
            elif name not in (*GROUPED_NAMES, *SHARED_DROPOUT) and (name in self.given or name not in form.given):
                self.unknown[name] = NOT_TAKEN
        return Candidate(self.fn, self._kept(form), True, self.unknown, self.sizes)

    def _free(self) -> list[str]:
        """Its keywords that may be options."""
        known = {name for row in OPTIONS.values() for name in (*row.names, *DROPOUT_NAMES)}
        known |= {x for x in self.fn.meant if x not in options.MEANT and options.named(x)}  # by a part of its name
        unread = {*self.fn.required, *HEAD_NAMES, *KEY_HEADS, *UNREAD_NAMES, *(self.fn.meant.keys() - known)}
        return [x for x in self.fn.names if x not in unread or x in self.fn.stated]

    def _offered(self, form: Form, name: str) -> Form | None:
        """The form with a keyword as the option that it is; ignored is what is so as each that it may be."""
        default = self.fn.defaults.get(name)
        is_text = isinstance(default, str) and default != "causal" and "is_causal" not in form.options
        if is_text and (found := self._by_word(form.offering("is_causal", Option(name, WORD)))):
            return found
        stated = self.fn.stated.get(name)
        kinds = [ours for ours in ([stated] if stated else options.named(name)) if ours not in form.options]
        if isinstance(self.fn.defaults.get(name), str) and not stated:
            kinds = []  # no other option is a word
        if isinstance(self.fn.defaults.get(name), bool):
            kinds = [ours for ours in kinds if OPTIONS[ours].values == (True,)]
        if isinstance(self.fn.defaults.get(name), float):  # such as the number that is written where it masks
            kinds = [ours for ours in kinds if ours not in (*options.MASKED - {"window"}, "bias")]
        causal = "is_causal" in form.options or form.how["always"]
        flag = not kinds and default is False and not causal  # of any name
        if found := next(filter(None, (self._read(form, name, ours) for ours in kinds or ["is_causal"] * flag)), None):
            return found
        if "mask" in options.named(name) and (found := self._beside_padding(form, name)):
            return found
        second = "mask" in form.options and "mask" in options.named(name)  # which may be a mask beside another
        ignored = [self._read(form, name, ours, True) for ours in kinds if not second]
        return ignored[0] if ignored and all(ignored) else self._otherwise(form, name, kinds)

    def _beside_padding(self, form: Form, name: str) -> Form | None:
        """The form with a keyword as its mask, if the one that was read as a mask may be of padding: it has lengths."""
        moved = self._as_lengths(form)
        return self._read(moved, name, "mask") if moved else None

    def _as_lengths(self, form: Form) -> Form | None:
        """The form whose mask of padding tells key lengths."""
        first = form.options["mask"].name if "mask" in form.options else ""
        if "key_lengths" in form.options or "key_lengths" not in options.named(first):
            return None
        rest = form.keeping(x for x in form.options if x != "mask")
        rest = rest.but(**{axis: BY_LAW[axis] for axis in ("masking", *OPTIONS["mask"].axes)})
        return self._read(rest, first, "key_lengths")

    def _otherwise(self, form: Form, name: str, kinds: list[str]) -> Form | None:
        """The form with a keyword that is none of the options as they are read."""
        return None

    def _kept(self, form: Form) -> Form:
        """The form without the options that other calls refute: with other values, in long texts, beside others."""
        for probe in examples.refuting(Candidate(self._called, form), self.sizes):
            apart = probe.arrays[0].shape[2] != probe.arrays[1].shape[2]
            self.alike += [x for x in probe.options if apart and self.sizes == SQUARE and x not in self.alike]
            if set(probe.options) <= set(form.options) and not (apart and {*self.alike} & set(probe.options)):
                name = next((x for x in probe.options if form.how[AXIS[x]] == IGNORED), next(iter(probe.options)))
                said = f"{form.how[AXIS[name]]} in some calls, and not for {examples.told(probe, form)}"
                self.unknown[form.options[name].name or name] = said
                self.remembers |= self._answers_otherwise(name)
                self.refuting.setdefault(name, []).append(probe)
                form = form.but(**{AXIS[name]: BY_LAW[AXIS[name]]}).keeping(x for x in form.options if x != name)
        return form

    def _answers_otherwise(self, ours: str) -> bool:
        """Tell whether a call with an option that had an answer before has another one now."""
        before = [x for x in self.answers.values() if x[0] and ours in x[1].options]
        after = ((found, Candidate(self._called, form).answer(probe)) for found, probe, form in before)
        return any(isinstance(now, tuple) and distance(now[:1], found[:1]) > ROUGH for found, now in after)

    def _answers(self) -> bool:
        """Tell whether some call has an answer."""
        return any(found for found, *_ in self.answers.values())

    def _as_called(self) -> Form | None:
        """The form of its plain call; of a required mask that may not be None, with one that masks nothing."""
        if more := [x for x in self.fn.required if x not in HEAD_NAMES][3:]:
            raise Failed(f"it requires {' and '.join(more)}, by a name that is not known: {WRAP.format(more[0])}")
        every = {
            **dict.fromkeys(OPTIONS["bias"].names, ZERO_BIASES),
            **dict.fromkeys(OPTIONS["mask"].names, OPEN_MASKS),
            **dict.fromkeys(OPTIONS["window"].names, OPEN_WINDOWS),
            **dict.fromkeys([*OPTIONS["segments"].names, *OPTIONS["segments"].kinds], OPEN_SEGMENTS),
            **dict.fromkeys(set(OPTIONS["key_lengths"].names) - set(OPTIONS["mask"].names), OPEN_LENGTHS),
        }
        every |= OPEN_POSITIONS
        every |= {name: OPEN_MASKS for name in self.fn.meant if name not in every and "mask" in options.named(name)}
        none, names = self.fn.meant, [name for name in self.fn.meant if name in every]
        ways = list(itertools.product(*(("None", *every[name]) for name in names)))
        orders = [True, False]
        if len(names) > 1:  # the usual order alone, and of masks the usual shape
            few = [every[x] if every[x] is ZERO_BIASES else every[x][:: len(every[x]) // 2] for x in names]
            ways, orders = list(itertools.product(*few)), [True]
        at = [k for k, name in enumerate(names) if name in OPEN_POSITIONS]
        ways = [x for x in ways if len({"zeros" in x[k] for k in at}) < 2]  # all positions of a text, or of each
        drops = [name for name in none if name in DROPOUT_NAMES]
        off = [dict.fromkeys(drops, x) for x in ("0.0", *["None", IDENTITY] * bool(drops))]  # a number, or a function
        orders = orders if names or drops else []
        for self.in_order, drop, some in itertools.product(orders, off, ways):
            self.fn.meant = {**none, **drop, **dict(zip(names, some, strict=True))}
            of_both = OPEN_SEGMENTS[0] in some or bool({*names} & {*OPEN_POSITIONS})  # of queries and keys perhaps
            if any(map(self._by_scale, (GENERAL, ALIKE, *[SQUARE] * of_both))):
                break
        else:
            self.fn.meant = none
        no_caps = {k: 0.0 if x is None else x for k, x in self.given.items()}
        no_windows = {k: x for k, x in self.given.items() if x != NO_END}
        for given in (self.given, no_caps, no_windows, {}):
            if given is self.given or given != self.given:
                self.given = given
                if form := self._plain():
                    return self._uncaused(form)
        return None

    def _uncaused(self, form: Form) -> Form:
        """The form; not causal if it is causal only as long as a parameter is None."""
        off = dict.fromkeys((x for x in OPTIONS["is_causal"].names if self.fn.defaults.get(x, "") is None), False)
        if not (off and form.how["always"]):
            return form
        given, self.given = self.given, self.given | off
        plain = self._plain()
        if plain and not plain.how["always"]:
            return plain
        self.given = given
        return form

    def _roughly(self, sizes: tuple[int, ...]) -> Form | None:
        """The form of its plain call if that is as near to the formula as half precision."""
        self.rough = True
        form = self._by_scale(sizes)
        self.rough = False
        query, *others = self._plain_probe(sizes).arrays
        if form and self._settled([form], [Probe((query * 2**-12, *others), {})]):
            return None  # of small scores it is exact, so nothing is rounded
        self.rough = form is not None
        return form

    def _word(self, form: Form) -> Form:
        """Tell whether a mask may be the word "causal", and what that means."""
        if "mask" not in form.options or "is_causal" in form.options:
            return form
        offered = form.keeping(x for x in form.options if x != "mask")
        offered = offered.offering("is_causal", Option(form.options["mask"].name, WORD))
        found = self._by_word(offered)
        return dataclasses.replace(form, word=found.how["causal"]) if found else form

    def _by_word(self, form: Form) -> Form | None:
        """The form in which the word "causal" means what it does."""
        ways = [form.but(causal=x) for x in OPTIONS["is_causal"].axes["causal"]]
        _, probes = next(self._asked(form, "is_causal"))
        if found := self._settled(ways, probes):
            return found
        lengths = [x.arrays[0].shape[2] == x.arrays[1].shape[2] for x in probes]
        refused = not any(self.answer(form, x) for x, alike in zip(probes, lengths, strict=True) if not alike)
        found = self._settled(ways, list(itertools.compress(probes, lengths))) if any(lengths) and refused else None
        self.alike += ["is_causal"] * (found is not None)
        return found

    def _called(self, /, *given: Any, **more: Any) -> Answer:
        """A call of the function; whether it gives several arrays, and its error, are kept."""
        try:
            found = self.fn(*given, **more)
        except Failed as failed:
            self.failed = failed
            raise
        self.several |= len(found) > 1
        return found

    def answer(self, form: Form, probe: Probe) -> Answer:
        """The result; nothing where it refuses that."""
        key = repr(form.plain()), id(probe)
        if key not in self.answers:
            names = {form.options[k].name for k in probe.options if k in form.options} - {""}
            if any(self.deaths[x] >= MOST_DEATHS for x in names - self.taken):
                return ()
            found = Candidate(self._called, form).answer(probe)
            if isinstance(found, Failed):
                self.deaths.update([*names, ""] * isinstance(found, Died))
                if self.deaths[""] == MOST_DEATHS and not self._answers():
                    raise found
                self.refusals |= {x: found.said for x in names if found.refusal and x in found.said}
                if found is self.failed:  # and no error of the adapter
                    self.raised = dict.fromkeys(names, found) | self.raised
                self.said, found = self.said or str(found), ()
            self.taken |= {form.options[k].name for k in probe.options if found and k in form.options}
            self.answers[key] = found, probe, form  # so that no other probe has its id
        return self.answers[key][0]

    def _settled(self, variants: Iterable[Form], probes: list[Probe]) -> Form | None:
        """The first of the forms by which the function gives what the formula gives, for each probe."""

        def agrees(form: Form, probe: Probe) -> bool:
            found = self.answer(form, probe)
            return self._is_result(found, probe) and distance(found, self._right(form, probe)) <= self._tolerance(probe)

        return next((form for form in variants if all(agrees(form, probe) for probe in probes)), None)

    def _is_result(self, found: Answer, probe: Probe) -> bool:
        """Tell whether an answer has the shape of a result."""
        return bool(found) and found[0].shape == (*probe.arrays[0].shape[:3], probe.arrays[2].shape[-1])

    def _right(self, form: Form, probe: Probe) -> Answer:
        """Right results by the conventions of a form, whatever its layout: they are computed once."""
        key = tuple(sorted(form.how.items())), id(probe)
        if key not in self.rights:
            self.rights[key] = Candidate(self.fn, form).right(probe), probe  # so that no other probe has its id
        return self.rights[key][0]

    def _probe(self, given: Mapping[str, Any]) -> Probe:
        """Arrays of the sizes of its plain call, and options."""
        return Probe(arrays(self.sizes), given)

    def _plain_probe(self, sizes: tuple[int, ...], groups: int = 0) -> Probe:
        """Arrays of some sizes, and no options: the same each time, so that no call is made again."""
        return self.plain_probes.setdefault((*sizes, groups), Probe(arrays(sizes, groups), {}))

    def _layouts(self) -> list[Form]:
        """Each way in which the arrays may be given, in the order of their names or, after those, in another one."""
        own = forms.order_of(self.fn.by_name or [x for x in self.fn.names if x not in HEAD_NAMES][:3])
        found = [dataclasses.replace(x, given=self.given) for x in forms.layouts(self.fn, self.sizes)]
        return [x for x in found if (x.order == own or not own) is self.in_order]

    def _by_scale(self, sizes: tuple[int, ...]) -> Form | None:
        """The layout, the order of the arrays, the scale and whether it is always causal, at some sizes."""
        always = ["", *OPTIONS["is_causal"].axes["causal"]]
        probe, other = (self._plain_probe(x) for x in (sizes, OTHER_SIZES[sizes]))
        self.sizes = sizes
        for layout in self._layouts():
            if not self.answer(layout, probe):
                continue
            probes = [probe, other] if self.answer(layout, other) else [probe]
            probes += [self._plain_probe(sizes, 2)] * layout.has_one_key_head  # a query head alone has any place
            hows = [
                layout.but(scale=s, always=a, empty=e)
                for a, s in itertools.product(always, TABLE["scale"])
                # Its first query has no key.
                for e in (TABLE["empty"] if "without its own" in a else (BY_LAW["empty"],))
            ]
            if (found := self._settled(hows, probes)) and self.takes(found, probe):
                return self._of_other_lengths(found)
        return None

    def _of_other_lengths(self, form: Form) -> Form:
        """The form of a function that is always causal except for a single query, or if there are as many as keys."""
        (B, N, T, S, D, V), always = self.sizes, form.how["always"]
        other = {BY_LAW["causal"]: (1, DECLARED["decode"]), "": (S, EQUAL_LENGTHS)}.get(always)
        if not other or other[0] == T:
            return form
        ways = form, form.but(always=other[1])
        return self._settled(ways, [self._plain_probe((B, N, other[0], S, D, V))]) or form

    def _plain(self) -> Form | None:
        """The form of its plainest call."""
        for self.in_order, sizes in itertools.product((True, False), OTHER_SIZES):
            if found := self._by_scale(sizes):
                return found
            probe, layouts = self._plain_probe(sizes), self._layouts()
            reading = [layout for layout in layouts if self._reads_queries(layout, probe)]
            solved = (layout.but(scale=self._solved(layout)) for layout in reading)
            if found := self._settled((x for x in solved if x.how["scale"] and self.takes(x, probe)), [probe]):
                return found
            if found := next(filter(None, map(self._capped, reading)), None) or self._roughly(sizes):
                return found
            right_shaped = (x for x in layouts if self._is_result(self.answer(x, probe), probe))
            for layout in (x for x in right_shaped if self.takes(x, probe)):
                some = examples.cases(layout, self.sizes)
                more = (x for x in some if not forms.has_more_heads(layout, x.arrays[0].shape))
                probes = [probe, *(x for x in more if self.answer(layout, x))]
                wide = (x for x in probes if min(x.arrays[0].shape[:2]) > 1)  # of one batch or head nothing is read
                if not any(x[0].any() for x in filter(None, (self.answer(layout, x) for x in wide))):  # nor from zeros
                    continue
                for axis in OF_PLAIN:
                    scales = (BY_LAW["scale"], "1")[: 1 + (axis in OF_SCORES)]
                    joins = (BY_LAW["join"], "mixed")[: 1 + (axis == "split")]  # who splits heads so may join them so
                    always = ("", *OPTIONS["is_causal"].axes["causal"])[: None if axis == "weights" else 1]
                    ways = (
                        layout.but(**{"scale": x, "join": join, "always": causal, axis: way})
                        for causal, way, x, join in itertools.product(always, list(TABLE[axis])[1:], scales, joins)
                    )
                    of_axis = [x for x in probes if axis != "weights" or not x.scores]  # which have ties
                    if found := self._settled(ways, of_axis):
                        return found
        return None

    def _reads_queries(self, form: Form, probe: Probe) -> bool:
        """Tell whether queries get other results: where all get the mean of the values, every small scale would do."""
        found = self.answer(form, probe)
        return bool(found) and found[0].ndim == 4 and np.ptp(found[0], 2).max(initial=0) > TOLERANCE

    def _solved(self, form: Form) -> str:
        """The scale of a function of that form, as a product of powers of the sizes; empty where it is none."""

        def measure(given: Mapping[str, int], _: float | None) -> float | None:
            query, key, value = (0 * x for x in arrays(tuple(given[axis] for axis in "BNTSDV")))
            query[:], key[..., 0, :], value[..., 0, :] = 2 / given["D"], 1, 1
            found = self.answer(form, Probe((query, key, value), {}))
            fits = found and found[0].shape == (*query.shape[:3], given["V"])
            return scale_of_first(found[0], given["S"]) if fits else None

        return solved(measure, dict(zip("BNTSDV", self.sizes, strict=True)))

    def _capped(self, form: Form) -> Form | None:
        """The form of a function that always caps its scores, by the share of a key with the lowest score."""
        query, key, value = (0 * x for x in arrays(self.sizes))
        query[:], key[..., 0, :], value[..., 0, :] = LOW, -LOW, 1
        lowest = Probe((query, key, value), {})
        found = self.answer(form, lowest)
        low = scale_of_first(found[0], self.sizes[3]) if self._is_result(found, lowest) else None
        if not low or low > 0:
            return None
        probe, always = self._plain_probe(self.sizes), ["", *OPTIONS["is_causal"].axes["causal"]]
        ways = itertools.product((BY_LAW["scale"], "1"), always)
        capped = (form.but(cap=f"{-2 * low:.4g}", scale=x, always=a) for x, a in ways)
        return self._settled((x for x in capped if self.takes(x, probe)), [probe])

    def takes(self, form: Form, probe: Probe) -> bool:
        """Tell whether that is its layout: not if it lacks axes and the function takes whole arrays otherwise."""
        if form.layout in ONE_QUERY:
            several = dataclasses.replace(form, layout=form.of_keys[0], of_keys=())
            return not any(self._is_result(self.answer(several, x), x) for x in (probe, self._plain_probe(SQUARE)))
        if "(" in form.layout or set("BN") <= set(form.layout):
            return True
        found = self.answer(Form(meant=self.fn.meant, by_name=self.fn.by_name), probe)
        return not found or found[0].shape != (*probe.arrays[0].shape[:3], probe.arrays[2].shape[-1])

    def _dropout(self, form: Form, name: str) -> Form:
        """Tell whether the weights that are kept are larger: of values that are all 1, the mean says it."""
        if any(map(options.is_dropout_mask, self.fn.names)):  # without which it drops nothing
            return form
        B, N, T, S, D, V = self.sizes
        # The first queries see few keys.
        many = arrays((B, N, DROPOUT_KEYS if T == S or form.how["always"] else T, DROPOUT_KEYS, D, V))
        modes = {k: x for k, x in MODES.items() if k in self.fn.names}
        keys = {forms.PREFIX + k: Option(k, "") for k in options.RANDOM_NAMES if k in self.fn.names}
        training = {k: x.replace("training=False", "training=True") for k, x in form.meant.items()}  # of an object
        given = {**form.given, **modes, name: RATE}
        asked = dataclasses.replace(form, options=keys, given=given, meant=training)
        drawn = dict.fromkeys(keys, np.array([0, 1], np.uint32))  # a key of JAX
        found = self.answer(asked, Probe((*many[:2], np.ones_like(many[2])), drawn))
        if not found:
            return form
        inference = {k: not x for k, x in modes.items()}
        if modes and self._drops_in_inference(asked, inference, Probe(many, drawn), name):
            return form.but(dropout=IN_INFERENCE)
        if np.ptp(found[0], -1).max() > ROUGH:  # of values that are equal, results are
            return form.but(dropout=AFTER)
        mean, apart = (float(x) for x in (found[0].mean(), abs(found[0] - 1).max()))
        if apart < 1e-3:
            dropped, whole = (self.answer(x, Probe(many, y)) for x, y in ((asked, drawn), (form, {})))
            draws = bool(dropped and whole) and distance(dropped[:1], whole[:1]) > ROUGH
            return form.but(dropout=BEFORE if draws else "drops nothing")
        means = {"scales what is kept by 1/(1 - rate)": 1.0, UNSCALED: 1 - RATE, DIVIDED: (1 - RATE) / RATE}
        return form.but(dropout=next((x for x, right in means.items() if abs(mean / right - 1) < 0.15), OTHER_MEAN))

    def _drops_in_inference(self, asked: Form, modes: dict[str, bool], probe: Probe, name: str) -> bool:
        """Tell whether a rate changes the results although the modes say inference."""
        rates = (dataclasses.replace(asked, given={**asked.given, **modes, name: rate}) for rate in (RATE, 0.0))
        dropped, whole = (self.answer(form, probe) for form in rates)
        return bool(dropped and whole) and distance(dropped[:1], whole[:1]) > ROUGH

    def _second(self, form: Form) -> Form:
        """The results beside its first: log-sum-exp, or others that are not compared."""
        if found := self._read(dataclasses.replace(form, first=False), "", "return_lse"):
            return found
        self.unknown[SECOND] = SEVERAL
        return dataclasses.replace(form, first=True)

    def _grouped(self, form: Form) -> Form:
        if form.pack or "N" not in form.layout or form.has_one_key_head:
            return form
        switch = {name: True for name in GROUPED_NAMES if name in self.fn.names}
        wide = dataclasses.replace(form, grouped=True, given={**form.given, **switch})
        probe = Probe(arrays(self.sizes, groups=2), {})
        ways = [{"heads": x} for x in TABLE["heads"]] + [{"join": OF_GROUPS}] * (form.how["join"] == BY_LAW["join"])
        return self._settled([wide.but(**way) for way in ways], [probe]) or form

    def _read(self, form: Form, name: str, ours: str, ignored: bool = False) -> Form | None:
        """The form in which a keyword is one of the options that are known, or is ignored as such."""
        row = OPTIONS[ours]
        if form.layout in ONE_QUERY and ours not in OF_ONE_QUERY:
            return None
        hows = [dict(zip(row.axes, values, strict=True)) for values in itertools.product(*row.axes.values())]
        if ours == "window":  # of two readings of a side that is off by one, the more usual comes first
            rare = "on both sides", "w keys, its own among them"
            hows.sort(key=lambda x: "to the" in x["window"] and (x["side"], x["reach"]) == rare)
        if form.how["always"] and ours in INSTEAD_OF:
            hows += [how | {"joins": INSTEAD_OF[ours]} for how in hows]
        hows = [{AXIS[ours]: IGNORED}] * (IGNORED in TABLE[AXIS[ours]]) if ignored else hows
        if ignored and ours == "key_lengths" and self._partner(name):
            return None
        for kinds, probes in self._asked(form, ours, name):
            offered = [form.offering(ours, Option(name, kind)) for kind in kinds]
            settled = self._settled((x.but(**how) for how in hows for x in offered), probes)
            if settled and not ignored and ours in HIDING and not self._changes(settled, probes):
                continue
            if settled and ignored and ours == "mask":  # of whatever meaning
                taken = [x.but(**hows[0]) for x in offered if self.answer(x, probes[0])]
                settled = settled if all(self._settled([x], probes) for x in taken) else None
            if found := settled if ignored or not settled else self._refined(settled, ours):
                return found
            if ours == "bias" and not ignored and (factor := self._factor(offered[0])):
                return self._settled([offered[0].but(order=x, bias=factor) for x in TABLE["order"]], probes)
        return None

    def _partner(self, name: str) -> str:
        """The parameter for queries whose name is otherwise that of one for keys: q_seqlen of kv_seqlen."""
        return next((x for x in self.fn.names if x.startswith("q") and _stem(x) == _stem(name)), "")

    def _changes(self, form: Form, probes: list[Probe]) -> bool:
        """Tell whether the options of some calls change their results by a form: else no answer refutes it."""
        by = form.but(empty="NaN")
        both = ((self._right(by, x), self._right(by, Probe(x.arrays, {}))) for x in probes)
        return any(distance(plain[:1], x[:1], some=True) > TOLERANCE for x, plain in both)

    def _asked(self, form: Form, ours: str, name: str = "") -> Iterator[tuple[tuple[str, ...], list[Probe]]]:
        """Kinds of values, and the inputs by which they are told apart; segment ids may have one name for both."""
        (B, N, T, S, D, V), row = self.sizes, OPTIONS[ours]
        if ours in ("mask", "bias"):  # of each rank
            sizes = (B, N, S, S, D, V) if form.how["always"] == EQUAL_LENGTHS else self.sizes
            for rank, of_rank in itertools.groupby(row.kinds, lambda kind: kind.split("/")[0]):
                yield tuple(of_rank), [Probe(arrays(sizes), {ours: options.drawn(ours, rank, sizes)})]
            return
        more = options.beside(ours, form.options)
        if ours == "offset" and not more:
            return
        shapes = {"is_causal": {(T, S), (S, S), (1, S)}, "window": {(T, S), (S + 4, S + 4)}, "segments": {(S, S)}}
        at = sorted((t, s) for t, s in shapes.get(ours, {(T, S)}) if T != S or t == s)
        kinds = tuple(x for x in row.kinds if x != WORD)[
            :: -1 if ours == "offset" else 1
        ]  # of each batch, where it is taken
        values = row.values[-2:]
        if ours == "segments":
            kinds = tuple(x for x in kinds if x in self.fn.names) or (name,) * bool(name)
        if ours in ("key_lengths", "segments"):
            values = tuple(options.drawn(ours, "".join(kinds[:1]), (B, N, *at[0]), seed) for seed in (0, 1))
        probes = [Probe(arrays((B, N, *x, D, V)), {ours: y, **more}) for x, y in itertools.product(at, values)]
        if ours != "window":
            yield kinds, probes
            if ours == "segments" and name and name in kinds:  # one keyword
                pairs = [options.drawn(ours, PAIR, (B, N, S, S), seed) for seed in (0, 1)]
                yield (PAIR,), [Probe(arrays((B, N, S, S, D, V)), {ours: x}) for x in pairs]
            return
        yield from (((kind,), probes) for kind in (WIDE["window"], NUMBER))
        if self.asks_beside_causal and "is_causal" in form.options and not form.how["always"]:
            yield (WITH_CAUSAL,), [x._replace(options={**x.options, "is_causal": True}) for x in probes]

    def _refined(self, form: Form, ours: str) -> Form | None:
        """Options told apart by values that are given as they are: of each head, of each batch, of two sides."""
        option, more = form.options[ours], options.beside(ours, form.options)
        if option.form == WIDE.get(ours):
            if ours == "window":
                return self._sided(form)
            values = options.own_values(ours, option, form.how, self.sizes[0])
            probes = [self._probe({ours: x} | more) for x in values]
            return self._settled([form.but(**{ours: x}) for x in (form.how[ours], *OF_BATCH)], probes)
        if option.form == WITH_CAUSAL and not self._settled([form.but(window=IGNORED)], [self._probe({ours: 1})]):
            return None
        if ours == "scale":
            for value, other in ((0.0, NOT_GIVEN), (-1.0, OF_ROOTS)):
                form = self._settled([form, form.but(given_scale=other)], [self._probe({ours: value})]) or form
            return form
        if ours in ("mask", "bias") and option.form.startswith("BNTS") and not self._has_each_axis(form, ours):
            return None
        if ours in ("mask", "bias") and option.form.startswith("BNTS") and form.grouped:
            form = self._of_one_head_beside_groups(form, ours)
        each_head = ours == "mask" and form.options[ours].form.startswith("BNTS") and self.sizes[1] > 1
        if each_head and form.how["mask"] == READ[0]:
            mask = options.drawn("mask", option.form, self.sizes, each_head=True)
            return self._settled([form, form.but(mask="first head")], [self._probe({"mask": mask})]) or form
        return form

    def _of_one_head_beside_groups(self, form: Form, ours: str) -> Form:
        """The form; with a mask or a bias of one head if beside fewer key heads it takes no other."""
        option, groups = form.options[ours], arrays(self.sizes, groups=2)
        given = options.drawn(ours, option.form, self.sizes, each_head=True)
        if self._is_nearly(form, Probe(groups, {ours: given})):
            return form
        one = form.offering(ours, option._replace(form=option.form.replace("BNTS", ONE_HEAD, 1)))
        return one if self._is_nearly(one, Probe(groups, {ours: given[:, :1]})) else form

    def _has_each_axis(self, form: Form, ours: str) -> bool:
        """Tell whether a mask or a bias has four axes where B > T and N > S: a part [:T, :S] of it is refuted."""
        B, N, T, S, D, V = self.sizes
        few = min(B, N - 1) or 1
        sizes = B + 1, N, few, few if T == S else N - 1 or 1, D, V
        given = options.drawn(ours, form.options[ours].form.partition("/")[0], sizes)
        plain, probe = Probe(arrays(sizes), {}), Probe(arrays(sizes), {ours: given})
        return not self.answer(form, plain) or self._is_nearly(form, probe)

    def _sided(self, form: Form) -> Form | None:
        """A window of two sides, and what it does with a side that is negative, or None; a row without keys may be any.

        Sides that are -1 count from the beginning if the default has them.
        """
        plain = form.but(reach=BY_LAW["reach"], side=BY_LAW["side"], negative=NO_LIMIT, none=UNKNOWN)
        probes = [self._probe({"window": x}) for x in (*options.PAIRS, *options.NEGATIVE[:2] * self._is_free(form))]
        found = self._settled([plain.but(window=x) for x in WINDOWS], probes)
        return self._limited(found) if found else None

    def _is_free(self, form: Form) -> bool:
        """Tell whether its window has no limits by default, which are -1."""
        default = self.fn.defaults.get(form.options["window"].name)
        return -1 in (default if isinstance(default, (tuple, list)) else (default,))

    def _limited(self, form: Form) -> Form:
        """The form with what a side of a window does that is negative, or None."""
        negative, none = (
            [self._probe({"window": x}) for x in some] for some in (options.NEGATIVE[2:], options.HALF_OPEN)
        )

        def first_of(axis: str, values: Iterable[str], probes: list[Probe]) -> str:
            fits = (x for x in values if all(self._is_nearly(form.but(**{axis: x}), probe) for probe in probes))
            return next(fits, UNKNOWN)

        free = self._is_free(form)
        negative_is = first_of("negative", (NO_LIMIT, NUMBERED), negative) or NO_LIMIT * free
        negative_is = ON_BOTH_SIDES if free and negative_is == NUMBERED else negative_is
        return form.but(negative=negative_is, none=first_of("none", (NO_LIMIT,), none))

    def _is_nearly(self, form: Form, probe: Probe) -> bool:
        """Tell whether the function gives what the formula gives, except for queries without any key."""
        found, right = self.answer(form, probe), self._right(form.but(empty="NaN"), probe)
        return bool(found) and distance(found, right, some=True) <= self._tolerance(probe)

    def _tolerance(self, probe: Probe) -> float:
        return max(probe.tolerance, ROUGH) if self.rough else probe.tolerance

    def _factor(self, form: Form) -> str:
        query, key, value = (0 * x for x in arrays(self.sizes))
        value[..., 0, :] = 1
        bias = 0 * options.drawn("bias", form.options["bias"].form, self.sizes)
        bias[..., 0] = 1
        found = self.answer(form, Probe((query, key, value), {"bias": bias}))
        one = scale_of_first(found[0], self.sizes[3]) if found else None
        return factor_of(one, one, "bias")

    def _joined(self, form: Form) -> Form:
        """Tell whether causal counts beside a mask, and whether key lengths move its end, and that of a window."""
        for ours, axis, end in (("is_causal", "causal", END), ("window", "window", "end")):
            if form.how[axis] == end and {"key_lengths", ours} <= form.options.keys():
                drawn = options.drawn("key_lengths", form.options["key_lengths"].form, self.sizes)
                by_lengths = [self._probe({"key_lengths": drawn, ours: OPTIONS[ours].values[0]})]
                ways = (form.but(**{axis: x, "empty": y}) for x in (end, OF_VALID) for y in TABLE["empty"])
                found = self._settled(ways, by_lengths)
                form = form.but(**{axis: found.how[axis]}) if found else form
        if not {"mask", "is_causal"} <= form.options.keys():
            return form
        mask = options.drawn("mask", form.options["mask"].form, self.sizes)
        probe = self._probe({"mask": mask, "is_causal": True})
        if found := self._settled([form, form.but(joins=INSTEAD)], [probe]):
            return found
        lengths = self._as_lengths(form) if form.how["causal"] == END else None
        moved = self._joined(lengths) if lengths else form
        return moved if moved.how["causal"] == OF_VALID else form

    def _order(self, form: Form) -> Form:
        """The order in which scale, softcap, bias and mask come."""
        if len(set(SCORE_STEPS) & set(form.options)) < 2:
            return form
        asked = {
            k: options.drawn(k, x if (x := form.options[k].form).startswith((OF_KEYS, "BS/")) else "TS", self.sizes)
            for k in SCORE_STEPS
            if k in form.options
        }
        ways = [form.but(order=x) for x in dict.fromkeys((form.how["order"], *TABLE["order"]))]
        rules: list[dict[str, Any]] = [{}, *({k: asked.pop(k)} for k in RULES if k in asked)]
        if "window" in form.options and form.options["window"].form == WITH_CAUSAL:
            rules = [x | dict.fromkeys(["is_causal"] * ("window" in x), True) for x in rules]
        probes = [probe for probe in (self._probe({**asked, **rule}) for rule in rules) if self.answer(form, probe)]
        found = self._settled(ways, probes) if probes else form
        return found or self._fewer(form, ways, {k: x for probe in probes for k, x in probe.options.items()})

    def _fewer(self, form: Form, ways: list[Form], asked: dict[str, Any]) -> Form:
        """The fewest options that no order explains, of those that none explains together; the order of all others."""

        def words(*some: str) -> str:
            return " and ".join(form.options[k].name for k in some)

        names = sorted(asked, key=lambda k: k == "scale")
        for some in (x for count in range(2, len(names) + 1) for x in itertools.combinations(names, count)):
            probe = self._probe({k: asked[k] for k in some})
            if not self.answer(form, probe) or self._settled(ways, [probe]):
                continue
            together = f"{COMBINATION} {words(*some)}"
            self.unknown[together] = "no known formula gives its results"
            for left in some:  # as if one of them were not given
                rest = tuple(k for k in some if k != left)
                without = self.answer(form, self._probe({k: asked[k] for k in rest}))
                if without and distance(without, self.answer(form, probe)) <= TOLERANCE:
                    self.unknown[together] = f"{words(left)} is ignored if {words(*rest)} is given"
            others = self._probe({k: x for k, x in asked.items() if k not in some})
            return self._settled(ways, [others]) or form
        return form

    def _empty_lse(self, form: Form, probe: Probe | None) -> Form:
        """The log-sum-exp of a query without any key, where it is one number."""
        if probe is None or "return_lse" not in form.options:
            return form
        asked = probe._replace(options={**probe.options, "return_lse": True})
        found, empty = self.answer(form, asked), np.isneginf(Candidate(self.fn, form).right(asked)[1])
        if not empty.any():
            return form
        fits = bool(found[1:]) and found[1].shape == empty.shape
        mask = form.options.get("mask")
        if found and not fits and mask and mask.form.startswith("BNTS/"):  # a function may take one for all heads alone
            return self._empty_lse(form.offering("mask", mask._replace(form=mask.form.replace("N", "", 1))), probe)
        seen = {f"{x:.7g}" for x in found[1][empty]} if fits else set()
        if len(seen) != 1:
            self.unknown["log-sum-exp of a query without any key"] = "no one number"
        return form.but(empty_lse=seen.pop() if len(seen) == 1 else UNKNOWN)

    def _empty(self, form: Form) -> tuple[Form, Probe | None]:
        """The result of a query without any key, and an input with such."""
        B, N, _, S, D, V = self.sizes
        rules = {x: 1 if x == "window" else True for x in RULES if x in form.options}
        if "mask" in form.options and form.how["masking"] == BY_LAW["masking"] and form.how["mask"] != IGNORED:
            for sizes in (self.sizes, (B, N, S, S, D, V)):  # some take a mask beside as many queries as keys alone
                mask = options.drawn("mask", form.options["mask"].form, sizes) | True
                mask[(..., 1, slice(None)) if mask.shape[2] > 1 else 0] = False
                probe = Probe(arrays(sizes), {"mask": mask})
                if self.answer(form, probe):
                    break
        elif "key_lengths" in form.options and "mask" not in form.options:
            probe = self._probe({"key_lengths": np.resize([0, S], B).astype(np.int32)})
        elif "segments" in form.options and "mask" not in form.options:
            if options.is_one_for_both("segments", form.options["segments"].form):  # each query sees itself
                return form, None
            ids = (np.arange(x)[None].repeat(B, 0).astype(np.int32) // 2 for x in (2 * S, S))
            probe = Probe(arrays((B, N, 2 * S, S, D, V)), {"segments": tuple(ids)})
        elif (rules or "to the end" in form.how["always"]) and "mask" not in form.options:
            probe = Probe(arrays((B, N, S + 4, S, D, V)), rules)
        else:
            return form, None
        found = self._settled([form.but(empty=x) for x in TABLE["empty"]], [probe])
        found = found or self._settled([form.but(empty=SEES_ALL)], [probe._replace(scores=(FILL,))])
        both = form.how["always"] and form.how["joins"] != INSTEAD
        if both and "mask" in probe.options:  # a mask may leave keys that causal hides
            mask = probe.options["mask"] | True
            mask[..., : 1 + max(S - self.sizes[2], 0)] = False
            found = self._settled([form.but(empty=SEES_LATER)], [probe, self._probe({"mask": mask})]) or found
        is_law = all(form.how[x] == BY_LAW[x] for x in (*OF_PLAIN, *{AXIS[x] for x in probe.options} - {"window"}))
        known = {"mask", "key_lengths", "segments"} & set(probe.options) and self.answer(form, probe)
        if not found and is_law and known:
            self.unknown["empty rows"] = "a query without any key gets neither 0, the mean of the values nor NaN"
        return found or form, probe

    def _dtypes(self, form: Form) -> Form:
        """The dtypes in which it computes and answers, asked in bfloat16."""
        form = form.but(softmax=UNKNOWN, out=UNKNOWN)
        probes = [narrowed(self.sizes, seed, times=8) for seed in range(3)]
        found = [self.answer(dataclasses.replace(form, options={}), probe) for probe in probes]
        if not all(found):
            return form
        pairs = list(zip(found, probes, strict=True))
        ways = {way: Candidate(self.fn, form.but(softmax=way)) for way in SOFTMAX}
        apart = {way: max(distance(x, by.right(probe)) for x, probe in pairs) for way, by in ways.items()}
        nearest = min(SOFTMAX, key=lambda way: apart[way])
        if apart[nearest] > GARBAGE:
            self.unknown["bfloat16 arrays"] = "of large numbers they give no attention by any known rounding"
            return form
        clear = nearest == SOFTMAX[0] or 2 * apart[nearest] < apart[SOFTMAX[0]]
        out = str(found[0][0].dtype)
        return form.but(out="of the query" if out == "bfloat16" else out, softmax=nearest if clear else UNKNOWN)
