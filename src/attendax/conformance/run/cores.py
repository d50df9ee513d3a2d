"""One core for the judge's products: its blocks are small, and threads that wait take time from the function."""

import contextlib
import ctypes
from collections.abc import Iterator

import numpy as np  # noqa: F401  whose library it is

MAPPED = "/proc/self/maps"
NAMES = "scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads"


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """NumPy's products of matrices use one core, where OpenBLAS makes them on Linux; elsewhere as many as before."""
    library = _openblas()
    name = next((name for name in NAMES if library and hasattr(library, name.format("set"))), None)
    if library is None or name is None:
        yield
        return
    before = int(getattr(library, name.format("get"))())
    getattr(library, name.format("set"))(1)
    try:
        yield
    finally:
        getattr(library, name.format("set"))(before)


def _openblas() -> ctypes.CDLL | None:
    """The library that this process has loaded."""
    try:
        with open(MAPPED) as lines:
            paths = {line.split(maxsplit=5)[-1].strip() for line in lines if "openblas" in line}
        return ctypes.CDLL(min(paths)) if paths else None
    except OSError:
        return None
