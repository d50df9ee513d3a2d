"""`attendax diff` of functions that differ in large or low scores alone, and of calls that one of two refuses."""

import numpy as np
import pytest

from attendax.conformance.against import remote, report


def softmax(scores, away):
    weights = np.exp(scores - away(scores))
    return weights / weights.sum(-1, keepdims=True)


def of_row(scores):
    return scores.max(-1, keepdims=True)


def function(clip=None, away=of_row):
    """Attention with a mask, of clipped scores if there is a clip, and what is taken away from the scores."""

    def attention(q, k, v, mask=None):
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        scores = scores if clip is None else np.clip(scores, *clip)
        scores = scores if mask is None else np.where(mask, scores, -np.inf)
        return softmax(scores, away) @ v

    return attention


def by_blocks(stuck=False):
    """Attention in blocks of keys, the last first; the maximum may be stuck at 0 after a block that is hidden."""

    def attention(q, k, v, causal=False, block=64):
        T, S = q.shape[-2], k.shape[-2]
        largest = np.full((*q.shape[:-1], 1), -np.inf, q.dtype)
        total, out = np.zeros_like(largest), np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
        for start in range((S - 1) // block * block, -1, -block):
            keys = slice(start, start + block)
            scores = q @ k[..., keys, :].swapaxes(-1, -2) * q.shape[-1] ** -0.5
            scores = np.where(np.tri(T, S, dtype=bool)[:, keys], scores, -np.inf) if causal else scores
            larger = np.maximum(largest, scores.max(-1, keepdims=True))
            finite = np.where(np.isfinite(larger), larger, 0)
            powers, less = np.exp(scores - finite), np.exp(largest - finite)
            total, out = total * less + powers.sum(-1, keepdims=True), out * less + powers @ v[..., keys, :]
            largest = finite if stuck else larger
        return out / np.where(total == 0, 1, total)

    return attention


def here(a, b):
    """The report on two functions, both in this process."""
    one, other = (remote.Function(fn, in_process=True) for fn in (a, b))
    with np.errstate(all="ignore"):
        return report.compare(report.described(one, "A"), report.described(other, "B"))


def test_a_maximum_that_a_hidden_block_sets_is_not_equal():
    assert here(by_blocks(), by_blocks()).equal
    found = here(by_blocks(), by_blocks(stuck=True))
    assert not found.explained
    assert "T=300, S=300, D=8, scores of about -800: " in found.text()
    assert found.why.split(";")[0].endswith(", B 0")


@pytest.mark.parametrize(
    ("clip", "said"),
    [
        ((-10, 10), "[-10, 10]"), ((-50, 50), "[-50, 50]"), ((-100, 100), "[-100, 100]"), ((-7.25, 33), "[-7.25, 33]"),
        ((-75, None), "[-75, inf]"), ((None, 30), "[-inf, 30]"),
    ],
)  # fmt: skip
def test_clipped_scores_are_named(clip, said):
    """The adapter clips them, whatever the bounds."""
    found = here(function(clip), function())
    assert found.explained, found.text()
    assert [str(x) for x in found.differences] == [f"large scores: A clips them to {said}; B takes them as they are"], (
        found.text()
    )
    assert "xp.clip(scores, " in found.adapter
    assert here(function(clip), function(clip)).equal


@pytest.mark.parametrize(
    ("away", "said"),
    [
        (lambda scores: 0, "it does not subtract a row's largest score"),
        (np.max, "it subtracts the largest score of other rows"),
    ],
)
def test_scores_without_their_own_maximum_are_named(away, said):
    """B is left with scores from which the adapter has taken the largest."""
    found = here(function(), function(away=away))
    told = next(x for x in found.differences if x.name == "large")
    assert told.b.endswith(said)
    assert told.shown.endswith("B nan")
    assert found.explained, found.text()
    assert here(function(away=away), function(away=away)).equal


def test_clipped_scores_are_no_mistake_of_bfloat16():
    assert not [note for note in here(function(), function((-10, 10))).notes if "bfloat16" in note]


def one_option(refusal, error=NotImplementedError):
    """Attention that refuses a mask, a bias and causal beside each other, or does not."""

    def attention(q, k, v, mask=None, bias=None, causal=False):
        if refusal and (mask is not None) + (bias is not None) + causal > 1:
            raise error("only one of mask, bias and causal")
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5 + (0 if bias is None else bias)
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf) if causal else scores
        scores = scores if mask is None else np.where(mask, scores, -np.inf)
        return np.nan_to_num(softmax(scores, of_row)) @ v

    return attention


@pytest.mark.parametrize("error", [NotImplementedError, ValueError])
def test_what_one_side_refuses_is_not_compared_and_said_so(error):
    said = "mask and bias together, mask and causal together, bias and causal together, which {} refuses"
    for a, b, letter in ((False, True, "B"), (True, False, "A")):
        found = here(one_option(a, error), one_option(b, error))
        assert found.equal, found.text()
        assert found.notes[0].startswith(said.format(letter) + f" ({error.__name__}: only one of")


def test_sizes_that_one_side_refuses_are_told():
    def short(q, k, v, mask=None):
        if q.shape[-2] > 128:
            raise NotImplementedError("128 queries")
        return function()(q, k, v, mask)

    found = here(function(), short)
    assert found.equal
    assert found.notes[0].startswith("some sizes, such as B=1, N=2, G=2, T=300, S=300, D=8, which B refuses (")
    assert "T 1, 2, 3, 4, 5, 7; S" in found.checked.varied


@pytest.mark.parametrize("broken", ["A", "B"])
def test_a_crash_is_no_refusal(broken):
    def crashes(q, k, v, mask=None):
        return function()(q, k, v, mask) if q.shape[-2] < 128 else v[{}]

    pair = (crashes, function()) if broken == "A" else (function(), crashes)
    found = here(*pair)
    assert not found.explained
    assert f"{broken} raises TypeError: " in found.why or f"{broken} raises IndexError: " in found.why


def filled(fill, axis=-1, always=False):
    """Attention with a number where a key is hidden, and a softmax along some axis."""

    def attention(q, k, v, mask=None):
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, fill) if always else scores
        scores = scores if mask is None else np.where(mask, scores, fill)
        weights = np.exp(scores - scores.max(axis, keepdims=True))
        return weights / weights.sum(axis, keepdims=True) @ v

    return attention


@pytest.mark.parametrize("turned", [False, True])
def test_of_a_row_that_is_never_empty_nothing_is_said(turned):
    """A query without any key has scores of -10 alone: both give it the mean of the values."""
    found = here(*[filled(-1e9), filled(-10)][:: -1 if turned else 1])
    assert [x.name for x in found.differences] == ["fill"]
    assert found.explained, found.text()


def test_a_softmax_over_queries_is_the_only_difference():
    """A finite number is another mask there: if no query sees a key, all see it alike. So there is no adapter."""
    found = here(filled(-1e9), filled(-1e9, axis=-2))
    assert [x.name for x in found.differences] == ["weights"]
    assert "no argument of B changes the weights that it takes" in found.text()
