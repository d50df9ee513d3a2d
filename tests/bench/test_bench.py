"""``bench``: how it measures, whom it lets in, what it writes, and every refusal. No figure is asserted."""

import argparse
import contextlib
import functools
import importlib
import itertools
import json
import math
import os
import platform
import subprocess
import sys

import jax
import numpy as np
import pytest

import against
import attention
import compiling
import contestants
import harness
import judge
import machine
import planning
import plots
import report
import shapes
import tables
import workers
from attendax import cli, exits, scores, spec
from attendax.kernels import native
from attendax.kernels.backends import default
from command_line import BLAS_REST, main
from full_disk import full_disk
from harness import Contestant, Timing, Unable
from places import ROOT
from workload import MEASURES, Case

FOLDER = str(ROOT / "benchmarks")
TINY = {
    "tiny": shapes.Shape(2, 4, 2, 5, 7, 3, False, "no model: as small as can be"),
    "tiny-causal": shapes.Shape(1, 2, 2, 6, 6, 4, True, "no model: as small as can be"),
}
VARIANTS = ("padding", "window", "softcap", "bias", "alibi", "segments", "dropout")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    """Tiny shapes among the named ones."""
    monkeypatch.setattr(planning, "SHAPES", TINY)
    monkeypatch.setattr(against, "SHAPES", shapes.SHAPES | TINY)
    monkeypatch.setattr(workers, "SHAPES", shapes.SHAPES | TINY)
    monkeypatch.setattr(planning, "LENGTHS", {"length-8": shapes.Shape(1, 2, 2, 8, 8, 4, False, "no model")})
    monkeypatch.setattr(planning, "SHORT", tuple(TINY))


