"""``@pytest.mark.sample``: which parameters of a grid are quick. ``--share K/N``: a part of the tests."""

import itertools

import pytest

from samples import covering, in_share, sample

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


def test_any_two_values_of_two_axes_are_together_once():
    axes = "abc", range(4), (True, False), "xyzvw"
    rows = covering(*axes)
    assert rows == covering(*axes)
    for one, other in itertools.combinations(range(4), 2):
        assert {(row[one], row[other]) for row in rows} == set(itertools.product(axes[one], axes[other]))
    assert len(rows) < 30  # of 120; the two longest axes have 20 pairs


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", range(5))
def test_the_rest_is_slow(number, request):
    slow = request.node.get_closest_marker("slow") is not None
    assert slow == (number not in sample([{("number", repr(k))} for k in range(5)], 2))


def test_every_test_is_in_one_share():
    names = [f"tests/test_x.py::test_y[{k}]" for k in range(500)]
    sizes = [sum(in_share(name, f"{k}/5") for name in names) for k in range(1, 6)]
    assert sum(sizes) == 500
    assert min(sizes) > 70
    assert all(sum(in_share(name, f"{k}/5") for k in range(1, 6)) == 1 for name in names)
    assert all(in_share(name, "1/1") for name in names)


def test_a_share_in_sixteen_builds_a_library():
    names = [f"tests/engine/native/test_native_elsewhere.py::test_x[{k}-neon]" for k in range(500)]
    sizes = [sum(in_share(name, f"{k}/64") for name in names) for k in range(1, 65)]
    assert sum(sizes) == 500
    assert sum(size > 0 for size in sizes) == 4


@pytest.mark.parametrize("share", ["0/3", "4/3", "1/0", "third", "1", "-1/3", ""])
def test_a_share_that_is_none(share):
    with pytest.raises(pytest.UsageError, match="--share takes K/N"):
        in_share("tests/test_x.py::test_y", share)
