"""A function as it is tried: whether a form gives what the reference gives, and in which layout it does at all."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from attendax.exits import Refusal

from ..conventions import solving
from ..conventions.table import TABLE
from ..worker.errors import Failed
from . import forms
from .asking import Probe, alike, arrays, ask
from .forms import LAW, Form
from .options import HEADS, LAYOUTS, MOVED, OPTIONS
from .remote import Function

GENERAL, SQUARE = (2, 4, 3, 5, 8, 6), (2, 4, 5, 5, 8, 8)
OTHERS = {GENERAL: (1, 2, 4, 7, 6, 5), SQUARE: (1, 2, 7, 7, 6, 6)}  # at which a scale is another


class Trying:
    """One function, as far as it is known."""

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.unknown: dict[str, str] = {}
        self.sizes: tuple[int, ...] = ()
        self.answers: dict[Any, Any] = {}
        self.said, self.ran, self.several = "", False, False
        causal = [x for x in OPTIONS["is_causal"].names if fn.defaults.get(x) is True]  # it is asked without first
        self.given: dict[str, Any] = dict.fromkeys(causal, False)

    def _called(self, *given: Any, **options: Any) -> tuple[np.ndarray, ...]:
        """A call of the function; whether it gives several arrays is kept."""
        found = self.fn(*given, **options)
        self.several |= len(found) > 1
        return found

    def settle(self, variants: Iterable[Form], probes: list[Probe]) -> Form | None:
        """The first of the forms by which the function gives what the reference gives, for each probe."""
        for form in variants:
            if all(self._agrees(form, probe) for probe in probes):
                return form
        return None

    def _agrees(self, form: Form, probe: Probe) -> bool:
        found = self._answer(form, probe)
        return bool(found) and alike(found, forms.attention(probe.arrays, form.how, **probe.options))

    def _answer(self, form: Form, probe: Probe) -> tuple[np.ndarray, ...]:
        """The result; nothing where it refuses that."""
        key = repr(form.plain()), id(probe)
        if key not in self.answers:
            found: tuple[np.ndarray, ...] = ()
            try:
                found, self.ran = ask(self._called, form.plain(), probe), True
            except Failed as failed:
                self.said = self.said or str(failed)
            self.answers[key] = probe, found  # kept, so that no other probe has its id
        return self.answers[key][1]

    def probe(self, options: Mapping[str, Any]) -> Probe:
        """Arrays of the sizes of its plain call, and options."""
        return Probe(arrays(self.sizes), options)

    def _plain(self, *, first: bool = False) -> tuple[Form, tuple[int, ...]]:
        """The layout, the order of the arrays, the scale and whether it is always causal, from the plainest call."""
        required = [name for name in self.fn.required if name not in HEADS]
        heads = next((name for name in self.fn.names if name in HEADS), "")
        for sizes in (GENERAL, SQUARE):
            probe, other = (Probe(arrays(x), {}) for x in (sizes, OTHERS[sizes]))
            layouts = [dataclasses.replace(x, first=first) for x in self.layouts(len(required), heads, sizes)]
            for layout in layouts:
                always = ["", *OPTIONS["is_causal"].axes["causal"]]
                probes = [probe, other] if self._answer(layout, other) else [probe]
                hows = [layout.but(scale=s, always=a) for a, s in itertools.product(always, TABLE["scale"])]
                if found := self.settle(hows, probes):
                    return (found, sizes) if self.takes(found, probe) else (Form(path=self.fn.path), ())
            for layout in layouts:  # of another scale
                form = layout.but(scale=self._solved(layout, sizes) or LAW["scale"])
                if form != layout and self._agrees(form, probe) and self.takes(form, probe):
                    return form, sizes
        return Form(path=self.fn.path), ()

    def _solved(self, form: Form, sizes: tuple[int, ...]) -> str:
        """The scale of a function of that form, as a product of powers of the sizes; empty where it is none."""

        def measure(given: Mapping[str, int], _: float | None) -> float | None:
            query, key, value = (0 * x for x in arrays(tuple(given[axis] for axis in "BNTSDV")))
            query[:], key[..., 0, :], value[..., 0, :] = 2 / given["D"], 1, 1
            try:
                found = ask(self._called, form, Probe((query, key, value), {}))[0]
            except Failed:
                return None
            return solving.scale_of_first(found, given["S"]) if found.shape == (*query.shape[:3], given["V"]) else None

        return solving.solved(measure, dict(zip("BNTSDV", sizes, strict=True)))

    def takes(self, form: Form, probe: Probe) -> bool:
        """Tell whether that is its layout: not if it lacks axes and the function takes whole arrays otherwise."""
        if "(" in form.layout or set("BN") <= set(form.layout):
            return True
        try:
            found = self._called(*probe.arrays)[0]
        except Failed:
            return True
        return found.shape != (*probe.arrays[0].shape[:3], probe.arrays[2].shape[-1])

    def layouts(self, count: int, heads: str, sizes: tuple[int, ...]) -> Iterator[Form]:
        """Each layout; then those whose result has the heads elsewhere."""
        plain = list(self._same_layouts(count, heads, sizes))
        yield from plain
        for form, (taken, given) in itertools.product(plain, MOVED):
            if form.layout == taken:
                yield dataclasses.replace(form, returned=given)

    def _same_layouts(self, count: int, heads: str, sizes: tuple[int, ...]) -> Iterator[Form]:
        form = Form(path=self.fn.path, heads=heads, defaults=self.fn.defaults, given=self.given)
        packs = ["qkv"] * (count == 1 and sizes == SQUARE) + ["kv"] * (count == 2)
        for pack, axis, layout in itertools.product(packs, (2, 3, 1, 0), ("BTND", "BNTD", "TBND")):
            yield dataclasses.replace(form, layout=layout, pack=f"{pack} {axis}")
        layouts = [x for x in LAYOUTS if heads or "(" not in x]
        orders = sorted(itertools.permutations(("query", "key", "value")), key=lambda x: x[0] != "query")
        for order, layout in itertools.product(orders if count >= 3 else (), layouts):
            yield dataclasses.replace(form, layout=layout, order=", ".join(order))


Answer = tuple[Form, tuple[np.ndarray, ...]]


def answered(fn: Function, letter: str) -> list[Answer]:
    """The layouts in which a function answers, whatever it computes, and what it gives; refuse it if there are none."""
    probe, found, asked, said = Probe(arrays(GENERAL), {}), [], Trying(fn), ""
    for form in asked.layouts(3, next((name for name in fn.required if name in HEADS), ""), GENERAL):
        if not asked.takes(form, probe):
            continue
        try:
            found.append((dataclasses.replace(form, arrays=fn.kind()), ask(fn, form, probe)))
        except Failed as failed:
            said = said or failed.said
    if not found:
        raise Refusal(f"{letter}, {fn.path}, raises on every call that was tried; the first said: {said}")
    return found


def pair(one: list[Answer], other: list[Answer]) -> tuple[Form, Form] | None:
    """Layouts in which two functions give the same numbers; None where there are none."""
    both = itertools.product(one, other)
    return next(((x, y) for (x, p), (y, q) in both if p[0].shape == (2, 4, 3, 6) and alike(q, p)), None)
