"""Reasons that are found by calling again are so: memory, leaks, exponentials, strides, blocks."""

import functools
import itertools

import numpy as np
import pytest

import right_attention
import stated
from attendax import conformance
from attendax.conformance.adapters.implementation import Implementation
from attendax.conformance.conventions.table import OVERFLOWS
from attendax.conformance.diagnoses import by_running
from attendax.conformance.diagnoses.by_running import RACE, STRIDES, UNWRITTEN
from attendax.conformance.diagnoses.unexplained import COUNTS, LEAK, OTHER_BITS, WEIGHED
from attendax.conformance.frameworks import in_numpy
from attendax.conformance.judge.trial import Trial

check = functools.partial(
    stated.check, seed=0, budget=0, in_process=True, arrays="numpy", level="forward", profile="robust", repeat=1
)


def causes(fn, *only):
    return {cause.name for cause in check(fn, only=only).causes}


def after(change):
    """A right function, and what is done to its results."""

    def attend(query, key, value, **options):
        found = right_attention.attend(query, key, value, **options)
        return (change(found[0]), found[1]) if isinstance(found, tuple) else change(found)

    return attend


def odd_rows_of(number):
    def change(out):
        out = out.copy()
        out[..., 1::2, :] = number
        return out

    return change


def half_written(query, key, value, **options):
    found = np.empty((*query.shape[:-1], value.shape[-1]), query.dtype)
    found[..., ::2, :] = right_attention.attend(query, key, value, **options)[..., ::2, :]
    return found


def every(count, change):
    calls = itertools.count()
    return after(lambda out: out if next(calls) % count else change(out))


@pytest.mark.parametrize("number", [np.nan, -np.nan, np.inf])
def test_a_number_that_is_computed_is_no_memory(number):
    """NaN of either sign: that of a processor has one sign, and a constant or a negation has the other."""
    (cause,) = causes(after(odd_rows_of(number)), "plain", "one key")
    assert cause.startswith("the result is ")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_memory_is_told_by_its_mark(dtype):
    """Where the system gives other memory than what was freed last there is no mark; it may be other in each call."""
    report = check(half_written, only=["plain", "more queries than keys"], dtype=dtype)
    assert UNWRITTEN in {cause.name for cause in report.causes} <= {UNWRITTEN, RACE, "the result is wrong"}


def test_the_mark_is_in_memory_of_every_dtype():
    for dtype, number in (("float32", 0x7FD50000), ("bfloat16", 0x7FD5), ("float16", 0x7EA8)):
        arrays = {name: np.ones((1, 1, 3, 5), dtype) for name in ("query", "key", "value")}
        in_numpy.poison(arrays)
        found = np.empty((1, 1, 3, 5), dtype)
        assert (found.view(f"u{found.itemsize}") == number).all()


def test_nan_that_comes_and_goes_is_state():
    assert causes(every(2, odd_rows_of(np.nan)), "plain") == {RACE}


@pytest.mark.parametrize("first", range(4))
def test_strides_are_accused_only_where_copies_are_right_again(first):
    """Right every fourth time: what a copy seems to cure is luck."""
    calls = itertools.count(first)
    fn = after(lambda out: out + 1 if next(calls) % 4 else out)
    assert STRIDES not in causes(fn, "views")


def sees_all(query, key, value, *, mask=None, **options):
    return right_attention.attend(query, key, value, **options)


def adds_the_mask(query, key, value, *, mask=None):
    scores = query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
    scores = scores + np.where(True if mask is None else mask, 0, -np.inf).astype(scores.dtype)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return (powers / powers.sum(-1, keepdims=True) @ value).astype(query.dtype)


def test_what_leaks_is_told_by_finite_numbers():
    assert causes(sees_all, "leak: NaN in a masked") == {WEIGHED}
    assert causes(adds_the_mask, "leak: NaN in a masked value") == {LEAK}
    assert causes(adds_the_mask, "leak: NaN in a masked key") == {COUNTS}
    assert causes(every(3, lambda out: out + 1), "leak: NaN in a masked value") <= {OTHER_BITS}


