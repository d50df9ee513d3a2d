"""Every test runs with 64-bit JAX; silent promotion of ranks raises; of a large grid only a sample is not slow.

``pytest`` by itself runs the default suite (``default_suite.py``). With a path it runs what is quick there.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: on small arrays threads only wait

import jax
import numpy as np
import pytest

from default_suite import BY_DEFAULT, CATCHERS, asked_for, grids, in_default_suite, sampled
from places import TESTS
from samples import in_share

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# What is slow in these is whole runs of the kit, by the hundred.
HOURS = (
    "test_block_kernels", "test_cheats", "test_kernels_as_they_are", "test_ladder", "test_pairs_of_values",
)  # fmt: skip

collect_ignore = ["house/user_code.py"]  # read by mypy and run by test_types, not searched for doctests
collect_ignore_glob = ["*conftest.py"]  # nor are these, which all have one name


@pytest.fixture
def rng():
    return np.random.default_rng(20)


@pytest.fixture(scope="session")
def torch():
    """No part of the test extra, for on some machines it is gigabytes."""
    return pytest.importorskip("torch", reason="torch is not installed (pip install torch==2.13.0)")


@pytest.fixture
def as_users_have_it():
    """32 bits, and ranks promoted: what functions of users are written for."""
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def no_causes(monkeypatch):
    """The causes of faults are not looked for, which takes most of a run with faults: for tests of the verdict."""
    monkeypatch.setattr("attendax.conformance.run.run.first_look", lambda *given: [])
    monkeypatch.setattr("attendax.conformance.run.run.diagnosed", lambda *given: ())


def pytest_addoption(parser):
    parser.addoption("--share", metavar="K/N", default="1/1", help="one of N equal shares of the tests")


def pytest_configure(config):
    in_share("", config.getoption("share"))  # refused here, with the usage
    config.stash[BY_DEFAULT] = asked_for(config)
    if config.stash[BY_DEFAULT]:
        config.option.markexpr = "not full"


def pytest_report_header(config):
    return f"share {config.getoption('share')} of the tests"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a process of pytest-xdist whether the default suite runs."""
    node.workerinput["by_default"] = node.config.stash[BY_DEFAULT]


def pytest_ignore_collect(collection_path, config):
    """By default, open no file without a test of the suite: that would take a tenth of the suite's time."""
    if not config.stash[BY_DEFAULT] or not collection_path.is_relative_to(TESTS) or not collection_path.is_file():
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    needed = name in {test.partition("::")[0] for test in CATCHERS}
    return None if needed or "mark.smoke" in collection_path.read_text("utf-8") else True


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, name, obj):
    """By default, make no parameters of a test that is not in the suite."""
    if not collector.config.stash[BY_DEFAULT] or not name.startswith("test"):
        return None
    marks = [*collector.iter_markers("smoke"), *getattr(obj, "pytestmark", [])]
    needed = f"{collector.nodeid}::{name}" in {test.partition("[")[0] for test in CATCHERS}
    in_suite = needed or any(mark.name == "smoke" for mark in marks)
    return None if in_suite else []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark what is slow, what takes hours and what the default suite leaves out; keep the share that was asked for."""
    for grid in grids(items):
        if count := grid[0].get_closest_marker("sample"):
            for item in set(grid) - set(sampled(grid, *count.args)):
                item.add_marker("slow")
        for item in grid:
            if item.path.stem in HOURS and item.get_closest_marker("slow"):
                item.add_marker("hours")
        for item in set(grid) - set(in_default_suite(grid)):
            item.add_marker("full")
    mine = [in_share(item.nodeid, config.getoption("share")) for item in items]
    config.hook.pytest_deselected(items=[item for item, kept in zip(items, mine, strict=True) if not kept])
    items[:] = [item for item, kept in zip(items, mine, strict=True) if kept]
