"""Faults that the default profile missed: what a run asks because of them, and what is said and shown of them."""

import subprocess
import sys

import numpy as np
import pytest

import right_attention
import stated
from attendax.conformance import CASES, Implementation, checking
from attendax.conformance.cases.how import How
from attendax.conformance.cases.ladder import ladder
from attendax.conformance.cases.pool import LOW

NAMED = {case.name: case for case in CASES}
KEPT = {}


def by_queries(query, key, value, *, is_causal=False):
    """The causal mask is kept by the number of queries, and padded for more keys."""
    T, S = query.shape[-2], key.shape[-2]
    seen = KEPT.setdefault(T, np.tri(T, S, dtype=bool))[:, :S]
    seen = np.pad(seen, ((0, 0), (0, S - seen.shape[1])), constant_values=True)
    return right_attention.attend(query, key, value, mask=seen if is_causal else None)


def test_scores_below_every_fill_need_no_scale():
    """A function without the keyword is asked, too."""
    assert not any("scale" in case.options for case in CASES if "-2e31" in case.name)


@pytest.mark.parametrize("seed", range(2))
def test_a_run_has_sizes_with_low_scores_where_whole_blocks_are_hidden(seed):
    found = [case for case in ladder(How(seed=seed, dtype="float32", profile="numbers")).cases if LOW in case.name]
    large = [case for case in found if min(case.sizes["T"], case.sizes["S"]) >= 64]
    assert any("causal" in case.name for case in large), found
    assert all(case.level == "forward" and case.dtype is None for case in found)


def test_a_mask_of_the_first_batch_and_head_is_named():
    def attend(query, key, value, *, mask=None):
        return right_attention.attend(query, key, value, mask=mask if mask is None or mask.ndim < 4 else mask[:1, :1])

    only = "mask (B, N, T, S)", "mask (B, N, 1, S)", "mask with grouped heads"
    given = dict(arrays="numpy", seed=0, budget=0, in_process=True, level="forward", repeat=1)
    causes = stated.check(attend, only=only, **given).causes
    assert [cause.name for cause in causes] == ["every batch and every head gets the mask of the first"]


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
