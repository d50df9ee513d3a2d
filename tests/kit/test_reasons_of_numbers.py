"""Reasons that are seen in the numbers hold of all that they are said of: scales, factors, zeros, sizes, weights."""

import functools

import ml_dtypes
import numpy as np
import pytest

import planted
import right_attention
import stated
from attendax.conformance import CASES, Implementation
from attendax.conformance.cases import named
from attendax.conformance.cases.how import How
from attendax.conformance.diagnoses import by_numbers, by_running
from attendax.conformance.diagnoses.by_running import patience
from attendax.conformance.judge.judging import find
from attendax.conformance.judge.trial import Trial
from attendax.conformance.judge.verdicts import WITHOUT

check = functools.partial(stated.check, seed=0, budget=0, in_process=True, arrays="numpy", level="forward", repeat=1)

ROWS = "scores = np.where(allowed, scores, -np.inf)\n"


def causes(fn, *only):
    return [cause.name for cause in check(fn, only=only).causes]


def scaled_by(size):
    def attend(query, key, value, *, scale=None, **options):
        scale = size(query.shape[-1]) ** -0.5 if scale is None else scale
        return right_attention.attend(query, key, value, scale=scale, **options)

    return attend


@pytest.mark.parametrize("size", [lambda D: D + 1, lambda D: -(-D // 8) * 8])
def test_a_scale_that_a_plain_call_refutes_is_that_of_no_other_call(size):
    """1/√(D + 1) is 1/√T of one call, and D in multiples of 8 is 8 of another."""
    assert causes(scaled_by(size), "plain", "changed in place", "width") == ["the result is wrong"]


def scaled_in_place(query, key, value, **options):
    query *= query.dtype.type(query.shape[-1] ** -0.5)
    return right_attention.attend(query, key, value, scale=1.0, **options)


def test_a_query_that_is_scaled_twice_because_it_is_written_to():
    assert causes(scaled_in_place, "plain", "mask changed in place") == ["writes to query"]


def after(change):
    def attend(query, key, value):
        return change(right_attention.attend(query, key, value), key.shape[-2])

    return attend


def test_a_factor_is_that_of_every_call():
    only = "plain", "one key", "one query", "in blocks: plain, 300"
    assert causes(after(lambda out, S: out * out.dtype.type(0.7)), *only) == ["out: 0.7 times what is right"]
    found = causes(after(lambda out, S: out * out.dtype.type(S / (S + 1))), *only)
    assert found == ["out: 0.5 to 0.9967 times what is right"]


def with_gradients(change):
    def backward(cotangent, query, key, value, **options):
        return change(right_attention.backward(cotangent, query, key, value, **options), len(query), options)

    return functools.partial(stated.check, right_attention.attend, backward=backward, seed=0, budget=0,
                             in_process=True, arrays="numpy", level="backward")  # fmt: skip


def test_a_factor_is_that_of_other_sizes():
    """The gradient of the bias is a mean over batches, of which there are two in most cases."""
    found = with_gradients(lambda grads, B, options: [*grads[:3], *(x / x.dtype.type(B) for x in grads[3:])])
    assert [cause.name for cause in found(only=["gradient: bias"]).causes] == ["grad bias: 1/B times what is right"]
    found = with_gradients(lambda grads, B, options: [*grads[:3], *(x / x.dtype.type(B + 1) for x in grads[3:])])
    assert [cause.name for cause in found(only=["gradient: bias"]).causes] == [
        "grad bias: 0.25 to 0.5 times what is right"
    ]


def test_a_gradient_that_is_zeros_with_an_option_is_said_of_so_many_calls():
    found = with_gradients(lambda grads, B, options: [*grads[:2], grads[2] * ("window" not in options), *grads[3:]])
    causes = found(only=["gradient: plain", "gradient: causal", "gradient: window"]).causes
    assert [cause.name for cause in causes] == ["grad value is all zeros in 1 of 5 calls"]


def test_a_gradient_that_is_always_zeros_is_not_said_of_some_calls():
    """Where the bias is the same for all keys zeros are right."""
    found = with_gradients(lambda grads, B, options: [*grads[:3], *(0 * x for x in grads[3:])])
    causes = found(only=["gradient: bias"]).causes
    assert [cause.name for cause in causes] == ["grad bias is all zeros"]


def test_the_gradient_of_values_alone_is_of_one_head_of_a_group():
    def backward(cotangent, query, key, value, **options):
        grads = list(right_attention.backward(cotangent, query, key, value, **options))
        group = query.shape[-3] // key.shape[-3]
        if group > 1:
            key, value = (np.repeat(x, group, -3) for x in (key, value))
            grads[2] = right_attention.backward(cotangent, query, key, value, **options)[2]
            grads[2] = grads[2][..., group - 1 :: group, :, :]
        return grads

    found = check(right_attention.attend, backward=backward, level="backward", only=["gradient: grouped heads"])
    assert [cause.name for cause in found.causes] == ["the gradient of the values is of the last head of a group only"]


def test_a_weight_that_hardly_counts_is_explained_by_what_explains_the_others():
    """In the second call the masked weights are some e^-10, less than what tells most reasons apart."""

    def attend(query, key, value, *, mask=None, is_causal=False, offset=None):
        T, S = query.shape[-2], key.shape[-2]
        first = 0 if offset is None else np.reshape(offset, (-1, 1, 1, 1))
        seen = np.arange(S) <= np.arange(T)[:, None] + first if is_causal else np.ones((T, S), bool)
        scores = query @ key.swapaxes(-1, -2) * key.shape[-1] ** -0.5
        scores = np.where(seen if mask is None else seen & mask, scores, -10)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return (weights / weights.sum(-1, keepdims=True) @ value).astype(query.dtype)

    assert causes(attend, "mask", "cache: a block of queries at the end") == [
        "masked scores are -10 only: they keep a weight"
    ]


def test_what_a_plain_call_has_wrong_is_not_blamed_on_dropout():
    """Columns of zeros are no weights that are dropped."""

    def cut(query, key, value, **options):
        return right_attention.attend(query, key, value, **options) * (np.arange(value.shape[-1]) < 20)

    assert WITHOUT in causes(cut, "dropout: share")[0]


def test_a_dtype_is_told_where_the_others_are_right():
    def unscaled(query, key, value, *, scale=None, **options):
        scale = 1.0 if scale is None and query.dtype.name == "bfloat16" else scale
        return right_attention.attend(query, key, value, scale=scale, **options)

    assert causes(unscaled, "plain", "bfloat16") == ["in bfloat16, scores are not scaled"]


def test_sizes_are_not_told_by_calls_whose_rounding_hides_them():
    """From row 64 on; in bfloat16 a gradient is off by no more than is allowed up to 97 rows."""
    space = planted.planted(planted.SOURCE, planted.Mistake("", ROWS, f"scores[..., 64:, :] *= 1.1\n    {ROWS}"))
    only = "in blocks: bias (B, N, T, S), 300", "gradient: bfloat16, a bias of many queries"
    report = check(space["attend"], backward=space["backward"], only=only, level="everything")
    first, *others = [cause.name for cause in report.causes]
    assert first.startswith("right below row 64")
    assert not any(" where " in name for name in others)


def test_zeros_of_one_call_are_not_all_zeros_of_others():
    """The last column of an odd number is not written: of one column, that is all."""

    def change(out, S):
        return out * (np.arange(1, out.shape[-1] + 1) < (out.shape[-1] | 1)).astype(out.dtype)

    assert causes(after(change), "width 1") == ["the result is wrong"]


@pytest.mark.parametrize("axis", "TS")
def test_of_sizes_that_are_equal_the_one_that_matters_is_named(axis):
    def change(out, S):
        return out + np.float32({"T": out.shape[-2], "S": S}[axis] > 128)

    assert causes(after(change), "in blocks: plain") == [f"wrong only where {axis} > 128"]


def where_wrong(fn, case):
    trial = Trial(Implementation(fn, "mine", arrays="numpy"), case, How())
    with patience(60.0):
        trial.got = trial.run()
        return by_running.where_wrong(by_running.smaller(trial))


@pytest.mark.smoke(1)
@pytest.mark.parametrize(
    "measured",
    [
        lambda query, key, value: query / 24,
        lambda query, key, value: key,
        lambda query, key, value: value,
        lambda query, key, value: query @ key.swapaxes(-1, -2) / 24 / 8,
    ],
    ids=["query", "key", "value", "scores"],
)
def test_large_numbers_are_no_size(measured):
    """Of so many numbers a few are so large, and none of fewer."""

    def attend(query, key, value):
        is_large = abs(measured(query, key, value)).max() > 3.9
        return right_attention.attend(query, key, value) * np.float32(1.5 if is_large else 1)

    assert where_wrong(attend, named("logits to 100")) == ""


def test_chance_is_no_size():
    """By the sum of the values each draw is wrong or right: of one draw alone there is a largest size that is right."""

    def attend(query, key, value):
        is_odd = int(abs(value.astype(np.float64)).sum() * 1000) % 2
        return right_attention.attend(query, key, value) * np.float32(1.5 if is_odd else 1)

    case = named("logits to 100")
    found = [where_wrong(attend, case._replace(sizes=case.sizes | {"S": S})) for S in range(40, 56)]
    assert sum(map(bool, found)) <= 1, found


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["logits to 100", "neither batch nor heads", "grouped heads"])
def test_a_size_is_told_whatever_the_numbers(name):
    def change(out, S):
        return out + np.float32(S > 12)

    case = named(name)
    assert where_wrong(after(change), case._replace(sizes=case.sizes | {"S": 40})) == "S > 12"


def test_a_weight_that_is_0_by_its_score_is_no_key_that_is_not_seen():
    def of_positive_scores(query, key, value, *, is_causal=False):
        scores = np.maximum(query @ key.swapaxes(-1, -2), 0)
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool) | (not is_causal), scores, 0)
        return (scores / np.maximum(scores.sum(-1, keepdims=True), 1e-6) @ value).astype(query.dtype)

    assert causes(of_positive_scores, "plain", "one key") == ["the result is wrong"]


