"""``@pytest.mark.sample``: which parameters of a grid are quick."""

import itertools

import pytest

from samples import sample

GRID = [{("letter", a), ("number", b)} for a, b in itertools.product("abcd", range(3))]


@pytest.mark.parametrize("count", [1, 4, 7, 12, 99])
def test_a_sample_is_of_that_size_and_the_same_each_time(count):
    assert len(sample(GRID, count)) == min(count, len(GRID))
    assert sample(GRID, count) == sample(GRID, count)


def test_values_come_before_they_come_again():
    kept = [GRID[k] for k in sample(GRID, 4)]
    assert set().union(*kept) == set().union(*GRID)
    alike = [{"one"}] * 9 + [{"other"}]
    assert 9 in sample(alike, 2)


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", range(5))
def test_the_rest_is_slow(number, request):
    slow = request.node.get_closest_marker("slow") is not None
    assert slow == (number not in sample([{("number", repr(k))} for k in range(5)], 2))
