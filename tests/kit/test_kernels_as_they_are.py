"""Kernels that take few calls: each trait is found, or named, and enough is asked of it all the same."""

import dataclasses
import re
import time

import numpy as np
import pytest

import right_attention
from attendax.conformance import CASES, Verdict
from attendax.conformance.cases import at_sizes, choose
from attendax.conformance.cases.how import How
from attendax.conformance.cases.kinds import GRADIENTS, directed
from attendax.conformance.cases.square import FORMS, Restrictions
from attendax.conformance.checking import judge
from attendax.conformance.judge.asking import as_found, as_taken, can_be_asked
from attendax.conformance.worker.place import here as implement
from stated import check

BY_NAME = {case.name: case for case in CASES}


def must(holds, words):
    if not holds:
        raise ValueError(words)


RULES = {  # (T, S, D, is_causal, window, the mask's rank), the traits that are found, and their words
    "causal only": (["not causal"], lambda T, S, D, causal, window, rank: must(causal, "only causal")),
    "T = S only": (["T != S"], lambda T, S, D, causal, window, rank: must(T == S, "T must equal S")),
    "blocks of 64": (["lengths of no block"],
        lambda T, S, D, causal, window, rank: must(T % 64 == S % 64 == 0, "T and S must be multiples of 64")),
    "blocks of 128, D = 64": (["D != 64", "lengths of no block"],
        lambda T, S, D, causal, window, rank: must(T % 128 == S % 128 == 0 and D == 64, "must be 128 by 64")),
    "D = 64 and 128": (["widths of no block"],
        lambda T, S, D, causal, window, rank: must(D in (64, 128), "D must be 64 or 128")),
    "causal, T = S, blocks of 128, D = 128": (["D != 128", "T != S", "lengths of no block", "not causal"],
        lambda T, S, D, causal, window, rank: must(causal and T == S and T % 128 == 0 and D == 128, "not supported")),
    "symmetric windows": (
        ["asymmetric windows"],
        lambda T, S, D, causal, window, rank: must(window is None or len(set(window)) == 1, "window must be symmetric"),
    ),
    "masks of rank 4": (["mask of rank 2"],
        lambda T, S, D, causal, window, rank: must(rank in (None, 4), "masks must be of rank 4")),
}  # fmt: skip


def kernel(kind, bug=None):
    """A kernel of a kind, its backward, and what they get wrong."""
    rule = RULES[kind][1]
    bug = bug or (lambda x: x)

    def checked(query, key, *, is_causal=False, window=None, mask=None, **options):
        rule(query.shape[-2], key.shape[-2], query.shape[-1], is_causal, window, None if mask is None else mask.ndim)

    def attend(query, key, value, *, is_causal=False, scale=None, window=None, mask=None):
        options = {"is_causal": is_causal, "scale": scale, "window": window, "mask": mask}
        checked(query, key, **options)
        return bug(right_attention.attend(query, key, value, **options))

    def few(query, key, value, *, is_causal=False, scale=None):
        return attend(query, key, value, is_causal=is_causal, scale=scale)

    def backward(grad_output, query, key, value, **options):
        checked(query, key, **options)
        return [bug(x) for x in right_attention.backward(grad_output, query, key, value, **options)]

    return attend if "of rank" in kind or "window" in kind else few, backward


def last_query_twice(x):
    return np.where(np.arange(x.shape[-2])[:, None] == x.shape[-2] - 1, 2 * x, x)


def found(kind, bug=None, **settings):
    attend, backward = kernel(kind, bug)
    how = How(profile="numbers")
    made = implement(attend, backward=backward, how=how, **settings)
    cases = choose((), "everything", "numbers", ())
    made = as_found(made, cases, how)
    return made, as_taken(made, cases)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", RULES)
def test_each_trait_is_found_and_fifty_cases_are_left_with_gradients(kind):
    made, cases = found(kind)
    assert made.arrays == "numpy"
    assert sorted(made.lacks) == RULES[kind][0]
    assert all("raises ValueError" in words for words in made.lacks.values())
    options = {case.name: re.findall(r"(\w+)=", case.call) for case in cases}
    asked = [c for c in cases if can_be_asked(made, c) and not made.form.lacking(c)]
    asked = [case for case in asked if not made.lack(options[case.name])]
    assert len(asked) >= 50
    assert sum(directed(case) == GRADIENTS for case in asked) >= 15
    assert len({case.name for case in cases}) == len(cases)


def judged(kind, *names, bug=None):
    made, cases = found(kind, bug)
    cases = [case for case in cases if case.name.startswith(names) and not made.form.lacking(case)]
    return [judge(made, case, How(profile="numbers")) for case in cases]


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", RULES)
def test_what_is_right_is_right_and_a_bug_is_found(kind):
    found = judged(kind, "plain", "gradient: plain", "window, causal", "scale given", "scores of 1e30", "mask (T, S)")
    assert [(o.case.name, o.told()) for o in found if o.verdict.fails] == []
    assert {directed(o.case) for o in found if o.verdict is Verdict.OK} == {"results", "gradients"}
    wrong = judged(kind, "plain", "gradient: plain", bug=last_query_twice)
    assert {directed(o.case) for o in wrong} == {"results", "gradients"}
    assert {o.verdict for o in wrong} == {Verdict.WRONG}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RULES)
