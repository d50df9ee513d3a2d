"""A verdict while you wait: the time of a run is kept, what it had no room for is told, and a terminal shows life."""

import ast
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

import dying
from attendax.conformance import CASES, Verdict
from attendax.conformance.cases import how
from attendax.conformance.cases.how import How, forever
from attendax.conformance.command.output import Status
from attendax.conformance.diagnoses.by_running import SEARCH_PARTS, Looking
from attendax.conformance.frameworks.text import text_of
from attendax.conformance.judge.verdicts import LEFT_OUT, Finding
from attendax.conformance.report.known_failures import KnownFailures
from attendax.conformance.report.outcomes import Outcome, coverage
from attendax.conformance.run.budget import NEARLY, PHASES, Budget
from attendax.conformance.run.run import Run, Telling
from attendax.conformance.worker import place
from attendax.conformance.worker.calling import subject_of
from places import PYTHONPATH
from stated import check

NOTHING = place.implement(dying.right, arrays="numpy", in_process=True)


def slow(query, key, value):
    """Right, after a while."""
    time.sleep(0.2)
    return dying.right(query, key, value)


def slow_and_off(query, key, value):
    """Twice what is right, after a while."""
    return 2 * slow(query, key, value)


def sleeps(query, key, value):
    """Right where there is one query, and never there elsewhere."""
    if query.shape[-2] > 1:
        time.sleep(1000)
    return dying.right(query, key, value)


class Simulated:
    """A clock, a processor and a system whose seconds a test gives."""

    def __init__(self, monkeypatch):
        self.now = self.cores = self.waited = 100.0
        of_budget = "attendax.conformance.run.budget."
        monkeypatch.setattr(f"{of_budget}time.process_time", lambda: self.cores)
        monkeypatch.setattr(f"{of_budget}time.monotonic", lambda: self.now)
        monkeypatch.setattr(f"{of_budget}waited_by", lambda process: self.waited)

    def take(self, cores=0.0, rests=0.0, waits=0.0):
        self.cores, self.waited = self.cores + cores, self.waited + waits
        self.now += cores + rests + waits


@pytest.fixture
def simulated(monkeypatch):
    return Simulated(monkeypatch)