ALLOCATING = """
import resource, sys
sys.path.insert(0, {folder!r})
import harness
harness.keep_freed_memory()
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    one, two = bytearray(3 << 20), bytearray(3 << 20)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    del one, two
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the limits are those of glibc")
def test_freed_memory_is_kept_for_the_next_call():
    """Two blocks, freed together, are more than twice the larger one alone: without a limit raised, 1,500 pages."""
    program = [sys.executable, "-c", ALLOCATING.format(folder=FOLDER)]
    first, *later = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
    assert int(first) > 1000
    assert max(map(int, later)) < 100


class FakeClock:
    """A clock that the contestants advance, with the CPU time of others as the test says, round by round."""

    def __init__(self, others=(), waits=(), trips=(), only_near=False):
        self.now, self.own_s, self.others_s, self.rests, self.rounds = 0.0, 0.0, 0.0, 0, iter(others)
        self.waited_s, self.waits = 0.0, iter(waits)
        self.round_trip = functools.partial(next, iter(trips)) if trips else None
        self.only_near, self.nearest = only_near, math.inf

    def is_apart(self, round_trips):
        return harness.Clock.is_apart(self, round_trips)

    def work(self, seconds):
        self.now += seconds
        self.own_s += seconds

    def wall(self):
        return self.now

    def everyone(self):
        return self.own_s + self.others_s

    def own(self):
        """Asked last at either end of a round: what others take comes between."""
        self.others_s += next(self.rounds, 0.0)
        return self.own_s

    def waited(self):
        """Asked last, as ``own``."""
        self.waited_s += next(self.waits, 0.0)
        return self.waited_s

    def page_faults(self):
        return int(self.now * 10)

    def rest(self):
        self.rests += 1


def acts(clock, log, **seconds):
    """Contestants that take so many seconds, or what an iterator says."""

    def one(name, takes):
        def call():
            log.append(name)
            clock.work(takes if isinstance(takes, float) else next(takes))

        return Contestant(name, call)

    return [one(name, takes) for name, takes in seconds.items()]


class TestMeasure:
    def test_everyone_has_a_turn_in_every_round_and_the_first_moves_on(self):
        clock, log = FakeClock(), []
        timings = harness.measure(acts(clock, log, a=1.0, b=2.0, c=3.0), rounds=4, clock=clock)
        assert "".join(log) == "abcbcacababc"
        assert {name: timing.seconds for name, timing in timings.items()} == {
            "a": [1.0] * 4,
            "b": [2.0] * 4,
            "c": [3.0] * 4,
        }
        assert clock.rests == len(log)
        assert [timing.page_faults for timing in timings.values()] == [10, 20, 30]

    def test_short_calls_are_repeated(self, monkeypatch):
        monkeypatch.setattr(harness, "TURN_S", 1.0)
        clock, log = FakeClock(), []
        timings = harness.measure(acts(clock, log, short=0.25, long=2.0, shortest=2.0**-10), rounds=2, clock=clock)
        assert {name: timing.repeats for name, timing in timings.items()} == {
            "short": 4,
            "long": 1,
            "shortest": harness.MOST_REPEATS,
        }
        assert log.count("short") == 1 + 2 * 4, "the first round only tells how often"
        assert timings["short"].seconds == [0.25, 0.25]

    def test_a_short_call_comes_once_more_before_its_turn(self, monkeypatch):
        """Its time with the caches full of another's arrays does not count."""
        monkeypatch.setattr(harness, "TURN_S", 0.1)
        monkeypatch.setattr(harness, "WARM_S", 0.5)
        clock, log = FakeClock(), []
        takes = iter([0.25, 0.375, 0.125, 0.375, 0.125])
        timings = harness.measure(acts(clock, log, short=takes, long=2.0), rounds=2, clock=clock)
        assert timings["short"].seconds == [0.125, 0.125]
        assert log.count("long") == 3, "one for the round that only tells"

    @pytest.mark.parametrize("disturbed", [{"others": [0, 0, 5.0]}, {"waits": [0, 0, 0, 5.0]}], ids=["others", "waits"])
    def test_disturbed_rounds_are_thrown_away(self, disturbed):
        """Of three rounds the second is disturbed: its seconds are gone, for everyone."""
        clock, log = FakeClock(**disturbed), []
        takes = iter([1.0, 2.0, 3.0])
        (timing,) = harness.measure(acts(clock, log, a=takes), rounds=2, clock=clock).values()
        assert (timing.seconds, timing.thrown_away, timing.disturbed) == ([1.0, 3.0], 1, 0)

    @pytest.mark.parametrize(("only_near", "kept"), [(True, [1.0, 3.0]), (False, [1.0, 2.0])])
    def test_rounds_of_cores_that_are_far_apart(self, only_near, kept):
        """They are thrown away, or kept to be told apart; the longer of both round trips says so."""
        clock = FakeClock(trips=[200.0, 210.0, 200.0, 340.0, 220.0, 200.0], only_near=only_near)
        (timing,) = harness.measure(acts(clock, [], a=iter([1.0, 2.0, 3.0])), rounds=2, clock=clock).values()
        assert timing.seconds == kept
        assert timing.thrown_away == only_near
        assert timing.round_trips == [210.0, 220.0 if only_near else 340.0]

    def test_cores_that_are_always_far_apart_are_no_disturbance(self):
        clock = FakeClock(trips=[330.0, 340.0, 350.0, 320.0], only_near=True)
        (timing,) = harness.measure(acts(clock, [], a=iter([1.0, 2.0])), rounds=2, clock=clock).values()
        assert (timing.seconds, timing.thrown_away, timing.disturbed) == ([1.0, 2.0], 0, 0)

    def test_a_machine_that_does_not_come_to_rest(self):
        """As many rounds as are wanted are thrown away; then they count, and it is said."""
        clock, log = FakeClock([5.0] * 100), []
        (timing,) = harness.measure(acts(clock, log, a=1.0), rounds=3, clock=clock).values()
        assert (len(timing.seconds), timing.thrown_away, timing.disturbed) == (3, 3, 3)

    @pytest.mark.parametrize(("budget", "rounds"), [(0.5, 3), (5.5, 6), (None, 9)])
    def test_the_budget_bounds_the_rounds(self, budget, rounds):
        clock = FakeClock()
        (timing,) = harness.measure(acts(clock, [], a=1.0), rounds=9, budget_s=budget, clock=clock).values()
        assert len(timing.seconds) == rounds

    def test_no_contestant(self):
        assert harness.measure([], rounds=3, clock=FakeClock()) == {}

    def test_ratios_are_those_within_rounds(self):
        one, other = (Timing(seconds, 0, 1, 0, 0) for seconds in ([1.0, 4.0, 9.0, 8.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]))
        assert one.ratio_to(other) == (2.0, 1.0, 2.0)
        assert (one.median, one.quartiles) == (5.0, (4.0, 8.0))
        assert harness.spread([7.0]) == (7.0, 7.0, 7.0)

    def test_the_real_clock(self):
        (timing,) = harness.measure([Contestant("sum", lambda: sum(range(1000)))], rounds=3).values()
        assert len(timing.seconds) == 3
        assert min(timing.seconds) > 0

    def test_about(self):
        about = machine.about()
        assert json.loads(json.dumps(about)) == about
        assert {"processor", "threads", "memory_bytes", "versions", "commit", "matmul_gflops", "date"} <= set(about)
        assert {"python", "jax", "numpy"} <= set(about["versions"])
        assert about["native"] == native.status()
        rows = dict(report.about_rows({"about": about, "took_s": 1.0}))
        assert f"native kernel: {rows['native kernel']}" == native.status()

    def test_the_tiles_take_part_where_they_are_not_the_default(self, monkeypatch):
        given = argparse.Namespace(contestants=None, full=False)
        monkeypatch.setattr(planning, "default", lambda: "native")
        names, _ = planning.contestants(given)
        assert names[:2] == ["attendax", "attendax-tiles"]
        monkeypatch.setattr(planning, "default", lambda: "blockwise")
        names, left_out = planning.contestants(given)
        assert "attendax-tiles" not in names
        assert any(reason.startswith("attendax-tiles: the same as attendax") for reason in left_out)

    def test_the_tiles_are_tiles(self):
        case = Case("tiny", TINY["tiny"])
        texts = [contestants.PEERS[name].build(case, "backward").text() for name in ("attendax", "attendax-tiles")]
        wanted = [default() == "native", False]
        assert ["attendax_forward" in text and "attendax_backward" in text for text in texts] == wanted

    @pytest.mark.skipif(not hasattr(os, "SCHED_FIFO"), reason="priorities are those of Linux")
    def test_real_time_priority_is_told_of(self, monkeypatch):
        monkeypatch.setattr(os, "sched_getscheduler", lambda process: os.SCHED_RR)
        results = {"about": machine.about(), "took_s": 1.0}
        assert results["about"]["real_time_priority"] is True
        rows = dict(report.about_rows(results))
        assert rows["threads of every contestant"] == f"{harness.threads()}, with real-time priority"
        monkeypatch.setattr(os, "sched_getscheduler", lambda process: os.SCHED_OTHER)
        assert machine.about()["real_time_priority"] is False