def test_all_that_is_asked_of_it_is_right(kind):
    attend, backward = kernel(kind)
    report = check(attend, backward=backward, arrays="numpy", budget=10, thorough=True)
    assert [(o.case.name, o.told()) for o in report.failures] == []
    assert report.ok
    assert sum(o.verdict is Verdict.OK for o in report.cases) >= 50


@pytest.mark.smoke
def test_a_trait_that_is_named_is_not_asked_however_it_fails():
    """It does not raise: where T != S it is wrong."""

    def attend(query, key, value, *, is_causal=False, scale=None):
        out = right_attention.attend(query, key, value, is_causal=is_causal, scale=scale)
        return out if query.shape[-2] == key.shape[-2] else 0.5 * out

    only = ["scale given", "causal, fewer", "causal, more"]
    given = {"arrays": "numpy", "level": "forward", "only": only, "budget": 0}
    assert not check(attend, **given).ok
    report = check(attend, lacks=["T != S"], **given)
    assert report.ok
    assert "1 T != S (said to be lacking)" in str(report)
    assert report.coverage.judged["results"][0] >= 3


@pytest.mark.smoke
def test_blocks_that_are_named_are_of_128():
    made = implement(right_attention.attend, arrays="numpy", lacks={"lengths of no block": "said so"})
    assert as_found(made, [], How()).form == Restrictions(block=128)


def test_a_function_that_takes_every_option_is_asked_every_case():
    made = implement(right_attention.attend, arrays="numpy")
    assert as_found(made, CASES, How()) == dataclasses.replace(made, lacks={})
    assert as_taken(made, CASES) == list(CASES)


def test_forms_are_tried_the_widest_first():
    assert FORMS[0] == Restrictions()
    assert len(set(FORMS)) == len(FORMS)


@pytest.mark.smoke
def test_a_slow_interpreter_gets_what_it_can_do_in_the_time(monkeypatch):
    clock = iter(range(0, 10**6, 2))  # each call takes 2 seconds
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    made = as_found(implement(right_attention.attend, arrays="numpy"), [], How())
    assert made.form.most == 5 * 2 * 3 * 5 * 7
    assert made.lacks["larger sizes"] == "the plainest call takes 2.0 s for 210 scores"
    case = BY_NAME["in blocks: causal, 300"]
    assert made.form.lacking(case) == ["larger sizes"]


def test_torch_that_knows_backward_alone():
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(context, query, key, value):
            context.save_for_backward(query, key, value)
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

        @staticmethod
        def backward(context, cotangent):
            arrays = [x.detach().requires_grad_() for x in context.saved_tensors]
            with torch.enable_grad():
                out = torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=True)
            return torch.autograd.grad(out, arrays, cotangent)

    def attend(query, key, value, *, is_causal=False):
        if not is_causal:
            raise ValueError("only causal")
        run = query.requires_grad
        return (
            checkpoint(Kernel.apply, query, key, value, use_reentrant=True) if run else Kernel.apply(query, key, value)
        )

    report = check(
        attend, only=["scale 0", "gradient: plain", "gradient of a loss: sum, 1, 12"], level="gradient", budget=0
    )
    assert report.arrays == "torch"
    assert report.ok
    assert report.coverage.judged["gradients"][0] >= 3


class TestSizes:
    """At sizes that are given, the words of a case are true, or it is left out."""

    @pytest.mark.parametrize(
        ("name", "sizes", "now"),
        [
            ("in blocks: causal, 300", {"T": 64, "S": 64}, "in blocks: causal, 64"),
            ("gradient of a loss: sum, 1, 12, 64, 16", {"N": 4}, "gradient of a loss: sum, 1, 4, 64, 16"),
            ("width 13", {"D": 64}, "width 64"),
            ("causal, lengths that no block divides", {"T": 128, "S": 128}, None),
            ("causal, lengths that no block divides", {"T": 130, "S": 130}, "causal, lengths that no block divides"),
            ("one head", {"N": 8}, None),
            ("batch of one", {"B": 4}, None),
            ("one key head for all", {"N": 8, "G": 4}, None),
            ("long row", {"S": 64}, None),
            ("cache: longer than a block", {"S": 100}, None),
            ("mask (T, S) where B = T", {"B": 2}, None),
            ("leak: NaN in a masked key, 98304 numbers", {"D": 8}, None),
        ],
    )
    def test_names(self, name, sizes, now):
        case = BY_NAME[name].sized(sizes)
        assert (case and case.name) == now

    def test_abouts(self):
        about = BY_NAME["values wider than keys"].sized({"D": 8, "V": 16}).about
        assert about == "V = 16, D = 8"
        assert BY_NAME["causal, fewer queries"].sized({"T": 6, "S": 9}).about == "T = 6, S = 9: aligned to the start"

    def test_cases_at_their_own_sizes_keep_their_names(self):
        for case in CASES:
            same = case.sized({})
            assert (same.name, same.about) == (case.name, case.about)

    def test_case_names_at_other_sizes_are_unique(self):
        names = [case.name for case in at_sizes(CASES, {"B": 2, "N": 4, "T": 64, "S": 64, "D": 64})]
        assert len(set(names)) == len(names)
