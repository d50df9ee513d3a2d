"""The cases that a function is asked, and its way of taking them: the calls that it takes at all, found by trying."""

import dataclasses
import functools
import time
from collections.abc import Iterable, Sequence

from ..adapters.implementation import OPTIONS, Implementation, keywords
from ..cases import EXAMPLES, Case, asks_for_the_ladder, at_sizes, choose
from ..cases.case import FORWARD, GRADIENT, SIZES
from ..cases.how import How
from ..cases.ladder import HALF, ladder
from ..cases.pool import case_of
from ..cases.square import (
    ALIKE,
    BLOCK,
    FORMS,
    LIFTED,
    SQUARE,
    SYMMETRIC,
    TIME,
    TRAITS,
    WIDTHS,
    Restrictions,
    plain_of,
    twins,
)
from ..worker.calling import call, subject_of
from ..worker.errors import SIZE_WORDS, Died, Failed, NoNumbers, says_why
from .judging import can_be_asked, names, offers
from .trial import Trial

WIDEST_CASES = tuple(
    case_of(FORWARD, "plain", "normal", {"B": 1, "N": N, "G": G, "T": 32, "S": 32, "D": D, "V": V})
    for N, G, D, V in ((1, 1, 576, 576), (1, 1, 16, 576), (64, 1, 16, 16), (128, 128, 16, 16))
)
# A plainest call that takes so long is slow; a case that takes so long is asked all the same.
SLOW_SECONDS, CASE_SECONDS = 1.0, 10.0
MOST_HALF_TOKENS = 1024  # of a gradient in half precision, where numbers alone are asked
OPEN_MASK, ZERO_BIAS = "mask = np.ones({}, bool)", "bias = np.zeros({}, dtype)"
TRAIT_CALLS = {  # a trait: a call that needs it, and one that does not
    SYMMETRIC: (("", "window=(2, 1)"), ("", "window=(2, 2)")),
    LIFTED[0]: ((OPEN_MASK.format("(T, S)"), "mask=mask"), (OPEN_MASK.format("(1, 1, T, S)"), "mask=mask")),
    LIFTED[1]: ((ZERO_BIAS.format("(T, S)"), "bias=bias"), (ZERO_BIAS.format("(1, 1, T, S)"), "bias=bias")),
}
Limits = tuple[Restrictions, dict[str, str]]


def chosen(only: Iterable[str] | None, level: str, how: How, drawn: Iterable[Case] | None = None) -> list[Case]:
    """The cases of a run at its sizes; what cannot be asked is refused, as by ``choose`` and ``at_sizes``."""
    given = {} if drawn is None else {"drawn": drawn}
    return at_sizes(choose(only, level, how.profile, claims=how.claims, **given), how.sizes)


def asked(
    made: Implementation, only: Iterable[str] | None, level: str, how: How
) -> tuple[Implementation, list[Case], tuple[str, ...]]:
    """The function as it is found by calling it, all cases of a run, and what the budget had no room for."""
    made, cases = asked_of_list(made, only, level, how)
    drawn, left_out = asked_of_ladder(made, only, level, how)
    return made, cases + drawn, left_out


def asked_of_list(
    made: Implementation, only: Iterable[str] | None, level: str, how: How
) -> tuple[Implementation, list[Case]]:
    """The function as it is found by calling it, and the cases that every run has."""
    cases = [case for case in choose(only, level, how.profile, claims=how.claims) if case not in EXAMPLES]
    cases = at_sizes(cases, how.sizes) if cases else []
    made = as_found(made, chosen(only, level, how), how)
    return made, as_taken(made, cases)


def asked_of_ladder(
    made: Implementation, only: Iterable[str] | None, level: str, how: How, *, refuses: bool = True
) -> tuple[list[Case], tuple[str, ...]]:
    """The cases at sizes that are drawn for a run, and what there was no room for.

    Unless it ``refuses`` something in a case that every run has, or at the widest sizes, it is not asked at small sizes
    what it offers.
    """
    if not asks_for_the_ladder(only):
        return [], ()

    def calls(case: Case) -> bool:
        return names(made, case, how) if how.left() <= 0 else offers(made, case, how)

    refuses = refuses or made.form != Restrictions() or not all(map(calls, WIDEST_CASES))
    asks = calls if refuses else functools.partial(names, made, how=how)

    def takes(case: Case) -> bool:
        inexact = not how.strict and _rounds_each_sum(case, made.arrays)
        return not (inexact or made.form.lacking(case))

    found = ladder(how, level, asks, takes, made.arrays)
    cases = as_taken(made, chosen(only, level, how, found.cases))
    left_out, number = found.left_out, len(found.left_out)
    if found.cases and number:
        left_out = (f"{number} combination{'s' * (number > 1)} of sizes and options",)
    return [case for case in cases if "ladder: " in case.name and case.name not in (only or ())], left_out