class TestCases:
    def test_flops_count_the_visible_pairs(self):
        plain, causal = (Case(name, shape) for name, shape in TINY.items())
        assert plain.pairs == 2 * 4 * 5 * 7
        assert causal.pairs == 2 * (1 + 2 + 3 + 4 + 5 + 6)
        assert plain.flops("forward") == 4 * 3 * plain.pairs
        assert plain.flops("backward") == 3.5 * plain.flops("forward")
        padded = Case("padded", TINY["tiny"]._replace(S=8, variant="padding"))
        assert padded.pairs == 4 * 5 * padded.lengths.sum()

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_every_variant_is_what_it_says(self, variant):
        case = Case(variant, TINY["tiny"]._replace(S=5, G=4, variant=variant))
        assert (case.mask is not None) == (variant in ("padding", "window", "segments"))
        assert (case.score_mod is not None) == (variant in ("softcap", "alibi"))
        assert (len(case.arrays) == 4) == (variant == "bias")
        assert (case.rate > 0) == (variant == "dropout")
        assert case.without_dropout().rate == 0

    def test_every_named_shape_has_a_source(self):
        assert set(shapes.SHORT) | set(shapes.EVERY_DIRECTION) <= set(shapes.SHAPES)
        assert all(shape.source for shape in shapes.SHAPES.values())
        assert {shape.variant for shape in shapes.SHAPES.values()} == {"", *VARIANTS}


