"""What was judged and what was not is part of the verdict."""

import itertools
import re

import jax
import numpy as np
import pytest

import right_attention
from attendax.cli import main
from attendax.conformance import CASES, Case, Finding, Outcome, Report, Verdict
from attendax.conformance.cases import CLAIMS, profiles
from attendax.conformance.cases.kinds import KINDS, kinds_of
from attendax.conformance.command.output import console
from attendax.conformance.report.outcomes import Coverage
from attendax.conformance.report.summary import terminal
from attendax.conformance.worker.errors import Failed
from libraries import SPEC, matrix
from places import ROOT
from stated import check

BY_NAME = {case.name: case for case in CASES}
FEW = {"arrays": "numpy", "only": ["mask (T", "mask (B, N", "lse, masked"], "level": "gradient", "in_process": True}


def right(query, key, value, *, mask=None, return_lse=False):
    return right_attention.attend(query, key, value, mask=mask, return_lse=return_lse)


def without_lse(query, key, value, *, mask=None):
    if mask is not None:
        raise ValueError("no masks, please")
    return right_attention.attend(query, key, value, mask=mask)


def table_of(tokens):
    """Attention with a table that is made once, for texts of so many tokens."""
    table = np.zeros((tokens, tokens), np.float32)

    def attend(query, key, value):
        T, S = query.shape[-2], key.shape[-2]
        return right(query, key, value) + (table[:T, :S] + np.zeros((T, S))).sum() * 0

    return attend


class TestTheLongestText:
    LONG = {"arrays": "numpy", "only": ["plain", "in blocks: plain", "causal"], "level": "forward", "in_process": True}

    def test_calls_with_more_tokens_than_any_that_returned_are_not_offered_if_all_raise(self):
        report = check(table_of(64), **self.LONG)
        assert report.ok, str(report)
        assert re.search(r"not judged: \d+ T or S > 7 \(the call raises ValueError: operands", str(report.coverage))

    def test_the_law_takes_texts_of_any_length(self):
        assert not check(table_of(64), **self.LONG, profile="law").ok

    def test_what_raises_with_few_tokens_and_not_with_more_is_a_fault(self):
        def attend(query, key, value):
            if query.shape[-2] == 1:
                raise IndexError("index 1 is out of bounds")
            return right(query, key, value)

        assert not check(attend, **self.LONG | {"only": ["one query", "plain"]}).ok


class TestWhatIsSaid:
    def test_by_kind_and_reason(self):
        few = FEW | {"only": [*FEW["only"], "gradient: one"]}
        report = check(without_lse, **few, backward=right_attention.backward)
        said = str(report.coverage)
        assert re.match(r"4 gradients are right\. \d+ more cases were not judged: ", said)
        assert "9 masks (refused with 'no masks, please')" in said
        assert re.search(r"log-sum-exp[^(]* \(the function lacks these options\)", said)
        assert str(report).endswith(said)
        assert report.ok

    def test_every_way_to_show_it(self, capsys, monkeypatch):
        pytest.importorskip("rich", reason="the extra 'check' is not installed")
        report = check(right, **FEW)
        said = str(report.coverage)
        assert "gradients" in said
        assert said in report.to_markdown().replace("\\", "")
        assert report.to_dict()["coverage"]["said"] == said
        monkeypatch.chdir(ROOT)
        assert main(["check", SPEC, "--only", "scale given", "--quiet"]) == 0
        assert "1 result and 1 gradient are right." in capsys.readouterr().out.splitlines()

    def test_a_wrong_result_is_not_counted_as_right(self):
        report = check(lambda q, k, v: right_attention.attend(q, k, 2 * v), arrays="numpy", only=["width 1"])
        assert str(report.coverage) == "0 of 2 results are right."
        mixed = Coverage({"results": (35, 23), "gradients": (2, 2), "vmap": (1, 1)}, {}, ())
        assert str(mixed) == "23 of 35 results, 2 of 2 gradients and 1 of 1 vmap call are right."

    def test_a_report_that_comes_back_says_the_same(self):
        report = check(right, **FEW, require=["masks"], backward=right_attention.backward)
        again = matrix.tables.report_from(report.to_dict())
        assert again.coverage == report.coverage
        assert again.require == ("masks",)

    def test_kinds_of_cases(self):
        assert kinds_of(BY_NAME["gradient: mask with grouped heads"], "float32") == {
            "gradients", "masks", "grouped heads", "float32",
        }  # fmt: skip
        assert kinds_of(BY_NAME["bfloat16"], "float32") == {"results", "bfloat16"}
        every = (*CASES, *itertools.chain(*CLAIMS.values()))
        assert set().union(*(kinds_of(case, "float32") for case in every)) == set(KINDS)


