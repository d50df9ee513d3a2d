"""What is said of the calls of a cause is so: the same call without it was run and passed; one mistake is one cause."""

import functools
import math
import re

import jax
import numpy as np
import pytest

import right_attention
from attendax.conformance import Report, Verdict
from attendax.conformance.adapters.implementation import Implementation
from attendax.conformance.cases import named
from attendax.conformance.cases.how import How, forever
from attendax.conformance.diagnoses import by_running, diagnosed, qualifiers
from attendax.conformance.diagnoses.causes import Faults, folded
from attendax.conformance.judge.verdicts import Finding
from attendax.conformance.report.outcomes import Cause, Harm, Outcome
from attendax.conformance.report.summary import _told, summary
from attendax.conformance.run.run import judge
from off import TILED, tiled, tiled_backward, unscaled, unscaled_backward
from stated import check

judged = functools.partial(check, seed=0, budget=0, in_process=True)
DTYPES = "float16", "bfloat16"


def in_a_dtype(dtype, change, option=None):
    """A right function, and what is done to the results of calls in a dtype, or of those that have an option."""

    def attend(query, key, value, **options):
        out = right_attention.attend(query, key, value, **options)
        given = query.dtype.name == dtype if dtype else option is None or options.get(option) is not None
        return change(out) if given else out

    return attend


def odd(out):
    """Numbers that no reason explains."""
    return out + np.sin(np.arange(out.size)).reshape(out.shape).astype(out.dtype)


always_odd = in_a_dtype(None, odd)


HOW = How(seed=0, profile="numbers")
MASKED, PLAIN = named("mask (T, S)"), named("plain")
MASKED_IN_FLOAT16 = MASKED._replace(name="mask (T, S), float16", dtype="float16")


def said_of(fn, case, left=forever, name="the result is wrong"):
    """The name of a cause that is seen in one case."""
    made = Implementation(fn, "mine", arrays="numpy")
    outcome = judge(made, case, HOW)
    assert outcome.verdict.fails
    with by_running.patience(60.0, left):
        cause = Cause(name, Harm.NUMBERS, (case.name,))
        return qualifiers.qualified(cause, Faults(made, HOW, [outcome], [outcome])).name


class TestEarned:
    def test_a_dtype_is_said_if_the_same_call_is_right_in_another(self):
        assert said_of(in_a_dtype("float16", odd), named("float16")) == "the result is wrong in float16"
        assert said_of(in_a_dtype("float16", odd), named("float16"), name="why") == "in float16, why"

    def test_a_dtype_is_not_said_if_the_same_call_is_wrong_in_another(self):
        """As when only calls in float16 were asked."""
        assert said_of(always_odd, named("float16")) == "the result is wrong"

    def test_an_option_is_said_if_the_same_call_is_right_without_it(self):
        assert said_of(in_a_dtype(None, odd, "mask"), MASKED) == "the result is wrong with mask"

    @pytest.mark.smoke
    def test_an_option_is_not_said_if_the_same_call_is_wrong_without_it(self):
        """The mask of a call is not to blame for float16; nor is either to blame for what is wrong in all calls."""
        assert said_of(in_a_dtype("float16", odd), MASKED_IN_FLOAT16) == "the result is wrong in float16"
        assert said_of(always_odd, MASKED_IN_FLOAT16) == "the result is wrong"

    @pytest.mark.smoke
    def test_the_backward_is_said_if_the_forward_is_right(self):
        case = named("gradient: grouped heads")
        right = Implementation(right_attention.attend, "mine", arrays="numpy", backward=tiled_backward)
        wrong = Implementation(tiled, "mine", arrays="numpy", backward=tiled_backward)
        for made, words in ((right, "in the backward, "), (wrong, "")):
            outcome = judge(made, case, HOW)
            with by_running.patience(60.0):
                cause = Cause(TILED, Harm.GRADIENTS, (case.name,), tried=1)
                assert qualifiers.qualified(cause, Faults(made, HOW, [outcome], [outcome])).name == words + TILED

    def test_a_case_that_passes_near_its_tolerance_blames_no_option(self, monkeypatch):
        """A call in float16 is off by 1.2 of what is allowed, and without the mask by 0.9: the mask is not to blame."""
        near = Finding(Verdict.OK, error=0.9, allowed=1.0)
        wrong = Outcome(MASKED_IN_FLOAT16, Finding(Verdict.WRONG, error=1.2, allowed=1.0), 0.0, "")
        cause = Cause("the result is wrong", Harm.NUMBERS, (MASKED_IN_FLOAT16.name,))
        faults = Faults(Implementation(always_odd, "mine", arrays="numpy"), HOW, [], [wrong])
        for error, name in ((0.9, "the result is wrong"), (0.1, "the result is wrong with mask in float16")):
            monkeypatch.setattr(qualifiers, "find", lambda *_, error=error: (near._replace(error=error), {}))
            with by_running.patience(60.0):
                assert qualifiers.qualified(cause, faults).name == name

    def test_nothing_is_said_that_there_is_no_time_for(self):
        assert said_of(in_a_dtype(None, odd, "mask"), MASKED, lambda: 0.0) == "the result is wrong"


