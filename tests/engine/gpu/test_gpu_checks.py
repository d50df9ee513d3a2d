"""The calls that ``bench --device gpu`` tries before it times anything, here in the interpreter and at small sizes."""

import importlib.util
import sys

import numpy as np
import pytest

from places import ROOT

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed; .ci/gpu has it", allow_module_level=True)

sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu
import gpu_calls as calls
import gpu_candidates
import gpu_cases
import gpu_checks
import gpu_steps
import interpreted
from attendax.kernels.gpu import compiled, launches

SIZES = gpu_checks.Sizes(N=2, G=1, T=20, S=24)
CACHE = gpu_checks.Sizes(B=1, N=2, G=1, T=20, S=90)
TRIED = "no mask", "a window to the left", "packed and causal", "a bias", "dropout", "everything", "a long cache"
MISTAKES = {  # the call that notices one, and how
    "no mask": ("row_sum = row_sum * shrink + tl.sum(p, 1)", "row_sum = row_sum + tl.sum(p, 1)", "out: off by"),
    "a window to the left": (
        "tl.min(tl.where(first < last, first, high)) // BLOCK * BLOCK", "tl.min(tl.where(first < last, first, high))",
        "other bits in queries"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(gpu_checks, "WIDTHS", ((16, 16), (32, 32), (24, 9), (64, 64)))
    monkeypatch.setattr(gpu_checks, "FEW", 9)
    with interpreted.in_order():
        yield


def check_of(name):
    """Of each set of options one dtype; they take turns."""
    number = list(gpu_checks.OPTIONS).index(name)
    return list(gpu_checks.checks(SIZES, CACHE))[3 * number + number % 3]


def test_there_are_sixty():
    assert len(list(gpu_checks.checks())) == 60


@pytest.mark.parametrize("name", TRIED)
def test_the_kernels_are_right(name):
    with calls.in_interpreter():
        found = gpu_checks.judged(check_of(name))
    assert (found["status"], found["faults"]) == ("right", [])


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told(name, tmp_path):
    right, wrong, told = MISTAKES[name]
    text = (compiled.HERE / "kernels.py").read_text("utf-8")
    assert right in text
    with calls.in_interpreter(interpreted.kernels_of({"kernels.py": text.replace(right, wrong)}, tmp_path)):
        found = gpu_checks.judged(check_of(name))
    assert found["status"] == "wrong"
    assert any(told in fault for fault in found["faults"]), found["faults"]


class Run:
    """A run that keeps what its steps write."""

    settings = gpu.TINY

    def __init__(self):
        self.found, self.left_out = {"checks": [], "candidates": []}, []

    def write(self):
        pass

    def leave_out(self, what):
        self.left_out.append(what)


def test_the_step_of_a_run(monkeypatch):
    run, check = Run(), check_of("no mask")
    monkeypatch.setattr(gpu_checks, "checks", lambda: [check])
    with calls.in_interpreter():
        gpu_steps.kernels(run)
    assert [record["status"] for record in run.found["checks"]] == ["right"]
    assert run.left_out == []


@pytest.mark.parametrize("kernel", gpu_candidates.TILES)
def test_a_candidate_is_timed_and_is_right(kernel, monkeypatch):
    """In tiles of another size than those of the target."""
    shape = gpu_cases.SHAPES["d64-causal-8k"]._replace(B=1, N=2, G=1, T=40, S=40)
    case, run = gpu_cases.DeviceCase("small", shape, gpu_candidates.DTYPE), Run()
    sizes = set()
    launch = interpreted.launch
    monkeypatch.setattr(interpreted, "launch", lambda *a: sizes.add((a[1].kernel, a[1].tiles[:2])) or launch(*a))
    with calls.in_interpreter():
        one = gpu_candidates.Candidate(0, calls.TINY, 64, kernel, launches.Tiles(32, 32, 4, 1))
        gpu_steps.one_candidate(run, one, gpu_cases.DeviceJudge(case))
    (record,) = run.found["candidates"]
    assert (record["status"], record["default"]) == ("timed", False), record
    assert record["seconds"]
    assert (kernel, (32, 32)) in sizes


def test_a_number_that_is_not_finite_is_told():
    check = check_of("no mask")
    good = [np.ones((2, 3)), np.ones(3)]
    bad = [good[0], np.array([1, np.nan, 1])]
    assert gpu_checks.off(check, bad, good) == ["lse: not finite elsewhere than in the specification"]


def test_a_call_that_fails_is_told():
    found = gpu_checks.judged(check_of("no mask"))  # without the interpreter there is no GPU
    assert found["status"] == "wrong"
    assert found["faults"][0].startswith("NotImplementedError: attention: implementation 'triton' cannot run here")
