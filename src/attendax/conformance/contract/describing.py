"""``describe``: how a function is called and what it means, found by calling it within a limit of CPU seconds."""

import contextlib
import dataclasses
from collections.abc import Collection
from typing import Any

from ..against import empty_rows, options
from ..against.asking import ALIKE, SQUARE, Answer, Probe, arrays
from ..against.describing import NOT_TAKEN, SEVERAL
from ..against.forms import BY_LAW, Form
from ..against.options import AXIS, DROPOUT_NAMES, NO_LIMIT, OPTIONS
from ..against.remote import Function
from ..conventions.table import DEFECT, IGNORED, TABLE
from ..conventions.values import Conventions
from ..worker.errors import Died, Failed
from . import asides, fitting, refusing
from .contract import Contract
from .finer_reading import FinerReading
from .limit import Limit, OutOfTime

WHY = "its name is not known", "no known meaning gives its effect"
CALL_SECONDS = 15.0  # seconds that a call of small arrays may take


class Describer(FinerReading):
    """``FinerReading`` within a limit; it keeps what it has found when the limit ends it."""

    def __init__(self, fn: Function, seconds: float | None = None, times: int = 1) -> None:
        super().__init__(fn)
        fn.patience = CALL_SECONDS
        self.limit = Limit(fn, seconds, times)

    def called(self, /, *values: Any, **keywords: Any) -> Answer:
        """A call of the function; raises OutOfTime if the limit is reached."""
        self.limit.count()
        found = super().called(*values, **keywords)
        self.limit.framework = self.limit.framework or self.fn.kind()
        return found

    def contract(self) -> Contract:
        """All that is found in time; raises Refusal if there is nothing to describe."""
        cut = False
        try:
            found = self.candidate()
            form, unread = (found.form if found.known else None), dict(found.unknown)
        except Failed as failed:
            raise refusing.refused(self.fn, failed, self.limit.calls) from failed
        except OutOfTime:
            cut, form, unread = True, self.form and self._without_defects(self.form), dict(self.unknown)
        if not form:
            within = f" within {self.limit.most():.0f} CPU seconds (`attendax describe --limit SECONDS` gives more)"
            raise refusing.no_formula(self, within * cut)
        unread = self._unread(form, unread, cut=cut)
        self._look_for_state({ours for k, x in unread.items() if x in WHY for ours in options.named(k)})
        square = self.sizes == SQUARE and not form.pack.startswith("qkv")
        short, whole = not square and self._is_short(form), self._whole(form)
        if not (square or short) and self._is_open(form):
            short, unread["empty rows"] = True, empty_rows.OPEN
        idle, unread = self._idle(form, unread)
        form, unread = self._by_modes(form, unread)
        raising = self.raised.keys() - self.taken
        unread |= {k: self._raising(k) for k, x in unread.items() if x == WHY[1] and k in raising}
        told = tuple(f"{name}: {words}" for name, words in idle.items() if not words.startswith(asides.FAULT))
        faults = self.faults | {k: x.removeprefix(asides.FAULT) for k, x in idle.items() if x.startswith(asides.FAULT)}
        if form.pack and self.fn.writes():  # no case gives it an array of its own that could tell
            faults["arrays"] = "it writes to the array that it is given"
        if self.remembers:
            faults["calls"] = "a call changes what later calls give: the same arguments have another result"
        dropout = tuple(x for x in self.fn.names if x in DROPOUT_NAMES)
        return Contract(
            self.fn.path, form, unread, dropout, _no_limit(form), square, short, tuple(self.alike), whole,
            tuple(self.fn.names), told, self.limit.calls, self.limit.spent(), cut, self.rough, faults,
            self.fn.documentation, self.fn.source, self._takes_one_width(form),
        )  # fmt: skip

    def _takes_one_width(self, form: Form) -> bool:
        """Tell whether joined heads of values have another shape in its result unless they are as wide as keys."""
        B, N, T, S, D, _ = self.sizes
        wide = self.plain_probe((B, N, T, S, D, D + 2))
        found = self.answer(form, wide) if "(ND)" in form.layout and self.sizes == ALIKE else ()
        return bool(found) and not self.is_result(found, wide)

    def _without_defects(self, form: Form) -> Form:
        """The form without options that seem wrong, for which no time was left to try what would refute that."""
        axes = {x: AXIS[x] for x in form.options if x in AXIS}
        wrong = [x for x, axis in axes.items() if Conventions().but(**{axis: form.how[axis]}).kind(axis) == DEFECT]
        self.faults.clear()
        return form.but(**{axes[x]: BY_LAW[axes[x]] for x in wrong}).keeping(form.options.keys() - {*wrong})

    def _unread(self, form: Form, unread: dict[str, str], *, cut: bool) -> dict[str, str]:
        """The parameters that are not understood, in words for a user."""
        taken = {x for k, option in form.options.items() for x in (option if k == "segments" else option[:1])}
        for name in (x for x in self._free() if cut and x not in (*taken, *unread, *form.given)):
            unread[name] = "no time to find out; --limit SECONDS gives more"
        known = {*asides.ASIDES, *asides.PASTS, *(x for row in OPTIONS.values() for x in (*row.names, *row.kinds))}
        unread = {k: WHY[k in known or bool(options.named(k))] if x == NOT_TAKEN else x for k, x in unread.items()}
        return {k: x for k, x in unread.items() if k not in DROPOUT_NAMES and x != SEVERAL}

    def _idle(self, form: Form, unread: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """Parameters that no case asks for, in words; and those that stay unread, with the reason."""
        of_no_case = [x for x in unread if x not in fitting.PASSED or x in asides.ASIDES]
        unread = {k: x for k, x in unread.items() if k not in fitting.PASSED}  # which cases ask for
        idle = dict[str, str]()
        for name in () if self.remembers else of_no_case:
            if words := asides.idle(self, form, name) or asides.words(self, form, name):
                idle[name] = words
        for name in (x for x in form.meant if x in asides.ASIDES and x not in (*unread, *options.OPEN_POSITIONS)):
            rest = dataclasses.replace(form, meant={k: x for k, x in form.meant.items() if k != name})
            idle[name] = asides.words(self, rest, name)
        is_open = {x: words.removeprefix(asides.OPEN) for x, words in idle.items() if words.startswith(asides.OPEN)}
        is_open |= {x: WHY[1] for x, words in idle.items() if not words}
        unread = {k: asides.beside(self, form, k) or x for k, x in unread.items() if k not in idle or k in is_open}
        return {x: words for x, words in idle.items() if x not in is_open}, unread | is_open

    def _raising(self, name: str) -> str:
        """Words for a parameter with which no call has an answer."""
        failed = self.raised[name]
        if isinstance(failed, Died):
            return f"no call with it ends well; of the first, {failed}"
        return f"each call with it raises; the first said: {failed}"

    def _look_for_state(self, some: Collection[str]) -> None:
        """Ask again for options of no known effect; then in a new process, in which no other call comes first."""
        for begin in (lambda: None, self.fn.subject.stop)[: 1 + (self.limit.framework != "jax")] if some else ():
            begin()
            with contextlib.suppress(OutOfTime):
                self.remembers |= any(map(self.answers_otherwise, some))

    def _by_modes(self, form: Form, unread: dict[str, str]) -> tuple[Form, dict[str, str]]:
        """Leave out options that change nothing if a parameter of no known meaning may switch them on."""
        modes = [x for x in unread if x in self.fn.names]
        for ours in [x for x in form.options if modes and form.how.get(AXIS.get(x, "")) == IGNORED]:
            unread[form.options[ours].name] = f"it changes nothing, unless {' or '.join(modes)} makes it count"
            form = form.but(**{AXIS[ours]: BY_LAW[AXIS[ours]]}).keeping(x for x in form.options if x != ours)
        return form, unread

    def _whole(self, form: Form) -> tuple[str, ...]:
        """The mask and the bias of which it needs all axes: it raises if one of them is 1."""
        found = list[str]()
        with contextlib.suppress(OutOfTime):
            for ours in (x for x in ("mask", "bias") if x in form.options and form.options[x].form.startswith("BNTS")):
                value = options.drawn(ours, form.options[ours].form, self.sizes)
                fewer = [x for x in (value[:1], value[:, :1], value[:, :, :1]) if x.shape != value.shape]
                if self.answer(form, self.probe({ours: value})):
                    found += [ours] * (not all(self.answer(form, self.probe({ours: x})) for x in fewer))
        return tuple(found)

    def _is_short(self, form: Form) -> bool:
        """Tell whether it raises where causal leaves queries without any key."""
        probe = self._more_queries(form)
        with contextlib.suppress(OutOfTime):
            return probe is not None and not self.answer(form, probe)
        return False

    def _is_open(self, form: Form) -> bool:
        """Tell whether queries that causal leaves without any key get a result of no known rule."""
        probe = self._more_queries(form)
        with contextlib.suppress(OutOfTime):
            ways = [form.but(empty=x) for x in TABLE["empty"]]
            return probe is not None and self.is_nearly(form, probe) and not self.settled(ways, [probe])
        return False

    def _more_queries(self, form: Form) -> Probe | None:
        """A causal call with more queries than keys, if causal is aligned to the end."""
        always = form.how["always"]
        if "to the end" not in (always or form.how["causal"]) or not (always or "is_causal" in form.options):
            return None
        (B, N, _, S, D, V), values = self.sizes, {} if always else {"is_causal": True}
        return Probe(arrays((B, N, S + 2, S, D, V)), values)


def _no_limit(form: Form) -> str:
    """Python for no limit in a window of two sides; empty where neither -1 nor None is that."""
    if "window" not in form.options or form.options["window"].form != options.WIDE["window"]:
        return ""
    return "None" if form.how["none"] == NO_LIMIT else "-1" if form.how["negative"] == NO_LIMIT else ""


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