class TestRequire:
    def test_what_is_required_must_be_judged(self):
        assert check(right, **FEW, require=["masks", "lse"]).ok
        report = check(right, **FEW, require=["masks", "gradients"])
        assert not report.ok
        assert report.coverage.gaps == ("Required and not judged: gradients",)
        assert "but too little was judged" in str(report)
        assert str(report).endswith("Required and not judged: gradients.")

    def test_what_is_no_kind_is_refused(self):
        with pytest.raises(ValueError, match=r"check: require got 'msks', expected some of results(.|\n)*mean masks"):
            check(right, **FEW, require=["msks"])

    def test_the_command(self, capsys, monkeypatch):
        monkeypatch.chdir(ROOT)
        pytest.importorskip("rich", reason="the extra 'check' is not installed")
        given = ["check", SPEC, "--only", "scale given", "--quiet", "--require"]
        assert main([*given, "gradients", "results"]) == 0
        assert main([*given, "gradients", "dropout"]) == 1
        assert "Required and not judged: dropout." in capsys.readouterr().out
        assert main([*given, "graidents"]) == 2


def formula(query, key, value):
    return jax.nn.softmax(query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5) @ value


def with_rule(error):
    @jax.custom_vjp
    def attend(query, key, value):
        return formula(query, key, value)

    def backward(arrays, cotangent):
        raise error

    attend.defvjp(lambda *arrays: (attend(*arrays), arrays), backward)
    return attend


def numpy_backward(error):
    def backward(*arrays, **options):
        raise error

    return backward


class TestGradients:
    @pytest.mark.parametrize("error", [NotImplementedError("not yet"), ValueError("only the forward is supported")])
    def test_a_rule_that_refuses_all_is_not_green(self, error):
        report = check(with_rule(error), arrays="jax", only=["gradient: plain", "scale given"], level="gradient")
        assert not report.failures
        assert not report.ok
        assert "Gradients were requested (a custom_vjp or custom_jvp), but none was judged" in report.coverage.gaps
        report = check(right, **FEW, backward=numpy_backward(error))
        assert not report.ok
        assert "Gradients were requested (a backward is given), but none was judged" in report.coverage.gaps

    @pytest.mark.smoke
    @pytest.mark.parametrize("error", [KeyError("x"), ValueError("shape"), NotImplementedError()])
    def test_a_rule_that_crashes_is_a_fault(self, error):
        report = check(with_rule(error), arrays="jax", only=["gradient: plain"], level="gradient")
        assert [o.verdict for o in report.cases] == [Verdict.OBSCURE]

    def test_who_has_no_rule_and_no_gradient_is_asked_for_none(self):
        def forward_only(query, key, value):
            shape = jax.ShapeDtypeStruct(query.shape[:-1] + value.shape[-1:], query.dtype)
            return jax.pure_callback(right_attention.attend, shape, query, key, value)

        report = check(forward_only, arrays="jax", only=["plain"], level="gradient")
        assert report.ok
        assert re.search(r" more cases were not judged: 2 gradients", str(report))

    def test_the_forward_alone_asks_for_no_gradient(self):
        assert check(with_rule(KeyError("x")), arrays="jax", only=["plain"], level="forward").ok

    def test_who_says_that_it_lacks_gradients_is_asked_for_none(self):
        given = {"arrays": "jax", "only": ["plain"], "level": "gradient"}
        assert check(with_rule(KeyError("x")), lacks=["gradients"], **given).ok

    def test_a_rule_of_jax_is_nobodys_own(self):
        report = check(lambda q, k, v: formula(jax.nn.relu(q) - jax.nn.relu(-q), k, v), arrays="jax", only=["scale 0"])
        assert report.gradients == ""

    def test_torch(self):
        torch = pytest.importorskip("torch")

        class Refuses(torch.autograd.Function):
            @staticmethod
            def forward(context, query, key, value):
                return torch.nn.functional.scaled_dot_product_attention(query, key, value)

            @staticmethod
            def backward(context, cotangent):
                raise NotImplementedError("not yet")

        given = {"arrays": "torch", "only": ["plain"], "level": "gradient"}
        report = check(Refuses.apply, **given)
        assert report.coverage.gaps == ("Gradients were requested (its result requires grad), but none was judged",)

        def kernel(query, key, value):  # writes to new memory, as a kernel does
            return Refuses.apply(query, key, value).detach()

        assert check(kernel, **given).ok