def large_is_nan(query, key, value, **options):
    out = right_attention.attend(query, key, value, **options)
    return out * (np.nan if np.abs(query.astype(np.float64)).max() > 100 else 1)


def test_exponentials_do_not_overflow_where_products_do():
    """In float16 of 300 the scores themselves are infinite; large scores may be NaN for a reason of their own."""
    assert causes(adds_the_mask, "float16 of 300") == {"the result is NaN in float16"}
    assert causes(large_is_nan, "float16 of 300", "scores of 1e30") == {"the result is NaN"}

    def powers_of_scores(query, key, value, **options):
        scores = (query.astype(np.float32) @ key.swapaxes(-1, -2).astype(np.float32)).max(-1, keepdims=True)
        out = right_attention.attend(query, key, value, **options)
        return np.where(scores > 1e6, np.nan, out).astype(query.dtype)

    assert OVERFLOWS not in causes(powers_of_scores, "scores of 1e30", "float16 of 300")


def test_a_block_begins_where_it_does_in_longer_calls():
    def second_half(out):
        T = out.shape[-2]
        out = out.copy()
        out[..., (T - 3) // 2 :, :] += np.float32(0.1) * (T == 131)  # from row 64 on; in longer calls right
        return out

    assert not any("blocks" in cause for cause in causes(after(second_half), "lengths that no block divides"))


def test_a_crash_is_not_put_on_what_runs_elsewhere():
    def attend(query, key, value, **options):
        if options.get("mask") is not None and options.get("is_causal"):
            raise RuntimeError("both")
        return right_attention.attend(query, key, value, **options)

    (cause,) = check(attend, only=["mask", "causal", "plain"]).causes
    assert (cause.name, cause.remedy) == ("a legal call raises RuntimeError: both", "")


def test_a_crash_of_long_texts_is_not_put_on_an_option():
    def attend(query, key, value, **options):
        if query.shape[-2] > 200:
            raise RuntimeError("long")
        return right_attention.attend(query, key, value, **options)

    report = check(attend, only=["in blocks: bias (B, N, T, S), 300", "in blocks: plain, 300", "plain"])
    assert report.ok  # no call of so many tokens has an answer: they are not offered
    refused = [o.finding for o in report.cases if o.finding.refused]
    assert {(x.message, x.lack) for x in refused} == {("raises RuntimeError: long", "T or S > 7")}

    def without_bias(query, key, value, *, bias=None, **options):
        if bias is not None:
            raise RuntimeError("bias")
        return right_attention.attend(query, key, value, **options)

    (cause,) = check(without_bias, only=["in blocks: bias (B, N, T, S), 300", "in blocks: plain, 300", "plain"]).causes
    assert cause.name == "a legal call with bias of rank 4 raises RuntimeError: bias"


@pytest.mark.parametrize("block", [8, 64])
def test_causal_by_blocks_is_one_cause_and_neither_ignored_nor_left_out(block):
    """In short texts nothing is hidden, and one query sees all."""

    def attend(query, key, value, *, is_causal=False):
        i, j = np.indices((query.shape[-2], key.shape[-2])) // block
        return right_attention.attend(query, key, value, mask=j <= i if is_causal else None)

    (cause,) = check(attend, only=["causal"]).causes
    assert cause.name.startswith("some queries see keys that they may not")
    assert "causal, lengths that no block divides" in cause.cases


def test_options_that_have_no_part_in_it_are_left_out():
    def attend(query, key, value, *, sinks=None, **options):
        out = right_attention.attend(query, key, value, sinks=sinks, **options)
        return out + 1 if sinks is not None else out

    (case,) = (case for case in conformance.CASES if case.name == "sinks, window")
    trial = Trial(Implementation(attend, "mine", arrays="numpy"), case)
    trial.got = trial.run()
    with by_running.patience(60):
        assert by_running.smaller(trial).case.options == {"sinks"}
