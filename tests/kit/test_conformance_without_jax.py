"""Judging functions of NumPy and torch needs no JAX: it is not even imported, so nothing is compiled."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from attendax.conformance import CASES
from attendax.conformance.judge import dense
from attendax.conformance.worker.errors import Failed, NoNumbers
from places import PYTHONPATH

pytestmark = pytest.mark.smoke

ONLY = ["scale given", "softcap", "gradient: lse", "bfloat16", "jvp: lse", "second order: lse", "leak: NaN in a masked"]


def run(code):
    """What a fresh Python prints."""
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.split()


def test_a_function_of_numpy():
    code = f"""
import sys, right_attention
from stated import check
right = check(right_attention.attend, backward=right_attention.backward, profile="law", only={ONLY}, arrays="numpy")
assert right.ok and right.counts()["ok"] > 10, right.counts()
def wrong(query, key, value):
    return right_attention.attend(query, key, value, scale=0.1)
found = check(wrong, only=["plain"], level="forward")
assert found.arrays == "numpy" and not found.ok and "scale" in found.unsettled[0], found.unsettled
print("jax" in sys.modules)
"""
    assert run(code) == ["False"]


def test_a_function_of_any_arrays_is_judged_with_those_that_are_imported():
    code = """
from stated import check
def attend(query, key, value):
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    powers = 2.718281828459045 ** (scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ value
def judged(**given):
    report = check(attend, only=["plain"], level="forward", **given)
    assert report.ok, report.counts()
    return report.arrays
print(judged(), judged(arrays="jax"), judged())
"""
    assert run(code) == ["numpy", "jax", "jax"]


def test_the_command(tmp_path):
    pytest.importorskip("rich", reason="the extra 'check' is not installed")
    code = f"""
import sys
from attendax.cli import main
argv = ["check", "right_attention:attend", "--only", "plain", "softcap", "--json", {str(tmp_path / "found.json")!r}]
assert main([*argv, "--level", "forward", "--quiet"]) == 0
print("jax" in sys.modules)
"""
    assert run(code)[-1] == "False"


def test_a_function_of_torch():
    pytest.importorskip("torch")
    code = f"""
import sys, torch
from stated import check
def attend(query, key, value, *, mask=None, return_lse=False, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-1, -2) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    out = torch.softmax(scores, -1) @ value
    return (out, lse) if return_lse else out
found = check(attend, profile="law", only={ONLY})
names = [o.case.name for o in found.cases if o.verdict == "ok"]
assert found.arrays == "torch" and any(n.startswith("jvp") for n in names), names
assert any(n.startswith("second order") for n in names), names
print("jax" in sys.modules)
"""
    assert run(code) == ["False"]


MOVED = [case for case in CASES if case.direction == "jvp" or case.direction.startswith("second")]


@pytest.mark.parametrize("case", MOVED, ids=lambda case: case.name)
def test_the_tangents_by_hand_are_those_of_jax(case):
    inputs = case._replace(dtype="float64").inputs(0, "float64")
    style = dense.Style(steps="float64")
    with np.errstate(divide="ignore"):  # the logarithm of a sum over no keys
        by_hand, by_jax = (dense.formula(case.direction, in_jax, style)(inputs) for in_jax in (False, True))
    assert by_hand.keys() == by_jax.keys()
    for leaf, wanted in by_jax.items():
        np.testing.assert_allclose(by_hand[leaf], wanted, rtol=1e-10, atol=1e-12, err_msg=leaf)


def test_what_a_call_ends_with_goes_from_process_to_process():
    failed = Failed.by(ValueError("mask must be boolean\nand more"))
    again = pickle.loads(pickle.dumps(failed))
    assert (str(again), again.refusal) == ("ValueError: mask must be boolean", failed.refusal)
    assert pickle.loads(pickle.dumps(NoNumbers("out", "gives no out"))).args == ("out", "gives no out")
