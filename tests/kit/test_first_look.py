"""Reasons and hangs in a run that has little time: both are told, whatever else there is no time for."""

import time

import pytest

import dying
from attendax.conformance import Verdict
from attendax.conformance.cases import named
from attendax.conformance.cases.how import How
from attendax.conformance.diagnoses import diagnosed, first_look
from attendax.conformance.report.known_failures import KnownFailures
from attendax.conformance.run.budget import CALL_FACTOR, FIRST_HANG_SECONDS, HANG_SECONDS, Budget, Patience
from attendax.conformance.run.run import Run, Telling, judge
from attendax.conformance.worker import place
from attendax.conformance.worker.calling import subject_of
from stated import check

REASON = "softmax runs over the queries"
PLAIN = ("plain", "scale given", "mask (T, S)", "one key", "gradient: plain")
HOW = How(seed=0, profile="numbers")
FRAMEWORKS = ("numpy", "torch", "jax")


@pytest.fixture(params=FRAMEWORKS)
def over_queries(request):
    """A function that is wrong in its plainest use, in a process of its own."""
    pytest.importorskip(request.param)
    made = place.implement(f"over_queries:{request.param}", arrays=request.param)
    yield made
    subject_of(made).close()


def test_a_first_look_finds_the_reason_and_the_end_tells_it_without_any_time(over_queries):
    outcomes = [judge(over_queries, named(name), HOW) for name in PLAIN]
    (reason,) = (x for x in first_look(over_queries, outcomes, HOW) if x.hypothesis.name == REASON)
    assert "plain" in reason.names
    late = HOW._replace(left=lambda: 0.0)
    without = diagnosed(over_queries, outcomes, late)
    assert REASON not in [cause.name for cause in without]  # what there was before
    (cause,) = (x for x in diagnosed(over_queries, outcomes, late, [reason]) if x.name == REASON)
    assert reason.names <= set(cause.cases)


class Told(Telling):
    """What is told, in turn."""

    def __init__(self):
        super().__init__()
        self.events = []

    def found(self, outcome):
        self.events.append(outcome.case.name)

    def begins(self, what, left=None):
        self.events.append(what)

    def stands(self, reason, cases):
        self.events.append((reason, *cases))


def run_of(path, tell):
    """The report of a run of the plainest cases that tells somebody."""
    made = place.implement(path, arrays="numpy")
    try:
        return Run(made, HOW, Budget(HOW), KnownFailures(), tell).report(PLAIN[:4], "forward")
    finally:
        subject_of(made).close()


def test_a_reason_is_told_before_a_run_is_over_and_reported_at_its_end():
    tell = Told()
    report = run_of("over_queries:numpy", tell)
    told = [x for x in tell.events if isinstance(x, tuple)]
    assert told[0][:2] == (REASON, "plain")
    assert tell.events.index(told[0]) < tell.events.index("cases again")
    assert report.causes[0].name == REASON
    assert "plain" in report.causes[0].cases


def test_a_right_function_is_not_looked_at():
    tell = Told()
    assert run_of("dying:right", tell).failures == ()
    assert all(isinstance(x, str) for x in tell.events)


def stays(query, key, value):
    """Never comes back from a call of one query."""
    if query.shape[-2] == 1:
        time.sleep(1000)
    return dying.right(query, key, value)


class TestHang:
    def test_what_hangs_where_larger_cases_do_not_is_a_fault(self):
        only = ["plain", "arrays that are views", "one query", "batch of one"]
        report = check("test_first_look:stays", budget=60.0, only=only, arrays="numpy", level="forward", seed=0)
        found = {outcome.case.name: outcome for outcome in report.cases}
        assert found["one query"].verdict is Verdict.TIMEOUT
        assert "no answer in" in found["one query"].finding.message
        assert "larger cases are answered" in found["one query"].finding.message
        assert found["batch of one"].verdict is Verdict.OK
        assert any("no answer in" in cause.name for cause in report.causes)
        assert " pass" not in str(report)

    def test_a_limit_stands_on_larger_cases_of_the_same_direction(self):
        patience, small, large = Patience(), named("one query"), named("plain")
        for case in (small, named("gradient: plain"), large):
            assert patience.of(small, 0.01, 0.2, 20.0) == float("inf")
            patience.answered(case)
        assert patience.of(small, 0.01, 0.2, 20.0) == FIRST_HANG_SECONDS
        assert patience.of(large, 0.01, 0.2, 20.0) == float("inf")  # one of its size

    def test_it_is_shorter_after_a_fault_and_longer_where_calls_or_the_start_take_long(self):
        patience, case = Patience(), named("plain")
        patience.answered(case)
        patience.answered(case)
        assert patience.of(case, 0.4, 0.2, 20.0) == CALL_FACTOR * 0.4
        assert patience.of(case, 0.01, 4.0, 20.0) > 2 * FIRST_HANG_SECONDS
        assert patience.of(case, 2.0, 0.2, 20.0) == float("inf")  # more than a case may take: not judged
        patience.late = 9
        assert patience.of(case, 0.01, 0.2, 20.0) == HANG_SECONDS
