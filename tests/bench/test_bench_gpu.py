"""The run on a GPU, tried on whatever device there is: its cases, its judge, and that a failure is only a line."""

import functools
import json
import subprocess
import sys

import numpy as np
import pytest

import contestants
import gpu
import gpu_candidates
import gpu_cases
import gpu_report
import gpu_steps
import workload
from attendax import cli, spec
from attendax.conformance import Finding, Verdict
from attendax.kernels.gpu import build, compiled, launches
from harness import Unable
from places import ROOT
from program import Program

SMALL = gpu_cases.SHAPES["full-8k"]._replace(N=4, G=2, T=24, S=24, D=8)
KINDS = {
    "full": SMALL,
    "causal": SMALL._replace(causal=True),
    "window": SMALL._replace(variant="window"),
    "left window": SMALL._replace(variant="window", causal=True),
    "padding": SMALL._replace(variant="padding"),
    "segments": SMALL._replace(variant="segments", causal=True),
    "softcap": SMALL._replace(variant="softcap", causal=True),
    "bias": SMALL._replace(variant="bias", causal=True),
}


@pytest.fixture(autouse=True)
def _narrow_windows(monkeypatch):
    monkeypatch.setattr(workload, "WINDOW", 5)
    monkeypatch.setattr(gpu_cases, "WINDOW", 5)


def test_every_kind_of_case_is_among_the_shapes():
    kinds = {(shape.causal, shape.variant) for shape in gpu_cases.SHAPES.values()}
    assert {(shape.causal, shape.variant) for shape in KINDS.values()} == kinds
    assert set(gpu_cases.FIRST) | set(gpu_cases.TINY) <= set(gpu_cases.SHAPES)
    assert {shape.T for shape in gpu_cases.SHAPES.values()} == {2048, 4096, 8192, 16384}


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_counted_without_the_mask(kind):
    assert gpu_cases.DeviceCase(kind, KINDS[kind]).pairs == workload.Case(kind, KINDS[kind]).pairs


def right(case):
    """out and the gradients, by the specification."""
    *arrays, bias = [*(np.asarray(x, np.float64) for x in case.arrays), None][:4]
    options = {"mask": case.mask, "score_mod": case.score_mod, "bias": bias}
    grads = spec.attention_backward(np.asarray(case.cotangent, np.float64), *arrays, **options)
    return [spec.attention(*arrays, **options), *grads[:3]]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["left window", "padding", "segments", "softcap", "bias"])
def test_the_judge_is_the_specification(kind, monkeypatch):
    """Of two chunks; and it sees a number that is off, and a NaN."""
    monkeypatch.setattr(gpu_cases, "MOST_SCORES", 2 * 12 * 24)
    case = gpu_cases.DeviceCase(kind, KINDS[kind])
    results, judge = right(case), gpu_cases.DeviceJudge(case)
    assert judge.error(results) < 1e-5
    for place, wrong in ((0, np.nan), (3, 7.0)):
        off = [x.copy() for x in results]
        off[place][-1, 0, 0, 0] = wrong
        assert not judge.error(off) <= 0.05


