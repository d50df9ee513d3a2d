"""The calls that a function takes at all, found by trying; and the cases that are made for it."""

import dataclasses
import time
from collections.abc import Sequence

from ..adapters.implementation import OPTIONS, Implementation
from ..cases import Case
from ..cases.how import How
from ..cases.kinds import GRADIENTS, REFUSALS, RESULTS, directed
from ..cases.square import BLOCK, FORMS, LIFTED, SQUARE, SYMMETRIC, TIME, TRAITS, WIDTHS, Form, plain_of, twins
from ..worker.calling import call
from ..worker.errors import OF_SIZES, Died, Failed, NoNumbers, says_why
from ..worker.place import allow, seconds_of_last_call
from .trial import Trial

SLOW, MOST = 1.0, 10.0  # seconds: of a plainest call that is slow, and of a case that is asked all the same
MASK, BIAS = "mask = np.ones({}, bool)", "bias = np.zeros({}, dtype)"
WAYS = {  # a trait: a call that needs it, and one that does not
    SYMMETRIC: (("", "window=(2, 1)"), ("", "window=(2, 2)")),
    LIFTED[0]: ((MASK.format("(T, S)"), "mask=mask"), (MASK.format("(1, 1, T, S)"), "mask=mask")),
    LIFTED[1]: ((BIAS.format("(T, S)"), "bias=bias"), (BIAS.format("(1, 1, T, S)"), "bias=bias")),
}
Found = tuple[Form, dict[str, str]]


def as_found(implementation: Implementation, cases: Sequence[Case], how: How) -> Implementation:
    """The function with what it was found to lack, of what the cases ask for."""
    if implementation.recorded:
        return implementation
    allow(implementation, how.patience, how.until)
    try:
        form, lacks = _form(implementation, how)
        for trait, (way, other) in WAYS.items():
            option = way[1].partition("=")[0]
            if implementation.lack([trait, option]) or not any(f"{option}=" in case.call for case in cases):
                continue
            error = _said(implementation, plain_of(form, how.sizes, *way), how)
            if error and not _said(implementation, plain_of(form, how.sizes, *other), how):
                lacks[trait] = f"{trait}: raises {error}"
    except Died:  # the cases tell
        return implementation
    return dataclasses.replace(implementation, lacks=lacks | dict(implementation.lacks), form=form)


def as_taken(implementation: Implementation, cases: Sequence[Case]) -> list[Case]:
    """The cases at the sizes, and with the masks and windows, that the function takes."""

    def offers(case: Case) -> bool:
        asks = [option for option in OPTIONS if f"{option}=" in case.call]
        return can_be_asked(implementation, case) and not implementation.lack(asks)

    return twins(cases, implementation.form, implementation.lacks, offers)


def can_be_asked(implementation: Implementation, case: Case) -> bool:
    """Tell whether the framework has what a case asks: a function of NumPy has the gradients that it brings.

    A candidate that is no function of Python is asked for results and gradients: mistakes, and what happens to the
    arrays of the caller, are nothing that it could see; its results lie in memory that is not its own.
    """
    of_memory = case.judge in ("refused", "unwritten", "held") or case.direction == "changed in place"
    if implementation.foreign and of_memory:
        return False
    of_numpy = {RESULTS, REFUSALS} | ({GRADIENTS} if implementation.backward else set())
    return implementation.arrays in case.frameworks and (implementation.arrays != "numpy" or directed(case) in of_numpy)


def _said(implementation: Implementation, case: Case, how: How) -> str:
    """The error of a call; nothing where it runs. Raises Died where its process ended, or did not answer in time."""
    try:
        call(implementation, Trial(implementation, case, how).inputs, case.direction)
    except Died:
        raise
    except (NotImplementedError, Failed, NoNumbers) as error:
        return str(error)
    return ""


def _form(implementation: Implementation, how: How) -> Found:
    """The widest form that runs and lacks what is declared; and the errors of the calls that it does not take."""
    declared, lacks = {trait for trait in TRAITS if trait in implementation.lacks}, {}
    forms = [form for form in FORMS if declared <= {*form.without(), *([WIDTHS] if form.widths else [])}]
    forms = sorted(forms, key=lambda form: form.block < 128) if BLOCK in declared else forms  # 128 is of any block
    forms = [form for form in forms if not how.sizes or (form.block == 1 and not form.widths)]
    form = next((form for form in forms if not _said(implementation, plain_of(form, how.sizes), how)), Form())
    for trait, wider in form.without().items():
        error = "" if trait in declared else _said(implementation, plain_of(wider, how.sizes), how)
        clear = says_why(error) or OF_SIZES.search(error)  # else it is a crash, which the cases tell
        if error and (clear or trait != SQUARE):
            lacks[trait] = f"{trait}: raises {error}"
        elif trait not in declared:
            form = wider
    if form.widths and not declared.intersection(form.without()) - {WIDTHS}:
        others = [form._replace(widths=(width,)) for width in (64, 128)]
        runs = tuple(f.widths[0] for f in others if f == form or not _said(implementation, plain_of(f, how.sizes), how))
        reason = lacks.pop(form.of_width(), "")
        form = form._replace(widths=runs)
        lacks |= {form.of_width(): reason} if reason else {}
    return _timed(implementation, form, how, lacks)


def _timed(implementation: Implementation, form: Form, how: How, lacks: dict[str, str]) -> Found:
    """The form with a limit where the plainest call is slow, as an interpreter of kernels is."""
    case = plain_of(form, how.sizes)
    for _ in range(2):  # the first may compile
        start = time.perf_counter()
        if _said(implementation, case, how):
            return form, lacks
        seconds = seconds_of_last_call(implementation, time.perf_counter() - start)
        if seconds < SLOW:
            return form, lacks
    scores = case.pairs
    reason = f"the plainest call takes {seconds:.1f} s for {scores:,} scores"
    return form._replace(most=int(scores * MOST / seconds)), lacks | {TIME: reason}
