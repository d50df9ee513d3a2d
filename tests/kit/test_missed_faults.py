"""Faults that the default profile missed: each is found by a case of ``numbers``, and named where it has a name."""

import functools
import subprocess
import sys

import numpy as np
import pytest

import right_attention
import stated
from attendax.conformance import CASES, Implementation, Verdict, checking
from attendax.conformance.cases.how import How
from attendax.conformance.cases.ladder import ladder
from attendax.conformance.cases.pool import LOW

NAMED = {case.name: case for case in CASES}
KEPT = {}


def blockwise(query, key, value, *, mask=None, is_causal=False, key_lengths=None, window=None, order=-1):
    """Blocks from the last key to the first; one that is hidden as a whole sets the maximum to 0, where it stays."""
    group = query.shape[-3] // key.shape[-3]
    key, value = (np.repeat(x, group, axis=-3) for x in (key, value))
    allowed = right_attention.pairs(query, key, mask, is_causal, window, key_lengths, None, None, None)
    largest = np.full((*query.shape[:-1], 1), -np.inf, np.float32)
    total, out = np.zeros_like(largest), np.zeros((*query.shape[:-1], value.shape[-1]), np.float32)
    for start in range(0, key.shape[-2], 128)[::order]:
        part = slice(start, start + 128)
        scores = query @ key[..., part, :].swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
        scores = np.where(allowed[..., part], scores, -np.inf)
        higher = np.maximum(largest, scores.max(-1, keepdims=True))
        higher = np.where(higher == -np.inf, 0, higher)
        powers, kept = np.exp(scores - higher), np.exp(largest - higher)
        total, out = total * kept + powers.sum(-1, keepdims=True), out * kept + powers @ value[..., part, :]
        largest = higher
    return out / np.where(total == 0, 1, total)


def masked(query, key, value, seen, **options):
    return right_attention.attend(query, key, value, mask=seen, **options)


def ahead(query, key, value, *, is_causal=False):
    """One key ahead is seen from 2,048 keys on."""
    T, S = query.shape[-2], key.shape[-2]
    return masked(query, key, value, np.tri(T, S, int(S >= 2048), dtype=bool) if is_causal else None)


def rows_ahead(query, key, value, *, is_causal=False):
    """It is seen by queries from 2,048 on."""
    i, j = np.arange(query.shape[-2])[:, None], np.arange(key.shape[-2])
    return masked(query, key, value, (j <= i) | ((i >= 2048) & (j == i + 1)) if is_causal else None)


def without_window(query, key, value, *, window=None):
    """A window is ignored where there is one query."""
    return right_attention.attend(query, key, value, window=window if query.shape[-2] > 1 else None)


def by_queries(query, key, value, *, is_causal=False):
    """The causal mask is kept by the number of queries, and padded for more keys."""
    T, S = query.shape[-2], key.shape[-2]
    seen = KEPT.setdefault(T, np.tri(T, S, dtype=bool))[:, :S]
    seen = np.pad(seen, ((0, 0), (0, S - seen.shape[1])), constant_values=True)
    return masked(query, key, value, seen if is_causal else None)


LOW_SCORES = "in blocks: scores near -400, {}, 300"
MISSED = {
    "causal, from the last block": (blockwise, LOW_SCORES.format("causal")),
    "key lengths, from the last block": (blockwise, LOW_SCORES.format("key lengths")),
    "mask, from the first block": (functools.partial(blockwise, order=1), LOW_SCORES.format("mask")),
    "window, from the first block": (functools.partial(blockwise, order=1), LOW_SCORES.format("window")),
    "one key ahead of 2,048 keys": (ahead, "causal, few queries of many keys"),
    "one key ahead of 2,048 queries": (rows_ahead, "causal, from 2,048 on"),
    "a window of one query": (without_window, "window, one query"),
    "a mask by the number of queries": (by_queries, "causal, after fewer keys"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", MISSED)
def test_a_case_of_the_default_profile_finds_it(name):
    KEPT.clear()
    fn, found_by = MISSED[name]
    case = NAMED[found_by]
    assert case.profile == "numbers"
    assert checking.judge(Implementation(fn, name, arrays="numpy"), case, How()).verdict.fails
    assert checking.judge(Implementation(right_attention.attend, name, arrays="numpy"), case).verdict is Verdict.OK


def test_scores_below_every_fill_need_no_scale():
    """A function without the keyword is asked, too."""
    assert not any("scale" in case.options for case in CASES if "-2e31" in case.name)


@pytest.mark.parametrize("seed", range(2))
def test_a_run_has_sizes_with_low_scores_where_whole_blocks_are_hidden(seed):
    found = [case for case in ladder(How(seed=seed, dtype="float32", profile="numbers")).cases if LOW in case.name]
    large = [case for case in found if min(case.sizes["T"], case.sizes["S"]) >= 64]
    assert any("causal" in case.name for case in large), found
    assert all(case.level == "forward" and case.dtype is None for case in found)


@pytest.mark.parametrize(("part", "words"), [(slice(1), "every batch and every head"), (slice(None), "every head")])
def test_a_mask_of_the_first_head_is_named(part, words):
    def attend(query, key, value, *, mask=None):
        return masked(query, key, value, mask if mask is None or mask.ndim < 4 else mask[part, :1])

    only = "mask (B, N, T, S)", "mask (B, N, 1, S)", "mask with grouped heads"
    given = dict(arrays="numpy", seed=0, budget=0, in_process=True, level="forward", repeat=1)
    causes = stated.check(attend, only=only, **given).causes
    assert [cause.name for cause in causes] == [f"{words} gets the mask of the first"]


def test_the_script_makes_the_call_with_fewer_keys_first(tmp_path):
    KEPT.clear()
    case, made = NAMED["causal, after fewer keys"], Implementation(by_queries, "by_queries", arrays="numpy")
    script = checking.judge(made, case, How()).reproduction
    source = (
        "KEPT = {}\n\n\ndef attend(query, key, value, is_causal=False):\n    T, S = query.shape[-2], key.shape[-2]\n"
        "    seen = KEPT.setdefault(T, np.tri(T, S, dtype=bool))[:, :S]\n"
        "    seen = np.pad(seen, ((0, 0), (0, S - seen.shape[1])), constant_values=True)\n"
        "    s = np.where(seen, query @ key.swapaxes(-1, -2) / 2, -np.inf)\n"
        "    w = np.exp(s - s.max(-1, keepdims=True))\n    return w / w.sum(-1, keepdims=True) @ value\n"
    )
    right = source.replace("KEPT.setdefault(T, np.tri(T, S, dtype=bool))", "np.tri(T, S, dtype=bool)")
    for text, status in ((source, 1), (right, 0)):
        (tmp_path / "shows.py").write_text(script.replace("# the call\n", f"{text}\n# the call\n", 1))
        shown = subprocess.run([sys.executable, tmp_path / "shows.py"], capture_output=True, text=True, check=False)
        assert shown.returncode == status, shown.stderr