class TestJudge:
    @pytest.mark.parametrize("variant", ["", "bias", "alibi", "padding"])
    def test_chunks_and_heads_add_up_to_the_specification(self, variant, monkeypatch):
        monkeypatch.setattr(judge, "CHUNK_SCORES", 30)
        shape = TINY["tiny"]._replace(S=8, variant=variant)
        case = Case("tiny", shape._replace(B=1) if variant == "bias" else shape)
        arrays = [x.astype(np.float64) for x in case.arrays]
        score_mod = scores.alibi(case.slopes.astype(np.float64)) if variant == "alibi" else None
        options = {"mask": case.mask, "score_mod": score_mod, "bias": arrays[3] if variant == "bias" else None}
        whole = spec.attention(*arrays[:3], **options)
        grads = spec.attention_backward(case.cotangent.astype(np.float64), *arrays[:3], **options)
        results = [whole, *grads[: len(arrays)]]
        one = judge.Judge(case)
        assert one.error("backward", results) < 1e-12
        for place in range(len(results)):
            off = [x.copy() for x in results]
            off[place][-1, -1, -1, -1] += 1.0
            assert not one.is_right(one.error("backward", off)), place
        results[0][0, 0, 0, 0] = np.nan
        assert not one.is_right(one.error("backward", results))

    def test_says_how_many_heads_it_looked_at(self, monkeypatch):
        monkeypatch.setattr(judge, "MOST_SCORES", 3 * 2 * 5 * 7)
        assert judge.Judge(Case("tiny", TINY["tiny"])).name == "specification in float64, 3 of 4 key heads"


class TestContestants:
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch warns of itself
    @pytest.mark.parametrize("direction", MEASURES)
    def test_every_installed_library_is_right(self, direction):
        """Grouped heads with a bias: every result in the layout of the case. Compiled torch takes too long here."""
        case = Case("tiny", TINY["tiny"]._replace(B=1, variant="bias"))
        names = [n for n, peer in contestants.PEERS.items() if peer.is_installed() and n != "torch-flex"]
        records = [attention.Judges(case).admit(name, direction)[0] for name in names]
        assert [r["reason"] for r in records if r["status"] not in ("timed", "unable")] == []
        timed = [r["contestant"] for r in records if r["status"] == "timed"]
        assert {"attendax", "attendax-dense", "jax.nn"} <= set(timed)
        assert ("numpy" in timed) == (direction in ("forward", "backward"))

    def test_torch_computes_where_jax_does(self, torch, monkeypatch):
        """With a GPU beside a JAX for CPUs alone torch was timed on the GPU."""
        module = importlib.import_module("torch_contestants")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert importlib.reload(module).DEVICE == "cpu"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(module, "DEVICE", "cuda")
        with pytest.raises(Unable, match="this torch knows no GPU"):
            module.sdpa(Case("tiny", TINY["tiny"]), "forward")

    def test_dropout_is_judged_by_the_law_or_by_its_mean(self, monkeypatch):
        case = Case("tiny", TINY["tiny"]._replace(variant="dropout"))
        ours, _ = attention.Judges(case).admit("attendax", "forward")
        assert (ours["status"], ours["judged_by"]) == ("timed", "specification in float64")
        monkeypatch.setattr(attention, "EXACT_DROPOUT", ())
        other, _ = attention.Judges(case).admit("numpy", "forward")
        assert (other["status"], other["judged_by"]) == (
            "timed",
            "specification in float64, at rate 0; with dropout by the mean of its results",
        )
        monkeypatch.setattr(attention, "mean_of_dropped", lambda *_: 7.0)
        assert attention.Judges(case).admit("numpy", "forward")[0]["status"] == "wrong"

    def test_memory_is_refused_by_number(self):
        with pytest.raises(Unable, match=r"would need 13 GiB \(by a formula\); the limit is 6 GiB"):
            contestants.fits(13 * 2**30, "by a formula")

    def run(self, **peers):
        case = Case("tiny", TINY["tiny"])
        options = {"rounds": 3, "budget_s": None, "matmul_gflops": 100.0}
        found = attention.run(attention.Judges(case), "forward", list(peers), **options)
        return {record["contestant"]: record for record in found}

    @pytest.fixture
    def peers(self, monkeypatch):
        """Contestants that are built from what the specification gives."""

        def made(name, change):
            def build(case, measure):
                program = contestants.numpy(case, measure)
                return program._replace(run=lambda arrays: change(program.run(arrays)))

            monkeypatch.setitem(contestants.PEERS, name, contestants.Peer("attendax", build))

        def unable(results):
            raise Unable("it is tired")

        def broken(results):
            raise RuntimeError("of no use\nat all")

        changes = {"right": lambda x: x, "off": lambda x: [x[0] + 1], "tired": unable, "broken": broken}
        for name, change in changes.items():
            made(name, change)
        return dict.fromkeys(changes, "")

    def test_a_contestant_that_is_wrong_or_unable_is_reported_and_not_timed(self, peers):
        records = self.run(**peers)
        statuses = {name: record["status"] for name, record in records.items()}
        assert statuses == {"right": "timed", "off": "wrong", "tired": "unable", "broken": "failed"}
        assert records["off"]["reason"] == "wrong by 1.0e+00"
        assert records["tired"]["reason"] == "it is tired"
        assert records["broken"]["reason"] == "RuntimeError: of no use at all"
        assert {name for name, record in records.items() if "seconds" in record} == {"right"}
        assert records["right"]["ratio"] == [1.0, 1.0, 1.0]
        assert records["right"]["share_of_matmul"] == records["right"]["gflops"] / 100.0

    def test_the_slow_get_no_turns(self):
        """Seconds, and three times as many as the fastest: both are needed."""
        calls = {"fastest": 1.0, "twice": 2.5, "slow": 3.5}
        records = {name: {"status": "timed", "call_s": call_s} for name, call_s in calls.items()}
        ready = [Contestant(name, lambda: None) for name in calls]
        attention.leave_out_the_slow(records, ready)
        assert [one.name for one in ready] == ["fastest", "twice"]
        assert records["slow"]["status"] == "slow"
        assert records["slow"]["reason"].startswith("its first call took 3.5 s, compiling apart, the fastest 1.0 s")

    def test_the_report_says_it(self, peers):
        remarks = report.remarks(list(self.run(**peers).values()))
        assert remarks[:3] == [
            "off: wrong: wrong by 1.0e+00",
            "tired: unable: it is tired",
            "broken: failed: RuntimeError: of no use at all",
        ]


