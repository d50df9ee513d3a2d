"""What ``pytest`` runs by itself: doctests, tests marked `smoke`, and those that a planted mistake in the C++ needs.

``@pytest.mark.smoke`` takes all quick parameters of a test, ``@pytest.mark.smoke(3)`` three of them.
"""

import itertools

import pytest

from mistakes_in_native import MISTAKES
from samples import sample

BY_DEFAULT = pytest.StashKey()  # whether the default suite runs
QUICK = "not slow"  # as in pyproject.toml
CATCHERS = {f"tests/engine/native/{test}" for mistake in MISTAKES for test in mistake.catchers}


def asked_for(config):
    """Whether the default suite was asked for: no path and no other marks."""
    if hasattr(config, "workerinput"):  # a process of pytest-xdist is told paths, whatever the command was told
        return config.workerinput["by_default"]
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and config.option.markexpr == QUICK


def grids(items):
    """The tests of each function: one for each of its parameters."""
    for _, grid in itertools.groupby(items, function):
        yield list(grid)


def function(item):
    """The name of a test without its parameters."""
    return item.nodeid.partition("[")[0]


def sampled(grid, count):
    """So many tests of a function, of which each has values that those before do not have."""
    kept = sample([{(name, repr(x)) for name, x in item.callspec.params.items()} for item in grid], count)
    return [grid[k] for k in sorted(kept)]


def in_default_suite(grid):
    """Those of a function's tests that ``pytest`` runs by itself."""
    if not isinstance(grid[0], pytest.Function):
        return grid
    quick = [item for item in grid if not item.get_closest_marker("slow")]
    smoke = grid[0].get_closest_marker("smoke")
    chosen = sampled(quick, *smoke.args) if smoke and smoke.args else quick if smoke else []
    return [*chosen, *(item for item in grid if {item.nodeid, function(item)} & CATCHERS)]