class TestRun:
    """Everything from end to end on two contestants that work, and three that do not."""

    @pytest.fixture
    def run(self, monkeypatch, tmp_path):
        by_spec = functools.cache(right)

        def peer(change):
            def build(case, measure):
                return Program(lambda _: change(by_spec(case)), case.arrays, list, list)

            return contestants.Peer("jax", build)

        def unable(results):
            raise Unable("never built")

        def off(results):
            return [x + 1 for x in results]

        def refuse(case, measure):
            raise Unable("it is tired")

        peers = {
            "right": peer(lambda x: x),
            "off": peer(off),
            "breaks": peer(unable),
            "tired": contestants.Peer("jax", refuse),
        }
        peers["absent"] = contestants.Peer("no_such_package", refuse)
        for name, one in peers.items():
            monkeypatch.setitem(contestants.PEERS, name, one)
        monkeypatch.setattr(gpu_steps, "CONTESTANTS", tuple(peers))
        monkeypatch.setattr(gpu_cases, "TINY", {"causal": KINDS["causal"]})
        monkeypatch.setattr(gpu_steps, "BACKENDS", {"dense": {}, "unheard-of": {}})
        monkeypatch.setattr(gpu_steps, "cores", lambda run: 1 / 0)
        judge = gpu_steps.judge

        def found_wrong(implementation, case, how):
            outcome = judge(implementation, case, how)
            right = "dense" in str(implementation.attend)
            return outcome if right else outcome._replace(finding=Finding(Verdict.WRONG, "made up"))

        monkeypatch.setattr(gpu_steps, "judge", found_wrong)
        settings = gpu.TINY._replace(kit_s=400.0, speed_s=400.0, limit_s=1000.0, only=("width 13",))

        def go(**changed):
            status = gpu.main(str(tmp_path), settings._replace(**changed))
            return status, json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8")), tmp_path

        return go

    def test_every_failure_is_a_line(self, run, capsys):
        status, found, folder = run()
        assert status == gpu.FAILED, "of the backend that there is not"
        written = (folder / "gpu.md").read_text(encoding="utf-8")
        assert written == gpu_report.markdown(found), "the JSON holds all that the report needs"
        assert written.strip() in capsys.readouterr().out
        assert (folder / "gpu.png").read_bytes().startswith(b"\x89PNG\r\n")
        records = {(r["case"], r["contestant"], r["measure"]): r for r in found["speed"]}
        statuses = {name: records["causal", name, "forward"]["status"] for name in gpu_steps.CONTESTANTS}
        assert statuses == {
            "right": "timed", "off": "wrong", "breaks": "failed", "tired": "unable",
            "absent": "unable",
        }  # fmt: skip
        for line in ("tired: unable: it is tired", "absent: unable: no_such_package is not installed"):
            assert f"- causal, {line}\n" in written
        assert "the cores of the CPU: ZeroDivisionError: division by zero" in written
        assert "- unheard-of: L11, width 13: " in written
        assert [(k["backend"], k["judged"], len(k["faults"])) for k in found["kit"]] == [
            ("dense", 1, 0), ("unheard-of", 1, 1),
        ]  # fmt: skip
        both = records["causal", "right", "backward"]
        assert both["tflops"] == pytest.approx(3.5 * 4 * 8 * both["pairs"] / both["median_s"] / 1e12)
        assert both["share_of_peak"] == both["tflops"] / 0.1
        assert "Not a GPU" in written

    def test_what_has_no_time_is_named_and_a_wrong_result_of_ours_fails(self, run, monkeypatch):
        monkeypatch.setattr(gpu_steps, "kit", lambda run, until: run.found["kit"].append({"backend": "x"}))
        monkeypatch.setattr(gpu_report, "markdown", lambda found: "")
        monkeypatch.setattr(gpu, "is_wrong", lambda found: True)
        status, found, _ = run(kernels_s=0.0, kit_s=0.0, speed_s=0.0)
        assert status == gpu.FAILED
        assert "speed, causal: no time" in found["left_out"]

    def test_nothing_is_timed_where_a_kernel_is_wrong(self, run, monkeypatch):
        record = {"call": "a window", "dtype": "float16", "widths": [64, 64], "status": "wrong", "faults": ["out: off"]}
        monkeypatch.setattr(gpu_steps, "kernels", lambda run: run.found["checks"].append(record))
        status, found, folder = run()
        assert status == gpu.FAILED
        assert (found["candidates"], found["speed"], found["kit"]) == ([], [], [])
        written = (folder / "gpu.md").read_text(encoding="utf-8")
        assert "0 of 1 calls are right, bits and all." in written
        assert "- a window, float16, widths [64, 64]: out: off\n" in written
        assert "- everything else: the kernels are not right, so nothing is timed\n" in written

    def test_candidates_are_a_table(self):
        record = {"kernel": "forward", "width": 64, "tiles": [128, 64, 4, 3], "measure": "forward", "default": True}
        wrong = record | {"status": "wrong", "reason": "wrong by 1e+00", "default": False}
        rows = gpu_report.candidates([record | {"status": "timed", "seconds": [0.002]}, wrong])
        assert rows == [
            ["forward, forward", "64", "128, 64, 4, 3 (default)", "2"],
            ["forward, forward", "64", "128, 64, 4, 3", "wrong: wrong by 1e+00"],
        ]

    def test_wrong_results_of_ours(self):
        ours, other = ({"contestant": name, "status": "wrong"} for name in ("attendax-cudnn", "jax.nn"))
        assert gpu.is_wrong({"kit": [], "speed": [ours]})
        assert gpu.is_wrong({"kit": [{"faults": ["L6"]}], "speed": []})
        assert not gpu.is_wrong({"kit": [{"faults": []}], "speed": [other]})

    def test_the_time_is_up(self, monkeypatch, tmp_path):
        ended = []
        monkeypatch.setattr(gpu.os, "_exit", ended.append)
        run = gpu.Run(gpu.TINY, tmp_path)
        run.at("speed, full-8k")
        gpu.hard_stop(run)
        assert ended == [gpu.HARD_STOP]
        assert "the time was up in: speed, full-8k" in (tmp_path / "gpu.md").read_text(encoding="utf-8")


