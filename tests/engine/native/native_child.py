"""Tests in a process of its own that loads another native library: it is forked from one that has imported JAX."""

import importlib
import multiprocessing
import os
import pathlib
import sys

IMPORTED = ["jax", "jax.numpy", "numpy", "ml_dtypes", "pytest", "attendax", "attendax.conformance"]
SAID = 50  # plus how pytest ended: a process that fails before it ends with 1
OPTIONS = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-m", ""]


def start():
    """The maker of the processes. Nothing in it may ask for the library, which a process loads but once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def judged(context, library, folder, tests, seconds):
    """How tests end with a library: "passed", "failed", or how the process ended; and what they said."""
    told = pathlib.Path(library).with_suffix(".txt")
    told.touch()
    process = context.Process(target=_child, args=(str(library), str(folder), list(tests), str(told)))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return "waited for ever", ""
    ends = {SAID: "passed", SAID + 1: "failed"}
    return ends.get(process.exitcode, f"ended by {process.exitcode}"), told.read_text("utf-8", "replace")[-5000:]


def _child(library, folder, tests, told):
    import pytest

    importlib.import_module("attendax.kernels.native")
    module = sys.modules["attendax.kernels.native.library"]
    module.FOLDER, module.NAME = pathlib.Path(library).parent, pathlib.Path(library).name
    with open(told, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        del os.environ[name]
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.exit(SAID + int(pytest.main([*OPTIONS, *tests])))