def _rounds_each_sum(case: Case, arrays: str) -> bool:
    """Tell whether a framework's own error is large: gradients of long texts in half precision.

    XLA adds numbers of small products one by one on CPUs, and autograd adds the gradients of slices, each rounded.
    """
    sizes = SIZES | case.sizes
    half = case.direction == GRADIENT and case.dtype in HALF
    return half and ((arrays == "jax" and sizes["T"] == 1) or max(sizes["T"], sizes["S"]) > MOST_HALF_TOKENS)


def alone(made: Implementation, cases: Sequence[Case], how: How) -> list[Case]:
    """Some cases as a function takes them that was found before; at the sizes of the run where they make sense."""
    return as_taken(made, [(how.sizes and case.sized(how.sizes)) or case for case in cases])


def as_found(implementation: Implementation, cases: Sequence[Case], how: How) -> Implementation:
    """The function with what it was found to lack, of what the cases ask for."""
    if implementation.recorded:
        return implementation
    subject_of(implementation).allow(how.patience, how.left)
    try:
        form, lacks = _form(implementation, how)
        form = form._replace(alike=tuple(x for trait, x in ALIKE.items() if trait in implementation.lacks))
        lacks |= _unnamed(implementation, form, how)
        for trait, (way, other) in TRAIT_CALLS.items():
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


def _said(implementation: Implementation, case: Case, how: How) -> str:
    """The error of a call; nothing where it runs. Raises Died where its process ended, or did not answer in time."""
    try:
        call(implementation, Trial(implementation, case, how).inputs, case.direction)
    except Died:
        raise
    except (NotImplementedError, Failed, NoNumbers) as error:
        return str(error)
    return ""


def _unnamed(implementation: Implementation, form: Restrictions, how: How) -> dict[str, str]:
    """Options that a function which seems to take any keyword does not take, as its error says."""
    if keywords(implementation.attend) is not None:
        return {}
    given = {"bias": ZERO_BIAS.format("(T, S)"), "sinks": "sinks = np.zeros(N, dtype)"}
    calls = {x: (given[x], f"{x}={x}") if x in given else ("", f"{x}=None") for x in OPTIONS}
    said = {x: _said(implementation, plain_of(form, how.sizes, *asked), how) for x, asked in calls.items()}
    return {x: f"no argument {x}" for x in OPTIONS if f"unexpected keyword argument '{x}'" in said[x]}


def _form(implementation: Implementation, how: How) -> Limits:
    """The widest form that runs and lacks what is declared; and the errors of the calls that it does not take."""
    declared, lacks = {trait for trait in TRAITS if trait in implementation.lacks}, {}
    forms = [form for form in FORMS if declared <= {*form.without(), *([WIDTHS] if form.widths else [])}]
    forms = sorted(forms, key=lambda form: form.block < 128) if BLOCK in declared else forms  # 128 is of any block
    forms = [form for form in forms if not how.sizes or (form.block == 1 and not form.widths)]
    form = next((form for form in forms if not _said(implementation, plain_of(form, how.sizes), how)), Restrictions())
    for trait, wider in form.without().items():
        error = "" if trait in declared else _said(implementation, plain_of(wider, how.sizes), how)
        clear = says_why(error) or SIZE_WORDS.search(error)  # else it is a crash, which the cases tell
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


def _timed(implementation: Implementation, form: Restrictions, how: How, lacks: dict[str, str]) -> Limits:
    """The form with a limit where the plainest call is slow, as an interpreter of kernels is."""
    case = plain_of(form, how.sizes)
    for _ in range(2):  # the first may compile
        start = time.perf_counter()
        if _said(implementation, case, how):
            return form, lacks
        seconds = subject_of(implementation).taken or time.perf_counter() - start
        if seconds < SLOW_SECONDS:
            return form, lacks
    scores = case.pairs
    reason = f"the plainest call takes {seconds:.1f} s for {scores:,} scores"
    return form._replace(most=int(scores * CASE_SECONDS / seconds)), lacks | {TIME: reason}
