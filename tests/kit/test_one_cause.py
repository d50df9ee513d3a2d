"""One mistake is one cause with one wording, whichever judge sees it."""

import functools
import math

import pytest

from attendax import conformance

check = functools.partial(conformance.check, seed=0, budget=0, in_process=True)


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
    assert [(cause.name, cause.remedy) for cause in report.causes] == [("lse is in base 2", "--lse-base 2")]