BESIDE = [["--contestants", "numpy"], ["--lengths"], ["--encoders"], ["--against", "HEAD"]]


class TestCommand:
    FEW = ("--contestants", "attendax", "numpy", "--rounds", "3")

    @pytest.mark.slow
    def test_writes_what_it_shows(self, run, tmp_path):
        """JSON, Markdown with every row, and the plots, of one run; nothing is written unless asked for."""
        folder = tmp_path / "new" / "folder"
        status, out, _ = run(*self.FEW, "--lengths", "--output", str(folder))
        assert status == 0
        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        tried = {(r["case"], r["measure"], r["contestant"]) for r in results["records"]}
        both = {(case, measure) for case in TINY for measure in ("forward", "backward")}
        assert tried == {(*one, name) for one in both for name in ("attendax", "numpy")} | {
            ("length-8", "forward", "attendax")
        }
        assert {record["status"] for record in results["records"]} == {"timed"}
        written = (folder / "results.md").read_text(encoding="utf-8")
        assert written == report.markdown(results), "the JSON holds all that the report needs"
        for case, measure in [*both, ("length-8", "forward")]:
            assert report.title(case, measure, results) in out
            assert f"### {report.title(case, measure, results)}" in written
        for record in results["records"]:
            assert f"| {' | '.join(report.row(record))} |" in written
        assert results["about"]["versions"]["jax"] in written
        for name in ("speed", "roofline", "lengths"):
            assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")
            assert "<svg" in (folder / f"{name}.svg").read_text(encoding="utf-8")

    def test_a_wrong_result_of_ours_fails(self, run, monkeypatch):
        monkeypatch.setattr(judge.Judge, "error", lambda *_: 1.0)
        status, out, _ = run("--shapes", "tiny", "--measures", "forward", *self.FEW)
        assert status == cli.FAILED
        assert "attendax: wrong: wrong by 1.0e+00" in out

    def test_an_interrupt_keeps_what_was_measured(self, run, monkeypatch, tmp_path):
        measured = attention.run

        def interrupted(judges, direction, *args, **options):
            if direction == "backward":
                raise KeyboardInterrupt
            return measured(judges, direction, *args, **options)

        monkeypatch.setattr(attention, "run", interrupted)
        status, _, _ = run("--shapes", "tiny", *self.FEW, "--output", str(tmp_path))
        assert status == exits.STATUS
        results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
        assert [r["measure"] for r in results["records"]] == ["forward", "forward"]
        assert "interrupted: what is missing was not measured" in (tmp_path / "results.md").read_text(encoding="utf-8")

    def test_what_has_no_time_is_named(self, run, monkeypatch):
        monkeypatch.setattr(planning, "SHORT_GRID", planning.SHORT_GRID._replace(limit_s=0.0))
        status, out, _ = run(*self.FEW)
        assert status == 0
        assert "tiny-causal, backward: the time of the grid was up" in out

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["--shapes", "tiny", "huge"], "--shapes huge: unknown; there are tiny, tiny-causal, length-8"),
            (["--measures", "sideways"], "--measures sideways: unknown; there are forward, backward, jvp, hvp"),
            (["--contestants", "me"], "--contestants me: unknown; there are attendax, "),
            (
                ["--contestants", "jax.nn-cudnn"],
                "--contestants: none of them can take part: jax.nn-cudnn: for a GPU only",
            ),
            (["--rounds", "0"], "--rounds 0: at least 1"),
            (["--output", "/dev/null/x"], "--output /dev/null/x: Not a directory"),
            (["--against", "no-such-commit"], "--against no-such-commit: "),
            (["--against", "HEAD", "--encoders"], "--against compares attendax with itself"),
            *((["--compile", *other], "--compile compares attendax with jax.nn: no ") for other in BESIDE),
        ],
    )
    def test_refuses(self, run, argv, message):
        status, out, err = run(*argv)
        assert (status, out) == (cli.REFUSED, "")
        assert err.startswith(f"benchmarks bench: {message}")
        assert err.count("\n") == 1

    def test_names_the_nearest_word(self, run):
        assert run("--shapes", "tiny-casual")[2].endswith("tiny-causal, length-8; did you mean tiny-causal?\n")

    def test_a_full_disk_leaves_the_old_results(self, tmp_path):
        bench = importlib.import_module("bench")
        (tmp_path / "results.json").write_text("before")
        with full_disk(), pytest.raises(OSError, match="File too large"):
            bench.write_json({"records": [1.5] * 99}, tmp_path)
        assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]

    @pytest.mark.parametrize("columns", ["40", "80"])
    def test_tables_follow_the_width(self, monkeypatch, capsys, columns):
        monkeypatch.setenv("COLUMNS", columns)
        row = ["jax.nn-blockwise", *["123.456"] * (len(report.HEADER) - 1)]
        importlib.import_module("screen").Screen().print_table("forward", report.HEADER, [row], ["a remark " * 9])
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= int(columns)
        assert "123.456" in out

    def test_without_the_extra(self, run, monkeypatch):
        monkeypatch.setitem(sys.modules, "rich", None)
        status, _, err = run()
        assert status == cli.REFUSED
        assert err.startswith("benchmarks bench: the package rich is not installed; run, in a clone of attendax: ")
        assert err.endswith(' -m pip install ".[bench]"\n')

    def test_a_process_of_its_own_passes_its_status_on(self, monkeypatch, capfd):
        monkeypatch.delenv(BLAS_REST[0])
        assert main(["bench", "--rounds", "0"]) == cli.REFUSED
        assert capfd.readouterr().err == "benchmarks bench: --rounds 0: at least 1\n"


