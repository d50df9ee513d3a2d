"""``describe``: how a function is called and what it means, found by calling it within a limit of CPU seconds."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from attendax.exits import Refusal

from ..against import examples, forms, options
from ..against.asking import SQUARE, TOLERANCE, Answer, Candidate, Probe, arrays, distance
from ..against.describing import FILL, NOT_TAKEN, SECOND, SEVERAL, Describing
from ..against.forms import BY_LAW, Form, Option
from ..against.options import AXIS, DROPOUT_NAMES, NO_LIMIT, OPTIONS
from ..against.remote import Function
from ..conventions.table import IGNORED, SEES_ALL, TABLE, UNSEARCHED
from ..worker.errors import Died, Failed
from . import asides, fitting
from .contract import Contract, arrays_of

SECONDS = {"jax": 10.0}  # the limit: CPU seconds of both processes after the import
OTHER_SECONDS = 4.0  # that of other frameworks
CLOCK_SECONDS = 120.0  # seconds on the clock, of a function that waits
WHY = "its name is not known", "no known meaning gives its effect"
CALL_SECONDS = 15.0  # seconds that a call of small arrays may take
FARTHEST = 0.3  # 1 less the cosine between results, up to which the nearest formula is named
NEXT = "; write a function of query, key and value, (B, N, T, D), around it, and describe that"


class OutOfTime(Exception):
    """The limit is reached."""


class NoFormula(Refusal):
    """No known formula gives its result without options."""

    path = ""  # of the function
    layout = ""  # of the nearest form


class Describer(Describing):
    """``Describing`` within a limit; it keeps what it has found when the limit ends it."""

    asks_beside_causal = True

    def __init__(self, fn: Function, seconds: float | None = None) -> None:
        super().__init__(fn)
        fn.patience = CALL_SECONDS
        self.arrays = ""  # the framework, from its first answer on
        self.faults = dict[str, str]()  # wrong parameters that no case tests, and what they do
        self.seconds, self.calls, self.begun, self.since = seconds, 0, self._cores(), time.monotonic()

    def _cores(self) -> float:
        return time.process_time() + self.fn.subject.cores()

    def spent(self) -> float:
        """CPU seconds so far, of this process and that of the function."""
        return self._cores() - self.begun

    def _most(self) -> float:
        """The limit."""
        return self.seconds or SECONDS.get(self.arrays or "jax", OTHER_SECONDS)

    def _called(self, /, *given: Any, **more: Any) -> Answer:
        self.calls += 1
        most = self._most()
        if self.calls % 4 == 0 and (self.spent() > most or time.monotonic() - self.since > max(CLOCK_SECONDS, most)):
            raise OutOfTime
        found = super()._called(*given, **more)
        self.arrays = self.arrays or self.fn.kind()
        return found

    def contract(self) -> Contract:
        """All that is found in time; raises Refusal if there is nothing to describe."""
        cut = False
        try:
            found = self.candidate()
            form, unread = (found.form if found.known else None), dict(found.unknown)
        except Failed as failed:
            raise Refusal(self._refused(failed)) from failed
        except Died as died:
            raise Refusal(f"{self.fn.path}: while it was described, {died}") from died
        except OutOfTime:
            cut, form, unread = True, self.form, dict(self.unknown)
        if not form:
            more = (
                f" within {self._most():.0f} CPU seconds (`attendax describe --limit SECONDS` gives more)"
                if cut
                else ""
            )
            layout, nearest = self._nearest()
            if self._draws():
                said = "two equal calls give different results: switch off what it draws at random"
                raise Refusal(f"{self.fn.path}: {said}")
            said = f"no known formula gives its result without options{more}; {nearest}"
            no = NoFormula(f"{self.fn.path}: {said}{self._next()}")
            no.path, no.layout = self.fn.path, layout
            raise no
        taken = {x for k, option in form.options.items() for x in (option if k == "segments" else option[:1])}
        for name in (x for x in self._free() if cut and x not in (*taken, *unread, *form.given)):
            unread[name] = "no time to find out; --limit SECONDS gives more"
        square = self.sizes == SQUARE and not form.pack.startswith("qkv")
        known, no_need = {name for row in OPTIONS.values() for name in (*row.names, *row.kinds)}, {SEVERAL: ""}
        known |= {*asides.ASIDES, *asides.PASTS}
        unread = {k: WHY[k in known or bool(options.named(k))] if x == NOT_TAKEN else x for k, x in unread.items()}
        unread = {k: no_need.get(x, x) for k, x in unread.items() if k not in DROPOUT_NAMES and no_need.get(x, x)}
        self._look_for_state({ours for k, x in unread.items() if x in WHY for ours in options.named(k)})
        short, whole = not square and self._is_short(form), self._whole(form)
        dropout = tuple(x for x in self.fn.names if x in DROPOUT_NAMES)
        unread = {k: x for k, x in unread.items() if k not in fitting.PASSED or k in asides.ASIDES}
        idle = {
            x: words for x in unread if not self.remembers and (words := self._idle(form, x) or self._aside(form, x))
        }
        unread = {k: x for k, x in unread.items() if k not in fitting.PASSED}  # which cases ask for
        idle |= {x: self._aside(_without(form, x), x) for x in form.meant if x in asides.ASIDES and x not in unread}
        is_open = {x: words.removeprefix(asides.OPEN) for x, words in idle.items() if words.startswith(asides.OPEN)}
        is_open |= {x: WHY[1] for x, words in idle.items() if not words}
        idle = {x: words for x, words in idle.items() if x not in is_open}
        unread = {k: self._beside(form, k) or x for k, x in unread.items() if k not in idle} | is_open
        form, unread = self._by_modes(form, unread)
        unread |= {k: self._raising(k) for k, x in unread.items() if x in WHY and k in self.raised.keys() - self.taken}
        told = tuple(f"{name}: {words}" for name, words in idle.items() if not words.startswith(asides.FAULT))
        faults = self.faults | {k: x.removeprefix(asides.FAULT) for k, x in idle.items() if x.startswith(asides.FAULT)}
        if form.pack and self.fn.writes():  # no case gives it an array of its own that could tell
            faults["arrays"] = "it writes to the array that it is given"
        if self.remembers:
            faults["calls"] = "a call changes what later calls give: the same arguments have another result"
        return Contract(
            self.fn.path, form, unread, dropout, self._no_limit(form), square, short, tuple(self.alike), whole,
            tuple(self.fn.names), told, self.calls, self.spent(), cut, self.rough, faults, self.fn.says_causal,
        )  # fmt: skip

    def _raising(self, name: str) -> str:
        """Words for a parameter with which no call has an answer."""
        failed = self.raised[name]
        if isinstance(failed, Died):
            return f"no call with it ends well; of the first, {failed}"
        return f"each call with it raises; the first said: {failed}"

    def _look_for_state(self, some: Collection[str]) -> None:
        """Ask again for options of no known effect; then in a new process, in which no other call comes first."""
        for begin in (lambda: None, self.fn.subject.stop)[: 1 + (self.arrays != "jax")] if some else ():
            begin()
            with contextlib.suppress(OutOfTime):
                self.remembers |= any(map(self._answers_otherwise, some))

    def _by_modes(self, form: Form, unread: dict[str, str]) -> tuple[Form, dict[str, str]]:
        """Leave out options that change nothing if a parameter of no known meaning may switch them on."""
        modes = [x for x in unread if x in self.fn.names]
        ignored = [x for x in form.options if modes and form.how.get(AXIS.get(x, "")) == IGNORED]
        for ours in ignored:
            unread[form.options[ours].name] = f"it changes nothing, unless {' or '.join(modes)} makes it count"
            form = form.but(**{AXIS[ours]: BY_LAW[AXIS[ours]]}).keeping(x for x in form.options if x != ours)
        return form, unread

    def _whole(self, form: Form) -> tuple[str, ...]:
        """The mask and the bias of which it needs all axes: it raises if one of them is 1."""
        found = list[str]()
        with contextlib.suppress(OutOfTime):
            for ours in (x for x in ("mask", "bias") if x in form.options and form.options[x].form.startswith("BNTS")):
                given = options.drawn(ours, form.options[ours].form, self.sizes)
                parts = (given[:1], given[:, :1], given[:, :, :1])
                fewer = [x for x in parts if x.shape != given.shape]
                if self.answer(form, self._probe({ours: given})):
                    found += [ours] * (not all(self.answer(form, self._probe({ours: x})) for x in fewer))
        return tuple(found)

    def _is_short(self, form: Form) -> bool:
        """Tell whether it raises where causal is aligned to the end and there are more queries than keys."""
        always = form.how["always"]
        if "to the end" not in (always or form.how["causal"]) or not (always or "is_causal" in form.options):
            return False
        (B, N, _, S, D, V), asked = self.sizes, {} if always else {"is_causal": True}
        with contextlib.suppress(OutOfTime):
            return not self.answer(form, Probe(arrays((B, N, S + 2, S, D, V)), asked))
        return False

    def _idle(self, form: Form, name: str) -> str:
        """Words for a parameter that may have other values, by which its first result is the same; else nothing."""
        others = self._others(name)
        if not others or name in OPTIONS["return_lse"].names or name in form.given or self._beside(form, name):
            return ""
        plain, probe = form.keeping(x for x in form.options if not form.options[x].name), self._probe({})
        right, found, several = self._right(form, probe), list[Answer](), self.several
        self.several = False
        with contextlib.suppress(OutOfTime):
            for x in others:
                asked = dataclasses.replace(plain, given={**form.given, name: x})
                answer = self.answer(asked, probe)
                if answer and answer[0].shape != right[0].shape:  # perhaps one array where there were several
                    answer = self.answer(dataclasses.replace(asked, first=False), probe)
                found.append(answer)
        always = form.first or "return_lse" in plain.options  # gives several
        fewer, more = always and not self.several, self.several and not always
        self.several = several
        same = any(found) and all(distance(x[:1], right[:1]) <= TOLERANCE for x in found if x)
        said = "gives more results" if more else "gives its first result alone" if fewer else "changes nothing"
        return said if same else ""

    def _others(self, name: str) -> tuple[Any, ...]:
        """Other values of a parameter whose default is a number."""
        default = self.fn.defaults.get(name)
        if isinstance(default, bool):
            return (not default,)
        if isinstance(default, int):
            return (2, 3, 2 * default) if default > 1 else (1 - default, 2)
        if isinstance(default, float):
            return (0.5, 1.0) if -1 <= default <= 0 else (2 * default, default / 2)  # -1 is off, as 0 is
        return ()

    def _beside(self, form: Form, name: str) -> str:
        """Words for a parameter whose other values change no result but beside an option; else nothing."""
        with contextlib.suppress(OutOfTime):
            for ours in (x for x in form.options if x in OPTIONS and form.options[x].name):
                probe = next((probes[-1] for _, probes in self._asked(form, ours)), self._probe({}))
                both = probe, probe._replace(options={})
                before = [self.answer(form, x)[:1] for x in both]
                for value in self._others(name)[-1:]:  # of JAX each is one more program
                    asked = dataclasses.replace(form, given={**form.given, name: value})
                    after = [self.answer(asked, x)[:1] for x in both]
                    if all(before) and all(after):
                        beside, alone = map(distance, after, before)
                        if alone <= TOLERANCE < beside:
                            return f"it changes results beside {form.options[ours].name}, by no known meaning"
        return ""

    def _aside(self, form: Form, name: str) -> str:
        """Words for a parameter that no case asks for, or that it refuses by name whatever its value is."""
        number = bool({"scale", "softcap", "window", "offset", "is_causal", "return_lse"} & {*options.named(name)})
        if number and name in self.refusals and name not in self.taken:
            return f"refused, {self.refusals[name]!r}"
        with contextlib.suppress(OutOfTime):
            if self._is_cap(form, name):
                return "the cap of scores"
            twice = {"mask", "bias"} & form.options.keys() & {*options.named(name)} if name in self.fn.names else ()
            for ours in sorted(twice, reverse=True):  # a mask may be numbers as well
                if said := self._beside_another(form, name, ours):
                    return said
            if twice:
                return ""
            return asides.words(self.fn, self.answer, form, self.sizes, name)
        return ""

    def _is_cap(self, form: Form, name: str) -> bool:
        """Tell whether a parameter is the number by which all scores are capped."""
        cap = self.fn.defaults.get(name)
        if not isinstance(cap, int | float) or f"{cap:.4g}" != form.how["cap"]:
            return False
        twice = dataclasses.replace(form.but(cap=f"{2 * cap:.4g}"), given={**form.given, name: 2 * cap})
        return self._settled([twice], [self._probe({})]) is not None

    def _beside_another(self, form: Form, name: str, ours: str) -> str:
        """Words for a mask beside a mask, if a pair is seen that neither hides; for a bias if both are added."""
        first = form.options[ours]
        rest = form.keeping(x for x in form.options if not form.options[x].name)
        alone = super()._read(rest.but(joins=BY_LAW["joins"]), name, ours)
        if not alone or alone.how[ours] != BY_LAW[ours] or alone.options[ours].name != name:
            return ""
        kind = alone.options[ours].form
        one, other = (options.drawn(ours, x, self.sizes, seed) for seed, x in enumerate((first.form, kind)))
        if ours == "mask":
            one[..., :1], other[..., :1] = True, True
        both = rest.offering(ours, first).offering(forms.PREFIX + name, Option(name))
        given = {ours: one, forms.PREFIX + name: options.given(ours, kind, other, *self.sizes[::3][:2])}
        found = self.answer(both, self._probe(given))
        joined = one & other if ours == "mask" else one + other
        right = self._right(rest.offering(ours, first), self._probe({ours: joined}))
        same = found and distance(found[:1], right[:1]) <= TOLERANCE
        rank, _, meaning = kind.partition("/")
        return f"a {ours} beside {first.name}, {options.axes_of(rank)}{', ' * bool(meaning)}{meaning}" if same else ""

    def _no_limit(self, form: Form) -> str:
        """Python for no limit in a window of two sides; empty where neither -1 nor None is that."""
        if "window" not in form.options or form.options["window"].form != options.WIDE["window"]:
            return ""
        return "None" if form.how["none"] == NO_LIMIT else "-1" if form.how["negative"] == NO_LIMIT else ""

    def _second(self, form: Form) -> Form:
        """The results beside its first; one number for each query has to be a log-sum-exp that is known."""
        found = super()._second(form)
        if found.first:
            B, N, T = self.sizes[:3]
            with_lse = dataclasses.replace(form, first=False).offering("return_lse", Option("", "BNT"))
            second = self.answer(with_lse, self._probe({"return_lse": True}))[1:2]
            if second and second[0].shape in ((B, N, T), (B, T, N)):
                self.unknown[SECOND] = "one number for each query, and no log-sum-exp that is known"
        return found

    def _offered(self, form: Form, name: str) -> Form | None:
        """The form with a keyword; with arrays of one head if a mask or lengths mean nothing beside several.

        If all heads share the keys, options alone tell the axis of heads from that of queries.
        """
        others: list[Form | None] = [form]
        if form.layout == "BNTD" and not (form.grouped or form.pack or form.of_keys):  # of which one may be the other
            others.append(dataclasses.replace(form, layout="NBTD"))
        others.append(self._of_one_head(form, options.named(name)))
        if form.has_one_key_head:
            others.append(dataclasses.replace(form, layout={"BNTD": "BTND", "BTND": "BNTD"}[form.layout]))
        return next(filter(None, (super(Describer, self)._offered(x, name) for x in others if x)), None)

    def _of_one_head(self, form: Form, kinds: Iterable[str]) -> Form | None:
        """The form with arrays of one head, in which a mask or lengths may have another meaning."""
        if form.layout not in ("BNTD", "NTD") or not {"mask", "key_lengths"} & {*kinds}:
            return None
        return dataclasses.replace(form, layout="BTD", grouped=False)

    def _refused(self, failed: Failed) -> str:
        """Say why there is nothing to describe, and the next step."""
        if str(failed).startswith("it requires"):
            return f"{self.fn.path}: {failed}"
        if not failed.said:
            asks = ", ".join(self.fn.required) or "nothing"
            asked = f"has to be given {asks}, expected query, key and value, or one array of them"
            return f"{self.fn.path} {asked}{self._next()}"
        if failed.said.startswith("it gives"):
            return f"{self.fn.path}: {failed.said}{self._next()}"
        said = f"each of the {self.calls} calls that were tried raises; the first said: {failed.said}"
        module, _, (owner, _, method) = *self.fn.path.partition(":")[:2], self.fn.path.partition(":")[2].rpartition(".")
        if owner and "self" in self.fn.meant:
            return f"{self.fn.path}: {said}; if {owner}() makes an object, name '{module}:{owner}().{method}'"
        return f"{self.fn.path}: {said}{self._next()}"

    def _next(self) -> str:
        """The next step, in words."""
        if not (weights := self.fn.weights):
            return NEXT
        width = next((shape[-1] for shape in weights.values() if len(shape) == 2), "M")
        command = f"attendax check --layer '{self.fn.path}' --width {width} --causal (or --no-causal)"
        return f"; it has weights of its own ({', '.join(list(weights)[:3])}), so test it as a layer: {command}"

    def _nearest(self) -> tuple[str, str]:
        """The layout of the form whose results point most nearly where its own do, and that form in words."""
        near: dict[tuple[bool, str, str], list[tuple[float, float]]] = {}  # angles and shares of each form
        answers = list(self._plain_answers())
        for form, probe, found in [x for x in answers if not x[0].of_keys] or answers:
            for scale in ("1/√D", "1", "1/D"):
                right = Candidate(self.fn, form.but(scale=scale)).right(probe)[0]
                with np.errstate(all="ignore"):
                    close = np.abs(found - right) <= 10 * TOLERANCE * max(1.0, float(np.abs(right).max()))
                    cosine = np.vdot(found, right) / (np.linalg.norm(found) * np.linalg.norm(right))
                words = f"nearest: {arrays_of(form)} with scale {scale}"
                key = form.layout != Form().layout, words, form.layout * (not form.of_keys)
                near.setdefault(key, []).append((1 - abs(float(np.nan_to_num(cosine))), 1 - float(close.mean())))
        if not near:
            return "", "no call gives an array of the shape of a result"
        means = {key: np.mean(x, axis=0).round(3).tolist() for key, x in near.items()}
        angle, (_, words, nearest), share = min((angle, key, share) for key, (angle, share) in means.items())
        if angle > FARTHEST:
            return nearest, "no formula is near it"
        return nearest, f"{words}, where {share:.0%} of the results differ"

    def _draws(self) -> bool:
        """Tell whether a plain call gives something else the second time."""
        for form, probe, found in list(self._plain_answers())[:1]:
            again = Candidate(self.fn, form).answer(probe)  # whatever time it has left
            return not isinstance(again, Failed) and not np.allclose(again[0], found, atol=1e-4, equal_nan=True)
        return False

    def _plain_answers(self) -> Iterator[tuple[Form, Probe, np.ndarray]]:
        """Results without options that have the shape of one, and the forms by which they were asked for."""
        for found, probe, form in self.answers.values():
            shape = (*probe.arrays[0].shape[:3], probe.arrays[2].shape[-1])
            drawn = np.ptp(probe.arrays[0]) > 0  # not what a scale is measured by
            if found and drawn and not probe.options and found[0].shape == shape:
                yield form, probe, found[0]

    def _read(self, form: Form, name: str, ours: str, ignored: bool = False) -> Form | None:
        """Read a keyword; a mask that is added is refuted by a finite number, a boolean one may also be added."""
        found = super()._read(form, name, ours, ignored)
        if not found or ours != "mask" or ignored:
            return found
        if found.options[ours].form.endswith(options.ADDED):
            return found if self._adds(found) else None
        if self._is_turned(found):
            self.faults[name] = "a mask of 0 and 1 hides what a boolean mask lets see"
        return self._either(found)

    def _is_turned(self, form: Form) -> bool:
        """Tell whether whole numbers in a mask mean the contrary of what a boolean mask means."""
        name, kind = form.options["mask"]
        rank, _, meaning = kind.partition("/")
        if not meaning.startswith("True"):
            return False
        probe = self._probe({"mask": options.drawn("mask", rank, self.sizes)})
        found = self.answer(form.offering("mask", Option(name, f"{rank}/{options.WHOLE}")), probe)
        drops = meaning.startswith("True drops")
        masks = probe.options["mask"], ~probe.options["mask"]
        rights = (self._right(form.but(empty="NaN"), probe._replace(options={"mask": x})) for x in masks)
        seen, hidden = (bool(found) and distance(found[:1], x[:1], some=True) <= TOLERANCE for x in rights)
        return (seen and not hidden) if drops else (hidden and not seen)

    def _either(self, form: Form) -> Form:
        """The form in which a boolean mask may be numbers too, if these are a bias by some value of its axes."""
        name, kind = form.options["mask"]
        rank = kind.partition("/")[0]
        if "True" not in kind or "bias" in form.options:
            return form
        plain = _as_bias(form)
        axes, probe = OPTIONS["bias"].axes, self._probe({"bias": options.drawn("bias", rank, self.sizes)})
        ways = ({"bias": x, "order": order} for x, order in itertools.product(axes["bias"], axes["order"]))
        found = self._settled((plain.but(**way) for way in ways), [probe])
        if not found:
            return form
        form = form.but(bias=found.how["bias"], order=found.how["order"])
        return form.offering("mask", Option(name, kind + options.OR_ADDED))

    def _order(self, form: Form) -> Form:
        """The order of the steps; a softcap beside a mask that may be added is asked with numbers too."""
        found = super()._order(form)
        mask = found.options.get("mask")
        if not mask or not mask.form.endswith(options.OR_ADDED) or "softcap" not in found.options:
            return found
        return found.but(order=super()._order(_as_bias(found)).how["order"])

    def _adds(self, form: Form, *, alike: bool = False) -> bool:
        """Tell whether a mask that is added lowers a score by 1 where it is -1."""
        name, rank = form.options["mask"].name, form.options["mask"].form.split("/")[0]
        B, N, T, S, D, V = self.sizes
        sizes = B, N, S if alike else T, S, D, V
        inputs, mask = arrays(sizes), options.drawn("mask", rank, sizes)
        found = self.answer(
            form.offering("mask", Option(name, f"{rank}/{options.LOWERS}")), Probe(inputs, {"mask": mask})
        )
        bias = np.broadcast_to(np.where(mask, 0, -1), (B, N, *sizes[2:4])).astype(np.float32)
        with_bias = (
            form.keeping(()).but(bias=BY_LAW["bias"], order=BY_LAW["order"]).offering("bias", Option("bias", "BNTS"))
        )
        right = self._right(with_bias, Probe(inputs, {"bias": bias}))
        return bool(found) and distance(found[:1], right[:1]) <= TOLERANCE

    def _otherwise(self, form: Form, name: str, kinds: list[str]) -> Form | None:
        """The form in which an option has a value that is nobody's convention, unless it is a mask of keys."""
        flat = self._of_one_head(form, kinds) if form.layout == "NTD" else None
        found = next(filter(None, (self._read(flat, name, ours) for ours in kinds)), None) if flat else None
        if found and ("mask" not in found.options or found.options["mask"].form.startswith("BS")):
            return found
        for ours in kinds:
            axes, known = {"mask": ("mask", "fill")}.get(ours, (AXIS[ours],)), OPTIONS[ours].axes
            every = {x: (*TABLE.get(x, ()), *UNSEARCHED.get(x, ())) for x in axes}
            ways = [{x: y} for x in axes for y in every[x] if y not in (*known.get(x, ()), IGNORED)]
            if ours in options.MASKED - {"mask"} and not options.MASKED & form.options.keys():
                ways += [{"masking": x} for x in OPTIONS["mask"].axes["masking"][1:]]
            if ours == "window":  # which may leave queries without any key
                values = itertools.product((*options.WINDOWS, *UNSEARCHED[ours]), options.REACH, options.SIDES)
                ways = [dict(zip(("window", "reach", "side"), x, strict=True)) for x in values]
            for some, probes in self._asked_alike(form, ours, name):
                if found := self._alike(form, ours, name, some, probes, ways):
                    return found
                offered = [form.offering(ours, Option(name, kind)) for kind in some]
                if self._by_law(ours, offered, probes):  # these calls cannot tell it from the law
                    continue
                offered = [x for x in offered if not x.options[ours].form.endswith(options.ADDED)]
                others = [x.but(**way) for way in ways for x in offered]
                changing = (x for x in others if self._changes(x, probes))
                asked = [*probes, *self.refuting.get(ours, ())]
                if found := next((x for x in changing if all(self._is_nearly(x, probe) for probe in asked)), None):
                    return self._limited(found) if found.options[ours].form == options.WIDE.get("window") else found
                empties = [x for x in TABLE["empty"] if x != SEES_ALL]  # by which the mask would change nothing
                alone = (x.but(empty=y) for x in others if not self._changes(x, probes) for y in empties)
                if ours == "mask" and (found := self._settled(alone, probes)):  # it hides all keys of a query, or none
                    return found.but(empty=form.how["empty"])
                lowered = ((x, self._lowers(x)) for x in offered if ours == "mask")
                if found := self._settled((x.but(fill=f"less {c:.4g}") for x, c in lowered if c), probes):
                    return found
        return None

    def _alike(
        self, form: Form, ours: str, name: str, kinds: Iterable[str], probes: list[Probe], ways: list[dict[str, str]]
    ) -> Form | None:
        """The form with an option that it takes beside as many queries as keys, and raises with otherwise."""
        offered = [form.offering(ours, Option(name, kind)) for kind in kinds]
        if ours not in ("mask", "bias", "is_causal", "key_lengths") or self.sizes[2] == self.sizes[3]:
            return None
        if ours == "is_causal":
            B, N, _, S, D, V = self.sizes
            probes = [Probe(arrays((B, N, S, S, D, V)), {ours: True})]
        found = self._by_law(ours, offered, probes) or self._ignoring(ours, offered, probes)
        if ours == "key_lengths":
            axes = OPTIONS[ours].axes
            hows = (dict(zip(axes, x, strict=True)) for x in itertools.product(*axes.values()))
            found = found or self._settled((x.but(**how) for how in hows for x in offered), probes)
        if ours == "is_causal":
            found = found or self._settled((x.but(**how) for how in ways for x in offered), probes)
        if not found or self.answer(
            found, self._probe({ours: options.drawn(ours, found.options[ours].form, self.sizes)})
        ):
            return None
        self.alike += [ours] * (ours not in self.alike)
        return found

    def _ignoring(self, ours: str, offered: list[Form], probes: list[Probe]) -> Form | None:
        """The first of the forms that ignores an option; a number may be added to all scores of a query."""
        near = [x._replace(scores=(FILL,)) for x in probes]
        return self._settled((x.but(**{AXIS[ours]: IGNORED}) for x in offered), near)

    def _by_law(self, ours: str, offered: list[Form], probes: list[Probe]) -> Form | None:
        """The first of the forms by which the option means what it does by the law."""
        found = self._settled(offered, probes)
        added = found and ours == "mask" and found.options[ours].form.endswith(options.ADDED)
        return found if not added or (found and self._adds(found, alike=True)) else None

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

    def _asked_alike(self, form: Form, ours: str, name: str) -> Iterator[tuple[tuple[str, ...], list[Probe]]]:
        """Questions about an option; a mask has as many queries as keys, so that it may be turned."""
        B, N, _, S, D, V = self.sizes
        for kinds, probes in self._asked(form, ours, name):
            masks = [_full(kinds[0], (B, N, S, S), seed) for seed in (0, 1)] if ours == "mask" else []
            kind = "".join(kinds[:1])
            masks += [options.drawn(ours, kind, (B, N, S, S))] if ours in ("bias", "key_lengths") else []
            yield kinds, [Probe(arrays((B, N, S, S, D, V)), {ours: x}) for x in masks] or probes

    def _dtypes(self, form: Form) -> Form:
        """The form as it is: narrow arrays cost more than all others, and are judged by ``check``."""
        return form

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


