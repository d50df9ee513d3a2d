"""Cases that follow from a cause: only those that its reason changes."""

import functools

import numpy as np
import pytest

import right_attention
import stated
from attendax.conformance.diagnoses.causes import folded
from attendax.conformance.report.outcomes import Cause, Harm

check = functools.partial(stated.check, seed=0, budget=0, in_process=True, arrays="numpy", level="forward")
TILED = "key heads are tiled (n % G) instead of blocked (n // (N // G))"


def tiled(query, key, value, **options):
    if query.ndim > 2 and (group := query.shape[-3] // key.shape[-3]) > 1:
        key, value = (np.concatenate([x] * group, -3) for x in (key, value))
    return right_attention.attend(query, key, value, **options)


def tiled_and_short(query, key, value, *, window=None, **options):
    """Two mistakes: the second is that a window is one too short to the left."""
    if window is not None and window[0]:
        window = window[0] - 1, window[1]
    return tiled(query, key, value, window=window, **options)


def test_a_case_follows_only_from_what_can_change_it():
    """Tiled heads are right where N = G: a window that is wrong there is another mistake, and so it is by dropout."""
    only = ["grouped heads, other width of the values", "dropout: grouped heads", "window, causal", "dropout: window"]
    heads, windows = sorted(check(tiled_and_short, only=only).causes, key=lambda cause: cause.name != TILED)
    assert heads.name == TILED
    assert set(heads.cases) == {only[0], only[1]}
    assert set(windows.cases) == {only[2], only[3]}


@pytest.mark.smoke
def test_one_mistake_keeps_what_follows_from_it():
    (cause,) = check(tiled, only=["grouped heads, other width of the values", "dropout: grouped heads"]).causes
    assert cause.name == TILED
    assert len(cause.cases) == 2


@pytest.mark.smoke
def test_causes_of_what_a_reason_cannot_change_stay_apart():
    first = Cause(TILED, Harm.NUMBERS, ("grouped heads",), 1)
    vague = Cause("the result is wrong", Harm.NUMBERS, ("window", "window, causal"), 0)
    assert len(folded([first, vague])) == 1
    assert folded([first, vague], can_change=lambda name, case: name != TILED or case != "window") == [first, vague]
