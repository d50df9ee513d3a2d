"""One mistake is one cause with one wording, whichever judge sees it."""

import functools
import math
import re

import numpy as np
import pytest

import right_attention
import stated
from attendax.conformance.diagnoses import by_running
from attendax.conformance.report.summary import summary

check = functools.partial(stated.check, seed=0, budget=0, in_process=True)


def in_torch(query, key, value, *, return_lse=False):
    """A right function of torch arrays."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    out = scores.softmax(-1) @ value
    return (out, scores.logsumexp(-1)) if return_lse else out


def without_gradient_of_values(query, key, value):
    return in_torch(query, key, value.detach()) + 0 * value.sum()


@pytest.mark.parametrize("only", [["a gradient is held"], ["a gradient is held", "gradient: plain"]], ids=len)
def test_a_gradient_of_zeros_is_called_so_by_each_judge(only):
    pytest.importorskip("torch")
    report = check(without_gradient_of_values, arrays="torch", only=only)
    assert [cause.name for cause in report.causes] == ["grad value is all zeros"]
    assert {outcome.finding.message for outcome in report.failures} == {"grad value is all zeros"}


def in_base_2(query, key, value, *, return_lse=False):
    found = in_torch(query, key, value, return_lse=return_lse)
    return (found[0], found[1] / math.log(2)) if return_lse else found


@pytest.mark.parametrize("only", [["gradient: lse alone"], ["gradient: lse alone", "jvp: lse"]], ids=len)
def test_gradients_of_an_lse_in_base_2_have_that_reason(only):
    pytest.importorskip("torch")
    report = check(in_base_2, arrays="torch", only=only)
    assert [(cause.name, cause.remedy) for cause in report.causes] == [("lse is in base 2", '--expect "lse=base 2"')]


def odd_with_a_mask_or_a_bias(query, key, value, *, mask=None, bias=None):
    """Two mistakes without a reason."""
    out = right_attention.attend(query, key, value, mask=mask, bias=bias)
    places = np.arange(out.size).reshape(out.shape)
    out = out * np.where(mask is None, 1, 1.5 + np.sin(places)).astype(out.dtype)
    return out + np.where(bias is None, 0, np.cos(3 * places)).astype(out.dtype)


def test_if_no_reason_is_known_the_number_of_causes_is_a_lower_bound():
    report = check(odd_with_a_mask_or_a_bias, arrays="numpy", only=["mask (T, S)", "bias"], level="forward")
    assert any(cause.least for cause in report.causes)
    assert re.search(r", for at least \d reasons?\.", summary(report))
    assert report.to_dict()["causes"][0]["least"] == report.causes[0].least


def test_a_cause_that_was_tried_counts_as_one():
    report = check(unscaled, arrays="numpy", only=["plain", "mask (T, S)"], level="forward")
    assert [cause.least for cause in report.causes] == [False]
    assert ", for 1 reason." in summary(report)


def unscaled(query, key, value, *, mask=None):
    """Scores are not scaled."""
    return right_attention.attend(query, key, value, mask=mask, scale=1.0)


def odd_with_a_bias(query, key, value, *, mask=None, scale=None, bias=None):
    """One scale for every width, no mask, and numbers without a reason beside a bias: as state can make them."""
    out = right_attention.attend(query, key, value, scale=0.5)
    return out if bias is None else out * (2 + np.sin(np.arange(out.size))).reshape(out.shape).astype(out.dtype)


ASKED = ["plain", "mask (T, S)", "width 1", "scale given", "bias"]


def test_what_is_right_in_a_new_process_is_state_and_nothing_else(monkeypatch):
    """Neither a mask of an earlier call nor a scale of one is a mask that is ignored, or another scale."""
    asked = functools.partial(check, odd_with_a_bias, arrays="numpy", only=ASKED, level="forward")
    mistakes = {cause.name for cause in asked().causes}
    assert {"mask is ignored", "scale is ignored"} & mistakes
    assert len(mistakes) > 2
    monkeypatch.setattr(by_running, "is_right_anew", lambda _trial: True)
    assert [cause.name for cause in asked().causes] == [by_running.ANEW]


def test_another_mistake_stays_beside_state(monkeypatch):
    """The mask is ignored in a new process as well."""
    monkeypatch.setattr(by_running, "is_right_anew", lambda trial: "mask" not in trial.case.options)
    names = {cause.name for cause in check(odd_with_a_bias, arrays="numpy", only=ASKED, level="forward").causes}
    assert names == {by_running.ANEW, "mask is ignored"}
