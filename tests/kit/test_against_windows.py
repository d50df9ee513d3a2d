"""`attendax diff` of windows, which a number or two numbers give, and of options that a function takes and ignores."""

import numpy as np
import pytest

from attendax.conformance.against import describing, diff, remote, writing
from test_against_caches import softmax


def scored(query, key):
    T, S = query.shape[-2], key.shape[-2]
    known = {"i": np.arange(T)[:, None], "j": np.arange(S), "T": T, "S": S, "abs": abs}
    return query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5, known


def by_number(rule):
    def attention(query, key, value, window=None, is_causal=False, mask=None):
        scores, known = scored(query, key)
        for given, line in ((window is not None, rule), (is_causal, "j <= i")):
            scores = np.where(eval(line, known | {"w": window}), scores, -np.inf) if given else scores
        return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ value

    return attention


def by_pair(rule):
    def attention(query, key, value, window_size=(-1, -1)):
        scores, known = scored(query, key)
        left, right = (x if x >= 0 else 999 for x in window_size)
        return softmax(np.where(eval(rule, known | {"l": left, "r": right}), scores, -np.inf)) @ value

    return attention


NUMBERS = {
    "abs(i - j) < w": "w keys, its own among them, on both sides: (j >= i - (w - 1)) & (j <= i + (w - 1))",
    "(j <= i) & (j > i - w)": "w keys, its own among them, before: (j >= i - (w - 1)) & (j <= i)",
    "(j <= i + S - T) & (j > i + S - T - w)": "w keys, its own among them, before, aligned to the end",
    "(j <= i) & (j >= i - w // 2)": "half of w keys beside its own, before: (j >= i - (w // 2)) & (j <= i)",
    "(j >= i - w + 1) & (j <= i + w)": "one less to the left: (j >= i - w + 1) & (j <= i + w)",
    "j >= i - w": "w keys beside its own, before, and all that comes after",
    "j >= 0": "B ignores it",
}
PAIRS = {
    "(j >= i - l + 1) & (j <= i + r)": "one less to the left",
    "(j >= i - l) & (j <= i + r - 1)": "one less to the right",
    "(j >= i - l - 1) & (j <= i + r + 1)": "one more",
    "(j >= i + S - T - l) & (j <= i + S - T + r)": "aligned to the end",
    "(j >= i - r) & (j <= i + l)": "sides exchanged: (j >= i - right) & (j <= i + left)",
    "j >= 0": "B ignores it",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("make", "right", "rule", "words"),
    [(by_number, "abs(i - j) <= w", rule, words) for rule, words in NUMBERS.items()]
    + [(by_pair, "(j >= i - l) & (j <= i + r)", rule, words) for rule, words in PAIRS.items()],
)
def test_a_window_is_told_and_made_equal(make, right, rule, words):
    found = diff(make(right), make(rule))
    assert [difference.name for difference in found.differences] == ["window"]
    assert words in str(found.differences[0])
    assert found.explained, found.text()


def full(query, key, value, mask=None, is_causal=False, scale=None, softcap=None, bias=None):
    scores, known = scored(query, key)
    scores = scores if scale is None else scores * np.float32(scale * query.shape[-1] ** 0.5)
    scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
    scores = scores if bias is None else scores + bias
    scores = np.where(known["j"] <= known["i"], scores, -np.inf) if is_causal else scores
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ value


def deaf(query, key, value, mask=None, is_causal=False, scale=None, softcap=None, bias=None):
    return softmax(scored(query, key)[0]) @ value


@pytest.mark.parametrize(("a", "b"), [(full, deaf), (deaf, full)])
def test_options_that_one_ignores_are_named_and_not_given(a, b):
    found = diff(a, b)
    assert len(found.differences) == 5
    assert all("ignores it" in str(difference) for difference in found.differences)
    assert found.explained, found.text()
    if a is deaf:
        assert "out = fn(query, key, value)\n" in found.adapter


def test_a_window_that_is_cut_is_not_equal():
    """Windows of 3 and less are as declared, longer ones are not; shown is the smallest input."""
    right = by_number("abs(j - i) < w")
    found = diff(right, lambda query, key, value, window=None: right(query, key, value, window and min(window, 3)))
    assert not found.equal
    assert "window 5: A gives 1, B 0" in found.why


def of_either(rule):
    """A window is a number or two."""

    def attention(query, key, value, window=None):
        return by_pair(rule)(query, key, value, (-1, -1) if window is None else np.broadcast_to(window, 2))

    return attention


def test_a_window_of_a_number_or_two_sides_is_asked_both():
    right = of_either("(j >= i - l) & (j <= i + r)")
    assert diff(right, right).equal
    found = diff(right, of_either("(j >= i - r) & (j <= i + l)"))
    assert [difference.name for difference in found.differences] == ["window"]
    names = {"xp": np, "fn": right}
    exec(found.adapter.partition("\n\n\n")[2], names)
    query, key, value = np.random.default_rng(0).standard_normal((3, 1, 2, 4, 5)).astype(np.float32)
    for window in (1, (2, 0), (0, 1)):
        np.testing.assert_allclose(
            names["adapted"](query, key, value, window=window), right(query, key, value, window), rtol=1e-5
        )


def by_sides(negative, none):
    """A window of two sides; a negative side is no limit, or a number, and None is no limit, or refused."""

    def attention(query, key, value, mask=None, window=None):
        scores, known = scored(query, key)
        if window is not None:
            left, right = (999 if (none and x is None) or (negative and x is not None and x < 0) else x for x in window)
            scores = np.where((known["j"] >= known["i"] - left) & (known["j"] <= known["i"] + right), scores, -np.inf)
        return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ value

    return attention


@pytest.mark.parametrize(("negative", "none"), [(False, True), (True, False), (True, True)])
def test_the_adapter_takes_negative_sides_and_none_as_a_does(negative, none):
    fns = [remote.Function(x, in_process=True) for x in (by_sides(negative, none), by_sides(not negative, False))]
    a, b = (describing.Describing(fn).candidate().form for fn in fns)
    names = {"xp": np, "fn": by_sides(not negative, False)}
    exec(writing.adapter(a, b).partition("\n\n\n")[2], names)
    query, key, value = np.random.default_rng(0).standard_normal((3, 1, 2, 4, 5)).astype(np.float32)
    for window in ((1, 2), (-1, 2), (2, -1), *([(None, 2), (1, None)] * none)):
        right = by_sides(negative, none)(query, key, value, window=window)
        np.testing.assert_allclose(names["adapted"](query, key, value, window=window), right, rtol=1e-5)


def test_a_window_that_counts_with_causal_alone_is_a_difference():
    def one(query, key, value, is_causal=False, window=None):
        return by_number("(j > i - w) & (j <= i)")(query, key, value, window if is_causal else None, is_causal)

    found = diff(one, by_number("(j > i - w) & (j <= i)"))
    assert [x.name for x in found.differences] == ["window"], found.text()
