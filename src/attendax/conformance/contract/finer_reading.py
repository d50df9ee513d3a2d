"""Keywords read more finely than two functions are compared by: what ``check`` judges has to be certain."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from ..against import examples, forms, options
from ..against.asking import TOLERANCE, Candidate, Probe, arrays, distance
from ..against.combinations import as_bias
from ..against.describing import Describing
from ..against.empty_rows import FILL
from ..against.forms import BY_LAW, Form, Option
from ..against.options import AXIS, OPTIONS
from ..against.remote import Function
from ..against.weights import WEIGHT, projected
from ..conventions.table import IGNORED, IN_TURN, SEES_ALL, TABLE, UNSEARCHED

LONG_T, LONG_S = 149, 599  # tokens of texts in which blocks show, and keys of few queries: no multiples of a block
OF_BLOCKS = "weights", "pairs"  # axes with values that show in long texts alone


class FinerReading(Describing):
    """``Describing`` for ``check``: it knows more layouts, masks, and values that are nobody's convention."""

    asks_beside_causal, asks_narrow = True, False  # narrow arrays are judged by ``check``

    def __init__(self, fn: Function) -> None:
        super().__init__(fn)
        self.faults = dict[str, str]()  # wrong parameters that no case tests, and what they do

    def _as_called(self) -> Form | None:
        """The form of its plain call; of a function that is another in long texts, with the value that shows there."""
        form = super()._as_called()
        if not form or not self._has_keys_of_one(form):
            return None
        N, T, S, *widths = self.sizes[1:]
        probe = self.plain_probe((1, N, LONG_T, LONG_T, *widths) if T == S else (1, N, T, LONG_S, *widths))
        if not self.answer(form, probe) or self.is_nearly(form, probe):
            return form
        values = ((axis, x) for axis in OF_BLOCKS for x in list(TABLE[axis])[1:])
        return self.settled((form.but(**{axis: x}) for axis, x in values), [self.probe({}), probe]) or form

    def _has_keys_of_one(self, form: Form) -> bool:
        """Tell whether keys are made of the second of two arrays alone: the first is 0, and values are not."""
        first = next((k for k, x in form.meant.items() if x.startswith("xp.eye(") and not WEIGHT.fullmatch(k)), "")
        if not first or len(projected(form.meant)) < 2:
            return True
        none = dataclasses.replace(form, meant={**form.meant, first: f"0 * {form.meant[first]}"})
        probe = self.plain_probe(self.sizes)
        zero = probe._replace(arrays=(0 * probe.arrays[0], *probe.arrays[1:]))
        found, right = self.answer(none, probe), self.right(form, zero)
        return not found or distance(found[:1], right[:1]) <= TOLERANCE

    def _offered(self, form: Form, name: str) -> Form | None:
        """The form with a keyword; with arrays of one head if a mask or lengths mean nothing beside several.

        If all heads share the keys, options alone tell the axis of heads from that of queries.
        """
        ways: list[Form | None] = [form]
        if form.layout == "BNTD" and not (form.grouped or form.pack or form.of_keys):  # of which one may be the other
            ways.append(dataclasses.replace(form, layout="NBTD"))
        ways.append(self._of_one_head(form, options.named(name)))
        if form.has_one_key_head and form.layout in ("BNTD", "BTND"):
            ways.append(dataclasses.replace(form, layout="BTND" if form.layout == "BNTD" else "BNTD"))
        return next(filter(None, (super(FinerReading, self)._offered(x, name) for x in ways if x)), None)

    def _of_one_head(self, form: Form, kinds: Iterable[str]) -> Form | None:
        """The form with arrays of one head, in which a mask or lengths may have another meaning."""
        if form.layout not in ("BNTD", "NTD") or not {"mask", "key_lengths"} & {*kinds}:
            return None
        return dataclasses.replace(form, layout="BTD", grouped=False)

    def read(self, form: Form, name: str, ours: str, ignored: bool = False) -> Form | None:
        """Read a keyword; a mask that is added is refuted by a finite number, a boolean one may also be added."""
        found = super().read(form, name, ours, ignored)
        if not found or ours != "mask" or ignored:
            return found
        if found.options[ours].form.endswith(options.ADDED):
            return found if self._adds(found) else None
        if self._is_turned(found):
            self.faults[name] = "a mask of 0 and 1 hides what a boolean mask lets see"
        return self._either(found)

    def _adds(self, form: Form, *, alike: bool = False) -> bool:
        """Tell whether a mask that is added lowers a score by 1 where it is -1."""
        name, rank = form.options["mask"].name, form.options["mask"].form.split("/")[0]
        B, N, T, S, D, V = self.sizes
        sizes = B, N, S if alike else T, S, D, V
        inputs, mask = arrays(sizes), options.drawn("mask", rank, sizes)
        lowering = form.offering("mask", Option(name, f"{rank}/{options.LOWERS}"))
        found = self.answer(lowering, Probe(inputs, {"mask": mask}))
        bias = np.broadcast_to(np.where(mask, 0, -1), (B, N, *sizes[2:4])).astype(np.float32)
        with_bias = form.keeping(()).but(bias=BY_LAW["bias"], order=BY_LAW["order"])
        with_bias = with_bias.but(bias=IN_TURN) if form.how["mask"] == IN_TURN else with_bias
        with_bias = with_bias.offering("bias", Option("bias", "BNTS"))
        right = self.right(with_bias, Probe(inputs, {"bias": bias}))
        return bool(found) and distance(found[:1], right[:1]) <= TOLERANCE

    def _is_turned(self, form: Form) -> bool:
        """Tell whether whole numbers in a mask mean the contrary of what a boolean mask means."""
        name, kind = form.options["mask"]
        rank, _, meaning = kind.partition("/")
        if not meaning.startswith("True"):
            return False
        probe = self.probe({"mask": options.drawn("mask", rank, self.sizes)})
        found = self.answer(form.offering("mask", Option(name, f"{rank}/{options.WHOLE}")), probe)
        drops = meaning.startswith("True drops")
        masks = probe.options["mask"], ~probe.options["mask"]
        rights = (self.right(form.but(empty="NaN"), probe._replace(options={"mask": x})) for x in masks)
        seen, hidden = (bool(found) and distance(found[:1], x[:1], some=True) <= TOLERANCE for x in rights)
        return (seen and not hidden) if drops else (hidden and not seen)

    def _either(self, form: Form) -> Form:
        """The form in which a boolean mask may be numbers too, if these are a bias by some value of its axes."""
        name, kind = form.options["mask"]
        if "True" not in kind or "bias" in form.options:
            return form
        bias = options.drawn("bias", kind.partition("/")[0], self.sizes)
        plain, axes = as_bias(form), OPTIONS["bias"].axes
        ways = itertools.product(axes["bias"], axes["order"])
        found = self.settled((plain.but(bias=x, order=order) for x, order in ways), [self.probe({"bias": bias})])
        if not found:
            return form
        form = form.but(bias=found.how["bias"], order=found.how["order"])
        return form.offering("mask", Option(name, kind + options.OR_ADDED))

    def beside_another(self, form: Form, name: str, ours: str) -> str:
        """Words for a mask beside a mask, if a pair is seen that neither hides; for a bias if both are added."""
        first = form.options[ours]
        rest = form.keeping(x for x in form.options if not form.options[x].name)
        alone = super().read(rest.but(joins=BY_LAW["joins"]), name, ours)
        if not alone or alone.how[ours] != BY_LAW[ours] or alone.options[ours].name != name:
            return ""
        kind = alone.options[ours].form
        one, other = (options.drawn(ours, x, self.sizes, seed) for seed, x in enumerate((first.form, kind)))
        if ours == "mask":
            one[..., :1], other[..., :1] = True, True
        both = rest.offering(ours, first).offering(forms.PREFIX + name, Option(name))
        values = {ours: one, forms.PREFIX + name: options.given(ours, kind, other, *self.sizes[::3][:2])}
        found = self.answer(both, self.probe(values))
        joined = one & other if ours == "mask" else one + other
        right = self.right(rest.offering(ours, first), self.probe({ours: joined}))
        same = found and distance(found[:1], right[:1]) <= TOLERANCE
        rank, _, meaning = kind.partition("/")
        return f"a {ours} beside {first.name}, {options.axes_of(rank)}{', ' * bool(meaning)}{meaning}" if same else ""

    def _otherwise(self, form: Form, name: str, kinds: list[str]) -> Form | None:
        """The form in which an option has a value that is nobody's convention, unless it is a mask of keys."""
        flat = self._of_one_head(form, kinds) if form.layout == "NTD" else None
        found = next(filter(None, (self.read(flat, name, ours) for ours in kinds)), None) if flat else None
        if found and ("mask" not in found.options or found.options["mask"].form.startswith("BS")):
            return found
        return next(filter(None, (self._unusual(form, name, ours) for ours in kinds)), None)

    def _unusual(self, form: Form, name: str, ours: str) -> Form | None:
        """The form in which an option has a value that is nobody's convention."""
        ways = _unusual_values(form, ours)
        for kinds, probes in self._asked_alike(form, ours, name):
            offered = [form.offering(ours, Option(name, kind)) for kind in kinds]
            if found := self._alike(ours, offered, probes, ways):
                return found
            if self._by_law(ours, offered, probes):  # these calls cannot tell it from the law
                continue
            offered = [x for x in offered if not x.options[ours].form.endswith(options.ADDED)]
            unusual = [x.but(**way) for way in ways for x in offered]
            shown = [x.but(empty="NaN") for x in unusual]  # rows without any key may have any numbers
            changing = (x for x, by in zip(unusual, shown, strict=True) if self.changes(by, probes))
            every = [*probes, *self.refuting.get(ours, ())]
            if found := next((x for x in changing if all(self.is_nearly(x, probe) for probe in every)), None):
                return self.limited(found) if found.options[ours].form == options.WIDE.get("window") else found
            empties = [x for x in TABLE["empty"] if x != SEES_ALL]  # by which the mask would change nothing
            hiding = (x for x, by in zip(unusual, shown, strict=True) if not self.changes(by, probes))
            alone = (x.but(empty=y) for x in hiding for y in empties)
            if ours == "mask" and (found := self.settled(alone, probes)):  # it hides all keys of a query, or none
                return found.but(empty=form.how["empty"])
            lowered = ((x, self._lowers(x)) for x in offered if ours == "mask")
            if found := self.settled((x.but(fill=f"less {c:.4g}") for x, c in lowered if c), probes):
                return found
        return None

    def _asked_alike(self, form: Form, ours: str, name: str) -> Iterator[tuple[tuple[str, ...], list[Probe]]]:
        """Questions about an option; a mask has as many queries as keys, so that it may be turned."""
        B, N, _, S, D, V = self.sizes
        for kinds, probes in self.questions(form, ours, name):
            masks = [_full(kinds[0], (B, N, S, S), seed) for seed in (0, 1)] if ours == "mask" else []
            kind = "".join(kinds[:1])
            masks += [options.drawn(ours, kind, (B, N, S, S))] if ours in ("bias", "key_lengths") else []
            yield kinds, [Probe(arrays((B, N, S, S, D, V)), {ours: x}) for x in masks] or probes

    def _alike(self, ours: str, offered: list[Form], probes: list[Probe], ways: list[dict[str, str]]) -> Form | None:
        """The form with an option that it takes beside as many queries as keys, and raises with otherwise."""
        if ours not in ("mask", "bias", "is_causal", "key_lengths") or self.sizes[2] == self.sizes[3]:
            return None
        if ours == "is_causal":
            B, N, _, S, D, V = self.sizes
            probes = [Probe(arrays((B, N, S, S, D, V)), {ours: True})]
        found = self._by_law(ours, offered, probes) or self._ignoring(ours, offered, probes)
        if ours == "key_lengths":
            axes = OPTIONS[ours].axes
            hows = (dict(zip(axes, x, strict=True)) for x in itertools.product(*axes.values()))
            found = found or self.settled((x.but(**how) for how in hows for x in offered), probes)
        if ours == "is_causal":
            found = found or self.settled((x.but(**how) for how in ways for x in offered), probes)
        value = options.drawn(ours, found.options[ours].form, self.sizes) if found else None
        if not found or self.answer(found, self.probe({ours: value})):
            return None
        self.alike += [ours] * (ours not in self.alike)
        return found

    def _by_law(self, ours: str, offered: list[Form], probes: list[Probe]) -> Form | None:
        """The first of the forms by which the option means what it does by the law."""
        found = self.settled(offered, probes)
        added = found and ours == "mask" and found.options[ours].form.endswith(options.ADDED)
        return found if not added or (found and self._adds(found, alike=True)) else None

    def _ignoring(self, ours: str, offered: list[Form], probes: list[Probe]) -> Form | None:
        """The first of the forms that ignores an option; a number may be added to all scores of a query."""
        near = [x._replace(scores=(FILL,)) for x in probes]
        return self.settled((x.but(**{AXIS[ours]: IGNORED}) for x in offered), near)

    def _lowers(self, form: Form) -> float:
        """The number by which a mask lowers a score, by the weight of the last of equal scores; 0 if there is none."""
        (query, key, value), S = arrays(self.sizes), self.sizes[3]
        mask = options.drawn("mask", form.options["mask"].form, self.sizes) | True
        mask[..., -1] = False
        last = np.zeros_like(value)
        last[..., -1, :] = 1
        found = self.answer(form, Probe((0 * query, key, last), {"mask": mask}))
        share = float(np.mean(found[0])) if found else 0.0
        return -math.log(share * (S - 1) / (1 - share)) if 0 < share < 0.9 / S else 0.0

    def _kept(self, form: Form) -> Form:
        """The form, if calls with all of its options at once, in short and in long texts, are those of its formula."""
        named = [k for k, x in form.options.items() if x.name]
        by = Candidate(self.fn, form.but(empty="NaN", empty_lse="nan"))

        def is_off(probe: Probe) -> bool:
            found, right = self.answer(form, probe), by.right(probe)
            return not found or (right[0].size > 0 and distance(found, right, some=True) > probe.tolerance)

        for probe in examples.cases(form, self.sizes):
            if probe.narrow or probe.scores or sorted(probe.options) != sorted(named):
                continue
            if is_off(probe) and not is_off(probe._replace(options={})):
                return self._instead(form, super()._kept(form))
        return form

    def _instead(self, form: Form, kept: Form) -> Form:
        """The form that is kept, with another reading of the options that were refuted, if there is one."""
        for ours in form.options.keys() - kept.options.keys():
            name = form.options[ours].name
            if name and (other := self._otherwise(kept, name, [ours])):
                self.unknown.pop(name, None)
                kept = other
        return kept