def odd_with_a_mask(query, key, value, **options):
    """Wrong by a factor of each query and feature with a mask: the gradients follow, and are right for that result."""
    out = right_attention.attend(query, key, value, **options)
    return out * (factors_of(out) if options.get("mask") is not None else 1)


def odd_backward(grad_output, query, key, value, **options):
    factors = factors_of(grad_output) if options.get("mask") is not None else 1
    return right_attention.backward(grad_output * factors, query, key, value, **options)


def factors_of(out):
    return (1.5 + np.sin(np.arange(out.size))).reshape(out.shape).astype(out.dtype)


@pytest.mark.parametrize("asked", ["all", "gradient"])
def test_gradients_that_follow_from_a_wrong_result_are_wrong_numbers(asked):
    """The result of that same call is wrong, whether a case asks for it or not."""
    names = ["mask (T, S)"] * (asked == "all") + ["gradient: mask (T, S)"]
    made = Implementation(odd_with_a_mask, "mine", arrays="numpy", backward=odd_backward)
    outcomes = [judge(made, named(name), HOW) for name in names]
    (cause,) = diagnosed(made, outcomes, HOW)
    assert (cause.harm, cause.name) == (Harm.NUMBERS, "the result is wrong with mask")
    (late,) = diagnosed(made, outcomes, HOW._replace(left=lambda: 0.0))
    assert (late.harm, late.name) == (Harm.NUMBERS, "the result is wrong")


def test_gradients_are_wrong_if_the_result_of_the_same_call_is_right():
    made = Implementation(right_attention.attend, "mine", arrays="numpy", backward=odd_backward)
    (cause,) = diagnosed(made, [judge(made, named("gradient: mask (T, S)"), HOW)], HOW)
    assert cause.harm is Harm.GRADIENTS
    assert "the gradient of" in cause.name


def test_a_gradient_that_is_held_follows_from_a_wrong_result():
    made = Implementation(always_odd, "mine", arrays="numpy")
    wrong = judge(made, PLAIN, HOW)
    held = wrong._replace(case=named("a gradient is held"), finding=wrong.finding._replace(leaf="grad query"))
    with by_running.patience(60.0):
        cause = Cause("the gradient of query is wrong", Harm.GRADIENTS, (held.case.name,))
        found = qualifiers.qualified(cause, Faults(made, HOW, [held], [held]))
    assert (found.harm, found.name) == (Harm.NUMBERS, "the result is wrong")