class TestTheBudget:
    def test_a_run_is_limited_unless_it_is_thorough_or_has_no_sizes(self):
        assert How().is_limited
        assert How(budget=5.0).is_limited
        assert not How(budget=0).is_limited
        assert not How(thorough=True).is_limited
        assert not How(thorough=True, budget=5.0).is_limited
        assert Budget(How(thorough=True)).left() == float("inf")

    def test_a_budget_is_of_the_cores_and_of_rests(self, simulated):
        budget = Budget(How(budget=10.0))
        budget.watch(NOTHING, How(budget=10.0))
        assert budget.left() == pytest.approx(NEARLY * 10)
        simulated.take(cores=2, rests=1)
        assert budget.left() == pytest.approx(NEARLY * 10 - 3)
        assert budget.left(0.5) == pytest.approx(NEARLY * 5 - 3)

    def test_without_a_budget_pauses_are_free_up_to_a_limit(self, simulated):
        how = How(profile="numbers")
        budget = Budget(how)
        budget.watch(NOTHING, how)
        simulated.take(cores=20, rests=7)
        assert budget.left() == pytest.approx(NEARLY * 30 - 20)
        simulated.take(rests=NEARLY * 30)
        assert budget.left() == pytest.approx(NEARLY * 30 - 20 - 7)

    @pytest.mark.smoke
    @pytest.mark.parametrize("budget", [None, 30.0])
    def test_load_of_other_processes_does_not_shorten_the_budget(self, simulated, budget):
        """With twice and with twenty times the load a run has the same time."""
        how = How(profile="numbers", budget=budget)
        budget = Budget(how)
        budget.watch(NOTHING, how)
        simulated.take(cores=5, waits=500)
        assert budget.left() == pytest.approx(NEARLY * 30 - 5)
        assert budget.rests() == pytest.approx(0)

    def test_each_part_of_a_phase_leaves_the_rest(self, simulated):
        budget = Budget(How(budget=10.0))
        budget.watch(NOTHING, How(budget=10.0))
        whole = budget.left_of("causes", wrong=True)
        looking, endless = Looking(60.0, lambda: budget.left_of("causes", wrong=True)), Looking(60.0, forever)
        simulated.take(cores=2)
        assert looking.left() == pytest.approx(whole - 2)
        looking.part = endless.part = "search"
        assert looking.left() == pytest.approx(SEARCH_PARTS["search"] * whole - 2)
        assert endless.left() == float("inf")

    def test_a_case_may_take_a_third(self, simulated):
        budget = Budget(How(budget=10.0))
        budget.watch(NOTHING, How(budget=10.0))
        left = budget.of_case()
        simulated.take(cores=2)
        assert left() == pytest.approx(NEARLY * 10 / 3 - 2)
        simulated.take(cores=6)
        assert budget.of_case()() == budget.left()

    def test_each_phase_ends_after_the_one_before_it(self):
        for ends in ([x for x, _ in PHASES.values()], [x for _, x in PHASES.values()], [*SEARCH_PARTS.values()]):
            assert ends == sorted(ends)
            assert ends[-1] == 1

    def test_jax_has_longer_and_so_has_a_profile_of_more_cases(self):
        asked = [How(profile="numbers").seconds(x) for x in ("numpy", "torch", "jax")]
        assert asked == [30, 30, 60]
        assert How(profile="law").seconds("numpy") == 60
        assert How(budget=7.0).seconds("jax") == 7

    @pytest.mark.smoke
    def test_the_sizes_of_a_seed_are_the_same_whatever_the_machine(self):
        assert How(thorough=True).seconds_of_ladder("numpy") == 60
        assert How(thorough=True, budget=5.0).seconds_of_ladder("numpy") == 5
        assert How(budget=0).seconds_of_ladder("numpy") == 0
        assert 0 < How(profile="numbers").seconds_of_ladder("numpy") < 30

    def test_the_seconds_of_another_process_count(self):
        made = place.implement("dying:right", arrays="numpy")
        try:
            before = subject_of(made).cores()
            assert before > 0 or not os.path.exists("/proc")
            made.attend.stop()
            assert subject_of(made).cores() >= before
        finally:
            subject_of(made).close()


FEW = {"arrays": "numpy", "level": "forward", "seed": 0}


def run_of(path, budget, only=()):
    """The report of a run, and what is left of its budget."""
    how = How(seed=0, profile="numbers", budget=budget)
    left, made = Budget(how), place.implement(path, arrays="numpy")
    try:
        return Run(made, how, left, KnownFailures(), Telling()).report(only, "forward"), left
    finally:
        subject_of(made).close()


