"""The plain call of a function: its layout, the order of its arrays, its scale, and whether it is always causal."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..conventions.table import DECLARED, EQUAL_LENGTHS, TABLE
from ..conventions.values import scale_of_first, solved
from ..worker.errors import Failed
from . import examples, forms, options
from .asking import ALIKE, GENERAL, SQUARE, TOLERANCE, Probe, arrays
from .caller import Caller
from .forms import BY_LAW, Form
from .options import (
    DROPOUT_NAMES,
    HEAD_NAMES,
    ONE_QUERY,
    OPEN_MASKS,
    OPEN_POSITIONS,
    OPEN_ROTATIONS,
    OPEN_SEGMENTS,
    OPEN_SINKS,
    OPTIONS,
    ZERO_BIASES,
)
from .remote import Function
from .weights import WEIGHTS

OTHER_SIZES: dict[tuple[int, ...], tuple[int, ...]] = {  # sizes at which a scale is another
    GENERAL: (1, 2, 4, 7, 6, 5), ALIKE: (1, 2, 4, 7, 6, 6), SQUARE: (1, 2, 7, 7, 6, 6),
}  # fmt: skip
OPEN = {  # values of options that are required and may not be None: they hide nothing and add nothing
    "key_lengths": ("xp.zeros((B,), dtype=xp.int32) + S",), "bias": ZERO_BIASES, "mask": OPEN_MASKS,
    "window": ("T + S", "(-1, -1)", "(None, None)"),
}  # fmt: skip
OPEN_VALUES = {  # by name
    **{name: values for ours, values in OPEN.items() for name in OPTIONS[ours].names},
    **dict.fromkeys([*OPTIONS["segments"].names, *OPTIONS["segments"].kinds], OPEN_SEGMENTS),
    **OPEN_POSITIONS,
    **OPEN_ROTATIONS,
    "S": OPEN_SINKS,
    "cache_len": ("0", *OPEN["key_lengths"], "S"),
}
ALL_TRIED = {ZERO_BIASES, *OPEN_ROTATIONS.values()}  # values of which each is tried, also beside others
# Axes that count in a plain call.
OF_PLAIN = "heads", "split", "join", "pairs", "width", "norm", "rotary", "alibi", "weights"
HINTS = {  # in a source: axes to try first
    "norm": "norm", "rotary": "rope|rotary|rotate|freq|theta", "alibi": "alibi|slope", "weights": "relu|sigmoid|top_?k",
}  # fmt: skip
OF_SCORES = "norm", "rotary", "alibi", "weights"  # beside which scores may not be scaled
OF_CAUSAL = "split", "join", "norm", "rotary", "alibi", "weights"  # beside which it may always be causal
ALWAYS = "", *OPTIONS["is_causal"].axes["causal"]  # values of being causal without an option
SHARED_DROPOUT = ("broadcast_dropout",)  # by which heads drop the same weights, as of flax unless it is False
WRAP = "wrap it in a function of query, key and value that gives {}"
IDENTITY = "lambda x: x"  # a dropout that is a function
NO_END = 2**20  # a window that has all keys
LOW = 1e4  # of numbers whose products no cap leaves as they are


class PlainCall(Caller):
    """Calls without options."""

    def __init__(self, fn: Function) -> None:
        super().__init__(fn)
        self.in_order = True  # whether its arrays are in the order of their names
        on = [x for x, value in fn.defaults.items() if value is True]
        causal = [x for x in OPTIONS["is_causal"].names if fn.defaults.get(x) == 1]  # it is asked without first
        causal += [x for x in on if x not in causal and "is_causal" in options.named(x)]
        drops = [x for x in DROPOUT_NAMES if isinstance(rate := fn.defaults.get(x), float) and rate > 0]
        caps = [x for x in OPTIONS["softcap"].names if isinstance(cap := fn.defaults.get(x), int | float) and cap > 0]
        numbers = [x for x, value in fn.defaults.items() if type(value) is int and value > 0]
        narrow = [x for x in numbers if options.named(x) == ["window"]]
        self.given: dict[str, Any] = dict.fromkeys(causal, False) | dict.fromkeys(drops, 0.0)
        self.given |= dict.fromkeys(caps) | dict.fromkeys(narrow, NO_END)
        self.given |= {x: False for x in SHARED_DROPOUT if fn.defaults.get(x) is True}

    def _as_called(self) -> Form | None:
        """The form of its plain call."""
        if more := [x for x in self.fn.required if x not in HEAD_NAMES][3:]:
            raise Failed(f"it requires {' and '.join(more)}, by a name that is not known: {WRAP.format(more[0])}")
        self._complete()
        no_caps = {k: 0.0 if x is None else x for k, x in self.given.items()}
        no_windows = {k: x for k, x in self.given.items() if x != NO_END}
        for given in (self.given, no_caps, no_windows, {}):
            if given is self.given or given != self.given:
                self.given = given
                if form := self._plain():
                    return self._uncaused(form)
        return None

    def _complete(self) -> None:
        """Find values of required arguments that may not be None: a mask that hides nothing, a bias of zeros."""
        none = self.fn.meant
        unknown = (k for k, x in none.items() if x == "None" and k not in OPEN_VALUES)
        others = {x: options.named(x)[:1] for x in unknown}  # by a part of the name
        every = OPEN_VALUES | {x: OPEN[ours] for x, some in others.items() for ours in some if ours in OPEN}
        names = [name for name in none if name in every]
        ways = list(itertools.product(*(("None", *every[name]) for name in names)))
        orders = [True, False]
        if len(names) > 1:  # the usual order alone, and of masks the usual shape
            few = [every[x] if every[x] in ALL_TRIED else every[x][:: max(len(every[x]) // 2, 1)] for x in names]
            ways, orders = list(itertools.product(*few)), [True]
        at = [k for k, name in enumerate(names) if name in OPEN_POSITIONS]
        ways = [x for x in ways if len({"zeros" in x[k] for k in at}) < 2]  # all positions of a text, or of each
        turns = [(k, OPEN_ROTATIONS[x]) for k, x in enumerate(names) if x in OPEN_ROTATIONS and len(names) > 1]
        ways = [x for x in ways if len({every.index(x[k]) for k, every in turns}) < 2]  # cosines and sines alike
        drops = [name for name in none if name in DROPOUT_NAMES]
        off = [dict.fromkeys(drops, x) for x in ("0.0", *["None", IDENTITY] * bool(drops))]  # a number, or a function
        sizes = ((GENERAL, ALIKE), (SQUARE,)) if names or drops else ()
        for self.in_order, some, drop, values in itertools.product(orders, sizes, off, ways):
            self.fn.meant = {**none, **drop, **dict(zip(names, values, strict=True))}
            if any(map(self._by_scale, some)):
                return
            if values and {*values} == {"None"} and any(map(self._answers, some)):
                break  # it takes None, so that nothing else is needed
        self.fn.meant = none

    def _answers(self, sizes: tuple[int, ...]) -> bool:
        """Tell whether it gives a result in some layout."""
        probe = self.plain_probe(sizes)
        return any(self.is_result(self.answer(x, probe), probe) for x in self._layouts())

    def _uncaused(self, form: Form) -> Form:
        """The form; not causal if it is causal only as long as a parameter is None."""
        off = dict.fromkeys((x for x in OPTIONS["is_causal"].names if self.fn.defaults.get(x, "") is None), False)
        if not (off and form.how["always"]):
            return form
        before, self.given = self.given, self.given | off
        plain = self._plain()
        if plain and not plain.how["always"]:
            return plain
        self.given = before
        return form

    def _plain(self) -> Form | None:
        """The form of its plainest call."""
        for self.in_order, sizes in itertools.product((True, False), OTHER_SIZES):
            if found := self._by_scale(sizes):
                return found
            probe, several = (self.plain_probe(sizes, groups) for groups in (0, 2))
            layouts = [x for x in self._layouts() if not x.has_one_key_head or self.answer(x, several)]
            reading = [layout for layout in layouts if self._reads_queries(layout, probe)]
            solved = (layout.but(scale=self._solved(layout)) for layout in reading)
            if found := self.settled((x for x in solved if x.how["scale"] and self.takes(x, probe)), [probe]):
                return found
            if found := next(filter(None, map(self._capped, reading)), None) or self._roughly(sizes):
                return found
            right_shaped = (x for x in layouts if self.is_result(self.answer(x, probe), probe))
            unusual = (self._by_axes(x, probe, OF_PLAIN) for x in right_shaped if self.takes(x, probe))
            if found := next(filter(None, unusual), None):
                return found
        return None

    def _by_axes(self, form: Form, probe: Probe, axes: Sequence[str]) -> Form | None:
        """The form of a function that is unusual by one of the axes, by calls of each kind."""
        numbers = [f"{x:.6g}" for x in self._own_scales()]
        for axis in axes:
            scales = (BY_LAW["scale"], *["1", *numbers] * (axis in OF_SCORES))
            joins = (BY_LAW["join"], "mixed")[: 1 + (axis == "split")]  # who splits heads so may join them so
            always = ALWAYS[: None if axis in OF_CAUSAL else 1]
            ways = (
                form.but(**{"scale": scale, "join": join, "always": causal, axis: way})
                for causal, way, scale, join in itertools.product(always, list(TABLE[axis])[1:], scales, joins)
            )
            near = [x for x in ways if self.settled([x], [probe])]
            probes = self._more(form, probe, axis, len(near)) if near else []
            if probes and (found := self.settled(near, probes)):
                return found
        return None

    def _more(self, form: Form, probe: Probe, axis: str, count: int) -> list[Probe]:
        """More calls without options, that tell apart so many values of an axis; none if nothing can be told."""
        cases = (x for x in examples.cases(form, self.sizes) if not x.narrow)  # whose norms are rounded
        cases = (x for x in cases if not forms.has_more_heads(form, x.arrays[0].shape))
        if axis in OF_CAUSAL:  # what a query before all keys gets is found later
            cases = (x for x in cases if x.arrays[0].shape[2] <= x.arrays[1].shape[2])
        asked = (x for x in cases if count > 1 or x.arrays[1].shape[2] < examples.LONG_T)
        probes = [probe, *(x for x in asked if self.answer(form, x))]
        wide = (x for x in probes if min(x.arrays[0].shape[:2]) > 1)  # of one batch or head nothing is read
        if not any(x[0].any() for x in filter(None, (self.answer(form, x) for x in wide))):  # nor from zeros
            return []
        return [x for x in probes if axis != "weights" or not x.scores]  # which have ties

    def _by_scale(self, sizes: tuple[int, ...]) -> Form | None:
        """The layout, the order of the arrays, the scale and whether it is always causal, at some sizes."""
        probe, other = (self.plain_probe(x) for x in (sizes, OTHER_SIZES[sizes]))
        self.sizes = sizes
        own = [f"{x:.6g}" for given in self._own_scales() for x in (given, 1 / given, given**-0.5)]
        hinted = [axis for axis, words in HINTS.items() if re.search(words, self.fn.source, re.I)]
        for layout in self._layouts():
            if not self.answer(layout, probe):
                continue
            probes = [probe, other] if self.answer(layout, other) else [probe]
            probes += [self.plain_probe(sizes, 2)] * layout.has_one_key_head  # a query head alone has any place
            hows = [
                layout.but(scale=scale, always=always, empty=empty)
                for always, scale in itertools.product(ALWAYS, (*TABLE["scale"], *own))
                for empty in (TABLE["empty"] if "without its own" in always else (BY_LAW["empty"],))  # its first query
            ]
            if (found := self.settled(hows, probes)) and self.takes(found, probe):
                return self._of_other_lengths(found)
            tried = hinted and self.is_result(self.answer(layout, probe), probe) and self.takes(layout, probe)
            if tried and (found := self._by_axes(layout, probe, hinted)):
                return found
        return None

    def _own_scales(self) -> list[float]:
        """The numbers that a parameter for the scale has by default."""
        own = (self.fn.defaults.get(x) for x in OPTIONS["scale"].names)
        return [float(x) for x in own if isinstance(x, int | float) and x > 0 and x is not True]

    def _of_other_lengths(self, form: Form) -> Form:
        """The form of a function that is always causal except for a single query, or if there are as many as keys."""
        (B, N, T, S, D, V), always = self.sizes, form.how["always"]
        other = {BY_LAW["causal"]: (1, DECLARED["decode"]), "": (S, EQUAL_LENGTHS)}.get(always)
        if not other or other[0] == T:
            return form
        ways = form, form.but(always=other[1])
        return self.settled(ways, [self.plain_probe((B, N, other[0], S, D, V))]) or form

    def _layouts(self) -> list[Form]:
        """Each way in which the arrays may be given, in the order of their names or, after those, in another one."""
        own = forms.order_of(self.fn.by_name or [x for x in self.fn.names if x not in HEAD_NAMES][:3])
        if not own and sum(x not in HEAD_NAMES for x in self.fn.required) < 3:  # some are in one
            own = Form.order
        found = [dataclasses.replace(x, given=self.given) for x in forms.layouts(self.fn, self.sizes)]
        if any("T, S" in x for x in self.fn.meant.values()):  # of one query, masks of several ranks would do
            found = [x for x in found if "1" not in x.layout]
        if {*OPEN_ROTATIONS} & {*self.fn.meant}:  # which broadcast beside any axes
            found = [x for x in found if x.layout not in ONE_QUERY]
        return [x for x in found if (x.order == own or not own) is self.in_order]

    def takes(self, form: Form, probe: Probe) -> bool:
        """Tell whether that is its layout: not if it lacks axes and the function takes whole arrays otherwise."""
        if form.layout in ONE_QUERY and form.of_keys:
            several = dataclasses.replace(form, layout=form.of_keys[0], of_keys=())
            return not any(self.is_result(self.answer(several, x), x) for x in (probe, self.plain_probe(SQUARE)))
        if "(" in form.layout or set("BN") <= set(form.layout) or form.layout in WEIGHTS:
            return True
        found = self.answer(Form(meant=self.fn.meant, by_name=self.fn.by_name), probe)
        return not self.is_result(found, probe)

    def _reads_queries(self, form: Form, probe: Probe) -> bool:
        """Tell whether queries get other results: where all get the mean of the values, every small scale would do."""
        found = self.answer(form, probe)
        return bool(found) and found[0].ndim == 4 and np.ptp(found[0], 2).max(initial=0) > TOLERANCE

    def _solved(self, form: Form) -> str:
        """The scale of a function of that form, as a product of powers of the sizes; empty where it is none."""

        def measure(sizes: Mapping[str, int], _: float | None) -> float | None:
            query, key, value = (0 * x for x in arrays(tuple(sizes[axis] for axis in "BNTSDV")))
            query[:], key[..., 0, :], value[..., 0, :] = 2 / sizes["D"], 1, 1
            probe = Probe((query, key, value), {})
            found = self.answer(form, probe)
            return scale_of_first(found[0], sizes["S"]) if self.is_result(found, probe) else None

        return solved(measure, dict(zip("BNTSDV", self.sizes, strict=True)))

    def _capped(self, form: Form) -> Form | None:
        """The form of a function that always caps its scores, by the share of a key with the lowest score."""
        query, key, value = (0 * x for x in arrays(self.sizes))
        query[:], key[..., 0, :], value[..., 0, :] = LOW, -LOW, 1
        lowest = Probe((query, key, value), {})
        found = self.answer(form, lowest)
        low = scale_of_first(found[0], self.sizes[3]) if self.is_result(found, lowest) else None
        if not low or low > 0:
            return None
        probe, ways = self.plain_probe(self.sizes), itertools.product((BY_LAW["scale"], "1"), ALWAYS)
        capped = (form.but(cap=f"{-2 * low:.4g}", scale=x, always=a) for x, a in ways)
        return self.settled((x for x in capped if self.takes(x, probe)), [probe])

    def _roughly(self, sizes: tuple[int, ...]) -> Form | None:
        """The form of its plain call if that is as near to the formula as half precision."""
        self.rough = True
        form = self._by_scale(sizes)
        self.rough = False
        query, *others = self.plain_probe(sizes).arrays
        if form and self.settled([form], [Probe((query * 2**-12, *others), {})]):
            return None  # of small scores it is exact, so nothing is rounded
        self.rough = form is not None
        return form
