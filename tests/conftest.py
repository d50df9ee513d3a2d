"""Every test runs with 64-bit JAX; silent promotion of ranks raises; of a large grid only a sample is not slow."""

import itertools
import random

import jax
import numpy as np
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

collect_ignore = ["user_code.py"]  # read by mypy and run by test_types, not searched for doctests


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """``@pytest.mark.sample(count)``: of the parameters of a test, all but so many are slow."""
    marked = [(item, mark.args[0]) for item in items if (mark := item.get_closest_marker("sample"))]
    for _, group in itertools.groupby(marked, lambda pair: (pair[0].path, pair[0].nodeid.partition("[")[0])):
        grid, counts = zip(*group, strict=True)
        kept = sample([{(name, repr(x)) for name, x in item.callspec.params.items()} for item in grid], counts[0])
        for k, item in enumerate(grid):
            if k not in kept:
                item.add_marker(pytest.mark.slow)


def sample(rows, count):
    """Which rows of a grid to take: in a random order that never changes, those with most values not yet taken.

    Args:
        rows: a set for each, of its values.
        count: how many.
    """
    order = random.Random(7).sample(range(len(rows)), len(rows))
    kept, seen = [], set()
    for _ in range(min(count, len(rows))):
        best = max((k for k in order if k not in kept), key=lambda k: len(rows[k] - seen))
        kept.append(best)
        seen.update(rows[best])
    return set(kept)
