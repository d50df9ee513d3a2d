"""The adapters, by name; nothing of a library is imported before its adapter is used.

``attendax check benchmarks.matrix.adapters:torch_sdpa`` judges ``ADAPTERS["torch-sdpa"]``.
"""

from attendax.conformance import Implementation

from .adapter import Adapter as Adapter
from .jax_libraries import ADAPTERS as IN_JAX
from .numpy_libraries import ADAPTERS as IN_NUMPY
from .torch_libraries import ADAPTERS as IN_TORCH

ADAPTERS: dict[str, Adapter] = IN_JAX | IN_TORCH | IN_NUMPY
PATHS = {"".join(c if c.isalnum() else "_" for c in name): name for name in ADAPTERS}  # names that Python has


def implementation(name: str) -> Implementation:
    """The function of an adapter."""
    return ADAPTERS[name].implementation(name)


def __getattr__(name: str) -> Implementation:
    if name not in PATHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return implementation(PATHS[name])