@pytest.mark.parametrize(("trait", "name"), [("grouped heads", "grouped heads"), ("V != D", "values wider than keys")])
@pytest.mark.parametrize("of_numbers", [False, True])
def test_a_property_of_sizes_is_said_if_calls_with_numbers_as_large_pass(trait, name, of_numbers):
    """A mistake of large numbers is none of the heads or widths, though fewer numbers have a smaller largest one."""
    case = named(name)
    largest = [np.abs(x).max() for x in case.inputs(HOW.seed, "float32").arrays.values()]

    def attend(query, key, value, **options):
        out = right_attention.attend(query, key, value, **options)
        large = all(np.abs(x).max() >= most * 0.999 for x, most in zip((query, key, value), largest, strict=True))
        sized = query.shape[-3] != key.shape[-3] if trait == "grouped heads" else query.shape[-1] != value.shape[-1]
        return odd(out) if (large if of_numbers else sized) else out

    made = Implementation(attend, "mine", arrays="numpy")
    with by_running.patience(60.0):
        passed = qualifiers.passes_without(trait, judge(made, case, HOW), Faults(made, HOW, [], []))
    assert passed is not of_numbers


def test_a_gradient_that_follows_from_a_wrong_result_is_told_with_its_name():
    made = Implementation(odd_with_a_mask, "mine", arrays="numpy", backward=odd_backward)
    outcomes = [judge(made, named("gradient: mask (T, S)"), HOW)]
    report = Report("mine:attention", "", "numpy", tuple(outcomes), causes=diagnosed(made, outcomes, HOW))
    assert f" in {outcomes[0].finding.leaf}" in _told(report.causes[0], report)


@pytest.mark.smoke
def test_if_there_is_no_time_the_headline_says_so_and_what_to_add():
    made = Implementation(in_a_dtype(None, odd, "mask"), "mine", arrays="numpy")
    outcomes = [judge(made, case, HOW) for case in (PLAIN, MASKED)]
    (late,) = diagnosed(made, outcomes, HOW._replace(left=lambda: 0.0))
    assert late.lacks_time
    report = Report("mine:attention", "", "numpy", tuple(outcomes), causes=(late,))
    assert "no time was left to find the reason of 1 fault: add --budget 120." in summary(report)
    (cause,) = diagnosed(made, outcomes, HOW)
    assert "no time" not in summary(report._replace(causes=(cause,)))


MISTAKES = {  # a function, its gradients, the one cause, and cases that show it
    "tiled": (
        tiled,
        tiled_backward,
        TILED,
        ["grouped heads", "gradient: grouped heads", "gradient: lse, grouped heads"],
    ),
    "unscaled": (
        unscaled,
        unscaled_backward,
        "scores are not scaled",
        ["plain", "gradient: plain", "gradient: mask (T, S)"],
    ),
}
ASKED = {"all": (slice(None), [None]), "gradients": (slice(1, None), [None]), "narrow": (slice(0, 2), DTYPES),
         "narrow gradients": (slice(1, 2), DTYPES), "one gradient": (slice(1, 2), DTYPES[:1])}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_mistake_is_one_cause_whatever_is_asked(mistake, asked, seed):
    """Of gradients alone, of narrow dtypes alone: without those it is wrong as well."""
    fn, backward, cause, names = MISTAKES[mistake]
    some, dtypes = ASKED[asked]
    cases = [named(name)._replace(dtype=dtype, name=f"{name}, {dtype}") for name in names[some] for dtype in dtypes]
    how, made = HOW._replace(seed=seed), Implementation(fn, "mine", arrays="numpy", backward=backward)
    outcomes = [judge(made, case, how) for case in cases]
    assert [found.name for found in diagnosed(made, outcomes, how)] == [cause]