def test_a_query_of_zeros_sees_no_key():
    def change(out, S):
        return out * (np.arange(out.shape[-2]) < out.shape[-2] - 1)[:, None].astype(out.dtype)

    assert causes(after(change), "plain") == ["some queries see no key: query 4"]


def narrow(x, y):
    return np.matmul(*(a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in (x, y)))


def formula(query, key, value, *, mask=None, slope=0.0, less=0.0, product=np.matmul):
    T, S = query.shape[-2], key.shape[-2]
    scores = product(query, key.swapaxes(-1, -2)) * np.float32((query.shape[-1] + less) ** -0.5)
    scores = scores - np.float32(slope) * abs(np.arange(T)[:, None] - np.arange(S)).astype(np.float32)
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return product(powers, value) / powers.sum(-1, keepdims=True)


SMALL = "batch of one", "one head", "mask (T, S)"
SIZES = {"T": 5, "S": 7, "D": 4}


def test_what_is_off_by_little_is_no_coarse_product():
    """A decay of the scores is wrong by as much as products at bf16 would be."""
    report = check(functools.partial(formula, slope=1e-3), only=SMALL, sizes=SIZES)
    assert [(cause.name, cause.remedy) for cause in report.causes] == [("the result is wrong", "")]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("off", "coarse"),
    [({"slope": 1e-3}, False), ({"slope": 1e-2}, False), ({"less": 0.03}, False), ({"product": narrow}, True)],
    ids=["slope", "decay", "scale", "bf16"],
)
def test_a_call_tells_rounding_from_what_is_off_by_little(off, coarse):
    made = Implementation(functools.partial(formula, **off), "mine", arrays="numpy")
    with patience(60.0):
        assert by_numbers.only_rounds(Trial(made, CASES[0], How()), by_numbers.BF16) is coarse


