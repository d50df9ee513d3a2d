"""``bench --cores`` and ``--profile``: processes bound to cores, and what is told of their times."""

import argparse
import json
import os
import subprocess
import sys

import pytest

import cores
import harness
import kernels
import planning
import round_trip
import shapes
from attendax import cli
from command_line import add_arguments
from workers import RESULT, Worker

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this machine has one core")


def record(case, contestant, **seconds):
    measured = {key.removeprefix("on_"): value for key, value in seconds.items()}
    told = {"case": case, "measure": "forward", "contestant": contestant, "status": "timed", "seconds": measured}
    return told | {"round_trips_ns": [200.0, 340.0, 180.0, 190.0][: len(seconds["on_1"])]}


class TestWhichCores:
    @pytest.fixture
    def of_the_system(self, monkeypatch, tmp_path):
        def make(lists):
            monkeypatch.setattr(cores, "SIBLINGS", str(tmp_path / "{}"))
            monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(lists))
            for core, text in lists.items():
                (tmp_path / str(core)).write_text(text + "\n", encoding="ascii")

        return make

    def test_threads_of_one_core_come_last(self, of_the_system):
        of_the_system({0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"})
        assert cores.available() == [0, 1, 4, 5]
        of_the_system({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})
        assert cores.available() == [0, 2, 1, 3]

    def test_where_the_system_does_not_say(self, monkeypatch, tmp_path):
        monkeypatch.setattr(cores, "SIBLINGS", str(tmp_path / "{}"))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 3})
        assert cores.available() == [3, 7]

    def test_one_core_is_refused(self, run, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
        for options in (["--cores"], ["--profile", "ragged"]):
            status, _, err = run(*options)
            assert status == cli.REFUSED
            assert err == f"benchmarks bench: {options[0]}: this process has one core only\n"

    def test_a_worker_has_the_cores_that_it_is_given(self, tmp_path):
        (tmp_path / "attendax").mkdir()
        (tmp_path / "attendax" / "__init__.py").write_text(
            "import os; raise SystemExit(sum(1 << core for core in os.sched_getaffinity(0)) % 100)\n", encoding="utf-8"
        )
        own = sorted(os.sched_getaffinity(0))[:1]
        worker = Worker(tmp_path, own)
        assert worker.process.wait() == (1 << own[0]) % 100
        worker.stop()


class TestCores:
    def test_rows_and_means(self):
        """Of the rounds in which the cores were near each other; the second of each was not."""
        ours = record("a", "attendax", on_1=[4.0, 8.0, 8.0, 6.0], on_2=[2.0, 8.0, 4.0, 6.0])
        other = record("a", "torch-sdpa", on_1=[8.0, 9.0, 8.0, 6.0], on_2=[8.0, 3.0, 2.0, 12.0])
        failed = {
            "case": "b",
            "measure": "forward",
            "contestant": "torch-sdpa",
            "status": "failed",
            "reason": "on 2: x",
        }
        assert cores.factor(ours, 2) == 1.5
        assert cores.rows([ours, other], [1, 2]) == [
            ["a", "forward", "attendax", "6e+03", "4e+03", "2.00", "", "", "1.00", "3 of 4"],
            ["a", "forward", "torch-sdpa", "8e+03", "8e+03", "1.00", "1.00", "2.00", "3.00", "3 of 4"],
        ]
        more = record("b", "attendax", on_1=[8.0], on_2=[1.0])
        records = [ours, other, more, failed]
        assert cores.means(records, [1, 2]) == [
            ["2 cases", "forward", "attendax", "", "", "4.00", "1.00", "1.00", "1.00", ""],
            ["1 case", "forward", "torch-sdpa", "", "", "1.00", "1.00", "2.00", "3.00", ""],
        ]
        written = cores.markdown({"records": records, "counts": [1, 2]})
        assert "- b, forward: torch-sdpa: failed: on 2: x\n" in written
        assert "| ms on 1 | ms on 2 | 1 -> 2 | x attendax on 1 | x attendax on 2 | far: 1 -> 2 | rounds |" in written
        assert "in less than 260 ns of Python." in written

    def test_a_case_whose_rounds_were_all_far_apart(self):
        only = record("a", "attendax", on_1=[6.0], on_2=[3.0]) | {"round_trips_ns": [340.0]}
        assert cores.rows([only], [1, 2]) == [
            ["a", "forward", "attendax", "6e+03", "3e+03", "2.00", "", "", "2.00", "0 of 1"]
        ]
        assert cores.means([only], [1, 2])[0][5:] == ["2.00", "1.00", "1.00", "2.00", ""]

    @pytest.mark.parametrize("other", [["--contestants", "numpy"], ["--encoders"], ["--against", "HEAD"]])
    def test_other_options_are_refused(self, run, other):
        status, _, err = run("--cores", *other)
        assert status == cli.REFUSED
        assert f"no {other[0]}; what goes with it is --shapes" in err

    @two_cores
    @pytest.mark.slow
    def test_a_case_in_two_processes(self, run, monkeypatch, tmp_path):
        monkeypatch.setattr(cores, "COUNTS", (1, 2))
        argv = ["--cores", "--shapes", "ragged", "--measures", "forward", "--rounds", "3", "--output", str(tmp_path)]
        status, out, err = run(*argv)
        assert status == 0, err
        found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["cores"]
        assert found["counts"] == [1, 2]
        assert [one["contestant"] for one in found["records"]] == cores.installed()
        for one in found["records"]:
            assert one["status"] == "timed", one
            assert [len(one["seconds"][count]) for count in ("1", "2")] == [3, 3]
            assert len(one["round_trips_ns"]) == 3
            assert min(one["round_trips_ns"]) > 0
        assert cores.markdown(found) in (tmp_path / "results.md").read_text(encoding="utf-8")
        assert "1 -> 2" in out

    @two_cores
    def test_who_fails_is_told(self, monkeypatch, without_attendax):
        monkeypatch.setattr(cores, "installed", lambda: ["attendax"])
        side = Worker(without_attendax, cores.available()[:1])
        clock = harness.Clock([side])
        (found,) = cores.run({1: side}, "ragged", "forward", "float32", lambda what: None, clock, rounds=3)
        side.stop()
        assert (found["status"], found["reason"]) == ("failed", "on 1: its process ended with status 7")


class TestRoundTrip:
    @two_cores
    def test_of_two_cores(self):
        bound = os.sched_getaffinity(0)
        with round_trip.round_trip(cores.available()) as between:
            assert 0 < between() < 1e6
            assert os.sched_getaffinity(0) == bound

    @two_cores
    def test_the_other_process_has_ended(self):
        with round_trip.round_trip(cores.available()) as between:
            between._other.communicate()
            with pytest.raises((RuntimeError, ValueError, OSError)):
                between()
            between._other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            with pytest.raises(RuntimeError, match="the other core's process ended with 0"):
                between()

    def test_far(self):
        assert round_trip.far([180.0, 340.0]) == [False, True]


class TestProfile:
    KERNELS = [
        {"kernel": "dot.1", "result": "f32[2,3]", "times": 4, "one_ms": 6.0, "many_ms": 3.0},
        {"kernel": "fusion", "result": "f32[3]", "times": 1, "one_ms": 2.0, "many_ms": 2.0},
    ]

    def test_rows(self):
        assert kernels.rows(self.KERNELS) == [
            ["dot.1", "f32[2,3]", "4", "6.000", "3.000", "2.00", "75%"],
            ["fusion", "f32[3]", "1", "2.000", "2.000", "1.00", "25%"],
            ["all", "", "5", "8.000", "5.000", "1.60", "100%"],
        ]
        assert [row[0] for row in kernels.rows(self.KERNELS, most=1)] == ["dot.1", "the rest", "all"]

    def test_types_of_results(self):
        text = "ENTRY %main {\n  %dot.1 = f32[2,3]{1,0} dot(%a, %b)\n  ROOT %call = (f32[2], s32[]) call(%dot.1)\n}"
        assert RESULT.findall(text) == [("dot.1", "f32[2,3]"), ("call", "(")]

    def test_other_options_are_refused(self, run):
        status, _, err = run("--profile", "ragged", "--rounds", "3")
        assert status == cli.REFUSED
        said = "--profile takes one shape apart: no --rounds; what goes with it is --measures, --dtype"
        assert err == f"benchmarks bench: {said}\n"
        assert "--profile none: unknown; there are " in run("--profile", "none")[2]

    @two_cores
    @pytest.mark.slow
    def test_the_kernels_of_a_case(self, run, monkeypatch):
        monkeypatch.setenv("COLUMNS", "160")  # for names of kernels of any length
        monkeypatch.setenv("ATTENDAX_NATIVE", "0")  # natively it is one call
        status, out, err = run("--profile", "ragged", "--measures", "forward")
        assert status == 0, err
        lines = [line.split() for line in out.splitlines() if line]
        assert lines[1][:2] == ["kernel", "result"]
        *parts, total = lines[2:]
        assert total[0] == "all"
        assert sum(int(line[-5]) for line in parts) == int(total[1])
        assert sum(float(line[-4]) for line in parts) == pytest.approx(float(total[2]), abs=0.01)
        assert any(line[1].startswith("f32[") for line in parts)


def test_a_mode_that_runs_alone_knows_every_option():
    """Else one that does not go with another would be ignored in silence."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert set(planning.EVERY_OPTION) == vars(parser.parse_args([])).keys() - {"run"}
    assert {"ragged"} <= shapes.SHAPES.keys()


def test_threads_of_workers_come_to_rest_before_the_next_turn():
    """torch's spin for a while; they are in the processes of the workers, which must wait for them."""
    asked = []

    class Listening:
        def ask(self, *request):
            asked.append(request)

    harness.Clock([Listening(), Listening()]).rest()
    assert asked == [("rest",), ("rest",)]
