"""The meaning of one option: calls with it are compared with every convention that is known."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..conventions.table import (
    ADDED_INSTEAD,
    DECLARED,
    EQUAL_LENGTHS,
    IGNORED,
    INSTEAD,
    NEARER,
    NOT_GIVEN,
    OF_ROOTS,
    TABLE,
)
from ..conventions.values import factor_of, scale_of_first
from . import options
from .asking import Probe, arrays
from .forms import BY_LAW, UNKNOWN, Form, Option
from .options import AXIS, NO_LIMIT, ONE_HEAD, ONE_QUERY, OPTIONS, WIDE, WITH_CAUSAL, WORD
from .plain_call import PlainCall

ON_BOTH_SIDES = "no limit, if both are"  # of a negative side of a window; one alone is a number
OF_ONE_QUERY = "mask", "bias", "scale", "softcap", "key_lengths"  # options that one query alone has
HIDING = "mask", "key_lengths", "segments", "window"  # options that hide keys, and may hide none
SIDE = re.compile(r"^(query|key|q|kv?)_|_(q|kv?)$")  # what says that a name is of queries or of keys
INSTEAD_OF = {"mask": INSTEAD, "bias": ADDED_INSTEAD}  # options that may take the place of causal


class Reading(PlainCall):
    """The meaning of each keyword."""

    asks_beside_causal = False  # whether a window may count with causal alone, which no adapter of ``diff`` has

    def read(self, form: Form, name: str, ours: str, ignored: bool = False) -> Form | None:
        """The form in which a keyword is one of the options that are known, or is ignored as such."""
        row = OPTIONS[ours]
        if form.layout in ONE_QUERY and ours not in OF_ONE_QUERY:
            return None
        if ours == "is_causal" and form.how["always"] and options.named(name)[:1] == ["mask"]:
            return None  # causal without it, so that nothing tells
        hows = [dict(zip(row.axes, values, strict=True)) for values in itertools.product(*row.axes.values())]
        if ours == "window":  # of two readings of a side that is off by one, the more usual comes first
            rare = "on both sides", "w keys, its own among them"
            hows.sort(key=lambda x: "to the" in x["window"] and (x["side"], x["reach"]) == rare)
        if form.how["always"] and ours in INSTEAD_OF:
            hows += [how | {"joins": INSTEAD_OF[ours]} for how in hows]
        hows = [{AXIS[ours]: IGNORED}] * (IGNORED in TABLE[AXIS[ours]]) if ignored else hows
        if ignored and ours == "key_lengths" and self._partner(name):
            return None
        for kinds, probes in self.questions(form, ours, name):
            offered = [form.offering(ours, Option(name, kind)) for kind in kinds]
            settled = self.settled((x.but(**how) for how in hows for x in offered), probes)
            if settled and not ignored and ours in HIDING and not self.changes(settled, probes):
                continue
            if settled and ignored and ours == "mask":  # of whatever meaning
                taken = [x.but(**hows[0]) for x in offered if self.answer(x, probes[0])]
                settled = settled if all(self.settled([x], probes) for x in taken) else None
            if found := settled if ignored or not settled else self._refined(settled, ours):
                return found
            if ours == "bias" and not ignored and (factor := self._factor(offered[0])):
                return self.settled([offered[0].but(order=x, bias=factor) for x in TABLE["order"]], probes)
        return None

    def _partner(self, name: str) -> str:
        """The parameter for queries whose name is otherwise that of one for keys: q_seqlen of kv_seqlen."""
        return next((x for x in self.fn.names if x.startswith("q") and SIDE.sub("", x) == SIDE.sub("", name)), "")

    def questions(self, form: Form, ours: str, name: str = "") -> Iterator[tuple[tuple[str, ...], list[Probe]]]:
        """Kinds of values, and the inputs by which they are told apart; segment ids may have one name for both."""
        (B, N, T, S, D, V), row = self.sizes, OPTIONS[ours]
        if ours in ("mask", "bias"):  # of each rank
            sizes = (B, N, S, S, D, V) if form.how["always"] == EQUAL_LENGTHS else self.sizes
            several = sum(x.endswith("mask") for x in self.fn.names) > 1
            of_padding = several and name in options.OF_PADDING  # which then is (B, S), though it may take more axes
            masks = sorted(row.kinds, key=lambda kind: of_padding and not kind.startswith("BS/"))
            for rank, of_rank in itertools.groupby(masks, lambda kind: kind.split("/")[0]):
                yield tuple(of_rank), [Probe(arrays(sizes), {ours: options.drawn(ours, rank, sizes)})]
            return
        more = options.beside(ours, form.options)
        if ours == "offset" and not more:
            return
        shapes = {"is_causal": {(T, S), (S, S), (1, S)}, "window": {(T, S), (S + 4, S + 4)}, "segments": {(S, S)}}
        at = sorted((t, s) for t, s in shapes.get(ours, {(T, S)}) if T != S or t == s)
        kinds = tuple(x for x in row.kinds if x != WORD)
        kinds = kinds[::-1] if ours == "offset" else kinds  # of each batch, where it is taken
        values = row.values[-2:]
        if ours == "segments":
            kinds = tuple(x for x in kinds if x in self.fn.names) or (name,) * bool(name)
        if ours in ("key_lengths", "segments"):
            values = tuple(options.drawn(ours, "".join(kinds[:1]), (B, N, *at[0]), seed) for seed in (0, 1))
        probes = [Probe(arrays((B, N, *x, D, V)), {ours: y, **more}) for x, y in itertools.product(at, values)]
        if ours != "window":
            yield kinds, probes
            if ours == "segments" and name and name in kinds:  # one keyword
                pairs = [options.drawn(ours, options.PAIR, (B, N, S, S), seed) for seed in (0, 1)]
                yield (options.PAIR,), [Probe(arrays((B, N, S, S, D, V)), {ours: x}) for x in pairs]
            return
        yield from (((kind,), probes) for kind in (WIDE["window"], options.NUMBER))
        if self.asks_beside_causal and "is_causal" in form.options and not form.how["always"]:
            yield (WITH_CAUSAL,), [x._replace(options={**x.options, "is_causal": True}) for x in probes]

    def _refined(self, form: Form, ours: str) -> Form | None:
        """Options told apart by values that are given as they are: of each head, of each batch, of two sides."""
        option, more = form.options[ours], options.beside(ours, form.options)
        if option.form == WIDE.get(ours):
            if ours == "window":
                return self._sided(form)
            values = options.own_values(ours, option, form.how, self.sizes[0])
            probes = [self.probe({ours: x} | more) for x in values]
            return self.settled([form.but(**{ours: x}) for x in (form.how[ours], *options.OF_BATCH)], probes)
        if option.form == WITH_CAUSAL and not self.settled([form.but(window=IGNORED)], [self.probe({ours: 1})]):
            return None
        if ours == "scale":
            for value, other in ((0.0, NOT_GIVEN), (-1.0, OF_ROOTS)):
                form = self.settled([form, form.but(given_scale=other)], [self.probe({ours: value})]) or form
            return form
        if ours not in ("mask", "bias") or not option.form.startswith("BNTS"):
            return form
        if not self._has_each_axis(form, ours):
            return None
        form = self._of_one_head_beside_groups(form, ours) if form.grouped else form
        each_head = ours == "mask" and form.options[ours].form.startswith("BNTS") and self.sizes[1] > 1
        if each_head and form.how["mask"] == options.READ[0]:
            mask = options.drawn("mask", option.form, self.sizes, each_head=True)
            return self.settled([form, form.but(mask="first head")], [self.probe({"mask": mask})]) or form
        return form

    def _factor(self, form: Form) -> str:
        query, key, value = (0 * x for x in arrays(self.sizes))
        value[..., 0, :] = 1
        bias = 0 * options.drawn("bias", form.options["bias"].form, self.sizes)
        bias[..., 0] = 1
        found = self.answer(form, Probe((query, key, value), {"bias": bias}))
        one = scale_of_first(found[0], self.sizes[3]) if found else None
        return factor_of(one, one, "bias")

    def _has_each_axis(self, form: Form, ours: str) -> bool:
        """Tell whether a mask or a bias has four axes where B > T and N > S: a part [:T, :S] of it is refuted."""
        B, N, T, S, D, V = self.sizes
        few = min(B, N - 1) or 1
        sizes = B + 1, N, few, few if T == S else N - 1 or 1, D, V
        values = options.drawn(ours, form.options[ours].form.partition("/")[0], sizes)
        plain, probe = Probe(arrays(sizes), {}), Probe(arrays(sizes), {ours: values})
        return not self.answer(form, plain) or self.is_nearly(form, probe)

    def _of_one_head_beside_groups(self, form: Form, ours: str) -> Form:
        """The form; with a mask or a bias of one head if beside fewer key heads it raises with others."""
        option, groups = form.options[ours], arrays(self.sizes, groups=2)
        values = options.drawn(ours, option.form, self.sizes, each_head=True)
        if self.answer(form, Probe(groups, {ours: values})):
            return form
        one = form.offering(ours, option._replace(form=option.form.replace("BNTS", ONE_HEAD, 1)))
        return one if self.is_nearly(one, Probe(groups, {ours: values[:, :1]})) else form

    def _sided(self, form: Form) -> Form | None:
        """A window of two sides, and what it does with a side that is negative, or None; a row without keys may be any.

        Sides that are -1 count from the beginning if the default has them.
        """
        plain = form.but(reach=BY_LAW["reach"], side=BY_LAW["side"], negative=NO_LIMIT, none=UNKNOWN)
        probes = [self.probe({"window": x}) for x in (*options.PAIRS, *options.NEGATIVE[:2] * self._is_free(form))]
        found = self.settled([plain.but(window=x) for x in options.WINDOWS], probes)
        return self.limited(found) if found else None

    def limited(self, form: Form) -> Form:
        """The form with what a side of a window does that is negative, or None."""

        def first_of(axis: str, values: Iterable[str], windows: Iterable[Any]) -> str:
            probes = [self.probe({"window": x}) for x in windows]
            fits = (x for x in values if all(self.is_nearly(form.but(**{axis: x}), probe) for probe in probes))
            return next(fits, UNKNOWN)

        free = self._is_free(form)
        negative_is = first_of("negative", (NO_LIMIT, options.NUMBERED), options.NEGATIVE[2:]) or NO_LIMIT * free
        negative_is = ON_BOTH_SIDES if free and negative_is == options.NUMBERED else negative_is
        return form.but(negative=negative_is, none=first_of("none", (NO_LIMIT,), options.HALF_OPEN))

    def _is_free(self, form: Form) -> bool:
        """Tell whether its window has no limits by default, which are -1."""
        default = self.fn.defaults.get(form.options["window"].name)
        return -1 in (default if isinstance(default, (tuple, list)) else (default,))

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
        _, probes = next(self.questions(form, "is_causal"))
        if found := self.settled(ways, probes):
            (B, N, _, S, D, V), nearer = self.sizes, found.but(causal=NEARER)
            more = Probe(arrays((B, N, S + 2, S, D, V)), {"is_causal": True})
            is_nearer = found.how["causal"] == DECLARED["end"] and not self.is_nearly(found, more)
            return nearer if is_nearer and self.is_nearly(nearer, more) else found
        lengths = [x.arrays[0].shape[2] == x.arrays[1].shape[2] for x in probes]
        refused = not any(self.answer(form, x) for x, alike in zip(probes, lengths, strict=True) if not alike)
        found = self.settled(ways, list(itertools.compress(probes, lengths))) if any(lengths) and refused else None
        self.alike += ["is_causal"] * (found is not None)
        return found

    def as_lengths(self, form: Form) -> Form | None:
        """The form whose mask of padding tells key lengths."""
        first = form.options["mask"].name if "mask" in form.options else ""
        if "key_lengths" in form.options or "key_lengths" not in options.named(first):
            return None
        rest = form.keeping(x for x in form.options if x != "mask")
        rest = rest.but(**{axis: BY_LAW[axis] for axis in ("masking", *OPTIONS["mask"].axes)})
        return self.read(rest, first, "key_lengths")