class TestCompile:
    @pytest.mark.slow
    def test_every_shape_forward_and_with_the_gradient(self, run, tmp_path):
        status, out, err = run("--compile", "--rounds", "1", "--output", str(tmp_path))
        assert status == 0, err
        records = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["compile"]
        names = [(r["case"], r["measure"], r["contestant"]) for r in records]
        model = itertools.product(compiling.MODELS, ("backward",), compiling.CONTESTANTS)
        second = itertools.product(compiling.SECOND, ("hvp",), compiling.CONTESTANTS)
        assert names == [*itertools.product(TINY, ("forward", "backward"), compiling.CONTESTANTS), *model, *second]
        for record in records:
            assert record["status"] == "timed"
            (one,) = record["rounds"]
            assert [len(one[clock]) for clock in ("wall_s", "cpu_s")] == [3, 3]
            assert min(one["wall_s"]) > 0 < sum(one["cpu_s"])
            assert one["wall_s"][2] > 2e-3, "no cache holds it"
        written = (tmp_path / "results.md").read_text(encoding="utf-8")
        assert compiling.markdown(records) in written
        for row in (*compiling.rows(records[:2]), *compiling.means(records)):
            assert f"| {' | '.join(row)} |" in written
        assert compiling.ABOVE_1 in out

    def test_ratios_and_means(self):
        def record(case, name, *seconds):
            rounds = [{"wall_s": [x, x, x], "cpu_s": [x, x, 2 * x]} for x in seconds]
            found = {"case": case, "measure": "forward", "contestant": name, "status": "timed", "rounds": rounds}
            return found | compiling.medians(rounds)

        records = [
            *(record("a", "attendax", 1, 2, 3), record("a", "jax.nn", 2, 6, 9)),  # 2, 3, 3 times as long
            *(record("b", "attendax", 4, 4, 4), record("b", "jax.nn", 3, 3, 3)),
            record("c", "attendax", 1, 1, 1),
            {"case": "c", "measure": "forward", "contestant": "jax.nn", "status": "unable", "reason": "no softcap"},
        ]
        assert [compiling.ratio(group, "cpu_s") for group in tables.groups(records)] == [3, 0.75, None]
        assert (records[0]["wall_s"], records[0]["cpu_s"], records[0]["trace_s"]) == (6, 8, 2)
        assert compiling.means(records)[0] == ["forward", "CPU", "1.50", "1.88", "0.75 to 3.00", "2"]
        assert compiling.rows(records[4:]) == [["c", "forward", "attendax", "4.000", "3.000", *["1.000"] * 3, "", ""]]
        assert "- c, forward: jax.nn: unable: no softcap\n" in compiling.markdown(records)

    def test_who_cannot_or_fails_is_reported(self, monkeypatch):
        case = Case("softcap", shapes.Shape(1, 2, 2, 5, 7, 3, True, "no model", "softcap"))
        ours, other = compiling.run(case, "forward", 1, lambda name: None)
        assert (ours["status"], other["status"]) == ("timed", "unable")
        assert "no score modifier" in other["reason"]
        broken = contestants.PEERS["jax.nn"]._replace(stage=lambda case, measure: 1 / 0)
        monkeypatch.setitem(contestants.PEERS, "jax.nn", broken)
        assert (
            compiling.run(case, "forward", 2, lambda name: None)[1]["reason"] == "ZeroDivisionError: division by zero"
        )

    def test_a_failure_of_ours_fails(self, run, monkeypatch):
        monkeypatch.setattr(compiling, "from_cold", contextlib.nullcontext)
        broken = contestants.PEERS["attendax"]._replace(stage=lambda case, measure: 1 / 0)
        monkeypatch.setitem(contestants.PEERS, "attendax", broken)
        status, out, _ = run("--compile", "--shapes", "tiny", "--measures", "forward", "--rounds", "1")
        assert status == cli.FAILED
        assert "attendax: failed: ZeroDivisionError" in out

    def test_the_cache_on_disk_is_off_and_comes_back(self):
        before = jax.config.jax_enable_compilation_cache
        with compiling.from_cold():
            assert not jax.config.jax_enable_compilation_cache
        assert jax.config.jax_enable_compilation_cache == before


