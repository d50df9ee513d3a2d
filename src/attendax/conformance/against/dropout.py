"""Dropout: its effect on the results, at a rate at which each way has another mean."""

import dataclasses

import numpy as np

from . import forms, options
from .asking import Probe, arrays, distance
from .caller import ROUGH, Caller
from .forms import Form, Option

DROPOUT_KEYS = 64  # keys, of which some are dropped
MODES = {"training": True, "train": True, "deterministic": False}
UNSCALED, DIVIDED, OTHER_MEAN = "does not scale what is kept", "divides what is kept by the rate", "has another mean"
BEFORE, AFTER, RATE = "drops scores before the softmax", "drops numbers of the result", 0.25
BOTH = "drops weights, and numbers of the result"
IN_INFERENCE, UNASKED = "acts in inference as well", "acts unless 0 is given"
SCALED = "scales what is kept by 1/(1 - rate)"
OF_ALL_QUERIES = "draws the same weights for all queries"


def read(caller: Caller, form: Form, name: str) -> Form:
    """The form with what dropout does; of values that are all 1, the mean tells whether kept weights are larger."""
    if any(map(options.is_dropout_mask, caller.fn.names)):  # without which it drops nothing
        return form
    B, N, T, S, D, V = caller.sizes
    # The first queries see few keys.
    many = arrays((B, N, DROPOUT_KEYS if T == S or form.how["always"] else T, DROPOUT_KEYS, D, V))
    modes = {k: x for k, x in MODES.items() if k in caller.fn.names}
    keys = {forms.PREFIX + k: Option(k, "") for k in options.RANDOM_NAMES if k in caller.fn.names}
    training = {k: x.replace("training=False", "training=True") for k, x in form.meant.items()}  # of an object
    with_rate = dataclasses.replace(form, options=keys, given={**form.given, **modes, name: RATE}, meant=training)
    drawn = dict.fromkeys(keys, np.array([0, 1], np.uint32))  # a key of JAX
    answer = caller.answer(with_rate, Probe((*many[:2], np.ones_like(many[2])), drawn))
    if not answer:
        return form
    inference = {**with_rate.given, **{k: not x for k, x in modes.items()}}
    off, without = (dataclasses.replace(with_rate, given={**inference, name: rate}) for rate in (RATE, 0.0))
    random = Probe(many, drawn)
    if modes and _differ(caller, (off, random), (without, random)):
        return form.but(dropout=IN_INFERENCE)
    if np.ptp(answer[0], -1).max() > ROUGH:  # of values that are equal, results are
        kept = answer[0][answer[0] != 0]  # of which each is the same sum, unless weights are dropped as well
        return form.but(dropout=BOTH if np.ptp(kept) > ROUGH and abs(kept.mean() * (1 - RATE) - 1) < 0.15 else AFTER)
    mean, apart = (float(x) for x in (answer[0].mean(), abs(answer[0] - 1).max()))
    if apart < 1e-3:
        draws = _differ(caller, (with_rate, random), (form, Probe(many, {})))
        return form.but(dropout=BEFORE if draws else "drops nothing")
    query, key, value = many
    alike = caller.answer(with_rate, Probe((query[..., :1, :] + 0 * query, key, value), drawn))
    if abs(mean - 1) < 0.15 and alike and query.shape[2] > 1 and np.ptp(alike[0], -2).max() < ROUGH:
        return form.but(dropout=OF_ALL_QUERIES)
    means = {SCALED: 1.0, UNSCALED: 1 - RATE, DIVIDED: (1 - RATE) / RATE}
    found = next((x for x, right in means.items() if abs(mean / right - 1) < 0.15), OTHER_MEAN)
    by_default = dataclasses.replace(form, given={k: x for k, x in form.given.items() if k != name})
    unasked = not modes and bool(caller.fn.defaults.get(name)) and found == SCALED
    unasked = unasked and _differ(caller, (by_default, Probe(many, {})), (form, Probe(many, {})))
    return form.but(dropout=UNASKED if unasked else found)


def _differ(caller: Caller, *calls: tuple[Form, Probe]) -> bool:
    """Tell whether two calls have answers that differ."""
    one, other = (caller.answer(*x) for x in calls)
    return bool(one and other) and distance(one[:1], other[:1]) > ROUGH
