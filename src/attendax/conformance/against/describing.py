"""Findings about a function: the way it is called, and the conventions by which it computes. Each is tried."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..conventions import solving
from ..conventions.table import IGNORED, TABLE
from ..worker.errors import Failed
from . import forms, options
from .asking import Probe, alike, arrays, ask, distance
from .forms import Form, Option
from .options import AXIS, DROPOUT, GROUPED, HEADS, OPTIONS, READ, RULES, UNREAD, WIDE, WINDOWS
from .remote import Function
from .trying import GENERAL, Trying

MANY = 64  # keys, of which half are dropped
MODES = {"training": True, "train": True, "deterministic": False}
GARBAGE = 0.3  # a share of the largest number that no rounding moves


class Description(NamedTuple):
    """A function: its form, and in words what of it is not known. ``known`` is whether its plain call is."""

    form: Form
    known: bool
    unknown: Mapping[str, str]
    sizes: tuple[int, ...]


def describe(fn: Function) -> Description:
    """Try every convention that is known; raises Failed where it raises in every layout."""
    return _Describing(fn).description()


class _Describing(Trying):
    """The function, with all that is found out about it."""

    def description(self) -> Description:
        form, sizes = self._plain()
        if not sizes and self.given:
            self.given = {}
            form, sizes = self._plain()
        if not sizes and self.several:
            form, sizes = self._plain(first=True)
        if not sizes:
            if not self.ran:
                raise Failed(self.said)
            return Description(form, False, {"formula": "no formula that is known"}, GENERAL)
        self.sizes = sizes
        form = dataclasses.replace(form, arrays=self.fn.kind())
        form = self._second(form) if self.several else form
        form = self._grouped(form)
        free = [name for name in self.fn.names if name not in (*self.fn.required, *HEADS, *UNREAD)]
        for name in sorted(free, key=lambda x: x in OPTIONS["offset"].names):
            found = self._option(form, name)
            if found:
                form = found
                free.remove(name)
        form = self._order(form)
        form = self._empty(form)
        form = self._dtypes(form)
        for name in free:
            if name in DROPOUT:
                form = self._dropout(form, name)
                self.unknown[name] = "dropout is drawn at random; no adapter has it"
            elif name not in (*GROUPED, *form.given):
                self.unknown[name] = "not taken, or none of the options that are known"
        return Description(form, True, self.unknown, sizes)

    def _dropout(self, form: Form, name: str) -> Form:
        """Tell whether the weights that are kept are larger: of values that are all 1, the mean says it."""
        B, N, T, S, D, V = self.sizes
        many = arrays((B, N, MANY if T == S else T, MANY, D, V))
        modes = {k: x for k, x in MODES.items() if k in self.fn.names}
        asked = dataclasses.replace(form, options={}, given={**form.given, **modes, name: 0.5})
        try:
            found = ask(self.fn, asked, Probe((*many[:2], np.ones_like(many[2])), {}))[0].astype(np.float64)
        except Failed:
            return form
        said = {"scales what is kept by 1/(1 - rate)": 1.0, "does not scale what is kept": 0.5}
        near = [x for x, mean in said.items() if abs(found.mean() - mean) < 0.15 and found.std() > 1e-3]
        return form.but(dropout=near[0] if near else "drops nothing" if abs(found - 1).max() < 1e-3 else "")

    def _second(self, form: Form) -> Form:
        """The results beside its first: log-sum-exp, or others that are not compared."""
        if found := self._read(dataclasses.replace(form, first=False), "", "return_lse"):
            return found
        self.unknown["second result"] = "it always gives several arrays, of which the first is compared"
        return dataclasses.replace(form, first=True)

    def _grouped(self, form: Form) -> Form:
        switch = next((name for name in GROUPED if name in self.fn.names), "")
        given = {**form.given, **({switch: True} if switch else {})}
        if form.pack or "N" not in form.layout:
            return form
        wide = dataclasses.replace(form, grouped=True, given=given)
        probe = Probe(arrays(self.sizes, groups=2), {})
        return self.settle([wide.but(heads=x) for x in forms.HEADS], [probe]) or form

    def _option(self, form: Form, name: str) -> Form | None:
        """The form with a keyword of the function, whatever it may mean there; None where it means nothing known."""
        kinds = [ours for ours, row in OPTIONS.items() if name in row.names and ours not in form.options]
        found = (run(form, name, ours) for run in (self._read, self._ignored) for ours in kinds)
        return next(filter(None, found), None)

    def _read(self, form: Form, name: str, ours: str) -> Form | None:
        """The form in which a keyword is one of the options that are known."""
        row = OPTIONS[ours]
        for kinds, probes in self._asked(form, ours):
            offered = [form.offering(ours, Option(name, kind)) for kind in kinds]
            hows = [dict(zip(row.axes, values, strict=True)) for values in itertools.product(*row.axes.values())]
            if found := self.settle((x.but(**how) for how in hows for x in offered), probes):
                return self._refined(found, ours)
            if ours == "bias" and (factor := self._factor(offered[0])):
                return self.settle([offered[0].but(order=x, bias=factor) for x in forms.ORDERS], probes)
        return None

    def _asked(self, form: Form, ours: str) -> Iterator[tuple[tuple[str, ...], list[Probe]]]:
        """Kinds of values, and the inputs by which they are told apart."""
        (B, N, T, S, D, V), row = self.sizes, OPTIONS[ours]
        if ours in ("mask", "bias"):  # of each rank
            by_rank = itertools.groupby(row.kinds, lambda kind: kind.split("/")[0])
            for rank, of_rank in by_rank:
                value = options.drawn(ours, rank, self.sizes)
                yield tuple(of_rank), [self.probe({ours: value})]
            return
        shapes = {"is_causal": {(T, S), (S, S), (1, S)}, "window": {(T, S), (S + 4, S + 4)}}.get(ours, {(T, S)})
        at = sorted((t, s) for t, s in shapes if T != S or t == s)
        values = row.values[-2:] if ours != "key_lengths" else (options.drawn(ours, "", self.sizes),)
        asked = [{ours: x, **options.beside(ours, form.options)} for x in values]
        kinds = tuple(row.kinds) if ours != "offset" else tuple(row.kinds)[::-1]  # of each batch where it is taken
        if ours != "offset" or len(asked[0]) > 1:
            yield kinds, [Probe(arrays((B, N, t, s, D, V)), given) for t, s in at for given in asked]

    def _refined(self, form: Form, ours: str) -> Form | None:
        """Options told apart by values that are given as they are: of each head, of each batch, of two sides."""
        option, more = form.options[ours], options.beside(ours, form.options)
        if option.form == WIDE.get(ours):
            plain = form.but(**({"reach": forms.LAW["reach"], "side": forms.LAW["side"]} if ours == "window" else {}))
            ways = WINDOWS if ours == "window" else (form.how[ours], "first batch")
            values = options.own_values(ours, option, self.fn.defaults, self.sizes[0])
            return self.settle([plain.but(**{ours: x}) for x in ways], [self.probe({ours: x} | more) for x in values])
        if ours == "mask" and option.form.startswith("BNTS") and form.how["mask"] == READ[0] and self.sizes[1] > 1:
            mask = options.drawn("mask", option.form, self.sizes, each_head=True)
            return self.settle([form, form.but(mask="first head")], [self.probe({"mask": mask})]) or form
        return form

    def _ignored(self, form: Form, name: str, ours: str) -> Form | None:
        """The form of a function that takes a keyword, and gives what it gives without."""
        more = options.beside(ours, form.options)
        if IGNORED not in TABLE[AXIS[ours]] or (ours == "offset" and not more):
            return None
        kinds = tuple(OPTIONS[ours].kinds) if ours == "window" else (options.first_kind(ours),)
        offered = [form.offering(ours, Option(name, kind)).but(**{AXIS[ours]: IGNORED}) for kind in kinds]
        some = [options.drawn(ours, kinds[0], self.sizes)]
        values = some if isinstance(some[0], np.ndarray) else OPTIONS[ours].values
        return self.settle(offered, [self.probe({ours: x} | more) for x in values])

    def _factor(self, form: Form) -> str:
        query, key, value = (0 * x for x in arrays(self.sizes))
        value[..., 0, :] = 1
        bias = 0 * options.drawn("bias", form.options["bias"].form, self.sizes)
        bias[..., 0] = 1
        found = self._answer(form, Probe((query, key, value), {"bias": bias}))
        one = solving.scale_of_first(found[0], self.sizes[3]) if found else None
        return solving.factor_of(one, one, "bias")

    def _order(self, form: Form) -> Form:
        """The order in which scale, softcap, bias and mask come."""
        steps = ("softcap", "scale", "bias", "is_causal", "window", "mask")
        asked = {
            k: options.drawn(k, "TS" if k in ("mask", "bias") else "", self.sizes)
            for k in steps
            if k in form.options and not (k == "mask" and form.options[k].form.startswith("BS"))
        }
        if len(set(steps) & set(form.options)) < 2:
            return form
        ways = [form.but(order=x) for x in dict.fromkeys((form.how["order"], *forms.ORDERS))]
        rules: list[dict[str, Any]] = [{}, *({k: asked.pop(k)} for k in RULES if k in asked)]
        probes = [Probe(arrays(self.sizes), {**asked, **rule}) for rule in rules]
        probes = [probe for probe in probes if self._answer(form, probe)]
        found = self.settle(ways, probes) if probes else form
        return found or self._fewer(form, ways, {k: x for probe in probes for k, x in probe.options.items()})

    def _fewer(self, form: Form, ways: list[Form], asked: dict[str, Any]) -> Form:
        """The fewest options that no order explains, of those that none explains together; the order of all others."""
        names = sorted(asked, key=lambda k: k == "scale")
        for some in (x for count in range(2, len(names) + 1) for x in itertools.combinations(names, count)):
            probe = self.probe({k: asked[k] for k in some})
            if not self._answer(form, probe) or self.settle(ways, [probe]):
                continue
            self.unknown["order"] = f"{self._names(form, some)} together give what no order gives"
            for left in some:  # as if one of them were not given
                rest = tuple(k for k in some if k != left)
                without = self._answer(form, self.probe({k: asked[k] for k in rest}))
                if without and alike(without, self._answer(form, probe)):
                    said = f"{self._names(form, (left,))} is ignored where {self._names(form, rest)} is given"
                    self.unknown["order"] = said
            others = self.probe({k: x for k, x in asked.items() if k not in some})
            return self.settle(ways, [others]) or form
        return form

    def _names(self, form: Form, options: tuple[str, ...]) -> str:
        return " and ".join(form.options[k].name for k in options)

    def _empty(self, form: Form) -> Form:
        B, N, _, S, D, V = self.sizes
        rules = {x: 1 if x == "window" else True for x in RULES if x in form.options}
        if "mask" in form.options and form.how["masking"] == forms.LAW["masking"]:
            mask = options.drawn("mask", form.options["mask"].form, self.sizes) | True
            mask[(..., 1, slice(None)) if mask.shape[2] > 1 else 0] = False
            probe = self.probe({"mask": mask})
        elif "key_lengths" in form.options and "mask" not in form.options:
            probe = self.probe({"key_lengths": np.resize([0, S], B).astype(np.int32)})
        elif rules and "mask" not in form.options:
            probe = Probe(arrays((B, N, S + 4, S, D, V)), rules)
        else:
            return form
        found = self.settle([form.but(empty=x) for x in forms.EMPTY], [probe])
        if not found and {"mask", "key_lengths"} & set(probe.options):
            self.unknown["empty rows"] = "a query without any key gets neither 0, the mean of the values nor NaN"
        return found or form

    def _dtypes(self, form: Form) -> Form:
        """The dtypes in which it computes and answers, asked in bfloat16."""
        import ml_dtypes

        apart = dict.fromkeys(forms.SOFTMAX, 0.0)
        for seed in range(3):
            narrow = tuple(x.astype(ml_dtypes.bfloat16) for x in arrays(self.sizes, seed=seed))
            probe = Probe((narrow[0] * narrow[0].dtype.type(8), *narrow[1:]), {})
            try:
                found = ask(self.fn, dataclasses.replace(form, options={}), probe)
            except Failed:
                return form.but(out=forms.REFUSED, softmax=forms.REFUSED)
            for way, far in apart.items():
                right = forms.attention(probe.arrays, {**form.how, "softmax": way})
                apart[way] = max(far, distance(found, right))
        if min(apart.values()) > GARBAGE:
            self.unknown["bfloat16 arrays"] = "they give no attention"
            return form.but(out=forms.REFUSED, softmax=forms.REFUSED)
        best = min(apart, key=lambda way: apart[way] * (1 if way == forms.SOFTMAX[0] else 2))
        best = best if apart[best] == min(apart.values()) else forms.UNCLEAR
        out = str(found[0].dtype)
        return form.but(out="of the query" if out == "bfloat16" else out, softmax=best)