class TestAgainst:
    @pytest.fixture
    def clone(self):
        if subprocess.run(["git", "-C", FOLDER, "rev-parse", "HEAD"], capture_output=True).returncode:
            pytest.skip("not in a clone: there are no commits")

    @pytest.mark.slow
    def test_two_sides_take_turns(self, clone, run, tmp_path):
        argv = ["--shapes", "ragged", "--measures", "forward", "--rounds", "3", "--against", "HEAD"]
        planning.SHAPES["ragged"] = shapes.SHAPES["ragged"]
        try:
            status, out, _ = run(*argv, "--output", str(tmp_path))
        finally:
            del planning.SHAPES["ragged"]
        assert status == 0, out
        (record,) = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["against"]["records"]
        assert record["status"] == "timed"
        assert len(record["this_seconds"]) == len(record["other_seconds"]) == 3
        assert f"| {' | '.join(report.against_row(record))} |" in (tmp_path / "results.md").read_text(encoding="utf-8")

    def test_a_side_that_cannot_is_reported(self, without_attendax):
        worker = against.Worker(without_attendax)
        record = against.compare({"this": worker}, "ragged", "forward", "float32", rounds=3)
        worker.stop()
        assert (record["status"], record["reason"]) == ("failed", "this: its process ended with status 7")

    def test_no_plots_without_figures(self):
        assert plots.figures({"records": []}) == {}
