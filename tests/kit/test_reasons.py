"""Reasons that people met and that were not so: each function is pure, and one line off."""

import functools

import numpy as np
import pytest

import right_attention
import stated
from attendax.conformance.diagnoses import by_running
from attendax.conformance.diagnoses.by_running import RACE
from attendax.conformance.judge.verdicts import WITHOUT, Verdict
from attendax.conformance.report.outcomes import Harm

check = functools.partial(stated.check, seed=0, budget=0, in_process=True, arrays="numpy", level="forward")


def causes(fn, **how):
    return [cause.name for cause in check(fn, **how).causes]


def first_offset(query, key, value, *, offset=0, **options):
    """Every batch gets the offset of the first, with dropout and without."""
    offset = offset if np.ndim(offset) == 0 else np.full_like(offset, offset[0])
    return right_attention.attend(query, key, value, offset=offset, **options)


@pytest.mark.smoke
def test_dropout_beside_another_fault_is_not_its_own():
    report = check(first_offset, only=["cache", "dropout: cache"])
    assert [cause.name for cause in report.causes] == ["every batch gets the offset of the first"]
    assert "dropout: cache" in report.causes[0].cases
    found = next(outcome for outcome in report.failures if outcome.case.name == "dropout: cache")
    assert found.finding.message == WITHOUT


def not_scaled(query, key, value, *, dropout_rate=0.0, **options):
    """What dropout keeps is not scaled, where the first number is above 0: a pure function of the numbers."""
    out = right_attention.attend(query, key, value, dropout_rate=dropout_rate, **options)
    return out * np.float32(1 - dropout_rate if 0 < dropout_rate < 1 and query.flat[0] > 0 else 1)


def test_random_results_are_not_called_a_race():
    """Every second run has other numbers, and is red where the first was green, or the other way round."""
    report = check(not_scaled, only=["dropout"], repeat=4)
    assert any(len(set(outcome.runs)) == 2 for outcome in report.failures)
    assert report.causes
    assert RACE not in {cause.name for cause in report.causes}


def grouped(keys, values):
    def attend(query, key, value, **options):
        if query.ndim > 2 and (group := query.shape[-3] // key.shape[-3]) > 1:
            key, value = keys(key, group), values(value, group)
        return right_attention.attend(query, key, value, **options)

    return attend


def blocked(x, group):
    return np.repeat(x, group, -3)


def tiled(x, group):
    return np.concatenate([x] * group, -3)


def turned(x, group):
    return np.repeat(x[..., ::-1, :, :], group, -3)


@pytest.mark.parametrize(
    ("keys", "values", "words"),
    [
        (tiled, blocked, "key heads are tiled (n % G), value heads are blocked"),
        (blocked, tiled, "value heads are tiled (n % G), key heads are blocked"),
        (turned, turned, "the result is wrong with grouped heads"),
    ],
)
def test_grouped_heads_are_one_cause(keys, values, words):
    """And not one for each option that is asked beside them."""
    found = causes(grouped(keys, values))
    assert len(found) == 1
    assert found[0].startswith(words)


def half_a_window(query, key, value, *, window=None, **options):
    window = None if window is None else tuple(None if side is None else side // 2 for side in window)
    return right_attention.attend(query, key, value, window=window, **options)


def test_a_window_of_half_the_keys_is_named():
    assert causes(half_a_window, only=["window"]) == ["a window counts half of the keys on each side"]


def test_a_bias_that_is_multiplied_by_a_number():
    """1/√D is 1/2 where D is 4: a call of another width tells it from a half."""
    for factor, words in ((2, "the bias counts as 2·bias"), (0.5, "the bias counts as 0.5·bias")):
        assert causes(multiplied(factor), only=["bias"]) == [words]


def multiplied(factor):
    def attend(query, key, value, *, bias=None, **options):
        bias = None if bias is None else bias * np.float32(factor)
        return right_attention.attend(query, key, value, bias=bias, **options)

    return attend


def causal_for_all_but_the_first(query, key, value, *, is_causal=False, mask=None, **options):
    """No convention that is known: the first query sees all."""
    if is_causal:
        T, S = query.shape[-2], key.shape[-2]
        rule = (np.arange(S) <= np.arange(T)[:, None]) | (np.arange(T)[:, None] == 0)
        mask = rule if mask is None else mask & rule
    return right_attention.attend(query, key, value, mask=mask, **options)


def joined_by_or(query, key, value, *, mask=None, key_lengths=None, **options):
    """A mask beside key lengths hides what both hide."""
    if mask is not None and key_lengths is not None:
        mask, key_lengths = mask | (np.arange(key.shape[-2]) < np.reshape(key_lengths, (-1, 1, 1, 1))), None
    return right_attention.attend(query, key, value, mask=mask, key_lengths=key_lengths, **options)


def no_offset_beside_lengths(query, key, value, *, key_lengths=None, offset=0, **options):
    offset = offset if key_lengths is None else 0
    return right_attention.attend(query, key, value, key_lengths=key_lengths, offset=offset, **options)


def no_sinks_of_one_query(query, key, value, *, sinks=None, **options):
    sinks = sinks if query.shape[-2] > 1 else None
    return right_attention.attend(query, key, value, sinks=sinks, **options)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (no_offset_beside_lengths, "offset is ignored if key_lengths is given"),
        (no_sinks_of_one_query, "sinks is ignored in 2 of 10 calls with it"),
    ],
)
def test_an_option_beside_which_others_are_right_is_no_limit(fn, words):
    """All of these cases are causal, too, and so are others that are right."""
    assert causes(fn, only=["cache", "sinks"]) == [words]