@pytest.mark.smoke
@pytest.mark.parametrize("sizes", [{"T": 40, "S": 56, "D": 64}, {"T": 1, "S": 33}], ids=["wide heads", "one query"])
@pytest.mark.parametrize(("off", "coarse"), [({"slope": 1e-4}, False), ({"product": narrow}, True)])
def test_a_function_that_refuses_small_calls_is_asked_at_its_own_sizes(off, coarse, sizes):
    def attend(query, key, value):
        if query.shape[-2] != sizes["T"] or query.shape[-1] < sizes.get("D", 1):
            raise ValueError("refused")
        return formula(query, key, value, **off)

    trial = Trial(Implementation(attend, "mine", arrays="numpy"), CASES[0]._replace(sizes=sizes), How())
    with patience(60.0):
        assert by_numbers.only_rounds(trial, by_numbers.BF16) is coarse


def test_every_case_of_coarse_products_passes_with_the_remedy():
    coarse = functools.partial(formula, product=narrow)
    (cause,) = check(coarse, only=SMALL, sizes=SIZES).causes
    assert (cause.name, cause.remedy) == ("float32 is as coarse as products at bf16", "--precision bf16")
    assert check(coarse, only=cause.cases, sizes=SIZES, precision="bf16").ok


def test_sums_of_one_term_after_the_other_round_more():
    """As ``np.einsum`` adds; of equal terms each rounding goes one way."""

    def attend(query, key, value):
        powers = np.exp(query @ key.swapaxes(-1, -2) * query.dtype.type(0.5) - 1)
        return powers @ value / np.add.accumulate(powers, -1)[..., -1:]

    equal = "query[:], key[:], key[..., 0, :], value[:] = 0.5, 0, 1, 1"
    case = named("plain")._replace(sizes={"B": 1, "N": 1, "G": 1, "T": 2, "S": 9985, "D": 4, "V": 4}, lines=equal)
    finding = find(Implementation(attend, "mine", arrays="numpy"), case, How(profile="numbers"))[0]
    assert not finding.verdict.fails
    assert finding.error > 1e-5
