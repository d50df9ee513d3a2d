"""Tests on eight devices, which the processor plays; ``../test_on_eight.py`` starts them in their own process."""

import os

import jax
import pytest

collect_ignore_glob = [] if "device_count=8" in os.environ.get("XLA_FLAGS", "") else ["test_*.py"]


@pytest.fixture
def compiled_quickly():
    """For large programs of small arrays, whose numbers other tests compile as users do."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