NO_MASK = """import numpy as np

import right_attention


def attention(query, key, value, *, mask=None, is_causal=False):
    if mask is not None:
        raise NotImplementedError("no mask yet")
    if key.shape[-3] != query.shape[-3]:
        raise NotImplementedError("no grouped heads yet")
    return right_attention.attend(query, key, value, is_causal=is_causal)


def backward(grad_output, query, key, value, *, mask=None, is_causal=False):
    group = query.shape[-3] // key.shape[-3]
    key, value = (np.repeat(x, group, axis=-3) for x in (key, value))
    return right_attention.backward(grad_output, query, key, value, is_causal=is_causal)
"""


@pytest.mark.smoke
@pytest.mark.parametrize("in_process", [True, False])
def test_the_gradient_is_not_asked_for_what_the_forward_refuses(tmp_path, monkeypatch, in_process):
    (tmp_path / "without_masks.py").write_text(NO_MASK)
    monkeypatch.syspath_prepend(tmp_path)
    only = ["gradient: plain", "gradient: mask", "gradient: causal", "gradient: grouped heads"]
    given = {"backward": "without_masks:backward", "level": "gradient", "seed": 0, "in_process": in_process}
    report = check("without_masks:attention", only=only, arrays="numpy", budget=0, repeat=1, **given)
    assert report.failures == ()
    ends = {outcome.case.name: outcome.verdict for outcome in report.cases}
    assert ends["gradient: plain"] is Verdict.OK
    lacking = {name for name in ends if "mask" in name or "grouped" in name}
    assert lacking
    assert {ends[name] for name in lacking} == {Verdict.NOT_OFFERED}


@pytest.mark.parametrize(("seconds", "cut"), [(4.0, False), (2.0, True)])
def test_a_search_that_uses_up_its_part_of_the_time_is_cut_short(seconds, cut):
    """Its part ends at three quarters, and what comes after it has time again: only this tells that it was cut."""
    left = [10.0]
    with by_running.patience(1.0, lambda: left[0]):
        with by_running.until_the_end_of("search"):
            left[0] = seconds
        assert by_running.was_cut_short() is cut
        assert not by_running.is_late()


# Cases that follow from a cause: only those that its reason changes.


def tiled_and_short(query, key, value, *, window=None, **options):
    """Two mistakes: the second is that a window is one too short to the left."""
    if window is not None and window[0]:
        window = window[0] - 1, window[1]
    return tiled(query, key, value, window=window, **options)


def test_a_case_follows_only_from_what_can_change_it():
    """Tiled heads are right where N = G: a window that is wrong there is another mistake, and so it is by dropout."""
    only = ["grouped heads, other width of the values", "dropout: grouped heads", "window, causal", "dropout: window"]
    causes = judged(tiled_and_short, arrays="numpy", level="forward", only=only).causes
    heads, windows = sorted(causes, key=lambda cause: cause.name != TILED)
    assert heads.name == TILED
    assert set(heads.cases) == {only[0], only[1]}
    assert set(windows.cases) == {only[2], only[3]}


@pytest.mark.smoke
def test_causes_of_what_a_reason_cannot_change_stay_apart():
    first = Cause(TILED, Harm.NUMBERS, ("grouped heads",), 1)
    vague = Cause("the result is wrong", Harm.NUMBERS, ("window", "window, causal"), 0)
    assert len(folded([first, vague])) == 1
    assert folded([first, vague], can_change=lambda name, case: name != TILED or case != "window") == [first, vague]


# One mistake is one cause with one wording, whichever judge sees it.


