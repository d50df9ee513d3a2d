"""Every test runs with 64-bit JAX; silent promotion of ranks raises; of a large grid only a sample is not slow."""

import itertools

import jax
import numpy as np
import pytest

from samples import in_share, sample

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# What is slow in these is whole runs of the kit, by the hundred.
HOURS = (
    "test_block_kernels", "test_cheats", "test_kernels_as_they_are", "test_ladder",
)  # fmt: skip

collect_ignore = ["house/user_code.py"]  # read by mypy and run by test_types, not searched for doctests


@pytest.fixture
def rng():
    return np.random.default_rng(20)


def pytest_addoption(parser):
    parser.addoption("--share", metavar="K/N", default="1/1", help="one of N equal shares of the tests")


def pytest_configure(config):
    in_share("", config.getoption("share"))  # refused here, with the usage


def pytest_report_header(config):
    return f"share {config.getoption('share')} of the tests"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """``@pytest.mark.sample(count)``: of the parameters of a test, all but so many are slow."""
    for item in items:
        if item.path.stem in HOURS and item.get_closest_marker("slow"):
            item.add_marker("hours")
    marked = [(item, mark.args[0]) for item in items if (mark := item.get_closest_marker("sample"))]
    for _, group in itertools.groupby(marked, lambda pair: (pair[0].path, pair[0].nodeid.partition("[")[0])):
        grid, counts = zip(*group, strict=True)
        kept = sample([{(name, repr(x)) for name, x in item.callspec.params.items()} for item in grid], counts[0])
        for k, item in enumerate(grid):
            if k not in kept:
                item.add_marker(pytest.mark.slow)
    mine = [in_share(item.nodeid, config.getoption("share")) for item in items]
    config.hook.pytest_deselected(items=[item for item, kept in zip(items, mine, strict=True) if not kept])
    items[:] = [item for item, kept in zip(items, mine, strict=True) if kept]
