"""Seeds and repeats: what fits a seed, keeps an old result, or is wrong once in twenty calls is red."""

import json
import random

import numpy as np
import pytest

from attendax.conformance import CASES, Verdict, assert_conforms
from attendax.conformance.cases.how import How, forever
from attendax.conformance.checking import judge
from attendax.conformance.run.run import repeated
from attendax.conformance.worker import place
from dying import right
from stated import check

SOME = {"only": ["plain", "one query", "width 1", "more queries"], "level": "forward", "arrays": "numpy"}


def by_shape():
    """Keeps the result of the first call with arrays of a shape."""
    kept = {}
    return lambda query, key, value: kept.setdefault((query.shape, key.shape, value.shape), right(query, key, value))


def by_first_number():
    """Forgets nothing but the last call, which it knows by a shape."""
    last = {}

    def attend(query, key, value):
        if last.get("shape") != query.shape or last["calls"] % 2 == 0:
            last.update(shape=query.shape, out=right(query, key, value), calls=0)
        last["calls"] += 1
        return last["out"]

    return attend


def once_in(calls):
    """Wrong in one of so many calls."""
    draw = random.Random(5)

    def attend(query, key, value):
        out = right(query, key, value)
        out.flat[0] += draw.random() < 1 / calls
        return out

    return attend


@pytest.mark.smoke
@pytest.mark.parametrize("make", [by_shape, by_first_number])
def test_a_stale_cache_is_red(make, no_causes):
    assert not check(make(), repeat=3, **SOME).ok


def test_a_race_is_red_and_known_as_one():
    report = check(once_in(20), repeat=9, seed=3, **SOME)
    assert not report.ok
    assert all(o.red.endswith(" of 9") and len(o.runs) == 9 for o in report.failures)
    assert any(o.is_unsteady for o in report.failures)
    shown = [case for case in json.loads(report.to_json())["cases"] if "red" in case]
    assert {case["name"] for case in shown} == {o.case.name for o in report.failures}


def test_the_first_calls_of_a_run_of_repeats_are_of_the_plainest_case():
    asked = []
    found = [outcome for outcome in check(right, repeat=1, **SOME).cases if outcome.verdict is Verdict.OK]
    repeated(found, How(repeat=3), lambda case, how: asked.append(case.name) or found[0], forever)
    assert asked[:3] == [found[0].case.name] * 2 + [found[-1].case.name]
    assert sorted(asked) == sorted(2 * [o.case.name for o in found])


def test_what_is_always_wrong_is_no_race():
    report = check(lambda query, key, value: 2 * right(query, key, value), repeat=3, **SOME)
    assert {(o.red, o.is_unsteady, o.seed) for o in report.failures} == {("3 of 3", False, None)}


def test_a_fault_of_other_numbers_brings_their_seed():
    """Wrong with the numbers of the second run alone: its script, its diagnosis and its JSON are of those."""
    other = CASES[0].inputs(11 + 7919, "float32").arrays["query"]

    def attend(query, key, value):
        return right(query, key, value) * (2 if np.array_equal(query, other) else 1)

    report = check(attend, only=["plain"], level="forward", arrays="numpy", repeat=2, seed=11)
    (fault,) = report.failures
    assert (fault.case.name, fault.seed, fault.red) == ("plain", 11 + 7919, "1 of 2")
    assert f"seed {fault.seed}" in fault.reproduction
    assert fault.case.text(fault.seed, "float32") in fault.reproduction
    assert "2 times what is right" in report.causes[0].name


def test_calls_that_are_dear_are_not_repeated_unasked():
    case = next(case for case in CASES if case.name == "plain")
    made, asked = place.implement(right, arrays="numpy", in_process=True), []
    first = judge(made, case)

    def again(case, how):
        asked.append(how.seed)
        return first

    for seconds, repeat, times in ((0.01, None, 3), (1.0, None, 1), (1.0, 4, 4), (0.01, 1, 1)):
        asked.clear()
        (found,) = repeated([first._replace(seconds=seconds)], How(seed=7, repeat=repeat), again, forever)
        assert len(found.runs) == times == 1 + len(asked)
        assert all((seed == 7) == (k % 2 == 1) for k, seed in enumerate(asked))


def test_the_seed_is_drawn_and_told():
    seeds = {check(right, **SOME, in_process=True).seed for _ in range(3)}
    assert len(seeds) == 3
    report = check(right, seed=5, **SOME, in_process=True)
    assert report.seed == json.loads(report.to_json())["seed"] == 5


def test_a_seed_repeats_the_run_to_the_bit():
    def told(seed):
        cases = json.loads(check("test_repeats:off", seed=seed, repeat=2, **SOME).to_json())["cases"]
        return [case | {"seconds": 0} for case in cases]

    assert told(8) == told(8)
    assert told(8) != told(9)


def off(query, key, value):
    return right(query, key, value) + np.float32(1e-3)


def off_for_one_query(query, key, value):
    return right(query, key, value) + np.float32(1e-3 * (query.shape[-2] == 1))


@pytest.mark.smoke
def test_an_assertion_tells_its_seed():
    (case,) = (case for case in CASES if case.name == "one query")
    with pytest.raises(AssertionError, match=r"\(seed \d+\)"):
        assert_conforms(off_for_one_query, case)


@pytest.mark.smoke
def test_a_seed_is_a_number():
    with pytest.raises(ValueError, match="check: seed got -1, expected 0 or more"):
        check(right, seed=-1)