def _as_bias(form: Form) -> Form:
    """The form in which the keyword of its mask is a bias."""
    name, kind = form.options["mask"]
    rest = form.keeping(x for x in form.options if x != "mask")
    return rest.offering("bias", Option(name, kind.partition("/")[0]))


def _without(form: Form, name: str) -> Form:
    """The form without the value of a required argument."""
    return dataclasses.replace(form, meant={k: x for k, x in form.meant.items() if k != name})


def _full(kind: str, sizes: tuple[int, ...], seed: int) -> np.ndarray:
    """A mask by which no query is without a key, turned or not."""
    mask: np.ndarray = options.drawn("mask", kind, (*sizes, 1, 1), seed)
    mask[..., -1] = True
    if mask.shape[-2] > 1:
        mask[..., -1, :] = True
    return mask


def describe(fn: Any, *, seconds: float | None = None) -> Contract:
    """Find out how an attention function is called, and what each of its options means.

    Args:
        fn: a function of query, key and value, or of one array of them, in any layout; or its path
            "module:function". A path, or a function that a module has, runs in a process of its own.
        seconds: the most CPU seconds [4, for JAX 10].

    Returns:
        A ``Contract``; ``str(contract)`` is what ``attendax describe`` prints.

    Raises:
        Refusal: the function cannot be imported, raises on every call, or follows no known formula.

    Example:
        >>> import numpy as np
        >>> def attention(q, k, v, causal=False):  # (B, T, N, D)
        ...     scores = np.einsum("btnd,bsnd->bnts", q, k) * q.shape[-1] ** -0.5
        ...     T, S = scores.shape[-2:]
        ...     scores = np.where(np.tri(T, S, S - T), scores, -np.inf) if causal else scores
        ...     weights = np.exp(scores - scores.max(-1, keepdims=True))
        ...     return np.einsum("bnts,bsnd->btnd", weights / weights.sum(-1, keepdims=True), v)
        >>> contract = describe(attention)
        >>> contract.form.layout, contract.means("causal")
        ('BTND', 'aligned to the end')
    """
    function = Function(fn)
    try:
        return Describer(function, seconds).contract()
    finally:
        function.subject.close()