def _unusual_values(form: Form, ours: str) -> list[dict[str, str]]:
    """Values of an option that are nobody's convention, each as axes of the table."""
    if ours == "window":  # which may leave queries without any key
        values = itertools.product((*options.WINDOWS, *UNSEARCHED[ours]), options.REACH, options.SIDES)
        return [dict(zip(("window", "reach", "side"), x, strict=True)) for x in values]
    axes, known = {"mask": ("mask", "fill")}.get(ours, (AXIS[ours],)), OPTIONS[ours].axes
    every = {x: (*TABLE.get(x, ()), *UNSEARCHED.get(x, ())) for x in axes}
    ways = [{x: y} for x in axes for y in every[x] if y not in (*known.get(x, ()), IGNORED)]
    if ours in options.MASKED - {"mask"} and not options.MASKED & form.options.keys():
        ways += [{"masking": x} for x in OPTIONS["mask"].axes["masking"][1:]]
    return ways


def _full(kind: str, sizes: tuple[int, ...], seed: int) -> np.ndarray:
    """A mask by which no query is without a key, turned or not."""
    mask: np.ndarray = options.drawn("mask", kind, (*sizes, 1, 1), seed)
    mask[..., -1] = True
    if mask.shape[-2] > 1:
        mask[..., -1, :] = True
    return mask