class TestCandidates:
    """Each is a target of its own, whose tiles are those of the real one but for one kernel."""

    def test_those_of_a_target(self):
        every = list(gpu_candidates.candidates("sm_90"))
        assert len({one.name for one in every}) == len(every) == 32
        defaults = [(one.kernel, one.width) for one in every if one.is_default]
        assert len(set(defaults)) == len(defaults) == 6
        for one in every:
            other = [kernel for kernel in one.table if one.table[kernel] != launches.TILES["sm_90", 2][kernel]]
            assert other == ([] if one.is_default else [one.kernel])
            assert {launch.tiles for launch in one.every_launch() if launch.kernel == one.kernel} == {one.tiles}

    def test_a_call_takes_its_tiles(self, monkeypatch, tmp_path):
        one = next(gpu_candidates.candidates("sm_90"))
        monkeypatch.setattr(gpu_candidates, "FOLDER", tmp_path)
        assert not gpu_candidates.has(one)
        folder = tmp_path / gpu_candidates.PACKAGE
        kernels = {f"{one.name}/{launch.name}": {} for launch in one.every_launch()}
        for name in kernels:
            path = folder / f"{name}.cubin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        build.write_index(folder, kernels)
        assert gpu_candidates.has(one)
        with gpu_candidates.in_place(one):
            assert compiled.target() == "sm_90-0"
            assert compiled.package().folder == folder
        assert compiled.package().folder != folder


def test_laws_come_in_turn():
    class Of:
        def __init__(self, law):
            self.law = law

    assert [case.law for case in gpu_steps.in_turn([Of(x) for x in "aaabbc"])] == list("abcaba")


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--device gpu: JAX finds no GPU (its default is 'cpu'); python -m benchmarks.gpu --tiny tries the run"),
        (["--rounds", "3"], "--device gpu runs cases of its own: no --rounds; what goes with it is --output"),
    ],
)
def test_refuses(run, argv, message):
    status, _, err = run("--device", "gpu", *argv)
    assert status == cli.REFUSED
    assert err.startswith(f"benchmarks bench: {message}")


def test_one_command_without_a_gpu():
    """In a clone; ``bench --device gpu`` is the same run."""
    found = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.startswith(
        "benchmarks.gpu: JAX finds no GPU (its default is 'cpu'); python -m benchmarks.gpu --tiny"
    )


@pytest.mark.slow
def test_the_cores_of_the_cpu(tmp_path):
    run = gpu.Run(gpu.TINY._replace(cores_s=300.0, limit_s=400.0), tmp_path)
    gpu_steps.cores(run)
    found = {(r["case"], r["contestant"], r["status"]) for r in run.found["cores"]["records"]}
    assert ("minilm-128", "attendax", "timed") in found
    assert "## Cores" in gpu_report.markdown(run.found)


def test_cores_that_run_out_of_time_are_listed_as_left_out(tmp_path):
    run = gpu.Run(gpu.TINY._replace(cores_s=0.0), tmp_path)
    with pytest.raises(RuntimeError, match="wrote nothing"):
        gpu_steps.cores(run)
    assert run.found["left_out"] == ["the cores of the CPU: stopped after 0 s"]