def in_torch(query, key, value, *, return_lse=False):
    """A right function of torch arrays."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    out = scores.softmax(-1) @ value
    return (out, scores.logsumexp(-1)) if return_lse else out


def without_gradient_of_values(query, key, value):
    return in_torch(query, key, value.detach()) + 0 * value.sum()


def values_lose_their_gradient(query, key, value, **options):
    arrays = (x.swapaxes(-2, -3) for x in (query, key, jax.lax.stop_gradient(value)))
    return jax.nn.dot_product_attention(*arrays, **options).swapaxes(-2, -3)


@pytest.mark.parametrize(
    ("fn", "arrays", "only"),
    [
        (without_gradient_of_values, "torch", ["a gradient is held"]),
        (without_gradient_of_values, "torch", ["a gradient is held", "gradient: plain"]),
        (values_lose_their_gradient, "jax", ["gradient: plain"]),
    ],
)
def test_a_gradient_of_zeros_is_called_so_by_each_judge(fn, arrays, only):
    pytest.importorskip(arrays)
    report = judged(fn, arrays=arrays, level="gradient", only=only)
    assert [cause.name for cause in report.causes] == ["grad value is all zeros"]
    assert {outcome.finding.message for outcome in report.failures} == {"grad value is all zeros"}


def in_base_2(query, key, value, *, return_lse=False):
    found = in_torch(query, key, value, return_lse=return_lse)
    return (found[0], found[1] / math.log(2)) if return_lse else found


@pytest.mark.parametrize("only", [["gradient: lse alone"], ["gradient: lse alone", "jvp: lse"]], ids=len)
def test_gradients_of_an_lse_in_base_2_have_that_reason(only):
    pytest.importorskip("torch")
    report = judged(in_base_2, arrays="torch", only=only)
    assert [(cause.name, cause.remedy) for cause in report.causes] == [("lse is in base 2", '--expect "lse=base 2"')]


def odd_with_a_mask_or_a_bias(query, key, value, *, mask=None, bias=None):
    """Two mistakes without a reason."""
    out = right_attention.attend(query, key, value, mask=mask, bias=bias)
    places = np.arange(out.size).reshape(out.shape)
    out = out * np.where(mask is None, 1, 1.5 + np.sin(places)).astype(out.dtype)
    return out + np.where(bias is None, 0, np.cos(3 * places)).astype(out.dtype)


def test_if_no_reason_is_known_the_number_of_causes_is_a_lower_bound():
    report = judged(odd_with_a_mask_or_a_bias, arrays="numpy", only=["mask (T, S)", "bias"], level="forward")
    assert any(cause.least for cause in report.causes)
    assert re.search(r", for at least \d reasons?\.", summary(report))
    assert report.to_dict()["causes"][0]["least"] == report.causes[0].least


def test_a_cause_that_was_tried_counts_as_one():
    report = judged(unscaled, arrays="numpy", only=["plain", "mask (T, S)"], level="forward")
    assert [cause.least for cause in report.causes] == [False]
    assert ", for 1 reason." in summary(report)


def odd_with_a_bias(query, key, value, *, mask=None, scale=None, bias=None):
    """One scale for every width, no mask, and numbers without a reason beside a bias: as state can make them."""
    out = right_attention.attend(query, key, value, scale=0.5)
    return out if bias is None else out * (2 + np.sin(np.arange(out.size))).reshape(out.shape).astype(out.dtype)


OF_STATE = ["plain", "mask (T, S)", "width 1", "scale given", "bias"]


def test_what_is_right_in_a_new_process_is_state_and_nothing_else(monkeypatch):
    """Neither a mask of an earlier call nor a scale of one is a mask that is ignored, or another scale."""
    asked = functools.partial(judged, odd_with_a_bias, arrays="numpy", only=OF_STATE, level="forward")
    mistakes = {cause.name for cause in asked().causes}
    assert {"mask is ignored", "scale is ignored"} & mistakes
    assert len(mistakes) > 2
    monkeypatch.setattr(by_running, "is_right_anew", lambda _trial: True)
    assert [cause.name for cause in asked().causes] == [by_running.ANEW]


def test_another_mistake_stays_beside_state(monkeypatch):
    """The mask is ignored in a new process as well."""
    monkeypatch.setattr(by_running, "is_right_anew", lambda trial: "mask" not in trial.case.options)
    names = {cause.name for cause in judged(odd_with_a_bias, arrays="numpy", only=OF_STATE, level="forward").causes}
    assert names == {by_running.ANEW, "mask is ignored"}
