"""Reasons that people met and that were not so: each function is pure, and one line off."""

import functools

import numpy as np
import pytest

import right_attention
from attendax import conformance
from attendax.conformance.diagnoses.by_running import RACE
from attendax.conformance.judge.verdicts import WITHOUT

check = functools.partial(conformance.check, seed=0, budget=0, in_process=True, arrays="numpy", level="forward")


def causes(fn, **how):
    return [cause.name for cause in check(fn, **how).causes]


def first_offset(query, key, value, *, offset=0, **options):
    """Every batch gets the offset of the first, with dropout and without."""
    offset = offset if np.ndim(offset) == 0 else np.full_like(offset, offset[0])
    return right_attention.attend(query, key, value, offset=offset, **options)


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


def test_other_numbers_are_no_race():
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
        (tiled, blocked, "heads of keys are tiled (n % G), those of values are blocked"),
        (blocked, tiled, "heads of values are tiled (n % G), those of keys are blocked"),
        (turned, turned, "wrong only with grouped heads"),
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


def test_half_a_window():
    assert causes(half_a_window, only=["window"]) == ["a window counts half of the keys on each side"]
