"""Every test runs with 64-bit JAX; silent promotion of ranks raises; of a large grid only a sample is not slow.

``pytest`` by itself runs the default suite, which ``default.json`` lists (``choosing.py``). With a path it runs what is
quick there.
"""

import itertools
import json
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: on small arrays threads only wait

import jax
import numpy as np
import pytest

from choosing import ABSENT, LIST
from recording import Recorder
from samples import in_share, sample

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# What is slow in these is whole runs of the kit, by the hundred.
HOURS = (
    "test_block_kernels", "test_cheats", "test_kernels_as_they_are", "test_ladder", "test_pairs_of_values",
)  # fmt: skip

QUICK = "not slow"  # as in pyproject.toml

collect_ignore = ["house/user_code.py"]  # read by mypy and run by test_types, not searched for doctests


@pytest.fixture
def rng():
    return np.random.default_rng(20)


def pytest_addoption(parser):
    parser.addoption("--share", metavar="K/N", default="1/1", help="one of N equal shares of the tests")
    parser.addoption("--record", metavar="FOLDER", help="note there the CPU seconds and the lines of each test")


def pytest_configure(config):
    in_share("", config.getoption("share"))  # refused here, with the usage
    if config.getoption("record"):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        if worker or not getattr(config.option, "numprocesses", None):  # else the tests run in other processes
            config.pluginmanager.register(Recorder(config.getoption("record"), worker or "main"))


def pytest_report_header(config):
    return f"share {config.getoption('share')} of the tests"


def by_default(config):
    """Whether ``pytest`` was told no path and no other marks; of pytest-xdist, not this process but the one above."""
    told = config.args_source is pytest.Config.ArgsSource.TESTPATHS and config.option.markexpr == QUICK
    return getattr(config, "workerinput", {}).get("by_default", told)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """A process of pytest-xdist is told paths, whatever the command was told."""
    node.workerinput["by_default"] = by_default(node.config)


def above(test):
    """Of the name of a test those of its file, its class and its function."""
    parts = test.partition("[")[0].split("::")
    return ["::".join(parts[:k]) for k in range(1, len(parts) + 1)]


LISTED = json.loads(LIST.read_text("utf-8"))
PLACES = {place for test in LISTED for place in above(test)}
OPENED = set()  # files of which a test could be collected: they did not skip themselves


def pytest_ignore_collect(collection_path, config):
    """By default no file is opened of which no test is listed: it takes as long as a tenth of the suite."""
    if by_default(config) and collection_path.is_file():
        return collection_path.relative_to(config.rootpath).as_posix() not in PLACES or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, name):
    """Nor are the parameters of a test made that is not."""
    if not by_default(collector.config) or not name.lower().startswith("test"):
        return None
    OPENED.add(collector.nodeid.partition("::")[0])
    return None if f"{collector.nodeid}::{name}" in PLACES else []


def default_suite(config, items):
    """Mark what is not of the default suite, which alone is left where nothing is asked for."""
    for item in items:
        if item.nodeid not in LISTED:
            item.add_marker("full")
    if not by_default(config):
        return
    config.option.markexpr = "not full"
    there = {item.nodeid for item in items}
    opened = OPENED | {item.nodeid.partition("::")[0] for item in items}
    config.stash[ABSENT] = [
        test
        for test in LISTED
        if test not in there and ((file := above(test)[0]) in opened or not (config.rootpath / file).exists())
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """``@pytest.mark.sample(count)``: of the parameters of a test, all but so many are slow."""
    default_suite(config, items)
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