class TestRefusals:
    @pytest.mark.parametrize(
        ("error", "verdict"),
        [
            (ValueError("D must be 64"), Verdict.NOT_OFFERED),
            (TypeError("no scale, please"), Verdict.NOT_OFFERED),
            (RuntimeError("only causal"), Verdict.NOT_OFFERED),
            (NotImplementedError("scale"), Verdict.NOT_OFFERED),
            (AssertionError(), Verdict.NOT_OFFERED),
            (NotImplementedError(), Verdict.OBSCURE),
            (ValueError(), Verdict.OBSCURE),
            (TypeError("unhashable"), Verdict.OBSCURE),
            (AttributeError("there must be an x"), Verdict.OBSCURE),
            (KeyError("only"), Verdict.OBSCURE),
        ],
        ids=repr,
    )
    def test_who_wrote_words_for_the_call_refuses_and_else_it_is_a_crash(self, error, verdict):
        def attend(query, key, value, *, scale=None):
            if scale is not None:
                raise error
            return right_attention.attend(query, key, value)

        report = check(attend, arrays="numpy", only=["scale given"], level="forward")
        assert report.cases[0].verdict is verdict

    def test_words_of_numpy_are_nobodys_refusal(self):
        def attend(query, key, value, *, scale=None):
            return right_attention.attend(query, key, value + np.zeros(3))

        report = check(attend, arrays="numpy", only=["plain"], level="forward")
        assert {o.verdict for o in report.cases} == {Verdict.OBSCURE}

    def test_an_error_stays_where_it_was_raised(self):
        assert Failed.by(NotImplementedError()).refusal is False


def only_one_size(query, key, value, *, mask=None, is_causal=False, scale=None):
    if query.shape != (2, 3, 5, 4) or key.shape != value.shape or key.shape != (2, 3, 7, 4):
        raise ValueError(f"{query.shape} is not supported")
    return right_attention.attend(query, key, value, mask=mask, is_causal=is_causal, scale=scale)


class TestHardlyJudged:
    def test_who_refuses_all_sizes_but_one(self):
        report = check(only_one_size, arrays="numpy", level="forward", only=["L1", "L2", "L3", "L4", "L11"])
        assert not report.failures
        assert not report.ok
        assert len(report.coverage.gaps) == 1
        assert re.match(r"Hardly judged: results at 1 of [12]\d sizes", report.coverage.gaps[0])

    @pytest.mark.smoke
    def test_a_backward_that_refuses_all_sizes_but_one(self):
        def backward(grad_output, query, key, value, **options):
            if query.shape != (2, 3, 5, 4) or key.shape != (2, 3, 7, 4):
                raise ValueError(f"{query.shape} is not supported")
            return right_attention.backward(grad_output, query, key, value, **options)

        report = check(right, arrays="numpy", backward=backward, level="backward", only=["L13", "L17"])
        assert not report.failures
        assert len(report.coverage.gaps) == 1
        assert report.coverage.gaps[0].startswith("Hardly judged: gradients at ")

    def test_few_sizes_are_no_share(self):
        def outcomes(*names, **found):
            return [Outcome(BY_NAME[name], Finding(**found), 0.0, "") for name in names]

        judged = outcomes("plain", verdict=Verdict.OK)
        refused = ["one query", "one key", "batch of one", "one head"]
        found = {"verdict": Verdict.NOT_OFFERED, "message": "refused: ValueError: no", "refused": True}
        few = Report("", "", "numpy", (*judged, *outcomes(*refused, **found)))
        assert few.ok
        assert not Report("", "", "numpy", (*judged, *outcomes(*refused, "width 13", **found))).ok

    def test_what_is_no_argument_is_not_refused(self):
        report = check(lambda q, k, v: right_attention.attend(q, k, v), arrays="numpy", only=["L1", "L3", "L4"])
        assert report.ok
        assert isinstance(report.cases[0].case, Case)


def test_the_first_screen_and_help_say_what_other_profiles_add(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    pytest.importorskip("rich", reason="the extra 'check' is not installed")
    main(["check", SPEC, "--only", "scale given", "--quiet"])
    assert "More cases" not in capsys.readouterr().out  # --only chooses from them, too
    terminal(check(right, arrays="numpy", only=["mask (T, S)"], level="everything", profile="numbers"), console())
    counts = profiles()
    more = f"--profile robust adds {counts['robust']}, --profile law adds {counts['robust'] + counts['law']}"
    assert f"More cases: {more}." in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    assert "robust (NaN, extremes, empty sets) or law" in " ".join(capsys.readouterr().out.split())