class TestBudget:
    @pytest.mark.parametrize("budget", [3.0, 6.0])
    def test_it_is_kept_and_what_is_left_out_is_no_fault(self, budget):
        report, spent = run_of("test_seconds:slow", budget)
        assert spent.left() > -0.1 * budget
        assert report.failures == ()
        left = [o for o in report.cases if o.verdict is Verdict.NOT_JUDGED]
        assert left
        assert {o.finding.message for o in left} == {LEFT_OUT}
        assert not report.ok  # most of it
        assert "There was no time for" in str(report)

    def test_time_that_causes_do_not_need_is_for_what_was_left_out(self):
        report, spent = run_of("test_seconds:slow_and_off", 6.0)
        assert abs(spent.left()) < 0.2 * 6
        assert "There was no time for" in str(report)
        assert {name for cause in report.causes for name in cause.cases} == {o.case.name for o in report.failures}

    def test_what_has_no_answer_at_its_end_is_not_judged(self):
        report, spent = run_of("test_seconds:sleeps", 4.0, ["batch of one", "one query"])
        assert spent.left() > -0.2 * 4
        assert {o.case.name: o.verdict for o in report.cases}["batch of one"] is Verdict.NOT_JUDGED
        assert report.failures == ()
        assert not report.ok

    @pytest.mark.parametrize("arrays", [None, "numpy"])  # which have to be found out, or are known
    def test_what_has_no_answer_in_the_time_of_a_case_is_a_timeout(self, arrays):
        asked = FEW | {"arrays": arrays, "only": ["plain"]}
        report = check("test_seconds:sleeps", budget=30.0, timeout=1.0, **asked)
        assert {o.verdict for o in report.failures} == {Verdict.TIMEOUT}

    def test_a_run_that_has_time_leaves_nothing_out(self):
        report = check(dying.right, only=["plain", "one query", "width 1"], **FEW)
        assert report.ok
        assert report.left_out == ()

    def test_a_slow_start_is_refused_in_time(self, tmp_path, monkeypatch):
        (tmp_path / "never_there.py").write_text("import time\ntime.sleep(1000)\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ValueError, match="check: never_there:fn: when it was imported: no time left"):
            check("never_there:fn", budget=2.0)


def outcomes_of(cases, left):
    """Right, but for the last, for which there was no time."""
    right, gone = Finding(Verdict.OK), Finding(Verdict.NOT_JUDGED, LEFT_OUT)
    return [Outcome(case, gone if k >= len(cases) - left else right, 0.0, "") for k, case in enumerate(cases)]


@pytest.mark.smoke
def test_a_little_that_was_left_out_is_told_and_much_is_a_gap():
    cases = [case for case in CASES if case.level == "forward"][:30]
    assert coverage(outcomes_of(cases, 14), "float32").gaps == ()
    assert "(left out for want of time)" in str(coverage(outcomes_of(cases, 14), "float32"))
    (gap,) = coverage(outcomes_of(cases, 15), "float32").gaps
    assert gap == "There was no time for 15 of 30 cases"


def test_the_plainest_come_first_and_each_comes_once():
    cheap, dear = how.by_finds(CASES)
    assert sorted(case.name for case in cheap + dear) == sorted(case.name for case in CASES)
    assert [case.name for case in cheap[:2]] == ["plain", "gradient: plain"]
    assert {case.name for case in cheap if case.pairs >= how.DEAR_PAIRS} == set(how.UNCOVERED)
    assert min(case.pairs for case in dear) >= how.DEAR_PAIRS


@pytest.mark.parametrize("arrays", ["numpy", "jax", "torch"])
def test_the_text_of_a_driver_is_its_source(arrays):
    pytest.importorskip(arrays)
    module = importlib.import_module(f"attendax.conformance.frameworks.in_{arrays}")
    text = text_of(arrays)
    assert (text.header, text.wide) == (module.HEADER, module.WIDE)
    assigned = {name for name, source in text.functions.items() if source.startswith(f"{name} = ")}
    lines = {ast.unparse(node) for node in ast.parse(inspect.getsource(module)).body}
    assert {text.functions[name] for name in assigned} <= lines
    for name, source in text.functions.items():
        if name in assigned:
            continue
        function = inspect.unwrap(getattr(module, name))
        own = inspect.getsource(function).rstrip()
        assert source == own.replace(f"def {function.__name__}(", f"def {name}(", 1)
    of_module = {k for k, x in vars(module).items() if inspect.isfunction(inspect.unwrap(x)) and callable(x)}
    of_package = {k for k in of_module if "attendax" in inspect.unwrap(getattr(module, k)).__module__}
    assert of_package | assigned == set(text.functions)


def test_a_fault_of_torch_needs_no_torch_in_the_judge():
    pytest.importorskip("torch")
    code = """
import sys
from stated import check
report = check("test_seconds:of_torch", only=["plain"], level="forward", seed=0, arrays="torch")
assert report.failures and report.failures[0].reproduction
assert "torch" not in sys.modules and "jax" not in sys.modules
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


def of_torch(query, key, value):
    """Twice what is right."""
    return 2 * (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).softmax(-1) @ value


class TestLine:
    @pytest.mark.smoke
    def test_the_progress_line_counts_and_shows_faults(self):
        pytest.importorskip("rich", reason="the extra 'check' is not installed")
        from rich.console import Console
        from rich.progress import Progress

        shown, line = io.StringIO(), Status()
        with Progress(console=Console(file=shown, width=120)) as line.bar:
            line.task = line.bar.add_task("")
            line.begins("cases", lambda: 7.4)
            for case, verdict in zip(
                CASES, (Verdict.OK, Verdict.WRONG, Verdict.WRONG, Verdict.NOT_OFFERED), strict=False
            ):
                line.asks(0, 4, case)
                line.found(Outcome(case, Finding(verdict, "out is off", "out"), 0.0, ""))
            assert str(line) == "1 ok, 2 wrong, 7 s left"
        assert shown.getvalue().count("out is off") == 1


DOUBLED = """from dying import right


def attention(query, key, value):
    return 2 * right(query, key, value)
"""
COMPILED = """import jax
import jax.numpy as jnp


def attention(query, key, value, *, is_causal=False):
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    scores = jnp.where(jnp.tri(*scores.shape[-2:], k=1, dtype=bool), scores, -1e9) if is_causal else scores
    return jax.nn.softmax(scores) @ value
"""
LATE = f"import time\n\ntime.sleep(8)\n{DOUBLED}"
HANGS = DOUBLED.replace("return", "while query.shape[-2] == 1:\n        pass\n    return")
LONG = "from right_attention import attend as attention"
TERMINAL = pytest.mark.skipif(os.name != "posix", reason="a terminal of POSIX")


class Seen(NamedTuple):
    """What a terminal showed, the longest time in which it showed nothing new, and how the command ended."""

    text: str
    quiet: float
    status: int


def on_a_terminal(text, folder, *arguments):
    """``attendax check`` of a module as a user runs it: a terminal for the keys, the output and the errors."""
    import pty
    import select

    (folder / "mine.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": PYTHONPATH, "TERM": "xterm", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "attendax", "check", "mine:attention", *arguments]
    here, there = pty.openpty()
    last, quiet, seen = time.monotonic(), 0.0, b""
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=there, stdout=there, stderr=there)
    os.close(there)
    try:
        while select.select([here], [], [], 60)[0]:
            some = os.read(here, 2**16)
            now = time.monotonic()
            quiet, last, seen = max(quiet, now - last), now, seen + some
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(here)
        status = process.wait(60)
    return Seen(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode("utf-8", "replace")), quiet, status)


@TERMINAL
def test_a_terminal_sees_life_and_the_first_fault_soon(tmp_path):
    pytest.importorskip("rich", reason="the extra 'check' is not installed")
    text, quiet, status = on_a_terminal(DOUBLED, tmp_path, "--budget", "10", "--level", "forward")
    assert status == 1
    assert "plain (L2): wrong: out is off" in text
    assert " s left" in text
    assert text.index("importing mine:attention") < text.index("plain (L2): wrong") < text.rindex("mine:attention")
    assert quiet < 5


@TERMINAL
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "arguments"),
    [(LONG, ()), (DOUBLED, ()), (COMPILED, ()), (LATE, ("--budget", "20")), (HANGS, ())],
    ids=["right", "wrong", "compiled", "imported late", "hangs"],
)
def test_a_terminal_shows_something_every_five_seconds(text, arguments, tmp_path):
    pytest.importorskip("rich", reason="the extra 'check' is not installed")
    seen = on_a_terminal(text, tmp_path, *arguments)
    assert seen.status == (text != LONG), seen.text[-2000:]
    assert re.search(r"mine:attention +(numpy|jax), float32, profile \"numbers\"", seen.text), seen.text[-2000:]
    assert seen.quiet < 5
