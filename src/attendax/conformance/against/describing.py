"""What is found out about a function: how it is called, and by which conventions it computes. Each is tried."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..conventions import solving
from ..conventions.table import TABLE
from ..worker.errors import Failed
from . import forms, ways
from .asking import Probe, alike, arrays, ask, distance
from .forms import Form, Option
from .remote import Function
from .trying import GENERAL, Trying
from .ways import DROPOUT, GROUPED, HEADS, IGNORED, NAMES

MANY = 64  # keys, of which half are dropped
MODES = {"training": True, "train": True, "deterministic": False}
GARBAGE = 0.3  # a share of the largest number that no rounding moves


class Description(NamedTuple):
    """What a function is: its form, and in words what of it is not known. ``known`` is whether its plain call is."""

    form: Form
    known: bool
    unknown: Mapping[str, str]
    sizes: tuple[int, ...]


def describe(fn: Function) -> Description:
    """Try every convention that is known.

    Raises:
        Failed: it raises in every layout.
    """
    return _Describing(fn).description()


class _Describing(Trying):
    """The same, with all that is found out about it."""

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
        free = [name for name in self.fn.names if name not in (*self.fn.required, *HEADS, *IGNORED)]
        for name in list(free):
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
        """Whether the weights that are kept are larger: of values that are all 1, the mean says it."""
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
        """What it gives beside its result: log-sum-exp, or what is not compared."""
        if found := self._lse(dataclasses.replace(form, first=False), ""):
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
        tries: dict[str, Callable[[Form, str], Form | None]] = {
            "is_causal": self._causal, "mask": self._mask, "bias": self._bias, "scale": self._scale,
            "softcap": self._softcap, "window": self._window, "return_lse": self._lse,
        }  # fmt: skip
        for ours, run in tries.items():
            if name in NAMES[ours] and ours not in form.options and (found := run(form, name)):
                return found
        return next(filter(None, (self._ignored(form, name, ours) for ours in tries if name in NAMES[ours])), None)

    def _ignored(self, form: Form, name: str, ours: str) -> Form | None:
        """The form of a function that takes a keyword, and gives what it gives without."""
        axis = {"is_causal": "causal", "scale": "given_scale"}.get(ours, ours)
        if ours in form.options or forms.IGNORED not in TABLE.get(axis, ()):
            return None
        B, _, T, S, _, _ = self.sizes
        rng = np.random.default_rng(8)
        shape = (B, 1, T, S)
        values = {"mask": rng.random(shape) < 0.6, "bias": rng.standard_normal(shape).astype(np.float32), "scale": 0.3}
        values |= {"is_causal": True, "softcap": 0.5, "window": 1}
        ignored = forms.IGNORED if ours != "window" else f"{form.how['window'].rpartition('/')[0]}/{forms.IGNORED}"
        kinds = tuple(ways.WINDOWS) if ours == "window" else (ways.STRAIGHT.get(ours, ""),)
        offered = [form.offering(ours, Option(name, kind)).but(**{axis: ignored}) for kind in kinds]
        return self.settle(offered, [self.probe(**{ours: values[ours]})])

    def _causal(self, form: Form, name: str) -> Form | None:
        form = form.offering("is_causal", Option(name))
        B, N, T, S, D, V = self.sizes
        shapes = {(T, S), (S, S)} | ({(1, S)} if T != S else set())
        probes = [Probe(arrays((B, N, t, s, D, V)), {"is_causal": True}) for t, s in sorted(shapes)]
        both = itertools.product(forms.CAUSAL, forms.EMPTY)
        return self.settle([form.but(causal=rule, empty=empty) for rule, empty in both], probes)

    def _mask(self, form: Form, name: str) -> Form | None:
        B, N, T, S, _, _ = self.sizes
        rng = np.random.default_rng(5)
        full = rng.random((B, 1, T, S)) < 0.6
        full[..., 0] = True
        masks = {"BNTS": full, "BTS": full, "TS": full[:1], "BS": full[:, :, :1]}
        for rank, mask in masks.items():
            probe = self.probe(mask=mask)
            variants = [
                form.offering("mask", Option(name, f"{rank}/{meaning}")).but(masking=masking, mask=read)
                for meaning, masking, read in itertools.product(ways.MEANINGS, forms.MASKING, forms.READ[:2])
            ]
            variants.sort(key=lambda x: (forms.READ.index(x.how["mask"]), forms.MASKING.index(x.how["masking"])))
            if found := self.settle(variants, [probe]):
                return self._of_each_head(found, self.probe(mask=rng.random((B, N, T, S)) < 0.6)) if N > 1 else found
        return None

    def _of_each_head(self, form: Form, probe: Probe) -> Form:
        """Whether a mask of each head is read as the first head's."""
        if form.how["mask"] != forms.READ[0] or form.options["mask"].form.split("/")[0] != "BNTS":
            return form
        probe.options["mask"][..., 0] = True
        return self.settle([form, form.but(mask=forms.READ[2])], [probe]) or form

    def _bias(self, form: Form, name: str) -> Form | None:
        B, N, T, S, _, _ = self.sizes
        rng = np.random.default_rng(6)
        for rank, shape in (("BNTS", (B, N, T, S)), ("NTS", (1, N, T, S)), ("TS", (1, 1, T, S))):
            probe = self.probe(bias=rng.standard_normal(shape).astype(np.float32))
            offered = form.offering("bias", Option(name, rank))
            both = itertools.product(forms.BIASES, forms.ORDERS)
            if found := self.settle([offered.but(order=x, bias=read) for read, x in both], [probe]):
                return found
            if factor := self._factor(offered):
                return self.settle([offered.but(order=x, bias=factor) for x in forms.ORDERS], [probe])
        return None

    def _factor(self, form: Form) -> str:
        """By which number a bias is multiplied."""
        query, key, value = (0 * x for x in arrays(self.sizes))
        value[..., 0, :] = 1
        bias = np.zeros((1, 1, *self.sizes[2:4]), np.float32)
        bias[..., 0] = 1
        shape = {"BNTS": self.sizes[:2], "NTS": (1, self.sizes[1])}.get(form.options["bias"].form, (1, 1))
        probe = Probe((query, key, value), {"bias": np.broadcast_to(bias, (*shape, *bias.shape[2:])).copy()})
        found = self._answer(form, probe)
        one = solving.scale_of_first(found[0], self.sizes[3]) if found else None
        return solving.factor_of(one, one, "bias")

    def _scale(self, form: Form, name: str) -> Form | None:
        both = itertools.product(forms.GIVEN_SCALES, ways.SCALINGS)
        variants = [form.offering("scale", Option(name, x)).but(given_scale=given) for given, x in both]
        return self.settle(variants, [self.probe(scale=0.3), self.probe(scale=0.7)])

    def _softcap(self, form: Form, name: str) -> Form | None:
        offered = form.offering("softcap", Option(name))
        both = itertools.product(forms.SOFTCAPS, forms.ORDERS)
        probes = [self.probe(softcap=0.5), self.probe(softcap=2.0)]
        return self.settle([offered.but(order=x, softcap=cap) for cap, x in both], probes)

    def _window(self, form: Form, name: str) -> Form | None:
        B, N, T, S, D, V = self.sizes
        tall = [(T, S), (S + 4, S + 4)] if T != S else [(S + 4, S + 4)]
        probes = [Probe(arrays((B, N, t, s, D, V)), {"window": w}) for t, s in tall for w in (2, 3)]
        rules = ["/".join(x) for x in itertools.product(forms.REACH, forms.SIDES, forms.WINDOWS)]
        rules.sort(key=lambda x: forms.WINDOWS.index(x.split("/")[2]) if not x.endswith("end") else 1)
        variants = [
            form.offering("window", Option(name, x)).but(window=way)
            for x, way in itertools.product(ways.WINDOWS, rules)
        ]
        found = self.settle(variants, probes)
        return found if found is None or found.options["window"].form == "a number" else self._two_sides(found)

    def _two_sides(self, form: Form) -> Form | None:
        """The same, if the two numbers are what is seen to the left and to the right, or one more or less."""
        given = form.offering("window", form.options["window"]._replace(form="a number"))
        ways = [given.but(window=f"{forms.LAW['window'].rpartition('/')[0]}/{value}") for value in forms.WINDOWS]
        pairs = [(3, 0), (0, 2)] + [(-1, -1), (-1, 0)] * (
            -1 in (self.fn.defaults.get(given.options["window"].name) or ())
        )
        found = self.settle(ways, [self.probe(window=pair) for pair in pairs])
        return form.but(window=found.how["window"]) if found else None

    def _lse(self, form: Form, name: str) -> Form | None:
        variants = [
            form.offering("return_lse", Option(name, layout)).but(lse=base)
            for layout, base in itertools.product(ways.LSE_LAYOUTS, forms.LSE)
        ]
        return self.settle(variants, [self.probe(return_lse=True)])

    def _order(self, form: Form) -> Form:
        """In which order scale, softcap, bias and mask come."""
        if len({"scale", "softcap", "bias", "mask", "is_causal", "window"} & set(form.options)) < 2:
            return form
        T, S = self.sizes[2:4]
        rng = np.random.default_rng(7)
        mask = rng.random((1, 1, T, S)) < 0.6
        mask[..., 0] = True
        bias = rng.standard_normal((1, 1, T, S)).astype(np.float32)
        every: dict[str, Any] = {
            "softcap": 0.5,
            "scale": 0.3,
            "bias": bias,
            "is_causal": True,
            "window": 2,
            "mask": mask,
        }
        asked = {k: x for k, x in every.items() if k in form.options and (k != "mask" or self._full(form, k))}
        ways = [form.but(order=x) for x in dict.fromkeys((form.how["order"], *forms.ORDERS))]
        rules: list[dict[str, Any]] = [{}]
        rules += [{k: asked.pop(k)} for k in every if k in asked and k in ("is_causal", "window")]
        probes = [Probe(arrays(self.sizes), {**asked, **rule}) for rule in rules]
        probes = [probe for probe in probes if self._answers(form, probe)]
        found = self.settle(ways, probes) if probes else form
        return found or self._fewer(form, ways, {k: x for probe in probes for k, x in probe.options.items()})

    def _fewer(self, form: Form, ways: list[Form], asked: dict[str, Any]) -> Form:
        """Of options that no order explains together, the fewest that none explains; the order of all others."""
        names = [k for k in asked if k not in ("scale",)] + ["scale"] * ("scale" in asked)
        for some in (x for count in range(2, len(names) + 1) for x in itertools.combinations(names, count)):
            probe = self.probe(**{k: asked[k] for k in some})
            if not self._answers(form, probe) or self.settle(ways, [probe]):
                continue
            self.unknown["order"] = f"{self._names(form, some)} together give what no order gives"
            for left in some:  # as if one of them were not given
                rest = tuple(k for k in some if k != left)
                without = self.probe(**{k: asked[k] for k in rest})
                if self._answers(form, without) and alike(self._answer(form, without), self._answer(form, probe)):
                    said = f"{self._names(form, (left,))} is ignored where {self._names(form, rest)} is given"
                    self.unknown["order"] = said
            others = self.probe(**{k: x for k, x in asked.items() if k not in some})
            return self.settle(ways, [others]) or form
        return form

    def _names(self, form: Form, options: tuple[str, ...]) -> str:
        return " and ".join(form.options[k].name for k in options)

    def _full(self, form: Form, name: str) -> bool:
        return name != "mask" or not form.options[name].form.startswith("BS")

    def _empty(self, form: Form) -> Form:
        """What a query without any key gets."""
        B, N, T, S, D, V = self.sizes
        rules = {"is_causal": True, "window": 1}
        asked = {k: x for k, x in rules.items() if k in form.options}
        if "mask" not in form.options and asked:
            tall = Probe(arrays((B, N, S + 4, S, D, V)), asked)
            return self.settle([form.but(empty=x) for x in forms.EMPTY], [tall]) or form
        if "mask" not in form.options or form.how["masking"] != forms.MASKING[0]:
            return form
        mask = np.ones((B, 1, T, S), bool)
        if self._full(form, "mask"):
            mask[:, :, 1] = False
        else:
            mask = mask[:, :, :1]
            mask[0] = False
        if form.options["mask"].form.startswith("TS"):
            mask = mask[:1]
        found = self.settle([form.but(empty=x) for x in forms.EMPTY], [self.probe(mask=mask)])
        if not found:
            self.unknown["empty rows"] = "a query without any key gets neither 0, the mean of the values nor NaN"
        return found or form

    def _dtypes(self, form: Form) -> Form:
        """In which dtype it computes and answers, asked in bfloat16."""
        import ml_dtypes

        apart = dict.fromkeys(forms.SOFTMAX, 0.0)
        for seed in range(3):
            narrow = tuple(x.astype(ml_dtypes.bfloat16) for x in arrays(self.sizes, seed=seed))
            probe = Probe((narrow[0] * narrow[0].dtype.type(8), *narrow[1:]), {})
            try:
                found = ask(self.fn, dataclasses.replace(form, options={}), probe)
            except Failed:
                return form.but(out=forms.REFUSED, softmax=forms.REFUSED)
            for way in apart:
                apart[way] = max(
                    apart[way], distance(found, forms.attention(probe.arrays, {**form.how, "softmax": way}))
                )
        if min(apart.values()) > GARBAGE:
            self.unknown["bfloat16 arrays"] = "they give no attention"
            return form.but(out=forms.REFUSED, softmax=forms.REFUSED)
        best = min(apart, key=lambda way: apart[way] * (1 if way == forms.SOFTMAX[0] else 2))
        best = best if apart[best] == min(apart.values()) else forms.UNCLEAR
        out = str(found[0].dtype)
        return form.but(out="of the query" if out == "bfloat16" else out, softmax=best)
