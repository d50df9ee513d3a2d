"""The default suite, which ``pytest`` runs by itself: no mistake that is planted in attention survives it.

The tables say which test notices a mistake, and slow tests that it does. Here: each of these tests is in the suite.
"""

import json

import pytest

from choosing import ABSENT, LIST, chosen, in_lines, names, noticing

LISTED = json.loads(LIST.read_text("utf-8"))
NOTICED = noticing()


@pytest.mark.parametrize("where", NOTICED)
def test_whatever_notices_a_planted_mistake_is_in_it(where):
    assert sorted(NOTICED[where] - set().union(*map(names, LISTED))) == []


def test_each_listed_test_exists(request):
    """Rename a renamed test in tests/default.json, and remove a removed one with its two lines there."""
    absent = request.config.stash.get(ABSENT, None)
    if absent is None:
        pytest.skip("not the default suite, of which alone every file is collected")
    assert absent == []


def test_it_takes_260_seconds_of_a_processor():
    """By the seconds that are noted in the list, not by a clock; a run adds to them what starts and collects it."""
    assert sum(seconds for seconds, _ in LISTED.values()) < 260


def test_a_test_is_chosen_for_the_lines_that_no_cheaper_one_runs():
    tests = {
        "a": (1.0, {("f", 1), ("f", 2)}),
        "b": (9.0, {("f", 1), ("f", 2), ("f", 3)}),
        "c": (1.0, {("f", 3)}),
        "d": (1.0, {("f", 2)}),
        "named": (5.0, set()),
    }
    kept = chosen(tests, lambda test: test == "named", price=1)
    assert sorted(kept) == ["a", "c", "named"]
    assert kept["a"] == [1.0, "2 lines"]


def test_none_is_chosen_whose_lines_others_run_or_that_is_dear():
    tests = {
        "two": (1.0, {("f", 1), ("f", 2)}),
        "pairs": (1.1, {("f", 1), ("f", 3)}),
        "others": (1.2, {("f", 2), ("f", 4)}),
        "dear": (9.0, {("f", 9)}),
    }
    assert set(chosen(tests, lambda test: False, price=2)) == {"pairs", "others"}
    assert set(chosen(tests, lambda test: False, price=9)) == {"pairs", "others", "dear"}


def test_lines_are_read_as_they_were_noted():
    assert in_lines({"f": [[1, 3], [7, 7]]}) == {("f", 1), ("f", 2), ("f", 3), ("f", 7)}
