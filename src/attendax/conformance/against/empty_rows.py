"""Queries without any key: their result, and their log-sum-exp."""

import numpy as np

from ..conventions.table import IGNORED, INSTEAD, SEES_ALL, SEES_LATER, TABLE
from . import options
from .asking import Candidate, Probe, arrays
from .caller import Caller
from .forms import BY_LAW, UNKNOWN, Form
from .options import AXIS, RULES
from .plain_call import OF_PLAIN

OPEN = "a query without any key gets neither 0, the mean of the values nor NaN"
FILL = 1e4  # added where masked, by many functions: scores near it are rounded


def read(caller: Caller, form: Form) -> Form:
    """The form with the result and the log-sum-exp of a query without any key, as far as they are known."""
    return _with_lse(caller, *_with_result(caller, form))


def _with_result(caller: Caller, form: Form) -> tuple[Form, Probe | None]:
    """The form with the result of a query without any key, and an input with such."""
    B, N, _, S, D, V = caller.sizes
    rules = {x: 1 if x == "window" else True for x in RULES if x in form.options}
    if "mask" in form.options and form.how["masking"] == BY_LAW["masking"] and form.how["mask"] != IGNORED:
        for sizes in (caller.sizes, (B, N, S, S, D, V)):  # some take a mask beside as many queries as keys alone
            mask = options.drawn("mask", form.options["mask"].form, sizes) | True
            mask[(..., 1, slice(None)) if mask.shape[2] > 1 else 0] = False
            probe = Probe(arrays(sizes), {"mask": mask})
            if caller.answer(form, probe):
                break
    elif "key_lengths" in form.options and "mask" not in form.options:
        probe = caller.probe({"key_lengths": np.resize([0, S], B).astype(np.int32)})
    elif "segments" in form.options and "mask" not in form.options:
        if options.is_one_for_both("segments", form.options["segments"].form):  # each query sees itself
            return form, None
        ids = (np.arange(x)[None].repeat(B, 0).astype(np.int32) // 2 for x in (2 * S, S))
        probe = Probe(arrays((B, N, 2 * S, S, D, V)), {"segments": tuple(ids)})
    elif (rules or "to the end" in form.how["always"]) and "mask" not in form.options:
        probe = Probe(arrays((B, N, S + 4, S, D, V)), rules)
    else:
        return form, None
    found = caller.settled([form.but(empty=x) for x in TABLE["empty"]], [probe])
    found = found or caller.settled([form.but(empty=SEES_ALL)], [probe._replace(scores=(FILL,))])
    both = form.how["always"] and form.how["joins"] != INSTEAD
    if both and "mask" in probe.options:  # a mask may leave keys that causal hides
        mask = probe.options["mask"] | True
        mask[..., : 1 + max(S - caller.sizes[2], 0)] = False
        found = caller.settled([form.but(empty=SEES_LATER)], [probe, caller.probe({"mask": mask})]) or found
    is_law = all(form.how[x] == BY_LAW[x] for x in (*OF_PLAIN, *{AXIS[x] for x in probe.options} - {"window"}))
    known = {"mask", "key_lengths", "segments"} & set(probe.options) and caller.answer(form, probe)
    if not found and is_law and known:
        caller.unknown["empty rows"] = OPEN
    return found or form, probe


def _with_lse(caller: Caller, form: Form, probe: Probe | None) -> Form:
    """The form with the log-sum-exp of a query without any key, if it is one number."""
    if probe is None or "return_lse" not in form.options:
        return form
    probe = probe._replace(options={**probe.options, "return_lse": True})
    answer, empty = caller.answer(form, probe), np.isneginf(Candidate(caller.fn, form).right(probe)[1])
    if not empty.any():
        return form
    fits = bool(answer[1:]) and answer[1].shape == empty.shape
    mask = form.options.get("mask")
    if answer and not fits and mask and mask.form.startswith("BNTS/"):  # a function may take one for all heads alone
        return _with_lse(caller, form.offering("mask", mask._replace(form=mask.form.replace("N", "", 1))), probe)
    seen = {f"{x:.7g}" for x in answer[1][empty]} if fits else set()
    if len(seen) != 1:
        caller.unknown["log-sum-exp of a query without any key"] = "no one number"
    return form.but(empty_lse=seen.pop() if len(seen) == 1 else UNKNOWN)