def at_least_one_key(query, key, value, *, key_lengths=None, **options):
    """A length of 0 is read as 1."""
    key_lengths = None if key_lengths is None else np.maximum(key_lengths, 1)
    return right_attention.attend(query, key, value, key_lengths=key_lengths, **options)


@pytest.mark.parametrize(
    ("fn", "case", "words"),
    [
        (
            joined_by_or,
            "key lengths with a mask",
            "key_lengths and mask are joined by or: a key that one allows is seen",
        ),
        (at_least_one_key, "key lengths, one of 0", "a key length of 0 counts as 1"),
    ],
)
def test_what_two_options_hide_together_is_asked_by_default(fn, case, words):
    """By the profile of numbers, among the cheap cases, which even a short run has."""
    assert case in {outcome.case.name for outcome in check(fn, budget=5).failures}
    (cause,) = check(fn, only=["key length"]).causes
    assert cause.name == words
    assert cause.cases == (case,)


def without_lengths(query, key, value, *, key_lengths=None, **options):
    return right_attention.attend(query, key, value, **options)


def test_what_is_right_whatever_an_option_says_is_no_limit_of_who_ignores_it():
    """Beside a cache lengths hide what its end hides as well: these calls are right without them."""
    report = check(without_lengths, only=["key lengths", "cache: filled", "segments, key lengths"])
    assert {o.case.name for o in report.cases if o.verdict is Verdict.OK} >= {"cache: filled in part"}
    assert [cause.name for cause in report.causes if cause.harm is Harm.NUMBERS] == ["key_lengths is ignored"]


@pytest.mark.parametrize("empty", ["zero", "mean", "nan"])
def test_what_a_query_without_any_key_gets_is_free_where_numbers_are_asked(empty):
    def attend(query, key, value, *, key_lengths=None):
        seen = np.arange(key.shape[-2]) < np.reshape([key.shape[-2]] if key_lengths is None else key_lengths, (-1, 1))
        out = right_attention.attend(query, key, value, mask=seen[:, None, None] if query.ndim == 4 else None)
        filled = {"zero": 0 * value[..., :1, :], "mean": value.mean(-2, keepdims=True), "nan": np.nan}[empty]
        rows = seen.any(-1)[:, None, None, None] if query.ndim == 4 else True
        return np.where(rows, out, filled).astype(query.dtype)

    report = check(attend, only=["key lengths"])
    assert report.ok, report.causes
    assert "key lengths, one of 0" in [o.case.name for o in report.cases if o.verdict is Verdict.OK]


def test_what_has_no_reason_is_one_cause_for_all_that_is_asked_beside_it():
    """A single query does see all keys, which explains no other case: it is no reason."""
    found = check(causal_for_all_but_the_first, only=["causal"])
    (cause,) = (cause for cause in found.causes if cause.harm is Harm.NUMBERS)
    assert not cause.tried
    assert cause.name.startswith("some queries see keys that they may not: query 0, ")
    assert "causal, one query" in cause.cases


def causal_by_blocks(query, key, value, *, is_causal=False, mask=None, **options):
    """Blocks of 16 see themselves: up to 16 tokens all see all."""
    i, j = np.arange(query.shape[-2])[:, None] // 16, np.arange(key.shape[-2]) // 16
    rule = j <= i if is_causal else None
    mask = rule if mask is None else mask if rule is None else mask & rule
    return right_attention.attend(query, key, value, mask=mask, **options)


def test_an_option_that_is_ignored_in_small_calls_alone_is_not_ignored(monkeypatch):
    """Where there is time a better reason is found."""
    monkeypatch.setattr(by_running, "is_late", lambda: True)
    names = causes(causal_by_blocks, only=["causal", "in blocks: causal, 1100"])
    assert names
    assert not [name for name in names if "as if" in name or "ignored" in name]
